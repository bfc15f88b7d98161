package measure

import (
	"encoding/binary"

	"github.com/rebound-nic/rebound/internal/bench/engine"
	"github.com/rebound-nic/rebound/internal/bench/observe"
	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/nic"
)

// counters are the sources of this host's drop counters for the series' frames.
func (s *Series) counters() observe.Source {
	from := observe.Source{Device: s.port.device, Interface: s.path.Interface, Qdisc: s.Qdisc, Responder: s.Responder}
	if p := s.port.socket; p != nil {
		from.Socket = p
	}
	if kernel := s.port.device == nil || s.port.device.Info().Backend == nic.Socket; kernel &&
		(s.port.device == nil || s.port.device.Info().Driver != "afpacket") {
		from.Rejects = observe.Rejects{Echo: s.Proto == probe.ICMP, Identifiers: s.Proto == probe.ICMP,
			UDP: s.Proto != probe.ICMP, V4: s.flow.Dst.Is4(), V6: s.flow.Dst.Is6()}
	}
	return from
}

// Counts returns the measured probes by outcome, and the counters that show where those without a reply were dropped.
func (s *Series) Counts() (c report.Counts, drops []report.Drop) {
	n := s.stream.Counts()
	c = report.Counts{Sent: n.Sent, Received: n.Received, Late: n.Late, Duplicates: n.Duplicates, CE: n.CE,
		Reordered: n.Reordered, Corrupt: n.Corrupt - n.CorruptInWarmup,
		CorruptOnly: n.Spoiled, SendFailed: n.Unsent, NotAwaited: n.Abandoned,
		DroppedHereCounted: !s.uncounted[report.DroppedHere], RefusedThereCounted: !s.uncounted[report.RefusedThere],
		DroppedThereCounted: !s.uncounted[report.DroppedThere], UnknownCounted: !s.uncounted[report.Unknown]}
	drops = report.AddDrops(nil, s.drops)
	for i := range drops {
		d := &drops[i]
		// A filter or a flow rule before the ring is no proof. Foreign counts frames that passed it and were not ours.
		d.Ours = d.Ours && n.Foreign == 0 && n.Stray == 0 && s.VLAN == 0 && !s.port.mixed
		if d.Place == report.NotSent && d.Ours { // a refused frame is in both
			d.Frames = max(d.Frames-n.Unsent, 0)
		}
	}
	closed, merged := n.Closed, n.Closed > 0 // a host limits the rate of its ICMP errors
	if p := s.port.socket; p != nil {
		closed, merged = p.Closed-s.closed, p.Closed > s.closed
	}
	if closed > 0 {
		drops = append(drops, report.Drop{Place: report.RefusedThere, By: "target: port unreachable", Frames: closed,
			Ours: true})
	}
	if n := s.stream.Unmatched; n > 0 {
		drops = append(drops, report.Drop{Place: report.Unknown,
			By: "bench: replies rejected without the number of a probe", Frames: n})
	}
	st := s.stream.STAMP()
	if st != nil {
		for i := range st.TLVs {
			n, counted := unanswered(&st.TLVs[i])
			c.RefusedThereCounted = c.RefusedThereCounted || counted
			if n > 0 {
				drops = append(drops, report.Drop{Place: report.RefusedThere, By: "reflector: STAMP direct measurement",
					Frames: n, Ours: true})
			}
		}
	}
	u := report.Unanswered{Measured: n.Unanswered(), Warmup: n.Silent + n.Abandoned, Copies: n.Duplicates > 0}
	if st == nil || !st.Stateful {
		c.Locate(u, drops)
	} else {
		u.Forward = min(st.LostThere, u.Measured)
		back := min(st.LostBack, u.Measured-u.Forward)
		divideByDirection(&c, u.Forward, back, u.Measured-u.Forward-back, c.Locate(u, drops))
	}
	if s.counters().Uncounted() { // only probes that did not reach the target were certainly lost
		c.LostUncertain = max(c.LostUncertain, c.Lost-u.Forward)
	}
	c.LostUncertain = min(c.Lost, c.LostUncertain+n.Stray) // a reply to a forgotten probe is late
	if merged {                                            // without an ICMP error, too
		perhapsRefused(&c, u.Measured)
	}
	if merged || s.unread != nil || s.droppedUncountedThere() || s.restartedHere || s.restartedThere {
		c.LostUncertain = c.Lost
	}
	return c, drops
}

// perhapsRefused makes each lost probe one that the target may have refused, of all that have no reply.
func perhapsRefused(c *report.Counts, unanswered int64) {
	least := c.RefusedThere - c.RefusedThereUncertain
	c.RefusedThere = min(c.RefusedThere+c.Lost, unanswered)
	c.RefusedThereUncertain = c.RefusedThere - least
}

// droppedUncountedThere reports whether the responder's metrics were read, but its device does not count the frames
// that it drops.
func (s *Series) droppedUncountedThere() bool {
	return s.Responder != "" && s.unread == nil && s.uncounted[report.DroppedThere]
}

// unanswered is how many packets a reflector received and did not answer, from its first answer to a Direct Measurement
// TLV to its latest (RFC 8972 §4.5). counted is false if that is unknown.
func unanswered(t *engine.TLVAnswers) (n int64, counted bool) {
	if t.Type != probe.DirectMeasurement || t.Answered < 2 {
		return 0, false
	}
	be := binary.BigEndian
	received := be.Uint32(t.Latest[4:]) - be.Uint32(t.First[4:])
	sent := be.Uint32(t.Latest[8:]) - be.Uint32(t.First[8:])
	return max(int64(int32(received-sent)), 0), true
}

// divideByDirection divides the lost probes by direction. there, back and either are those without a reply, elsewhere
// how many of them were dropped at one of the hosts.
func divideByDirection(c *report.Counts, there, back, either int64, elsewhere map[report.Place]int64) {
	for place, n := range elsewhere {
		first := &there
		if place == report.DroppedHere {
			first = &back
		}
		for _, way := range []*int64{first, &either} {
			part := min(n, *way)
			*way -= part
			n -= part
		}
	}
	c.LostForward, c.LostBackward, c.LostEither = &there, &back, &either
}
