package schedule

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

func parse(t *testing.T, text string) *Arrivals {
	t.Helper()
	a := must.Get(ParseArrivals(text))(t)
	return &a
}

func recorded(t *testing.T, times ...int64) *Arrivals {
	t.Helper()
	a := must.Get(Replay("x.pcap", times))(t)
	return &a
}

// All arrivals have a mean of one probe per period, start immediately, and never go backwards.
func TestArrivalsKeepTheRate(t *testing.T) {
	const n = 200_000
	for _, a := range []*Arrivals{parse(t, "periodic"), parse(t, "poisson"), parse(t, "burst:32"),
		recorded(t, 5, 1, 2, 1, 40)} {
		p, last := a.Process(1), 0.0
		for i := range n {
			at := p.Next()
			if i == 0 && at != 0 || at < last {
				t.Fatalf("%q: probe %d is due at %v, the one before at %v", a.Text(), i, at, last)
			}
			last = at
		}
		if math.Abs(last/n-1) > 0.02 {
			t.Errorf("%q: %d probes in %v periods", a.Text(), n, last)
		}
	}
}

func TestArrivalsAreAsNamed(t *testing.T) {
	first := func(a *Arrivals, n int) (at []float64) {
		p := a.Process(1)
		for range n {
			at = append(at, p.Next())
		}
		return at
	}
	for _, x := range []struct {
		a    *Arrivals
		want []float64
	}{
		{parse(t, "periodic"), []float64{0, 1, 2, 3, 4}},
		{parse(t, "burst:2"), []float64{0, 0, 2, 2, 4}},
		{recorded(t, 100, 130, 110, 190), []float64{0, 1. / 3, 1, 3, 3 + 1./3, 4, 6}},
	} {
		got := first(x.a, len(x.want))
		if slices.ContainsFunc(got, func(v float64) bool { return math.Abs(v-x.want[slices.Index(got, v)]) > 1e-12 }) {
			t.Errorf("%q: %v, want %v", x.a.Text(), got, x.want)
		}
	}
	if r := recorded(t, 0, 1000, 3000).Rate(); math.Abs(r-1e9/1500) > 1e-6 {
		t.Errorf("a replay of three packets in 3 µs has the rate %v", r)
	}
	for _, bad := range []string{"", "burst", "burst:1", "burst:0", "burst:-3", "burst:10001", "burst:x", "Poisson",
		"replay:x"} {
		check.Fails(t, bad, check.Err(ParseArrivals(bad)), nil)
	}
	for _, times := range [][]int64{nil, {1}, {7, 7, 7}} {
		check.Fails(t, fmt.Sprint(times), check.Err(Replay("x", times)), nil)
	}
}

// The times between probes of a Poisson process are exponential: their distribution is within the bound of Dvoretzky,
// Kiefer and Wolfowitz that one of a million samples exceeds.
func TestPoissonIsExponential(t *testing.T) {
	const n = 100_000
	p := parse(t, "poisson").Process(3)
	last, gaps := p.Next(), make([]float64, n)
	for i := range gaps {
		at := p.Next()
		gaps[i], last = at-last, at
	}
	slices.Sort(gaps)
	far := 0.0
	for i, g := range gaps {
		far = max(far, math.Abs(1-math.Exp(-g)-float64(i)/n))
	}
	if bound := math.Sqrt(math.Log(2e6) / (2 * n)); far > bound {
		t.Errorf("the distribution of the gaps is %v away from exponential, allowed %v", far, bound)
	}
}

// Poisson arrivals see time averages (PASTA): if a target is stalled for 10 % of the time, 10 % of them see a stall,
// whatever the period of the stalls. Even arrivals whose period divides that of the stalls see all or nothing.
func TestPoissonSeesTimeAverages(t *testing.T) {
	const n, stalled = 100_000, 0.1
	share := func(a *Arrivals, every, phase float64) float64 {
		p, seen := a.Process(5), 0
		for range n {
			if _, part := math.Modf((p.Next() + phase) / every); part < stalled {
				seen++
			}
		}
		return float64(seen) / n
	}
	for _, every := range []float64{0.25, 1, 10, math.Pi} {
		for _, phase := range []float64{0, 0.3, 0.77} {
			got := share(parse(t, "poisson"), every, phase)
			// Neighbouring probes see the same stall, so the standard deviation is computed from the number of stalls.
			if bound := 6 * math.Sqrt(stalled*(1-stalled)*max(1, every)*2/n); math.Abs(got-stalled) > bound {
				t.Errorf("stalls every %v periods: Poisson arrivals see %v of the time stalled, want %v (±%v)", every,
					got, stalled, bound)
			}
		}
	}
	if all, none := share(parse(t, "periodic"), 1, 0), share(parse(t, "periodic"), 1, 0.5); all != 1 || none != 0 {
		t.Errorf("even arrivals in step with the stalls see %v and %v of the time stalled", all, none)
	}
}

// Most is never less than the number of arrivals within any interval of that length.
func TestMost(t *testing.T) {
	for _, a := range []*Arrivals{parse(t, "periodic"), parse(t, "poisson"), parse(t, "burst:50"),
		recorded(t, 0, 0, 0, 0, 0, 1, 2, 1000, 1001, 5000)} {
		p, at := a.Process(9), []float64(nil)
		for range 20_000 {
			at = append(at, p.Next())
		}
		for _, periods := range []float64{0, 0.5, 3, 7, 100, 3000} {
			most, to := 0, 0
			for from := range at {
				for to < len(at) && at[to]-at[from] <= periods {
					to++
				}
				most = max(most, to-from)
			}
			if bound := a.Most(periods); most > bound || float64(bound) > 20*periods+200 {
				t.Errorf("%q: %d probes within %v periods, Most says %d", a.Text(), most, periods, bound)
			}
		}
	}
}

func TestNextAllocatesNothing(t *testing.T) {
	for _, a := range []*Arrivals{parse(t, "periodic"), parse(t, "poisson"), parse(t, "burst:50"),
		recorded(t, 0, 1, 5)} {
		p := a.Process(1)
		if n := testing.AllocsPerRun(1000, func() { p.Next() }); n != 0 {
			t.Errorf("%q: %v allocations", a.Text(), n)
		}
	}
}
