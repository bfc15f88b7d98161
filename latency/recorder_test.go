package latency

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

func TestRecordingAllocatesNothing(t *testing.T) {
	r := must.Get(NewRecorder(testClock(), RecorderOptions{OpenLoop: true, Raw: 100, Interval: 10 * time.Millisecond}))(
		t)
	extra := r.Track(KernelSeries)
	now := uint64(1)
	r.Begin(now)
	if n := testing.AllocsPerRun(20_000, func() {
		now += 1_000_000 // every tenth ends an interval
		r.Record(now, now+50, now+5000+now%700)
		extra.Record(now, 300)
	}); n != 0 {
		t.Errorf("%v allocations a sample", n)
	}
	r.End(now + 10)
	if n := len(r.Recording().Series[0].Intervals); n < 1900 {
		t.Errorf("%d intervals: the test did not reach their ends", n)
	}
}

// The sum over intervals equals the recorded values; both the intended and the actual send time are kept; values of the
// warm-up and between runs are dropped.
func TestRecorder(t *testing.T) {
	r := must.Get(NewRecorder(testClock(), RecorderOptions{OpenLoop: true, Raw: 5}))(t)
	hw := r.Track(HardwareSeries)
	r.Record(1, 2, 3) // warm-up
	r.Begin(1000)
	r.Record(1000, 1500, 4000) // 3000 from the intended send, 2500 from the actual
	hw.Record(4000, 2000)
	r.Record(2_500_000_000, 2_500_000_100, 2_500_001_000) // two intervals later
	r.End(3_000_000_000)
	r.Record(1, 2, 3_000_000_001) // between runs
	r.Begin(4_000_000_000)
	for i := range uint64(10) {
		r.Record(4_000_000_000+i, 4_000_000_000+i, 4_000_000_500+i)
	}
	r.End(4_100_000_000)
	rep := r.Recording()

	main, un, h := rep.Series[0], rep.Series[1], rep.Series[2]
	if main.Total.Count != 12 || un.Total.Count != 12 || h.Total.Count != 1 {
		t.Fatalf("counts %d, %d, %d", main.Total.Count, un.Total.Count, h.Total.Count)
	}
	if main.Total.Max != 3000 || un.Total.Max != 2500 || main.Total.Min != 500 {
		t.Errorf("corrected max %d, uncorrected max %d, min %d", main.Total.Max, un.Total.Max, main.Total.Min)
	}
	var got []int64
	for _, iv := range main.Intervals {
		got = append(got, iv.Count)
	}
	check.Same(t, got, []int64{1, 1, 10}, "intervals hold %v")
	if len(rep.Runs) != 2 || rep.Runs[1].Start != 3_999_999_000 || rep.Runs[1].End != 4_099_999_000 {
		t.Errorf("runs %+v", rep.Runs)
	}
	if want := testClock().Time(1000); !rep.Start.Equal(want) {
		t.Errorf("start %v, want %v", rep.Start, want)
	}
	check.Equal(t, rep.Interval, time.Second, "intervals of %v")
	check.Equal(t, rep.End.Sub(rep.Start), 4_099_999_000, "from start to end %d ns")
	check.Equal(t, rep.Clock.Source, "tsc", "clock %q")
	if len(rep.Raw) != 5 || rep.RawDropped != 7 || rep.Raw[0] != (Sample{3000, 3000, 2500}) {
		t.Errorf("raw %+v, %d dropped", rep.Raw, rep.RawDropped)
	}
}

func TestArena(t *testing.T) {
	var a arena
	a.grow()
	var c counters
	var want []*Histogram
	for k := range 1000 {
		c.reset()
		for range 2000 * (k % 3) {
			c.record(rand.Int64N(1 << rand.IntN(45)))
		}
		a.put(int64(k), int64(k+1), &c)
		want = append(want, c.snapshot())
	}
	if n := a.blocks(); n < 3 {
		t.Fatalf("%d blocks: the test does not reach the end of one", n)
	}
	got := a.intervals()
	must.Equal(t, len(got), len(want), "%d intervals")
	for k, iv := range got {
		w := want[k]
		if iv.Start != int64(k) || iv.End != int64(k)+1 || cap(iv.index) != len(w.index) ||
			cap(iv.count) != len(w.index) || iv.Count != w.Count || iv.Max != w.Max && w.Count > 0 || iv.Min != w.Min ||
			iv.Sum != w.Sum ||
			!slices.Equal(iv.index, w.index) || !slices.Equal(iv.count, w.count) {
			t.Fatalf("interval %d: %+v, want %+v", k, iv.Histogram, w)
		}
	}
}

