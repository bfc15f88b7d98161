package osnoise

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/polling"
)

// pair is the same moment by CLOCK_MONOTONIC, which the kernel's programs use, and by polling.TSC.
type pair struct {
	ns    int64
	ticks uint64
}

// clocks has pairs of the last minute. The kernel adjusts the rate of CLOCK_MONOTONIC, so that one rate does not fit
// all of them.
type clocks struct{ pairs []pair }

const keptPairs = 1200

// read adds a pair: of several readings the one that took least, whose error is at most half of that, tens of
// nanoseconds.
func (c *clocks) read() pair {
	var best pair
	least := ^uint64(0)
	for range 4 {
		var t unix.Timespec
		before := polling.FencedTSC()
		unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
		if took := polling.FencedTSC() - before; took < least {
			least, best = took, pair{t.Nano(), before + took/2}
		}
	}
	if len(c.pairs) == keptPairs {
		c.pairs = slices.Delete(c.pairs, 0, keptPairs/2)
	}
	c.pairs = append(c.pairs, best)
	return best
}

// ticks converts a time. With fewer than two pairs it returns 0.
func (c *clocks) ticks(ns int64) uint64 {
	if len(c.pairs) < 2 {
		return 0
	}
	i, _ := slices.BinarySearchFunc(c.pairs, ns, func(p pair, ns int64) int {
		switch {
		case p.ns < ns:
			return -1
		case p.ns > ns:
			return 1
		}
		return 0
	})
	i = min(max(i, 1), len(c.pairs)-1)
	a, b := c.pairs[i-1], c.pairs[i]
	return uint64(int64(a.ticks) + int64(float64(ns-a.ns)*float64(b.ticks-a.ticks)/float64(b.ns-a.ns)))
}
