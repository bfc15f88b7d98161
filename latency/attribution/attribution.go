// Package attribution divides the time of slow round trips between the responder's host, this host and the network.
// Everything in it is arithmetic on times that others took.
//
// A round trip is known by two loops: when this host sent the probe and saw the reply, and when the responder's loop
// saw the probe and answered it. A loop only sees a frame when it looks. So each loop also says when it last looked
// before that, and found nothing: a frame that came in between waited for the loop, at most for that long. What no wait
// can account for was spent between the loops.
//
// Parts of a round trip add up to it exactly. What cannot be assigned is a part, too.
package attribution

import (
	"cmp"
	"slices"
)

// Side is where time was spent.
type Side uint8

const (
	Unknown   Side = iota // cannot be told
	Responder             // the responder's host
	Here                  // this host
	// between the two loops: NICs, wire, switches, and the kernels' receive paths if the loops poll through a kernel
	Network
	Elsewhere // not this host: the responder did not report its part
	sides
)

// Sides are all of them, in the order in which they are printed.
var Sides = []Side{Responder, Here, Network, Elsewhere, Unknown}

func (s Side) String() string {
	if s >= sides {
		return "unknown"
	}
	return [...]string{"unknown", "responder's host", "this host", "network", "elsewhere"}[s]
}

// Probe is what was observed of one round trip. Intended, Sent, Left and Seen are ns of this host's cycle counter, all
// other times are durations in ns. A negative one is unknown.
type Probe struct {
	Intended int64 // when it should have been sent; Sent in a closed loop
	Sent     int64 // before it was given to the port
	Left     int64 // after that
	Looked   int64 // the last look at the receive queue before Seen that found nothing
	Seen     int64 // when the reply was seen

	Residence int64 // from the responder's T2 to its T3
	FarWait   int64 // from its loop's last look at its queue to T2
	Ahead     int   // test packets ahead of it in the responder's queue

	// FarSeen is T2 in ns since 1970, by the responder's clock; 0 if unknown.
	FarSeen int64
	// There and Back are the one-way delays from Sent to T2 and from T3 to Seen, by both clocks, whose difference is at
	// most ClockError. Without a known bound it is negative, and they do not count.
	There, Back, ClockError int64
	// LeftNIC and Reached are times by a timestamp of this host's kernel or card, relative to Sent: when the
	// probe left, and when the reply came. 0 if there is none. Each is known to within its error, in ns.
	LeftNIC, Reached           int64
	LeftNICError, ReachedError int64
}

// RTT is the round trip from the intended send.
func (p *Probe) RTT() int64 { return p.Seen - p.Intended }

// Parts are the parts of a round trip, or sums of them, in ns.
type Parts struct {
	HereSend  int64 `json:"here_send"`          // this host sent it late, or was held up while sending
	FarWait   int64 `json:"far_wait"`           // it waited for the responder's loop
	FarAnswer int64 `json:"far_answer"`         // the responder's T2 to T3
	There     int64 `json:"there"`              // between the loops, on the way there, beyond the usual
	Back      int64 `json:"back"`               // the same on the way back
	Network   int64 `json:"network"`            // the same if the direction is not known
	Elsewhere int64 `json:"elsewhere"`          // not this host: the responder's host or the network
	HereNIC   int64 `json:"here_nic,omitempty"` // the reply was in this host, by a timestamp, before the loop could see it
	HereSeen  int64 `json:"here_seen"`          // the reply waited for this host's loop
	Unknown   int64 `json:"unknown"`            // both hosts could have caused it
	Path      int64 `json:"path"`               // between the loops, as in the usual round trip
}

// fields are the parts in the order of time.
func (p *Parts) fields() [11]*int64 {
	return [...]*int64{&p.HereSend, &p.There, &p.FarWait, &p.FarAnswer, &p.Back, &p.Network, &p.Elsewhere, &p.HereNIC,
		&p.HereSeen, &p.Unknown, &p.Path}
}

// Sum returns their sum.
func (p *Parts) Sum() (sum int64) {
	for _, f := range p.fields() {
		sum += *f
	}
	return sum
}

func (p *Parts) add(q *Parts) {
	other := q.fields()
	for i, f := range p.fields() {
		*f += *other[i]
	}
}

// Of returns the parts of one side. The usual path belongs to none.
func (p *Parts) Of(s Side) int64 {
	switch s {
	case Responder:
		return p.FarWait + p.FarAnswer
	case Here:
		return p.HereSend + p.HereNIC + p.HereSeen
	case Network:
		return p.There + p.Back + p.Network
	case Elsewhere:
		return p.Elsewhere
	}
	return p.Unknown
}

// Usual is a usual round trip, with which slow ones are compared: medians, in ns.
type Usual struct {
	RTT       int64 `json:"rtt_ns"`
	Send      int64 `json:"send_ns"`          // Sent to Left, or until it left by a timestamp
	NIC       int64 `json:"nic_ns,omitempty"` // from a timestamp of the reply until it was seen; 0 without timestamps
	Residence int64 `json:"residence_ns"`     // T2 to T3; 0 if unknown
	Path      int64 `json:"path_ns"`          // the round trip without lateness and residence
	There     int64 `json:"there_ns"`         // by both clocks; 0 if unknown
	Back      int64 `json:"back_ns"`
}

