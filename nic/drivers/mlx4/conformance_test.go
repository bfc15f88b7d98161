package mlx4_test

import (
	"net/netip"
	"testing"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/drivers/mlx4"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/nictest"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/mlx4sim"
)

func harness(o mlx4sim.Options, own mlx4.Options) nictest.Harness {
	return nictest.Harness{
		Model: func() sim.Model { return mlx4sim.New(o) },
		Open:  func(fn pci.Function, o nic.Options) (nic.Device, error) { return mlx4.Open(fn, o, own) },
		Poll:  func(d nic.Device, q int, r *fastpath.Responder) int { return d.(*mlx4.Device).Queue(q).Poll(r) },
		Ring:  64, Queues: 4, Most: 16, MTU: 9000,
		Queue: func(d nic.Device, q int) any { return d.(*mlx4.Device).Queue(q) }, Registers: []string{"bf", "db"},
	}
}

func TestConformance(t *testing.T) { nictest.Run(t, harness(mlx4sim.Options{}, mlx4.Options{})) }

// The suite without push, with the other steering mode and on the other card: frames take the other path to the wire.
func TestConformanceWithoutPush(t *testing.T) {
	needs.Long(t)
	h := harness(mlx4sim.Options{Profile: mlx4sim.ConnectX3Pro, Steering: mlx4sim.MACTable}, mlx4.Options{Push: "off"})
	h.Lacks = slow("waits for time-outs that are the same with push")
	nictest.Run(t, h)
}

func slow(why string) map[string]string {
	return map[string]string{"lost write": why, "stalled": why, "stalled while opening": why}
}

// Driver and model with vfio-user between them. The server cleans up the function of a killed process.
func TestConformanceOverVFIOUser(t *testing.T) {
	needs.Long(t)
	h := harness(mlx4sim.Options{}, mlx4.Options{})
	h.VFIOUser = true
	h.Lacks = slow("waits for time-outs that are the same in process")
	nictest.Run(t, h)
}

// besideHarness is a card that its kernel's driver has all the time.
func besideHarness(own mlx4.Options) nictest.Harness {
	h := harness(mlx4sim.Options{}, own)
	h.Beside = func(t testing.TB, _ sim.Model, p *sim.Port, mac [6]byte, mtu int) nictest.Kernel {
		return mlx4.NewKernel(t, p, mac, mtu)
	}
	h.Queues, h.Most, h.IPv4 = 1, 1, true
	h.Lacks = map[string]string{
		"lost write": "the kernel's driver writes commands to registers: a lost one changes that command"}
	return h
}

var dedicated = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")}

// The addresses are the responder's own, so that pings are diverted.
func TestConformanceBeside(t *testing.T) {
	needs.Long(t)
	nictest.Run(t, besideHarness(mlx4.Options{Dedicated: dedicated}))
}

func TestBesideMixedTraffic(t *testing.T) {
	for name, c := range map[string]struct {
		own mlx4.Options
		mix nictest.Mix
	}{
		"kernel's address": {mlx4.Options{}, nictest.Mix{Stays: []string{"ping, IPv4"}}},
		"dedicated address": {mlx4.Options{Dedicated: dedicated},
			nictest.Mix{Refuses: []string{"TCP, IPv4", "fragment of a datagram, IPv4", "fragment of a ping, IPv4",
				"another port, IPv4", "another protocol, IPv4", "echo reply, IPv4", "ICMP error, IPv4", "ICMP timestamp"}}},
	} {
		c.mix.CountsAll = true
		t.Run(name, func(t *testing.T) { nictest.MixedTraffic(t, besideHarness(c.own), c.mix) })
	}
}

func TestProgrammed(t *testing.T) {
	nictest.Programmed(t, harness(mlx4sim.Options{}, mlx4.Options{}), "testdata/connectx3.txt")
	nictest.Programmed(t, harness(mlx4sim.Options{Profile: mlx4sim.ConnectX3Pro, Steering: mlx4sim.MACTable},
		mlx4.Options{Push: "off"}), "testdata/connectx3pro.txt")
	nictest.Programmed(t, besideHarness(mlx4.Options{Dedicated: dedicated}), "testdata/beside.txt")
	nictest.Probed(t, harness(mlx4sim.Options{}, mlx4.Options{}), "testdata/probe.txt")
}
