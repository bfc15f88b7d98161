package polling

import (
	"math/bits"
	"sync/atomic"
)

// Long has the latest long iterations of a loop, by length: short ones, however many, do not displace long ones that
// were not read yet. One goroutine adds, and any may read meanwhile.
type Long struct {
	classes [classes]class
}

// Iterations from 2^(i+firstBits-1) to 2^(i+firstBits) ticks are of class i. The first class has all shorter ones and
// the last all longer ones, from about 5 ms.
const (
	classes   = 14
	firstBits = 12
)

type class struct {
	count atomic.Uint64
	kept  [1 << 8]span
}

type span struct{ from, to atomic.Uint64 }

// Read is how much of a Long was read.
type Read [classes]uint64

// Add adds an iteration, by its start and the start of the next. Only the loop may call it, or another goroutine while
// no loop runs.
//
//go:noinline
func (l *Long) Add(from, to uint64) {
	c := &l.classes[min(max(bits.Len64(to-from)-firstBits, 0), classes-1)]
	n := c.count.Load()
	k := &c.kept[n%uint64(len(c.kept))]
	k.from.Store(from)
	k.to.Store(to)
	c.count.Store(n + 1)
}

// After calls f with the iterations that are not in read, in the order of time within each class, and adds them to it.
// Later ones may have replaced some: iterations shorter than below ticks may be missing, and lost of the longest class.
func (l *Long) After(read *Read, f func(from, to uint64)) (below, lost uint64) {
	for i := range l.classes {
		c := &l.classes[i]
		count, size := c.count.Load(), uint64(len(c.kept))
		missed := uint64(0)
		for n := read[i]; n < count; n++ {
			k := &c.kept[n%size]
			from, to := k.from.Load(), k.to.Load()
			if n+size <= c.count.Load() { // the place of n is being written, or was
				missed++
				continue
			}
			f(from, to)
		}
		read[i] = count
		switch {
		case missed == 0:
		case i == classes-1:
			lost = missed
		default:
			below = 1 << (i + firstBits)
		}
	}
	return below, lost
}
