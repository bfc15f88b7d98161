// Package mlx5sim models one physical function of an NVIDIA (Mellanox) ConnectX adapter.
package mlx5sim
