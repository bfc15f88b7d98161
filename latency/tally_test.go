package latency

import (
	"math"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
)

// A tally equals the histogram of its values, even if it is reused, and allocates no memory for empty doublings.
func TestTally(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var tally Tally
	if got := tally.Histogram(); got.Count != 0 || got.Quantile(0.5) != 0 || got.Min != 0 {
		t.Errorf("empty: %+v", got)
	}
	for round := range 3 {
		var values []int64
		for range 5000 {
			values = append(values, int64(math.Exp(r.NormFloat64()+float64(8+round))))
		}
		values = append(values, -5, 0, 2*highestValue)
		for _, v := range values {
			tally.Record(v)
		}
		if got, want := tally.Histogram(), FromValues(values); !reflect.DeepEqual(got, want) ||
			tally.Count() != want.Count {
			t.Fatalf("round %d: %d values from %d to %d, sum %v; want %d from %d to %d, sum %v", round, got.Count,
				got.Min, got.Max, got.Sum,
				want.Count, want.Min, want.Max, want.Sum)
		}
		tally.Reset()
	}
	for _, v := range []int64{7, 0} { // an empty tally has neither a minimum nor a maximum
		tally.Record(v)
		if got, want := tally.Histogram(), FromValues([]int64{v}); !reflect.DeepEqual(got, want) {
			t.Errorf("after a reset: %+v, want %+v", got, want)
		}
		tally.Reset()
	}
	var small Tally
	for v := range int64(1000) {
		small.Record(100_000 + v*10)
	}
	pages := 0
	for _, p := range small.pages {
		if p != nil {
			pages++
		}
	}
	check.Equal(t, pages, 1, "values within one doubling take %d pages")
	check.Equal(t, testing.AllocsPerRun(100, func() { small.Record(100_007) }), 0, "%v allocations")
}
