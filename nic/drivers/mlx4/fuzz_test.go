package mlx4

import (
	"bytes"
	"encoding/binary"
	"log/slog"
	"testing"
	"time"
	"unsafe"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/nictest/rig"
)

// With arbitrary bytes in the completion rings, a pass ends, accesses only its own memory, and continues or reports why
// not.
func FuzzCompletions(f *testing.F) {
	good := cqe{byteCount: swap(64), last: done(1, 0, 0, 9)}
	b := unsafe.Slice((*byte)(unsafe.Pointer(&good)), cqeSize)
	f.Add(bytes.Repeat(b, 3), bytes.Repeat([]byte{0}, 128))
	f.Add(b, bytes.Repeat([]byte{0x4A}, 64))
	f.Add(append(bytes.Repeat([]byte{0xFF}, 31), 0x01), []byte{1})
	f.Fuzz(func(t *testing.T, rx, tx []byte) {
		q, r := newBenchQueue(t, rig.Echo(64), true), rig.NewResponder(t)
		copy(unsafe.Slice((*byte)(q.rxCQ), 512*cqeSize), rx)
		copy(unsafe.Slice((*byte)(q.txCQ), 2048*cqeSize), tx)
		answered := 0
		for range 20 {
			answered += q.Poll(r)
		}
		q.consistent(t, answered)
	})
}

// With arbitrary answers of firmware, Open returns a device or an error, and nothing is left of either.
func FuzzAnswers(f *testing.F) {
	f.Add([]byte{0}, uint16(0), uint8(254))
	f.Add([]byte{0xFF, 0xFF, 0xFF, 0xFF}, uint16(0x48), uint8(4))
	f.Add([]byte{0x1F, 0x1F, 0x1F}, uint16(0x11), uint8(4))
	f.Add([]byte{0xFF, 0xFF}, uint16(0), uint8(0))
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 1}, uint16(0xA0), uint8(4))
	pool, doorbells := new(dma.Pool), make([]byte, 8<<20)
	defer func(settle, pause time.Duration) { resetSettle, ownerPause = settle, pause }(resetSettle, ownerPause)
	resetSettle, ownerPause = 0, 0 // nothing settles here, and each input has two resets
	f.Fuzz(func(t *testing.T, with []byte, at uint16, command uint8) {
		s := newScriptOn(t, doorbells)
		s.Pool = pool
		n := 0
		s.answer = func(c sent) (Status, mailbox, uint64) {
			status, m, imm := card(c)
			switch c.op { // little memory, because only the answers are fuzzed
			case opQueryFW:
				m.set16(0, 3)
			case opSetICMSize:
				imm = 2
			}
			if n++; n-1 == int(command) || command == 0xFF {
				if m != nil {
					copy(m[min(int(at), len(m)):], with)
				} else if len(with) >= 8 {
					imm = binary.BigEndian.Uint64(with)
				} else if len(with) == 1 {
					status = Status(with[0])
				}
			}
			// Values above the bound stay, and are refused. Below the bound, large values behave like small ones.
			switch {
			case c.op == opQueryFW && m.u16(0) > 16:
				m.set16(0, m.u16(0)%16)
			case c.op == opSetICMSize && imm > 16 && imm <= maxFirmwarePages:
				imm %= 16
			}
			return status, m, imm
		}
		d, err := s.open(nic.Options{Queues: 2}, Options{})
		if n <= int(command) && command != 0xFF && err != nil {
			t.Errorf("no answer was spoiled: %v", err)
		}
		if err == nil {
			d.Info()
			d.Link()
			d.Close()
		}
		check.Equal(t, len(s.Maps), 0, "%d mappings are left")
	})
}

// With arbitrary bytes in the event queue, a poll ends, and the consumer index advances by the number of events read.
func FuzzEvents(f *testing.F) {
	port := make([]byte, eqeSize)
	port[eqeType], port[eqeSubtype], port[eqeData+8] = eventPortChange, portActive, 1<<4
	cq := make([]byte, eqeSize)
	cq[eqeType], cq[eqeData+3], cq[eqeData+11] = eventCQError, 0x80, 1
	f.Add(append(bytes.Repeat(port, 2), cq...))
	f.Add(bytes.Repeat([]byte{0}, eqEntries*eqeSize))
	doorbells := make([]byte, 128*uarPage)
	f.Fuzz(func(t *testing.T, events []byte) {
		d := &Device{port: 1, uars: mmio.Mapped(doorbells, false)}
		d.card.Log = slog.New(slog.DiscardHandler)
		e := &d.events
		e.mem, e.number = bytes.Repeat([]byte{eqeEmpty}, eqEntries*eqeSize), 5
		copy(e.mem, events)
		clear(doorbells)
		d.serveEvents()
		got := binary.BigEndian.Uint32(doorbells[uarPage+uarEQ+8:])
		if e.next > eqEntries || got != e.next {
			t.Errorf("consumer index %#x, %d events were taken", got, e.next)
		}
	})
}

