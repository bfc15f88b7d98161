package measure

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rebound-nic/rebound/internal/bench/engine"
	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/drivers/efa"
	"github.com/rebound-nic/rebound/nic/drivers/ena"
	"github.com/rebound-nic/rebound/nic/drivers/ixgbe"
	"github.com/rebound-nic/rebound/nic/drivers/mlx4"
	"github.com/rebound-nic/rebound/nic/drivers/mlx5"
	"github.com/rebound-nic/rebound/nic/drivers/virtio"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/efasim"
	"github.com/rebound-nic/rebound/sim/enasim"
	"github.com/rebound-nic/rebound/sim/fabric"
	"github.com/rebound-nic/rebound/sim/ixgbesim"
	"github.com/rebound-nic/rebound/sim/mlx4sim"
	"github.com/rebound-nic/rebound/sim/mlx5sim"
	"github.com/rebound-nic/rebound/sim/virtiosim"
)

// medium is the type of traffic on the wire of a driver.
type medium int

const (
	ethernet medium = iota
	subnet          // IPoIB datagrams, on an InfiniBand subnet
	elastic         // messages of EFA
)

// models are the device drivers, each with its model.
// SRD's frames do not overtake each other (InOrder): the responder alone reorders.
var models = []struct {
	name    string
	medium  medium
	service nic.Service // service for messages
	model   func(mac [6]byte) sim.Model
	open    func(pci.Function, nic.Options) (nic.Port, error)
}{
	{"ixgbe", ethernet, 0, func([6]byte) sim.Model { return ixgbesim.New(ixgbesim.Options{}) },
		func(fn pci.Function, o nic.Options) (nic.Port, error) { return ixgbe.Open(fn, o) }},
	{"mlx5", ethernet, 0, func([6]byte) sim.Model { return mlx5sim.New(mlx5sim.Options{Profile: mlx5sim.ConnectX4}) },
		func(fn pci.Function, o nic.Options) (nic.Port, error) { return mlx5.Open(fn, o, mlx5.Options{}) }},
	{"mlx4", ethernet, 0, func([6]byte) sim.Model { return mlx4sim.New(mlx4sim.Options{}) },
		func(fn pci.Function, o nic.Options) (nic.Port, error) { return mlx4.Open(fn, o, mlx4.Options{}) }},
	{"ipoib", subnet, 0, func(mac [6]byte) sim.Model { return mlx4sim.New(mlx4sim.Options{Link: mlx4sim.InfiniBand, MAC: mac}) },
		func(fn pci.Function, o nic.Options) (nic.Port, error) {
			o.Steer = &nic.Steer{Local: netip.MustParseAddr("10.0.0.1"), Remote: netip.MustParseAddr("10.0.0.2"),
				Neighbours: true}
			return mlx4.Open(fn, o, mlx4.Options{})
		}},
	{"ena", ethernet, 0, func(mac [6]byte) sim.Model { return enasim.New(enasim.Options{MAC: mac}) },
		func(fn pci.Function, o nic.Options) (nic.Port, error) { return ena.Open(fn, o, ena.Options{}) }},
	{"efa ud", elastic, nic.EchoUD, func(mac [6]byte) sim.Model { return efasim.New(efasim.Options{MAC: mac}) }, openEFA(nic.EchoUD)},
	{"efa srd", elastic, nic.EchoSRD, func(mac [6]byte) sim.Model { return efasim.New(efasim.Options{MAC: mac, InOrder: true}) }, openEFA(nic.EchoSRD)},
	{"virtio", ethernet, 0, func([6]byte) sim.Model { return virtiosim.New(virtiosim.Options{}) },
		func(fn pci.Function, o nic.Options) (nic.Port, error) { return virtio.Open(fn, o) }},
}

func openEFA(s nic.Service) func(pci.Function, nic.Options) (nic.Port, error) {
	return func(fn pci.Function, o nic.Options) (nic.Port, error) {
		return efa.Open(fn, o, efa.Options{Services: []nic.Service{s}})
	}
}

var nearMAC, farMAC = [6]byte{2, 0x52, 0x62, 0, 0, 1}, [6]byte{2, 0x52, 0x62, 0, 0, 2}

// bed is a device on its model, with an impairing responder at the other end of the wire. Time only advances in busy,
// so that no watchdog runs; the models run when the bench polls for a frame.
type bed struct {
	nic.Port
	t      *testing.T
	ports  []*sim.Port
	fabric *fabric.Fabric // for a subnet
	near   engine.Port
	far    farEnd
	truth  impairments

	swap, held [][]byte
	frame      []byte
}

// farEnd returns the next request, nil if there is none, and sends replies.
type farEnd interface {
	receive() []byte
	send([]byte)
}

// impairments are the responder's counts.
type impairments struct{ got, lost, twice, swapped, corrupt, sent int64 }

// Replies are held back twice and then sent all at once: first fewer than the ring has descriptors, then more.
const ring, stallAt, overflowAt, overflow = 128, 1000, 1600, 640

