package compare

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/rebound-nic/rebound/latency"
)

// Verdict is the conclusion of a test.
type Verdict int

const (
	Unknown Verdict = iota // not decidable
	Noise                  // no more than chance
	Faster
	Slower
)

// Mark is the symbol of a verdict in a table: "~" noise, "?" unknown, "-" faster, "+" slower.
func (v Verdict) Mark() string { return [...]string{"?", "~", "-", "+"}[v] }

// String is the verdict in words.
func (v Verdict) String() string {
	return [...]string{"cannot tell", "no change seen", "faster", "slower"}[v]
}

// Class is the verdict's class in style sheets.
func (v Verdict) Class() string { return [...]string{"unknown", "noise", "faster", "slower"}[v] }

// Row is one statistic of a Pair. Pooled is the statistic of all samples of a side. All other fields are computed from
// the runs: Shift is how far B's runs are above A's. The two can differ widely if one run was slow; the verdict is
// about Shift.
type Row struct {
	Stat             Stat
	Asked            bool    // named by a limit, so chosen before the result was seen
	PooledA, PooledB float64 // ns
	// ns, B's runs compared with A's; NaN, like all numbers below, if there are too few samples (see Why)
	Shift float64
	Base  float64 // ns, A's value that Shift is relative to; Base + Shift is B's, and not below 0
	Level float64 // probability of a false verdict in this row: its part of tableLevel
	// ns, the interval of Shift at 1 - Level; it contains 0 exactly if the verdict is neither Faster nor Slower
	Lo, Hi float64
	// probability, under the null hypothesis with drift, that any row of the table is as extreme as this one; at most
	// tableLevel if there is a verdict
	P       float64
	Least   float64 // ns, the smallest change that these samples could have shown; infinite if none
	Verdict Verdict
	// ns, ascending: the elementary differences between each run of B and each of A, whose median is Shift
	Diffs      []float64
	Allowed    float64 // ns of Shift that may be drift or caused by the bench
	Resolution float64 // of the values, as a share of Base; a smaller Shift is not resolved
	How        string  // description of the samples
	Why        string  // why the verdict is Unknown

	apart bool // the two sides were measured one after the other
}

// Tested reports whether there were enough samples to test; the verdict may still be Unknown.
func (r Row) Tested() bool { return r.How != "" }

// Percent returns Shift in per cent of Base, never below -100; NaN if Base is 0.
func (r Row) Percent() float64 { return r.percent(r.Shift) }

// Visible formats Least in per cent of Base, or in ns if a percentage would not be useful.
func (r Row) Visible() string {
	switch v := r.percent(r.Least); {
	case math.IsInf(r.Least, 0):
		return "none"
	case math.IsNaN(v), v > 100*latency.MostPercent:
		return latency.FormatNS(r.Least)
	default:
		return latency.FormatShare(v / 100)
	}
}

func (r Row) percent(ns float64) float64 {
	if r.Base == 0 {
		return math.NaN()
	}
	return ns / r.Base * 100
}

const (
	// tableLevel is the probability that a comparison of two identical things has any verdict.
	tableLevel = 0.05
	// askedLevel is the greatest part of it that one requested row gets, and askedShare the greatest part that all of
	// them get.
	askedLevel, askedShare = 0.01, 0.04
)

// levels divides tableLevel among the rows of a table (Bonferroni): requested rows get the greater part. The rows
// depend on each other, so the true probability is lower, but their intervals hold simultaneously, and each agrees with
// the verdict of its row. A step-down method (Holm) would find slightly more, without such intervals.
func levels(asked, all int) (named, other float64) {
	if asked > 0 {
		named = min(askedLevel, askedShare/float64(asked))
	}
	return named, (tableLevel - named*float64(asked)) / float64(max(all-asked, 1))
}

