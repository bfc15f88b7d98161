package latency

import (
	"math"
	"reflect"
	"slices"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/polling"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/random"
)

func TestFormatSigned(t *testing.T) {
	for ns, want := range map[float64]string{0: "+0 ns", -1: "-1 ns", 1500: "+1.500 µs", -2e9: "-2.000 s"} {
		check.Equal(t, FormatSigned(ns), want, "%q")
	}
	check.Equal(t, FormatDuration(3*time.Millisecond), "3.000 ms", "%q")
}

// A log's maximum replaces that of the buckets only within its bucket.
func TestRefineMax(t *testing.T) {
	h := FromValues([]int64{10, 5000})
	h.RefineMax(5001)
	check.Equal(t, h.Max, 5001, "max %d")
	h.RefineMax(9000)
	check.Equal(t, h.Max, 5001, "max %d")
	one := FromValues([]int64{5000})
	one.RefineMax(5001)
	check.Equal(t, one.Max, 5001, "max %d of a single value")
	empty := FromValues(nil)
	empty.RefineMax(-1)
	empty.RefineMax(0)
	empty.RefineMax(1)
	check.Equal(t, empty.Max, 0, "max %d of an empty histogram")
	check.Equal(t, h.Counters(), 2, "%d counters")
	check.Equal(t, empty.Mean()+empty.StdDev(), 0, "mean and deviation of an empty histogram: %v")
	check.Equal(t, FromValues([]int64{10, 30}).StdDev(), 10, "deviation %v")
	check.Equal(t, FromCounts([]int64{10, 40}, []int64{8, 2}).StdDev(), 12, "deviation %v")
	for b := range h.Buckets { // a reader may stop
		check.Equal(t, b, Bucket{10, 10, 1}, "%v")
		break
	}
}

// Half of the values need one step of the distribution each time that the rest is halved.
func TestPercentiles(t *testing.T) {
	var got []Percentile
	for p := range FromValues([]int64{1, 2, 3, 4}).Percentiles(1) {
		got = append(got, p)
	}
	check.Same(t, got, []Percentile{{0, 1, 1}, {0.5, 2, 2}, {0.75, 3, 3}, {0.875, 4, 4}, {1, 4, 4}}, "%v")
	got = nil
	for p := range FromValues([]int64{1, 2, 3, 4}).Percentiles(2) {
		if got = append(got, p); len(got) == 3 {
			break
		}
	}
	check.Same(t, got, []Percentile{{0, 1, 1}, {0.25, 1, 1}, {0.5, 2, 2}}, "%v")
	got = slices.Collect(FromValues([]int64{7}).Percentiles(1))
	check.Same(t, got, []Percentile{{0, 7, 1}, {1, 7, 1}}, "%v")
	for range FromValues(nil).Percentiles(5) {
		t.Error("a point of an empty histogram")
	}
}

// Each bucket of a loop counts as its middle, but none above the greatest value, which is exact.
func TestFromNanoseconds(t *testing.T) {
	rnd := random.New(t)
	for range 50 {
		var counts [polling.Buckets]uint64
		var values []int64
		for _, i := range append(rnd.Perm(polling.Buckets - 2)[:rnd.IntN(5)], polling.Buckets-2) {
			n := 1 + rnd.IntN(5)
			counts[i] = uint64(n)
			middle := polling.Lowest(i) + (polling.Lowest(i+1)-polling.Lowest(i))/2
			values = append(values, slices.Repeat([]int64{int64(middle)}, n)...)
		}
		want := FromValues(values)
		want.Max++
		if got := FromNanoseconds(&counts, uint64(want.Max)); !reflect.DeepEqual(got, want) {
			t.Fatalf("%+v, want %+v", got, want)
		}
	}
	var short [polling.Buckets]uint64
	short[polling.Bucket(1<<20)] = 1
	check.Equal(t, FromNanoseconds(&short, 1<<20).Min, 1<<20, "min %d of the lowest value of a bucket")
	check.Equal(t, FromNanoseconds(new([polling.Buckets]uint64), 7).Max, 0, "max %d of no values")
	var longest [polling.Buckets]uint64 // of the last bucket only the lowest value is known
	longest[polling.Buckets-1] = 1
	check.Equal(t, FromNanoseconds(&longest, 1<<50).Min, int64(polling.Lowest(polling.Buckets-1)), "%d")
}

