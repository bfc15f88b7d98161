// Package trace finds the hop where a path ends, from probes whose TTL expires on the way.
package trace

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// Limits of a trace: at most MostHops × Tries packets.
const (
	MostHops = 30
	Tries    = 2           // probes with each TTL, if the first has no answer
	Patience = time.Second // for the answer to a probe
	Silent   = 4           // consecutive hops without an answer after which a trace ends
)

// Kind is what an answer says.
type Kind uint8

const (
	Nothing     Kind = iota // no answer
	Expired                 // the TTL expired at the sender of the answer
	Unreachable             // another ICMP error: its sender cannot forward or deliver the probe
	Reached                 // the target's reply
)

// Answer is an answer to a probe.
type Answer struct {
	Kind Kind
	TTL  int        // of the probe; 0 if the answer does not show it
	From netip.Addr // unless Kind is Reached
}

// Hop is a host that answered.
type Hop struct {
	TTL  int
	Addr netip.Addr
}

// Result is the outcome of a trace.
type Result struct {
	Hops []Hop // those that answered, ascending
	End  Kind  // Reached, Unreachable by the last hop, or Nothing: no hop after the last one answers
	Sent int
}

// Run sends probes with a TTL of 1, 2 and so on, until one reaches the target, a host reports that it cannot, or some
// hops in a row are silent. next returns the next answer within the time, or one of the kind Nothing. Run returns an
// error if a probe cannot be sent, or the context ends.
func Run(ctx context.Context, send func(ttl int) error, next func(wait time.Duration) (Answer, error)) (r Result,
	err error) {
	for ttl := 1; ttl <= MostHops && ttl <= r.Last().TTL+Silent; ttl++ {
		for try := 0; try < Tries && r.Last().TTL < ttl; try++ {
			if err := send(ttl); err != nil {
				return r, err
			}
			r.Sent++
			for end := time.Now().Add(Patience); r.Last().TTL < ttl; {
				left := time.Until(end)
				if left <= 0 {
					break
				}
				a, err := next(left)
				if err := cmp.Or(err, ctx.Err()); err != nil {
					return r, err
				}
				if r.add(a, ttl); r.End != Nothing {
					return r, nil
				}
			}
		}
	}
	return r, nil
}

// add adds an answer, while probes with this TTL are sent. A late one belongs to an earlier hop, whose place in the
// list has passed.
func (r *Result) add(a Answer, ttl int) {
	if a.TTL == 0 {
		a.TTL = ttl
	}
	switch {
	case a.Kind == Reached:
		r.End = Reached
	case a.Kind == Nothing || a.TTL > ttl || a.TTL <= r.Last().TTL:
	case a.Kind == Unreachable:
		// a router that forwarded nothing answered to a lower TTL, too
		if r.End = Unreachable; a.From != r.Last().Addr {
			r.Hops = append(r.Hops, Hop{a.TTL, a.From})
		}
	default:
		r.Hops = append(r.Hops, Hop{a.TTL, a.From})
	}
}

// Last returns the last hop that answered, or the zero Hop.
func (r *Result) Last() Hop {
	if len(r.Hops) == 0 {
		return Hop{}
	}
	return r.Hops[len(r.Hops)-1]
}

// String says where the path ends.
func (r *Result) String() string {
	last := r.Last()
	switch {
	case r.End == Reached:
		return "a probe reached the target"
	case r.End == Unreachable:
		return fmt.Sprintf("hop %d, %v, reports that it cannot reach the target", last.TTL, last.Addr)
	case last.TTL == 0:
		return "no hop answers"
	}
	return fmt.Sprintf("nothing answers after hop %d, %v", last.TTL, last.Addr)
}

// Path lists the hops; a star is a silent one.
func (r *Result) Path() string {
	var parts []string
	for ttl, at := 1, 0; at < len(r.Hops); ttl++ {
		if r.Hops[at].TTL > ttl {
			parts = append(parts, "*")
			continue
		}
		parts = append(parts, r.Hops[at].Addr.String())
		at++
	}
	return strings.Join(parts, " ")
}
