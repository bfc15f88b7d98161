package mlx4_test

import (
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/drivers/mlx4"
	devrig "github.com/rebound-nic/rebound/proof/nictest/rig"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/mlx4sim"
)

var (
	ourMAC, farMAC = devrig.OurMAC, devrig.FarMAC
	request        = devrig.Request
)

type rig struct {
	*devrig.Rig[*mlx4.Device]
	model *mlx4sim.Model
	own   mlx4.Options
}

func newRig(t testing.TB, o mlx4sim.Options) *rig {
	m := mlx4sim.New(o)
	return newRigOf(t, m, m)
}

func newRigOf(t testing.TB, m *mlx4sim.Model, around sim.Model) *rig {
	x := &rig{model: m}
	x.Rig = devrig.New(t, "mlx4", around, devrig.Driver[*mlx4.Device]{
		Open: func(fn pci.Function, o nic.Options) (*mlx4.Device, error) { return mlx4.Open(fn, o, x.own) },
		Poll: func(d *mlx4.Device, queue int, r *fastpath.Responder) int { return d.Queue(queue).Poll(r) },
	})
	return x
}

// openRig is newRig with an open driver.
func openRig(t testing.TB, o mlx4sim.Options, n nic.Options) *rig {
	t.Helper()
	x := newRig(t, o)
	x.Open(n)
	return x
}

func list(notes []string) string { return strings.Join(notes, "\n") }
