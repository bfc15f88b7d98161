package mlx5_test

import (
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/drivers/mlx5"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/mlx5sim"
)

// logBuffer is what was logged, by any goroutine.
type logBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

var ourMAC, farMAC = [6]byte{2, 0, 0, 0, 0, 2}, [6]byte{2, 0, 0, 0, 0, 1}

// rig is one model with the other end of its wire, and the driver once it is open.
type rig struct {
	testing.TB
	model *mlx5sim.Model
	port  *sim.Port
	far   *sim.Cable
	dev   *mlx5.Device
	resp  []*fastpath.Responder
	logs  logBuffer
	fn    *sim.Function

	own    mlx5.Options
	ownMAC bool // the device's own address is used
}

func newRig(t testing.TB, o mlx5sim.Options) *rig {
	x := &rig{TB: t, model: mlx5sim.New(o)}
	var err error
	if x.port, err = sim.New(x.model, sim.Options{Name: "mlx5"}); err != nil {
		t.Fatal(err)
	}
	var near *sim.Cable
	near, x.far = sim.Pair()
	x.port.Connect(near)
	t.Cleanup(func() {
		if v := x.port.Violations(); len(v) > 0 {
			t.Errorf("violations:\n%s", strings.Join(v[:min(len(v), 10)], "\n"))
		}
		x.port.Close()
	})
	return x
}

func (x *rig) busy(f func()) {
	x.Helper()
	x.port.Start()
	defer x.port.Stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(3 * time.Minute):
		x.Fatal("hangs")
	}
}

func (x *rig) tryOpen(o nic.Options) (err error) {
	x.Helper()
	if o.RingSize == 0 {
		o.RingSize = 64
	}
	if o.MAC == [6]byte{} && !x.ownMAC {
		o.MAC = ourMAC
	}
	o.Log = slog.New(slog.NewTextHandler(&x.logs, nil))
	fn, err := x.port.Function()
	if err != nil {
		x.Fatal(err)
	}
	x.fn = fn
	x.busy(func() { x.dev, err = mlx5.Open(fn, o, x.own) })
	return err
}

func (x *rig) open(o nic.Options) {
	x.Helper()
	if err := x.tryOpen(o); err != nil {
		x.Fatalf("Open: %v", err)
	}
	x.resp = nil
	for range max(o.Queues, 1) {
		x.resp = append(x.resp, x.responder(ourMAC))
	}
	x.settle()
}

func (x *rig) responder(mac [6]byte) *fastpath.Responder {
	r, err := fastpath.New(fastpath.Config{MAC: mac, Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.2/24")}})
	if err != nil {
		x.Fatal(err)
	}
	return r
}

func (x *rig) close() {
	x.Helper()
	x.busy(func() {
		if err := x.dev.Close(); err != nil {
			x.Errorf("Close: %v", err)
		}
	})
}

func (x *rig) poll() (n int) {
	for q, r := range x.resp {
		n += x.dev.Queue(q).Poll(r)
	}
	return n
}

func (x *rig) settle() {
	for idle := 0; idle < 8; idle++ {
		if x.port.Settle(100000) > 1 || x.poll() > 0 {
			idle = 0
		}
	}
}

func (x *rig) received() (n int) {
	for x.far.Recv(0) != nil {
		n++
	}
	return n
}

func (x *rig) ping(to [6]byte, n int, vlan int) { x.far.Send(0, request(to, n, vlan)) }

// request is an echo request of n bytes before its tag, from the peer to 10.0.0.2 at an address.
func request(to [6]byte, n int, vlan int) []byte {
	f := make([]byte, n)
	copy(f, to[:])
	copy(f[6:], farMAC[:])
	copy(f[12:], []byte{8, 0, 0x45, 0, byte((n - 14) >> 8), byte(n - 14), 0, 1, 0, 0, 64, 1, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 8, 0})
	put := func(at int, b []byte) {
		var s uint32
		for i, v := range b {
			s += uint32(v) << (8 * (1 - i%2))
		}
		s = s&0xFFFF + s>>16
		s = ^(s&0xFFFF + s>>16)
		f[at], f[at+1] = byte(s>>8), byte(s)
	}
	put(24, f[14:34])
	put(36, f[34:])
	if vlan >= 0 {
		f = append(f[:12:12], append([]byte{0x81, 0, byte(vlan >> 8), byte(vlan)}, f[12:]...)...)
	}
	return f
}

func (x *rig) stats() (s nic.Stats) {
	x.Helper()
	var err error
	x.busy(func() { err = x.dev.ReadStats(&s) })
	if err != nil {
		x.Fatal(err)
	}
	return s
}

func (x *rig) exchange(count, size int) {
	x.Helper()
	for i := range count {
		x.ping(ourMAC, size, -1)
		x.settle()
		if n := x.received(); n != 1 {
			x.Fatalf("%d replies to ping %d of %d bytes", n, i, size)
		}
	}
}

func list(notes []string) string { return strings.Join(notes, "\n") }
