package watch

import (
	"time"

	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/latency/attribution"
)

const (
	usualKept   = 64          // round trips, of which the usual one is the median
	usualFewest = 16          // fewer give none
	usualEvery  = time.Second // between two of them, so that a burst of slow ones does not look usual
	slowFactor  = 2           // a slow round trip exceeds this multiple of the usual one
)

// slow divides slow round trips of a target between this host, the responder's and the network, as the bench's reports
// do. Probes have no intended time here: what was sent late is in the loop's lag, not in the round trip.
type slow struct {
	probes [sideCount]uint64 // by the side that caused more than half
	spent  [sideCount]int64  // ns beyond the usual round trip

	sample []attribution.Probe
	oldest int
	last   time.Time // when the latest was added
	usual  attribution.Usual
}

// sideCount is one more than the greatest attribution.Side.
const sideCount = attribution.Elsewhere + 1

// sideLabels are the sides as labels of metrics.
var sideLabels = [sideCount]string{attribution.Unknown: "unknown", attribution.Responder: "responder",
	attribution.Here:    "this_host",
	attribution.Network: "network", attribution.Elsewhere: "elsewhere"}

// sides are those that a target's slow round trips can have.
func (s *state) sides() []attribution.Side {
	if s.Proto == probe.STAMP {
		return attribution.Sides
	}
	return []attribution.Side{attribution.Here, attribution.Elsewhere, attribution.Unknown}
}

// count counts a timed reply. now is about when it came.
func (s *slow) count(e *event, now time.Time) {
	if e.waited < 0 { // the loop has just begun to poll
		return
	}
	p := attribution.Probe{Left: e.held, Looked: e.ns - e.waited, Seen: e.ns, Residence: e.far.Residence,
		FarWait: e.far.Wait, ClockError: -1}
	if len(s.sample) >= usualFewest && p.RTT() > slowFactor*s.usual.RTT {
		parts := attribution.Divide(&p, &s.usual)
		s.probes[parts.Verdict(&s.usual)]++
		beyond := parts.Beyond(&s.usual)
		for _, side := range attribution.Sides {
			s.spent[side] += beyond.Of(side)
		}
	}
	if now.Sub(s.last) < usualEvery {
		return
	}
	s.last = now
	if len(s.sample) < usualKept {
		s.sample = append(s.sample, p)
	} else {
		s.sample[s.oldest] = p
		s.oldest = (s.oldest + 1) % usualKept
	}
	s.usual = attribution.Typical(s.sample)
}
