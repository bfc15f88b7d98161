package toy_test

import (
	"testing"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/proof/nictest"
	"github.com/rebound-nic/rebound/proof/nictest/toy"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/toysim"
)

func TestConformance(t *testing.T) {
	nictest.Run(t, nictest.Harness{
		Model: func() sim.Model { return toysim.New([6]byte{2, 0, 0, 0, 0, 9}) },
		Open: func(fn pci.Function, o nic.Options) (nic.Device, error) {
			d, err := toy.Open(fn, o)
			if err != nil {
				return nil, err // not a nil pointer in a non-nil interface
			}
			return d, nil
		},
		Poll: func(d nic.Device, q int, r *fastpath.Responder) int { return d.(*toy.Device).Queue(q).Poll(r) },
		Ring: 64, MTU: 9000, WriteBack: 16,
	})
}

func TestPollIsAHotLoop(t *testing.T) {
	const p = "github.com/rebound-nic/rebound/proof/nictest/toy"
	nictest.HotLoop(t, p, "(*Queue).Poll", "toy.(*Queue).reclaim", "mmio.Store32")
	nictest.HotLoop(t, p, "(*Queue).reclaim", "mmio.Store32")
}
