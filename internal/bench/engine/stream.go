package engine

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/outcome"
	"github.com/rebound-nic/rebound/latency/schedule"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/polling"
)

// Port sends and receives the frames of a probe.Codec: a nic.Device, or a socket. Send and Recv are as in nic.
type Port interface {
	Send(frame []byte) error
	Recv(buf []byte) (n int, at int64, err error)
}

// Origin is a Port that delivers replies from any address, without the headers that have it.
type Origin interface {
	// FromTarget reports whether the message that Recv returned last came from the target's address.
	FromTarget() bool
}

// Options describe a Stream.
type Options struct {
	Port     Port
	Codec    *probe.Codec
	Recorder *latency.Recorder
	Rate     float64           // probes per second; 0 for a closed loop
	Arrivals schedule.Arrivals // open loop: how probes are spread over time
	Timeout  time.Duration

	// Answer is called for every frame that is not a reply, because neighbour requests must be answered during the
	// measurement. It returns the frame to send back, or nil. It is nil if nothing needs to be answered.
	Answer func(frame []byte) []byte

	// Unanswered is called before a probe is sent while the latest ones have no reply, longer than the timeout: the
	// next hop's MAC may have changed. first means that there was a reply since the last call. It returns a frame to
	// send, or nil, and may change the Codec's next hop. It is nil if nothing can be done.
	Unanswered func(first bool) []byte

	// Stamps is set if the kernel's and the card's timestamps are recorded as well. It belongs to Port.
	Stamps *Stamper
	// Unpinned is set if Port or Stamps may block, so that the goroutine is not pinned during a Run (polling.Pin).
	Unpinned bool

	// StopAtZero ends a STAMP stream whose reflector zeroes its session identifier (RFC 8972 §3), with errZeroSSID.
	StopAtZero bool

	// Sample is the size of the random sample of round trips that is kept, 0 for none.
	Sample int
}

// Limit defines how long a Run lasts.
type Limit struct {
	Warmup   time.Duration // sent, but not counted
	Duration time.Duration // 0 for no limit
	Count    int64         // probes, 0 for no limit
	Behind   time.Duration // open loop: end the Run if it is this late; 0 for never
}

// Progress may be read by other goroutines while a Run measures.
type Progress struct {
	Sent, Received atomic.Int64
}

// Stream is one flow of probes with its results. Run may be called repeatedly: counts add up, and each call is a
// further run of its Recorder. One goroutine uses it, except for Progress.
type Stream struct {
	Progress Progress
	// from one poll of the receive ring to the next, sending included and warm-up excluded: when the bench could not
	// see replies
	Gap       polling.Histogram
	Warmup    int64                  // probes left out, in all runs
	Behind    uint64                 // open loop: the greatest delay of a Run's end against its schedule, in ticks
	Full      int64                  // times that the transmit ring was full
	Fields    [probe.Fields]int64    // rejected replies by what is wrong in them, warm-up included
	Unmatched int64                  // of Rejected, those that do not have the number of a probe
	Rejected  [outcome.Reasons]int64 // the same by reason, warm-up excluded
	Error     uint16                 // the latest ICMP error: type<<8 | code
	Payload   int                    // payload bytes of the latest reply with a wrong length

	port     Port
	origin   Origin // nil if the codec sees the source address, or the transport filters by it
	codec    *probe.Codec
	rec      *latency.Recorder
	clock    *latency.Clock
	period   float64 // ticks; 0 for a closed loop
	arrivals *schedule.Process
	answer   func([]byte) []byte
	lost     func(first bool) []byte
	silent   int    // probes since the latest reply
	heard    uint64 // when the latest reply came, or the first probe left
	asking   bool   // lost was called since then
	window   *window
	unpinned bool
	buf      []byte
	reply    probe.Reply
	ipdv     *latency.Track
	slow     slowest
	sample   sample
	looked   uint64         // the latest poll that found nothing
	leaving  *slot          // the probe that was sent since the latest poll
	lag      *latency.Track // open loop: delay of the sender itself
	stamps   *stamps
	stamp    *stampState
	lastPass uint64
	measured bool // the warm-up is over
	lastShow uint64
	showStep uint64
}

// Names of the series that a Stream adds to those of latency.
const (
	ipdvSeries    = "ipdv"    // |difference| of the round trips of successive probes (RFC 3393)
	networkSeries = "network" // STAMP: round trip without the reflector's residence
)

