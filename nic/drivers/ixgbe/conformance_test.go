package ixgbe_test

import (
	"testing"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/drivers/ixgbe"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/nictest"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/ixgbesim"
)

func harness(k ixgbesim.Kind) nictest.Harness {
	return nictest.Harness{
		Model: func() sim.Model { return ixgbesim.New(ixgbesim.Options{Kind: k}) },
		Open:  func(fn pci.Function, o nic.Options) (nic.Device, error) { return ixgbe.Open(fn, o) },
		Poll:  func(d nic.Device, q int, r *fastpath.Responder) int { return d.(*ixgbe.Device).Queue(q).Poll(r) },
		Ring:  128, Queues: 4, Most: 16, MTU: 9500, WriteBack: 16,
		Queue: func(d nic.Device, q int) any { return d.(*ixgbe.Device).Queue(q) }, Registers: []string{"rdt", "tdt"},
	}
}

func TestConformance(t *testing.T) { nictest.Run(t, harness(ixgbesim.SFP)) }

func TestConformanceX540(t *testing.T) {
	needs.Long(t)
	nictest.Run(t, harness(ixgbesim.X540))
}

func TestCost(t *testing.T) {
	const n = 1024
	for _, size := range needs.Each(3, []int{60, 64, 98, 1514}) {
		c := nictest.Cost(t, harness(ixgbesim.SFP), size, n, 1)
		// Each reply costs: TDT; its descriptor and payload; received payload, receive write-back, transmit write-back.
		// RDT once per 32 slots, and with it one read of the descriptors after it.
		refills := uint64(n / 32)
		if c.MMIORead != 0 || c.MMIOWrite != n+refills || c.DMAWrite != 3*n || c.DMARead < 2*n ||
			c.DMARead > 2*n+2*refills {
			t.Errorf("%d bytes, one at a time: %d replies cost %+v", size, n, c)
		}
		c = nictest.Cost(t, harness(ixgbesim.SFP), size, n, 32)
		batches := uint64(n / 32)
		if c.MMIORead != 0 || c.MMIOWrite != batches+refills || c.DMAWrite != 2*n+batches || c.DMARead > n+4*batches {
			t.Errorf("%d bytes, 32 at a time: %d replies cost %+v", size, n, c)
		}
	}
}

func TestProgrammed(t *testing.T) {
	nictest.Programmed(t, harness(ixgbesim.SFP), "testdata/82599.txt")
	nictest.Programmed(t, harness(ixgbesim.X540), "testdata/x540.txt")
	nictest.Probed(t, harness(ixgbesim.SFP), "testdata/82599-probe.txt")
	nictest.Probed(t, harness(ixgbesim.X540), "testdata/x540-probe.txt")
}
