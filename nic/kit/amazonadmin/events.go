package amazonadmin

import (
	"sync/atomic"
	"unsafe"

	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/kit"
)

// Event is one asynchronous event.
type Event struct {
	Group     uint16
	Syndrome  uint16
	flags     uint8 // bit 0: phase
	_         [3]byte
	Timestamp uint64
	Data      [48]byte
}

var _ [EntrySize]byte = [unsafe.Sizeof(Event{})]byte{}

// Events is the asynchronous event queue, polled by one goroutine.
type Events struct {
	regs  *Regs
	ring  unsafe.Pointer
	depth uint16
	head  uint16 // events consumed, running freely
	taken uint16 // of these, reported to the device
}

// NewEvents sets up an event queue of depth entries, a power of two.
func NewEvents(r *Regs, a *dma.Arena, depth int) (*Events, error) {
	b, err := a.Alloc(depth*EntrySize, 4096)
	if err != nil {
		return nil, err
	}
	r.writeAddr(AENQ_BASE_LO, AENQ_BASE_HI, b.IOVA)
	r.Write(AENQ_CAPS, uint32(depth)|EntrySize<<16)
	return &Events{regs: r, ring: kit.Pointer(b), depth: uint16(depth)}, nil
}

// Start makes all entries available to the device, which then reports events.
func (e *Events) Start() { e.regs.Write(AENQ_HEAD_DB, uint32(e.free())) }

// free returns the doorbell value for the entries consumed so far.
func (e *Events) free() uint16 {
	if e.regs.dialect.EventsFromZero {
		return e.head
	}
	return e.head + e.depth
}

// Next returns a copy of the oldest event that has not been returned yet.
func (e *Events) Next() (ev Event, ok bool) {
	at := unsafe.Add(e.ring, int(e.head&(e.depth-1))*EntrySize)
	flags := atomic.LoadUint32((*uint32)(unsafe.Add(at, unsafe.Offsetof(ev.flags))))
	if uint8(flags)&1 != phase(e.head, e.depth) {
		return Event{}, false
	}
	e.head++
	return *(*Event)(at), true
}

// Done returns the entries of all events returned so far to the device.
func (e *Events) Done() {
	if e.taken != e.head {
		e.taken = e.head
		e.regs.Write(AENQ_HEAD_DB, uint32(e.free()))
	}
}
