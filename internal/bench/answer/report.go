package answer

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/latency/sanitize"
)

// ErrNothing means that a Prometheus has no such series, or no data in it.
var ErrNothing = errors.New("Prometheus has no data")

// Report makes a report from a histogram that was read at from, and every step after it: each non-empty window is
// a run.
func Report(moments []Moment, from time.Time, step time.Duration, windows int) (*report.Report, error) {
	out := &report.Report{Schema: report.Schema, Tool: "bench", Metric: report.RoundTrip, Start: from,
		End:      from.Add(time.Duration(windows) * step),
		Interval: step.Nanoseconds()}
	main := &latency.Series{Name: latency.MainSeries}
	resets, coarser := 0, 0
	for i := 1; i < len(moments); i++ {
		a, b := &moments[i-1], &moments[i]
		if b.At.Sub(a.At) > step*3/2 { // a window without a scrape
			continue
		}
		h, width, err := difference(a, b)
		switch {
		case err == errReset:
			resets++
			continue
		case err == errCoarser:
			coarser++
			continue
		}
		if h.Count == 0 {
			continue
		}
		out.Resolution = max(out.Resolution, width)
		iv := latency.Interval{Start: a.At.Sub(from).Nanoseconds(), End: b.At.Sub(from).Nanoseconds(), Histogram: h}
		main.Intervals = append(main.Intervals, iv)
		out.Runs = append(out.Runs, latency.Run{Start: iv.Start, End: iv.End})
	}
	if len(main.Intervals) == 0 {
		return nil, fmt.Errorf("%w: no round trip was counted from %s to %s", ErrNothing,
			from.UTC().Format(time.RFC3339), out.End.UTC().Format(time.RFC3339))
	}
	if resets > 0 {
		out.Notes = append(out.Notes, "left out "+sanitize.Count(resets, "window")+
			" in which the watch was started again")
	}
	if coarser > 0 {
		out.Notes = append(out.Notes, "left out "+sanitize.Count(coarser, "window")+
			" in which the resolution of the histogram changed")
	}
	main.Sum()
	out.Series = []*latency.Series{main}
	return out, nil
}

var (
	errReset   = errors.New("counter reset")
	errCoarser = errors.New("other buckets")
)

// difference is what was counted between two moments, with each value at the middle of its bucket, and the width of the
// widest bucket.
func difference(a, b *Moment) (h *latency.Histogram, width float64, err error) {
	if b.Count < a.Count {
		return nil, 0, errReset
	}
	type bounds struct{ low, high float64 }
	before := map[bounds]float64{}
	for _, k := range a.Buckets {
		before[bounds{k.Low, k.High}] = k.Count
	}
	var values, counts []int64
	for _, k := range b.Buckets {
		at := bounds{k.Low, k.High}
		n := k.Count - before[at]
		delete(before, at)
		if n < 0 {
			return nil, 0, errReset
		}
		if n == 0 {
			continue
		}
		low := max(k.Low, 0)
		values, counts = append(values, int64(math.Round(min((low+k.High)/2*1e9, math.MaxInt64/2)))),
			append(counts, int64(math.Round(n)))
		if low > 0 {
			width = max(width, (k.High-low)/k.High)
		}
	}
	for _, n := range before {
		if n > 0 { // a bucket that no longer exists
			return nil, 0, errCoarser
		}
	}
	return latency.FromCounts(values, counts), width, nil
}
