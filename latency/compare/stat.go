package compare

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/report"
)

// Stat is a statistic of a distribution: "min", "max", "mean", or a percentile, "p99.9".
type Stat struct {
	name string
	q    float64 // percentiles only
}

// Statistics with special treatment.
var (
	Min  = Stat{name: "min"}
	Max  = Stat{name: "max"}
	Mean = Stat{name: "mean"}
)

// Stats are the rows of every comparison. The mean is last because it describes latency poorly.
var Stats = []Stat{Min, {"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"p99.9", 0.999}, {"p99.99", 0.9999}, Max, Mean}

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

// Quantile returns the percentile as a fraction of 1, and whether the statistic is one.
func (s Stat) Quantile() (q float64, ok bool) { return s.q, s.q > 0 }

// OfReport returns the statistic of all samples of a report, in ns; NaN where another tool's output does not have it.
func (s Stat) OfReport(r *report.Report) float64 {
	least, greatest, mean := r.Extremes()
	switch s {
	case Min:
		return least
	case Max:
		return greatest
	case Mean:
		return mean
	}
	return r.Quantile(s.q)
}

// OfSummary returns the statistic from a summary, which has only certain percentiles.
func (s Stat) OfSummary(m *latency.Summary) float64 {
	return map[string]float64{"min": float64(m.Min), "p50": float64(m.P50), "p90": float64(m.P90), "p99": float64(m.P99), "p99.9": float64(m.P999),
		"p99.99": float64(m.P9999), "max": float64(m.Max), "mean": m.Mean}[s.name]
}

// Needs returns the number of samples below which the statistic is unreliable: MinTail of them on the percentile's thin
// side.
func (s Stat) Needs() int64 {
	if s.q == 0 {
		return MinTail
	}
	return int64(math.Ceil(MinTail/(1-max(s.q, 1-s.q)) - 1e-3))
}

// Single reports whether the statistic is a single sample: it grows with the number of samples, so a comparison of
// intervals shows whether it differs, but not by how much.
func (s Stat) Single() bool { return s == Min || s == Max }

// MinTail is the number of samples above a percentile below which the percentile is unreliable.
const MinTail = 10

// Of returns the statistic of h, in ns.
func (s Stat) Of(h *latency.Histogram) float64 {
	switch s {
	case Min:
		return float64(h.Min)
	case Max:
		return float64(h.Max)
	case Mean:
		return h.Mean()
	}
	return float64(h.Quantile(s.q))
}
