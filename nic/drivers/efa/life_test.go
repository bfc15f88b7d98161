package efa_test

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/vfiouser"
	"github.com/rebound-nic/rebound/nic/drivers/efa"
	"github.com/rebound-nic/rebound/nic/kit/cmdtrace"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/golden"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/nictest"
	"github.com/rebound-nic/rebound/sim/efasim"
	"github.com/rebound-nic/rebound/sim/vfioserver"
)

// The life-cycle tests of nictest that apply to messages.

// The device disappears after some accesses of Open: Open returns that error, and nothing remains mapped.
func TestRemovedOpening(t *testing.T) {
	needs.Long(t)
	synctest.Test(t, func(t *testing.T) {
		x := adapter(virtual{t}, efasim.Options{}, 1, nil)
		for _, n := range []int{0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144} {
			x.port.UnplugAfter(n)
			if err := x.tryOpen(nic.Options{}, efa.Options{}); err == nil {
				x.close()
			} else if !errors.Is(err, nic.ErrGone) {
				t.Errorf("Open of a device that is gone after %d accesses: %v", n, err)
			}
			x.port.UnplugAfter(-1)
			if left := x.port.Mappings(); left != 0 || x.port.BusMaster() {
				t.Fatalf("gone after %d accesses: %d mappings and bus master %v are left", n, left, x.port.BusMaster())
			}
		}
		x.open(nic.Options{}, efa.Options{})
		x.close()
	})
}

func TestStalledOpening(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := adapter(virtual{t}, efasim.Options{}, 1, nil)
		x.fault.Stalled = true
		check.Fails(t, "Open of a device that does nothing", x.tryOpen(nic.Options{}, efa.Options{}), nic.ErrTimeout)
		x.fault.Stalled = false
		x.port.ForgetViolations()
		x.open(nic.Options{}, efa.Options{})
		x.close()
	})
}

func TestKilled(t *testing.T) {
	x := start(t, efasim.Options{}, nic.EchoSRD)
	for range 3 {
		x.until("echo", x.echo)
		for range 5 {
			x.send(message(1, 100))
		}
		x.port.Step()
		x.port.Drop()
		x.end.open(nic.Options{}, efa.Options{})
		x.settle()
		x.until("echo of the next one", x.again)
	}
}

// The device's earlier counts for another driver are not reported as this one's.
func TestCountsAreOurs(t *testing.T) {
	x := start(t, efasim.Options{}, nic.EchoSRD)
	for range 10 {
		x.until("echo", x.echo)
	}
	x.end.close()
	before := x.next
	x.end.open(nic.Options{}, efa.Options{})
	x.settle()
	x.until("echo", x.again)
	x.settle()
	most := x.next - before + 1 // including an earlier one
	if s := x.stats(); s.RxFrames == 0 || s.RxFrames > most || s.Extra["recv_wrs"] > most {
		t.Errorf("%d messages received since Open, %d by the other count; at most %d came", s.RxFrames,
			s.Extra["recv_wrs"], most)
	}
}

// Whatever the device writes as completions: no crash, no hang, and the next driver has a working device.
func TestFlippedWriteBacks(t *testing.T) {
	for range 4 {
		x := start(t, efasim.Options{}, nic.EchoSRD)
		x.until("echo", x.echo)
		x.fault.FlipWriteBacks(5, 32)
		for n := range 300 {
			_ = x.client.dev.Send(x.from, x.to, message(uint64(n), 70))
			for range 8 {
				x.turn()
				x.client.dev.Recv(x.buf)
			}
		}
		check.Equal(t, x.fault.Flipped() > 0, true, "write-backs were flipped: %v")
		x.fault.FlipWriteBacks(0, 0)
		x.end.close()
		x.port.ForgetViolations() // violations that the corrupt completions caused
		x.end.open(nic.Options{}, efa.Options{})
		x.settle()
		x.until("echo", x.again)
	}
}

// overVFIOUser opens the responder's device over vfio-user, until the test ends.
func (x *pair) overVFIOUser() {
	x.Helper()
	x.end.close()
	path := filepath.Join(x.TempDir(), "efa")
	server := must.Get(vfioserver.Listen(path, x.port, slog.New(slog.DiscardHandler)))(x)
	x.Cleanup(func() {
		x.end.close()
		if n := x.port.Mappings(); n != 0 || x.port.BusMaster() {
			x.Errorf("%d DMA mappings are left, bus mastering is %v", n, x.port.BusMaster())
		}
		server.Close()
		x.end.open(nic.Options{}, efa.Options{}) // closed by the rig
	})
	o := nic.Options{RingSize: 64, Log: slog.New(slog.NewTextHandler(&x.log, nil))}
	fn := must.Get(vfiouser.Dial(path))(x)
	x.busy(func() (err error) { x.dev, err = efa.Open(fn, o, efa.Options{}); return err })
	x.settle()
	x.until("echo", x.again)
}

// The same driver over vfio-user, where registers are accessed by messages, and queues are in shared memory.
func TestOverVFIOUser(t *testing.T) {
	x := start(t, efasim.Options{Profile: efasim.EFA2}, nic.EchoUD)
	x.overVFIOUser()
	for _, size := range []int{32, 33, 4096} {
		x.size = size
		x.until("echo", x.echo)
	}
	if i := x.dev.Info(); i.Backend != nic.Sim || !strings.HasPrefix(i.Device, "vfio-user:") {
		t.Errorf("info %+v", i)
	}
}

// What the driver writes from Open to Close, on the oldest and the newest generation.
func TestProgrammed(t *testing.T) {
	all := efasim.Profiles()
	for _, p := range []efasim.Profile{all[0], all[len(all)-1]} {
		synctest.Test(t, func(t *testing.T) {
			x := adapter(virtual{t}, efasim.Options{Profile: p, Seed: 1}, 1, nil)
			x.port.StartTrace(1 << 16)
			x.open(nic.Options{Queues: 2, RingSize: 64}, efa.Options{Services: []nic.Service{nic.EchoUD, nic.EchoSRD}})
			said := fmt.Sprintf("%+v\n%+v\n", x.dev.Endpoints(), x.stats())
			x.close()
			golden.Equal(t, "testdata/"+p.Name+".txt", nictest.Trace(x.port)+said)
		})
	}
}

func TestProbed(t *testing.T) {
	observer, asked := nictest.Asked()
	x := adapter(t, efasim.Options{Seed: 1}, 1, nil)
	x.busy(func() error {
		dev, err := efa.Open(cmdtrace.Observe(must.Get(x.port.Function())(t), observer), nic.Options{RingSize: 64,
			Log: slog.New(slog.DiscardHandler)}, efa.Options{})
		if err != nil {
			return err
		}
		return dev.Close()
	})
	golden.Equal(t, "testdata/probe.txt", asked())
}
