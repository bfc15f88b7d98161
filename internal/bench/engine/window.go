package engine

import "github.com/rebound-nic/rebound/latency/outcome"

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
	if size := uint64(len(w.slots)); w.next >= size && w.judged <= w.next-size {
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
	return w.next == 0 || int32(seq-uint32(w.next-1)) > 0 || w.next < 1<<31 && uint64(seq) >= w.next
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
