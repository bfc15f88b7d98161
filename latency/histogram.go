package latency

import (
	"math"
	"math/bits"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/rebound-nic/rebound/polling"
)

// The geometry of every histogram in a report, in HdrHistogram's terms: values from 1 ns to one hour with three
// significant digits, which gives 2048 linear steps in the first bucket and 1024 in each doubling above it.
const (
	lowestValue  = 1
	highestValue = 3_600_000_000_000 // ns
	digits       = 3
	subBits      = 10
	countsLen    = 33 << subBits // 32 buckets reach 2^42 ns, above one hour
)

// The same geometry as in HdrHistogram's text format.
const (
	HDRBuckets    = countsLen>>subBits - 1
	HDRSubBuckets = 2 << subBits
)

// countsIndex returns the index of v's counter in HdrHistogram's counts array. Negative values count as 0, values above
// highestValue as highestValue.
func countsIndex(v int64) int {
	u := uint64(min(max(v, 0), highestValue))
	shift := bits.Len64(u|(2<<subBits-1)) - subBits - 1
	return shift<<subBits + int(u>>shift)
}

// lowestOf and highestOf return the lowest and the highest value of the counter with index i.
func lowestOf(i int) int64 {
	if i < 2<<subBits {
		return int64(i)
	}
	shift := i>>subBits - 1
	return int64(i-shift<<subBits) << shift
}

func highestOf(i int) int64 { return lowestOf(i+1) - 1 }

// Bucket is a non-zero counter of a Histogram.
type Bucket struct {
	Low, High int64 // the range of its values, ns, both inclusive
	Count     int64
}

// Histogram is a finished distribution of nanoseconds: three significant digits, 0 to one hour. Values above an hour
// are counted as an hour; Max is exact. It stores only non-zero counters, so one histogram per second is cheap.
type Histogram struct {
	Count    int64
	Min, Max int64   // exact if recorded here; at the histogram's resolution if read from a .hlog
	Sum      float64 // ns; as exact as Min and Max

	index []int32 // ascending
	count []int64
}

// Quantile returns the value that the fraction q of all values (0 to 1) does not exceed: the highest value of its
// bucket, and at most Max. It is 0 for an empty histogram.
func (h *Histogram) Quantile(q float64) int64 {
	if h.Count == 0 {
		return 0
	}
	// The next lower q prevents 0.99*100, which is slightly more than 99 in floating point, from becoming rank 100.
	rank := max(int64(math.Ceil(math.Nextafter(q, 0)*float64(h.Count))), 1)
	var seen int64
	for i, n := range h.count {
		if seen += n; seen >= rank {
			return max(min(highestOf(int(h.index[i])), h.Max), h.Min)
		}
	}
	return h.Max
}

// RefineMax sets Max to v if v is in the same bucket: a log has the maximum more exactly than its buckets.
func (h *Histogram) RefineMax(v int64) {
	if h.Count > 0 && countsIndex(v) == countsIndex(h.Max) {
		h.Max = v
	}
}

// CountAbove returns how many values are above v, at the histogram's resolution.
func (h *Histogram) CountAbove(v int64) int64 {
	var n int64
	at := countsIndex(v)
	for i := len(h.index) - 1; i >= 0 && int(h.index[i]) > at; i-- {
		n += h.count[i]
	}
	return n
}

// Mean returns the arithmetic mean in nanoseconds, 0 for an empty histogram.
func (h *Histogram) Mean() float64 {
	if h.Count == 0 {
		return 0
	}
	return h.Sum / float64(h.Count)
}

// StdDev returns the standard deviation in nanoseconds, computed from the middles of the buckets.
func (h *Histogram) StdDev() float64 {
	if h.Count == 0 {
		return 0
	}
	mean, sum := h.Mean(), 0.0
	for b := range h.Buckets {
		d := float64(b.Low+b.High)/2 - mean
		sum += d * d * float64(b.Count)
	}
	return math.Sqrt(sum / float64(h.Count))
}

