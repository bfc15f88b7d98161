package engine

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/schedule"
	"github.com/rebound-nic/rebound/proof/must"
)

// No arrival process suffers from coordinated omission: the sender is delayed once for 20 ms at a mean rate of 10000
// probes per second, and the probes that should have been sent in the first 10 ms of it count as longer than 10 ms. A
// Poisson process has 100 of them on average, and fewer than 40 with a probability of 10^-11.
func TestArrivalsAreTimedFromTheSchedule(t *testing.T) {
	burst := must.Get(schedule.ParseArrivals("burst:20"))(t)
	poisson := must.Get(schedule.ParseArrivals("poisson"))(t)
	replay := must.Get(schedule.Replay("x", []int64{0, 10, 20, 900, 1000}))(t)
	for _, x := range []struct {
		name     string
		arrivals schedule.Arrivals
		least    int64
	}{{"poisson", poisson, 40}, {"burst:20", burst, 79}, {"replay", replay, 79}} {
		const stalled, stall = 50, 20 * time.Millisecond
		f := &fake{}
		f.onSend = func(n int, b []byte) error {
			if n == stalled {
				spin(stall)
			}
			f.reply(b, 0)
			return nil
		}
		s, rec := stream(t, f, 10000, 20*time.Second, func(o *Options) { o.Arrivals = x.arrivals })
		must.OK(t, s.Run(Limit{Count: 400}, new(atomic.Bool)))
		get := series(rec)
		half := (stall / 2).Nanoseconds()
		if corrected := get(latency.MainSeries).CountAbove(half); corrected < x.least {
			t.Errorf("%s: %d round trips above %d ns from the intended send, want %d or more", x.name, corrected, half, x.least)
		}
		if lag := get(latency.LagSeries).CountAbove(half); lag < x.least-1 {
			t.Errorf("%s: send lag: %d above %d ns", x.name, lag, half)
		}
		if c := s.Counts(); c.Sent != 400 || c.Received != 400 {
			t.Errorf("%s: %+v", x.name, c)
		}
	}
}

// Probes of a burst are due together, and the next burst a whole number of periods later: the arrivals within a run add
// up to its mean rate.
func TestBurstsAreSentTogether(t *testing.T) {
	burst := must.Get(schedule.ParseArrivals("burst:10"))(t)
	f := &fake{}
	f.onSend = func(n int, b []byte) error { f.reply(b, 0); return nil }
	s, _ := stream(t, f, 1000, 20*time.Second, func(o *Options) { o.Arrivals = burst })
	must.OK(t, s.Run(Limit{Count: 50}, new(atomic.Bool)))
	for i := range 50 {
		first, at := s.window.slots[i/10*10].intended, s.window.slots[i].intended
		if at != first {
			t.Errorf("probe %d is due %d ticks after the first of its burst", i, at-first)
		}
		if want := s.window.slots[0].intended + testClock.Ticks(time.Duration(i/10)*10*time.Millisecond); at > want+2 || at < want-2 {
			t.Errorf("probe %d is due at %d, want %d", i, at, want)
		}
	}
}
