package ixgbesim

import (
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
)

func TestMSIX(t *testing.T) {
	r := openRig(t, Options{})
	r.fill(32)
	r.wr(0x898, 1<<4|1<<5|1<<30) // Multiple_MSIX, OCD, EIAME
	r.wr(0x900, 0x80|3|(0x80|5)<<8)
	r.wr(0xa00, (0x80|7)<<8)
	r.wr(0x810, 0xffff)
	r.wr(0xad0, 1<<3)
	r.wr(0xaa0, 1<<3|1<<5)
	r.wr(0x880, 1<<20)
	want := func(name string, v ...int) {
		t.Helper()
		r.settle()
		check.Same(t, r.Vectors, v, name+": interrupts %v")
		r.Vectors = nil
	}
	want("enabling: the link came up before", 7)
	r.wr(0x800, 1<<20)
	r.Far.Send(0, frame(60))
	want("receive", 3)
	r.Far.Send(0, frame(60))
	want("receive, masked by the first")
	r.wr(0xaa0, 1<<3)
	want("enabled again", 3)
	r.send(frame(60))
	want("transmit", 5)
	r.send(frame(60))
	want("transmit, not auto-masked", 5)
	r.Far.SetUp(false)
	want("link", 7)
	check.Equal(t, r.rd(0x808)&(1<<20), 1<<20, "EICS reads %08x")
	r.wr(0x800, 1<<20)
	r.wr(0x880, 1<<20)
	want("acknowledged")
	r.wr(0xa90, 1<<5)
	want("by software", 5)
}

func TestThrottle(t *testing.T) {
	r := openRig(t, Options{})
	r.fill(32)
	r.wr(0x898, 1<<4)
	r.wr(0x900, 0x80)
	r.wr(0x810, 0xffff)
	r.wr(0xaa0, 1)
	r.wr(0x820, 50<<3) // 100 us; a Step is 1 us
	for range 4 {
		r.Arrive(frame(60))
	}
	check.Equal(t, len(r.Vectors), 1, "%d interrupts within the interval")
	for range 120 {
		r.Port.Step()
	}
	check.Equal(t, len(r.Vectors), 2, "%d interrupts after it")
}

func TestSharedInterrupt(t *testing.T) {
	r := openRig(t, Options{})
	r.fill(32)
	r.wr(0x900, 0x80|2)
	r.wr(0x890, 0xffff)
	r.rd(0x800)
	r.wr(0x880, 1<<2)
	r.Arrive(frame(60))
	check.Same(t, r.Vectors, []int{0}, "interrupts %v")
	check.Equal(t, r.rd(0x800), 1<<2, "EICR %08x")
	check.Equal(t, r.rd(0x880)&(1<<2), 0, "EIMS %08x: not masked by reading EICR")
	r.Arrive(frame(60))
	check.Equal(t, len(r.Vectors), 1, "%d interrupts while masked")
	r.wr(0x880, 1<<2)
	check.Equal(t, len(r.Vectors), 2, "%d interrupts after unmasking")
}
