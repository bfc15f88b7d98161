package efa

import (
	"sync/atomic"

	"github.com/rebound-nic/rebound/fastpath"
)

// maxUnknownSenders is the number of unknown senders' messages that may wait for an address handle.
const maxUnknownSenders = 16

// unknownSender connects a loop and the goroutine that gets address handles from the device. The loop writes an entry
// and then asked; the goroutine reads it, writes the handle and then answered: each number means that the entries
// before it are complete (nic/memory-order.md: unknown senders).
type unknownSender struct {
	asked    atomic.Uint32 // entries written, running freely
	answered atomic.Uint32 // number of entries whose sender was looked up
	waiting  uint32        // used by the loop only: entries whose messages wait in their slots
	entry    [maxUnknownSenders]struct {
		gid       [16]byte
		slot      uint32
		length    uint32
		pair      *pair
		to        uint64 // address handle 15:0, when it is known, and queue pair 31:16
		imm       uint32
		reachable bool
	}
}

// reset clears everything, while no loop uses the queue and no command is in progress.
func (s *unknownSender) reset() {
	s.asked.Store(0)
	s.answered.Store(0)
	s.waiting = 0
}

// park makes a message wait in its slot until its sender can be answered, if there is room.
//
//go:noinline
func (q *Queue) park(r *fastpath.Responder, p *pair, slot, m uint32, from uint64, imm uint32, gid *[16]byte) {
	s := &q.unknownSender
	switch {
	case imm == fastpath.ReplyMark:
		r.RefuseFor(fastpath.RefusedReply)
	case s.waiting == maxUnknownSenders:
		r.RefuseFor(fastpath.RefusedSender)
	default:
		n := s.asked.Load()
		e := &s.entry[n%maxUnknownSenders]
		e.gid, e.slot, e.length, e.pair, e.to, e.imm = *gid, slot, m, p, from&0xFFFF_0000, imm
		s.waiting++
		s.asked.Store(n + 1)
		return
	}
	q.recycle(p, slot)
}

// unpark answers the messages whose senders are now known, as Poll would have.
//
//go:noinline
func (q *Queue) unpark(r *fastpath.Responder) {
	s := &q.unknownSender
	pushed := false
	for answered := s.answered.Load(); s.asked.Load()-s.waiting != answered; s.waiting-- {
		e := &s.entry[(s.asked.Load()-s.waiting)%maxUnknownSenders]
		m := e.length
		switch {
		case !e.reachable:
			r.RefuseFor(fastpath.RefusedSender)
			q.recycle(e.pair, e.slot)
			continue
		case e.pair.stamp:
			if m = q.reflect(r, e.slot, m, e.to, e.imm); m == 0 {
				q.recycle(e.pair, e.slot)
				continue
			}
		case r.Message(e.to, e.imm):
			r.Returned()
		default:
			if q.unsettled(r, e.pair, e.slot, m, e.to, e.imm) != 0 {
				pushed = true
			}
			continue
		}
		if !q.transmit(e.pair, e.slot, m, e.to, reply) {
			q.txFull.Add(1)
			q.recycle(e.pair, e.slot)
			continue
		}
		pushed = true
	}
	if pushed {
		q.ring()
	}
}

// unsettled answers a message that Message turned down if its sender is within its rate, and returns the number of
// replies.
//
//go:noinline
func (q *Queue) unsettled(r *fastpath.Responder, p *pair, slot, m uint32, sender uint64, imm uint32) int {
	if !r.Unsettled(sender, imm) {
		q.recycle(p, slot)
		return 0
	}
	if !q.transmit(p, slot, m, sender, reply) {
		q.txFull.Add(1)
		q.recycle(p, slot)
		return 0
	}
	return 1
}
