package latency

import (
	"fmt"
	"time"
)

// RecorderOptions says what a Recorder keeps.
type RecorderOptions struct {
	// OpenLoop keeps, besides the time from the actual send, the time from the intended send, and makes it the main
	// series: a sender that was delayed then counts the wait of everything that it should have sent meanwhile.
	OpenLoop bool
	// Interval is the length of the histograms that the recording is cut into; 1 s if zero.
	Interval time.Duration
	// Raw is the number of single samples to keep for raw.csv.zst, the first ones; 0 keeps none. A sample is 24 bytes,
	// all of it allocated and touched beforehand.
	Raw int
}

// Sample is one round trip.
type Sample struct {
	At           int64 // ns from the beginning of the first run to the reply
	FromIntended int64 // ns; the same as FromSent in a closed loop
	FromSent     int64 // ns
}

// Recorder keeps what one goroutine measures. Recording into it takes some nanoseconds and allocates nothing; at the end
// of an interval it is cut, which takes some microseconds for each track and happens between two samples.
//
// What is recorded outside of Begin and End is dropped: that is how a warm-up stays out.
type Recorder struct {
	clock   *Clock
	opt     RecorderOptions
	running bool
	origin  uint64 // ticks: the first Begin
	start   uint64 // ticks: the interval's start
	length  uint64 // ticks
	runs    []Run

	sent, intended *Track
	extra          []*Track

	raw        []Sample
	rawDropped int64
}

// Track is one named quantity that a Recorder keeps.
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
	r.runs = make([]Run, 0, 64)
	r.sent = r.newTrack(MainSeries)
	if o.OpenLoop {
		r.intended = r.newTrack(MainSeries)
		r.sent.name = UncorrectedSeries
	}
	if o.Raw > 0 {
		r.raw = make([]Sample, o.Raw)
		for i := range r.raw {
			r.raw[i].At = 1 // touch every page now
		}
		r.raw = r.raw[:0]
	}
	return r, nil
}

func (r *Recorder) newTrack(name string) *Track {
	t := &Track{r: r, name: name}
	t.now.reset()
	t.arena.grow()
	return t
}

// Track adds a further quantity, "kernel_tx_rx" say. name is one word of letters, digits, '_' and '-'. It is called
// before the first Begin.
func (r *Recorder) Track(name string) *Track {
	t := r.newTrack(name)
	r.extra = append(r.extra, t)
	return t
}

// Begin starts a run at the given tick: the first after the warm-up, or a further repeat.
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

// Record counts one round trip, given in ticks: when it should have been sent, when it was sent, and when the reply
// was seen. In a closed loop intended is sent. If time that is not the network's is to be left out (a reflector's
// residence), the caller takes it off received. It reports whether a run is on, and so the round trip counted.
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

// tick cuts the interval if it is over at tick at, and reports whether a run is on.
func (r *Recorder) tick(at uint64) bool {
	if !r.running {
		return false
	}
	if over := int64(at - r.start); over >= int64(r.length) {
		r.cut(r.start + uint64(over)/r.length*r.length)
	}
	return true
}

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

// Clock returns the clock that the recorder was made with.
func (r *Recorder) Clock() *Clock { return r.clock }

// Recording is what a Recorder kept.
type Recording struct {
	Clock      ClockInfo
	Start, End time.Time     // the first Begin, the last End
	Interval   time.Duration // length of the series' intervals
	Runs       []Run
	Series     []*Series
	Raw        []Sample
	RawDropped int64 // samples beyond those in Raw
}

// Recording returns what was recorded. It is called after End.
func (r *Recorder) Recording() Recording {
	out := Recording{Clock: r.clock.Info(), Runs: append([]Run(nil), r.runs...), Interval: r.opt.Interval, Raw: r.raw, RawDropped: r.rawDropped}
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

// LastRun returns the run that ended last and what each series recorded since LastRun was last called, as one interval. It is
// called after End.
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

// Runs returns how many runs began.
func (r *Recorder) Runs() int { return len(r.runs) }

func (t *Track) series() *Series {
	s := &Series{Name: t.name, Intervals: t.arena.intervals()}
	s.Sum()
	return s
}
