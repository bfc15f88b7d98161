package polling

import "sync/atomic"

// Long has the latest long iterations of a loop. One goroutine adds, and any may read meanwhile.
type Long struct {
	count atomic.Uint64
	kept  [1 << 10]span
}

type span struct{ from, to atomic.Uint64 }

// Add adds an iteration, by its start and the start of the next. Only the loop may call it, or another goroutine while no loop runs.
//
//go:noinline
func (l *Long) Add(from, to uint64) {
	n := l.count.Load()
	k := &l.kept[n%uint64(len(l.kept))]
	k.from.Store(from)
	k.to.Store(to)
	l.count.Store(n + 1)
}

// After calls f with the iterations after the first n, and returns how many there are in all, and how many of those after n it
// could not pass on because later ones have replaced them.
func (l *Long) After(n uint64, f func(from, to uint64)) (count, missed uint64) {
	count = l.count.Load()
	size := uint64(len(l.kept))
	for i := n; i < count; i++ {
		k := &l.kept[i%size]
		from, to := k.from.Load(), k.to.Load()
		if i+size <= l.count.Load() { // the place of i is being written, or was
			missed++
			continue
		}
		f(from, to)
	}
	return count, missed
}