func (b *bed) busy(f func() error) {
	b.t.Helper()
	for _, p := range b.ports {
		p.StartVirtual()
		defer p.Stop()
	}
	done := make(chan error, 1)
	go func() { done <- f() }()
	for b.fabric != nil && len(done) == 0 {
		if !b.fabric.Step() {
			time.Sleep(10 * time.Microsecond)
		}
	}
	must.OK(b.t, <-done)
}

func (b *bed) ReadStats(s *nic.Stats) error {
	b.busy(func() error { return b.Port.ReadStats(s) })
	return nil
}

func (b *bed) Send(f []byte) error { return b.near.Send(f) }

func (b *bed) Recv(buf []byte) (int, int64, error) {
	b.step()
	for f := b.far.receive(); f != nil; f = b.far.receive() {
		b.answer(f)
	}
	b.step()
	return b.near.Recv(buf)
}

func (b *bed) step() {
	for busy := true; busy; {
		busy = false
		for _, p := range b.ports {
			busy = p.Settle(100000) > 1 || busy
		}
		busy = b.fabric != nil && b.fabric.Step() || busy
	}
}

func (b *bed) reply(f []byte) {
	b.truth.sent++
	b.far.send(f)
}

// answer echoes one request, with the impairments of a bad path: of every 100, one reply is lost, one is sent twice,
// one after the next, and one with a wrong bit. Then comes a stall after which more replies arrive at once than the
// ring has room for.
func (b *bed) answer(f []byte) {
	n := b.truth.got
	b.truth.got++
	for _, stall := range []struct{ from, count int64 }{{stallAt, ring / 2}, {overflowAt, overflow}} {
		if n < stall.from || n >= stall.from+stall.count {
			continue
		}
		if b.held = append(b.held, f); n == stall.from+stall.count-1 {
			for _, h := range b.held {
				b.reply(h)
			}
			b.held = nil
		}
		return
	}
	if n > overflowAt { // the ring may still be full
		b.reply(f)
		return
	}
	switch n % 100 {
	case 10:
		b.truth.lost++
		return
	case 20:
		b.truth.twice++
		b.reply(f)
	case 30:
		b.truth.swapped++
		b.swap = [][]byte{f}
		return
	case 40:
		b.truth.corrupt++
		f[len(f)-1] ^= 4
	}
	b.reply(f)
	for _, s := range b.swap {
		b.reply(s)
	}
	b.swap = nil
}

// frames is the peer of a wire.
type frames struct{ *sim.Cable }

func (c frames) receive() []byte { return c.Recv(0) }

func (c frames) send(f []byte) { c.Send(0, back(f)) }

// back is a frame with its addresses and ports swapped.
func back(f []byte) []byte {
	r := append([]byte(nil), f...)
	copy(r, f[6:12])
	copy(r[6:], f[:6])
	copy(r[26:], f[30:34])
	copy(r[30:], f[26:30])
	copy(r[34:], f[36:38])
	copy(r[36:], f[34:36])
	return r
}

// second is a second device at the other end.
type seriesSecond struct {
	*bed
	dev  engine.Port
	turn func([]byte) []byte // turns a request into a reply
	buf  [1 << 14]byte
}

func (d *seriesSecond) receive() []byte {
	n, _, err := d.dev.Recv(d.buf[:])
	if err != nil {
		d.t.Fatal(err)
	}
	if n == 0 {
		return nil
	}
	return append([]byte(nil), d.buf[:n]...)
}

func (d *seriesSecond) send(b []byte) {
	b = d.turn(b)
	err := d.dev.Send(b)
	for tries := 0; errors.Is(err, nic.ErrFull) && tries < 1000; tries++ {
		d.step() // a reliable transport waits for acknowledgements
		_, _, _ = d.dev.Recv(nil)
		err = d.dev.Send(b)
	}
	if err != nil {
		d.t.Fatal(err)
	}
}

func (b *bed) device(i int, mac [6]byte, size int, wire sim.Wire) (d nic.Port) {
	m := models[i]
	p := must.Get(sim.New(m.model(mac), sim.Options{Name: m.name}))(b.t)
	p.Connect(wire)
	b.ports = append(b.ports, p)
	fn := must.Get(p.Function())(b.t)
	o := nic.Options{Device: "sim", RingSize: size, MAC: mac, Log: slog.New(slog.DiscardHandler)}
	if m.medium != ethernet {
		o.MAC = [6]byte{}
	}
	b.busy(func() (err error) {
		d, err = m.open(fn, o)
		return err
	})
	b.t.Cleanup(func() {
		b.busy(d.Close)
		for _, v := range p.Violations() {
			b.t.Error(v)
		}
	})
	return d
}

