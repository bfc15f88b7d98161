// Package hot holds loops that HotLoop must accept and refuse.
package hot

import "rebound/fastpath"

type Queue struct {
	ring [8]*[64]byte
	byIP map[uint32]int
	sink interface{ Send() }
	hook func()
}

// Poll is as a loop should be: fastpath's own sequence for each frame.
func (q *Queue) Poll(r *fastpath.Responder) (sent int) {
	const n = 64
	for _, h := range q.ring {
		m := n
		switch k := fastpath.Match(h); {
		case k == fastpath.ICMPv4 && r.IPv4(h, n) && r.Sum4(h) && r.Hosts4(h) && fastpath.Echo4(h) && r.Admit(h, k):
			r.Pong4(h)
			r.Fresh4(h)
			fastpath.Swap4(h)
		case k == fastpath.UDPv4 && r.IPv4(h, n) && r.Sum4(h) && r.Hosts4(h) && r.Ports4(h) && r.Datagram4(h) && r.Admit(h, k):
			r.Bounce4(h)
			r.Lower4(h)
			fastpath.Swap4(h)
		case k == fastpath.ICMPv6 && r.IPv6(h, n) && r.To6(h) && r.From6(h) && fastpath.Echo6(h) && r.Admit(h, k):
			r.Pong6(h)
			fastpath.Swap6(h)
		case k == fastpath.UDPv6 && r.IPv6(h, n) && r.To6(h) && r.From6(h) && r.Ports6(h) && r.Datagram6(h) && r.Admit(h, k):
			r.Bounce6(h)
			fastpath.Swap6(h)
		default:
			m = r.Slow(h, n)
		}
		sent += m
	}
	return sent
}

func (q *Queue) Map(r *fastpath.Responder) int { return q.byIP[7] }

func (q *Queue) Interface(r *fastpath.Responder) { q.sink.Send() }

func (q *Queue) Closure(r *fastpath.Responder) { q.hook() }

func (q *Queue) Bounds(r *fastpath.Responder, i int) *[64]byte { return q.ring[i] }

func (q *Queue) Allocate(r *fastpath.Responder) { q.ring[0] = new([64]byte) }

func (q *Queue) Helper(r *fastpath.Responder) int { return helper(q) }

//go:noinline
func helper(q *Queue) int { return len(q.byIP) }
