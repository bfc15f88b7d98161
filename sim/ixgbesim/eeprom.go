package ixgbesim

import "fmt"

// EEPROM words, §6.
const (
	eepromWords = 16384
	eeFirmware  = 0x0f
	eeCore0     = 0x09 // of port 0; port 1's is the next
	eePBA       = 0x15
	eeSFPInit   = 0x2b
	eeCaps      = 0x2c
	eeETrack    = 0x2d
	eeChecksum  = 0x3f

	eeSum = 0xbaba

	sfpWords = 79

	// The X540's NVM is a shadow of 4 KB of its flash; EEC reports 2^(5+6) words.
	nvmWords = 2048
	nvmSize  = 5 << 11
	eePHY    = 0x04 // sections that its checksum leaves out
	eeROM    = 0x05
)

// newEEPROM returns a valid image. Unused words are all ones, as in an erased part.
func newEEPROM(o Options) (w [eepromWords]uint16) {
	for i := range w {
		w[i] = 0xffff
	}
	for i := range 0x0f {
		w[i] = 0
	}
	// LAN core module 0: its length, then the Ethernet address (§6.4.3).
	w[eeCore0+o.Port] = 0x200
	w[0x200] = 3
	for i := range 3 {
		w[0x201+i] = uint16(o.MAC[2*i]) | uint16(o.MAC[2*i+1])<<8
	}
	w[eePBA], w[eePBA+1] = 0x5265, 0x0001 // part number in the old, plain form
	// Firmware module: no link management, and a version that is a release.
	w[eeFirmware] = 0x210
	for i := range 16 {
		w[0x210+i] = 0
	}
	w[0x214] = 0x220
	w[0x227] = 6
	// SerDes initialization for each type of module: passive copper on port 0 and 1, optics on port 0 and 1. The words
	// are written to CORECTL. Their number is the one that a driver logged for copper on a real card; their values are
	// not public.
	w[eeSFPInit] = 0x240
	w[0x240] = 0
	for i, id := range []uint16{3, 4, 5, 6} {
		w[0x241+2*i], w[0x242+2*i] = id, 0x300
	}
	w[0x300] = sfpWords
	for i := range sfpWords {
		w[0x301+i] = uint16(1 + i)
	}
	// optics of Intel's alone (bit 0 clear) and bits 7:2, as on a stock X520; no FCoE, which is not modelled
	w[eeCaps] = 0xfc | 1<<1
	if o.Crosstalk {
		w[eeCaps] &^= 1 << 7 // Linux, IXGBE_DEVICE_CAPS_NO_CROSSTALK_WR
	}
	w[eeETrack], w[eeETrack+1] = 0x0001, 0x8000
	if o.Kind == X540 {
		for i, p := range []uint16{eePHY, eeROM} {
			at := 0x260 + 0x10*uint16(i)
			w[p] = at
			copy(w[at:], []uint16{3, 0x1111, 0x2222, 0x3333})
		}
	}
	w[eeChecksum] = eeSum - checksum(&w, o.Kind)
	return w
}

// checksum sums words 0 to 3eh and the sections at pointers 3 to 0eh (§6.3.10).
func checksum(w *[eepromWords]uint16, k Kind) (sum uint16) {
	for _, v := range w[:eeChecksum] {
		sum += v
	}
	for i, p := range w[3:eeFirmware] {
		if k == X540 && (i+3 == eePHY || i+3 == eeROM) {
			continue
		}
		if p == 0 || p == 0xffff || int(p) >= len(w) {
			continue
		}
		if n := int(w[p]); n != 0xffff && int(p)+n < len(w) {
			for _, v := range w[int(p)+1 : int(p)+1+n] {
				sum += v
			}
		}
	}
	return sum
}

// SetEEPROM changes a word and updates the checksum.
func (m *Model) SetEEPROM(word, v uint16) {
	m.eeprom[word%eepromWords] = v
	m.eeprom[eeChecksum] = eeSum - checksum(&m.eeprom, m.opt.Kind)
}

// CorruptEEPROM changes one word, so that the checksum is wrong.
func (m *Model) CorruptEEPROM() { m.eeprom[eePBA] ^= 1 }

// writeEERD reads one word (§8.2.3.2.2): address in bits 15 to 2, the word appears in bits 31 to 16 with DONE.
func (m *Model) writeEERD(v uint32) error {
	if v&eerdSTART == 0 {
		m.val[regEERD/4] = v &^ eerdDONE
		return nil
	}
	if m.eep > 0 {
		m.host.Warnf("EERD started before EEC.Auto_RD was seen set (82599 §4.6.3)")
	}
	addr := v >> 2 & 0x3fff
	size := uint32(eepromWords)
	if m.x540() {
		size = nvmWords
		if m.val[regSWFW/4]&swfwNVM == 0 {
			m.host.Warnf("EERD = %08x without the NVM in SW_FW_SYNC: firmware may be using it", v)
		}
	}
	if addr >= size {
		return fmt.Errorf("EERD of word %#x: there are %#x", addr, size)
	}
	m.val[regEERD/4] = uint32(m.eeprom[addr])<<16 | addr<<2 | eerdDONE
	return nil
}

func (m *Model) readEEC() uint32 {
	v := m.val[regEEC/4]&^(eecARD|eecGNT|eecDO) | m.spi.out
	if m.eep == 0 {
		v |= eecARD
	}
	if v&eecREQ != 0 {
		v |= eecGNT
	}
	return v
}
