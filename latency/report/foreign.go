package report

import (
	"fmt"
	"math"

	"github.com/rebound-nic/rebound/latency"
)

// Foreign describes a report that was read from another tool's output: its units, and the limits of that output.
type Foreign struct {
	Format string // "ping output"
	Unit   string // of the file's values, and how it was determined: "ms (printed on each line)"

	Runs   string   // how its runs were made: "16 parts of one measurement"; empty if Single is set
	Single string   // why it counts as one run: "samples have no order in time"
	Timed  bool     // the times of the runs are known, not only their order
	Limits []string // further limits of the format: "percentiles are interpolated"

	// Points is the whole distribution except Min, Max and Mean, which are NaN if the file does not have them. It is
	// nil if the file has more than percentiles.
	Points         []latency.Percentile
	Min, Max, Mean float64 // ns

	// Beyond is the number of samples that the tool counted above its histogram's range, without their values.
	Beyond int64
}

// Lines returns the format and its limits, one sentence per line.
func (f *Foreign) Lines() []string {
	if f == nil {
		return nil
	}
	out := []string{fmt.Sprintf("%s, values in %s", f.Format, f.Unit)}
	switch {
	case f.Points != nil && len(f.Points) == 2 && f.Points[0].Quantile == 0 && f.Points[1].Quantile == 1:
		out = append(out, "only minimum, mean and maximum are known: no verdicts")
	case f.Points != nil:
		out = append(out, "only the listed percentiles are known: no verdicts")
	case f.Single != "":
		out = append(out, "no verdicts, because it counts as one run: "+f.Single)
	default:
		out = append(out, "runs: "+f.Runs)
	}
	if f.Beyond > 0 {
		out = append(out, latency.FormatCount(f.Beyond)+
			" samples or more are above the tool's histogram: percentiles among them are unknown")
	}
	return append(out, f.Limits...)
}

// Partial reports whether f lacks a part of the distribution, so that no curve can be plotted. A nil Foreign lacks
// nothing.
func (f *Foreign) Partial() bool { return f != nil && (f.Points != nil || f.Beyond > 0) }

// Dated reports whether the times of the samples are known. A nil Foreign has them.
func (f *Foreign) Dated() bool { return f == nil || f.Timed }

// Quantile returns the percentile q (0 to 1) of all samples, NaN if another tool's output does not have it.
func (r *Report) Quantile(q float64) float64 {
	total := r.Main().Total
	switch f := r.Foreign; {
	case !f.Partial():
		return float64(total.Quantile(q))
	case f.Points == nil:
		if q*float64(total.Count) > float64(total.Count-f.Beyond) {
			return math.NaN()
		}
		return float64(total.Quantile(q))
	}
	for _, p := range r.Foreign.Points {
		if math.Abs(p.Quantile-q) < 1e-9 {
			return float64(p.Value)
		}
	}
	return math.NaN()
}

// Extremes returns minimum, maximum and mean of all samples in ns, NaN if another tool's output does not have them.
func (r *Report) Extremes() (least, greatest, mean float64) {
	if f := r.Foreign; f.Partial() {
		return f.Min, f.Max, f.Mean
	}
	h := r.Main().Total
	return float64(h.Min), float64(h.Max), h.Mean()
}
