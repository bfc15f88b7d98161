package main

// mixedTraffic is a million frames of mixed traffic beside the kernel's driver, of which make test sends 20000.
func mixedTraffic() job {
	j := goTest("a million frames beside the kernel's driver", cost{140, 0.9}, []string{"-run", "^TestBesideMixedTraffic$"}, "nic/drivers/mlx5", "nic/drivers/mlx4")
	j.env, j.variant = []string{"REBOUND_MIXED_FRAMES=1000000"}, "million"
	return j
}
