package mlx5

import "time"

// A model answers at once or never. A look takes ten milliseconds where polling loops have all cores.
func init() {
	commandTimeout, initTimeout, leastLooks = 400*time.Millisecond, 400*time.Millisecond, 150
}
