package responder

import (
	"testing"

	"github.com/rebound-nic/rebound/polling"
)

func TestTicks(t *testing.T) {
	var a, b polling.Histogram
	for v := range uint64(100) {
		a.Record(v + 1)
	}
	b.Record(1 << 20)
	var sum ticks
	if q := sum.quantile(0.5); q != 0 {
		t.Errorf("the median of nothing is %d", q)
	}
	if n := testing.AllocsPerRun(10, func() { var t ticks; t.add(&a); t.quantile(0.5) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	sum.add(&a)
	sum.add(&b)
	for q, want := range map[float64]uint64{0: 1, 0.5: 51, 0.9: 91, 0.99: 100, 1: 1 << 20} {
		if got := sum.quantile(q); got != want {
			t.Errorf("quantile %v is %d, want %d", q, got, want)
		}
	}
	if sum.n != 101 || sum.greatest != 1<<20 || sum.sum != 5050+1<<20 {
		t.Errorf("count %d, greatest %d, sum %v", sum.n, sum.greatest, sum.sum)
	}
}

// A stall for a twentieth of the time is one in millions of passes, but one in a hundred of all frames waits for four
// fifths of it.
func TestTicksWait(t *testing.T) {
	var h polling.Histogram
	for range 95_000 {
		h.Record(200)
	}
	h.Record(1_000_000)
	var sum ticks
	sum.add(&h)
	if w := sum.wait(0.99); w < 790_000 || w > 810_000 || sum.quantile(0.9999) != 200 {
		t.Errorf("p99 of the wait is %d, want 800000; p99.99 of the gaps is %d", w, sum.quantile(0.9999))
	}
	if n := testing.AllocsPerRun(10, func() { var t ticks; t.add(&h); t.wait(0.5) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
