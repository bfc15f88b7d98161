// Package amazontest drives the management interface of an amazon.Controller by hand, for the tests of the models that
// embed it.
package amazontest

import (
	"encoding/binary"
	"maps"
	"slices"

	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/sim/amazon"
	"github.com/rebound-nic/rebound/sim/simtest"
)

// Depth is the depth of the admin and event queues.
const Depth = 8

var le = binary.LittleEndian

// Driver writes registers and admin commands directly, as a test requests.
type Driver struct {
	*simtest.Rig
	Regs           *mmio.Window
	AQ, ACQ, AENQ  dma.Block
	Commands, Acks uint16 // sent, and completions seen

	Resp dma.Block
	seq  uint16
	next uint16 // command ID
}

// New returns a driver for the model of a rig.
func New(r *simtest.Rig, regs *mmio.Window) Driver {
	return Driver{Rig: r, Regs: regs, Resp: r.Alloc(4096)}
}

// Set writes a register.
func (d *Driver) Set(r amazon.Reg, v uint32) { d.Regs.Write32(uint64(r), v) }

// Addr writes an address to a pair of registers.
func (d *Driver) Addr(lo amazon.Reg, a uint64) {
	d.Set(lo, uint32(a))
	d.Set(lo+4, uint32(a>>32))
}

// Read reads a register by DMA.
func (d *Driver) Read(r amazon.Reg) uint32 {
	d.Helper()
	d.seq++
	d.Set(amazon.RegREADREQ, uint32(r)<<16|uint32(d.seq))
	if got := le.Uint16(d.Resp.Bytes); got != d.seq || le.Uint16(d.Resp.Bytes[2:]) != uint16(r) {
		d.Fatalf("response %x to read %d of %#x", d.Resp.Bytes[:8], d.seq, r)
	}
	return le.Uint32(d.Resp.Bytes[4:])
}

// Reset runs the reset protocol.
func (d *Driver) Reset(reason uint32) {
	d.Helper()
	d.Addr(amazon.RegRESPLO, d.Resp.IOVA)
	d.Set(amazon.RegDEVCTL, amazon.CTLReset|reason<<amazon.CTLReason)
	d.Addr(amazon.RegRESPLO, d.Resp.IOVA)
	for n := 0; d.Read(amazon.RegDEVSTS)&amazon.StsResetProgress == 0; n++ {
		if n > 10 {
			d.Fatal("reset does not begin")
		}
	}
	d.Set(amazon.RegDEVCTL, 0)
	for n := 0; d.Read(amazon.RegDEVSTS)&amazon.StsResetProgress != 0; n++ {
		if n > 10 {
			d.Fatal("reset does not end")
		}
	}
	d.Commands, d.Acks = 0, 0
}

// Open resets the device and sets up its admin and event queues.
func (d *Driver) Open() {
	d.Helper()
	d.Reset(0)
	if d.AQ.Bytes == nil {
		d.AQ, d.ACQ, d.AENQ = d.Alloc(amazon.Entry*Depth), d.Alloc(amazon.Entry*Depth), d.Alloc(amazon.Entry*Depth)
	}
	clear(d.ACQ.Bytes)
	clear(d.AENQ.Bytes)
	d.Addr(amazon.RegAQBASELO, d.AQ.IOVA)
	d.Addr(amazon.RegACQBASELO, d.ACQ.IOVA)
	d.Set(amazon.RegAQCAPS, Depth|amazon.Entry<<16)
	d.Set(amazon.RegACQCAPS, Depth|amazon.Entry<<16)
	d.Addr(amazon.RegAENQBASELO, d.AENQ.IOVA)
	d.Set(amazon.RegAENQCAPS, Depth|amazon.Entry<<16)
}

// Fields maps the offset of a field in a command to its value: uint8, uint16, uint32, uint64 or an array.
type Fields map[int]any

// Put writes the fields to b.
func (f Fields) Put(b []byte) {
	for at, v := range f {
		if _, err := binary.Encode(b[at:], le, v); err != nil {
			panic(err)
		}
	}
}

// With returns a copy of f with one more field.
func (f Fields) With(at int, v any) Fields {
	g := maps.Clone(f)
	g[at] = v
	return g
}

// Submit sends a command without waiting for its completion.
func (d *Driver) Submit(opcode uint8, f Fields) (id uint16) {
	e := d.AQ.Bytes[amazon.Entry*int(d.Commands%Depth):][:amazon.Entry]
	clear(e)
	f.Put(e)
	d.next = (d.next + 0x123) & 0xfff
	le.PutUint16(e, d.next)
	e[2] = opcode
	e[3] |= amazon.Phase(d.Commands, Depth)
	d.Commands++
	d.Set(amazon.RegAQDB, uint32(d.Commands))
	return d.next
}

// Ack returns the next completion, or nil.
func (d *Driver) Ack() []byte {
	e := d.ACQ.Bytes[amazon.Entry*int(d.Acks%Depth):][:amazon.Entry]
	if e[3]&1 != amazon.Phase(d.Acks, Depth) {
		return nil
	}
	d.Acks++
	return slices.Clone(e)
}

// Do executes a command in one step.
func (d *Driver) Do(opcode uint8, f Fields) (status uint8, response []byte) {
	d.Helper()
	id := d.Submit(opcode, f)
	d.Port.Step()
	e := d.Ack()
	if e == nil || le.Uint16(e) != id || le.Uint16(e[6:]) != d.Commands {
		d.Fatalf("completion %x of command %d", e, id)
	}
	return e[2], e[8:]
}

// OK is Do for a command that must succeed.
func (d *Driver) OK(opcode uint8, f Fields) []byte {
	d.Helper()
	s, r := d.Do(opcode, f)
	if s != 0 {
		d.Fatalf("opcode %d: status %d, violations %q", opcode, s, d.Port.Violations())
	}
	return r
}
