package watch

import (
	"time"

	"github.com/rebound-nic/rebound/latency"
)

// minutes is how many complete minutes the status page shows for a target, in addition to the current one.
const minutes = 5

// minute counts the probes of a minute by outcome, at the time when the outcome is known: a probe is missed in the
// minute in which its timeout expires.
type minute struct {
	answered, missed int64 // within the timeout
	unsent           int64
	p50, p99, max    int64 // ns, of timed replies; 0 if there are none
}

// recent has a target's last minutes.
type recent struct {
	done []minute // complete ones, latest last
	minute
	rtt latency.Tally
}

// count records the outcome of a probe.
func (r *recent) count(e *event) {
	switch e.kind {
	case missed:
		r.missed++
	case unsent:
		r.unsent++
	case answered:
		r.answered++
		if !e.untimed {
			r.rtt.Record(e.ns)
		}
	}
}

// current returns the current minute.
func (r *recent) current() minute {
	m := r.minute
	if h := r.rtt.Histogram(); h.Count > 0 {
		m.p50, m.p99, m.max = h.Quantile(0.5), h.Quantile(0.99), h.Max
	}
	return m
}

func (r *recent) turn() {
	if r.done = append(r.done, r.current()); len(r.done) > minutes {
		r.done = append(r.done[:0], r.done[1:]...)
	}
	r.minute = minute{}
	r.rtt.Reset()
}

// turnMinutes ends the minutes of all targets if one is over. Minutes during which the program did not run, or by which
// the clock was set back, are left out. The keeper's lock must be held.
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
