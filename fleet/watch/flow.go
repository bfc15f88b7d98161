package watch

import (
	"sync/atomic"

	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/internal/bench/socket"
)

// flow is a target as the loop sees it. Once a plan with it was offered, only the loop may access it, except for marked
// fields.
type flow struct {
	id       int32  // used by the keeper
	interval uint64 // ticks between probes
	codec    *probe.Codec
	stamp    bool
	wire     *wire
	hop      *hop             // of frames
	mac      uint64           // what the codec has of it
	peer     socket.Peer      // if wire is a socket
	ports    []uint16         // source ports; nil if there is only one
	paths    []uint32         // number of probes from each of them
	at       int              // index of the next probe's source port
	frames   bool             // the codec chooses the source port, by the probe's number
	tracers  []*socket.Shared // on these ports, for traces; nil if the kernel does not own the source address
	tracing  atomic.Pointer[tracing]

	turn   uint64 // of the schedule: when the next probe is due; 0 if it is new
	next   uint64 // of the next probe
	high   uint64 // one more than the highest number answered
	missed []int  // by source port: consecutive probes without a reply
	slots  []slot // the latest probes; their number is a power of two
}

// slot is one of a flow's latest probes.
type slot struct {
	seq     uint64
	sent    uint64 // ticks
	left    uint64 // ticks: after the device or the kernel had it
	t1      uint64 // STAMP: the timestamp in the probe
	state   progress
	path    uint8  // index of its source port
	nth     uint32 // STAMP: its number for the direction of loss
	corrupt bool   // a rejected reply came
	awaited bool   // the loop polls for its reply without sleeping
}

type progress uint8

const (
	empty progress = iota
	waiting
	overdue
	done
)

// firstNth is the first number of a source port's probes for the direction of loss, which ignores those before the
// skipped one.
const firstNth = 2

// patience is the number of consecutive losses on a path after which the loop sleeps while it waits for the path's next
// reply.
const patience = 3

func newFlow(id int32, codec *probe.Codec, slots int) *flow {
	n := 8
	for n < slots {
		n *= 2
	}
	return &flow{id: id, codec: codec, stamp: codec.Flow().Proto == probe.STAMP, slots: make([]slot, n),
		missed: make([]int, 1)}
}

// nextNumber allocates the number of the next probe. STAMP's second number is skipped: a stateful reflector then counts
// one less than its sender from there on, which distinguishes it from one that repeats the sender's numbers.
func (f *flow) nextNumber() uint64 {
	if f.stamp && f.next == 1 {
		f.next++
	}
	seq := f.next
	f.next++
	return seq
}

// from sets the source port of the next probe, whose number on the wire is seq.
func (f *flow) from(s *slot, seq uint64) {
	if s.nth = uint32(seq); f.paths == nil {
		return
	}
	if f.frames {
		f.at = int(uint32(seq) % uint32(len(f.paths)))
	}
	s.path, s.nth = uint8(f.at), firstNth+f.paths[f.at]
}

// rotate continues with the next source port, after a probe was sent from s.path or could not be sent.
func (f *flow) rotate(s *slot, sent bool) {
	if f.paths == nil {
		return
	}
	if sent {
		f.paths[s.path]++
	}
	f.at = (f.at + 1) % len(f.paths)
}

// hopeful reports whether a path is expected to answer its next probe.
func (f *flow) hopeful(path uint8) bool { return f.missed[path] < patience }

// find returns the slot of the probe with that number on the wire, nil if it was forgotten or never sent.
func (f *flow) find(seq uint32) *slot {
	age := uint64(uint32(f.next-1) - seq)
	if f.next == 0 || age >= min(f.next, uint64(len(f.slots))) {
		return nil
	}
	full := f.next - 1 - age
	if s := &f.slots[full&uint64(len(f.slots)-1)]; s.state != empty && s.seq == full {
		return s
	}
	return nil
}

// ahead reports whether no probe has been sent yet with this number on the wire.
func (f *flow) ahead(seq uint32) bool {
	return f.next == 0 || int32(seq-uint32(f.next-1)) > 0 || f.next < 1<<31 && uint64(seq) >= f.next
}

// spoil records a rejected reply to the probe. A good one may still come. s may be nil.
func (s *slot) spoil() {
	if s != nil {
		s.corrupt = true
	}
}
