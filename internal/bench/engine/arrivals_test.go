package engine

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/schedule"
	"github.com/rebound-nic/rebound/proof/must"
)

// The sender is delayed once, for 20 ms at a mean rate of 10000 probes per second. 200 probes should have been sent
// meanwhile; they are sent late, and answered immediately. From the intended times about half of them took over 10 ms.
// From the actual ones only the delayed probe did: that is the coordinated omission. A Poisson process intends 100
// probes in the first 10 ms of the delay on average, and fewer than 40 with a probability of 10^-11.
func TestCoordinatedOmission(t *testing.T) {
	for _, x := range []struct {
		name     string
		arrivals schedule.Arrivals
		least    int64
	}{
		{"periodic", schedule.Arrivals{}, 99}, // fixed by the schedule: probes 50 to 149 are intended more than 10 ms before the stall ends
		{"poisson", must.Get(schedule.ParseArrivals("poisson"))(t), 40},
		{"burst:20", must.Get(schedule.ParseArrivals("burst:20"))(t), 79},
		{"replay", must.Get(schedule.Replay("x", []int64{0, 10, 20, 900, 1000}))(t), 79},
	} {
		const stalled, stall = 50, 20 * time.Millisecond
		f := &fake{}
		f.onSend = func(n int, b []byte) {
			if n == stalled {
				spin(stall)
			}
			f.reply(b, 0)
		}
		s, rec := stream(t, f, 10000, 20*time.Second, func(o *Options) { o.Arrivals = x.arrivals })
		must.OK(t, s.Run(Limit{Count: 400}, new(atomic.Bool)))
		half := (stall / 2).Nanoseconds()
		above := func(name string) int64 { return series(rec)(name).CountAbove(half) }
		corrected, actual, lag := above(latency.MainSeries), above(latency.UncorrectedSeries), above(latency.LagSeries)
		if corrected < x.least {
			t.Errorf("%s: %d round trips above %d ns from the intended send, want %d or more", x.name, corrected, half,
				x.least)
		}
		if actual < 1 || actual > corrected/4 {
			t.Errorf("%s: %d round trips above %d ns from the actual send, %d from the intended one", x.name, actual,
				half, corrected)
		}
		if lag < x.least-1 {
			t.Errorf("%s: send lag: %d above %d ns", x.name, lag, half)
		}
		if c := s.Counts(); c.Sent != 400 || c.Received != 400 || c.Reordered != 0 {
			t.Errorf("%s: %+v", x.name, c)
		}
	}
}

// Probes of a burst are due together, and the next burst a whole number of periods later: the arrivals within a run add
// up to its mean rate.
func TestBurstsAreSentTogether(t *testing.T) {
	burst := must.Get(schedule.ParseArrivals("burst:10"))(t)
	s, _ := stream(t, &fake{}, 1000, 20*time.Second, func(o *Options) { o.Arrivals = burst })
	must.OK(t, s.Run(Limit{Count: 50}, new(atomic.Bool)))
	for i := range 50 {
		first, at := s.window.slots[i/10*10].intended, s.window.slots[i].intended
		if at != first {
			t.Errorf("probe %d is due %d ticks after the first of its burst", i, at-first)
		}
		if want := s.window.slots[0].intended + testClock.Ticks(time.Duration(i/10)*10*time.Millisecond); at > want+2 ||
			at < want-2 {
			t.Errorf("probe %d is due at %d, want %d", i, at, want)
		}
	}
}
