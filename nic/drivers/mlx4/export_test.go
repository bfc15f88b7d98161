package mlx4

import (
	"testing"
	"time"
)

// A model answers at once or never, but on a busy machine its thread may not run for half a second.
func init() {
	commandTimeout, semTimeout, resetTimeout, leastLooks = 2*time.Second, 2*time.Second, 2*time.Second, 150
	resetSettle, resetLook, ownerPause, ownerTimeout = time.Millisecond, time.Millisecond, time.Millisecond,
		50*time.Millisecond
}

// SetAdministration sets for a test how long to wait for an answer of subnet administration, and how often to try.
func SetAdministration(t *testing.T, timeout, tick time.Duration) {
	a, b := saTimeout, subnetTick
	saTimeout, subnetTick = timeout, tick
	t.Cleanup(func() { saTimeout, subnetTick = a, b })
}

// Looks returns after at least n more checks of the InfiniBand port by the driver.
func Looks(d *Device, n int) {
	for range n + 1 + cap(d.subnet.kick) { // one is taken before each check
		d.subnet.kick <- struct{}{}
	}
}