// stallFrom is the shortest time between two polls that is considered as a cause of slow round trips. Sending on a veth
// pair takes two or three microseconds.
const stallFrom = 5 * time.Microsecond

// patienceForReply is how many probes in a row may lack a reply before that is considered unusual.
const patienceForReply = 3

const (
	maxWindow = 1 << 21
	bufSize   = 1 << 17 // the greatest MTU, 65535 bytes (loopback: 65536), with all headers
)

// New returns a Stream with all its memory allocated.
func New(o Options) (*Stream, error) {
	s := &Stream{port: o.Port, codec: o.Codec, rec: o.Recorder, clock: o.Recorder.Clock(), answer: o.Answer,
		lost: o.Unanswered, unpinned: o.Unpinned, buf: make([]byte, bufSize)}
	s.origin, _ = o.Port.(Origin)
	size := 1 << 12
	if o.Rate < 0 || math.IsNaN(o.Rate) || math.IsInf(o.Rate, 0) {
		return nil, fmt.Errorf("rate %v: want probes per second", o.Rate)
	}
	if o.Rate > 0 {
		s.period = s.clock.Info().Frequency / o.Rate
		s.lag = s.rec.Track(latency.LagSeries)
		size = min(2*o.Arrivals.Most(o.Rate*o.Timeout.Seconds())+1<<12, maxWindow)
		s.arrivals = o.Arrivals.Process(rand.Uint64())
	}
	s.window = newWindow(size, s.clock.Ticks(o.Timeout))
	if o.Codec.Flow().Proto == probe.STAMP {
		s.stamp = newStampState(s.rec, o.Codec.Flow(), o.StopAtZero, len(s.window.slots))
		s.window.next = 1 // see stampState.differ
		o.Codec.SetErrorEstimate(s.stamp.estimate)
	}
	if o.Stamps != nil {
		s.stamps = newStamps(o.Stamps, s.rec, len(s.window.slots))
		s.stamps.slow, s.stamps.sample = &s.slow, &s.sample
	}
	s.ipdv = s.rec.Track(ipdvSeries)
	s.sample = sample{kept: make([]Slow, 0, o.Sample), dice: rand.Uint64() | 1}
	s.slow.least = s.clock.Ticks(stallFrom)
	s.showStep = s.clock.Ticks(50 * time.Millisecond)
	return s, nil
}

// Counts returns the measured probes by outcome.
func (s *Stream) Counts() Counts { return s.window.counts }

// PayloadSize returns the bytes of payload of a probe and of its reply.
func (s *Stream) PayloadSize() int { return s.codec.PayloadSize() }

// ErrSend is returned when the port accepts no frame within the timeout.
var ErrSend = errors.New("no frame could be sent")

// ErrBehind is returned by an open loop that falls ever further behind its schedule.
var ErrBehind = errors.New("this host cannot send at the requested rate")

// hopeless is how far a sender may fall behind its schedule before it has to catch up: it then gets as much time again
// to make up for half of that.
const hopeless = time.Second

// backlog follows how late a sender is.
type backlog struct {
	limit       uint64 // ticks
	mark, since uint64 // how late it was when it exceeded the limit, and when; 0 for never
}

// grows reports whether the sender, which is late at the tick now, does not catch up.
func (b *backlog) grows(now, late uint64) bool {
	switch {
	case late < b.mark/2:
		b.mark = 0
	case b.mark == 0 && late > b.limit:
		b.mark, b.since = late, now
	case b.mark != 0:
		return now-b.since > b.mark
	}
	return false
}

// Run measures until the limit or until stop is set. It returns when every probe is answered or overdue. Errors come
// from the port; earlier measurements are kept. The caller has locked the thread, pinned it to a core, and switched the
// garbage collector off.
func (s *Stream) Run(l Limit, stop *atomic.Bool) error {
	if !s.unpinned {
		polling.Pin()
		defer polling.Unpin()
	}
	s.measured = false
	s.lastPass = polling.TSC()
	if err := s.discard(); err != nil {
		return err
	}
	start := polling.TSC()
	s.lastPass, s.lastShow = start, start
	var err error
	if s.period > 0 {
		err = s.open(start, l, stop)
	} else {
		err = s.closed(start, l, stop)
	}
	if err == nil || errors.Is(err, ErrBehind) {
		if failed := s.drain(stop); failed != nil {
			err = failed
		}
	}
	if err != nil && !errors.Is(err, ErrBehind) {
		s.window.abandon(polling.TSC())
	}
	s.window.end()
	if s.stamp != nil {
		s.stamp.end()
	}
	s.rec.End(polling.TSC())
	s.show()
	return err
}

