package latency

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

func TestIndexIsHdrHistograms(t *testing.T) {
	h := hdrhistogram.New(lowestValue, highestValue, digits)
	must.Equal(t, len(h.Export().Counts), countsLen, "HdrHistogram has %d counters")
	check.Equal(t, h.Export().SignificantFigures, digits, "%d digits")
	check.Equal(t, HDRBuckets*HDRSubBuckets/2+HDRSubBuckets/2, countsLen, "%d counters in its geometry")
	check.Equal(t, HDRSubBuckets, 2048, "%d linear steps")
	check.Equal(t, highestValue, int64(time.Hour), "the highest value is %d ns")
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

func TestFromBuckets(t *testing.T) {
	got, want := FromBuckets([]Bucket{{3, 3, 2}, {100, 101, 1}, {102, 103, 0}, {4096, 4097, 1}, {4098, 4099, 2}}),
		FromCounts([]int64{3, 100, 4096, 4098}, []int64{2, 1, 1, 2})
	want.Max++ // the greatest value that it may have
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	check.Equal(t, FromBuckets([]Bucket{{1000, 3000, 2}}).Mean(), 2000, "mean of a wide one: %v")
	got = FromBuckets([]Bucket{{4096, 4097, 1}, {4098, 4099, 2}}) // both in the first counter
	check.Same(t, slices.Collect(got.Buckets), []Bucket{{4096, 4099, 3}}, "%v")
}

func TestFromCounts(t *testing.T) {
	got, want := FromCounts([]int64{5, -1, 9000, 7}, []int64{2, 1, 3, 0}),
		FromValues([]int64{5, 5, -1, 9000, 9000, 9000})
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got, want := FromCounts([]int64{3, 5}, []int64{0, 2}), FromValues([]int64{5, 5}); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
