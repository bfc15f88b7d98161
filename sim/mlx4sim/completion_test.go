package mlx4sim

import (
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
)

// An armed CQ reports a completion once; the sequence number shows whether the driver saw the last event.
func TestArming(t *testing.T) {
	x := openRig(t, Options{})
	x.eqe()
	x.Vectors = nil
	x.sendFrame()
	if e := x.eqe(); e != nil || len(x.Vectors) > 0 {
		t.Errorf("an event %x without arming", e)
	}
	x.cqe()
	x.arm(1, 2, x.cqCI)
	x.sendFrame()
	x.sendFrame()
	if e := x.eqe(); e == nil || e[1] != 0 || w32(e, 4) != testCQ || len(x.Vectors) != 1 || x.Vectors[0] != 3 {
		t.Errorf("event %x, interrupts %v", e, x.Vectors)
	}
	if e := x.eqe(); e != nil {
		t.Errorf("a second event %x", e)
	}
	x.arm(1, 2, x.cqCI) // the number of the last event: not seen
	if e := x.eqe(); e != nil {
		t.Errorf("an event %x by a stale number", e)
	}
	x.cqe()
	x.arm(2, 2, x.cqCI) // one completion was not consumed, so the event is sent immediately
	if e := x.eqe(); e == nil {
		t.Error("no event for what came before")
	}
}

func TestModeration(t *testing.T) {
	x := openRig(t, Options{})
	x.eqe()
	x.do(0x02c, 1, testCQ, dwords(64, 0x10, 50<<16|3), false)
	x.arm(1, 2, 0)
	x.wqe(opSend, sendFlags, x.data(0, toPeer(64)))
	x.door(testUAR, 0x14, testQP<<8)
	x.steps(10)
	if e := x.eqe(); e != nil {
		t.Errorf("event %x after 10 of 50 µs", e)
	}
	x.steps(60)
	if e := x.eqe(); e == nil {
		t.Error("no event after 70 µs")
	}
}

// Timestamps in completions and the clock's register count one clock, 427 MHz.
func TestTimestamps(t *testing.T) {
	x := newRig(t, Options{})
	x.boot()
	x.do(0x00d, 0, testMPT, x.mptContext(), false)
	x.do(0x013, 0, testEQ, x.eqContext(), false)
	x.do(0x016, 0, testCQ, with(x.cqContext(), 0, 1<<19), false)
	x.do(0x00b, 0, 0, nil, true)
	check.Equal(t, w32(x.out.Bytes, 0xc)>>16, 427, "core clock %d MHz")
	x.invalidate()
	x.ready(testQP, x.qpContext())
	x.send(opNop, sendFlags)
	e := x.cqe()
	stamp := uint64(w32(e, 12))<<16 | uint64(be.Uint16(e[29:]))
	now := uint64(x.rd(regClock))<<32 | uint64(x.rd(regClock+4))
	if stamp == 0 || stamp > now || now-stamp > 427*1000 {
		t.Errorf("stamped %d, the clock is at %d", stamp, now)
	}
}
