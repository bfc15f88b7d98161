package efa_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/drivers/efa"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/nictest"
	devrig "github.com/rebound-nic/rebound/proof/nictest/rig"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/efasim"
)

// end is an adapter with its driver.
type end struct {
	testing.TB
	m     *efasim.Model
	fault *sim.Faulty
	port  *sim.Port
	dev   *efa.Device
	log   devrig.Log

	virtual bool // the test uses virtual time
	serving bool // the device and the responder's loop run freely
}

// virtual is a test in a testing/synctest bubble, whose clock the models share.
type virtual struct{ *testing.T }

// adapter creates a model on a wire. Its violations fail the test, except for those of a function that is removed under
// traffic: pending writes then find bus mastering disabled.
func adapter(t testing.TB, o efasim.Options, n byte, wire sim.Wire) *end {
	t.Helper()
	o.MAC = [6]byte{2, 0x52, 0x62, 0, 0, n}
	x := &end{TB: t, m: efasim.New(o)}
	_, x.virtual = t.(virtual)
	x.fault = sim.Inject(x.m, 1)
	x.port = must.Get(sim.New(x.fault, sim.Options{Name: "efa", Seed: o.Seed}))(t)
	if wire != nil {
		x.port.Connect(wire)
	}
	t.Cleanup(func() {
		for _, v := range x.port.Violations() {
			if len(x.m.Resets()) > 2 && strings.Contains(v, "DMA while bus mastering is off") {
				continue
			}
			t.Error("violation: ", v)
		}
		x.port.Close()
	})
	return x
}

func (x *end) tryOpen(o nic.Options, own efa.Options) error {
	x.Helper()
	var fn *sim.Function
	var err error
	await.Holds(func() bool { // a server detects on its own that its client has disconnected
		fn, err = x.port.Function()
		return err == nil
	})
	must.OK(x, err)
	if o.RingSize == 0 {
		o.RingSize = 64
	}
	o.Log = slog.New(slog.NewTextHandler(&x.log, nil))
	x.run()
	defer x.port.Stop()
	x.dev, err = efa.Open(fn, o, own)
	return err
}

// run lets the device run freely.
func (x *end) run() {
	if x.virtual {
		x.port.StartVirtual()
	} else {
		x.port.Start()
	}
}

func (x *end) open(o nic.Options, own efa.Options) {
	x.Helper()
	must.OK(x, x.tryOpen(o, own))
}

// busy runs f while the device runs.
func (x *end) busy(f func() error) {
	x.Helper()
	if !x.serving {
		x.run()
		defer x.port.Stop()
	}
	must.OK(x, f())
}

func (x *end) close() {
	x.Helper()
	x.busy(x.dev.Close)
}

func (x *end) stats() (s nic.Stats) {
	x.Helper()
	x.busy(func() error { return x.dev.ReadStats(&s) })
	return s
}

func (x *end) address(s nic.Service) nic.Address {
	for _, e := range x.dev.Endpoints() {
		if e.Service == s && e.Queue == 0 {
			return e.Address
		}
	}
	x.Fatalf("no %v among %v", s, x.dev.Endpoints())
	return nic.Address{}
}

// pair is a responder and a client on one wire, stepped alternately by the test, so that failures are reproducible. If
// serving is set, both devices and the responder's loop run freely instead.
type pair struct {
	*end   // the responder
	client *end
	resp   *fastpath.Responder
	from   nic.Service
	to     nic.Peer
	next   uint64
	size   int
	buf    []byte
}

var clock atomic.Pointer[fastpath.Clock]

func init() { clock.Store(&fastpath.Clock{Rate: 1 << 32}) }

func messages(t testing.TB) *fastpath.Responder {
	t.Helper()
	return must.Get(fastpath.NewMessages(fastpath.Config{Clock: &clock}))(t)
}

func start(t testing.TB, o efasim.Options, s nic.Service) *pair {
	t.Helper()
	return startWith(t, o, efa.Options{}, efa.Options{Services: []nic.Service{s}})
}

func startWith(t testing.TB, o efasim.Options, own, client efa.Options) *pair {
	t.Helper()
	a, b := sim.Pair()
	o.Busy = true
	x := &pair{end: adapter(t, o, 1, a), client: adapter(t, o, 2, b), resp: messages(t), size: 16,
		buf:  make([]byte, 1<<14),
		from: client.Services[0]}
	if own.Services == nil {
		own.Services = []nic.Service{nic.EchoUD, nic.EchoSRD, nic.STAMPUD, nic.STAMPSRD}
	}
	x.end.open(nic.Options{}, own)
	x.client.open(nic.Options{}, client)
	t.Cleanup(func() {
		if !x.serving {
			x.end.close()
			x.client.close()
		}
	})
	x.resolve()
	x.settle() // the devices have seen the posted buffers
	return x
}

// resolve looks up the responder. A restart or another process may have changed its queue pair's number.
func (x *pair) resolve() {
	x.Helper()
	x.busy(func() (err error) { x.to, err = x.client.dev.Resolve(x.address(x.from)); return err })
}

// again is echo after resolve.
func (x *pair) again() bool {
	x.resolve()
	return x.echo()
}

// busy runs f while both devices run.
func (x *pair) busy(f func() error) {
	x.Helper()
	x.client.busy(func() error { x.end.busy(f); return nil })
}

func (x *pair) serve() *pair {
	x.serving, x.client.serving = true, true
	x.run()
	x.client.run()
	var stop func() error
	if x.end.virtual {
		stop = nictest.ServeVirtual(x.dev.Gate(), func() { x.dev.Queue(0).Poll(x.resp) })
	} else {
		stop = devrig.Serving(x.dev, x.resp)
	}
	x.Cleanup(func() {
		check.OK(x, errors.Join(stop(), x.dev.Close(), x.client.dev.Close()))
		x.port.Stop()
		x.client.port.Stop()
	})
	return x
}

func (x *pair) turn() {
	if x.serving {
		time.Sleep(20 * time.Microsecond)
		return
	}
	x.client.port.Step()
	x.port.Step()
	x.dev.Queue(0).Poll(x.resp)
}

func (x *pair) settle() {
	for range 64 {
		x.turn()
		x.client.dev.Recv(x.buf)
	}
}

func message(n uint64, size int) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(n*7+uint64(i)*13) ^ byte(i>>8)
	}
	if size >= 8 {
		binary.LittleEndian.PutUint64(b, n)
	}
	return b
}

func (x *pair) send(b []byte) {
	x.Helper()
	must.OK(x, x.client.dev.Send(x.from, x.to, b))
}

func (x *pair) recv(turns int) []byte {
	x.Helper()
	for range turns {
		x.turn()
		n, _, err := x.client.dev.Recv(x.buf)
		if must.OK(x, err); n > 0 {
			return x.buf[:n]
		}
	}
	return nil
}

func (x *pair) echo() bool {
	x.Helper()
	x.next++
	want := message(x.next, x.size)
	if err := x.client.dev.Send(x.from, x.to, want); err != nil {
		x.next-- // it counts what was sent
		return false
	}
	for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); {
		if bytes.Equal(x.recv(8), want) {
			return true
		}
	}
	return false
}

// until waits for a condition that must become true.
func (x *pair) until(what string, ok func() bool) {
	x.Helper()
	for end := time.Now().Add(time.Minute); !ok(); x.turn() {
		if time.Now().After(end) {
			x.Fatalf("%s: not in time. Responder's log:\n%s\nclient's:\n%s", what, x.log.String(),
				x.client.log.String())
		}
	}
}
