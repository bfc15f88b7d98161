package efasim

import (
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/amazon"
)

func TestKnobs(t *testing.T) {
	x, c, q, ah := loop(t, Options{}, typeUD)
	r := x.qpair(typeUD, 64, c).ready()
	send := func(req uint16) { q.post(q.inline(req, r.num, ah, "x")) }
	take := func() (all [][]byte) {
		for b := c.take(); b != nil; b = c.take() {
			all = append(all, b)
		}
		return all
	}
	x.m.TamperCompletion(true, func(b []byte) { b[2] = compQPInternal })
	send(1)
	if got := take(); len(got) != 1 || got[0][2] != compQPInternal {
		t.Errorf("tampered: %x", got)
	}
	x.m.DuplicateCompletion(true, 2)
	send(2)
	if got := take(); len(got) != 3 || le.Uint16(got[2]) != 2 {
		t.Errorf("three times: %x", got)
	}
	x.m.Forget(true)
	r.offer(64, 0)
	send(3)
	if got := take(); len(got) != 2 || le.Uint16(got[1][8:]) != noAH {
		t.Errorf("forgotten sender: %x", got)
	}
	x.m.Pause(true)
	send(4)
	check.Equal(t, len(take()), 0, "paused: %d completions")
	x.m.Pause(false)
	x.settle()
	check.Equal(t, len(take()), 1, "not paused any more: %d completions")

	x.Submit(opAllocPD, nil)
	x.m.TamperAdmin(func(b []byte) { b[2] = 77 })
	x.settle()
	if e := x.Ack(); e == nil || e[2] != 77 {
		t.Errorf("tampered: %x", e)
	}
	x.Clean()

	x.m.Mute(true)
	x.Set(amazon.RegREADREQ, uint32(amazon.RegVERSION)<<16|0x777)
	if le.Uint16(x.Resp.Bytes) == 0x777 {
		t.Error("a mute device answers")
	}
	x.Port.Unplug()
	check.Equal(t, x.Regs.Read32(uint64(amazon.RegDEVSTS)), 0xffffffff, "DEV_STS %#x of a device that is gone")
}

func TestOptions(t *testing.T) {
	x := newRig(t, Options{NotReady: true, Version: 0x102, Controller: 0x03040506, Width: 40, Vectors: 3,
		Hints: Hints{1, 2, 3, 4}, Unsupported: 1 << featEvents})
	read := func(r amazon.Reg) uint32 { return x.Regs.Read32(uint64(r)) }
	check.Equal(t, read(amazon.RegDEVSTS)&amazon.StsReady, 0, "DEV_STS.READY is %d")
	check.Equal(t, read(amazon.RegVERSION), 0x102, "VERSION %#x")
	check.Equal(t, read(amazon.RegCTRLVERSION), 0x03040506, "CONTROLLER_VERSION %#x")
	check.Equal(t, read(amazon.RegCAPS)>>8&0xff, 40, "%d address bits")
	x.Addr(amazon.RegRESPLO, 1<<41)
	x.ExpectError("40 bits")
	check.Equal(t, x.Port.Config().MSIXVectors, 3, "%d vectors")
	var _ sim.Pauser = x.m
}