// row tests statistic st of the two main series at a level.
func (p *Pair) row(st Stat, level float64) Row {
	nan := math.NaN()
	r := Row{Stat: st, Level: level, PooledA: st.OfReport(p.A), PooledB: st.OfReport(p.B), Base: nan, Shift: nan,
		Lo: nan, Hi: nan, P: nan, Least: nan}
	if len(p.Obstacles) > 0 {
		r.Why = "not comparable"
		return r
	}
	s, why := p.collect(st, level)
	if why != "" {
		r.Why = why
		return r
	}
	method := unpaired
	if s.paired {
		method = paired
	}
	t := method(s.a, s.b)
	r.Shift, r.Base = t.estimate()
	r.How, r.apart, r.Resolution, r.Diffs = s.how, s.apart, max(p.A.Resolution, p.B.Resolution), t.differences()
	grain := r.Resolution * r.Base
	lo, hi := t.interval(level, s.allowed+p.clocks+grain)
	judge := func(allowed float64) {
		r.Lo, r.Hi, r.Allowed = lo-allowed, hi+allowed, allowed
		r.P = min(1, t.p(allowed)*tableLevel/level)
		if r.Least = max(r.Hi-r.Shift, r.Shift-r.Lo); s.paired {
			r.Least = max(r.Least, own)
		}
	}
	judge(s.allowed + p.clocks + grain)
	significant := lo > 0 || hi < 0
	switch shift := latency.FormatSigned(r.Shift); {
	case significant && math.IsInf(s.allowed, 1):
		r.Why = fmt.Sprintf("%s shifted by %s, but an older version measured these reports in a fixed order, where a periodic disturbance looks like a difference: measure again with rebound-bench run -ab",
			st, shift)
	case significant && s.paired && math.Abs(r.Shift) <= own:
		judge(max(own, s.allowed+p.clocks+grain))
		r.Why = fmt.Sprintf("%s shifted by %s: two series of one bench may differ by %s with nothing changed", st,
			shift, latency.FormatNS(own))
	case r.Lo > 0:
		r.Verdict = Slower
	case r.Hi < 0:
		r.Verdict = Faster
	case significant && p.clocks > 0:
		r.Why = fmt.Sprintf("%s of a way shifted by %s, but clock error may account for %s, and drift for %s", st,
			shift, latency.FormatNS(p.clocks), latency.FormatNS(s.allowed))
	case significant && math.Abs(r.Shift) <= grain:
		r.Why = fmt.Sprintf("%s shifted by %s, and its values are only known to %s", st, shift, latency.FormatNS(grain))
	case significant:
		r.Why = fmt.Sprintf("%s shifted by %s, but drift between runs one after the other may account for %s: measure alternately, with rebound-bench run -ab",
			st, shift, latency.FormatNS(s.allowed))
	default:
		r.Verdict = Noise
	}
	return r
}

// Visible says which changes the rows without a verdict could have shown, and how to see smaller ones. It is empty if
// there is no such row.
func (p *Pair) Visible() string {
	var parts []string
	apart, fixed := false, false
	for _, r := range p.Rows {
		if !r.Tested() || r.Verdict > Noise || r.Stat.Single() {
			continue
		}
		apart, fixed = apart || r.apart, fixed || math.IsInf(r.Least, 1)
		parts = append(parts, r.Stat.String()+" "+r.Visible())
	}
	switch {
	case fixed:
		return "slices in a fixed order cannot show any change: measure again with rebound-bench run -ab, which draws the order at random"
	case len(parts) == 0:
		return ""
	case apart:
		return "runs one after the other could only have shown a change above: " + strings.Join(parts, ", ") +
			"; to see smaller ones, measure alternately with rebound-bench run -ab"
	}
	return "only a change above this could have been seen: " + strings.Join(parts, ", ") +
		"; to see smaller ones, measure longer"
}

// Untested describes how the pooled percentiles differ if nothing could be tested because another tool's output lacks
// data. Otherwise it is empty.
func (p *Pair) Untested() string {
	if p.A.Foreign == nil && p.B.Foreign == nil || len(p.Obstacles) > 0 || slices.ContainsFunc(p.Rows, Row.Tested) {
		return ""
	}
	var parts []string
	for _, r := range p.Rows {
		if d := r.PooledB - r.PooledA; !math.IsNaN(d) {
			text := r.Stat.String() + " " + latency.FormatSigned(d)
			if r.PooledA > 0 {
				text += " (" + latency.FormatChange(d/r.PooledA) + ")"
			}
			parts = append(parts, text)
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return "B minus A, not tested: " + strings.Join(parts, ", ")
}

// Confidence describes the intervals of the pair's rows.
func (p *Pair) Confidence() string {
	if len(p.Rows) == 0 {
		return ""
	}
	percent := func(level float64) string {
		digits := 1
		if level < 0.002 {
			digits = 2
		}
		return strconv.FormatFloat(100*(1-level), 'f', digits, 64) + " %"
	}
	asked, other := "", ""
	for _, r := range p.Rows {
		if r.Asked {
			asked = percent(r.Level)
		} else {
			other = percent(r.Level)
		}
	}
	each := other + " each"
	switch {
	case asked != "" && other != "":
		each = asked + " for each row that -fail-if names, " + other + " for each other row"
	case asked != "":
		each = asked + " each"
	}
	text := fmt.Sprintf("intervals are at %s, so that at most %s of tables without a real change show any + or -; p is adjusted for that", each, latency.FormatShare(tableLevel))
	if n := p.tests(); n > 1 {
		text += fmt.Sprintf(" and for %d tests, any of which could end the measurement (-auto)", n)
	}
	return text
}
