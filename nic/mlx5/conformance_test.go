package mlx5_test

import (
	"testing"

	"rebound/fastpath"
	"rebound/nic"
	"rebound/nic/mlx5"
	"rebound/nic/nictest"
	"rebound/nic/pci"
	"rebound/nic/sim"
	"rebound/nic/sim/mlx5sim"
)

// harness is the suite's view of the driver on its model; change is applied to the options of each Open.
func harness(change func(*nic.Options)) nictest.Harness {
	return nictest.Harness{
		Model: func() sim.Model { return mlx5sim.New(mlx5sim.Options{}) },
		Open: func(fn pci.Function, o nic.Options) (nic.Device, error) {
			if change != nil {
				change(&o)
			}
			d, err := mlx5.Open(fn, o)
			if err != nil {
				return nil, err
			}
			return d, nil
		},
		Poll: func(d nic.Device, q int, r *fastpath.Responder) int { return d.(*mlx5.Device).Queue(q).Poll(r) },
		Ring: 64, Queues: 4, MTU: 9000,
	}
}

func TestConformance(t *testing.T) { nictest.Run(t, harness(nil)) }

// The same where nothing is pushed: the other way to the wire.
func TestConformanceWithoutPush(t *testing.T) {
	h := harness(func(o *nic.Options) { o.Push = "off" })
	const slow = "waits for time-outs that are the same with push"
	h.Lacks = map[string]string{"lost write": slow, "stalled": slow, "stalled while opening": slow}
	nictest.Run(t, h)
}
