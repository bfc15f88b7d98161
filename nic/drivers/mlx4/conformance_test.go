package mlx4_test

import (
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
		Open: func(fn pci.Function, o nic.Options) (nic.Device, error) {
			d, err := mlx4.Open(fn, o, own)
			if err != nil {
				return nil, err
			}
			return d, nil
		},
		Poll: func(d nic.Device, q int, r *fastpath.Responder) int { return d.(*mlx4.Device).Queue(q).Poll(r) },
		Ring: 64, Queues: 4, Most: 16, MTU: 9000,
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
