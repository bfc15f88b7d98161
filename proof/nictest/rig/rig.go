// Package rig runs a device driver on its model, step by step, for tests of a single driver. The suite that all drivers
// pass is package nictest.
package rig

import (
	"log/slog"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim"
)

// Addresses of the driver and of its peer.
var (
	OurMAC = [6]byte{2, 0, 0, 0, 0, 2}
	FarMAC = [6]byte{2, 0, 0, 0, 0, 1}
)

// Log collects the driver's log. It is safe for concurrent use.
type Log struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Driver has the functions to open and to step a driver.
type Driver[D nic.Device] struct {
	Open func(pci.Function, nic.Options) (D, error)
	Poll func(d D, queue int, r *fastpath.Responder) int
}

// Rig is one model with the other end of its wire, and the driver if it is open.
type Rig[D nic.Device] struct {
	testing.TB
	Port   *sim.Port
	Far    *sim.Cable
	Dev    D
	Resp   []*fastpath.Responder
	Logs   Log
	Fn     *sim.Function
	OwnMAC bool // use the device's own address instead of OurMAC

	driver Driver[D]
	opened bool
}

// New returns a rig whose driver is not open. At the end of the test it closes a driver that is open, and fails for
// each violation that the model reported.
func New[D nic.Device](t testing.TB, name string, m sim.Model, d Driver[D]) *Rig[D] {
	x := &Rig[D]{TB: t, driver: d}
	x.Port = must.Get(sim.New(m, sim.Options{Name: name}))(t)
	var near *sim.Cable
	near, x.Far = sim.Pair()
	x.Port.Connect(near)
	t.Cleanup(func() {
		if x.opened {
			x.Close()
		}
		if v := x.Port.Violations(); len(v) > 0 {
			t.Errorf("violations:\n%s", strings.Join(v[:min(len(v), 10)], "\n"))
		}
		x.Port.Close()
	})
	return x
}