func TestEvents(t *testing.T) {
	s := newScript(t)
	d := must.Get(s.open(nic.Options{}, Options{}))(t)
	defer d.Close()
	post := func(kind, sub uint8, data ...byte) {
		e := &d.events
		e.mu.Lock()
		entry := e.mem[e.next%eqEntries*eqeSize:][:eqeSize]
		clear(entry)
		entry[eqeType], entry[eqeSubtype] = kind, sub
		copy(entry[eqeData:], data)
		entry[eqeOwner] = uint8(e.next / eqEntries & 1 << 7)
		e.mu.Unlock()
		d.serveEvents()
	}
	for range 3 * eqEntries { // round the ring
		post(eventPortChange, portActive, 0, 0, 0, 0, 0, 0, 0, 0, 1<<4)
	}
	post(eventPortChange, portDown, 0, 0, 0, 0, 0, 0, 0, 0, 2<<4) // the other port
	if n := d.events.portChanges.Load(); n < 3*eqEntries {
		t.Errorf("%d port changes", n)
	}
}

// Firmware that died reports it in a buffer, and is restarted without any further command.
func TestCatastrophe(t *testing.T) {
	s := newScript(t)
	d := must.Get(s.open(nic.Options{}, Options{}))(t)
	s.catas = 0xBAD0
	y, err := d.check(true)
	if err != nil || y == nil || y.Reason != "catastrophic_error" ||
		!bytes.Contains([]byte(y.Why), []byte("0000bad0")) {
		t.Fatalf("the watch sees %+v, %v", y, err)
	}
	s.sent = nil
	s.answer = func(c sent) (Status, mailbox, uint64) { s.catas = 0; return card(c) }
	must.OK(t, d.restart(y))
	if s.sent[0].op != opQueryFW || s.resets != 2 || s.given != 0 {
		t.Errorf("the first command is %v, %d resets, ownership was given back %d times", s.sent[0].op, s.resets,
			s.given)
	}
	if err := d.Close(); err != nil || len(s.Maps) != 0 {
		t.Errorf("%v, %d mappings are left", err, len(s.Maps))
	}
}

// The driver starts with the device's toggle bit: a driver that died leaves it in any state, unless a reset clears it.
func TestToggle(t *testing.T) {
	s := newScript(t)
	d := must.Get(s.open(nic.Options{}, Options{}))(t)
	defer d.Close()
	for _, at := range []uint32{0, hcrToggle} {
		s.hcr[6], s.toggle = at, at
		if err := d.commands.start(d.card.Arena); err != nil || d.commands.toggle == at {
			t.Errorf("toggle %#x: the next is %#x, %v", at, d.commands.toggle, err)
		}
		if _, err := d.link(); err != nil {
			t.Error(err)
		}
	}
}

// With arbitrary bytes in the completion ring and the slots of an InfiniBand port, a pass ends, accesses only its own
// memory, and continues or reports why not.
func FuzzDatagrams(f *testing.F) {
	good := cqe{byteCount: swap(40 + 88), remote: swap(1<<31 | 0x49), source: swap(3), last: done(1, 0, 0, 9)}
	b := unsafe.Slice((*byte)(unsafe.Pointer(&good)), cqeSize)
	f.Add(bytes.Repeat(b, 3), packet4(84), byte(0xFE))
	f.Add(b, []byte{8, 6, 0, 0, 0, 32, 8, 0, 20, 4, 0, 1, 59: 2}, byte(0xFF))
	f.Add(b, []byte{0x86, 0xDD, 0, 0, 0x60, 8: 0, 9: 48, 10: 58, 11: 255, 44: 135, 68: 1, 69: 3, 91: 0}, byte(0xFF))
	f.Add(append(bytes.Repeat([]byte{0xFF}, 31), 0x01), []byte{1}, byte(0))
	q, r := newBenchDatagrams(f, nil, true), subnetResponder(f)
	to := q.segment(0xC000, 0, 0xFFFFFF)
	q.group.Store(&to)
	f.Fuzz(func(t *testing.T, rx, payload []byte, gid byte) {
		emptyCQ(q.rxCQ, 512)
		emptyCQ(q.txCQ, 2048)
		q.reset()
		q.fault.Store(faultNone)
		copy(unsafe.Slice((*byte)(q.rxCQ), 512*cqeSize), rx)
		for slot := range uint32(4) {
			at := unsafe.Add(q.buf, slot*q.stride)
			*(*byte)(unsafe.Add(at, slotGRH+grhDGID)) = gid
			copy(unsafe.Slice((*byte)(unsafe.Add(at, slotPayload)), maxPayload), payload)
		}
		answered := 0
		for range 4 {
			answered += q.Poll(r)
		}
		q.consistent(t, answered)
	})
}
