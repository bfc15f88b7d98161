package watch

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/bench/engine"
	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/outcome"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/polling"
)

// plan is the loop's work until the next plan. It is immutable once it was offered.
type plan struct {
	wires []planned
	flows []*flow
	asks  []ask  // next hops whose MAC the kernel does not resolve
	slot  uint64 // ticks from one probe to the next, of any flow: the inverse of the sum of their rates

	adopted chan struct{} // closed when the loop no longer uses the previous plan
}

type planned struct {
	*wire
	flows map[flowKey]*flow
	runs  map[uint32]*flow // by the number of the run, for replies from another address
	reply probe.Reply
}

// loop sends all flows' probes, evenly spread, and receives their replies: one goroutine on a dedicated core. It
// informs the keeper through a ring, so that it never waits for a lock, an allocation or a disk.
type loop struct {
	clock   *latency.Clock
	timeout uint64
	sleeps  bool // between probes, while no reply is awaited
	events  *ring
	offer   atomic.Pointer[plan]
	stop    *atomic.Bool
	passes  atomic.Uint64 // advances while the loop runs

	Gap, Lag polling.Histogram // from one poll to the next while a reply is awaited; delay of sent probes

	plan    *plan
	empty   []uint64 // of each of the plan's wires: the last look at its queue that found nothing; 0 for none
	order   schedule
	due     uint64 // when its probe is due
	start   uint64 // start of the time slot that due is in
	pending []pending
	head    uint64
	tail    uint64
	awaited int
	buf     []byte
	reply   probe.Reply
	random  *rand.PCG
	askAt   uint64
}

// pending is a probe whose reply may still arrive in time. All have the same timeout, so the oldest is the first to be
// overdue.
type pending struct {
	flow *flow
	seq  uint64
	at   uint64
}

const (
	margin    = 150 * time.Microsecond // how long before a probe is due the loop wakes up
	nap       = 5 * time.Millisecond   // the longest sleep
	shortNap  = time.Millisecond       // the longest sleep while requests or replies may arrive
	pinnedFor = 10 * time.Millisecond  // the Go runtime needs control of a goroutine from time to time
	burst     = 32                     // messages received from a wire in one pass
)

func newLoop(clock *latency.Clock, room int, timeout time.Duration, sleeps bool, stop *atomic.Bool) *loop {
	return &loop{clock: clock, timeout: clock.Ticks(timeout), sleeps: sleeps, events: newRing(room), stop: stop,
		plan: &plan{}, buf: make([]byte, 1<<17), random: rand.NewPCG(rand.Uint64(), rand.Uint64())}
}

// run returns once stop is set. The caller has locked the thread and pinned it to its core.
func (l *loop) run() {
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1000, 0, 0, 0) // ns: makes sleeps end on time
	nextNap, nextShort, nextMargin, turn := l.clock.Ticks(nap), l.clock.Ticks(shortNap), l.clock.Ticks(margin),
		l.clock.Ticks(pinnedFor)
	polling.Pin()
	defer polling.Unpin()
	slept := true
	last := polling.TSC()
	heard := last
	for !l.stop.Load() {
		now := polling.TSC()
		if p := l.offer.Load(); p != l.plan && p != nil {
			polling.Unpin()
			l.adopt(p, now)
			polling.Pin()
			slept = true
			continue
		}
		if l.awaited > 0 && !slept {
			l.Gap.Record(now - last)
		}
		last = now
		l.passes.Store(l.passes.Load() + 1)
		l.receive(slept)
		slept = false
		l.expire(now)
		if len(l.plan.flows) > 0 && int64(now-l.due) >= 0 {
			l.send(now)
			continue // poll for the reply immediately
		}
		if len(l.plan.asks) > 0 && int64(now-l.askAt) >= 0 {
			l.askAt = now + l.clock.Ticks(time.Second)
			for _, a := range l.plan.asks {
				a.wire.solicit([]ask{a})
			}
		}
		if l.awaited > 0 && now-heard < 2*turn {
			continue
		}
		left := uint64(nextNap)
		if l.head != l.tail || len(l.plan.asks) > 0 {
			left = nextShort
		}
		if len(l.plan.flows) > 0 {
			left = min(left, max(l.due-now, nextMargin)-nextMargin)
		}
		switch {
		case l.sleeps && l.awaited == 0 && left > nextMargin:
			polling.Unpin()
			ts := unix.NsecToTimespec(l.clock.Nanoseconds(left))
			_ = unix.Nanosleep(&ts, nil) // a signal may end it early, which is harmless
			polling.Pin()
			slept, heard = true, polling.TSC()
		case now-heard > turn:
			polling.Unpin()
			runtime.Gosched()
			polling.Pin()
			heard = polling.TSC()
		}
	}
}