// subnet opens two devices on a subnet, this end's and the other end's, which it returns.
func (b *bed) subnet(i int) (far nic.Port) {
	b.t.Helper()
	var ends [2]*sim.Cable
	var cards [2]nic.Port
	var wires [2]*sim.Cable
	for e := range ends {
		wires[e], ends[e] = sim.Pair()
	}
	b.fabric = fabric.New(b.t.Errorf, ends[0], ends[1])
	for e, size := range []int{ring, 1024} {
		cards[e] = b.device(i, [6]byte{2, 0x52, 0x62, 0, 0, byte(1 + e)}, size, wires[e])
	}
	b.busy(func() error {
		for _, c := range cards {
			for tries := 0; ; tries++ {
				if l, err := c.Link(); err != nil || tries > 100000 {
					return fmt.Errorf("link %+v, %v", l, err)
				} else if l.Up {
					break
				}
				time.Sleep(time.Millisecond)
			}
		}
		return nil
	})
	b.Port = cards[0]
	return cards[1]
}

// station is a device's MAC.
func station(t *testing.T, p nic.Port) [6]byte {
	t.Helper()
	return must.Get(parseMAC(p.Info().MAC))(t)
}

// The counts match the impairment of the replies, whichever device they arrive at, and frames that the device drops for
// lack of a buffer are counted as dropped here.
func TestImpairmentOverModels(t *testing.T) {
	needs.Long(t)
	clock, err := latency.NewClock() // before the bubble, in which time stops
	if err != nil {
		t.Fatal(err)
	}
	for i, m := range models {
		t.Run(m.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { impair(t, clock, i) })
		})
	}
}

func impair(t *testing.T, clock *latency.Clock, i int) {
	const count = 2400
	a, z := sim.Pair()
	b := &bed{t: t}
	s := &Series{Settings: Settings{Timeout: time.Second}, flow: probe.Flow{Proto: probe.UDP, SrcMAC: nearMAC,
		DstMAC: farMAC,
		Src:    netip.MustParseAddr("10.0.0.1"), Dst: netip.MustParseAddr("10.0.0.2"), SrcPort: 50000, DstPort: 7,
		Run: 1, Size: 100}}
	s.wire, s.port = b, &port{device: b}
	switch models[i].medium {
	case ethernet:
		b.Port = b.device(i, nearMAC, ring, a)
		b.near, b.far = b.Port.(nic.Prober), frames{z}
	case subnet:
		far := b.subnet(i)
		b.near, b.far = b.Port.(nic.Prober), &seriesSecond{bed: b, dev: far.(nic.Prober), turn: back}
		s.flow.SrcMAC, s.flow.DstMAC = station(t, b.Port), station(t, far)
		s.flow.DstMAC[2] = byte(b.fabric.Ports[1].LID)
	case elastic:
		b.Port = b.device(i, nearMAC, ring, a)
		service := models[i].service
		near := &messages{Messenger: b.Port.(nic.Messenger), from: service}
		far := &messages{Messenger: b.device(i, farMAC, 1024, z).(nic.Messenger), from: service}
		own, other := endpoint(near.Messenger, service), endpoint(far.Messenger, service)
		b.busy(func() (err error) {
			if near.to, err = near.Resolve(other); err == nil {
				far.to, err = far.Resolve(own)
			}
			return err
		})
		b.near, b.far = near, &seriesSecond{bed: b, dev: far, turn: func(b []byte) []byte { return b }}
		s.Message, s.flow.Layer, s.flow.Src, s.flow.Dst = true, probe.Datagram, own.GID, other.GID
	}
	must.OK(t, s.Prepare(clock, Recording{}, 20000))
	err := s.Run(engine.Limit{Count: count}, new(atomic.Bool))
	if errors.Is(err, engine.ErrBehind) {
		t.Skip("this machine is too busy: ", err)
	}
	must.OK(t, err)
	c, drops := s.Counts()
	truth := b.truth
	// frames that the responder sent and no Recv returned
	dropped := truth.sent - c.Received - c.Late - c.Duplicates - c.Corrupt
	if c.Sent != count || truth.got != count || c.Duplicates != truth.twice || c.Reordered != truth.swapped ||
		c.Corrupt != truth.corrupt ||
		c.Received+c.Late != count-truth.lost-truth.corrupt-dropped {
		t.Errorf("%+v; the truth is %+v, and %d dropped", c, truth, dropped)
	}
	if dropped < overflow/4 || truth.lost == 0 || truth.twice == 0 || truth.swapped == 0 || truth.corrupt == 0 {
		t.Fatalf("%+v, and %d dropped: too little was done", truth, dropped)
	}
	least, here := truth.lost, dropped
	if b.Info().NoDropCounter {
		least, here = 0, 0
	}
	if c.DroppedHere != here || c.LostLeast() != least || c.Lost != truth.lost+dropped {
		t.Errorf("%s lost, %d dropped here (%v); the truth is %d and %d", c.LostText(), c.DroppedHere, drops,
			truth.lost, dropped)
	}
	for _, d := range drops {
		if d.Place != report.DroppedHere {
			t.Errorf("%+v: nothing was dropped there", d)
		}
	}
}
