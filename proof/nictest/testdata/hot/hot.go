// Package hot has loops that HotLoop must accept and reject.
package hot

import "github.com/rebound-nic/rebound/fastpath"

type Queue struct {
	ring [8]*[64]byte
	byIP map[uint32]int
	sink interface{ Send() }
	hook func()
}

// Poll is a correct loop: fastpath's own sequence for each frame.
func (q *Queue) Poll(r *fastpath.Responder) (sent int) {
	const n = 64
	for _, h := range q.ring {
		m := n
		if !r.Reply(h, n) {
			m = r.Slow(h, n)
		}
		r.Departing()
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