// adopt starts to follow another plan. Outstanding probes are kept if their flows are.
func (l *loop) adopt(p *plan, now uint64) {
	still := map[*flow]bool{}
	for _, f := range p.flows {
		still[f] = true
	}
	var kept []pending
	for ; l.head != l.tail; l.head++ {
		e := l.pending[l.head%uint64(len(l.pending))]
		if s := &e.flow.slots[e.seq&uint64(len(e.flow.slots)-1)]; s.seq != e.seq || s.state != waiting {
			continue
		} else if still[e.flow] {
			kept = append(kept, e)
		} else if s.awaited {
			s.awaited = false
			l.awaited--
		}
	}
	size := 1024 + len(p.flows)
	if p.slot > 0 {
		size += int(4 * l.timeout / p.slot)
	}
	l.pending = make([]pending, max(size, 2*len(kept)))
	l.head, l.tail = 0, uint64(copy(l.pending, kept))
	changed := len(p.flows) != len(l.plan.flows)
	l.plan = p
	l.empty = make([]uint64, len(p.wires))
	l.order.follow(p.flows, l.random)
	if changed && len(p.flows) > 0 { // not at the same moment as other watches that were started together
		l.start = now + l.random.Uint64()%p.slot
		l.due = l.start
	}
	if p.adopted != nil {
		close(p.adopted)
	}
}

// receive processes received messages. after means that the loop was not polling before, so that their arrival times
// are unknown.
func (l *loop) receive(after bool) {
	for i := range l.plan.wires {
		w := &l.plan.wires[i]
		if w.failure.Load() != nil {
			continue
		}
		for range burst {
			looked := polling.TSC()
			n, at, f, origin, err := w.recv(l.buf)
			if err != nil {
				w.fail(err)
				break
			}
			if n == 0 {
				l.empty[i] = looked
				break
			}
			if f != nil {
				l.process(f, l.buf[:n], uint64(at), l.empty[i], after, origin)
			}
		}
	}
}

// process handles a message that was seen at the tick at. looked is when the loop last found nothing before that, 0 if
// unknown. origin is not None if the message did not come from the flow's target, and the codec cannot see that.
func (l *loop) process(f *flow, b []byte, at, looked uint64, after bool, origin outcome.Reason) {
	e := event{flow: f.id, untimed: after}
	verdict := f.codec.Check(b, &l.reply)
	if origin != outcome.None && (verdict == probe.Good || verdict == probe.Unsummed || verdict == probe.Corrupt &&
		l.reply.Field != probe.Length) {
		verdict, l.reply.Field = probe.Corrupt, probe.SourceAddress
	}
	switch verdict {
	case probe.Foreign:
		return
	case probe.Refused:
		if f.expired(&l.reply) {
			return
		}
		e.kind, e.closed = refused, l.reply.Closed
		l.events.put(e)
		return
	case probe.Corrupt:
		if f.traced(b) {
			return
		}
		var s *slot
		if l.reply.HasSeq && l.reply.Field != probe.RunTag { // another run has its own numbers
			s = f.find(l.reply.Seq)
		}
		l.reject(e, s, l.reply.Field)
		return
	}
	s := f.find(l.reply.Seq)
	switch {
	case s == nil && f.traced(b):
		return
	case s == nil && f.ahead(l.reply.Seq):
		l.reject(e, nil, probe.SequenceNumber)
		return
	case s != nil && f.stamp && s.t1 != l.reply.Stamped.T1: // the reflector has to copy it
		l.reject(e, s, probe.SenderCopy)
		return
	}
	class, _ := outcome.Of(outcome.None, s != nil, s != nil && s.state == done, s != nil && s.state != overdue)
	switch class {
	case outcome.Stray, outcome.Duplicate: // for a forgotten probe nothing else is known
		e.kind = duplicate
		if e.stamped = f.stamp && s != nil; e.stamped {
			e.path, e.number = s.path, l.reply.Stamped.Seq
		}
		l.events.put(e)
		return
	case outcome.Late:
		e.kind, e.probe = late, s.seq
	default:
		e.kind = answered
	}
	e.path = s.path
	if s.awaited {
		s.awaited = false
		l.awaited--
	}
	s.state = done
	f.missed[s.path] = 0
	f.heard()
	e.ns = l.clock.Between(s.sent, at)
	e.held, e.waited, e.far.Residence, e.far.Wait = l.clock.Between(s.sent, s.left), -1, -1, -1
	if looked != 0 {
		e.waited = l.clock.Between(looked, at)
	}
	e.reordered = s.seq < f.high
	f.high = max(f.high, s.seq+1)
	if f.stamp {
		e.stamped, e.seq, e.number = true, s.nth, l.reply.Stamped.Seq
		e.copied = e.number == uint32(s.seq)
		e.far = engine.FarOf(&l.reply.Stamped, e.ns)
	}
	l.events.put(e)
}

