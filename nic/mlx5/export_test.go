package mlx5

import "time"

// A model answers at once or never.
func init() { commandTimeout, initTimeout = 700*time.Millisecond, 700*time.Millisecond }
