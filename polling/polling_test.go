package polling

import (
	"math/rand/v2"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
)

// Every value is in its bucket, buckets follow one another without a gap, and none is wider than 0.8 %.
func TestBuckets(t *testing.T) {
	for i := range Buckets - 1 {
		lo, next := Lowest(i), Lowest(i+1)
		if next <= lo || Bucket(lo) != i || Bucket(next-1) != i {
			t.Fatalf("bucket %d is [%d, %d), Bucket gives %d and %d", i, lo, next, Bucket(lo), Bucket(next-1))
		}
		if w := next - lo; w > 1 && w*sub > lo {
			t.Fatalf("bucket %d at %d is %d wide", i, lo, w)
		}
	}
	for _, v := range []uint64{1 << 40, 1<<40 + 1, 1 << 63, 1<<64 - 1} {
		if Bucket(v) != Buckets-1 {
			t.Errorf("Bucket(%d) = %d, want the last, %d", v, Bucket(v), Buckets-1)
		}
	}
}

func TestLoad(t *testing.T) {
	var h Histogram
	var want, got [Buckets]uint64
	greatest := uint64(0)
	for range 10_000 {
		v := rand.Uint64() >> rand.IntN(64)
		h.Record(v)
		want[Bucket(v)]++
		greatest = max(greatest, v)
	}
	if top := h.Load(&got); top != greatest || got != want {
		t.Errorf("greatest %d, want %d; counts equal: %v", top, greatest, got == want)
	}
}

// An iteration with frames counts as a turnaround and as a gap, an idle one only as a gap; no time between them is
// lost.
func TestLoop(t *testing.T) {
	var l Loop
	first := TSC()
	at := first
	for i := range 1000 {
		next := l.Pass(at, i%4/3)
		if next < at {
			t.Fatalf("the counter went from %d to %d", at, next)
		}
		at = next
	}
	var gaps, turns [Buckets]uint64
	longest, turn := l.Gap.Load(&gaps), l.Turnaround.Load(&turns)
	count := func(c *[Buckets]uint64) (n uint64) {
		for _, x := range c {
			n += x
		}
		return n
	}
	if count(&gaps) != 1000 || count(&turns) != 250 || turn > longest || longest > at-first {
		t.Errorf("%d gaps to %d, %d turnarounds to %d, %d ticks in all", count(&gaps), longest, count(&turns), turn,
			at-first)
	}
	check.Equal(t, testing.AllocsPerRun(100, func() { at = l.Pass(at, 1) }), 0, "%v allocations a pass")
}

func BenchmarkPass(b *testing.B) {
	var l Loop
	at := TSC()
	for b.Loop() {
		at = l.Pass(at, 1)
	}
}
