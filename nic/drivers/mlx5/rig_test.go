package mlx5_test

import (
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/drivers/mlx5"
	devrig "github.com/rebound-nic/rebound/proof/nictest/rig"
	"github.com/rebound-nic/rebound/sim/mlx5sim"
)

var (
	ourMAC, farMAC = devrig.OurMAC, devrig.FarMAC
	request        = devrig.Request
)

type rig struct {
	*devrig.Rig[*mlx5.Device]
	model *mlx5sim.Model
	own   mlx5.Options
}

func newRig(t testing.TB, o mlx5sim.Options) *rig {
	x := &rig{model: mlx5sim.New(o)}
	x.Rig = devrig.New(t, "mlx5", x.model, devrig.Driver[*mlx5.Device]{
		Open: func(fn pci.Function, o nic.Options) (*mlx5.Device, error) { return mlx5.Open(fn, o, x.own) },
		Poll: func(d *mlx5.Device, queue int, r *fastpath.Responder) int { return d.Queue(queue).Poll(r) },
	})
	return x
}

// openRig is newRig with an open driver.
func openRig(t testing.TB, o mlx5sim.Options, n nic.Options) *rig {
	t.Helper()
	x := newRig(t, o)
	x.Open(n)
	return x
}

func list(notes []string) string { return strings.Join(notes, "\n") }