// reject counts a reply to the probe in s, nil if it is unknown which, by its first wrong field.
func (l *loop) reject(e event, s *slot, wrong probe.Field) {
	e.kind = corrupt
	_, e.wrong = outcome.Of(wrong.Reason(), s != nil, false, false)
	l.events.put(e)
	s.spoil()
}

// expire gives up on probes whose timeout has expired.
func (l *loop) expire(now uint64) {
	for ; l.head != l.tail; l.head++ {
		e := &l.pending[l.head%uint64(len(l.pending))]
		s := &e.flow.slots[e.seq&uint64(len(e.flow.slots)-1)]
		if s.seq != e.seq || s.state != waiting {
			continue
		}
		if int64(now-e.at) <= int64(l.timeout) {
			return
		}
		l.giveUp(e.flow, s, now)
	}
}

// giveUp records that a probe has no reply in time. now may be long after its timeout, where this thread did not run.
func (l *loop) giveUp(f *flow, s *slot, now uint64) {
	s.state = overdue
	if s.awaited {
		s.awaited = false
		l.awaited--
	}
	f.missed[s.path]++
	f.lost()
	l.events.put(event{flow: f.id, kind: missed, path: s.path, ns: l.clock.Between(s.sent+l.timeout, now), probe: s.seq,
		sent: s.sent, until: s.sent + 2*l.timeout, wire: f.wire, corrupt: s.corrupt})
}

// errOutstanding means that this host has no room to remember another probe.
var errOutstanding = errors.New("too many probes await their replies")

// send sends the probe that is due, and determines when the next one is due. Each has a separate time slot and is sent
// at a random moment in the slot's middle half: periodic events on the path then affect probes at random (RFC 2330
// §11.1.1), and no two follow each other closely. A loop that is late does not catch up with a burst: the schedule
// moves.
func (l *loop) send(now uint64) {
	p := l.plan
	f := l.order.next()
	l.Lag.Record(now - l.due)
	l.start += p.slot
	if int64(now-l.start) > int64(p.slot) {
		l.start = now
	}
	l.due = l.start + p.slot/4 + l.random.Uint64()%(p.slot/2+1)
	if failure := f.wire.failure.Load(); failure != nil || l.tail-l.head == uint64(len(l.pending)) {
		e := event{flow: f.id, kind: sent, path: uint8(f.at)}
		l.events.put(e)
		if e.kind, e.why = unsent, errOutstanding; failure != nil {
			e.why = *failure
		}
		l.events.put(e)
		return
	}
	seq := f.nextNumber()
	var t1 uint64
	if f.stamp {
		t1 = engine.NTP(time.Now())
	}
	s := &f.slots[seq&uint64(len(f.slots)-1)]
	if s.state == waiting { // more probes are outstanding than the flow has slots, which its size makes impossible
		l.giveUp(f, s, now)
	}
	f.follow()
	frame := f.codec.Build(uint32(seq), t1)
	*s = slot{seq: seq, sent: polling.TSC(), t1: t1, state: waiting}
	f.from(s, seq)
	path := s.path
	s.awaited = f.hopeful(path)
	err := f.wire.send(f, path, frame)
	s.left = polling.TSC()
	f.rotate(s, err == nil)
	l.events.put(event{flow: f.id, kind: sent, path: path})
	if err != nil {
		*s = slot{}
		f.next = seq // the number was not used: a reflector's count would show it as lost on the way there
		f.missed[path]++
		l.events.put(event{flow: f.id, kind: unsent, path: path, why: err})
		if f.wire.device != nil && !errors.Is(err, nic.ErrFull) {
			f.wire.fail(err)
		}
		return
	}
	if s.awaited {
		l.awaited++
	}
	l.pending[l.tail%uint64(len(l.pending))] = pending{f, seq, s.sent}
	l.tail++
}
