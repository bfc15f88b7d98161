package latency

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// ErrNotComparable is returned where limits were to be judged on reports whose numbers must not be held against each other.
var ErrNotComparable = errors.New("reports are not comparable")

// Stat names one number of a distribution: "min", "max", "mean", or a percentile, "p99.9".
type Stat struct {
	name string
	q    float64 // percentiles only
}

// Stats are the lines of every comparison. The mean is last: it is no headline for latency.
var Stats = []Stat{{"min", 0}, {"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"p99.9", 0.999}, {"p99.99", 0.9999}, {"max", 0}, {"mean", 0}}

// ParseStat returns the Stat with that name. Percentiles are above 0 and below 100.
func ParseStat(s string) (Stat, error) {
	for _, st := range Stats {
		if st.name == s {
			return st, nil
		}
	}
	if p, ok := strings.CutPrefix(s, "p"); ok && strings.Trim(p, "0123456789.") == "" {
		if v, err := strconv.ParseFloat(p, 64); err == nil && v > 0 && v < 100 {
			return Stat{s, v / 100}, nil
		}
	}
	return Stat{}, fmt.Errorf("%q is none of min, max, mean, or a percentile like p99.9", s)
}

func (s Stat) String() string { return s.name }

// needs returns the number of samples below which the statistic is luck: minTail of them on the percentile's thin side.
func (s Stat) needs() int64 {
	if s.q == 0 {
		return minTail
	}
	return int64(math.Ceil(minTail/(1-max(s.q, 1-s.q)) - 1e-3))
}

// extreme reports whether the statistic is a single sample: it grows with their number, so what is found in intervals
// tells whether it differs, not by how much.
func (s Stat) extreme() bool { return s.name == "min" || s.name == "max" }

func (s Stat) of(h *Histogram) float64 {
	switch s.name {
	case "min":
		return float64(h.Min)
	case "max":
		return float64(h.Max)
	case "mean":
		return h.Mean()
	}
	return float64(h.Quantile(s.q))
}

// Comparison holds several reports against the first of them.
type Comparison struct {
	Reports []*Report
	// Obstacles are the reasons why numbers must not be held against each other, of all pairs; they are printed before
	// any number.
	Obstacles []string
	// Notes are what a reader should know and what does not forbid a comparison.
	Notes []string
	// Pairs has one element for each report after the first.
	Pairs []Pair
}

// Pair is one report, B, against the base, A.
type Pair struct {
	A, B      *Report
	Obstacles []string // why these two must not be compared: their Rows then carry no verdict
	Rows      []Row
}

// Row is one statistic of a Pair.
type Row struct {
	Stat    Stat
	A, B    float64 // ns
	Verdict Verdict
	P       float64 // chance of such a difference between samples of the same thing
	Lo, Hi  float64 // 99 % confidence interval of B-A, ns; none where the verdict is Unknown, NaN for min and max
	How     string  // what the samples were
	Why     string  // why the verdict is Unknown
}

// Diff returns B-A in ns.
func (r Row) Diff() float64 { return r.B - r.A }

// Percent returns B-A in per cent of A; NaN where A is 0.
func (r Row) Percent() float64 {
	if r.A == 0 {
		return math.NaN()
	}
	return (r.B/r.A - 1) * 100
}

// Compare holds others against base.
func Compare(base *Report, others ...*Report) *Comparison {
	c := &Comparison{Reports: distinct(append([]*Report{base}, others...))}
	base, others = c.Reports[0], c.Reports[1:]
	for _, r := range c.Reports {
		c.inspect(r)
	}
	for _, r := range others {
		p := Pair{A: base, B: r, Obstacles: obstacles(base, r)}
		c.Obstacles = append(c.Obstacles, p.Obstacles...)
		c.Notes = append(c.Notes, differences(base, r)...)
		if base.measured() && r.measured() {
			for _, st := range Stats {
				p.Rows = append(p.Rows, p.row(st))
			}
		}
		c.Pairs = append(c.Pairs, p)
	}
	slices.Sort(c.Notes)
	c.Notes = slices.Compact(c.Notes)
	return c
}

// distinct gives reports of the same name, of one target before and after a change, the names of their folders as well.
func distinct(all []*Report) []*Report {
	count := map[string]int{}
	for _, r := range all {
		count[r.Name()]++
	}
	out := slices.Clone(all)
	for i, r := range all {
		if count[r.Name()] > 1 && r.Dir != "" && r.Label != "" {
			named := *r
			named.Label = fmt.Sprintf("%s (%s)", r.Name(), filepath.Clean(r.Dir))
			out[i] = &named
		}
	}
	return out
}

func (p *Pair) row(st Stat) Row {
	s := significance{P: 1, Why: "not comparable"}
	if len(p.Obstacles) == 0 {
		s = judge(st, p.A, p.B)
	}
	if st.extreme() {
		s.Lo, s.Hi = math.NaN(), math.NaN()
	}
	return Row{st, st.of(p.A.Main().Total), st.of(p.B.Main().Total), s.Verdict, s.P, s.Lo, s.Hi, s.How, s.Why}
}

// measured reports whether there is a main series with anything in it.
func (r *Report) measured() bool { return r.Main() != nil && r.Main().Total.Count > 0 }

// inspect notes what is to be known of one report.
func (c *Comparison) inspect(r *Report) {
	if r.Device.Sim() {
		c.Notes = append(c.Notes, fmt.Sprintf("%s ran on a device model: its nanoseconds are the model's, not a card's; compare its bus transactions", r.Name()))
	}
	if !r.Clock.Steady && r.Clock.Source != "" {
		c.Notes = append(c.Notes, fmt.Sprintf("%s was timed by a clock of no constant rate", r.Name()))
	}
	for _, f := range r.Host.Findings {
		if f.Severity == "serious" {
			c.Notes = append(c.Notes, fmt.Sprintf("%s: %s", r.Name(), f.What))
		}
	}
	if own := r.ownTail(); own != "" {
		c.Notes = append(c.Notes, fmt.Sprintf("%s: %s", r.Name(), own))
	}
}

// obstacles finds what forbids to hold b against a.
func obstacles(a, b *Report) (out []string) {
	for _, r := range []*Report{a, b} {
		if !r.measured() {
			out = append(out, fmt.Sprintf("%s has no samples", r.Name()))
		}
	}
	differ := func(what string, x, y any) {
		if x != y {
			out = append(out, fmt.Sprintf("%s: %s has %v, %s has %v", what, a.Name(), orNone(x), b.Name(), orNone(y)))
		}
	}
	differ("metric", a.Metric, b.Metric)
	differ("protocol", a.Traffic.Protocol, b.Traffic.Protocol)
	differ("IP version", a.Traffic.IPVersion, b.Traffic.IPVersion)
	differ("frame size", a.Traffic.FrameSize, b.Traffic.FrameSize)
	differ("mode", a.Traffic.Mode, b.Traffic.Mode)
	differ("rate", a.Traffic.Rate, b.Traffic.Rate)
	differ("outstanding requests", a.Traffic.Outstanding, b.Traffic.Outstanding)
	differ("transport", a.Traffic.Transport, b.Traffic.Transport)
	if a.Device.Sim() != b.Device.Sim() {
		differ("backend", a.Device.Backend, b.Device.Backend)
	}
	return out
}

// differences notes what makes a difference harder to read, without forbidding it. What an anonymous report leaves out is
// unknown, which is no difference.
func differences(a, b *Report) (out []string) {
	x, y := a.Host, b.Host
	hidden := a.Anonymous || b.Anonymous
	if hidden {
		x.Kernel, y.Kernel = kernelVersion(x.Kernel), kernelVersion(y.Kernel)
	}
	known := x.Hostname != "" && y.Hostname != ""
	switch {
	case x.Hostname != y.Hostname && (known || !hidden) || x.Kernel != y.Kernel:
		out = append(out, fmt.Sprintf("%s was measured on %s (%s), %s on %s (%s)", a.Name(), a.machine(), orNone(x.Kernel), b.Name(), b.machine(), orNone(y.Kernel)))
	case hidden && !known:
		out = append(out, fmt.Sprintf("%s or %s leaves its machine unnamed: both may come from one, or from two", a.Name(), b.Name()))
	}
	if x.Cmdline != "" && y.Cmdline != "" {
		if onlyA, onlyB := apart(x.Cmdline, y.Cmdline); onlyA+onlyB != "" {
			out = append(out, fmt.Sprintf("kernel command line: only %s has %s, only %s has %s", a.Name(), orNone(onlyA), b.Name(), orNone(onlyB)))
		}
	}
	if len(a.Runs) < minRuns || len(b.Runs) < minRuns {
		out = append(out, fmt.Sprintf("fewer than %d runs on a side: the confidence leaves out what changes from run to run, placement and drift; -runs and -ab take it in", minRuns))
	}
	return out
}

// machine is the host's name for a note.
func (r *Report) machine() any {
	if r.Anonymous && r.Host.Hostname == "" {
		return "a machine left unnamed"
	}
	return orNone(r.Host.Hostname)
}

// apart returns the words that only one of two texts has.
func apart(a, b string) (onlyA, onlyB string) {
	x, y := strings.Fields(a), strings.Fields(b)
	less := func(from, by []string) string {
		return strings.Join(slices.DeleteFunc(slices.Clone(from), func(w string) bool { return slices.Contains(by, w) }), " ")
	}
	return less(x, y), less(y, x)
}

func orNone(v any) any {
	if s := fmt.Sprint(v); s == "" || s == "0" {
		return "none"
	}
	return v
}

// ownTail says so where the measuring core was away so often and so long that it alone could have made the tail of the
// round trips, or half of it: while it measured, or else, by its self-test, before.
func (r *Report) ownTail() string {
	if r.Metric != RoundTrip || !r.measured() {
		return ""
	}
	h := r.Main().Total
	typical := h.Quantile(0.5)
	tail := h.Quantile(0.9999) - typical
	if tail <= 0 {
		return ""
	}
	measuring := 0.0 // ns
	for _, run := range r.Runs {
		measuring += float64(run.End - run.Start)
	}
	thin := max(0.0001, 1/float64(h.Count)) // what lies above p99.99
	for _, watch := range []struct {
		series, when string
		length       float64
	}{{GapSeries, "while it measured", measuring}, {JitterSeries, "with no traffic at all", 0}} {
		s := r.Find(watch.series)
		if s == nil || s.Total.Sum == 0 {
			continue
		}
		met, gaps := 0.0, int64(0)
		for b := range s.Total.Buckets {
			if b.Low < tail {
				continue
			}
			gaps += b.Count
			// A gap hits the one round trip that it begins in. In an open loop it also hits those that should have begun
			// in it, while enough of it was left.
			hit := typical
			if r.Traffic.Mode == "open" {
				hit += b.Low - tail
			}
			met += float64(b.Count) * float64(hit)
		}
		met /= max(watch.length, s.Total.Sum)
		if met >= thin/2 {
			return fmt.Sprintf("%s the measuring core was away %d times for %s or longer, up to %s: that alone puts %.2g %% of round trips %s above the median, as far as p99.99 lies",
				watch.when, gaps, FormatNS(float64(tail)), FormatNS(float64(s.Total.Max)), min(met, 1)*100, FormatNS(float64(tail)))
		}
	}
	return ""
}

// transferKinds returns the kinds of bus transactions that any report counted, sorted.
func (c *Comparison) transferKinds() []string {
	kinds := map[string]bool{}
	for _, r := range c.Reports {
		for k := range r.Transfers {
			kinds[k] = true
		}
	}
	return slices.Sorted(maps.Keys(kinds))
}

// perReply returns the bus transactions of one kind that one reply cost.
func (r *Report) perReply(kind string) float64 {
	return float64(r.Transfers[kind]) / float64(max(r.Counts.Received, 1))
}
