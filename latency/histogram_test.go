package latency

import (
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

func TestIndexIsHdrHistograms(t *testing.T) {
	h := hdrhistogram.New(lowestValue, highestValue, digits)
	must.Equal(t, len(h.Export().Counts), countsLen, "HdrHistogram has %d counters")
	values := []int64{0, 1, 2046, 2047, 2048, 2049, 4095, 4096, highestValue - 1, highestValue}
	for shift := range 41 {
		values = append(values, 1<<shift-1, 1<<shift, 1<<shift+1, rand.Int64N(1<<shift))
	}
	for _, v := range values {
		h.Reset()
		must.OK(t, h.RecordValue(v))
		want := slices.Index(h.Export().Counts, 1)
		if got := countsIndex(v); got != want {
			t.Errorf("countsIndex(%d) = %d, want %d", v, got, want)
		}
		if i := countsIndex(v); lowestOf(i) > v || highestOf(i) < v {
			t.Errorf("%d is not in [%d, %d]", v, lowestOf(i), highestOf(i))
		}
	}
}

func TestQuantiles(t *testing.T) {
	for _, n := range []int{1, 2, 99, 100, 101, 5000} {
		values := make([]int64, n)
		for i := range values {
			values[i] = int64(math.Exp(7 + 3*rand.NormFloat64()))
		}
		h := FromValues(values)
		slices.Sort(values)
		for _, q := range []float64{0, 0.01, 0.29, 0.5, 0.57, 0.9, 0.99, 0.999, 0.9999, 1} {
			rank := max(int(math.Ceil(q*float64(n)-1e-9)), 1)
			want := values[rank-1]
			if got := h.Quantile(q); math.Abs(float64(got-want)) > float64(want)/1000+1 {
				t.Errorf("n=%d: quantile %v is %d, want %d", n, q, got, want)
			}
		}
		if h.Quantile(1) != values[n-1] || h.Min != values[0] || h.Max != values[n-1] {
			t.Errorf("n=%d: min %d max %d, want %d %d", n, h.Min, h.Max, values[0], values[n-1])
		}
	}
}

// No outlier is dropped: a value out of range is counted in the last bucket, and Max is exact.
func TestOutliersAreKept(t *testing.T) {
	h := FromValues([]int64{100, 60_000_000_000, 2 * highestValue, -5})
	if h.Count != 4 || h.Max != 2*highestValue || h.Min != 0 {
		t.Errorf("%+v", h)
	}
	check.Equal(t, h.CountAbove(200), 2, "%d above 200")
	if hdr := h.HDR(); hdr.TotalCount() != 4 || hdr.Max() < highestValue {
		t.Errorf("in HdrHistogram's form: %d values, max %d", hdr.TotalCount(), hdr.Max())
	}
}

func TestMerge(t *testing.T) {
	a, b := FromValues([]int64{5, 5, 9000}), FromValues([]int64{3, 9000, 100_000})
	m := Merge(a, b, FromValues(nil))
	want := FromValues([]int64{5, 5, 9000, 3, 9000, 100_000})
	if !reflect.DeepEqual(m, want) {
		t.Errorf("%+v, want %+v", m, want)
	}
	check.Equal(t, m.Summary().Mean, (5+5+9000+3+9000+100_000)/6.0, "mean %v")
}

func TestFromBuckets(t *testing.T) {
	got, want := FromBuckets([]Bucket{{3, 3, 2}, {100, 101, 1}, {102, 103, 0}, {4096, 4097, 1}, {4098, 4099, 2}}),
		FromCounts([]int64{3, 100, 4096, 4098}, []int64{2, 1, 1, 2})
	want.Max++ // the greatest value that it may have
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestFromCounts(t *testing.T) {
	got, want := FromCounts([]int64{5, -1, 9000, 7}, []int64{2, 1, 3, 0}),
		FromValues([]int64{5, 5, -1, 9000, 9000, 9000})
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