// Only gaps have a wait, and only the two ways of one-way delays are such.
func TestKindsOfSeries(t *testing.T) {
	for _, name := range []string{MainSeries, UncorrectedSeries, GapSeries, TurnaroundSeries, JitterSeries, LagSeries,
		ResidenceSeries, KernelSeries, HardwareSeries, ThereSeries, BackSeries} {
		s := &Series{Name: name, Intervals: []Interval{{0, 1, FromValues([]int64{10, 30})}}}
		s.Sum()
		check.Equal(t, s.Summary, s.Total.Summary(), name+": %v")
		check.Equal(t, s.Wait != nil, name == GapSeries || name == JitterSeries, name+" has a wait: %t")
		check.Equal(t, OneWay(name), name == ThereSeries || name == BackSeries, name+" is one-way: %t")
	}
	check.Equal(t, FindStat("p99").Quantile, 0.99, "p99 is quantile %v")
	check.Equal(t, FindStat("min"), &Stats[0], "min is %v")
	check.Equal(t, FindStat("p98") == nil, true, "p98 is missing: %t")
}

// An End without a run does nothing, and neither does one after it.
func TestEndTwice(t *testing.T) {
	r := must.Get(NewRecorder(testClock(), RecorderOptions{}))(t)
	r.End(5)
	check.Equal(t, r.Recording().Start.IsZero(), true, "without a run it has no start: %t")
	r.Begin(10)
	r.Record(11, 11, 12)
	r.End(20)
	r.End(30)
	rec := r.Recording()
	check.Same(t, rec.Runs, []Run{{0, 10}}, "runs %v")
	check.Equal(t, len(rec.Series[0].Intervals), 1, "%d intervals")
	check.Equal(t, rec.RawDropped, 0, "%d single samples dropped of a recorder that keeps none")
	check.Equal(t, rec.Start, testClock().Time(10), "start %v")
	check.Equal(t, rec.End, testClock().Time(20), "end %v")
	var followed Tally
	check.Equal(t, r.Follow().AddTo(&followed), 1, "%d intervals of the only series")
	check.Equal(t, followed.Histogram().Min, 1, "min %d")
	check.Equal(t, r.Runs(), 1, "%d runs")
	_, err := NewRecorder(testClock(), RecorderOptions{Interval: 10*time.Millisecond - 1})
	check.Fails(t, "an interval below 10 ms", err, nil, "shorter than 10ms")
	_, err = NewRecorder(testClock(), RecorderOptions{Interval: 10 * time.Millisecond})
	check.OK(t, err)
}

// A recorder tells whether it counted a round trip, and keeps as many samples as asked for.
func TestRecordOne(t *testing.T) {
	r := must.Get(NewRecorder(testClock(), RecorderOptions{Raw: 1}))(t)
	check.Equal(t, r.Record(1, 1, 2), false, "counted before the run: %t")
	r.Begin(10)
	check.Equal(t, r.Record(11, 11, 12), true, "counted: %t")
	r.Record(12, 12, 15)
	r.End(20)
	rec := r.Recording()
	check.Same(t, rec.Raw, []Sample{{2, 1, 1}}, "samples %v")
	check.Equal(t, rec.RawDropped, 1, "%d dropped")
	check.Equal(t, math.Round(FromValues([]int64{1}).Wait().StdDev*1e4), 2887, "deviation of a wait %v / 10,000")
}

