package responder

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/cksum"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/programs"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/enasim"
	"github.com/rebound-nic/rebound/sim/ixgbesim"
	"github.com/rebound-nic/rebound/sim/mlx4sim"
	"github.com/rebound-nic/rebound/sim/mlx5sim"
	"github.com/rebound-nic/rebound/sim/simtest"
	"github.com/rebound-nic/rebound/sim/virtiosim"
)

// wired is a model with responders on it, and the other end of its wire.
type wired struct {
	testing.TB
	port *sim.Port
	far  *sim.Cable
	sets []string
	next atomic.Uint64
}

func newWired(t testing.TB, m sim.Model) *wired {
	t.Helper()
	p, far, device := served(t, m)
	return &wired{TB: t, port: p, far: far, sets: []string{"nic.device=" + device, "respond.addresses=10.0.0.2/24", "respond.udp_ports=[7]", "guard.rate=0",
		"nic.take_over=true"}}
}

// served runs a model on a wire that is up, and fails the test for what its drivers do wrong.
func served(t testing.TB, m sim.Model) (p *sim.Port, far *sim.Cable, device string) {
	t.Helper()
	t.Cleanup(func() { complaints(t, p) })
	p, far, device = simtest.Serve(t, m)
	far.SetUp(true)
	return p, far, device
}

func (w *wired) responder(sets ...string) *exec.Cmd {
	return exec.Command(program(w), set(append(w.sets, sets...)...)...)
}

func (w *wired) start(sets ...string) *process {
	w.Helper()
	return &process{programs.Start(w, w.responder(sets...), nil)}
}

// request is a datagram to the responder's echo port.
func (w *wired) request(n uint64) []byte {
	f := make([]byte, 60)
	copy(f, plantMAC[:])
	copy(f[6:], benchMAC[:])
	copy(f[12:], "\x08\x00\x45\x00\x00\x24\x00\x00\x00\x00\x40\x11\x00\x00\x0a\x00\x00\x03\x0a\x00\x00\x02\x30\x39\x00\x07\x00\x10\x00\x00")
	binary.BigEndian.PutUint16(f[24:], ^cksum.Sum(f[14:34], 0))
	binary.BigEndian.PutUint64(f[42:], n)
	return f
}

// echo sends one request and waits for its reply. It returns an error for any other frame, unless older ones do not matter, and after ctx.
func (w *wired) echo(ctx context.Context, n uint64, older bool) error {
	w.far.Send(0, w.request(n))
	look := time.NewTicker(20 * time.Microsecond)
	defer look.Stop()
	for ctx.Err() == nil {
		f := w.far.Recv(0)
		switch {
		case f == nil:
			<-look.C
		case older && len(f) >= 50 && binary.BigEndian.Uint64(f[42:]) != n:
		case len(f) < 50 || binary.BigEndian.Uint16(f[34:]) != 7 || binary.BigEndian.Uint64(f[42:]) != n:
			return fmt.Errorf("request %d was sent last, and this came: %x", n, f)
		default:
			return nil
		}
	}
	return fmt.Errorf("request %d is lost: %w", n, context.Cause(ctx))
}

// answers reports whether a responder answers by then.
func (w *wired) answers(ctx context.Context) bool {
	for ctx.Err() == nil {
		one, cancel := context.WithTimeout(ctx, time.Second)
		err := w.echo(one, 1<<32+w.next.Add(1), true)
		cancel()
		if err == nil {
			return true
		}
	}
	return false
}

// continuing are the devices that another process continues to use as they run.
var continuing = map[string]func() sim.Model{
	"ixgbe":   func() sim.Model { return ixgbesim.New(ixgbesim.Options{MAC: plantMAC}) },
	"virtio":  func() sim.Model { return virtiosim.New(virtiosim.Options{MAC: plantMAC}) },
	"ena":     func() sim.Model { return enasim.New(enasim.Options{MAC: plantMAC}) },
	"mlx5":    func() sim.Model { return mlx5sim.New(mlx5sim.Options{MAC: plantMAC, Profile: mlx5sim.ConnectX4}) },
	"mlx4":    func() sim.Model { return mlx4sim.New(mlx4sim.Options{MAC: plantMAC}) },
	"ena old": func() sim.Model { return enasim.New(enasim.Options{MAC: plantMAC, NoLLQ: true}) },
}