// Discard empties the receive ring of frames that arrived between Runs, and answers those that need it. Foreign frames
// in it do not count as Foreign.
func (s *Stream) Discard() error {
	s.measured = false // the pause since the last Run is not a gap
	before := s.window.counts.Foreign
	err := s.discard()
	s.window.counts.Foreign = before
	if s.stamps != nil {
		s.stamps.collect() // of frames that other streams sent
	}
	return err
}

// discard empties the receive ring of frames that arrived while it was not polled, and answers those that need it.
func (s *Stream) discard() error {
	for end := polling.TSC() + s.clock.Ticks(20*time.Millisecond); ; {
		n, err := s.poll()
		if n == 0 || err != nil || int64(end-polling.TSC()) <= 0 {
			return err
		}
	}
}

// measure ends the warm-up.
func (s *Stream) measure() {
	if s.measured = true; s.stamp != nil {
		s.stamp.begin()
	}
}

// closed sends a probe when the previous one is answered or overdue.
func (s *Stream) closed(start uint64, l Limit, stop *atomic.Bool) error {
	warm := start + s.clock.Ticks(l.Warmup)
	end := uint64(math.MaxUint64)
	first := s.window.counts.Sent
	for !stop.Load() {
		now := polling.TSC()
		if !s.measured && now >= warm {
			s.measure()
			s.rec.Begin(now)
			s.lastPass = max(s.lastPass, now) // the part of a gap during the warm-up does not count
			if l.Duration > 0 {
				end = now + s.clock.Ticks(l.Duration)
			}
		}
		if now >= end || l.Count > 0 && s.window.counts.Sent-first >= l.Count {
			return nil
		}
		if now-s.lastShow > s.showStep {
			s.show()
			s.lastShow = now
		}
		if err := s.send(0, stop); err != nil {
			return err
		}
		at := &s.window.slots[(s.window.next-1)&s.window.mask]
		deadline := at.sent + s.window.timeout
		for at.state == waiting {
			if _, err := s.poll(); err != nil {
				return err
			}
			if polling.TSC() > deadline || stop.Load() {
				break
			}
		}
		if s.stamps != nil {
			s.stamps.collect()
		}
	}
	return nil
}

// open sends each probe when it is due, or immediately if that time has passed. The schedule does not depend on
// replies.
func (s *Stream) open(start uint64, l Limit, stop *atomic.Bool) error {
	start += s.clock.Ticks(20 * time.Microsecond)
	warm := start + s.clock.Ticks(l.Warmup)
	end := uint64(math.MaxUint64)
	if l.Duration > 0 {
		end = warm + s.clock.Ticks(l.Duration)
	}
	late := uint64(math.MaxInt64)
	if l.Behind > 0 {
		late = s.clock.Ticks(l.Behind)
	}
	first, number := s.window.counts.Sent, s.window.next
	lag := backlog{limit: s.clock.Ticks(hopeless)}
	base := s.arrivals.Next()
	for at := 0.0; !stop.Load(); at = s.arrivals.Next() - base {
		intended := start + uint64(at*s.period)
		if !s.measured && intended >= warm {
			s.measure()
			s.rec.Begin(intended)
			s.lastPass = max(s.lastPass, min(intended, polling.TSC()))
		}
		if intended >= end || l.Count > 0 && s.window.counts.Sent-first >= l.Count {
			s.Behind = max(s.Behind, uint64(max(int64(polling.TSC()-intended), 0)))
			return nil
		}
		// at least one pass for each probe, so that replies are seen even if the sender is late
		for wait := true; ; wait = false {
			n, err := s.poll()
			if err != nil {
				return err
			}
			now := polling.TSC()
			if now-s.lastShow > s.showStep {
				s.show()
				s.lastShow = now
				if stop.Load() {
					return nil
				}
			}
			if now >= intended && (n == 0 || !wait) {
				if now-intended > late {
					s.Behind = max(s.Behind, now-intended)
					return nil
				}
				if lag.grows(now, now-intended) {
					s.Behind = max(s.Behind, now-intended)
					frequency := s.clock.Info().Frequency
					return fmt.Errorf("%w: %s probes a second were requested, %s achieved in %s, and it is %s behind its schedule (lower -rate, or measure with -transport raw on a dedicated CPU: -core, -isolate)",
						ErrBehind, latency.FormatRate(frequency/s.period),
						latency.FormatRate(float64(s.window.next-number)/float64(now-start)*frequency),
						latency.FormatNS(float64(s.clock.Nanoseconds(now-start))),
						latency.FormatNS(float64(s.clock.Nanoseconds(now-intended))))
				}
				break
			}
			if n == 0 && s.stamps != nil {
				s.stamps.collect()
			}
		}
		if err := s.send(intended, stop); err != nil {
			return err
		}
	}
	return nil
}

