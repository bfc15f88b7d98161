package compare

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/report"
)

// Stat is one of latency.Stats, or any other percentile, "p99.95".
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

// Stats returns the statistics that a kind of table shows, in their order.
func Stats(in latency.Tables) (all []Stat) {
	for _, s := range latency.Stats {
		if s.In&in != 0 {
			all = append(all, Stat{s.Name, s.Quantile})
		}
	}
	return all
}

// ParseStat returns the Stat with that name. Percentiles are above 0 and below 100.
func ParseStat(name string) (Stat, error) {
	if s := latency.FindStat(name); s != nil {
		return Stat{s.Name, s.Quantile}, nil
	}
	if p, ok := strings.CutPrefix(name, "p"); ok && strings.Trim(p, "0123456789.") == "" {
		if v, err := strconv.ParseFloat(p, 64); err == nil && v > 0 && v < 100 {
			return Stat{name, v / 100}, nil
		}
	}
	return Stat{}, fmt.Errorf("%q is none of min, max, mean, or a percentile like p99.9", name)
}

func (s Stat) String() string { return s.name }

// Quantile returns the percentile as a fraction of 1, and whether the statistic is one.
func (s Stat) Quantile() (q float64, ok bool) { return s.q, s.q > 0 }

// OfReport returns the statistic of all samples of a report, in ns; NaN where another tool's output does not have it.
func (s Stat) OfReport(r *report.Report) float64 {
	least, greatest, mean := r.Extremes()
	switch {
	case s == Min:
		return least
	case s == Max:
		return greatest
	case s == Mean:
		return mean
	case s.q > 0:
		return r.Quantile(s.q)
	case r.Foreign.Partial():
		return math.NaN()
	}
	return s.Of(r.Main().Total)
}

// OfSummary returns the statistic from a summary, in ns. A summary has only latency.Stats: NaN for other percentiles.
func (s Stat) OfSummary(m *latency.Summary) float64 {
	if listed := latency.FindStat(s.name); listed != nil {
		return listed.Of(m)
	}
	return math.NaN()
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
	if s.q > 0 {
		return float64(h.Quantile(s.q))
	}
	m := latency.Summary{Min: h.Min, Max: h.Max, Mean: h.Mean()}
	if s != Min && s != Max && s != Mean {
		m = h.Summary()
	}
	return s.OfSummary(&m)
}
