package mlx5

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
)

// Event queue entry (PRM, EQE Format). Offsets in bytes.
const (
	eqeSize    = 64
	eqeType    = 0x01
	eqeSubtype = 0x03
	eqeData    = 0x20
	eqeOwner   = 0x3F

	eqEntries = 64
)

// Event types (PRM, Event Type and Coding).
const (
	eventCQError     = 0x04
	eventInternal    = 0x08
	eventPortChange  = 0x09
	eventPageRequest = 0x0B

	portDown   = 1 // subtypes of a port change
	portActive = 4
)

// eventQueue receives firmware's asynchronous events. It raises no interrupt: the watchdog polls it.
type eventQueue struct {
	mu   sync.Mutex
	mem  []byte
	eqn  uint32
	next uint32

	pageRequests, pageErrors, portChanges, cqErrors, unknown atomic.Uint64
}

func (d *Device) createEQ() error {
	b, err := d.card.Block(eqEntries*eqeSize, 4096)
	if err != nil {
		return err
	}
	e := &d.events
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mem, e.next = b.Bytes, 0
	for i := eqeOwner; i < len(e.mem); i += eqeSize {
		e.mem[i] = 1
	}
	in := command(opCreateEQ, 0, 0x110)
	in.at(0x10).
		set("log_eq_size", 0x0C, 28, 24, log2(eqEntries)).
		set("uar_page", 0x0C, 23, 0, d.uar.number).
		set("intr", 0x14, 11, 0, 0). // never raised: the queue is not armed
		set("log_page_size", 0x18, 28, 24, 0)
	in.set64(0x58, 1<<eventCQError|1<<eventInternal|1<<eventPortChange|1<<eventPageRequest)
	if e.eqn, err = d.create(in.pages(b.IOVA, len(b.Bytes)), opDestroyEQ, 7); err != nil {
		e.mem = nil
		return err
	}
	d.steps.Done("stop reading events", func() error {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.mem = nil
		return nil
	})
	d.commands.waiting = d.serveEvents
	return nil
}

// serveEvents processes all pending events, unless another goroutine is doing so. Without events it reads only memory.
func (d *Device) serveEvents() {
	e := &d.events
	if !e.mu.TryLock() {
		return
	}
	defer e.mu.Unlock()
	if e.mem == nil {
		return
	}
	taken := false
	for {
		entry := e.mem[e.next%eqEntries*eqeSize:][:eqeSize]
		last := atomic.LoadUint32((*uint32)(unsafe.Pointer(&entry[eqeOwner-3])))
		if last>>24&1 != e.next/eqEntries&1 {
			break
		}
		e.next++
		taken = true
		d.event(entry)
	}
	if taken {
		w := d.uar.window
		w.Write32(d.uar.off+uarEQNoArm, swap(e.eqn<<24|e.next&0xFFFFFF))
		if w.WriteCombining() {
			mmio.FenceWC()
		}
	}
}

// event handles one entry of the event queue: it serves page requests, counts changes of the port, and asks for a
// restart after an error.
func (d *Device) event(entry []byte) {
	e := &d.events
	data := entry[eqeData:]
	switch entry[eqeType] {
	case eventPageRequest:
		function := uint32(binary.BigEndian.Uint16(data[2:]))
		d.pageRequest(function, int(int32(binary.BigEndian.Uint32(data[4:]))))
	case eventPortChange:
		e.portChanges.Add(1)
		if sub := entry[eqeSubtype]; sub == portDown || sub == portActive {
			d.card.Log.Info("link", "up", sub == portActive)
		}
	case eventCQError:
		e.cqErrors.Add(1)
		d.want("cq_error", "completion queue error event: "+nic.ErrHardware.Error())
	case eventInternal:
		d.want("internal_error", "the device reports an internal error: "+d.healthText())
	default:
		e.unknown.Add(1)
		d.card.Log.Warn("unknown event", "type", entry[eqeType], "subtype", entry[eqeSubtype])
	}
}
