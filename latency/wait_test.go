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

// Of 500 ns in gaps, 300 are in those of 100 ns: a frame waits longer than 100 ns if it arrives in the first half of
// the gap of 200 ns.
func TestWaitOfThreeShortGapsAndALongOne(t *testing.T) {
	h := latency.FromValues([]int64{100, 100, 200, 100})
	w := h.Wait()
	check.Equal(t, math.Round(w.StdDev*100), 4933, "deviation %v / 100")
	w.StdDev = 0
	check.Equal(t, w, latency.Summary{Count: 4, Max: 200, P50: 63, P90: 150, P99: 195, P999: 200, P9999: 200, Mean: 70},
		"%+v")
	for above, want := range map[int64]float64{0: 1, 100: 0.2, 150: 0.1, 200: 0, 300: 0} {
		check.Equal(t, h.WaitAbove(above), want, "%v wait longer")
	}
	wide := latency.FromValues([]int64{5000}) // in a bucket from 5000 to 5003
	check.Equal(t, wide.WaitAbove(2500), 0.5, "%v wait longer than half of the only gap")
	check.Equal(t, wide.Wait().Mean, 2500, "mean %v")
	none := latency.FromValues([]int64{0, 0})
	check.Equal(t, none.Wait(), latency.Summary{Count: 2}, "gaps without a length: %+v")
	check.Equal(t, none.WaitAbove(0), 0, "%v wait in gaps without a length")
	gaps := func(i int) (length, count float64) { return []float64{200, 100}[i], []float64{1, 3}[i] }
	for q, want := range map[float64]float64{0: 0, 0.8: 100, 1: 200} {
		check.Equal(t, math.Round(latency.WaitQuantile(q, 500, 2, gaps)*1e9)/1e9, want, "wait %v")
	}
	check.Equal(t, latency.WaitQuantile(0.5, 0, 0, gaps), 0, "wait %v without gaps")
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
