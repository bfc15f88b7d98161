package efasim

import (
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/amazon"
)

func TestKnobs(t *testing.T) {
	x := openRig(t, Options{})
	c := x.completions(16, nil)
	q, r := x.qpair(typeUD, 64, c).ready(), x.qpair(typeUD, 64, c).ready()
	ah := x.handle(x.m.gid)
	send := func(req uint16) {
		q.post(q.inline(req, r.num, ah, "x"))
	}
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
	if got := take(); len(got) != 0 {
		t.Errorf("paused: %x", got)
	}
	x.m.Pause(false)
	x.settle()
	if got := take(); len(got) != 1 {
		t.Errorf("not paused any more: %x", got)
	}

	x.m.StallAdmin(true)
	x.Submit(opAllocPD, nil)
	x.settle()
	if e := x.Ack(); e != nil {
		t.Errorf("stalled: %x", e)
	}
	x.m.StallAdmin(false)
	x.m.TamperAdmin(func(b []byte) { b[2] = 77 })
	x.settle()
	if e := x.Ack(); e == nil || e[2] != 77 {
		t.Errorf("tampered: %x", e)
	}
	x.m.WithholdKeepAlive(true)
	x.Set(amazon.RegAENQDB, 0)
	x.OK(opSetFeature, fields{17: uint8(featAENQ), 24: uint32(eventGroups)})
	x.m.HastenKeepAlive(5 * time.Second)
	x.settle()
	if x.AENQ.Bytes[4]&1 != 0 {
		t.Errorf("event %x", x.AENQ.Bytes[:16])
	}
	x.m.Post(amazon.Event{Group: 9, Syndrome: 3}) // unknown
	x.settle()
	if e := x.AENQ.Bytes; e[4]&1 == 0 || le.Uint16(e) != 9 || le.Uint16(e[2:]) != 3 {
		t.Errorf("event %x", e[:16])
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
	x := newRig(t, Options{NotReady: true, Version: 0x102, Controller: 0x03040506, Width: 40, Vectors: 3, Hints: Hints{1, 2, 3, 4}, Unsupported: 1 << featEvents})
	if sts := x.Regs.Read32(uint64(amazon.RegDEVSTS)); sts&amazon.StsReady != 0 {
		t.Errorf("DEV_STS %#x", sts)
	}
	if v, c, w := x.Regs.Read32(uint64(amazon.RegVERSION)), x.Regs.Read32(uint64(amazon.RegCTRLVERSION)), x.Regs.Read32(uint64(amazon.RegCAPS))>>8&0xff; v != 0x102 || c != 0x03040506 || w != 40 {
		t.Errorf("VERSION %#x, CONTROLLER_VERSION %#x, %d address bits", v, c, w)
	}
	x.Addr(amazon.RegRESPLO, 1<<41)
	x.ExpectError("40 bits")
	if c := x.Port.Config(); c.MSIXVectors != 3 {
		t.Errorf("%d vectors", c.MSIXVectors)
	}
	var _ sim.Pauser = x.m
}
