package compare

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/latency/sanitize"
)

// MinRuns is the number of runs on each side below which there is no verdict. With pairs, 9 are needed in a table
// without requested rows; see fewestPairs.
const MinRuns = 8

const (
	// maxSamples bounds the number of samples tested: with more runs, neighbours are joined, or some are left out if
	// the other side has few.
	maxSamples = 64
	// unseen is the size of a step between two series of runs that may not show within either, such as one during the
	// pause, as a share of the lower level.
	unseen = 0.1
	// own is the difference in ns that two series which a bench measures alternately may have although nothing changed:
	// each has its own probes and memory. On a real machine 5 of 45 comparisons of a target with itself found p50 some
	// 25 ns slower, never faster.
	own = 50
	// together is the greatest distance between the middles of two series, in lengths of the shorter one, at which they
	// count as measured at the same time.
	together = 0.05
	// shown is the permitted drift between two series, in multiples of the range of their runs. The calibration test
	// checks it.
	shown = 2
	// farthest bounds how far the drift within a series is extrapolated, in lengths of the series.
	farthest = 3
)

// samples are the values of a statistic that a test compares.
type samples struct {
	a, b    []float64
	paired  bool
	apart   bool    // one side was measured after the other
	allowed float64 // ns of the shift that may be drift; infinite if the samples prove nothing
	how     string  // "8 pairs of runs"
}

// collect returns the samples of two reports for testing st at a level, or the reason why there are none.
//
// If the two were measured alternately in one session, the runs are paired: both of a pair were exposed to the same
// drift. Otherwise the samples are the runs of each report. A single run does not show the variation from start to
// start, and its parts are correlated, so at least MinRuns are required. Runs of both reports made at the same time
// were exposed to the same drift, too. Reports measured one after the other are shifted by every drift and step of the
// machine, and no test of exchangeable samples can tell that from a difference: such a shift must exceed the drift that
// the machine has shown.
//
// Runs that are too short for the statistic are joined with their neighbours, if there are enough.
func (p *Pair) collect(st Stat, level float64) (samples, string) {
	need := st.Needs()
	for _, r := range []*report.Report{p.A, p.B} {
		if why := untestable(r); why != "" {
			return samples{}, why
		}
		if n := r.Main().Total.Count; n < need {
			return samples{}, fmt.Sprintf("%s needs %s, %s has %s", st, sanitize.Count(need, "sample"), r.Name(),
				latency.FormatCount(n))
		}
	}
	ra, rb, least := measured(p.runsA), measured(p.runsB), MinRuns
	turns := p.A.Session != "" && p.A.Session == p.B.Session
	if turns {
		ra, rb = pairs(p.runsA, p.runsB)
		if least = max(MinRuns, fewestPairs(level)); len(ra) < least {
			return samples{}, fmt.Sprintf(
				"a verdict needs %d pairs of runs, and has %d: measure longer, or with a shorter -slice", least,
				len(ra))
		}
	}
	for _, x := range []struct {
		n  int
		of *report.Report
	}{{len(ra), p.A}, {len(rb), p.B}} {
		if x.n < least {
			return samples{}, fmt.Sprintf("%s has %s, and a verdict needs %d of each side: %s", x.of.Name(),
				sanitize.Count(x.n, "run"), least, moreRuns(x.of))
		}
	}
	fewest, most := min(len(ra), len(rb)), max(len(ra), len(rb))
	// joining would leave the shorter side too few
	if size := (most + maxSamples - 1) / maxSamples; !turns && fewest/size < least {
		ra, rb = thin(ra), thin(rb)
		most = max(len(ra), len(rb))
	}
	for size := (most + maxSamples - 1) / maxSamples; fewest/size >= least; size++ {
		ja, jb := join(ra, size), join(rb, size)
		if !enough(ja, need) || !enough(jb, need) {
			continue
		}
		s := samples{a: values(st, ja), b: values(st, jb), paired: turns,
			how: fmt.Sprintf("%d+%d runs", len(ja), len(jb))}
		if turns {
			s.how = fmt.Sprintf("%d pairs of runs", len(ja))
		}
		if size > 1 {
			s.how += fmt.Sprintf(", each joined from %d", size)
		}
		if !turns && leastP(len(ja), len(jb)) > level {
			return samples{}, fmt.Sprintf("%s: no verdict is possible at a level of %.2g", s.how, level)
		}
		switch apart := p.distance(ja, jb); {
		case turns && !p.random:
			s.how += ", in a fixed order"
			s.allowed = math.Inf(1)
		case !turns && apart > together:
			s.how += ", one after the other"
			s.apart = true
			s.allowed = max(unseen*min(median(s.a), median(s.b)), shown*spread(s)*min(max(apart, 1), farthest))
		}
		return s, uneven(st, ja, jb)
	}
	return samples{}, fmt.Sprintf("%s needs %s in each of %d runs: measure longer", st, sanitize.Count(need, "sample"),
		least)
}

// part is a section of a recording; its times are absolute, in ns.
type part struct {
	start, end int64
	*latency.Histogram
}

// fewestPairs is the number of pairs whose test can reach a level: all signs are alike with probability 2/2^n.
func fewestPairs(level float64) (n int) {
	for n = 1; math.Ldexp(1, 1-n) > level; n++ {
	}
	return n
}

// leastP is the lowest p that the rank test of m runs against n can reach: all of one side above all of the other, in
// either direction.
func leastP(m, n int) float64 {
	lg := func(k int) float64 {
		v, _ := math.Lgamma(float64(k + 1))
		return v
	}
	return 2 * math.Exp(lg(m)+lg(n)-lg(m+n))
}

