package polling

import (
	"sync"
	"testing"
)

// A reader gets every long iteration once and whole, or learns that it is missing, while the loop adds more.
func TestLong(t *testing.T) {
	const total = 200_000
	for _, took := range []uint64{1, 1 << 12, 1 << 20, 1 << 40} {
		var l Long
		var over sync.WaitGroup
		over.Go(func() {
			for i := range uint64(total) {
				l.Add(i, i+took)
			}
		})
		var read Read
		next, got, without, lost := uint64(0), uint64(0), 0, uint64(0)
		for all := false; !all; {
			seen := got
			below, gone := l.After(&read, func(from, to uint64) {
				if to != from+took || from < next {
					t.Errorf("%d to %d, after %d", from, to, next)
				}
				next = from + 1
				got++
			})
			if below > took {
				without++
			}
			lost += gone
			all = got == seen && next == total
		}
		over.Wait()
		switch {
		case got == 0:
			t.Errorf("%d ticks: none was read", took)
		case took == 1<<40 && got+lost != total:
			t.Errorf("%d ticks: %d iterations and %d lost of %d", took, got, lost, total)
		case took < 1<<40 && (got < total) != (without > 0):
			t.Errorf("%d ticks: %d iterations of %d, and shorter ones than that are missing %d times", took, got, total,
				without)
		}
	}
}

// A reader that comes late gets the long iterations although many short ones came after them, and learns how short the
// missing ones are.
func TestLongOutlastsShort(t *testing.T) {
	var l Long
	l.Add(0, 60e6)
	for i := range uint64(100_000) {
		l.Add(i, i+50_000)
	}
	var read Read
	longest := uint64(0)
	below, lost := l.After(&read, func(from, to uint64) { longest = max(longest, to-from) })
	if longest != 60e6 || below != 1<<16 || lost != 0 {
		t.Errorf("longest %d, shorter than %d are missing, and %d of the longest", longest, below, lost)
	}
	if below, lost = l.After(&read, func(uint64, uint64) { t.Error("read twice") }); below != 0 || lost != 0 {
		t.Errorf("shorter than %d are missing, and %d of the longest", below, lost)
	}
}

// An iteration is kept from the length Keep on, and none if that is 0.
func TestPassKeepsLongIterations(t *testing.T) {
	for _, c := range []struct {
		keep, took uint64
		want       int
	}{{0, 1 << 40, 0}, {1 << 40, 1 << 39, 0}, {1 << 40, 1 << 41, 1}} {
		l := Loop{Keep: c.keep}
		l.Pass(TSC()-c.took, 0)
		kept := 0
		if l.Long.After(&Read{}, func(uint64, uint64) { kept++ }); kept != c.want {
			t.Errorf("Keep %d: %d kept after an iteration of %d", c.keep, kept, c.took)
		}
	}
}
