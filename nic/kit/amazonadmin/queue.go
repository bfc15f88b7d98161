package amazonadmin

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/kit"
	"github.com/rebound-nic/rebound/nic/kit/cmdtrace"
)

// EntrySize is the size in bytes of a command, of a completion and of an event.
const EntrySize = 64

// Header is the start of every command.
type Header struct {
	ID     uint16 // 11:0, set by Exec
	Opcode uint8
	Flags  uint8 // bit 0: phase, set by Exec; see FlagXxx
}

const (
	idMask           = 0xFFF
	flagPhase        = 1 << 0
	FlagCtrlData     = 1 << 1 // the command's control buffer address is valid
	FlagCtrlIndirect = 1 << 2 // it points to a list of pages
)

// Completion is the start of every completion.
type Completion struct {
	ID             uint16
	Status         uint8
	Flags          uint8 // bit 0: phase
	ExtendedStatus uint16
	SQHead         uint16
}

// Status is the outcome of a command.
type Status uint8

var statusNames = [...]string{"success", "resource allocation failure", "bad opcode", "unsupported opcode",
	"malformed request",
	"illegal parameter", "unknown error", "resource busy"}

// The outcomes that callers distinguish.
const (
	Success           Status = 0
	UnsupportedOpcode Status = 3
	IllegalParameter  Status = 5
)

func (s Status) String() string {
	if int(s) < len(statusNames) {
		return statusNames[s]
	}
	return fmt.Sprintf("status %d", uint8(s))
}

// CommandError reports a command that the device refused.
type CommandError struct {
	Device, Command string
	Status          Status
	Extended        uint16
}

func (e *CommandError) Error() string {
	return fmt.Sprintf("%s: %s: %v (extended status %#x)", e.Device, e.Command, e.Status, e.Extended)
}

// Queue is the admin queue and its completion queue, polled. Any number of goroutines, up to the depth, may execute
// commands at the same time. The device completes them in any order.
type Queue struct {
	regs    *Regs
	timeout time.Duration
	depth   uint16

	mu     sync.Mutex
	sq, cq unsafe.Pointer
	tail   uint16 // commands written, running freely
	head   uint16 // completions consumed, running freely
	busy   []command
	broken error // set once the device did not answer: it gets no more commands before a reset
}

// command is a pending command in one slot, which the low bits of its identifier name.
type command struct {
	used, done bool
	id         uint16 // as the completion must repeat it
	entry      [EntrySize]byte
}

// NewQueue sets up an admin queue of depth entries, a power of two. timeout limits each command.
func NewQueue(r *Regs, a *dma.Arena, depth int, timeout time.Duration) (*Queue, error) {
	sq, err := a.Alloc(depth*EntrySize, 4096)
	if err != nil {
		return nil, err
	}
	cq, err := a.Alloc(depth*EntrySize, 4096)
	if err != nil {
		return nil, err
	}
	r.writeAddr(AQ_BASE_LO, AQ_BASE_HI, sq.IOVA)
	r.writeAddr(ACQ_BASE_LO, ACQ_BASE_HI, cq.IOVA)
	r.Write(AQ_CAPS, uint32(depth)|EntrySize<<16)
	r.Write(ACQ_CAPS, uint32(depth)|EntrySize<<16)
	return &Queue{
		regs: r, timeout: timeout, depth: uint16(depth), busy: make([]command, depth), sq: kit.Pointer(sq),
		cq: kit.Pointer(cq),
	}, nil
}

// Exec runs one command and waits for its completion. C starts with a Header and R with a Completion; both have at most
// EntrySize bytes. name is for errors. It returns a *CommandError if the device refuses the command, and an error that
// wraps nic.ErrTimeout if the device does not complete it in time. After a timeout the queue is unusable until the
// device is reset.
func Exec[C, R any](q *Queue, name string, c *C, r *R) error {
	if unsafe.Sizeof(*c) > EntrySize || unsafe.Sizeof(*r) > EntrySize {
		panic(fmt.Sprintf("amazonadmin: %s: command of %d or completion of %d bytes", name, unsafe.Sizeof(*c),
			unsafe.Sizeof(*r)))
	}
	var in, out [EntrySize]byte
	copy(in[:], unsafe.Slice((*byte)(unsafe.Pointer(c)), unsafe.Sizeof(*c)))
	began := time.Now()
	err := q.exec(name, &in, &out)
	q.record(name, &in, &out, time.Since(began), err)
	if err != nil {
		return err
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(r)), unsafe.Sizeof(*r)), out[:])
	return nil
}

