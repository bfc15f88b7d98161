package ixgbesim

// spi is the EEPROM's bus, bit-banged by EEC once EE_REQ is granted (§3.5.2): Linux reads this way before it knows the
// part. Select is low while CS is; data is sampled when SK rises, and output before it is read.
type spi struct {
	clk   bool
	bits  int // seen since the chip was selected
	shift uint32
	op    uint8
	addr  uint32 // next byte
	out   uint32 // eecDO or 0
}

const spiRead, spiStatus = 0x03, 0x05

func (s *spi) write(v uint32, mem *[eepromWords]uint16) {
	rise := v&eecSK != 0 && !s.clk
	s.clk = v&eecSK != 0
	switch {
	case v&eecREQ == 0 || v&eecCS != 0:
		*s = spi{clk: s.clk}
		return
	case !rise:
		return
	}
	s.shift = s.shift<<1 | v>>2&1
	s.bits++
	switch {
	case s.bits == 8:
		s.op = uint8(s.shift)
	case s.op == spiRead && s.bits == 24:
		s.addr = s.shift & 0xffff
	case s.op == spiRead && s.bits > 24:
		n := uint32(s.bits - 25)
		at := s.addr + n/8
		b := mem[at/2%eepromWords] >> (at % 2 * 8)
		s.out = uint32(b) >> (7 - n%8) & 1 * eecDO
	case s.op == spiStatus && s.bits > 8:
		s.out = 0 // ready
	}
}
