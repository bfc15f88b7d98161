package engine

import (
	"math/bits"

	"github.com/rebound-nic/rebound/latency/outcome"
	"github.com/rebound-nic/rebound/nic"
)

// window remembers the latest probes of a stream and classifies replies. Every operation takes constant time and
// allocates nothing. Sequence numbers have 64 bits here and 32 on the wire.
type window struct {
	slots []slot // their number is a power of two
	mask  uint64
	next  uint64 // of the next probe
	tail  uint64 // all probes before it are answered or overdue
	high  uint64 // one more than the highest sequence number answered (RFC 4737's NextExp)

	timeout uint64 // ticks
	counts  Counts

	judged, arrived uint64                // probes whose outcome is in seq; replies
	losing          int64                 // consecutive losses so far
	arrivals        [maxExtent + 1]uint64 // sequence numbers of the latest replies
	seq             Sequence
}

type slot struct {
	intended, sent uint64 // ticks
	left           uint64 // tick of the first poll after it was sent
	t1             uint64 // STAMP: the timestamp in the probe
	rtt            uint64 // ticks from sent, once answered; 0 before
	state          state
	measured       bool // not part of the warm-up
}

type state uint8

const (
	waiting state = iota
	spoiled       // a rejected reply came, and no accepted one yet
	answered
	unsent    // the driver refused it
	abandoned // not awaited
)

// Counts has the measured probes of a stream by outcome.
type Counts struct {
	Sent            int64 `json:"sent"`
	Received        int64 `json:"received"`              // answered within the timeout
	Late            int64 `json:"late"`                  // answered after it
	Spoiled         int64 `json:"answered_corrupt_only"` // answered by rejected replies only
	Duplicates      int64 `json:"duplicates"`            // replies to probes that were already answered
	Reordered       int64 `json:"reordered"`             // replies that a later probe's reply overtook (RFC 4737 §3)
	Corrupt         int64 `json:"corrupt"`               // rejected replies, warm-up included
	CorruptInWarmup int64 `json:"corrupt_in_warmup"`     // of Corrupt
	// good replies whose UDP checksum was absent or left to an offload
	Unsummed int64 `json:"unsummed"`
	Refused  int64 `json:"icmp_errors"` // ICMP errors
	// those in Refused that report that nothing listens at the port or protocol
	Closed int64 `json:"port_unreachable"`
	// replies to probes that the window has forgotten, or that were never sent
	Stray  int64 `json:"stray"`
	Unsent int64 `json:"send_failed"` // the driver refused the frame: included in Sent
	// not awaited until the timeout, because the Run was interrupted or the port failed: not included in Sent
	Abandoned int64 `json:"abandoned"`
	// replies that a router marked Congestion Experienced (RFC 3168), or whose probe it marked, if the target copies
	// the mark
	CE      int64 `json:"ce_marked"`
	Foreign int64 `json:"foreign"`           // frames that do not belong to this stream, warm-up included
	Silent  int64 `json:"warmup_unanswered"` // probes of a warm-up without a reply
}

// Unanswered returns how many of the sent probes got no reply, wherever they were dropped.
func (c *Counts) Unanswered() int64 { return c.Sent - c.Received - c.Late - c.Spoiled - c.Unsent }

// newWindow remembers at least size probes.
func newWindow(size int, timeout uint64) *window {
	n := 64
	for n < size {
		n *= 2
	}
	w := &window{slots: make([]slot, n), mask: uint64(n - 1), timeout: timeout}
	for i := range w.slots {
		w.slots[i].state = answered // touches every page, and no reply matches a probe that was never sent
	}
	return w
}

// send allocates the next sequence number.
func (w *window) send(intended, sent, t1 uint64, measured bool) {
	if size := uint64(len(w.slots)); w.next >= size {
		w.judge(w.next - size + 1)
	}
	w.slots[w.next&w.mask] = slot{intended: intended, sent: sent, t1: t1, state: waiting, measured: measured}
	w.next++
	if measured {
		w.counts.Sent++
	} else {
		w.counts.Silent++
	}
}

// find returns the slot of the probe whose sequence number on the wire is seq.
func (w *window) find(seq uint32) (*slot, uint64, bool) {
	age := uint64(uint32(w.next-1) - seq)
	if age >= min(w.next, uint64(len(w.slots))) {
		return nil, 0, false
	}
	full := w.next - 1 - age
	return &w.slots[full&w.mask], full, true
}

// ahead reports whether no probe has been sent yet with this number on the wire.
func (w *window) ahead(seq uint32) bool {
	return int32(seq-uint32(w.next-1)) > 0 || uint64(seq) >= w.next
}

