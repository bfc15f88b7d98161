package compare

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"rebound/latency"
	"rebound/latency/report"

	"golang.org/x/perf/benchmath"
)

// Confidence of every statement about a difference. A table has eight lines: at the customary 0.05 every third table
// would show a difference where there is none.
const alpha = 0.01

const (
	minRuns   = 5  // runs on each side from which runs are the samples: 5 against 5 is the least that reaches alpha
	minPairs  = 8  // the same for pairs
	maxBlocks = 64 // blocks that a run is cut into at most
)

// Verdict says what a difference is worth.
type Verdict int

const (
	Unknown Verdict = iota // too few samples to tell
	Noise                  // no more than chance
	Faster
	Slower
)

// Mark is the sign of a verdict in a table: "~" noise, "?" unknown, "-" faster, "+" slower.
func (v Verdict) Mark() string { return [...]string{"?", "~", "-", "+"}[v] }

func (v Verdict) String() string {
	return [...]string{"unknown", "noise", "faster", "slower"}[v]
}

// significance is the outcome of a test of two samples of a statistic.
type significance struct {
	Verdict Verdict
	P       float64
	Lo, Hi  float64 // 99 % confidence interval of the difference in the samples, ns
	How     string  // the samples: "12+12 intervals", "8 pairs of runs"
	Why     string  // where the verdict is Unknown
}

// judge tests whether statistic st differs between the main series of a and b.
//
// The samples are the statistic's values in runs where both sides were repeated often enough: in pairs where the two were
// measured alternately, because both of a pair saw the same drift. Otherwise they are its values in blocks of
// neighbouring intervals, long enough for the percentile to have samples above it and not to follow from the block before.
// Runs and blocks are compared by the Mann-Whitney U test, pairs by flipping the signs of their differences; neither
// assumes a distribution.
func judge(st Stat, a, b *report.Report) significance {
	need := st.Needs()
	for _, r := range []*report.Report{a, b} {
		if n := r.Main().Total.Count; n < need {
			return significance{P: 1, Why: fmt.Sprintf("%s needs %d samples, %s has %d", st, need, r.Name(), n)}
		}
	}
	ra, rb := perRun(st, a, need), perRun(st, b, need)
	switch {
	case a.Session != "" && a.Session == b.Session && len(ra) == len(rb) && len(ra) >= minPairs:
		return pairedTest(ra, rb)
	case len(ra) >= minRuns && len(rb) >= minRuns:
		return rankTest(ra, rb, "runs")
	}
	s := rankTest(perBlock(st, a, need), perBlock(st, b, need), "intervals")
	if s.Why != "" {
		s.Why = st.String() + " has " + s.Why
	}
	return s
}

// perRun returns the statistic of each run; nil where a run has too few samples for it.
func perRun(st Stat, r *report.Report, need int64) []float64 {
	var out []float64
	for _, run := range r.Runs {
		var hs []*latency.Histogram
		for _, iv := range r.Main().Intervals {
			if iv.Start >= run.Start && iv.End <= run.End {
				hs = append(hs, iv.Histogram)
			}
		}
		h := latency.Merge(hs...)
		if h.Count < need {
			return nil
		}
		out = append(out, st.Of(h))
	}
	return out
}

// perBlock cuts the intervals into blocks with at least need samples each, at most maxBlocks, and makes them longer until
// neighbours are no longer correlated.
func perBlock(st Stat, r *report.Report, need int64) []float64 {
	ivs := r.Main().Intervals
	least := max(need, r.Main().Total.Count/(maxBlocks+1))
	for {
		var out []float64
		var hs []*latency.Histogram
		var n int64
		for _, iv := range ivs {
			hs = append(hs, iv.Histogram)
			if n += iv.Count; n >= least {
				out = append(out, st.Of(latency.Merge(hs...)))
				hs, n = hs[:0], 0
			}
		}
		if len(out) < 2*minRuns || !correlated(out) {
			return out
		}
		least *= 2
	}
}

