// Package toysim is a minimal network interface for tests of the simulator, vfio-user and the conformance suite. It is
// no real device. Its rings work like most: the driver owns descriptors up to the tail, and the device returns them in
// order by setting Done.
//
// BAR 0, 32-bit registers, little endian (R read, W write); BAR 2 holds the doorbells alone, and is polled:
//
//	00 R   magic, 52425944h
//	04 RW  control: bit 0 enable, bit 31 reset (clears itself)
//	08 R   status: bit 0 link
//	0c RW  MAC, low 32 bits;  10 RW  MAC, high 16 bits
//	20 RW  receive ring:  IOVA low, 24 high, 28 entries (a power of two, 2 to 4096), 2c buffer bytes
//	30 RW  transmit ring: IOVA low, 34 high, 38 entries
//	40 R   frames received, 44 missed for lack of a descriptor, 48 transmitted, 4c transmit errors
//	50 W   interrupt: raises vector v
//
// Doorbells in BAR 2: 00 receive tail, 40h transmit tail, both free-running 32-bit counts of descriptors.
//
// Descriptor, 16 bytes: 00 IOVA of the buffer; 08 length (16 bits); 0a flags: bit 0 Done, bit 1 error; 0c zero.
package toysim

import (
	"encoding/binary"
	"fmt"

	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/parts"
)

const (
	Vendor = 0x1b36 // Red Hat's, used for virtual devices
	Device = 0x7ec4
	Magic  = 0x52425944

	bufMax = 16384
)

// Model is the device.
type Model struct {
	own    [6]byte // the MAC address after reset
	mac    [6]byte
	host   sim.Host
	link   bool
	paused bool

	enabled  bool
	rx, tx   ring
	bufSize  uint32
	received uint32
	missed   uint32
	sent     uint32
	errors   uint32
}

type ring struct {
	lo, hi, entries uint32
	head, tail      uint32 // free-running; the driver's descriptors are [head, tail)
}

// New returns the device with a MAC address.
func New(mac [6]byte) *Model { return &Model{own: mac, mac: mac} }

var le = binary.LittleEndian

func (m *Model) Config() sim.Config {
	return sim.Config{
		Vendor: Vendor, Device: Device, SubVendor: Vendor, SubDevice: 1, Revision: 1, Class: 0x020000,
		BARs: [6]sim.BAR{
			0: {Size: 0x4000, Is64: true},
			2: {Size: 0x1000, Is64: true, Prefetchable: true, Polled: []sim.Range{{Off: 0, Len: 4}, {Off: 0x40, Len: 4}}},
		},
		MSIXVectors: 4, MSIXBAR: 0, MSIXTable: 0x2000, MSIXPBA: 0x3000,
		PCIeDevCap: 1<<28 | 1<<15, LinkSpeed: 2, LinkWidth: 8, SerialNumber: 0x0200_00ff_ff00_0001,
	}
}

func (m *Model) Attach(h sim.Host) { m.host = h }

func (m *Model) Reset() { *m = Model{own: m.own, mac: m.own, host: m.host, link: m.link} }

func (m *Model) SetLink(up bool) { m.link = up }

// Pause pauses the transmitter, as a pause frame from the other end does (IEEE 802.3 annex 31B).
func (m *Model) Pause(on bool) { m.paused = on }

type reg uint32

