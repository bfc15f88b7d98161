package latency

import (
	"errors"
	"fmt"
	"maps"
	"math"
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

// quantile is what the number of samples that s needs follows from.
func (s Stat) quantile() float64 {
	if s.q > 0 {
		return max(s.q, 1-s.q)
	}
	return 0
}

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
	// Obstacles are the reasons why the numbers must not be held against each other; they are printed before any number.
	Obstacles []string
	// Notes are what a reader should know and what does not forbid a comparison.
	Notes []string
	// Pairs has one element for each report after the first.
	Pairs []Pair
}

// Pair is one report, B, against the base, A.
type Pair struct {
	A, B *Report
	Rows []Row
}

// Row is one statistic of a Pair.
type Row struct {
	Stat    Stat
	A, B    float64 // ns
	Verdict Verdict
	P       float64 // chance of such a difference between samples of the same thing
	Lo, Hi  float64 // 99 % confidence interval of B-A, ns; of no meaning where the verdict is Unknown
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
	c := &Comparison{Reports: append([]*Report{base}, others...)}
	for _, r := range c.Reports {
		c.inspect(r)
	}
	for _, r := range others {
		c.obstacles(base, r)
	}
	if slices.ContainsFunc(c.Reports, func(r *Report) bool { return !r.measured() }) {
		return c
	}
	for _, r := range others {
		p := Pair{A: base, B: r}
		for _, st := range Stats {
			p.Rows = append(p.Rows, c.row(st, base, r))
		}
		c.Pairs = append(c.Pairs, p)
	}
	return c
}

func (c *Comparison) row(st Stat, a, b *Report) Row {
	s := significance{P: 1, Why: "not comparable"}
	if len(c.Obstacles) == 0 {
		s = judge(st, a, b)
	}
	return Row{st, st.of(a.Main().Total), st.of(b.Main().Total), s.Verdict, s.P, s.Lo, s.Hi, s.How, s.Why}
}

// measured reports whether there is a main series with anything in it.
func (r *Report) measured() bool { return r.Main() != nil && r.Main().Total.Count > 0 }

// inspect notes what is to be known of one report.
func (c *Comparison) inspect(r *Report) {
	if !r.measured() {
		c.Obstacles = append(c.Obstacles, fmt.Sprintf("%s has no samples", r.Name()))
	}
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
	if s, share := r.ownTail(); share != "" {
		c.Notes = append(c.Notes, fmt.Sprintf("%s: %s (%s)", r.Name(), share, s.Name))
	}
}

// obstacles finds what forbids to hold b against a.
func (c *Comparison) obstacles(a, b *Report) {
	differ := func(what string, x, y any) {
		if x != y {
			c.Obstacles = append(c.Obstacles, fmt.Sprintf("%s: %s has %v, %s has %v", what, a.Name(), orUnknown(x), b.Name(), orUnknown(y)))
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
	if a.Host.Hostname != b.Host.Hostname || a.Host.Kernel != b.Host.Kernel {
		c.Notes = append(c.Notes, fmt.Sprintf("%s was measured on %s (%s), %s on %s (%s)", a.Name(), orUnknown(a.Host.Hostname), orUnknown(a.Host.Kernel),
			b.Name(), orUnknown(b.Host.Hostname), orUnknown(b.Host.Kernel)))
	}
	if len(a.Runs) < minRuns || len(b.Runs) < minRuns {
		c.Notes = append(c.Notes, fmt.Sprintf("fewer than %d runs on a side: what changes from run to run (placement, drift) is not in the confidence; use -runs or -ab", minRuns))
	}
	c.Notes = slices.Compact(c.Notes)
}

func orUnknown(v any) any {
	if s := fmt.Sprint(v); s == "" || s == "0" {
		return "none"
	}
	return v
}

// ownTail says so where the bench's own core lost as much time as the tail of the round trips shows.
func (r *Report) ownTail() (s *Series, share string) {
	s = r.Find(JitterSeries)
	if s == nil || !r.measured() || r.Main() == s {
		return nil, ""
	}
	h := r.Main().Total
	extra := h.Quantile(0.9999) - h.Quantile(0.5)
	if extra <= 0 || s.Total.Max < extra {
		return nil, ""
	}
	return s, fmt.Sprintf("the bench's own core was away for up to %s with no traffic at all: a tail of %s (p99.99 above p50) may be its own",
		FormatNS(float64(s.Total.Max)), FormatNS(float64(extra)))
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
