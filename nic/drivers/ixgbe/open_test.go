package ixgbe_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/drivers/ixgbe"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/ixgbesim"
)

// host returns a model that runs freely, with its function. At the end the test fails for each violation that the model
// reported.
func host(t *testing.T, m sim.Model) (*sim.Port, *sim.Function) {
	t.Helper()
	p := must.Get(sim.New(m, sim.Options{Name: "ixgbe"}))(t)
	p.Start()
	t.Cleanup(func() {
		p.Stop()
		for _, v := range p.Violations() {
			t.Error(v)
		}
		p.Close()
	})
	return p, must.Get(p.Function())(t)
}

// wire connects a port to a link partner that is up.
func wire(p *sim.Port) *sim.Cable {
	near, far := sim.Pair()
	p.Connect(near)
	far.SetUp(true)
	return far
}

var mac = [6]byte{2, 0, 0, 0, 0, 1}

// open opens a driver that is closed at the end of the test.
func open(t *testing.T, fn pci.Function, o nic.Options) *ixgbe.Device {
	t.Helper()
	o.MAC = mac
	d := must.Get(ixgbe.Open(fn, o))(t)
	t.Cleanup(func() { must.Close(t, d) })
	return d
}

// other is a function with different contents.
type other struct {
	pci.Function
	id  pci.ID
	bar *mmio.Window
}

func (o other) ID() pci.ID { return o.id }
func (o other) BAR(n int) (*mmio.Window, error) {
	if o.bar != nil {
		return o.bar, nil
	}
	return o.Function.BAR(n)
}

func TestOpenRefuses(t *testing.T) {
	spoiled := func(k ixgbesim.Kind, spoil func(*ixgbesim.Model)) func(t *testing.T) pci.Function {
		return func(t *testing.T) pci.Function {
			m := ixgbesim.New(ixgbesim.Options{Kind: k})
			_, fn := host(t, m)
			spoil(m)
			return fn
		}
	}
	for _, c := range []struct {
		name string
		fn   func(t *testing.T) pci.Function
		opt  nic.Options
		is   error
		says string
	}{
		{"another device", func(t *testing.T) pci.Function {
			return other{Function: plain(t), id: pci.ID{Vendor: 0x8086, Device: 0x1572}}
		}, nic.Options{}, nic.ErrNoDevice, "8086:1572"},
		{"a small BAR", func(t *testing.T) pci.Function {
			return other{Function: plain(t), id: pci.ID{Vendor: 0x8086, Device: 0x10FB},
				bar: mmio.Mapped(make([]byte, 0x4000), false)}
		}, nic.Options{}, nil, "0x4000"},
		{"a broken EEPROM", spoiled(ixgbesim.SFP, (*ixgbesim.Model).CorruptEEPROM), nic.Options{}, ixgbe.ErrEEPROM, "word 3Fh"},
		{"a broken shadow of the X540's flash", spoiled(ixgbesim.X540, (*ixgbesim.Model).CorruptEEPROM), nic.Options{}, ixgbe.ErrEEPROM, ""},
		{"an X540 without a PHY", spoiled(ixgbesim.X540, func(m *ixgbesim.Model) { m.SetPHY(0x1_0002, 0xFFFF) }),
			nic.Options{MAC: mac}, ixgbe.ErrNoPHY, ""},
		{"a device that is gone", func(t *testing.T) pci.Function {
			p, fn := host(t, ixgbesim.New(ixgbesim.Options{}))
			p.Unplug()
			return fn
		}, nic.Options{}, nic.ErrGone, "all ones"},
		{"a stalled device", func(t *testing.T) pci.Function {
			m := sim.Inject(ixgbesim.New(ixgbesim.Options{}), 1)
			m.Stalled = true
			_, fn := host(t, m)
			return fn
		}, nic.Options{}, nic.ErrTimeout, "should be"},
		{"a ring that is no power of two", plain, nic.Options{RingSize: 500}, nil, "500"},
		{"too many queues", plain, nic.Options{Queues: 17}, nil, "1 to 16"},
		{"an MTU beyond the device's", plain, nic.Options{MTU: 9600}, nil, "9600"},
		{"a group address", plain, nic.Options{MAC: [6]byte{1}}, nil, "unicast"},
	} {
		t.Run(c.name, func(t *testing.T) {
			check.Fails(t, "Open", check.Err(ixgbe.Open(c.fn(t), c.opt)), c.is, c.says)
		})
	}
}

// TestGoneLate: a device that vanishes while its queues are started, when it has memory and bus mastering. (In the
// conformance suite it vanishes earlier.)
func TestGoneLate(t *testing.T) {
	o := nic.Options{MAC: mac, RingSize: 128}
	for _, k := range []ixgbesim.Kind{ixgbesim.SFP, ixgbesim.X540} {
		p, fn := host(t, ixgbesim.New(ixgbesim.Options{Kind: k}))
		d, err := ixgbe.Open(fn, o)
		must.OK(t, err)
		c := p.Counts()
		must.Close(t, d)
		for _, before := range []uint64{12, 200} { // transmit queue; filters, or the semaphore of the link
			var p *sim.Port
			for err = nil; err == nil; before += 12 { // how often a register is looked at differs
				p, fn = host(t, ixgbesim.New(ixgbesim.Options{Kind: k}))
				p.UnplugAfter(int(c.MMIORead + c.MMIOWrite - before))
				if d, err = ixgbe.Open(fn, o); err == nil {
					d.Close()
				}
			}
			what := fmt.Sprintf("kind %d, gone %d accesses before the end: ", k, before)
			check.Fails(t, what, err, nic.ErrGone)
			check.Equal(t, p.Mappings(), 0, what+"%d mappings are left")
		}
	}
}

func plain(t *testing.T) pci.Function {
	_, fn := host(t, ixgbesim.New(ixgbesim.Options{}))
	return fn
}

// A start resets the card once: each reset costs 50 ms, or 100 on the X540.
func TestOneReset(t *testing.T) {
	p, fn := host(t, ixgbesim.New(ixgbesim.Options{}))
	wire(p)
	var log bytes.Buffer
	open(t, fn, nic.Options{Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	check.Equal(t, strings.Count(log.String(), `done="reset the device"`), 1, "%d resets")
}
