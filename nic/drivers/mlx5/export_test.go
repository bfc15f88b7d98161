package mlx5

import "time"

// A model responds immediately or never, but on a busy machine its thread may not run for half a second.
func init() {
	commandTimeout, initTimeout, leastLooks = 2*time.Second, 2*time.Second, 150
	proofMiss = 500 * time.Millisecond
}
