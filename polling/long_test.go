package polling

import (
	"sync"
	"testing"
)

// A reader gets every long iteration once and whole, or learns that it is missing, while the loop adds more.
func TestLong(t *testing.T) {
	const total = 200_000
	var l Long
	var over sync.WaitGroup
	over.Go(func() {
		for i := range uint64(total) {
			l.Add(i, 2*i)
		}
	})
	n, got, missed := uint64(0), uint64(0), uint64(0)
	for n < total {
		next := n
		count, gone := l.After(n, func(from, to uint64) {
			if to != 2*from || from < next {
				t.Errorf("%d to %d, after %d", from, to, next)
			}
			next = from + 1
			got++
		})
		n, missed = count, missed+gone
	}
	over.Wait()
	if got+missed != total || got == 0 {
		t.Errorf("%d iterations and %d missed of %d", got, missed, total)
	}
}

// An iteration is kept from the length Keep on, and none if that is 0.
func TestPassKeepsLongIterations(t *testing.T) {
	for _, c := range []struct{ keep, took, want uint64 }{{0, 1 << 40, 0}, {1 << 40, 1 << 39, 0}, {1 << 40, 1 << 41, 1}} {
		l := Loop{Keep: c.keep}
		l.Pass(TSC()-c.took, 0)
		if n, _ := l.Long.After(0, func(uint64, uint64) {}); n != c.want {
			t.Errorf("Keep %d: %d kept after an iteration of %d", c.keep, n, c.took)
		}
	}
}