// regs is BAR 0; rings are between ringFirst and ringLast.
var regs = parts.NewTable(0x2000, "package toysim", []parts.Register[reg]{
	parts.One[reg](0x00, "MAGIC", parts.RO, 0, 0),
	parts.One[reg](0x04, "CONTROL", parts.Eff, 1<<31|1, 0),
	parts.One[reg](0x08, "STATUS", parts.RO, 0, 0),
	parts.One[reg](0x0c, "MAC_LO", parts.RW, 0xffffffff, 0),
	parts.One[reg](0x10, "MAC_HI", parts.RW, 0xffff, 0),
	parts.One[reg](0x20, "RX_LO", parts.RW, 0xffffffff, 0),
	parts.One[reg](0x24, "RX_HI", parts.RW, 0xffffffff, 0),
	parts.One[reg](0x28, "RX_ENTRIES", parts.RW, 0xffffffff, 0),
	parts.One[reg](0x2c, "RX_BUFFER", parts.RW, 0xffffffff, 0),
	parts.One[reg](0x30, "TX_LO", parts.RW, 0xffffffff, 0),
	parts.One[reg](0x34, "TX_HI", parts.RW, 0xffffffff, 0),
	parts.One[reg](0x38, "TX_ENTRIES", parts.RW, 0xffffffff, 0),
	parts.One[reg](0x40, "RECEIVED", parts.RO, 0, 0),
	parts.One[reg](0x44, "MISSED", parts.RO, 0, 0),
	parts.One[reg](0x48, "SENT", parts.RO, 0, 0),
	parts.One[reg](0x4c, "ERRORS", parts.RO, 0, 0),
	parts.One[reg](0x50, "INTERRUPT", parts.WO, 0xffffffff, 0),
})

const ringFirst, ringLast = 0x20, 0x38

func (m *Model) ReadBAR(bar int, off uint64, p []byte) error {
	if len(p) != 4 {
		return fmt.Errorf("%d bytes: registers have 4", len(p))
	}
	if bar == 2 {
		copy(p, m.host.Shadow(2)[off:])
		return nil
	}
	if _, err := regs.Read(reg(off)); err != nil {
		return err
	}
	le.PutUint32(p, *m.register(off))
	return nil
}

// RegisterName implements sim.Namer.
func (m *Model) RegisterName(bar int, off uint64) (string, binary.ByteOrder) {
	if bar == 2 {
		return map[uint64]string{0x00: "RX_TAIL", 0x40: "TX_TAIL"}[off], le
	}
	return regs.Name(reg(off)), le
}

// register returns the storage of a readable register.
func (m *Model) register(off uint64) *uint32 {
	v := new(uint32)
	switch off {
	case 0x00:
		*v = Magic
	case 0x04:
		*v = bit(m.enabled)
	case 0x08:
		*v = bit(m.link)
	case 0x0c:
		*v = le.Uint32(m.mac[:])
	case 0x10:
		*v = uint32(le.Uint16(m.mac[4:]))
	case 0x20:
		v = &m.rx.lo
	case 0x24:
		v = &m.rx.hi
	case 0x28:
		v = &m.rx.entries
	case 0x2c:
		v = &m.bufSize
	case 0x30:
		v = &m.tx.lo
	case 0x34:
		v = &m.tx.hi
	case 0x38:
		v = &m.tx.entries
	case 0x40:
		v = &m.received
	case 0x44:
		v = &m.missed
	case 0x48:
		v = &m.sent
	case 0x4c:
		v = &m.errors
	}
	return v
}

