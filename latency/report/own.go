package report

import (
	"fmt"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/sanitize"
)

// OwnTail returns a sentence if the bench itself could have caused at least half of the tail of the round trips: by
// sending probes late, or because its thread was descheduled during the measurement or, according to the self-test,
// before it. Otherwise it returns "".
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
	thin := max(0.0001, 1/float64(h.Count)) // the share above p99.99
	late := ""
	if lag := r.Find(latency.LagSeries); lag != nil {
		// A delay of less than half the tail does not explain it. Of no probes the share is NaN, which is not enough.
		if n := lag.Total.CountAbove(tail / 2); float64(n)/float64(lag.Total.Count) >= thin/2 {
			late = fmt.Sprintf("this host sent %s of the probes %s or more late, at most %s: that alone accounts for p99.99 from the intended send, %s above the median",
				latency.FormatShare(float64(n)/float64(lag.Total.Count)), latency.FormatNS(float64(tail/2)),
				latency.FormatNS(float64(lag.Total.Max)), latency.FormatNS(float64(tail)))
		}
	}
	if away := r.coreAway(typical, tail, thin); late == "" || away == "" {
		return late + away
	} else {
		return late + "; " + away
	}
}

// OwnPercentiles names the percentiles of the round trips that this host's own lag accounts for.
func (r *Report) OwnPercentiles() (names []string) {
	for _, s := range latency.Stats {
		if s.Quantile > 0 && r.OwnAt(s.Quantile) {
			names = append(names, s.Name)
		}
	}
	return names
}

// OwnAt reports whether this host's own lag accounts for a percentile: for at least half of what it lies above the
// median from the actual send, and for 5 % of its value. The host sent probes late, or the measuring thread was
// descheduled.
func (r *Report) OwnAt(q float64) bool {
	return r.LateAt(q) || r.awayAt(q)
}

// LateAt is OwnAt for probes that were sent late: without that, the percentile would be that from the actual send.
func (r *Report) LateAt(q float64) bool {
	sent := r.Find(latency.UncorrectedSeries)
	if r.Metric != RoundTrip || r.Foreign != nil || !r.Measured() || sent == nil || sent.Total.Count == 0 {
		return false
	}
	v := r.Main().Total.Quantile(q)
	own, above := v-sent.Total.Quantile(q), v-sent.Total.Quantile(0.5)
	return own > 0 && own >= above/2 && own >= v/20
}

// awayAt is OwnAt for a descheduled thread.
func (r *Report) awayAt(q float64) bool {
	if r.Metric != RoundTrip || r.Foreign != nil || !r.Measured() {
		return false
	}
	h := r.Main().Total
	typical := h.Quantile(0.5)
	tail := h.Quantile(q) - typical
	return tail > 0 && tail >= h.Quantile(q)/20 && r.coreAway(typical, tail, max(1-q, 1/float64(h.Count))) != ""
}

// coreAway is the part of OwnTail about gaps of the measuring thread.
func (r *Report) coreAway(typical, tail int64, thin float64) string {
	measuring := 0.0 // ns
	for _, run := range r.Runs {
		measuring += float64(run.End - run.Start)
	}
	for _, watch := range []struct {
		series, when string
		length       float64
	}{{latency.GapSeries, "while measuring", measuring}, {latency.JitterSeries, "in the self-test, without traffic",
		0}} {
		s := r.Find(watch.series)
		if s == nil {
			continue
		}
		met, gaps := 0.0, int64(0)
		for b := range s.Total.Buckets {
			if b.Low < tail {
				continue
			}
			gaps += b.Count
			// A gap delays the round trip during which it starts. In an open loop it also delays the round trips that
			// should have started during the gap, if the remaining gap was long enough.
			hit := typical
			if r.Traffic.Mode == "open" {
				hit += b.Low - tail
			}
			met += float64(b.Count) * float64(hit)
		}
		met /= max(watch.length, s.Total.Sum)
		if h := r.Main().Total; r.Traffic.Mode == "closed" && watch.length > 0 {
			// One probe is always outstanding, except between probes, and fewer probes fit between the gaps.
			met = float64(gaps) * min(h.Sum/watch.length, 1) / float64(h.Count)
		}
		if met >= thin/2 {
			return fmt.Sprintf("the measuring thread was descheduled %s for %s or longer, at most %s, %s: these pauses alone account for p99.99 (%s of round trips)",
				sanitize.Count(gaps, "time"), latency.FormatNS(float64(tail)), latency.FormatNS(float64(s.Total.Max)),
				watch.when, latency.FormatShare(min(met, 1)))
		}
	}
	return ""
}
