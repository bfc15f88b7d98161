package campaign

import (
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/enasim"
	"github.com/rebound-nic/rebound/sim/ixgbesim"
	"github.com/rebound-nic/rebound/sim/mlx4sim"
	"github.com/rebound-nic/rebound/sim/mlx5sim"
	"github.com/rebound-nic/rebound/sim/virtiosim"
)

// Tags of kinds: all for every one, model for device models, frames for those of Ethernet, kernel for interfaces of the kernel, and the
// driver's name.
var kinds = []kind{
	{"ixgbe", []string{"all", "model", "frames", "ixgbe"}, openCard("ixgbe", "ixgbe", func(r *rand.Rand) sim.Model {
		return ixgbesim.New(ixgbesim.Options{MAC: ourMAC, Kind: []ixgbesim.Kind{ixgbesim.SFP, ixgbesim.X540, ixgbesim.KX4}[r.IntN(3)]})
	})},
	{"mlx5", []string{"all", "model", "frames", "mlx5", "mellanox"}, openCard("mlx5", "mlx5", func(r *rand.Rand) sim.Model {
		m := &withholding{}
		all := mlx5sim.Profiles()
		m.Model = mlx5sim.New(mlx5sim.Options{MAC: ourMAC, Profile: all[r.IntN(len(all))], Withhold: func(uint16) bool { return m.on.Load() },
			Status: func(uint16) (uint8, uint32) { return m.refused(), 0x77 }})
		return m
	})},
	{"mlx4", []string{"all", "model", "frames", "mlx4", "mellanox"}, openCard("mlx4", "mlx4", func(r *rand.Rand) sim.Model {
		return newMlx4(r, mlx4sim.Ethernet)
	})},
	{"mlx4 InfiniBand", []string{"all", "model", "infiniband", "mellanox"}, openInfiniBand},
	{"virtio", []string{"all", "model", "frames", "virtio"}, openCard("virtio", "virtio", func(r *rand.Rand) sim.Model {
		return virtiosim.New(virtiosim.Options{MAC: ourMAC, Packed: r.IntN(2) == 1, NotificationData: r.IntN(2) == 1, Limit: 64 << r.IntN(3),
			Lacks: []uint64{0, virtiosim.Bits(16, 63), virtiosim.Bits(3, 18, 22)}[r.IntN(3)]})
	})},
	{"ena", []string{"all", "model", "frames", "ena", "amazon"}, openCard("ena", "ena", func(r *rand.Rand) sim.Model {
		o := enasim.Options{MAC: ourMAC, Seed: r.Uint64(), Hints: enasim.Hints{Watchdog: 1500, MissingTx: 300}, AdminDelay: time.Duration(r.IntN(2)) * time.Millisecond,
			AdminOutOfOrder: r.IntN(2) == 1, TxOutOfOrder: r.IntN(2) == 1, RxOutOfOrder: r.IntN(2) == 1}
		switch r.IntN(3) {
		case 1:
			o.NoLLQ, o.NoMemBAR, o.Device = true, true, 0x0ec2
		case 2:
			o.PreferWide = true
		}
		return enasim.New(o)
	})},
	{"efa", []string{"all", "model", "efa", "amazon"}, openEFA},
	{"afpacket", []string{"all", "kernel"}, openVeth("afpacket", false)},
	{"afxdp", []string{"all", "kernel"}, openVeth("afxdp", false)},
	{"xdp", []string{"all", "kernel", "xdp"}, openVeth("xdp", false)},
	{"xdp pinned", []string{"all", "kernel", "xdp", "pinned"}, openVeth("xdp", true)},
}

func newMlx4(r *rand.Rand, link mlx4sim.Link) *withholding {
	m := &withholding{}
	m.Model = mlx4sim.New(mlx4sim.Options{MAC: ourMAC, Link: link, Profile: []mlx4sim.Profile{mlx4sim.ConnectX3, mlx4sim.ConnectX3Pro}[r.IntN(2)],
		Withhold: func(uint16) bool { return m.on.Load() }, Status: func(uint16) uint8 { return m.refused() }})
	return m
}

// withholding is a model whose firmware stops completing commands while on is set, and refuses one command in so many.
type withholding struct {
	sim.Model
	on     atomic.Bool
	refuse atomic.Uint32 // 0 for none
	asked  atomic.Uint32
}

// refused is the status of the next command: 0, or that of an internal error, which both cards number alike.
func (w *withholding) refused() uint8 {
	if n := w.refuse.Load(); n > 0 && w.asked.Add(1)%n == 0 {
		return 1
	}
	return 0
}

// Pause is that of the model within.
func (w *withholding) Pause(on bool) { w.Model.(sim.Pauser).Pause(on) }