// Typical returns the usual round trip of a random sample.
func Typical(sample []Probe) (u Usual) {
	median := func(of func(*Probe) int64) int64 {
		var all []int64
		for i := range sample {
			if v := of(&sample[i]); v >= 0 {
				all = append(all, v)
			}
		}
		if len(all) == 0 {
			return 0
		}
		slices.Sort(all)
		return all[len(all)/2]
	}
	u.RTT = median((*Probe).RTT)
	u.Send = median((*Probe).sending)
	u.NIC = median(func(p *Probe) int64 {
		if p.Reached <= 0 {
			return -1
		}
		return p.Seen - p.Sent - p.Reached
	})
	u.Residence = median(func(p *Probe) int64 { return p.Residence })
	u.Path = median(func(p *Probe) int64 { return p.rest() })
	u.There = median(func(p *Probe) int64 {
		if p.ClockError < 0 {
			return -1
		}
		return max(p.There, 0)
	})
	u.Back = median(func(p *Probe) int64 {
		if p.ClockError < 0 {
			return -1
		}
		return max(p.Back, 0)
	})
	return u
}

// rest is the round trip without lateness and residence.
func (p *Probe) rest() int64 { return p.Seen - p.Sent - max(p.Residence, 0) }

// Divide divides a round trip. Its parts add up to p.RTT().
func Divide(p *Probe, u *Usual) Parts {
	send, card, wait := p.own(u)
	out := p.divide(u, send, card+wait)
	out.ofSeen(out.HereSeen, wait)
	return out
}

// ofSeen divides what this host held up a reply for. The last of it was the wait for the loop.
func (p *Parts) ofSeen(all, wait int64) {
	p.HereSeen = min(all, wait)
	p.HereNIC = all - p.HereSeen
}

// divide divides a round trip of which this host can have caused at most send and wait.
func (p *Probe) divide(u *Usual, send, wait int64) (out Parts) {
	out.HereSend = p.Sent - p.Intended
	out.FarAnswer = max(p.Residence, 0)
	rest := p.rest()
	out.Path = min(rest, u.Path)
	excess := rest - out.Path
	// The most that each could have caused of it.
	send, wait = clamp(send, excess), clamp(wait, excess)
	if p.FarWait < 0 {
		out.HereSend += send
		out.HereSeen = min(wait, excess-send)
		out.Elsewhere = excess - send - out.HereSeen
		return out
	}
	far := clamp(p.FarWait, excess)
	if p.ClockError >= 0 && p.ClockError < excess/4 { // fine enough to tell the directions apart
		there := clamp(p.There-u.There, excess)
		back := excess - there
		d := split(there, send, far)
		out.HereSend += d.a
		out.FarWait, out.There, out.Unknown = d.b, d.neither, d.either
		out.HereSeen = min(wait, back)
		out.Back = back - out.HereSeen
		return out
	}
	here := min(send+wait, excess)
	d := split(excess, here, far)
	ofSend := min(send, d.a)
	out.HereSend += ofSend
	out.HereSeen = d.a - ofSend
	out.FarWait, out.Network, out.Unknown = d.b, d.neither, d.either
	return out
}

// leaveOut leaves out timestamps that may be wrong by more than a quarter of the round trip, as those of a card whose
// clock could not be read quickly may be.
func (p *Probe) leaveOut() {
	if 4*p.LeftNICError > p.RTT() {
		p.LeftNIC = 0
	}
	if 4*p.ReachedError > p.RTT() {
		p.Reached = 0
	}
}

// own returns the most that this host can have held up the probe while sending, that the reply can have been held up
// between its timestamp and the loop, and that it can have waited for the loop.
func (p *Probe) own(u *Usual) (send, card, wait int64) {
	send, wait = max(p.sending()-u.Send, 0), max(p.Seen-p.Looked, 0)
	if p.Reached > 0 { // the reply was in this host since then; without a timestamp it may have waited in the kernel
		since := max(p.Seen-p.Sent-p.Reached-u.NIC, 0)
		wait = min(wait, since)
		card = since - wait
	}
	return send, card, wait
}

// sending is how long the probe was on its way from the loop to the network.
func (p *Probe) sending() int64 { return max(p.Left-p.Sent, p.LeftNIC) }

func clamp(v, most int64) int64 { return min(max(v, 0), most) }

// shared is a time of which one part is certainly a's, if b took all that it could, and another certainly b's. Either
// of them caused the rest, unless their bounds together are less than the time: then neither did.
type shared struct{ a, b, either, neither int64 }

// split divides a time of which a caused at most mostA, and b at most mostB.
func split(total, mostA, mostB int64) (s shared) {
	mostA, mostB = min(mostA, total), min(mostB, total)
	s.a, s.b = clamp(total-mostB, mostA), clamp(total-mostA, mostB)
	if rest := total - s.a - s.b; mostA+mostB >= total {
		s.either = rest
	} else {
		s.neither = rest
	}
	// A wait that is short compared with the other one's is an ordinary one, which any frame meets.
	switch {
	case mostA <= mostB/8:
		s.b, s.either = s.b+s.either, 0
	case mostB <= mostA/8:
		s.a, s.either = s.a+s.either, 0
	}
	return s
}

// Beyond returns what the parts of a probe have beyond the usual one. The path is left out.
func (p *Parts) Beyond(u *Usual) Parts {
	q := *p
	q.FarAnswer, q.Path = max(q.FarAnswer-u.Residence, 0), 0
	return q
}

// Verdict returns the side that caused more than half of what a probe took beyond the usual, or Unknown.
func (p *Parts) Verdict(u *Usual) Side {
	b := p.Beyond(u)
	all := b.Sum()
	for _, s := range Sides {
		if 2*b.Of(s) > all {
			return s
		}
	}
	return Unknown
}

// sorted returns probes from the slowest.
func sorted(all []Probe) []Probe {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b Probe) int { return cmp.Compare(b.RTT(), a.RTT()) })
	return all
}
