package watch

import (
	"time"

	"github.com/rebound-nic/rebound/latency"
)

// minutes is how many whole minutes the status page shows of a target, beside the one that has begun.
const minutes = 5

// minute is what became of the probes of a minute, in the order in which it was decided: a probe is missed in the minute in which its
// timeout ends.
type minute struct {
	answered, missed int64 // within the timeout
	p50, p99, max    int64 // ns, of replies that were timed; 0 where there is none
}

// recent is what a target did in the last minutes.
type recent struct {
	done []minute // whole ones, the latest last
	minute
	rtt latency.Tally
}

// count notes what became of a probe.
func (r *recent) count(e *event) {
	switch e.kind {
	case missed:
		r.missed++
	case answered:
		r.answered++
		if !e.untimed {
			r.rtt.Record(e.ns)
		}
	}
}

// current is the minute that has begun.
func (r *recent) current() minute {
	m := r.minute
	if h := r.rtt.Histogram(); h.Count > 0 {
		m.p50, m.p99, m.max = h.Quantile(0.5), h.Quantile(0.99), h.Max
	}
	return m
}

// turn ends a minute.
func (r *recent) turn() {
	if r.done = append(r.done, r.current()); len(r.done) > minutes {
		r.done = append(r.done[:0], r.done[1:]...)
	}
	r.minute = minute{}
	r.rtt.Reset()
}

// turnMinutes ends the minutes of all targets if one is over. Minutes in which the program did not run, or the clock was set back, are left
// out. The keeper's lock is held.
func (k *archive) turnMinutes(now time.Time) {
	at := now.Truncate(time.Minute)
	if at.Equal(k.minute) {
		return
	}
	first := k.minute.IsZero()
	if k.minute = at; first {
		return
	}
	for _, s := range k.byName {
		s.recent.turn()
	}
}
