package latency_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/proof/check"
)

// One stall of 50 ms in every second, and otherwise iterations of 200 ns: a twentieth of all frames arrive in the
// stall, and one frame in a hundred waits longer than 40 ms. Per iteration, p99.9 of the gaps is 200 ns.
func TestWaitOfAStall(t *testing.T) {
	gaps := make([]int64, 0, 4_750_001)
	for range cap(gaps) - 1 {
		gaps = append(gaps, 200)
	}
	h := latency.FromValues(append(gaps, 50_000_000))
	w := h.Wait()
	near := func(name string, got int64, want float64) {
		if math.Abs(float64(got)-want) > 0.01*want {
			t.Errorf("%s is %d, want %.0f", name, got, want)
		}
	}
	near("p50", w.P50, 105)
	near("p99", w.P99, 40e6)
	near("p99.9", w.P999, 49e6)
	near("max", w.Max, 50e6)
	near("mean", int64(w.Mean), 0.05*25e6)
	if p := h.WaitAbove(40_000_000); math.Abs(p-0.01) > 0.0001 {
		t.Errorf("%v of the frames wait longer than 40 ms, want 0.01", p)
	}
	if h.Quantile(0.999) > 201 {
		t.Errorf("by passes p99.9 is %d", h.Quantile(0.999))
	}
	check.Equal(t, latency.FromValues(nil).Wait(), (latency.Summary{}), "of nothing: %+v")
}

func TestWaitBySimulation(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var gaps []int64
	var ends []int64
	at := int64(0)
	for range 20_000 {
		g := int64(math.Exp(r.NormFloat64()*1.5 + 7))
		at += g
		gaps, ends = append(gaps, g), append(ends, at)
	}
	var waits []int64
	for range 200_000 {
		arrive := r.Int64N(at)
		i, _ := slices.BinarySearch(ends, arrive+1)
		waits = append(waits, ends[i]-arrive)
	}
	slices.Sort(waits)
	w := latency.FromValues(gaps).Wait()
	for q, got := range map[float64]int64{0.5: w.P50, 0.9: w.P90, 0.99: w.P99} {
		if want := waits[int(q*float64(len(waits)))]; math.Abs(float64(got-want)) > 0.05*float64(want) {
			t.Errorf("quantile %v: %d, in the simulation %d", q, got, want)
		}
	}
}