// A recorder's memory is resident before it records.
func TestMemoryIsTouched(t *testing.T) {
	r := must.Get(NewRecorder(testClock(), RecorderOptions{Raw: 1 << 20}))(t)
	raw := r.raw[:cap(r.raw)]
	for what, b := range map[string][]byte{
		"samples":   unsafe.Slice((*byte)(unsafe.Pointer(&raw[0])), len(raw)*int(unsafe.Sizeof(raw[0]))),
		"intervals": r.sent.arena.first.data[:],
	} {
		page := uintptr(unix.Getpagesize())
		from := (uintptr(unsafe.Pointer(&b[0])) + page - 1) &^ (page - 1)
		size := (uintptr(unsafe.Pointer(&b[0])) + uintptr(len(b)) - from) &^ (page - 1)
		pages := make([]byte, size/page)
		if _, _, e := unix.Syscall(unix.SYS_MINCORE, from, size, uintptr(unsafe.Pointer(&pages[0]))); e != 0 {
			t.Fatal("mincore: ", e)
		}
		missing := len(slices.DeleteFunc(pages, func(b byte) bool { return b&1 != 0 }))
		check.Equal(t, missing, 0, what+": %d pages are not resident")
	}
}

func newArena() *arena {
	a := new(arena)
	a.grow()
	return a
}

func newCounters() *counters {
	c := new(counters)
	c.reset()
	return c
}

// Intervals are read back wherever a block of memory ends. One takes 58 bytes here, and with the first one a block ends
// within an interval, or with room for exactly its head.
func TestArenaAtTheEndOfABlock(t *testing.T) {
	for _, first := range []int{27, 28, 29} {
		a, c := newArena(), newCounters()
		for i := range first {
			c.record(int64(i))
		}
		a.put(0, 1, c)
		check.Equal(t, a.first.used.Load(), int64(56+2*first), "the first takes %d bytes")
		const n = 2 * chunk / 58
		for k := range int64(n) {
			c.reset()
			c.record(5)
			a.put(k+1, k+2, c)
		}
		got := a.intervals()
		must.Equal(t, len(got), n+1, "%d intervals")
		check.Equal(t, got[0].Count, int64(first), "%d values in the first")
		for k, iv := range got[1:] {
			if iv.Start != int64(k)+1 || iv.Count != 1 || iv.Max != 5 || len(iv.index) != 1 || iv.index[0] != 5 {
				t.Fatalf("interval %d: %d values from %d, %v", k+1, iv.Count, iv.Start, iv.index)
			}
		}
	}
}

// A block of memory is used while it has room for 13 bytes a counter.
func TestArenaStartsABlock(t *testing.T) {
	for counters, need := range []int{56, 56 + 13, 56 + 26} {
		for room := need - 1; room <= need; room++ {
			a, c := newArena(), newCounters()
			for i := range counters {
				c.record(int64(i) << 40)
			}
			a.last.used.Store(1<<20 - int64(room))
			a.put(0, 1, c)
			check.Equal(t, a.blocks() == 2, room < need, "a new block: %t")
		}
	}
}

func TestTablesOfStatistics(t *testing.T) {
	m := FromValues([]int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 1e9}).Summary()
	in := map[Tables]string{}
	for _, s := range Stats {
		for table := FullTable; table <= CellTable; table <<= 1 {
			if s.In&table != 0 {
				in[table] += s.Name + " "
			}
		}
		want := map[string]float64{"min": 1, "p50": 5, "p90": 9, "mean": 1e8 + 4.5}[s.Name]
		if want == 0 {
			want = 1e9
		}
		check.Equal(t, s.Of(&m), want, s.Name+" is %v")
		check.Equal(t, s.Quantile > 0, s.Name[0] == 'p', s.Name+" is a percentile: %t")
	}
	for table, want := range map[Tables]string{
		FullTable:     "min p50 p90 p99 p99.9 p99.99 max mean ",
		HeadlineTable: "p50 p90 p99 p99.9 p99.99 max ",
		SeriesLine:    "p50 p99 p99.9 p99.99 max ",
		PointColumns:  "p50 p99 p99.9 max ",
		BriefTable:    "p50 p90 p99 p99.9 ",
		AnswerText:    "p50 p99 p99.9 ",
		NarrowTable:   "p50 p99 ",
		CellTable:     "p50 p90 p99 ",
	} {
		check.Equal(t, in[table], want, "%s")
	}
}
