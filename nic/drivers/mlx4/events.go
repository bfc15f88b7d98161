package mlx4

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/rebound-nic/rebound/nic/bus/mmio"
)

// Event queue entry (Linux, include/linux/mlx4/device.h: mlx4_eqe). Offsets in bytes.
const (
	eqeSize    = 32
	eqeType    = 0x01
	eqeSubtype = 0x03
	eqeData    = 0x04
	eqeOwner   = 0x1F // bit 7

	eqEntries = 128
	eqeEmpty  = 0xEE // firmware's fill pattern of a new queue, as seen on a card
)

// Event types (Linux, MLX4_EVENT_TYPE_*).
const (
	eventCQError    = 0x04
	eventWQCatas    = 0x05
	eventLocalCatas = 0x08
	eventPortChange = 0x09
	eventECC        = 0x0E
	eventWQInvalid  = 0x10
	eventWQAccess   = 0x11
	eventFatalWarn  = 0x1B
	eventPortMgmt   = 0x1D // the subnet manager changed something

	portDown   = 1 // subtypes of a port change
	portActive = 4
)

// eventQueue receives unsolicited events of firmware. It raises no interrupt: the watchdog reads it.
type eventQueue struct {
	mu     sync.Mutex
	mem    []byte
	number uint32
	next   uint32

	portChanges, subnetChanges, cqErrors, queueErrors, unknown atomic.Uint64
}

// createEQ creates the event queue, whose events are polled: it is never armed, and no interrupt occurs.
func (d *Device) createEQ() error {
	b, err := d.card.Block(eqEntries*eqeSize, 4096)
	if err != nil {
		return err
	}
	e := &d.events
	eqn := d.icm.eq
	in := make(mailbox, 0x40)
	const fired = 0xA << 8                // not armed: no interrupt
	in.set32(0x00, fired)                 //
	in.set8(0x0C, uint8(log2(eqEntries))) //
	if err := d.place(in[0x18:], b); err != nil {
		return err
	}
	fill := func() {
		for i := range b.Bytes {
			b.Bytes[i] = eqeEmpty
		}
	}
	fill()
	if err := d.commands.run(command{op: opSW2HWEQ, modifier: eqn, in: in}); err != nil {
		return err
	}
	d.steps.Done(opHW2SWEQ.String(), func() error {
		return d.commands.run(command{op: opHW2SWEQ, opMod: 1, modifier: eqn})
	})
	fill() // for firmware with another fill pattern
	e.mu.Lock()
	e.mem, e.number, e.next = b.Bytes, eqn, 0
	e.mu.Unlock()
	d.steps.Done("stop reading events", func() error {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.mem = nil
		return nil
	})
	mask := uint64(1)<<eventCQError | 1<<eventWQCatas | 1<<eventLocalCatas | 1<<eventPortChange | 1<<eventECC |
		1<<eventWQInvalid |
		1<<eventWQAccess | 1<<eventFatalWarn
	if d.caps.portChanges {
		mask |= 1 << eventPortMgmt
	}
	if err := d.commands.run(command{op: opMapEQ, param: mask, modifier: eqn}); err != nil {
		return err
	}
	const unmap = 1 << 31
	d.steps.Done(opMapEQ.String(), func() error {
		return d.commands.run(command{op: opMapEQ, param: mask, modifier: unmap | eqn})
	})
	return nil
}

// serveEvents takes all events that are there. It reads memory only unless there are events.
func (d *Device) serveEvents() {
	e := &d.events
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mem == nil {
		return
	}
	taken := false
	for range eqEntries { // bounded: the rest is read at the next poll
		entry := e.mem[e.next%eqEntries*eqeSize:][:eqeSize]
		last := atomic.LoadUint32((*uint32)(unsafe.Pointer(&entry[eqeOwner-3])))
		if last>>31 != e.next/eqEntries&1 {
			break
		}
		e.next++
		taken = true
		d.event(entry)
	}
	if taken {
		d.uars.Write32(uint64(e.number/4)*uarPage+uarEQ+8*uint64(e.number%4), swap(e.next&0xFFFFFF))
		if d.uars.WriteCombining() {
			mmio.FenceWC()
		}
	}
}

// event handles one entry of the event queue: it counts changes of the port, and asks for a restart after an error.
func (d *Device) event(entry []byte) {
	e := &d.events
	data := binary.BigEndian.Uint32(entry[eqeData:])
	switch t := entry[eqeType]; t {
	case eventPortChange:
		port := binary.BigEndian.Uint32(entry[eqeData+8:]) >> 28
		if port != d.port {
			return
		}
		e.portChanges.Add(1)
		if sub := entry[eqeSubtype]; sub == portDown || sub == portActive {
			d.card.Log.Info("link", "port", port, "up", sub == portActive)
		}
		d.subnet.changed(false)
	case eventPortMgmt:
		d.portManagement(entry)
	case eventCQError:
		e.cqErrors.Add(1)
		d.want("cq_error", fmt.Sprintf("error event of completion queue %#x, syndrome %#02x", data&0xFFFFFF,
			entry[eqeData+11]))
	case eventWQCatas, eventWQInvalid, eventWQAccess:
		e.queueErrors.Add(1)
		d.want("queue_error", fmt.Sprintf("error event %#02x of QP %#x", t, data&0xFFFFFF))
	case eventLocalCatas:
		d.want("internal_error", "the device reports an internal error: "+d.catasText())
	case eventECC:
		d.card.Log.Warn("the device found a memory error (ECC)")
	case eventFatalWarn:
		d.card.Log.Warn("the card is hot", "celsius", binary.BigEndian.Uint16(entry[eqeData:]), "threshold",
			binary.BigEndian.Uint16(entry[eqeData+2:]))
	default:
		e.unknown.Add(1)
		d.card.Log.Warn("unknown event", "type", t, "subtype", entry[eqeSubtype])
	}
}
