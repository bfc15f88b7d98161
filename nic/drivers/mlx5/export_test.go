package mlx5

import "time"

var productInitTimeout time.Duration // not that of the tests

// A model responds immediately or never, but on a busy machine its thread may not run for half a second.
func init() {
	productInitTimeout = initTimeout
	commandTimeout, initTimeout, leastLooks = 2*time.Second, 2*time.Second, 150
	proofMiss = 500 * time.Millisecond
}
