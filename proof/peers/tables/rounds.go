package tables

import (
	"fmt"
	"slices"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/report"
)

// quantile is a quantile with its name.
type quantile struct {
	Name string
	Q    float64
}

// quantiles are the rows of the comparison of peers.
var quantiles = []quantile{{"p50", 0.5}, {"p99", 0.99}, {"p99.9", 0.999}}

// rounds returns the quantile q of each run of a report, in ns.
func rounds(rep *report.Report, q float64) []float64 {
	var out []float64
	for _, run := range rep.Runs {
		var parts []*latency.Histogram
		for _, i := range rep.Main().Intervals {
			// a log read from a file has whole milliseconds
			if middle := (i.Start + i.End) / 2; middle >= run.Start && middle < run.End {
				parts = append(parts, i.Histogram)
			}
		}
		if len(parts) > 0 {
			out = append(out, float64(latency.Merge(parts...).Quantile(q)))
		}
	}
	return out
}

// Spread is the median of some rounds' figures with the minimum and the maximum.
type Spread struct{ Median, Least, Greatest float64 }

// spreadOf returns the zero Spread for no values.
func spreadOf(values []float64) Spread {
	if len(values) == 0 {
		return Spread{}
	}
	v := slices.Sorted(slices.Values(values))
	return Spread{(v[(len(v)-1)/2] + v[len(v)/2]) / 2, v[0], v[len(v)-1]}
}

// Ratio divides a by b round by round: these are adjacent in time, so slow drift cancels out.
func Ratio(a, b []float64) Spread {
	var out []float64
	for i := range min(len(a), len(b)) {
		out = append(out, a[i]/b[i])
	}
	return spreadOf(out)
}

func (s Spread) micros() string {
	return fmt.Sprintf("%.2f (%.2f to %.2f)", s.Median/1e3, s.Least/1e3, s.Greatest/1e3)
}

func (s Spread) ratio() string {
	return fmt.Sprintf("%.2f (%.2f to %.2f)", s.Median, s.Least, s.Greatest)
}
