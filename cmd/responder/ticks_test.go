package main

import (
	"testing"

	"rebound/polling"
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
