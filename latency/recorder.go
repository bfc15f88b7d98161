package latency

import (
	"fmt"
	"time"
)

// RecorderOptions selects what a Recorder keeps.
type RecorderOptions struct {
	// OpenLoop adds the time from the intended send and makes it the main series; the time from the actual send is kept
	// too. If the sender is delayed, the main series includes the wait of every probe that it should have sent
	// meanwhile.
	OpenLoop bool
	// Interval is the length of the intervals into which the recording is divided; 1 s if zero.
	Interval time.Duration
	// Raw is the number of single samples to keep for raw.csv.zst, starting with the first; 0 keeps none. A sample
	// takes 24 bytes, allocated and touched in advance.
	Raw int
}

// Sample is one round trip.
type Sample struct {
	At           int64 // ns from the start of the first run to the reply
	FromIntended int64 // ns; equal to FromSent in a closed loop
	FromSent     int64 // ns
}

// Recorder records the measurements of one goroutine. Recording a value takes a few nanoseconds and allocates nothing.
// At the end of an interval, storing it takes a few microseconds for each track, between two samples.
//
// Values recorded outside of Begin and End, such as those of a warm-up, are dropped.
type Recorder struct {
	clock   *Clock
	opt     RecorderOptions
	running bool
	origin  uint64 // ticks: the first Begin
	start   uint64 // ticks: start of the interval
	length  uint64 // ticks
	runs    []Run

	sent, intended *Track
	extra          []*Track

	raw        []Sample
	rawDropped int64
}

// Track is a named quantity of a Recorder.
type Track struct {
	r    *Recorder
	name string
	now  counters
	arena
}

// NewRecorder returns a Recorder with its memory allocated and touched.
func NewRecorder(c *Clock, o RecorderOptions) (*Recorder, error) {
	if o.Interval == 0 {
		o.Interval = time.Second
	}
	if o.Interval < 10*time.Millisecond {
		return nil, fmt.Errorf("interval %v is shorter than 10ms", o.Interval)
	}
	r := &Recorder{clock: c, opt: o, length: c.Ticks(o.Interval)}
	r.sent = r.newTrack(MainSeries)
	if o.OpenLoop {
		r.intended = r.newTrack(MainSeries)
		r.sent.name = UncorrectedSeries
	}
	r.raw = make([]Sample, o.Raw)
	for i := range r.raw {
		r.raw[i].At = 1 // touch every page now
	}
	r.raw = r.raw[:0]
	return r, nil
}

func (r *Recorder) newTrack(name string) *Track {
	t := &Track{r: r, name: name}
	t.now.reset()
	t.arena.grow()
	return t
}

// Track adds a quantity, for example "kernel_tx_rx". name is one word of letters, digits, '_' and '-'. Call it before
// the first Begin.
func (r *Recorder) Track(name string) *Track {
	t := r.newTrack(name)
	r.extra = append(r.extra, t)
	return t
}

// Begin starts a run at the given tick.
func (r *Recorder) Begin(tsc uint64) {
	if len(r.runs) == 0 {
		r.origin = tsc
	}
	r.start, r.running = tsc, true
	r.runs = append(r.runs, Run{Start: r.clock.Between(r.origin, tsc)})
}

// End ends the run that Begin started.
func (r *Recorder) End(tsc uint64) {
	if !r.running {
		return
	}
	r.cut(tsc)
	r.running = false
	r.runs[len(r.runs)-1].End = r.clock.Between(r.origin, tsc)
}

// Record counts one round trip, given in ticks: when it should have been sent, when it was sent, and when the reply was
// seen. In a closed loop, intended equals sent. To exclude time outside the network (a reflector's residence), subtract
// it from received. It reports whether a run is active, and so whether the round trip was counted.
func (r *Recorder) Record(intended, sent, received uint64) bool {
	if !r.tick(received) {
		return false
	}
	rtt := r.clock.Between(sent, received)
	corrected := rtt
	r.sent.now.record(rtt)
	if r.intended != nil {
		corrected = r.clock.Between(intended, received)
		r.intended.now.record(corrected)
	}
	if r.opt.Raw > 0 {
		if len(r.raw) < cap(r.raw) {
			r.raw = append(r.raw, Sample{r.clock.Between(r.origin, received), corrected, rtt})
		} else {
			r.rawDropped++
		}
	}
	return true
}

// Record counts a value of ns nanoseconds seen at the given tick. Negative values count as 0.
func (t *Track) Record(at uint64, ns int64) {
	if t.r.tick(at) {
		t.now.record(ns)
	}
}

// tick ends the interval if tick at is past its end, and reports whether a run is active.
func (r *Recorder) tick(at uint64) bool {
	if !r.running {
		return false
	}
	if over := int64(at - r.start); over >= int64(r.length) {
		r.cut(r.start + uint64(over)/r.length*r.length)
	}
	return true
}

// cut ends the interval of all tracks at a tick and begins the next one.
func (r *Recorder) cut(end uint64) {
	from, to := r.clock.Between(r.origin, r.start), r.clock.Between(r.origin, end)
	r.sent.cut(from, to)
	if r.intended != nil {
		r.intended.cut(from, to)
	}
	for _, t := range r.extra {
		t.cut(from, to)
	}
	r.start = end
}

func (t *Track) cut(from, to int64) {
	t.arena.put(from, to, &t.now)
	t.now.reset()
}

// Clock returns the recorder's clock.
func (r *Recorder) Clock() *Clock { return r.clock }

// Recording is the content of a Recorder.
type Recording struct {
	Clock      ClockInfo
	Start, End time.Time     // the first Begin, the last End
	Interval   time.Duration // length of the series' intervals
	Runs       []Run
	Series     []*Series
	Raw        []Sample
	RawDropped int64 // samples in excess of those in Raw
}

// Recording returns the recorded data. Call it after End.
func (r *Recorder) Recording() Recording {
	out := Recording{Clock: r.clock.Info(), Runs: append([]Run(nil), r.runs...), Interval: r.opt.Interval, Raw: r.raw,
		RawDropped: r.rawDropped}
	if len(r.runs) > 0 {
		out.Start = r.clock.Time(r.origin)
		out.End = out.Start.Add(time.Duration(r.runs[len(r.runs)-1].End))
	}
	if r.intended != nil {
		out.Series = append(out.Series, r.intended.series())
	}
	out.Series = append(out.Series, r.sent.series())
	for _, t := range r.extra {
		out.Series = append(out.Series, t.series())
	}
	return out
}

// LastRun returns the last run and what each series recorded since the previous call of LastRun, as one interval. Call
// it after End.
func (r *Recorder) LastRun() (Run, []*Series) {
	run := r.runs[len(r.runs)-1]
	tracks := append([]*Track{r.sent}, r.extra...)
	if r.intended != nil {
		tracks = append([]*Track{r.intended}, tracks...)
	}
	var out []*Series
	for _, t := range tracks {
		var hs []*Histogram
		for _, iv := range t.fresh() {
			hs = append(hs, iv.Histogram)
		}
		out = append(out, &Series{Name: t.name, Intervals: []Interval{{run.Start, run.End, Merge(hs...)}}})
	}
	return run, out
}

// Runs returns the number of runs started.
func (r *Recorder) Runs() int { return len(r.runs) }

func (t *Track) series() *Series {
	s := &Series{Name: t.name, Intervals: t.arena.intervals()}
	s.Sum()
	return s
}
