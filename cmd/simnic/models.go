package main

import (
	"fmt"

	"rebound/nic/sim"
	"rebound/nic/sim/enasim"
	"rebound/nic/sim/ixgbesim"
	"rebound/nic/sim/mlx5sim"
	"rebound/nic/sim/toysim"
)

// newModel returns the n-th device of this process, with a MAC address of its own.
func newModel(name string, n int) (sim.Model, error) {
	mac := [6]byte{0x02, 0x52, 0x62, 0x4e, 0x49, byte(n + 1)}
	switch name {
	case "toy":
		return toysim.New(mac), nil
	case "ixgbe":
		return ixgbesim.New(ixgbesim.Options{MAC: mac}), nil
	case "ena":
		return enasim.New(enasim.Options{MAC: mac}), nil
	case "mlx5":
		return mlx5sim.New(mlx5sim.Options{MAC: mac}), nil
	}
	return nil, fmt.Errorf("no such model: %q (toy, ixgbe, ena, mlx5)", name)
}