// Counters returns the number of counters that are not zero.
func (h *Histogram) Counters() int { return len(h.count) }

// Buckets calls yield for each counter that is not zero, in ascending order.
func (h *Histogram) Buckets(yield func(Bucket) bool) {
	for i, n := range h.count {
		k := int(h.index[i])
		if !yield(Bucket{lowestOf(k), highestOf(k), n}) {
			return
		}
	}
}

// Percentile is a point of a cumulative distribution: Count values, the fraction Quantile of all, do not exceed Value.
type Percentile struct {
	Quantile float64
	Value    int64 // ns
	Count    int64
}

// Percentiles yields the distribution in steps that get finer toward 1, as HdrHistogram's percentile iterator does:
// ticks steps in each halving of the remaining range. The last point is the maximum at quantile 1.
func (h *Histogram) Percentiles(ticks int) func(yield func(Percentile) bool) {
	return func(yield func(Percentile) bool) {
		level, seen := 0.0, int64(0)
		halving, step := 0, 0
		for i, n := range h.count {
			seen += n
			v := max(min(highestOf(int(h.index[i])), h.Max), h.Min)
			for at := float64(seen) / float64(h.Count); level <= at; {
				if !yield(Percentile{level, v, seen}) {
					return
				}
				if seen == h.Count {
					break
				}
				if step++; step == ticks {
					halving, step = halving+1, 0
				}
				// Computed from scratch each time, because a running sum would accumulate rounding errors.
				level = 1 - math.Ldexp(1, -halving) + math.Ldexp(float64(step)/float64(ticks), -halving-1)
			}
		}
		if h.Count > 0 {
			yield(Percentile{1, h.Max, h.Count})
		}
	}
}

// Merge returns the sum of histograms.
func Merge(hs ...*Histogram) *Histogram {
	if len(hs) == 1 {
		return hs[0]
	}
	var sum Tally
	for _, h := range hs {
		if h.Count == 0 {
			continue
		}
		for i, n := range h.count {
			sum.add(int(h.index[i]), n)
		}
		if sum.n == 0 || h.Min < sum.min {
			sum.min = h.Min
		}
		sum.n += h.Count
		sum.sum += h.Sum
		sum.max = max(sum.max, h.Max)
	}
	return sum.Histogram()
}

// FromValues returns a histogram of values in nanoseconds.
func FromValues(values []int64) *Histogram {
	var c counters
	c.reset()
	for _, v := range values {
		c.record(v)
	}
	return c.snapshot()
}

// FromCounts returns a histogram in which each of values, in nanoseconds, has the count at the same index of counts.
func FromCounts(values, counts []int64) *Histogram {
	var t Tally
	for i, v := range values {
		if n := counts[i]; n > 0 {
			t.record(v, n)
		}
	}
	return t.Histogram()
}

// FromHot converts the values that a polling loop recorded from ticks to nanoseconds. The result has the resolution of
// polling.Histogram (0.8 %); its Max is exact.
func FromHot(h *polling.Histogram, c *Clock) *Histogram {
	var counts [polling.Buckets]uint64
	greatest := h.Load(&counts)
	return FromTicks(&counts, greatest, c)
}

// FromTicks is FromHot for the bucket counts of a polling.Histogram and its maximum.
func FromTicks(counts *[polling.Buckets]uint64, greatest uint64, c *Clock) *Histogram {
	return fromBuckets(counts, greatest, c.Nanoseconds)
}

// FromNanoseconds is FromTicks for values that are already nanoseconds, as the XDP program records them.
func FromNanoseconds(counts *[polling.Buckets]uint64, greatest uint64) *Histogram {
	return fromBuckets(counts, greatest, func(ns uint64) int64 { return int64(ns) })
}