// Busy runs f while the model runs on its own goroutine, and fails the test if f takes longer than three minutes.
func (x *Rig[D]) Busy(f func()) {
	x.Helper()
	x.Port.Start()
	defer x.Port.Stop()
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

// TryOpen opens the driver with 64 descriptors and OurMAC, unless o says otherwise. An Open that fails has released the
// device.
func (x *Rig[D]) TryOpen(o nic.Options) (err error) {
	x.Helper()
	if o.RingSize == 0 {
		o.RingSize = 64
	}
	if o.MAC == [6]byte{} && !x.OwnMAC {
		o.MAC = OurMAC
	}
	o.Log = slog.New(slog.NewTextHandler(&x.Logs, nil))
	fn := must.Get(x.Port.Function())(x)
	x.Fn = fn
	x.Busy(func() { x.Dev, err = x.driver.Open(fn, o) })
	if x.opened = err == nil; err != nil {
		x.Released()
	}
	return err
}

// Open opens the driver, which must succeed, and creates a responder for each queue.
func (x *Rig[D]) Open(o nic.Options) {
	x.Helper()
	if err := x.TryOpen(o); err != nil {
		x.Fatalf("Open: %v", err)
	}
	x.Resp = nil
	for range max(o.Queues, 1) {
		x.Resp = append(x.Resp, x.Responder(OurMAC))
	}
	x.Settle()
}

// Responder returns a responder for 10.0.0.2 with this address.
func (x *Rig[D]) Responder(mac [6]byte) *fastpath.Responder { return responder(x, mac, "10.0.0.2/24") }

func responder(t testing.TB, mac [6]byte, address string) *fastpath.Responder {
	return must.Get(fastpath.New(fastpath.Config{MAC: mac, Addresses: []netip.Prefix{netip.MustParsePrefix(address)}}))(
		t)
}

// Close closes the driver, which releases the device.
func (x *Rig[D]) Close() {
	x.Helper()
	x.opened = false
	x.Busy(func() { must.Close(x, x.Dev) })
	x.Released()
}

// Poll makes one pass over each queue, and returns the number of frames answered.
func (x *Rig[D]) Poll() (n int) {
	for q, r := range x.Resp {
		n += x.driver.Poll(x.Dev, q, r)
	}
	return n
}

// Settle steps model and driver alternately until neither has work.
func (x *Rig[D]) Settle() {
	for idle := 0; idle < 8; idle++ {
		if x.Port.Settle(100000) > 1 || x.Poll() > 0 {
			idle = 0
		}
	}
}

// Received discards the frames that have arrived at the peer, and counts them.
func (x *Rig[D]) Received() (n int) {
	for x.Far.Recv(0) != nil {
		n++
	}
	return n
}

// Ping sends a Request.
func (x *Rig[D]) Ping(to [6]byte, n int, vlan int) { x.Far.Send(0, Request(to, n, vlan)) }

// Request returns an echo request from the peer to 10.0.0.2 with this destination address. It has n bytes and, unless
// vlan is negative, a tag. It has an identifier, a sequence number and a payload, as all that ping sends: without them
// the reply's checksum is zero, which fastpath.Reply leaves to Slow.
func Request(to [6]byte, n int, vlan int) []byte {
	f := make([]byte, n)
	copy(f, to[:])
	copy(f[6:], FarMAC[:])
	copy(f[12:], []byte{8, 0, 0x45, 0, byte((n - 14) >> 8), byte(n - 14), 0, 1, 0, 0, 64, 1, 0, 0, 10, 0, 0, 1, 10, 0,
		0, 2, 8, 0, 0, 0, 0x52, 0x62, 0, 1})
	for i := 42; i < n; i++ {
		f[i] = byte(i)
	}
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

// Echo is a Request to OurMAC without a tag.
func Echo(n int) []byte { return Request(OurMAC, n, -1) }

// NewResponder returns a responder for Echo that has no effective rate limit, for tests that call a queue's Poll.
func NewResponder(t testing.TB) *fastpath.Responder {
	t.Helper()
	return must.Get(fastpath.New(fastpath.Config{MAC: OurMAC,
		Addresses:     []netip.Prefix{netip.MustParsePrefix("10.0.0.2/24")},
		ChecksumBytes: fastpath.DefaultChecksumBytes, Rate: fastpath.DefaultRate, Burst: 1 << 30,
		TicksPerSecond: 1 << 30}))(t)
}

// Stats reads the counters.
func (x *Rig[D]) Stats() (s nic.Stats) {
	x.Helper()
	var err error
	x.Busy(func() { err = x.Dev.ReadStats(&s) })
	if err != nil {
		x.Fatal(err)
	}
	return s
}

// Exchange sends pings of size bytes one at a time, each of which must be answered.
func (x *Rig[D]) Exchange(count, size int) {
	x.Helper()
	for i := range count {
		x.Ping(OurMAC, size, -1)
		x.Settle()
		if n := x.Received(); n != 1 {
			x.Fatalf("%d replies to ping %d of %d bytes", n, i, size)
		}
	}
}

// Serve runs f while queue 0 is served on its own thread.
func (x *Rig[D]) Serve(f func()) (err error) {
	x.Helper()
	x.Busy(func() { err = serveOn(x.Dev, x.Resp[0], f) })
	return err
}

// serveOn runs f while queue 0 of a device is served on its own thread.
func serveOn(d nic.Answerer, r *fastpath.Responder, f func()) error {
	stop := Serving(d, r)
	f()
	return stop()
}

// Serving serves queue 0 of a device on its own thread, until stop is called, which returns the loop's error.
func Serving(d nic.Answerer, r *fastpath.Responder) (stop func() error) {
	var stopped atomic.Bool
	end := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		end <- d.Serve(0, &stopped, r)
	}()
	return func() error {
		stopped.Store(true)
		return <-end
	}
}

// Await waits for f to return true.
func (x *Rig[D]) Await(f func() bool) {
	x.Helper()
	if !await.Holds(f) {
		x.Errorf("does not come\n%s", x.Logs.String())
	}
}

// Answers sends pings until one is answered.
func (x *Rig[D]) Answers(size int) {
	x.Helper()
	x.Await(func() bool {
		if x.Received() > 0 {
			return true
		}
		x.Ping(OurMAC, size, -1)
		return false
	})
}
