package latency

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/random"
)

// agrees compares a histogram with the values in it, which it sorts.
func agrees(t *testing.T, what string, h *Histogram, values []int64) {
	t.Helper()
	sum := 0.0
	for i, v := range values {
		values[i] = max(v, 0)
		sum += float64(values[i])
	}
	slices.Sort(values)
	n := len(values)
	if check.Equal(t, h.Count, int64(n), what+": %d values"); n == 0 {
		check.Equal(t, h.Quantile(0.5), 0, what+": empty, with a median of %d")
		return
	}
	check.Equal(t, h.Min, values[0], what+": min %d")
	check.Equal(t, h.Max, values[n-1], what+": max %d")
	if got := h.Mean(); math.Abs(got-sum/float64(n)) > 1e-9*sum {
		t.Errorf("%s: mean %v, want %v", what, got, sum/float64(n))
	}
	// in the bucket of the value of that rank, which is not above it by more than a bucket
	for rank := 1; rank <= n; rank += 1 + n/50 {
		v, got := values[rank-1], h.Quantile(float64(rank)/float64(n))
		if b := countsIndex(v); got < v && v <= highestValue || got > v && got > highestOf(b) || got > h.Max {
			t.Fatalf("%s: value %d of %d is %d, want %d to %d", what, rank, n, got, v, highestOf(b))
		}
		above := n - sortedAfter(values, highestOf(countsIndex(v)))
		if highestOf(countsIndex(v)) >= highestValue { // the last bucket has all that are above it
			above = 0
		}
		must.Equal(t, h.CountAbove(v), int64(above), what+": %d are above a value")
	}
	check.Equal(t, h.Quantile(0), h.Quantile(1/float64(n)), what+": quantile 0 is %d")
	check.Equal(t, h.CountAbove(0), int64(n-sortedAfter(values, 0)), what+": %d are above 0")
	check.Equal(t, cap(h.index)+cap(h.count), 2*h.Counters(), what+": memory for %d counters")
	counted, last := int64(0), int64(-1)
	for b := range h.Buckets {
		from, to := sortedAfter(values, b.Low-1), sortedAfter(values, b.High)
		if b.High >= highestValue {
			to = n
		}
		if b.Low <= last || b.Count != int64(to-from) {
			t.Fatalf("%s: bucket %+v after %d has %d of the values", what, b, last, to-from)
		}
		last, counted = b.High, counted+b.Count
	}
	check.Equal(t, counted, h.Count, what+": %d values in all buckets")
	hdr := hdrhistogram.New(lowestValue, highestValue, digits)
	for _, v := range values {
		must.OK(t, hdr.RecordValue(min(v, highestValue)))
	}
	check.Equal(t, h.HDR().Equals(hdr), true, what+": equal to HdrHistogram's: %t")
}

// sortedAfter is the number of values up to v.
func sortedAfter(values []int64, v int64) int {
	i, _ := slices.BinarySearch(values, v+1)
	return i
}

// However values are divided between runs, intervals and histograms, each of these agrees with the sorted values.
func TestHistogramsAgreeWithSortedValues(t *testing.T) {
	rnd := random.New(t)
	for range 50 {
		values := random.Nanoseconds(rnd, rnd.IntN(1<<rnd.IntN(10)))
		agrees(t, "FromValues", FromValues(values), slices.Clone(values))
		var parts []*Histogram
		for rest := values; len(rest) > 0; {
			n := 1 + rnd.IntN(len(rest))
			parts, rest = append(parts, FromValues(nil), FromValues(rest[:n])), rest[n:]
		}
		agrees(t, "Merge", Merge(parts...), slices.Clone(values))
		half := rnd.IntN(len(values) + 1)
		agrees(t, "Merge of two", Merge(FromValues(values[:half]), FromValues(values[half:])), slices.Clone(values))
		var tally Tally
		for _, v := range values {
			tally.Record(v)
		}
		agrees(t, "Tally", tally.Histogram(), values)
	}
}

func TestRecorderAgreesWithSortedValues(t *testing.T) {
	rnd := random.New(t)
	for range 3 {
		every := 10 * time.Millisecond * time.Duration(1+rnd.IntN(5))
		r := must.Get(NewRecorder(testClock(), RecorderOptions{OpenLoop: true, Interval: every}))(t)
		extra := r.Track(HardwareSeries)
		at := 1 + rnd.Uint64N(1<<40)
		origin := at
		var sent, intended, other []int64
		ends := map[int64][]int64{} // round trips by the time when their replies came, from the origin
		for range 1 + rnd.IntN(3) {
			begin := at
			r.Begin(begin)
			for _, ns := range random.Nanoseconds(rnd, rnd.IntN(300)) {
				wait := rnd.Uint64N(1 << rnd.IntN(30))
				rtt := uint64(max(ns, 0)) & (1<<28 - 1)
				at += wait + rtt
				if rnd.IntN(4) == 0 { // exactly at the end of an interval
					at += uint64(every) - (at-begin)%uint64(every)
				}
				r.Record(at-rtt-wait, at-rtt, at)
				extra.Record(at, ns)
				sent, intended, other = append(sent, int64(rtt)), append(intended, int64(rtt+wait)), append(other, ns)
				ends[int64(at-origin)] = append(ends[int64(at-origin)], int64(rtt))
			}
			at += rnd.Uint64N(1 << 30)
			r.End(at)
			at += rnd.Uint64N(1 << 30)
			r.Record(at-1, at-1, at) // between runs
		}
		series := r.Recording().Series
		for i, values := range [][]int64{intended, sent, other} {
			agrees(t, series[i].Name, series[i].Total, values)
		}
		seen := 0
		for i, iv := range series[1].Intervals {
			var values []int64
			for at, v := range ends {
				last := i+1 == len(series[1].Intervals) || series[1].Intervals[i+1].Start != iv.End
				if at >= iv.Start && (at < iv.End || last && at == iv.End) {
					values = append(values, v...)
				}
			}
			agrees(t, "interval", iv.Histogram, values)
			seen += len(values)
		}
		check.Equal(t, seen, len(sent), "%d values in all intervals")
	}
}