// send builds and sends the next probe. intended is 0 if there is no schedule.
func (s *Stream) send(intended uint64, stop *atomic.Bool) error {
	w, measured := s.window, s.measured
	if s.silent++; s.silent > patienceForReply && s.lost != nil {
		if err := s.unanswered(); err != nil {
			return err
		}
	}
	var t1 uint64
	if s.stamp != nil {
		t1 = NTP(s.stamp.time(s.clock, polling.TSC()))
	}
	frame := s.codec.Build(uint32(w.next), t1)
	sent := polling.TSC()
	if intended == 0 {
		intended = sent
	} else if measured {
		s.lag.Record(sent, s.clock.Between(intended, sent))
	}
	w.send(intended, sent, t1, measured)
	if !measured {
		s.Warmup++
	}
	if s.stamps != nil {
		s.stamps.send(uint32(w.next-1), measured)
	}
	s.leaving = &w.slots[(w.next-1)&w.mask]
	err := s.port.Send(frame)
	if err != nil && !errors.Is(err, nic.ErrFull) {
		s.unsent(&w.slots[(w.next-1)&w.mask])
		return err
	}
	for deadline := sent + w.timeout; errors.Is(err, nic.ErrFull); {
		// The ring is full: make room by receiving, and try again. The probe's intended time is unchanged, its actual
		// time moves.
		s.Full++
		if _, err := s.poll(); err != nil {
			return err
		}
		at := &w.slots[(w.next-1)&w.mask]
		s.leaving = at
		at.sent = polling.TSC()
		if at.sent > deadline || stop.Load() {
			s.unsent(at)
			if stop.Load() {
				return nil
			}
			return fmt.Errorf("%w in %s: %w", ErrSend, latency.FormatNS(float64(s.clock.Nanoseconds(w.timeout))), err)
		}
		if err = s.port.Send(frame); err != nil && !errors.Is(err, nic.ErrFull) {
			s.unsent(at)
		}
	}
	return err
}

// unanswered has the next hop asked for its MAC if the latest probes are overdue.
func (s *Stream) unanswered() error {
	now := polling.TSC()
	if s.heard == 0 {
		s.heard = now
	}
	if int64(now-s.heard) <= int64(s.window.timeout) {
		return nil
	}
	out := s.lost(!s.asking)
	if s.asking = true; out == nil {
		return nil
	}
	if s.stamps != nil {
		s.stamps.other()
	}
	if err := s.port.Send(out); err != nil && !errors.Is(err, nic.ErrFull) { // the request is repeated
		return err
	}
	return nil
}

// unsent records that the probe in a slot did not leave this host.
func (s *Stream) unsent(at *slot) {
	at.state = unsent
	if at.measured {
		s.window.counts.Unsent++
	} else {
		s.window.counts.Silent--
	}
}

// patience is how long an interrupted Run waits for outstanding probes, and any Run for timestamps of sent frames.
const patience = time.Second

// drain waits for outstanding probes.
func (s *Stream) drain(stop *atomic.Bool) error {
	for end := uint64(0); s.window.pending(polling.TSC()); {
		if _, err := s.poll(); err != nil {
			return err
		}
		now := polling.TSC()
		switch {
		case end == 0 && stop.Load():
			end = now + s.clock.Ticks(patience)
		case end != 0 && int64(now-end) > 0:
			s.window.abandon(now)
		}
	}
	if !stop.Load() { // an abandoned probe gets no reply any more, not even a late one
		// If this thread was descheduled when the timeout expired, replies are in the ring: they are late, not lost.
		if err := s.discard(); err != nil {
			return err
		}
	}
	// the kernel delivers timestamps of sent frames slightly later, and the card's by a separate interrupt
	if s.stamps != nil {
		start := polling.TSC()
		for end := start + s.clock.Ticks(2*time.Millisecond); int64(end-polling.TSC()) > 0; {
			s.stamps.collect()
		}
		for end := start + s.clock.Ticks(patience); s.stamps.behind() && int64(end-polling.TSC()) > 0 && !stop.Load(); {
			s.stamps.collect()
		}
		s.stamps.collect()
		s.stamps.abandon()
	}
	return nil
}

