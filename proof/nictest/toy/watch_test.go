package toy_test

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/kit"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/nictest"
	"github.com/rebound-nic/rebound/proof/nictest/toy"
	"github.com/rebound-nic/rebound/proof/programs"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/toysim"
)

// The watchdog restarts a device that hangs or was reset, and ends the loop of one that has left the bus. A device that
// hangs gets twice the time, because the loop may have been delayed.
func TestWatch(t *testing.T) {
	for name, c := range map[string]struct {
		spoil       func(*toysim.Model, *sim.Port, *sim.Function)
		notBy, by   time.Duration // times when it has not restarted yet, and when it has
		reason, log string
		ended       error
	}{
		"transmitter hangs": {
			func(m *toysim.Model, p *sim.Port, _ *sim.Function) { p.Hold(func() { m.Pause(true) }) },
			2 * time.Second, 3 * time.Second, "resets_tx_hang", "the device is unhealthy", nil,
		},
		"reset by another driver": {
			func(_ *toysim.Model, _ *sim.Port, fn *sim.Function) { fn.Reset() },
			0, 2 * kit.Every, "resets_foreign_reset", "bus mastering is off", nil,
		},
		"unplugged": {
			func(_ *toysim.Model, p *sim.Port, _ *sim.Function) { p.Unplug() },
			0, 2 * kit.Every, "", "", nic.ErrGone,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := toysim.New([6]byte{2, 0, 0, 0, 0, 9})
				port := must.Get(sim.New(m, sim.Options{Name: "toy"}))(t)
				defer port.Close()
				near, far := sim.Pair()
				port.Connect(near)
				fn := must.Get(port.Function())(t)
				port.StartVirtual()
				var log programs.Output
				d := must.Get(toy.Open(fn, nic.Options{RingSize: 64, MAC: [6]byte(nictest.EchoRequest(98)),
					Log: slog.New(slog.NewTextHandler(&log, nil))}))(t)
				r := nictest.NewResponder(t)
				stop := nictest.ServeVirtual(d.Gate(), func() { d.Queue(0).Poll(r) })
				answers := func() bool {
					far.Send(0, nictest.EchoRequest(98))
					time.Sleep(time.Millisecond)
					return far.Recv(0) != nil
				}
				resets := func() uint64 {
					var s nic.Stats
					check.OK(t, d.ReadStats(&s))
					return s.Extra[c.reason]
				}
				if !answers() {
					t.Error("no answer")
				}
				c.spoil(m, port, fn)
				far.Send(0, nictest.EchoRequest(98))
				if c.ended == nil {
					if time.Sleep(c.notBy); strings.Contains(log.String(), "was restarted") {
						t.Errorf("restarted within %v", c.notBy)
					}
					if time.Sleep(c.by - c.notBy); resets() != 1 || !strings.Contains(log.String(), c.log) {
						t.Errorf("%d restarts after %v, want 1 and %q in the log:\n%s", resets(), c.by, c.log,
							log.String())
					}
					far.Recv(0)
					if !answers() {
						t.Error("no answer after the restart")
					}
				} else {
					time.Sleep(c.by)
				}
				if err := stop(); !errors.Is(err, c.ended) {
					t.Errorf("the loop ended with %v, want %v", err, c.ended)
				}
				if err := d.Close(); c.ended == nil && err != nil {
					t.Error(err)
				}
			})
		})
	}
}
