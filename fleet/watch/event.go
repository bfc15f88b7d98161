package watch

import (
	"sync/atomic"

	"github.com/rebound-nic/rebound/internal/bench/engine"
	"github.com/rebound-nic/rebound/latency/outcome"
)

// kind is the outcome of a probe, or the type of a received packet.
type kind uint8

const (
	sent      kind = iota
	unsent         // the device or the kernel refused it
	answered       // in time
	missed         // not answered within the timeout
	late           // answered after the timeout
	duplicate      // an additional reply
	corrupt        // a rejected reply
	refused        // an ICMP error about a probe
	kinds
)

// event is a message from the loop to the keeper.
type event struct {
	flow      int32
	kind      kind
	reordered bool   // a later probe's reply came first
	untimed   bool   // it arrived while the loop slept, so ns is meaningless
	closed    bool   // refused: by the target, because nothing listens at the port
	stamped   bool   // seq, number and far are set
	copied    bool   // STAMP: the reflector's number is the probe's own
	path      uint8  // index of the probe's source port; 0 if there is only one
	ns        int64  // answered, late: the round trip from the actual send; missed: the time since the timeout
	seq       uint32 // STAMP: the probe's number, among those from its source port if there are several
	number    uint32 // STAMP: the reflector's own

	// For answered and late: how long this host took to send the probe, and the most that the reply can have waited for
	// the loop, in ns; negative is unknown.
	held, waited int64
	far          engine.Far // the responder's part, as far as it reports it; without one-way delays

	corrupt bool           // missed: a rejected reply came
	wrong   outcome.Reason // corrupt
	why     error          // unsent
	// For missed and late: the probe's number. For missed: its wire, when it was sent, and the time until which a reply
	// makes it late.
	probe       uint64
	sent, until uint64 // ticks
	wire        *wire
}

// byOthers reports whether other hosts determine how often k occurs. All other events occur at most a few times per
// probe.
func (k kind) byOthers() bool { return k == duplicate || k == corrupt || k == refused }

// ring passes events from the loop to the keeper. There is one goroutine at each end, and no lock: the loop never
// waits, and events without room are dropped and counted. Half of the room is reserved for the outcomes of the watch's
// own probes, however much traffic others send.
type ring struct {
	buf        []event
	head, tail atomic.Uint64
	dropped    atomic.Uint64
}

func newRing(size int) *ring { return &ring{buf: make([]event, size)} } // a power of two

// ringSize returns the size of a ring that holds the events of 20 seconds at this many probes per second, within
// bounds.
func ringSize(rate float64) int {
	n := 1 << 13
	for n < 1<<16 && float64(n) < 20*rate {
		n *= 2
	}
	return n
}

// put adds an event, or counts it as dropped if the ring is full. It neither waits nor allocates. Events that others
// cause may fill half of the ring, so that they do not displace our own.
func (r *ring) put(e event) {
	t, room := r.tail.Load(), uint64(len(r.buf))
	if e.kind.byOthers() {
		room /= 2
	}
	if t-r.head.Load() >= room {
		r.dropped.Add(1)
		return
	}
	r.buf[t&uint64(len(r.buf)-1)] = e
	r.tail.Store(t + 1)
}

// drain calls take with all available events.
func (r *ring) drain(take func(*event)) {
	h, t := r.head.Load(), r.tail.Load()
	for ; h != t; h++ {
		take(&r.buf[h&uint64(len(r.buf)-1)])
	}
	r.head.Store(h)
}
