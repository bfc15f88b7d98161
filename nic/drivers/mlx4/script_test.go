package mlx4

import (
	"encoding/binary"
	"log/slog"
	"slices"
	"testing"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/proof/nictest/rig"
)

// script is a function with only a command register. It executes each command when its go bit is written.
type script struct {
	rig.Script
	hcr            [7]uint32
	given          int // times that the ownership register was returned
	functionResets int
	resets         int // by the register
	catas          uint32
	bar2           []byte
	config         [256]byte
	removed        bool

	// vfio-pci shows payload and read request sizes of Device Control as a driver wrote them, and leaves the card's
	// alone.
	control uint16 // Device Control of the card
	above   uint16 // of the port above it
	denied  error  // from WriteReal

	sent   []sent
	answer func(c sent) (Status, mailbox, uint64) // nil: the answers of a card with DMFS
	silent opcode                                 // this one is never completed
	toggle uint32                                 // of the device
}

// sent is a command as received by the device.
type sent struct {
	op       opcode
	opMod    uint8
	modifier uint32
	param    uint64
	in       mailbox // memory at param, if it is an address
}

func newScript(t testing.TB) *script { return newScriptOn(t, make([]byte, 8<<20)) }

func newScriptOn(t testing.TB, doorbells []byte) *script {
	s := &script{Script: rig.NewScript(t), bar2: doorbells}
	binary.LittleEndian.PutUint32(s.config[0:], 0x100315B3)
	s.config[4] = 2 // memory is on
	binary.LittleEndian.PutUint32(s.config[0x10:], 0xC8800004)
	s.config[0x06], s.config[0x34] = 1<<4, 0x60 // a list of capabilities
	binary.LittleEndian.PutUint16(s.config[0x60:], 0x10)
	s.setControl(0x2830) // payload of 256 bytes, as firmware sets it on most servers
	return s
}

func (s *script) ID() pci.ID   { return pci.ID{Vendor: vendorMellanox, Device: 0x1003} }
func (s *script) Reset() error { s.functionResets++; s.hcr[6], s.toggle = 0, 0; return nil }
func (s *script) Close() error { return nil }
func (s *script) SetBusMaster(on bool) error {
	s.config[4] &^= 4
	if on {
		s.config[4] |= 4
	}
	return nil
}

func (s *script) ReadConfig(off int, p []byte) error {
	copy(p, s.config[off:])
	if s.removed {
		for i := range p {
			p[i] = 0xFF
		}
	}
	return nil
}

func (s *script) WriteConfig(off int, p []byte) error {
	copy(s.config[off:], p)
	if off == 0x68 {
		const sizes = 0x70E0
		s.control = s.control&sizes | binary.LittleEndian.Uint16(p)&^sizes
	}
	return nil
}

// setControl is what the host's firmware sets in the card and in the port above.
func (s *script) setControl(v uint16) {
	binary.LittleEndian.PutUint16(s.config[0x68:], v)
	s.control, s.above = v, v
}

func (s *script) WriteReal(off int, p []byte) error {
	if s.denied == nil && off == 0x68 {
		s.control = binary.LittleEndian.Uint16(p)
	}
	return s.denied
}

func (s *script) BAR(n int) (*mmio.Window, error) {
	if n == 2 {
		return mmio.Mapped(s.bar2, false), nil
	}
	return mmio.Trapped(1<<20, s, nil, nil), nil
}

func (s *script) BARWC(n int) (*mmio.Window, error) { return s.BAR(n) }

func (s *script) ReadBAR(off uint64, p []byte) error {
	var v uint32
	switch {
	case s.removed:
		v = ^uint32(0)
	case off == 0x1000:
		v = s.catas
	case reg(off) >= regHCR && reg(off) < regHCR+28:
		v = s.hcr[(off-uint64(regHCR))/4]
	}
	binary.BigEndian.PutUint32(p, v)
	return nil
}

func (s *script) WriteBAR(off uint64, p []byte) error {
	v := binary.BigEndian.Uint32(p)
	switch r := reg(off); {
	case r == regOwner:
		s.given++
	case r == regReset && v == 1:
		s.resets++
		s.hcr[6], s.toggle = 0, 0
		clear(s.config[4:6])
		clear(s.config[0x10:0x28])
		s.control = 0x2810
	case r >= regHCR && r < regHCR+28:
		s.hcr[(r-regHCR)/4] = v
		if r == hcrStatus {
			s.execute()
		}
	}
	return nil
}

