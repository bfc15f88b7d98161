package measure

import (
	"cmp"
	"math"
	"slices"

	"github.com/rebound-nic/rebound/internal/bench/engine"
	"github.com/rebound-nic/rebound/internal/bench/observe"
	"github.com/rebound-nic/rebound/internal/host/osnoise"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/attribution"
	"github.com/rebound-nic/rebound/latency/report"
)

// sampleSize is how many round trips are kept at random: enough for p99 of them.
const sampleSize = 1 << 12

// Noise is what had the measuring core while the measuring thread did not run.
type Noise struct {
	Events []osnoise.Event
	Missed int64
	How    string // how these are known, or why there are none
	By     attribution.Source
	Cost   string // what watching costs; empty if nothing was watched
}

// causes returns the events during some round trips. A counter that often counts, and does not say for how long,
// says nothing of a single one.
func (n *Noise) causes(slowest []engine.Slow, clock *latency.Clock) (out []attribution.Cause) {
	type span struct{ from, to uint64 }
	var slow []span // disjoint
	for i := range slowest {
		slow = append(slow, span{slowest[i].Intended, slowest[i].Seen})
	}
	slices.SortFunc(slow, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	disjoint := slow[:0]
	for _, s := range slow {
		if k := len(disjoint) - 1; k >= 0 && s.from <= disjoint[k].to {
			disjoint[k].to = max(disjoint[k].to, s.to)
			continue
		}
		disjoint = append(disjoint, s)
	}
	var first, last uint64
	covered := map[string]uint64{}
	for _, e := range n.Events {
		if first == 0 || e.From < first {
			first = e.From
		}
		last = max(last, e.To)
		if e.Weak {
			text, name := e.Phrase()
			covered[text+name] += e.To - e.From
		}
	}
	for _, e := range n.Events {
		text, name := e.Phrase()
		if e.Weak && e.Took == 0 && covered[text+name] > (last-first)/10 {
			continue
		}
		k, _ := slices.BinarySearchFunc(disjoint, e.From, func(s span,
			from uint64) int {
			return cmp.Compare(s.to, from)
		})
		if k < len(disjoint) && disjoint[k].from < e.To {
			out = append(out, attribution.Cause{Start: clock.Nanoseconds(e.From), End: clock.Nanoseconds(e.To),
				Side: attribution.Here,
				Text: text, Name: name, Weak: e.Weak})
		}
	}
	return out
}

// timeline returns when which causes had the measuring core during the runs of a report.
func (n *Noise) timeline(rep *report.Report, clock *latency.Clock) []attribution.Track {
	if len(rep.Runs) == 0 {
		return nil
	}
	epoch, began := clock.Time(0).UnixNano(), rep.Start.UnixNano()
	var all []attribution.Interval
	for _, e := range n.Events {
		text, name := e.Phrase()
		c := attribution.Interval{Start: epoch + clock.Nanoseconds(e.From), End: epoch + clock.Nanoseconds(e.To),
			Text: text, Name: name, Weak: e.Weak}
		// Between the runs other variants or targets are measured.
		k, _ := slices.BinarySearchFunc(rep.Runs, c.Start-began,
			func(r latency.Run, at int64) int { return cmp.Compare(r.End, at) })
		if k < len(rep.Runs) && rep.Runs[k].Start < c.End-began {
			all = append(all, c)
		}
	}
	return attribution.Timeline(attribution.Here, all, began+rep.Runs[0].Start, began+rep.Runs[len(rep.Runs)-1].End)
}

// explain attributes the slowest round trips.
func (s *Series) explain(rep *report.Report, clock *latency.Clock, noise *Noise) *attribution.Result {
	if !s.Explain {
		return nil
	}
	about := attribution.About{Total: rep.Main().Total.Count, Epoch: clock.Time(0).UnixNano(), Stamps: "kernel",
		How: noise.How, CausesBy: noise.By, Cost: noise.Cost,
		MissedCauses: noise.Missed}
	errorNS := int64(-1)
	switch {
	case rep.STAMP == nil:
		about.Direction = s.Protocol() + " has no timestamps of the responder"
		about.FarLoop = about.Direction
	case rep.STAMP.OneWay.Known():
		errorNS = rep.STAMP.OneWay.ErrorNS
		about.FarLoop = s.farUnknown
	default:
		about.Direction = rep.STAMP.OneWay.Why
		about.FarLoop = s.farUnknown
	}
	convert := func(all []engine.Slow) (out []attribution.Probe) {
		for i := range all {
			k := &all[i]
			p := attribution.Probe{Intended: clock.Nanoseconds(k.Intended), Residence: k.Far.Residence,
				FarWait: k.Far.Wait, Ahead: int(k.Far.Ahead), FarSeen: k.Far.Seen, There: k.Far.There, Back: k.Far.Back,
				ClockError: errorNS}
			at := func(tick uint64) int64 { return p.Intended + clock.Between(k.Intended, tick) }
			p.Seen, p.Sent, p.Left, p.Looked = at(k.Seen), at(k.Sent), at(cmp.Or(k.Left, k.Sent)), at(k.Looked)
			addNIC(&p, k, clock)
			if k.NIC.Card {
				about.Stamps = "card"
			}
			out = append(out, p)
		}
		return out
	}
	slowest := s.stream.Slowest()
	slow, sample := convert(slowest), convert(s.stream.Sample())
	r := attribution.Explain(slow, sample, about, noise.causes(slowest, clock))
	if r != nil {
		r.Timeline = noise.timeline(rep, clock)
	}
	return r
}

// kernelSlew is how fast CLOCK_REALTIME may run compared with the cycle counter, while it is corrected (adjtimex(2)).
const kernelSlew = 500e-6

// addNIC sets the times of a round trip by the kernel's or the card's timestamps, relative to when it was sent. Without
// any, or if their clock was set meanwhile, they remain unknown.
func addNIC(p *attribution.Probe, k *engine.Slow, clock *latency.Clock) {
	s := &k.NIC
	if s.Tick == 0 {
		return
	}
	slew := kernelSlew
	if s.Card {
		slew = engine.CardSlew
	}
	rtt, near := p.Seen-p.Sent, clock.Between(k.Sent, s.Tick+s.Within/2)
	at := func(stamp int64) (t, off int64, ok bool) {
		t = near + stamp - s.Clock
		off = clock.Nanoseconds(s.Within/2+1) + int64(slew*math.Abs(float64(stamp-s.Clock))) + 1
		ok = stamp != 0 && t >= -off && t <= rtt+off
		return min(max(t, 1), rtt), off, ok
	}
	if t, off, ok := at(s.Seen); ok {
		p.Reached, p.ReachedError = t, off
	}
	if t, off, ok := at(s.Sent); ok && (p.Reached == 0 || t <= p.Reached) {
		p.LeftNIC, p.LeftNICError = t, off
	}
}

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