func (a *arena) blocks() (n int) {
	for b := a.first; b != nil; b = b.next.Load() {
		n++
	}
	return n
}

// recordRun records a run of n probes, one every step ns, whose round trips take up to a second, and returns its end.
func recordRun(r *Recorder, rnd *rand.Rand, now uint64, n int, step uint64) uint64 {
	r.Begin(now)
	for range n {
		now += step
		r.Record(now, now+50, now+50+rnd.Uint64N(1<<30))
	}
	now += 1 << 31
	r.End(now)
	return now
}

// A follower that reads while another goroutine records gets each interval exactly once and complete, over many blocks;
// run it with -race.
func TestFollower(t *testing.T) {
	r := must.Get(NewRecorder(testClock(), RecorderOptions{OpenLoop: true, Interval: 10 * time.Millisecond}))(t)
	f, done := r.Follow(), make(chan struct{})
	go func() {
		defer close(done)
		rnd := rand.New(rand.NewPCG(5, 6))
		now := uint64(1)
		for range 3 {
			now = recordRun(r, rnd, now, 300_000, 10_000)
		}
	}()
	var got Tally
	intervals := 0
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		intervals += f.AddTo(&got)
	}
	main := r.Recording().Series[0]
	if h := got.Histogram(); intervals != len(main.Intervals) || h.Count != main.Total.Count ||
		h.Min != main.Total.Min || h.Max != main.Total.Max || h.Sum != main.Total.Sum ||
		h.Quantile(0.99) != main.Total.Quantile(0.99) {
		t.Errorf("%d intervals with %d values of %d to %d, want %d with %d of %d to %d", intervals, h.Count, h.Min,
			h.Max, len(main.Intervals), main.Total.Count, main.Total.Min, main.Total.Max)
	}
	if n := r.intended.blocks(); n < 2 {
		t.Errorf("%d blocks: the test does not reach the end of one", n)
	}
	check.Equal(t, f.AddTo(&got), 0, "%d intervals are new after the end")
}

func BenchmarkRecord(b *testing.B) {
	r := must.Get(NewRecorder(testClock(), RecorderOptions{OpenLoop: true}))(b)
	now := uint64(1)
	r.Begin(now)
	for b.Loop() {
		now += 1000
		r.Record(now, now+20, now+3000+now%500)
	}
}

// The results of LastRun after each run add up to the recording, over many blocks of memory.
func TestLastRun(t *testing.T) {
	r := must.Get(NewRecorder(testClock(), RecorderOptions{OpenLoop: true, Interval: 10 * time.Millisecond}))(t)
	rnd := rand.New(rand.NewPCG(5, 6))
	sum := map[string]int64{}
	now := uint64(1)
	for i := range 60 {
		now = recordRun(r, rnd, now, 20_000, 100_000)
		if i%3 == 2 {
			continue // skip some runs
		}
		run, series := r.LastRun()
		check.Equal(t, run, r.runs[i], "run %v")
		for k, s := range series {
			check.Equal(t, s.Name, []string{MainSeries, UncorrectedSeries}[k], "series %s")
			check.Equal(t, s.Intervals[0].Start, run.Start, "an interval from %d")
			check.Equal(t, s.Intervals[0].End, run.End, "an interval to %d")
			sum[s.Name] += s.Intervals[0].Count
		}
	}
	_, series := r.LastRun()
	for _, s := range series {
		sum[s.Name] += s.Intervals[0].Count
	}
	if n := r.sent.blocks(); n < 3 {
		t.Errorf("%d blocks: the test does not reach their ends", n)
	}
	for _, s := range r.Recording().Series {
		if sum[s.Name] != s.Total.Count {
			t.Errorf("%s: %d values in the runs, %d recorded", s.Name, sum[s.Name], s.Total.Count)
		}
	}
}
