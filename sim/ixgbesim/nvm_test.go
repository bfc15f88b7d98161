package ixgbesim

import (
	"slices"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
)

// checksum adds the words of the EEPROM that its checksum covers as Linux does, and those of the skipped sections.
func (r *rig) checksum(skip ...uint32) (sum, skipped uint16) {
	r.Helper()
	for i := range uint32(0x40) {
		sum += r.word(i)
	}
	for p := uint32(3); p < 0xf; p++ {
		at := uint32(r.word(p))
		if at == 0 || at == 0xffff {
			continue
		}
		for k := range uint32(r.word(at)) {
			if v := r.word(at + 1 + k); slices.Contains(skip, p) {
				skipped += v
			} else {
				sum += v
			}
		}
	}
	return sum, skipped
}

func TestEEPROM(t *testing.T) {
	r := newRig(t, Options{})
	sum, _ := r.checksum()
	check.Equal(t, sum, 0xbaba, "the EEPROM sums to %04x")
	if core := uint32(r.word(9)); r.word(core+1) != 0x0002 || r.word(core+3) != 0x0100 {
		t.Error("the EEPROM has another MAC address")
	}
}

// The checksum of the X540 covers neither the PHY's section nor the option ROM's.
func TestX540NVM(t *testing.T) {
	r := newRig(t, Options{Kind: X540})
	check.Equal(t, 1<<(r.rd(0x10010)>>11&15+6), nvmWords, "EEC says %d words")
	r.own(1)
	if sum, skipped := r.checksum(4, 5); sum != 0xbaba || skipped == 0 {
		t.Errorf("it sums to %04x; the sections left out to %04x", sum, skipped)
	}
}

func TestSemaphores(t *testing.T) {
	r := newRig(t, Options{})
	if r.rd(0x10140)&1 != 0 || r.rd(0x10140)&1 != 1 {
		t.Error("SWSM.SMBI is not taken by reading it")
	}
	r.wr(0x10160, 1)
	r.ExpectViolation("without SWSM.SWESMBI")
	r.wr(0x10140, 3)
	r.wr(0x10160, 1)
	check.Equal(t, r.rd(0x10160), 1, "SW_FW_SYNC reads %d: the semaphore is not taken")
}

// The module's memory by I2CCTL, clock by clock.
func TestModule(t *testing.T) {
	r := newRig(t, Options{})
	r.wr(0x28, 0xf)
	r.ExpectViolation("without the PHY of port 0")
	r.wr(0x10140, 3) // the semaphores
	r.wr(0x10160, 2)
	bit := map[bool]uint32{true: 1}
	line := func(scl, sda bool) { r.wr(0x28, bit[scl]<<1|bit[sda]<<3) }
	start := func() { line(false, true); line(true, true); line(true, false); line(false, false) }
	out := func(b byte) (ack bool) {
		for i := 7; i >= 0; i-- {
			bit := b>>i&1 != 0
			line(false, bit)
			line(true, bit)
			line(false, bit)
		}
		line(false, true)
		line(true, true)
		ack = r.rd(0x28)&4 == 0
		line(false, true)
		return ack
	}
	in := func(ack bool) (b byte) {
		for range 8 {
			line(false, true)
			line(true, true)
			b = b<<1 | byte(r.rd(0x28)>>2&1)
		}
		line(false, true)
		line(false, !ack)
		line(true, !ack)
		line(false, !ack)
		return b
	}
	if start(); !out(0xa0) || !out(8) {
		t.Fatal("no acknowledge")
	}
	if start(); !out(0xa1) {
		t.Fatal("no acknowledge for reading")
	}
	if a, b := in(true), in(false); a != 4 || b != 0 {
		t.Errorf("bytes 8 and 9 are %02x %02x", a, b)
	}
	line(false, false)
	line(true, false)
	line(true, true)
	if start(); out(0xa2) {
		t.Error("a passive cable answers at A2h")
	}
	r.m.SetModule(nil)
	if start(); out(0xa0) {
		t.Error("an empty cage answers")
	}
}

func TestEEPROMBits(t *testing.T) {
	r := newRig(t, Options{})
	eec := r.rd(0x10010) | 1<<6
	r.wr(0x10010, eec)
	r.poll(0x10010, 1<<7, 1<<7)
	put := func(v uint32, n int) {
		for i := n - 1; i >= 0; i-- {
			bit := v >> i & 1 << 2
			r.wr(0x10010, eec|bit)
			r.wr(0x10010, eec|bit|1)
			r.wr(0x10010, eec|bit)
		}
	}
	put(3, 8)
	put(2*0x2b, 16)
	got := uint16(0)
	for range 16 {
		r.wr(0x10010, eec|1)
		got = got<<1 | uint16(r.rd(0x10010)>>3&1)
		r.wr(0x10010, eec)
	}
	r.wr(0x10010, eec|2)
	r.wr(0x10010, eec&^(1<<6)|2)
	check.Equal(t, got>>8|got<<8, r.word(0x2b), "word 2bh bit by bit %04x")
}
