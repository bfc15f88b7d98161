package ixgbesim

import (
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
)

// own takes resources in the X540's SW_FW_SYNC.
func (r *rig) own(bits uint32) {
	r.Helper()
	if r.rd(0x10140)&1 != 0 || r.rd(0x10160)&(1<<31) != 0 {
		r.Fatal("the semaphores are taken")
	}
	r.wr(0x10160, r.rd(0x10160)|bits)
	r.wr(0x10160, r.rd(0x10160)&^(1<<31))
	r.wr(0x10140, 0)
}

func (r *rig) cycle(op, phy, mmd, addr uint32) {
	r.Helper()
	for _, o := range []uint32{0, op} {
		r.wr(0x425c, addr|mmd<<16|phy<<21|o<<26|1<<30)
		r.poll(0x425c, 1<<30, 0)
	}
}

func (r *rig) readPHY(mmd, addr uint32) uint32 {
	r.Helper()
	r.cycle(3, 0, mmd, addr)
	return r.rd(0x4260) >> 16
}

func (r *rig) writePHY(mmd, addr, v uint32) {
	r.Helper()
	r.wr(0x4260, v)
	r.cycle(1, 0, mmd, addr)
}

// TestX540Link: the link is the PHY's, at the highest advertised speed.
func TestX540Link(t *testing.T) {
	r := newRig(t, Options{Kind: X540})
	if r.Fn.ID().Device != 0x1528 {
		t.Error(r.Fn.ID())
	}
	r.own(2)
	check.Equal(t, r.readPHY(1, 2)<<16|r.readPHY(1, 3), 0x01540200, "PHY identifier %08x")
	if r.cycle(3, 1, 1, 2); r.rd(0x4260)>>16 != 0xffff {
		t.Error("something answers at address 1")
	}
	links := func(want uint32) {
		t.Helper()
		check.Equal(t, r.rd(0x42a4)>>28, want, "LINKS %x")
	}
	links(7)
	if r.readPHY(7, 1)&0x24 != 0x24 || r.readPHY(7, 0x13)&0xd00 != 0xd00 {
		t.Error("the PHY knows of no link, or of no partner")
	}
	r.writePHY(7, 0x20, 0)
	links(7) // until it negotiates again
	r.writePHY(7, 0, r.readPHY(7, 0)|1<<9)
	links(6)
	if r.readPHY(7, 0)&(1<<9) != 0 {
		t.Error("the restart bit stays")
	}
	r.writePHY(7, 0xc400, 0)
	r.writePHY(7, 0, r.readPHY(7, 0)|1<<9)
	links(5)
	r.writePHY(30, 0, 1<<11)
	links(0)
	r.writePHY(30, 0, 0)
	links(5)
	r.wr(0, 1<<26)
	r.poll(0, 1<<26, 0)
	links(5) // the PHY is not reset with the MAC
}

// TestX540NVM computes the checksum as Linux does: without the PHY and option ROM sections.
func TestX540NVM(t *testing.T) {
	r := newRig(t, Options{Kind: X540})
	check.Equal(t, 1<<(r.rd(0x10010)>>11&15+6), nvmWords, "EEC says %d words")
	r.own(1)
	word := func(i uint32) uint16 {
		r.wr(0x10014, i<<2|1)
		r.poll(0x10014, 2, 2)
		return uint16(r.rd(0x10014) >> 16)
	}
	sum := uint16(0)
	for i := range uint32(0x40) {
		sum += word(i)
	}
	skipped := uint16(0)
	for p := uint32(3); p < 0xf; p++ {
		at := uint32(word(p))
		if at == 0 || at == 0xffff {
			continue
		}
		for k := range uint32(word(at)) {
			if p == 4 || p == 5 {
				skipped += word(at + 1 + k)
			} else {
				sum += word(at + 1 + k)
			}
		}
	}
	if sum != 0xbaba || skipped == 0 {
		t.Errorf("it sums to %04x; the sections left out to %04x", sum, skipped)
	}
}