// reply counts an accepted reply to seq, seen at tick at, and classifies it. The slot is nil for a stray.
func (w *window) reply(seq uint32, at uint64) (*slot, outcome.Kind) {
	s, full, ok := w.find(seq)
	e, _ := outcome.Of(outcome.None, ok, ok && s.state >= answered, ok && int64(at-s.sent) <= int64(w.timeout))
	switch {
	case e == outcome.Stray:
		w.counts.Stray++
		return nil, e
	case e == outcome.Duplicate:
		if s.measured {
			w.counts.Duplicates++
		}
		return s, e
	}
	was := s.state
	s.state = answered
	s.rtt = max(at-s.sent, 1)
	overtaken := full < w.high
	w.high = max(w.high, full+1)
	w.arrive(full, overtaken && s.measured)
	if !s.measured {
		w.counts.Silent--
		return s, e
	}
	if was == spoiled {
		w.counts.Spoiled--
	}
	if overtaken {
		w.counts.Reordered++
	}
	if e == outcome.Late {
		w.counts.Late++
	} else {
		w.counts.Received++
	}
	return s, e
}

// spoil records that a rejected reply seemed to answer seq. A later accepted reply replaces it.
func (w *window) spoil(seq uint32) {
	if s, _, ok := w.find(seq); ok && s.state == waiting {
		s.state = spoiled
		if s.measured {
			w.counts.Spoiled++
		}
	}
}

// pending reports whether a probe is still waiting for a reply that would be in time at tick now.
func (w *window) pending(now uint64) bool {
	if w.next > uint64(len(w.slots)) {
		w.tail = max(w.tail, w.next-uint64(len(w.slots)))
	}
	for ; w.tail < w.next; w.tail++ {
		s := &w.slots[w.tail&w.mask]
		if s.state == waiting && int64(now-s.sent) <= int64(w.timeout) {
			return true
		}
	}
	return false
}

// abandon removes the probes that would still be in time at tick now from the counts.
func (w *window) abandon(now uint64) {
	for ; w.pending(now); w.tail++ {
		s := &w.slots[w.tail&w.mask]
		s.state = abandoned
		if s.measured {
			w.counts.Sent--
			w.counts.Abandoned++
		}
	}
}

// Sequence describes the order of the measured replies, and the gaps in it.
type Sequence struct {
	// Consecutive losses (loss periods of RFC 3357 §3). The end of a run ends one.
	LossPeriods, LongestLoss int64
	LossLengths              [lossLengths]int64 // periods by length; the last entry includes longer ones

	// The greatest reordering extent (RFC 4737 §4.2.1): how many replies came between the first one sent after a probe
	// and that probe's own. It is limited to maxExtent.
	Extent int64
}

const (
	lossLengths = 33
	maxExtent   = 255
)

// judge adds the probes before to, all of which are answered or never will be, to the loss periods.
func (w *window) judge(to uint64) {
	for ; w.judged < to; w.judged++ {
		s := &w.slots[w.judged&w.mask]
		switch {
		case !s.measured:
		case s.state == waiting:
			w.losing++
		case s.state == answered || s.state == spoiled:
			w.endLoss()
		}
	}
}

func (w *window) endLoss() {
	if w.losing == 0 {
		return
	}
	w.seq.LossPeriods++
	w.seq.LongestLoss = max(w.seq.LongestLoss, w.losing)
	w.seq.LossLengths[min(w.losing, lossLengths-1)]++
	w.losing = 0
}

// end evaluates the remaining probes of a run.
func (w *window) end() {
	w.judge(w.next)
	w.endLoss()
}

// arrive records the first good reply to a probe. overtaken means that a later probe's reply came before it.
func (w *window) arrive(full uint64, overtaken bool) {
	if overtaken {
		extent := int64(0)
		for k := uint64(1); k <= min(w.arrived, maxExtent); k++ {
			if w.arrivals[(w.arrived-k)%(maxExtent+1)] > full {
				extent = int64(k)
			}
		}
		w.seq.Extent = max(w.seq.Extent, extent)
	}
	w.arrivals[w.arrived%(maxExtent+1)] = full
	w.arrived++
}

// variation records the differences in round trip between the probe seq, which was just answered, and its neighbours
// that are already answered: the packet pairs of RFC 3393 §3.1, applied to round trips.
func (s *Stream) variation(seq uint32, at uint64) {
	this, _, _ := s.window.find(seq)
	for _, next := range [...]uint32{seq - 1, seq + 1} {
		if o, _, ok := s.window.find(next); ok && o.rtt != 0 && o.measured {
			s.ipdv.Record(at, s.clock.Nanoseconds(max(this.rtt, o.rtt)-min(this.rtt, o.rtt)))
		}
	}
}

// Sequence returns the loss periods and the reordering.
func (s *Stream) Sequence() Sequence { return s.window.seq }

// slowestKept is how many of the slowest round trips a Stream keeps.
const slowestKept = 1000

// Slow is one of the slowest round trips. All times are in ticks.
type Slow struct {
	Intended, Sent, Seen uint64 // Intended is equal to Sent in a closed loop
	// the part of Intended to Seen during which the bench stalled: late polls of the receive ring
	Away uint64

	Left   uint64 // after the port took it
	Looked uint64 // the last poll of the receive ring before Seen that found nothing
	Far    Far
	NIC    NIC
}

