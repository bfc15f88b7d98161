package amazonadmin

import (
	"encoding/binary"
	"errors"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// device is the peer of the queues, played by the test: its registers are a trap, its memory is ours (IOVA 0 is the
// arena's start).
type device struct {
	mu     sync.Mutex
	arena  *dma.Arena
	mem    []byte
	regs   [0x80]byte
	tail   uint16 // commands taken
	acq    uint16 // completions written
	gone   bool
	depth  uint16
	answer func(d *device, command []byte) // called for each command, with the lock held
}

func (d *device) Map(m dma.Memory) (uint64, error) { d.mem = m.Bytes; return 0, nil }
func (d *device) Unmap(uint64, int) error          { return nil }

func (d *device) ReadBAR(off uint64, p []byte) error {
	if d.gone {
		return errors.New("gone")
	}
	copy(p, d.regs[off:])
	return nil
}

func (d *device) WriteBAR(off uint64, p []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	copy(d.regs[off:], p)
	v := binary.LittleEndian.Uint32(p)
	switch Reg(off) {
	case MMIO_REG_READ:
		at := binary.LittleEndian.Uint64(d.regs[MMIO_RESP_LO:])
		copy(d.mem[at+4:], d.regs[v>>16:][:4])
		binary.LittleEndian.PutUint16(d.mem[at+2:], uint16(v>>16))
		binary.LittleEndian.PutUint16(d.mem[at:], uint16(v))
	case AQ_DB:
		base := binary.LittleEndian.Uint64(d.regs[AQ_BASE_LO:])
		for ; d.tail != uint16(v); d.tail++ {
			c := d.mem[base+uint64(d.tail&(d.depth-1))*EntrySize:][:EntrySize]
			if c[3]&1 == uint8(d.tail/d.depth&1) {
				panic("a command with the phase of another round")
			}
			d.answer(d, append([]byte(nil), c...))
		}
	}
	return nil
}

func (d *device) complete(command []byte, status uint8) {
	base := binary.LittleEndian.Uint64(d.regs[ACQ_BASE_LO:])
	e := d.mem[base+uint64(d.acq&(d.depth-1))*EntrySize:][:EntrySize]
	clear(e)
	if len(command) >= 16 {
		copy(e[12:16], command[12:16])
	}
	word := uint32(binary.LittleEndian.Uint16(command)) | uint32(status)<<16 | uint32(^(d.acq/d.depth)&1)<<24
	*(*uint32)(unsafe.Pointer(&e[0])) = word
	d.acq++
}

func newQueue(t testing.TB, dialect Dialect, depth int, answer func(*device, []byte)) (*device, *Queue) {
	t.Helper()
	d := &device{depth: uint16(depth), answer: answer}
	d.arena = must.Get(dma.NewArena(d, 1<<16))(t)
	t.Cleanup(func() { d.arena.Close() })
	r := must.Get(newRegs("test", dialect, 0, mmio.Trapped(0x80, d, nil, nil), d.arena))(t)
	q := must.Get(NewQueue(r, d.arena, depth, time.Minute))(t)
	return d, q
}

// The last name of a status, and one that has none; a command that fills an entry, and one that does not fit.
func TestLimitsOfCommands(t *testing.T) {
	for s, want := range map[Status]string{7: "resource busy", 8: "status 8", 255: "status 255"} {
		check.Equal(t, s.String(), want, "%s")
	}
	_, q := newQueue(t, EFA, 4, func(d *device, c []byte) { d.complete(c, 0) })
	var full struct {
		Header
		_ [EntrySize - 4]byte
	}
	var long struct {
		Header
		_ [EntrySize]byte
	}
	var out struct {
		Completion
		_ [EntrySize - 8]byte
	}
	check.Equal(t, unsafe.Sizeof(full)+unsafe.Sizeof(out), 2*EntrySize, "%d bytes")
	check.OK(t, Exec(q, "full", &full, &out))
	defer func() { check.Equal(t, recover() != nil, true, "a command that does not fit: %t") }()
	Exec(q, "long", &long, &out)
}

type ask struct {
	Header
	_     [2]uint32
	Value uint32
}

type told struct {
	Completion
	_     uint32
	Value uint32
}

// Commands go round the ring. EFA's identifiers contain the command's slot in their low bits and its number above, and
// completions repeat them.
func TestExecRoundTheRing(t *testing.T) {
	for _, dialect := range []Dialect{ENA, EFA} {
		n := uint16(0)
		_, q := newQueue(t, dialect, 4, func(d *device, c []byte) {
			// one at a time: always the first place
			if id := binary.LittleEndian.Uint16(c); dialect.LongIDs && id != n*4&0xFFF {
				t.Errorf("command %d has identifier %#x", n, id)
			}
			d.complete(c, 0)
		})
		for ; n < 1<<11; n++ {
			var r told
			if err := Exec(q, "ask", &ask{Header: Header{Opcode: 7}, Value: uint32(n)}, &r); err != nil ||
				r.Value != uint32(n) {
				t.Fatalf("command %d: %d, %v", n, r.Value, err)
			}
		}
	}
}

func TestOutOfOrder(t *testing.T) {
	var held [][]byte
	_, q := newQueue(t, ENA, 8, func(d *device, c []byte) {
		if held = append(held, c); len(held) == 4 {
			for i := range held {
				d.complete(held[3-i], 0)
			}
			held = nil
		}
	})
	var wg sync.WaitGroup
	for n := range uint32(4) {
		wg.Go(func() {
			var r told
			if err := Exec(q, "ask", &ask{Value: n}, &r); err != nil || r.Value != n {
				t.Errorf("command %d: %d, %v", n, r.Value, err)
			}
		})
	}
	wg.Wait()
}

func TestRefused(t *testing.T) {
	_, q := newQueue(t, ENA, 4, func(d *device, c []byte) { d.complete(c, uint8(IllegalParameter)) })
	err := Exec(q, "ask", &ask{}, &told{})
	var refused *CommandError
	if !errors.As(err, &refused) || refused.Status != IllegalParameter || refused.Command != "ask" {
		t.Errorf("%v", err)
	}
	check.OK(t, q.Err()) // a refused command does not kill the queue
}

func TestSilence(t *testing.T) {
	const limit = 300 * time.Millisecond // for commands that never complete
	d, q := newQueue(t, ENA, 4, func(*device, []byte) {})
	q.timeout = limit
	check.Fails(t, "no completion", Exec(q, "ask", &ask{}, &told{}), nic.ErrTimeout)
	d.answer = func(d *device, c []byte) { d.complete(c, 0) }
	check.Fails(t, "after a time-out the queue continues", Exec(q, "ask", &ask{}, &told{}), nic.ErrTimeout)
	d, q = newQueue(t, ENA, 4, func(d *device, _ []byte) { d.gone = true })
	q.timeout = limit
	check.Fails(t, "a device that left", Exec(q, "ask", &ask{}, &told{}), nic.ErrGone)
}

// After a completion for a command that is not pending, the device is no longer trusted. EFA's has the right slot, and
// the number of an earlier command.
func TestStrangeCompletion(t *testing.T) {
	for _, c := range []struct {
		dialect Dialect
		id      uint16
	}{{ENA, 1}, {ENA, 3}, {ENA, 9}, {ENA, 0xFFF}, {EFA, 4}} {
		_, q := newQueue(t, c.dialect, 4, func(d *device, command []byte) {
			binary.LittleEndian.PutUint16(command, c.id)
			d.complete(command, 0)
		})
		check.Fails(t, "Exec", Exec(q, "ask", &ask{}, &told{}), ErrDevice)
		check.Fails(t, "the queue afterwards", q.Err(), ErrDevice)
	}
}

// With arbitrary bytes as completions and events, the result is an error or an answer, without panic or hang.
func FuzzWriteBack(f *testing.F) {
	f.Add(make([]byte, EntrySize))
	f.Add([]byte{0, 0, 0, 1})
	f.Add([]byte{9, 0, 5, 1, 1, 2, 3, 4})
	// Created once: mapping memory takes a hundred times the time of an input.
	d, q := newQueue(f, ENA, 2, nil)
	q.timeout = time.Millisecond
	e := must.Get(NewEvents(q.regs, d.arena, 2))(f)
	completions, events := binary.LittleEndian.Uint64(d.regs[ACQ_BASE_LO:]),
		binary.LittleEndian.Uint64(d.regs[AENQ_BASE_LO:])
	f.Fuzz(func(t *testing.T, b []byte) {
		clear(d.mem)
		d.tail, d.acq = 0, 0
		q.tail, q.head, q.broken = 0, 0, nil
		clear(q.busy)
		e.head, e.taken = 0, 0
		d.answer = func(d *device, c []byte) {
			copy(d.mem[completions:][:2*EntrySize], b)
			copy(d.mem[events:][:2*EntrySize], b)
		}
		var in, out [EntrySize]byte
		id := must.Get(q.submit("ask", &in))(t)
		// Not Exec: it would wait for a completion that never arrives, because the device has written everything
		// already.
		for range 3 {
			if done, err := q.collect(id, &out); done || err != nil {
				break
			}
		}
		for range 3 {
			e.Next()
		}
		e.Done()
	})
}
