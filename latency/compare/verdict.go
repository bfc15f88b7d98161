package compare

import (
	"fmt"
	"math"

	"rebound/latency"
)

// Verdict says what a difference is worth.
type Verdict int

const (
	Unknown Verdict = iota // cannot be told
	Noise                  // no more than chance
	Faster
	Slower
)

// Mark is the sign of a verdict in a table: "~" noise, "?" unknown, "-" faster, "+" slower.
func (v Verdict) Mark() string { return [...]string{"?", "~", "-", "+"}[v] }

func (v Verdict) String() string { return [...]string{"unknown", "noise", "faster", "slower"}[v] }

// Row is one statistic of a Pair. Pooled is the statistic of all samples of a side. Typical and all that follows is of the
// runs: half of A's are below Typical, and Shift is by how much B's lie above A's. The two can differ widely where one run
// was slow; a verdict is on Shift.
type Row struct {
	Stat             Stat
	PooledA, PooledB float64 // ns
	Typical          float64 // ns; NaN, as all numbers below, where Why says that there are too few samples
	Shift            float64 // ns, B's runs against A's
	Lo, Hi           float64 // ns, the interval of Shift at 99 %; it holds 0 exactly where the verdict is neither Faster nor Slower
	P                float64 // chance of such a shift between samples of the same thing, drift included
	Verdict          Verdict
	Diffs            []float64 // ns, ascending: the elementary differences whose median Shift is and whose ranks the test counts
	Allowed          float64   // ns of Shift that may be drift, or the bench's own
	How              string    // what the samples were
	Why              string    // why the verdict is Unknown
}

// Tested reports whether there were enough samples to test; a verdict may be Unknown all the same.
func (r Row) Tested() bool { return r.How != "" }

// Percent returns Shift in per cent of Typical; NaN where that is 0.
func (r Row) Percent() float64 {
	if r.Typical == 0 {
		return math.NaN()
	}
	return r.Shift / r.Typical * 100
}

// row judges statistic st between the main series of the two.
func (p *Pair) row(st Stat) Row {
	nan := math.NaN()
	r := Row{Stat: st, PooledA: st.Of(p.A.Main().Total), PooledB: st.Of(p.B.Main().Total), Typical: nan, Shift: nan, Lo: nan, Hi: nan, P: nan}
	if len(p.Obstacles) > 0 {
		r.Why = "not comparable"
		return r
	}
	s, why := collect(st, p.A, p.B)
	if why != "" {
		r.Why = why
		return r
	}
	test := unpaired
	if s.paired {
		test = paired
	}
	t := test(s.a, s.b)
	drift := s.allowed
	s.allowed += p.clocks
	lo, hi := t.interval()
	r.Typical, r.Shift, r.Lo, r.Hi, r.P, r.How = median(s.a), t.estimate(), lo-s.allowed, hi+s.allowed, t.p(s.allowed), s.how
	r.Diffs, r.Allowed = t.diffs, s.allowed
	if s.paired && math.Abs(r.Shift) <= own && (lo > 0 || hi < 0) {
		r.Lo, r.Hi, r.P, r.Allowed = lo-own, hi+own, t.p(own), own
		r.Why = fmt.Sprintf("%s shifted by %s: two series of one bench may differ by %s with nothing changed", st,
			latency.FormatSigned(r.Shift), latency.FormatNS(own))
		return r
	}
	switch {
	case r.Lo > 0:
		r.Verdict = Slower
	case r.Hi < 0:
		r.Verdict = Faster
	case p.clocks > 0 && (lo > 0 || hi < 0):
		r.Why = fmt.Sprintf("%s of a way shifted by %s: what the clocks of both are wrong by may account for %s, drift for %s",
			st, latency.FormatSigned(r.Shift), latency.FormatNS(p.clocks), latency.FormatNS(drift))
	case s.allowed > 0 && (lo > 0 || hi < 0):
		r.Why = fmt.Sprintf("%s shifted by %s, and by what the machine showed, drift may account for %s: measure alternately, with bench run -ab",
			st, latency.FormatSigned(r.Shift), latency.FormatNS(s.allowed))
	default:
		r.Verdict = Noise
	}
	return r
}