// A responder takes over the device of the one that runs, three times. Each request that arrives meanwhile is answered once.
func TestTakeOverDevice(t *testing.T) {
	needs.Long(t)
	for name, model := range continuing {
		t.Run(name, func(t *testing.T) {
			w := newWired(t, model())
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			takeOver(t, func() *process { return w.start() }, func(n uint64) error { return w.echo(ctx, n, false) })
			w.released()
		})
	}
}

// released waits until the device is released.
func (w *wired) released() {
	w.Helper()
	await.Until(w, "release of the device", func() bool { return w.port.Mappings() == 0 && !w.port.BusMaster() }, func() string {
		return fmt.Sprintf("%d mappings, bus mastering %v", w.port.Mappings(), w.port.BusMaster())
	})
}

// With other settings the device is started again.
func TestTakeOverDeviceAfresh(t *testing.T) {
	for _, name := range []string{"virtio", "ena", "mlx5"} {
		t.Run(name, func(t *testing.T) {
			w := newWired(t, continuing[name]())
			p := w.start()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			for _, ring := range []string{"128", "256"} {
				if !w.answers(ctx) {
					t.Fatalf("nothing answers before:\n%s", p.Log)
				}
				next := w.start("nic.ring_size=" + ring)
				p.end(t, exitDone)
				if !next.logs("started again") {
					t.Errorf("the device was not started again:\n%s", next.Log)
				}
				if !w.answers(ctx) {
					t.Errorf("nothing answers:\n%s", next.Log)
				}
				p = next
			}
			p.stop(t, unix.SIGTERM)
			w.released()
		})
	}
}

// ends returns whether a process that runs has ended, from now on.
func ends(c *exec.Cmd) func() bool {
	var ended atomic.Bool
	go func() {
		c.Wait()
		ended.Store(true)
	}()
	return ended.Load
}

// The old or the new responder is killed at random moments. Either one of them answers then, or the device is released, with no
// process left that could do DMA.
func TestTakeOverDeviceKilled(t *testing.T) {
	needs.Long(t)
	for name, model := range continuing {
		t.Run(name, func(t *testing.T) { testTakeOverDeviceKilled(t, model(), 12/len(continuing)+1) })
	}
}

func testTakeOverDeviceKilled(t *testing.T, m sim.Model, rounds int) {
	w := newWired(t, m)
	began := time.Now()
	p := w.start()
	ended := ends(p.Cmd)
	usual := time.Since(began)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	outcomes := map[string]int{}
	for range rounds {
		next := w.responder()
		said := &programs.Output{}
		next.Stdout, next.Stderr = said, said
		must.OK(t, next.Start())
		gone := ends(next)
		victim, name, died := next.Process, "new", gone
		if rand.IntN(2) == 0 {
			victim, name, died = p.Process, "old", ended
		}
		<-time.After(rand.N(2 * usual)) // any moment
		victim.Kill()
		await.Until(t, "the victim's end", died)
		await.Until(t, "an answer, or the end of both", func() bool {
			one, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			return w.answers(one) || gone() && ended()
		}, func() string { return fmt.Sprint(name, gone(), ended(), outcomes, p.Log, w.port.Counts()) }, said.String)
		if !gone() && !ended() { // the old one answers, and the new one prepares
			await.Until(t, "one responder", func() bool { return gone() || ended() }, said.String)
		}
		switch {
		case gone() && ended():
			outcomes[name+" killed, none left"]++
			w.released()
			p = w.start()
			ended = ends(p.Cmd)
		case gone():
			outcomes[name+" killed, old answers"]++ // or it ends, if the new one had said that it is ready
			await.Until(t, "an answer, or the old one's end", func() bool {
				one, cancel := context.WithTimeout(ctx, time.Second)
				defer cancel()
				return w.answers(one) || ended()
			}, p.Log.String)
		default:
			outcomes[name+" killed, new answers"]++
			if !w.answers(ctx) {
				t.Fatal("the new one does not answer", said)
			}
			next.Process.Kill()
			await.Until(t, "the new one's end", gone)
			w.released()
			p = w.start()
			ended = ends(p.Cmd)
		}
	}
	t.Log(outcomes)
	p.Process.Kill()
	await.Until(t, "the last one's end", ended)
	w.released()
}