func bit(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

func (m *Model) WriteBAR(bar int, off uint64, p []byte) error {
	if len(p) != 4 {
		return fmt.Errorf("%d bytes: registers have 4", len(p))
	}
	v := le.Uint32(p)
	switch {
	case bar == 2 && off == 0:
		m.rx.tail = v
		return m.rx.check("receive")
	case bar == 2 && off == 0x40:
		m.tx.tail = v
		return m.tx.check("transmit")
	case bar == 2:
		return fmt.Errorf("no such doorbell")
	}
	v, _, err := regs.Write(m.host, reg(off), v, 0, regs.Bits(reg(off)), 0)
	switch {
	case err != nil:
		return err
	case off == 0x04:
		return m.control(v)
	case off == 0x50:
		m.host.Interrupt(int(v))
	case off == 0x0c:
		le.PutUint32(m.mac[:], v)
	case off == 0x10:
		le.PutUint16(m.mac[4:], uint16(v))
	case off >= ringFirst && off <= ringLast && m.enabled:
		return fmt.Errorf("ring register written while enabled")
	default:
		*m.register(off) = v
	}
	return nil
}

func (m *Model) control(v uint32) error {
	if v&(1<<31) != 0 {
		m.Reset()
		clear(m.host.Shadow(2)[:0x44])
		return nil
	}
	for _, r := range []*ring{&m.rx, &m.tx} {
		if v == 1 && (r.entries < 2 || r.entries > 4096 || r.entries&(r.entries-1) != 0 || r.lo&15 != 0) {
			return fmt.Errorf("enabled with an impossible ring: %d entries at %#x", r.entries, r.iova())
		}
	}
	if v == 1 && (m.bufSize < 64 || m.bufSize > bufMax) {
		return fmt.Errorf("enabled with buffers of %d bytes", m.bufSize)
	}
	m.enabled = v == 1
	return nil
}

func (r *ring) iova() uint64 { return uint64(r.hi)<<32 | uint64(r.lo) }

func (r *ring) check(name string) error {
	if n := r.tail - r.head; n > r.entries {
		r.tail = r.head
		return fmt.Errorf("%s tail gives %d descriptors of %d", name, n, r.entries)
	}
	return nil
}

// doorbells finds stores that were made by pointer.
func (m *Model) doorbells() {
	for _, d := range []struct {
		off  int
		ring *ring
		name string
	}{{0, &m.rx, "receive"}, {0x40, &m.tx, "transmit"}} {
		if v := sim.Load32(m.host.Shadow(2)[d.off:]); v != d.ring.tail {
			m.host.CountMMIOWrite(1)
			d.ring.tail = v
			if err := d.ring.check(d.name); err != nil {
				m.host.Errorf("doorbell: %v", err)
			}
		}
	}
}

// next reads the ring's next descriptor. ok is false if the driver posted none.
func (m *Model) next(r *ring) (at uint64, d [16]byte, ok bool) {
	if r.head == r.tail {
		return 0, d, false
	}
	at = r.iova() + 16*uint64(r.head&(r.entries-1))
	if m.host.DMARead(at, d[:]) != nil {
		return 0, d, false
	}
	if d[10] != 0 || d[11] != 0 || le.Uint32(d[12:]) != 0 {
		m.host.Warnf("descriptor %d: reserved or device's bits set: %x", r.head, d)
	}
	return at, d, true
}

// Receive writes the frame to the driver's next buffer.
func (m *Model) Receive(frame []byte) bool {
	if !m.enabled || !m.link {
		return false
	}
	m.doorbells()
	if len(frame) > int(m.bufSize) {
		m.missed++
		return false
	}
	at, d, ok := m.next(&m.rx)
	if !ok {
		m.missed++
		return false
	}
	m.rx.head++
	if m.host.DMAWrite(le.Uint64(d[:]), frame) != nil {
		return false
	}
	m.received++
	le.PutUint16(d[8:], uint16(len(frame)))
	d[10] = 1
	return m.host.DMAWrite(at, d[:]) == nil
}

// Step transmits one frame.
func (m *Model) Step() bool {
	if !m.enabled {
		return false
	}
	m.doorbells()
	if m.paused {
		return false
	}
	at, d, ok := m.next(&m.tx)
	if !ok {
		return false
	}
	m.tx.head++
	frame := make([]byte, le.Uint16(d[8:]))
	d[10] = 1
	switch {
	case len(frame) < 14 || len(frame) > bufMax:
		m.host.Errorf("transmit descriptor with a frame of %d bytes", len(frame))
		d[10] |= 2
		m.errors++
	case m.host.DMARead(le.Uint64(d[:]), frame) != nil:
		d[10] |= 2
		m.errors++
	case m.link:
		m.host.Transmit(frame)
		m.sent++
	}
	m.host.DMAWrite(at, d[:])
	return true
}