// poll receives one frame if there is one.
func (s *Stream) poll() (int, error) {
	now := polling.TSC()
	if s.measured {
		s.Gap.Record(now - s.lastPass)
		s.slow.recordGap(s.lastPass, now)
	}
	s.lastPass = now
	if s.leaving != nil {
		s.leaving.left, s.leaving = now, nil
	}
	n, at, err := s.port.Recv(s.buf)
	if n == 0 || err != nil {
		s.looked = now
		return n, err
	}
	return n, s.receive(s.buf[:n], uint64(at))
}

// receive processes one received frame.
func (s *Stream) receive(b []byte, at uint64) error {
	w := s.window
	switch v := s.codec.Check(b, &s.reply); v {
	case probe.Foreign:
		w.counts.Foreign++
		if s.answer == nil {
			return nil
		}
		out := s.answer(b)
		if out == nil {
			return nil
		}
		if s.stamps != nil {
			s.stamps.other()
		}
		if err := s.port.Send(out); err != nil && !errors.Is(err, nic.ErrFull) { // a neighbour repeats its request
			return err
		}
	case probe.Refused:
		w.counts.Refused++
		if s.reply.Closed {
			w.counts.Closed++
		}
		s.Error = s.reply.Code
	case probe.Corrupt:
		if s.reply.Field == probe.Length {
			s.Payload = s.reply.Payload
		} else if s.origin != nil && !s.origin.FromTarget() {
			s.reply.Field = probe.SourceAddress
		}
		s.reject(s.reply.Field)
	default:
		if s.origin != nil && !s.origin.FromTarget() {
			s.reject(probe.SourceAddress)
			return nil
		}
		if w.ahead(s.reply.Seq) {
			s.reject(probe.SequenceNumber)
			return nil
		}
		if s.stamp != nil && !s.stamp.genuine(w, &s.reply) {
			s.reject(probe.SenderCopy)
			return nil
		}
		if v == probe.Unsummed {
			w.counts.Unsummed++
		}
		slot, e := w.reply(s.reply.Seq, at)
		s.silent, s.heard, s.asking = 0, at, false
		if s.stamp != nil && e != outcome.Stray {
			if err := s.stamp.handleReply(&s.reply); err != nil {
				return err
			}
		}
		if s.stamp != nil && e == outcome.Duplicate {
			s.stamp.duplicated(&s.reply)
		}
		if e == outcome.Stray || e == outcome.Duplicate || !slot.measured {
			return nil
		}
		if s.reply.CE {
			w.counts.CE++
		}
		counted := s.rec.Record(slot.intended, slot.sent, at)
		s.variation(s.reply.Seq, at)
		far := unknownFar
		if s.stamp != nil {
			far = s.stamp.record(s, slot, at)
		}
		if s.stamps != nil {
			s.stamps.receive(s.reply.Seq, at)
		}
		if counted {
			k := Slow{Intended: slot.intended, Sent: slot.sent, Seen: at, Left: slot.left, Looked: s.looked, Far: far}
			if s.stamps != nil && s.slow.takes(k.RTT()) {
				k.NIC = s.stamps.keep(s.reply.Seq, 0)
			}
			s.slow.add(&k)
			if cap(s.sample.kept) > 0 {
				if at := s.sample.place(); at > 0 {
					if s.stamps != nil {
						k.NIC = s.stamps.keep(s.reply.Seq, at)
					}
					s.sample.kept[at-1] = k
				}
			}
		}
	}
	return nil
}

// reject counts a reply by its first wrong field.
func (s *Stream) reject(wrong probe.Field) {
	s.window.counts.Corrupt++
	s.Fields[wrong]++
	measured := s.measured
	of, _, known := s.window.find(s.reply.Seq)
	if known = known && s.reply.HasSeq && wrong != probe.RunTag; known { // another run has its own numbers
		measured = of.measured
		s.window.spoil(s.reply.Seq)
	}
	if !measured {
		s.window.counts.CorruptInWarmup++
		return
	}
	if !known {
		s.Unmatched++
	}
	_, why := outcome.Of(wrong.Reason(), known, false, false)
	s.Rejected[why]++
}

// show publishes the counters for a progress bar.
func (s *Stream) show() {
	s.Progress.Sent.Store(s.window.counts.Sent)
	s.Progress.Received.Store(s.window.counts.Received + s.window.counts.Late)
}
