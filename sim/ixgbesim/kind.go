package ixgbesim

// Kind is the card that the port is on.
type Kind uint8

const (
	SFP      Kind = iota // 8086:10fb, 10 Gb/s serial without autonegotiation, a passive SFP+ cable plugged in
	KX4                  // 8086:10f7, a backplane with clause 73 autonegotiation
	Combined             // 8086:10f8, a backplane with clause 73 autonegotiation, and at 1 Gb/s clause 37's
	XAUI                 // 8086:10fc, four lanes to a switch on the board, without autonegotiation
	X540                 // 8086:1528, 10GBASE-T by its own PHY
	kinds
)

// cards lists the differences between kinds. AUTOC is the value that the EEPROM loads (§8.2.3.22.19): KX4 and KX
// supported 31:30, KR 16, link mode 15:13, 10 Gb/s parallel PMA 8:7.
var cards = [kinds]struct {
	device, subDevice uint16
	autoc, autoc2     uint32
	rxKB              uint32 // receive packet buffer
}{
	SFP:      {0x10fb, 0x000c, 0xc09c6084, 0x000a0000, 512}, // as boards' NVM has them: link mode 3, 10 Gb/s serial
	KX4:      {0x10f7, 0x000c, 3<<30 | 4<<autocLMSShift | 1<<16 | 1<<7, 0, 512},
	Combined: {0x10f8, 0x000c, 3<<30 | 6<<autocLMSShift | 1<<16 | 1<<7, 0, 512},
	XAUI:     {0x10fc, 0x000c, 1 << autocLMSShift, 0, 512},
	X540:     {0x1528, 0x0001, 0, 0, 384},
}

func (m *Model) x540() bool { return m.opt.Kind == X540 }

// bits returns the writable bits of a register. Only the X540 limits frame length per queue.
func (m *Model) bits(e *entry) uint32 {
	if m.x540() && (e.Base == regRXDCTL || e.Base == 0x0d028) {
		return e.Bits | rxdctlRLPML | rxdctlRLPMLEN
	}
	return e.Bits
}

// absent reports whether this kind lacks a register of the table. The X540's MAC is tied to its PHY: it has no separate
// link modes, no module and no bit-banged EEPROM. Only the X540 counts traffic between the host and a management
// controller.
func (m *Model) absent(e *entry) bool {
	switch e.Base {
	case regAUTOC, regAUTOC2, regANLP1, regLINKS2, regI2CCTL, 0x04200, 0x04208, 0x0420c, 0x04218, 0x0421c:
		return m.x540()
	case 0x041c0, 0x041c4, 0x02f90, 0x087b0:
		return !m.x540()
	}
	return false
}
