package latency

import (
	"runtime"
	"time"

	"github.com/rebound-nic/rebound/polling"
)

// SelfTest only reads the counter for d on the calling thread, and returns the gaps between successive reads: the time
// during which the core did not run the loop. A tail in the round trips that appears here too comes from the bench's
// own host. The caller must have pinned the thread to the core that will measure.
func SelfTest(c *Clock, d time.Duration) *Histogram {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	h := new(polling.Histogram)
	last := polling.TSC()
	end := last + c.Ticks(d)
	for int64(end-last) > 0 {
		now := polling.TSC()
		h.Record(now - last)
		last = now
	}
	return FromHot(h, c)
}
