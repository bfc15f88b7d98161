package mlx5_test

import (
	"net/netip"
	"testing"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/drivers/mlx5"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/nictest"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/mlx5sim"
)

func harness(profile mlx5sim.Profile, own mlx5.Options) nictest.Harness {
	return nictest.Harness{
		Model: func() sim.Model { return mlx5sim.New(mlx5sim.Options{Profile: profile}) },
		Open:  func(fn pci.Function, o nic.Options) (nic.Device, error) { return mlx5.Open(fn, o, own) },
		Poll:  func(d nic.Device, q int, r *fastpath.Responder) int { return d.(*mlx5.Device).Queue(q).Poll(r) },
		Ring:  64, Queues: 4, Most: 16, MTU: 9000,
		Queue:     func(d nic.Device, q int) any { return d.(*mlx5.Device).Queue(q) },
		Registers: []string{"bf", "db", "uar"},
	}
}

func TestConformance(t *testing.T) { nictest.Run(t, harness(mlx5sim.ConnectX4, mlx5.Options{})) }

func TestConformanceWithoutPush(t *testing.T) {
	needs.Long(t)
	h := harness(mlx5sim.ConnectX4, mlx5.Options{Push: "off"})
	h.Lacks = slow("waits for time-outs that are the same with push")
	nictest.Run(t, h)
}

func slow(why string) map[string]string {
	return map[string]string{"lost write": why, "stalled": why, "stalled while opening": why}
}

// One newer physical function, which needs no inline headers in its WQEs, and one virtual function. TestEveryID covers
// the differences of all others.
func TestConformanceOfOthers(t *testing.T) {
	needs.Long(t)
	for name, p := range map[string]mlx5sim.Profile{"ConnectX-6 Dx": mlx5sim.ConnectX6Dx,
		"ConnectX VF": mlx5sim.ConnectXVF} {
		t.Run(name, func(t *testing.T) {
			h := harness(p, mlx5.Options{})
			h.Lacks = slow("waits for time-outs that are the same for a ConnectX-4")
			nictest.Run(t, h)
		})
	}
}

// conformKernel is the simulated kernel as the suite uses it.
type conformKernel struct {
	*mlx5.Kernel
	model *mlx5sim.Model
	base  int // objects of the kernel
}

func (k conformKernel) Left() int { return left(k.model, k.base) }

// left returns how many user contexts there are on a card, and objects more than before.
func left(m *mlx5sim.Model, before int) int {
	contexts, _ := m.UserObjects()
	return contexts + max(m.Objects()-before, 0)
}

// besideHarness is a card that its kernel's driver has all the time.
func besideHarness(o mlx5sim.Options, own mlx5.Options) nictest.Harness {
	h := harness(o.Profile, own)
	h.Model = func() sim.Model { return mlx5sim.New(o) }
	h.Beside = func(t testing.TB, m sim.Model, p *sim.Port, mac [6]byte, mtu int) nictest.Kernel {
		k, model := mlx5.NewKernel(t, p, mac, mtu), m.(*mlx5sim.Model)
		return conformKernel{k, model, model.Objects()}
	}
	if o.NoUCTX {
		h.Queues, h.Most = 1, 1
	}
	return h
}

// withParser is a card with a parser for ICMP. withContexts and withoutContexts are cards with and without user
// contexts in their firmware.
var (
	withParser      = mlx5sim.Options{Profile: mlx5sim.ConnectX6Dx, ICMP: true}
	withContexts    = mlx5sim.Options{Profile: mlx5sim.ConnectX5}
	withoutContexts = mlx5sim.Options{Profile: mlx5sim.ConnectX5, NoUCTX: true}
)

func TestConformanceBeside(t *testing.T) {
	needs.Long(t)
	nictest.Run(t, besideHarness(withParser, mlx5.Options{}))
}

// The addresses are the responder's own, so that pings are diverted.
func TestConformanceBesideRawPackets(t *testing.T) {
	needs.Long(t)
	h := besideHarness(withoutContexts, mlx5.Options{Dedicated: []netip.Addr{netip.MustParseAddr("192.0.2.1"),
		netip.MustParseAddr("192.0.2.2")}})
	h.IPv4 = true
	nictest.Run(t, h)
}

func TestBesideMixedTraffic(t *testing.T) {
	needs.Long(t)
	pings := []string{"ping, IPv4", "ping, IPv6"}
	dedicated := mlx5.Options{Dedicated: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}
	dedicatedMix := nictest.Mix{Stays: pings[1:], Refuses: []string{"echo reply, IPv4", "ICMP error, IPv4",
		"ICMP timestamp"}}
	for name, c := range map[string]struct {
		model mlx5sim.Options
		own   mlx5.Options
		mix   nictest.Mix
	}{
		"parser for ICMP":                {withParser, mlx5.Options{}, nictest.Mix{}},
		"no parser":                      {withContexts, mlx5.Options{}, nictest.Mix{Stays: pings}},
		"raw packets":                    {withoutContexts, mlx5.Options{}, nictest.Mix{Stays: pings}},
		"dedicated address":              {withContexts, dedicated, dedicatedMix},
		"dedicated address, raw packets": {withoutContexts, dedicated, dedicatedMix},
	} {
		t.Run(name, func(t *testing.T) { nictest.MixedTraffic(t, besideHarness(c.model, c.own), c.mix) })
	}
}

func TestProgrammed(t *testing.T) {
	nictest.Programmed(t, harness(mlx5sim.ConnectX4, mlx5.Options{}), "testdata/connectx4.txt")
	nictest.Programmed(t, harness(mlx5sim.ConnectX6Dx, mlx5.Options{Push: "off"}), "testdata/connectx6dx.txt")
	nictest.Programmed(t, besideHarness(withParser, mlx5.Options{}), "testdata/beside.txt")
	h := besideHarness(withoutContexts, mlx5.Options{Dedicated: []netip.Addr{netip.MustParseAddr("192.0.2.1"),
		netip.MustParseAddr("192.0.2.2")}})
	h.IPv4 = true
	nictest.Programmed(t, h, "testdata/rawpackets.txt")
	nictest.Probed(t, harness(mlx5sim.ConnectX4, mlx5.Options{}), "testdata/probe.txt")
}
