package report

import (
	"fmt"

	"rebound/latency"
)

// OwnTail says so where the measuring core was away so often and so long that it alone could have made the tail of the
// round trips, or half of it: while it measured, or else, by its self-test, before.
func (r *Report) OwnTail() string {
	if r.Metric != RoundTrip || !r.Measured() {
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
	}{{latency.GapSeries, "while it measured", measuring}, {latency.JitterSeries, "with no traffic at all", 0}} {
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
				watch.when, gaps, latency.FormatNS(float64(tail)), latency.FormatNS(float64(s.Total.Max)), min(met, 1)*100, latency.FormatNS(float64(tail)))
		}
	}
	return ""
}