// record traces a command. Its number and phase are left out of the bytes: they say nothing about the device.
func (q *Queue) record(name string, in, out *[EntrySize]byte, took time.Duration, err error) {
	e := cmdtrace.Entry{Kind: cmdtrace.Command, Name: name, Opcode: uint32(in[2]), Took: took,
		In: cmdtrace.Bytes(in[:])}
	if get := q.regs.dialect.GetFeature; in[2] == get || in[2] == get+1 {
		e.Modifier = uint32(in[featureID])
	}
	if c := (*Completion)(unsafe.Pointer(out)); *out != [EntrySize]byte{} {
		e.Status, e.Syndrome, e.Out = uint32(c.Status), uint32(c.ExtendedStatus), cmdtrace.Bytes(out[:])
	}
	if err != nil {
		e.Err = err.Error()
	}
	q.regs.trace.Add(e)
}

const featureID = 17 // where commands that read or set a feature name it

// exec submits an admin command and polls for its completion, which is in out afterwards. An error is a CommandError
// if the device refuses the command; after a time-out the queue stays unusable.
func (q *Queue) exec(name string, in, out *[EntrySize]byte) error {
	id, err := q.submit(name, in)
	if err != nil {
		return err
	}
	for end := kit.NewDeadline(q.timeout, leastLooks); ; time.Sleep(5 * time.Microsecond) {
		late := end.Over()
		if done, err := q.collect(id, out); done || err != nil {
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			break
		}
		if late {
			return q.fail(fmt.Errorf("%s: %w: %s did not complete in %v", q.regs.name, q.silence(), name, q.timeout))
		}
	}
	if c := (*Completion)(unsafe.Pointer(out)); Status(c.Status) != Success {
		return &CommandError{Device: q.regs.name, Command: name, Status: Status(c.Status), Extended: c.ExtendedStatus}
	}
	return nil
}

// silence distinguishes a device that is gone from a slow one.
func (q *Queue) silence() error {
	if q.regs.Gone() {
		return nic.ErrGone
	}
	return nic.ErrTimeout
}

// fail makes the queue refuse all further commands, because a late completion could be mistaken for another command's.
func (q *Queue) fail(err error) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.broken == nil {
		q.broken = err
	}
	return err
}

// Err returns why the queue refuses everything, or nil.
func (q *Queue) Err() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.broken
}

// submit writes a command under a free identifier and rings the doorbell.
func (q *Queue) submit(name string, in *[EntrySize]byte) (id uint16, err error) {
	for {
		q.mu.Lock()
		if q.broken != nil {
			defer q.mu.Unlock()
			return 0, fmt.Errorf("%s: the admin queue is dead: %w", name, q.broken)
		}
		for id = 0; id < q.depth && q.busy[id].used; id++ {
		}
		if id < q.depth {
			break
		}
		q.mu.Unlock()
		time.Sleep(10 * time.Microsecond)
	}
	defer q.mu.Unlock()
	h := (*Header)(unsafe.Pointer(in))
	h.ID = id
	if q.regs.dialect.LongIDs {
		h.ID |= q.tail * q.depth & idMask
	}
	q.busy[id] = command{used: true, id: h.ID}
	h.Flags = h.Flags&^flagPhase | phase(q.tail, q.depth)
	at := unsafe.Add(q.sq, int(q.tail&(q.depth-1))*EntrySize)
	*(*[EntrySize]byte)(at) = *in
	q.tail++
	q.regs.Write(AQ_DB, uint32(q.tail)) // Write orders it after the entry
	return id, nil
}

// phase is the phase bit of the entry with the free-running number n: 1 in the first round.
func phase(n, depth uint16) uint8 { return uint8(^(n / depth) & 1) }

// collect reads waiting completions and reports whether the one of id has been read, now or earlier.
func (q *Queue) collect(id uint16, out *[EntrySize]byte) (bool, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for !q.busy[id].done {
		if q.broken != nil {
			return false, q.broken
		}
		at := unsafe.Add(q.cq, int(q.head&(q.depth-1))*EntrySize)
		// identifier, status and flags in one load (nic/memory-order.md: done, then the rest)
		word := atomic.LoadUint32((*uint32)(at))
		if uint8(word>>24)&flagPhase != phase(q.head, q.depth) {
			return false, nil
		}
		full := uint16(word) & idMask
		got := full & (q.depth - 1)
		if !q.busy[got].used || q.busy[got].done || q.busy[got].id != full {
			q.broken = fmt.Errorf("%s: %w: completion for command %d, which is not outstanding", q.regs.name, ErrDevice,
				full)
			return false, q.broken
		}
		q.busy[got].entry = *(*[EntrySize]byte)(at)
		q.busy[got].done = true
		q.head++
	}
	*out = q.busy[id].entry
	q.busy[id] = command{}
	return true, nil
}