// fromBuckets counts each bucket as its middle, converted to ns, and greatest as the maximum.
func fromBuckets(counts *[polling.Buckets]uint64, greatest uint64, nanoseconds func(uint64) int64) *Histogram {
	var out counters
	out.reset()
	for i, n := range counts {
		if n == 0 {
			continue
		}
		middle := polling.Lowest(i)
		if i+1 < polling.Buckets {
			middle += (polling.Lowest(i+1) - middle) / 2
		}
		ns := nanoseconds(min(middle, greatest))
		out.add(countsIndex(ns), int64(n))
		out.n += int64(n)
		out.sum += float64(ns) * float64(n)
		out.min, out.max = min(out.min, ns), max(out.max, ns)
	}
	if out.n > 0 {
		top := nanoseconds(greatest)
		out.max = max(out.max, top)
	}
	return out.snapshot()
}

// HDR returns the histogram as one of the HdrHistogram library, for its encoders.
func (h *Histogram) HDR() *hdrhistogram.Histogram {
	counts := make([]int64, countsLen)
	for i, n := range h.count {
		counts[h.index[i]] = n
	}
	return hdrhistogram.Import(&hdrhistogram.Snapshot{
		LowestTrackableValue: lowestValue, HighestTrackableValue: highestValue, SignificantFigures: digits,
		Counts: counts,
	})
}

// FromBuckets returns a histogram of buckets of any width, which are in ascending order and do not overlap. They count
// as the middles of their values.
func FromBuckets(buckets []Bucket) *Histogram {
	h := &Histogram{index: make([]int32, 0, len(buckets)), count: make([]int64, 0, len(buckets))}
	for _, b := range buckets {
		if b.Count == 0 {
			continue
		}
		if h.Count == 0 {
			h.Min = b.Low
		}
		middle := b.Low + (b.High-b.Low)/2
		h.Count += b.Count
		h.Sum += float64(middle) * float64(b.Count)
		h.Max = b.High
		i := int32(countsIndex(middle))
		if k := len(h.index) - 1; k >= 0 && h.index[k] == i {
			h.count[k] += b.Count
			continue
		}
		h.index, h.count = append(h.index, i), append(h.count, b.Count)
	}
	return h
}

// counters is a histogram during recording.
type counters struct {
	counts   []int64
	lo, hi   int // non-zero indices are in [lo, hi]
	n        int64
	min, max int64
	sum      float64
}

func (c *counters) reset() {
	if c.counts == nil {
		c.counts = make([]int64, countsLen)
	} else if c.n > 0 {
		clear(c.counts[c.lo : c.hi+1])
	}
	c.lo, c.hi = countsLen, -1
	c.n, c.min, c.max, c.sum = 0, math.MaxInt64, 0, 0
}

func (c *counters) add(i int, n int64) {
	c.counts[i] += n
	c.lo, c.hi = min(c.lo, i), max(c.hi, i)
}

func (c *counters) record(v int64) {
	v = max(v, 0)
	c.add(countsIndex(v), 1)
	c.n++
	c.min, c.max = min(c.min, v), max(c.max, v)
	c.sum += float64(v)
}

func (c *counters) snapshot() *Histogram {
	h := &Histogram{Count: c.n, Max: c.max, Sum: c.sum}
	if c.n == 0 {
		return h
	}
	h.Min = c.min
	used := c.used()
	h.index, h.count = make([]int32, 0, used), make([]int64, 0, used)
	c.each(func(i int, n int64) { h.index, h.count = append(h.index, int32(i)), append(h.count, n) })
	return h
}

// each calls yield for each counter that is not zero, in ascending order.
func (c *counters) each(yield func(index int, n int64)) {
	if c.n == 0 {
		return
	}
	for i, n := range c.counts[c.lo : c.hi+1] {
		if n != 0 {
			yield(c.lo+i, n)
		}
	}
}

// used returns the number of counters that are not zero.
func (c *counters) used() (used int) {
	c.each(func(int, int64) { used++ })
	return used
}
