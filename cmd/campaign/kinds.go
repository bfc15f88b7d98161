package main

import (
	"math/rand/v2"
	"sync/atomic"

	"rebound/nic/sim"
	"rebound/nic/sim/enasim"
	"rebound/nic/sim/ixgbesim"
	"rebound/nic/sim/mlx4sim"
	"rebound/nic/sim/mlx5sim"
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
		m.Model = mlx5sim.New(mlx5sim.Options{MAC: ourMAC, Profile: all[r.IntN(len(all))], Withhold: func(uint16) bool { return m.on.Load() }})
		return m
	})},
	{"mlx4", []string{"all", "model", "frames", "mlx4", "mellanox"}, openCard("mlx4", "mlx4", func(r *rand.Rand) sim.Model {
		m := &withholding{}
		m.Model = mlx4sim.New(mlx4sim.Options{MAC: ourMAC, Profile: []mlx4sim.Profile{mlx4sim.ConnectX3, mlx4sim.ConnectX3Pro}[r.IntN(2)],
			Withhold: func(uint16) bool { return m.on.Load() }})
		return m
	})},
	{"ena", []string{"all", "model", "frames", "ena", "amazon"}, openCard("ena", "ena", func(r *rand.Rand) sim.Model {
		o := enasim.Options{MAC: ourMAC, Seed: r.Uint64(), Hints: enasim.Hints{Watchdog: 1500, MissingTx: 300}}
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

// withholding is a model whose firmware stops completing commands while on is set.
type withholding struct {
	sim.Model
	on atomic.Bool
}

// Pause is that of the model within.
func (w *withholding) Pause(on bool) { w.Model.(sim.Pauser).Pause(on) }