// correlated reports whether a value follows from the one before: whether the lag-1 autocorrelation, freed of its bias
// towards -1/n, is above what independent values show in one case of twenty.
func correlated(x []float64) bool {
	n := float64(len(x))
	mean := 0.0
	for _, v := range x {
		mean += v / n
	}
	num, den := 0.0, 0.0
	for i, v := range x {
		den += (v - mean) * (v - mean)
		if i > 0 {
			num += (v - mean) * (x[i-1] - mean)
		}
	}
	return den > 0 && num/den+1/n > 1.64/math.Sqrt(n)
}

func rankTest(a, b []float64, unit string) significance {
	s := significance{P: 1, How: fmt.Sprintf("%d+%d %s", len(a), len(b), unit)}
	if len(a) < minRuns || len(b) < minRuns {
		s.Why = fmt.Sprintf("%d and %d independent %s long enough for it, and needs %d", len(a), len(b), unit, minRuns)
		return s
	}
	diffs := make([]float64, 0, len(a)*len(b))
	for _, x := range a {
		for _, y := range b {
			diffs = append(diffs, y-x)
		}
	}
	thresholds := benchmath.Thresholds{CompareAlpha: alpha}
	s.P = benchmath.AssumeNothing.Compare(benchmath.NewSample(slices.Clone(a), &thresholds), benchmath.NewSample(slices.Clone(b), &thresholds)).P
	na, nb := float64(len(a)), float64(len(b))
	s.interval(diffs, na*nb/2, math.Sqrt(na*nb*(na+nb+1)/12))
	return s
}

// pairedTest flips the signs of the differences: were the two sides alike, each sign would be a coin's.
func pairedTest(a, b []float64) significance {
	n := len(a)
	s := significance{P: 1, How: fmt.Sprintf("%d pairs of runs", n)}
	d := make([]float64, n)
	seen := 0.0
	for i := range a {
		d[i] = b[i] - a[i]
		seen += d[i]
	}
	seen = math.Abs(seen) * (1 - 1e-12)
	const exact = 14 // 2^14 flips are tried all, more by chance with a fixed seed
	extreme, tried := 0, 1<<exact
	rnd := rand.New(rand.NewPCG(1, 2))
	if n <= exact {
		tried = 1 << n
	}
	for k := range tried {
		signs := uint64(k)
		sum := 0.0
		for i, v := range d {
			if n > exact && i%64 == 0 {
				signs = rnd.Uint64()
			}
			if signs>>(i%64)&1 == 0 {
				v = -v
			}
			sum += v
		}
		if math.Abs(sum) >= seen {
			extreme++
		}
	}
	s.P = float64(extreme) / float64(tried)
	if n > exact {
		s.P = float64(extreme+1) / float64(tried+1)
	}
	var walsh []float64
	for i := range d {
		for j := i; j < n; j++ {
			walsh = append(walsh, (d[i]+d[j])/2)
		}
	}
	m := float64(n)
	s.interval(walsh, m*(m+1)/4, math.Sqrt(m*(m+1)*(2*m+1)/24))
	return s
}

// interval sets the verdict and the confidence interval of the shift, which ranks the pairwise differences by the test's
// own distribution: mean and deviation are those of its statistic.
func (s *significance) interval(diffs []float64, mean, deviation float64) {
	slices.Sort(diffs)
	const z = 2.576 // two-sided 0.01 of the normal distribution
	k := min(max(int(math.Floor(mean-z*deviation)), 0), (len(diffs)-1)/2)
	s.Lo, s.Hi = diffs[k], diffs[len(diffs)-1-k]
	switch middle := diffs[len(diffs)/2]; {
	case s.P > alpha:
		s.Verdict = Noise
	case middle < 0:
		s.Verdict = Faster
	case middle > 0:
		s.Verdict = Slower
	default:
		s.Verdict = Noise
	}
}
