package report

import (
	"fmt"

	"github.com/rebound-nic/rebound/latency"
)

// OwnTail says so where the bench itself could have made the tail of the round trips, or half of it: by probes that left
// late, and because its core was away, while it measured or else, by its self-test, before.
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
	thin := max(0.0001, 1/float64(h.Count)) // what lies above p99.99
	late := ""
	if lag := r.Find(latency.LagSeries); lag != nil && lag.Total.Count > 0 {
		// A probe that left late by no more than half of its way into the tail did not get there by that.
		if n := lag.Total.CountAbove(tail / 2); float64(n)/float64(lag.Total.Count) >= thin/2 {
			late = fmt.Sprintf("this host sent %s of the probes %s or more after their time, up to %s: from the intended send, that is in p99.99, which lies %s above the median",
				latency.FormatShare(float64(n)/float64(lag.Total.Count)), latency.FormatNS(float64(tail/2)), latency.FormatNS(float64(lag.Total.Max)), latency.FormatNS(float64(tail)))
		}
	}
	if away := r.coreAway(typical, tail, thin); late == "" || away == "" {
		return late + away
	} else {
		return late + "; " + away
	}
}

// coreAway is OwnTail for the gaps of the measuring core.
func (r *Report) coreAway(typical, tail int64, thin float64) string {
	measuring := 0.0 // ns
	for _, run := range r.Runs {
		measuring += float64(run.End - run.Start)
	}
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
		if h := r.Main().Total; r.Traffic.Mode == "closed" && watch.length > 0 {
			// One probe is always under way except for what is between them, and what the gaps took left time for
			// fewer.
			met = float64(gaps) * min(h.Sum/watch.length, 1) / float64(h.Count)
		}
		if met >= thin/2 {
			return fmt.Sprintf("%s the measuring core was away %d times for %s or longer, up to %s: that alone puts %s of round trips %s above the median, as far as p99.99 lies",
				watch.when, gaps, latency.FormatNS(float64(tail)), latency.FormatNS(float64(s.Total.Max)), latency.FormatShare(min(met, 1)), latency.FormatNS(float64(tail)))
		}
	}
	return ""
}
