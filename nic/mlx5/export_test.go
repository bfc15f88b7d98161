package mlx5

import "time"

// A model answers at once or never.
func init() { commandTimeout, initTimeout = 400*time.Millisecond, 400*time.Millisecond }