// random reports whether the slices of two reports were measured in an order drawn at random, according to both
// schedules and consistent with the runs. Older versions, which recorded no schedule, used the fixed order ABBA. No
// test can tell a disturbance with the period of that order from a difference between the targets.
func random(a, b *report.Report, ra, rb []part) bool {
	x, y := a.Schedule, b.Schedule
	n := min(len(ra), len(rb))
	if x == nil || y == nil || x.Seed == "" || x.Seed != y.Seed || min(len(x.Places), len(y.Places)) < n {
		return false
	}
	for i := range n {
		if x.Places[i] == y.Places[i] || (x.Places[i] < y.Places[i]) != (ra[i].start < rb[i].start) {
			return false
		}
	}
	return true
}

// runs returns the main series by run; an empty run has no histogram.
func runs(r *report.Report) []part {
	origin := r.Start.UnixNano()
	var out []part
	for i, h := range r.ByRun() {
		out = append(out, part{origin + r.Runs[i].Start, origin + r.Runs[i].End, h})
	}
	return out
}

// measured drops empty runs.
func measured(parts []part) []part {
	return slices.DeleteFunc(slices.Clone(parts), func(p part) bool { return p.Histogram == nil })
}

// pairs drops runs without a partner.
func pairs(a, b []part) (x, y []part) {
	for i := range min(len(a), len(b)) {
		if a[i].Histogram != nil && b[i].Histogram != nil {
			x, y = append(x, a[i]), append(y, b[i])
		}
	}
	return x, y
}

// join makes parts of size neighbours each, and drops the remainder at the end.
func join(parts []part, size int) []part {
	if size == 1 {
		return parts
	}
	var out []part
	for i := 0; i+size <= len(parts); i += size {
		hs := make([]*latency.Histogram, size)
		for k := range hs {
			hs[k] = parts[i+k].Histogram
		}
		out = append(out, part{parts[i].start, parts[i+size-1].end, latency.Merge(hs...)})
	}
	return out
}

// thin keeps at most maxSamples parts, spread evenly over all.
func thin(parts []part) []part {
	if len(parts) <= maxSamples {
		return parts
	}
	out := make([]part, maxSamples)
	for i := range out {
		out[i] = parts[i*len(parts)/maxSamples]
	}
	return out
}

func enough(parts []part, need int64) bool {
	return !slices.ContainsFunc(parts, func(p part) bool { return p.Count < need })
}

// uneven returns a note if st is an extreme, which grows with the number of samples, and the sides have different
// numbers of samples.
func uneven(st Stat, a, b []part) string {
	count := func(parts []part) float64 {
		n := make([]float64, len(parts))
		for i, p := range parts {
			n[i] = float64(p.Count)
		}
		return median(n)
	}
	if na, nb := count(a), count(b); st.Single() && max(na, nb) > 1.1*min(na, nb) {
		return fmt.Sprintf("%s not compared: sample counts differ (%s and %s per run), measure at a fixed rate (-rate)",
			st, latency.FormatCount(int64(na)), latency.FormatCount(int64(nb)))
	}
	return ""
}

func values(st Stat, parts []part) []float64 {
	out := make([]float64, len(parts))
	for i, p := range parts {
		out[i] = st.Of(p.Histogram)
	}
	return out
}

// spread is the greater of the ranges of the two sides.
func spread(s samples) float64 {
	return max(slices.Max(s.a)-slices.Min(s.a), slices.Max(s.b)-slices.Min(s.b))
}

// distance is the distance between the runs of the two sides. Another tool's output never counts as measured at the
// same time, and if it does not say when it was measured, it counts as far apart.
func (p *Pair) distance(a, b []part) float64 {
	apart := distance(a, b)
	for _, r := range []*report.Report{p.A, p.B} {
		switch {
		case r.Foreign == nil:
		case !r.Foreign.Timed:
			apart = farthest
		default:
			apart = max(apart, 1)
		}
	}
	return apart
}

// untestable says why another tool's output has no runs to test; it is empty if there are runs.
func untestable(r *report.Report) string {
	switch f := r.Foreign; {
	case f == nil:
		return ""
	case f.Points != nil:
		return fmt.Sprintf("%s has percentiles only, and a verdict needs samples: the difference is not tested",
			r.Name())
	case f.Single != "":
		return fmt.Sprintf("%s counts as one run (%s), and a verdict needs %d of each side: %s", r.Name(), f.Single,
			MinRuns, moreRuns(r))
	}
	return ""
}

// moreRuns says how to get more runs of a report.
func moreRuns(r *report.Report) string {
	if r.Foreign != nil {
		return "put one file for each run into a folder, and compare the folders"
	}
	return "use rebound-bench run -runs, or -ab"
}

// distance is how far the middles of two series are apart in time, in lengths of the shorter one.
func distance(a, b []part) float64 {
	first, last := func(p []part) float64 { return float64(p[0].start) },
		func(p []part) float64 { return float64(p[len(p)-1].end) }
	middle := math.Abs(first(a)+last(a)-first(b)-last(b)) / 2
	return middle / max(min(last(a)-first(a), last(b)-first(b)), 1)
}

func median(x []float64) float64 {
	x = slices.Clone(x)
	slices.SortFunc(x, cmp.Compare)
	return x[(len(x)-1)/2]/2 + x[len(x)/2]/2
}
