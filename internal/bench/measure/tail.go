package measure

import (
	"math"

	"github.com/rebound-nic/rebound/internal/bench/engine"
	"github.com/rebound-nic/rebound/internal/bench/observe"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/report"
)

// findCauses finds events around the slowest round trips: in the stream itself, and in the samples of a core watch.
// median is in ns.
func findCauses(slowest []engine.Slow, median int64, clock *latency.Clock, watched []observe.Sample) *report.Tail {
	if len(slowest) == 0 {
		return nil
	}
	t := &report.Tail{From: clock.Nanoseconds(slowest[0].RTT())}
	var away, late, waited, own float64
	var awayN, lateN, waitedN int
	type seen struct {
		what  string
		of    func(observe.Sample) uint64
		n     int
		base  float64
		share float64 // of all intervals in which it occurs
	}
	kinds := []*seen{
		{what: "the measuring thread lost its core (involuntary context switch)", of: func(s observe.Sample) uint64 { return s.Preempted }},
		{what: "interrupts on the core, without the timer's", of: func(s observe.Sample) uint64 { return s.Interrupts }},
		{what: "timer interrupts on the core", of: func(s observe.Sample) uint64 { return s.Timer }},
		{what: "softirqs on the core", of: func(s observe.Sample) uint64 { return s.Softirqs }},
	}
	for _, k := range kinds {
		k.share = share(watched, k.of)
	}
	within, looked := int64(0), 0
	for i := range slowest {
		s := &slowest[i]
		rtt := clock.Nanoseconds(s.RTT())
		t.From = min(t.From, rtt)
		excess := float64(rtt - median)
		if excess <= 0 {
			continue
		}
		t.Probes++
		t.Excess += excess
		a, l := float64(clock.Nanoseconds(s.Away)), float64(clock.Nanoseconds(s.Sent-s.Intended))
		away, late, own = away+min(a, excess), late+min(l, excess), own+min(max(a, l), excess)
		if a >= excess/2 {
			awayN++
		}
		if l >= excess/2 {
			lateN++
		}
		d, n := observe.Around(watched, s.Intended, s.Seen)
		if n == 0 {
			continue
		}
		looked++
		within += clock.Nanoseconds(d.At)
		if w := float64(d.Waited); w > 0 {
			waited += min(w, excess)
			if w >= excess/2 {
				waitedN++
			}
		}
		for _, k := range kinds {
			if k.of(d) > 0 {
				k.n++
			}
			k.base += 1 - math.Pow(1-k.share, float64(n))
		}
	}
	if t.Probes == 0 {
		return nil
	}
	part := func(x float64) *float64 { p := x / t.Excess; return &p }
	t.Own = own / t.Excess
	t.Causes = append(t.Causes, report.Cause{What: "this host did not poll for replies for half of it or more",
		Probes: awayN, Explains: part(away)})
	if late > 0 {
		t.Causes = append(t.Causes, report.Cause{What: "the probe left late, by half of it or more", Probes: lateN,
			Explains: part(late)})
	}
	if looked == 0 {
		return t
	}
	within /= int64(looked)
	t.Causes = append(t.Causes,
		report.Cause{What: "the measuring thread was ready and waited for its core for half of it or more",
			Probes: waitedN, Explains: part(waited), Within: within})
	for _, k := range kinds {
		base := k.base / float64(looked)
		t.Causes = append(t.Causes, report.Cause{What: k.what, Probes: k.n, Within: within, Base: &base})
	}
	return t
}

// share returns the share of the intervals between two samples in which something was counted.
func share(watched []observe.Sample, of func(observe.Sample) uint64) float64 {
	n := 0
	for i := 1; i < len(watched); i++ {
		if of(watched[i]) > of(watched[i-1]) {
			n++
		}
	}
	return float64(n) / float64(max(len(watched)-1, 1))
}