// TestX540Violations makes one mistake at a time.
func TestX540Violations(t *testing.T) {
	for _, c := range []struct {
		name, want string
		do         func(r *rig)
	}{
		{"NVM not taken", "without the NVM", func(r *rig) { r.wr(0x10014, 1) }},
		{"beyond the NVM", "there are 0x800", func(r *rig) { r.own(1); r.wr(0x10014, 0x800<<2|1) }},
		{"NVM bit by bit", "a flash", func(r *rig) { r.wr(0x10010, 1<<6) }},
		{"PHY not taken", "without the PHY", func(r *rig) { r.wr(0x425c, 1<<30) }},
		{"reset with the PHY in use", "command to the PHY", func(r *rig) { r.own(2); r.wr(0x425c, 1<<30|1<<16); r.wr(0, 1<<26) }},
		{"SW_FW_SYNC not taken", "without REGSMP", func(r *rig) { r.wr(0x10160, 2) }},
		{"no address cycle", "without an address cycle", func(r *rig) { r.own(2); r.wr(0x425c, 1<<30|3<<26|1<<16|2) }},
		{"another address cycle", "without an address cycle", func(r *rig) { r.own(2); r.readPHY(1, 2); r.wr(0x425c, 1<<30|3<<26|1<<16|3) }},
		{"command under way", "while a command is under way", func(r *rig) { r.own(2); r.wr(0x425c, 1<<30|1<<16); r.wr(0x425c, 1<<30|1<<16) }},
		{"data under way", "while a command is under way", func(r *rig) { r.own(2); r.wr(0x425c, 1<<30|1<<16); r.rd(0x4260) }},
		{"clause 22", "clause 22", func(r *rig) { r.own(2); r.wr(0x425c, 1<<30|1<<28) }},
		{"auto-increment", "does not increment", func(r *rig) { r.own(2); r.cycle(2, 0, 1, 2) }},
		{"a read-only PHY register", "not for drivers", func(r *rig) { r.own(2); r.writePHY(1, 2, 1) }},
		{"link modes of the 82599", "no such register", func(r *rig) { r.rd(0x42a0) }},
		{"packet buffer of the 82599", "of 384 KB", func(r *rig) { r.wr(0x3c00, 512<<10) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, Options{Kind: X540})
			c.do(r)
			r.ExpectViolation(c.want)
		})
	}
	r := newRig(t, Options{})
	r.rd(0x41c4)
	r.ExpectViolation("no such register") // which only the X540 has
}

// TestX540FrameLimit: a queue may have a shorter frame limit; the 82599 lacks these bits.
func TestX540FrameLimit(t *testing.T) {
	r := openRig(t, Options{Kind: X540})
	r.wr(0x1028, r.rd(0x1028)|1<<15|100)
	r.fill(8)
	for _, n := range []int{100, 101, 60} {
		r.Far.Send(0, frame(n))
	}
	r.settle()
	if c := r.m.Counters(); c.RxQueue[0] != 2 || r.rd(0x40ac) != 1 {
		t.Errorf("%d frames were placed, ROC %d", c.RxQueue[0], r.rd(0x40ac))
	}
	r.Clean()
	r = openRig(t, Options{})
	r.wr(0x1028, r.rd(0x1028)|1<<15|100)
	r.ExpectViolation("reserved bits")
}

// TestKinds: each kind has its IDs, and its link comes up as configured by AUTOC.
func TestKinds(t *testing.T) {
	for k, links := range map[Kind]uint32{SFP: 7, KX4: 0xf, Combined: 0xf, XAUI: 7, X540: 7} {
		r := newRig(t, Options{Kind: k})
		if v := r.rd(0x42a4) >> 28; v != links || !strings.Contains(r.Fn.ID().String(), "8086") || r.Fn.ID().Device != cards[k].device {
			t.Errorf("kind %d: %v, LINKS %x, want %x", k, r.Fn.ID(), v, links)
		}
		r.Clean()
	}
}