// takesMailbox lists the commands whose input parameter is an address.
var takesMailbox = []opcode{opInitHCA, opSetPort, opSW2HWMPT, opSW2HWEQ, opSW2HWCQ, opRST2INIT, opINIT2RTR, opRTR2RTS,
	opSetVLANFltr, opFlowAttach, opMapICM, opMapICMAux, opMapFA, opMADIFC}

func (s *script) execute() {
	w := s.hcr[6]
	if w&hcrGo == 0 || w&hcrToggle == s.toggle {
		s.Errorf("command %#08x without go, or with the toggle of the last", w)
	}
	if s.config[4]&6 != 6 {
		s.Errorf("command %#08x with bus mastering or memory off", w)
	}
	c := sent{op: opcode(w & 0xFFF), opMod: uint8(w >> 12 & 15), modifier: s.hcr[2],
		param: uint64(s.hcr[0])<<32 | uint64(s.hcr[1])}
	if slices.Contains(takesMailbox, c.op) {
		if payload := func(v uint16) uint16 { return v >> 5 & 7 }; payload(s.control) < payload(s.above) {
			s.Errorf("%v reads a mailbox: the port above answers with up to %d bytes, and the card takes %d (malformed TLP)", c.op, 128<<payload(s.above), 128<<payload(s.control))
		}
		c.in = append(mailbox(nil), s.Memory(c.param, mailboxSize)...)
	}
	s.sent = append(s.sent, c)
	if c.op == s.silent {
		return
	}
	answer := s.answer
	if answer == nil {
		answer = card
	}
	status, out, imm := answer(c)
	if out != nil {
		copy(s.Memory(uint64(s.hcr[3])<<32|uint64(s.hcr[4]), mailboxSize), out)
	} else if s.hcr[3] == 0 && s.hcr[4] == 0 {
		s.hcr[3], s.hcr[4] = uint32(imm>>32), uint32(imm)
	}
	s.toggle = w & hcrToggle
	s.hcr[6] = w&^hcrGo&^(0xFF<<24) | uint32(status)<<24
}

// card answers like a ConnectX-3 with two ports, the first of which is Ethernet. The values are those of real cards
// (docs/cards/mlx4.md).
func card(c sent) (Status, mailbox, uint64) {
	m := make(mailbox, 0x400)
	switch c.op {
	case opQueryFW:
		m.set16(0x00, 205)
		m.set16(0x02, 2)
		m.set16(0x04, 5100)
		m.set16(0x06, 42)
		m.set16(0x0A, 3)
		m.set64(0x30, 0x1000)
		m.set32(0x38, 16)
	case opQueryDevCap:
		for off, v := range map[int]uint8{0x11: 14, 0x12: 6, 0x13: 19, 0x14: 6 << 4, 0x15: 16, 0x19: 22, 0x1A: 7,
			0x1B: 16, 0x1D: 19, 0x1E: 2, 0x1F: 9,
			0x20: 4 << 4, 0x22: 8, 0x2E: 0x37, 0x37: 2, 0x48: 1 << 4, 0x49: 2, 0x4C: 0x80, 0x4D: 9, 0x4E: 3,
			0x64: 2 << 4, 0x76: 0x80, 0x77: 248} {
			m.set8(off, v)
		}
		m.set64(0x40, capUDPRSS)
		m.set16(0x52, 1008)
		for i, v := range []uint16{32, 256, 32, 64, 64, 128, 128, 64, 8, 64} {
			m.set16(0x80+2*i, v)
		}
		m.set64(0xA0, 1<<40)
	case opQueryPort:
		m.set8(0x00, 0x80|portEth)
		m.set16(0x02, 9600)
		m.set8(0x05, 0x40)
		m.set8(0x0A, 0x77)
		m.set64(0x10, 0x0002C9123456)
	case opQueryAdapter:
		copy(m[0xF0:], "01_T_019021000000")
	case opDumpEthStats:
		m = make(mailbox, mailboxSize)
	case opSetICMSize:
		return 0, nil, 100
	case opFlowAttach:
		return 0, nil, uint64(c.in[21])<<32 | 7
	default:
		m = nil
	}
	return 0, m, 0
}

func (s *script) open(o nic.Options, own Options) (*Device, error) {
	o.Log = slog.New(slog.DiscardHandler)
	if o.RingSize == 0 {
		o.RingSize = 64
	}
	return Open(s, o, own)
}

func (s *script) ops() (all []opcode) {
	for _, c := range s.sent {
		all = append(all, c.op)
	}
	return slices.Compact(all)
}
