package ixgbesim

import (
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
	r.own(2)
	check.Equal(t, r.readPHY(1, 2)<<16|r.readPHY(1, 3), 0x01540200, "PHY identifier %08x")
	r.cycle(3, 1, 1, 2)
	check.Equal(t, r.rd(0x4260)>>16, 0xffff, "address 1 answers %#x")
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
	for k, want := range map[Kind]struct {
		device uint16
		links  uint32
	}{SFP: {0x10fb, 7}, KX4: {0x10f7, 0xf}, Combined: {0x10f8, 0xf}, XAUI: {0x10fc, 7}, X540: {0x1528, 7}} {
		r := newRig(t, Options{Kind: k})
		check.Equal(t, r.Fn.ID().Vendor, 0x8086, "vendor %#x")
		check.Equal(t, r.Fn.ID().Device, want.device, "device %#x")
		check.Equal(t, r.rd(0x42a4)>>28, want.links, "LINKS %x")
		r.Clean()
	}
}