// NIC has the card's timestamps of a probe, or the kernel's next to the card, and how their clock is related to ticks.
// It is zero without them. Times are in ns.
type NIC struct {
	Sent, Seen   int64  // when the probe left, and when the reply came; 0 if unknown
	Clock        int64  // what the clock showed
	Tick, Within uint64 // between Tick and Tick + Within
	Card         bool   // by the card's clock; otherwise by CLOCK_REALTIME

	seq uint32
}

// sent sets when the probe seq left, if n is of it and has timestamps of the same clock.
func (n *NIC) sent(seq uint32, t *nic.Timestamp) {
	if n.Tick != 0 && n.seq == seq && n.Card == t.Hardware {
		n.Sent = t.Nanoseconds
	}
}

// Far is what a STAMP reflector reported of a probe. Durations are in ns; negative is unknown.
type Far struct {
	Residence   int64 // T2 to T3
	Wait        int64 // at most this long before T2 the probe waited for the reflector's loop
	There, Back int64 // by both clocks
	Seen        int64 // T2 in ns since 1970 by its clock; 0 if unknown
	Ahead       int32 // test packets ahead of it
}

var unknownFar = Far{Residence: -1, Wait: -1}

// RTT returns the round trip from the intended send, in ticks.
func (s *Slow) RTT() uint64 { return s.Seen - s.Intended }

// slowest is a heap of the slowest round trips, the least slow on top, and the latest stalls. It allocates nothing.
type slowest struct {
	kept [slowestKept]Slow
	n    int

	least  uint64 // ticks: the shortest stall
	stalls [1 << 10]stall
	count  uint64 // of all stalls
}

type stall struct{ from, to uint64 }

// recordGap records the time from one poll of the receive ring to the next.
func (s *slowest) recordGap(from, to uint64) {
	if to-from >= s.least {
		s.stalls[s.count%uint64(len(s.stalls))] = stall{from, to}
		s.count++
	}
}

// takes reports whether a round trip of so many ticks is among the slowest.
func (s *slowest) takes(rtt uint64) bool { return s.n < len(s.kept) || rtt > s.kept[0].RTT() }

// sent sets when the probe seq left, if its round trip is kept.
func (s *slowest) sent(seq uint32, t *nic.Timestamp) {
	for i := range s.kept[:s.n] {
		s.kept[i].NIC.sent(seq, t)
	}
}

// add keeps a round trip if it is among the slowest.
func (s *slowest) add(k *Slow) {
	intended, seen := k.Intended, k.Seen
	if s.n < len(s.kept) {
		k.Away = s.away(intended, seen)
		i := s.n
		s.n++
		for ; i > 0 && s.kept[(i-1)/2].RTT() > k.RTT(); i = (i - 1) / 2 {
			s.kept[i] = s.kept[(i-1)/2]
		}
		s.kept[i] = *k
		return
	}
	if !s.takes(k.RTT()) {
		return
	}
	k.Away = s.away(intended, seen)
	i := 0
	for {
		c := 2*i + 1
		if c >= s.n {
			break
		}
		if c+1 < s.n && s.kept[c+1].RTT() < s.kept[c].RTT() {
			c++
		}
		if s.kept[c].RTT() >= k.RTT() {
			break
		}
		s.kept[i] = s.kept[c]
		i = c
	}
	s.kept[i] = *k
}

// away returns how much of the time between two ticks is in the latest stalls.
func (s *slowest) away(from, to uint64) (sum uint64) {
	for k := s.count; k > 0 && s.count-k < uint64(len(s.stalls)); k-- {
		st := s.stalls[(k-1)%uint64(len(s.stalls))]
		if int64(st.to-from) <= 0 {
			break
		}
		if a, b := max(st.from, from), min(st.to, to); a < b {
			sum += b - a
		}
	}
	return sum
}

// Slowest returns the slowest measured round trips, at most slowestKept, in no order.
func (s *Stream) Slowest() []Slow { return s.slow.kept[:s.slow.n] }

// sample keeps a uniform random sample of the round trips. It allocates nothing after its creation.
type sample struct {
	kept []Slow // its capacity is the size
	seen uint64
	dice uint64
}

// place returns where the next round trip is to be kept, from 1, or 0 if it is not: with the same probability as every
// other one seen (reservoir sampling, with a xorshift generator). It does not allocate.
func (s *sample) place() int {
	s.seen++
	if len(s.kept) < cap(s.kept) {
		s.kept = s.kept[:len(s.kept)+1]
		return len(s.kept)
	}
	s.dice ^= s.dice << 13
	s.dice ^= s.dice >> 7
	s.dice ^= s.dice << 17
	if i, _ := bits.Mul64(s.dice, s.seen); i < uint64(len(s.kept)) {
		return int(i) + 1
	}
	return 0
}

// Sample returns a random sample of the measured round trips, of at most Options.Sample.
func (s *Stream) Sample() []Slow { return s.sample.kept }
