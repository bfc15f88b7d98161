package mlx5sim

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim"
)

func TestLifeCycle(t *testing.T) {
	x := openRig(t, Options{})
	x.down()
	n, _ := x.m.Pages()
	check.Equal(t, n, 0, "%d pages are left")
	x.given = nil
	x.open() // and again
	x.down()
}

func TestInitializationSegment(t *testing.T) {
	x := newRig(t, Options{Initializing: 3, InterfaceRev: 4})
	check.Equal(t, x.rd(0), 12<<16|14, "fw_rev is %08x")
	check.Equal(t, x.rd(4), 4<<16|1220, "cmd_interface_rev is %08x")
	for i := range 3 {
		if x.rd(0x1fc)>>31 != 1 {
			t.Errorf("read %d: not initializing", i)
		}
	}
	if x.rd(0x1fc)>>31 != 0 {
		t.Error("still initializing")
	}
	check.Equal(t, x.rd(0x14), 5<<4|6, "log_cmdq_size and stride are %08x")
	h := x.rd(0x1010)
	x.Port.Step()
	if x.rd(0x1010) == h {
		t.Error("the health counter stalls")
	}
	x.Clean()
	x.wr(0x18, 1)
	x.ExpectViolation("before the queue's address")
	x.wr(0x1010, 1)
	x.ExpectViolation("read only")
}

func TestDelivery(t *testing.T) {
	in := append(dwords(16, 0, 0x109<<16), make([]byte, 4096)...)
	for name, c := range map[string]struct {
		status uint8
		spoil  func(x *rig, e, box []byte)
	}{
		"type":          {deliveryType, func(x *rig, e, _ []byte) { e[0] = 6 }},
		"reserved":      {deliveryReserved, func(x *rig, e, _ []byte) { e[2] = 1 }},
		"token":         {deliveryToken, func(x *rig, e, b []byte) { b[0x23d]++ }},
		"block number":  {deliveryBlockNumber, func(x *rig, e, b []byte) { b[0x23b] = 9 }},
		"in pointer":    {deliveryInPointer, func(x *rig, e, _ []byte) { e[15] = 4 }},
		"out pointer":   {deliveryOutPointer, func(x *rig, e, _ []byte) { binary.BigEndian.PutUint32(e[56:], 600); e[55] = 4 }},
		"in length":     {deliveryInLength, func(x *rig, e, _ []byte) { e[7] = 3 }},
		"out length":    {deliveryOutLength, func(x *rig, e, _ []byte) { e[59] = 3 }},
		"no such place": {deliveryInPointer, func(x *rig, e, _ []byte) { e[8] = 0x7f }},
	} {
		x := newRig(t, Options{})
		x.address()
		x.do(dwords(16, 0, 0x104<<16), 16)
		x.Clean()
		e := x.entry(in, 16)
		c.spoil(x, e, x.cmd.Bytes[mailboxesAt:])
		e[61] = 0
		e[61] = ^xor(e)
		if _, d := x.ring(in, 16); d != c.status {
			t.Errorf("%s: delivery status %xh, expected %xh", name, d, c.status)
		}
		x.ExpectViolation("delivery status")
	}
}

// TestStrict sends invalid commands.
func TestStrict(t *testing.T) {
	x := newRig(t, Options{})
	x.address()
	x.fails(dwords(16, 0, 0x802<<16), 16, stBadSysState, "ALLOC_UAR (802h): the function is disabled")
	x.do(dwords(16, 0, 0x104<<16), 16)
	x.fails(dwords(16, 0, 0x104<<16), 16, stBadSysState, "enabled already")
	x.fails(dwords(16, 0, 0x102<<16), 16, stBadSysState, "6 pages")
	x.do(dwords(16, 0, 0x105<<16), 16)
	x.open()
	x.fails(dwords(16, 0, 0xfff<<16), 16, stBadOp, "opcode fffh")
	// trailing zeros are accepted
	x.fails(dwords(32, 0, 0x802<<16, 28, 1), 16, stInLen, "input is 32 bytes, expected 16")
	busy := map[uint32]uint32{0x803: x.uar, 0x801: x.pd, 0x817: x.td, 0x302: x.eqn, 0x401: x.cqn, 0x914: x.tisn,
		0x90a: x.rqn, 0x902: x.tirn}
	for op, id := range busy {
		x.fails(dwords(16, 0, op<<16, 8, id), 16, stBadResState, "is in use by")
		x.fails(dwords(16, 0, op<<16, 8, id+0x55), 16, stBadRes, "does not exist")
	}
	x.fails(dwords(64, 0, 0x931<<16, 0x14, x.table), 16, stBadResState, "has 1 groups")
	x.fails(dwords(64, 0, 0x934<<16, 0x14, x.table, 0x18, x.group), 16, stBadResState, "has 1 entries")
	x.fails(dwords(0x110, 0, 0x905<<16, 8, x.sqn, 0x20, 1<<20), 16, stBadResState, "the queue's state is 1")
	x.fails(dwords(0x110, 0, 0x909<<16, 8, 3<<28|x.rqn, 0x20, 1<<20), 16, stBadResState,
		"the queue's state is 1, the command says 3")
	in := dwords(24, 0, 0x108<<16, 4, 1, 12, 1)
	binary.BigEndian.PutUint64(in[16:], x.given[3])
	x.fails(in, 16, stBadParam, "is the firmware's already")
	x.fails(dwords(0x348, 0, 0x936<<16, 0x14, x.table, 0x20, 1, 0x44, x.group, 0x4c, 4, 0x50, 1, 0x340, 2<<24|0x999),
		16, stBadRes, "TIR 0x999")
	caps := x.caps(capGeneral)
	x.fails(setCaps(caps), 16, stBadSysState, "before INIT_HCA")
	x.do(dwords(16, 0, 0x103<<16), 16)
	x.ExpectViolation("objects were not destroyed: 1 of UAR, 1 of PD")
	caps[0x44] ^= 0x80
	x.fails(setCaps(caps), 16, stBadParam, "general capabilities at 44h: bits 80000000 cannot be changed")
	x.do(dwords(16, 0, 0x105<<16), 16)
	x.ExpectViolation("16 pages are still the firmware's")
}

func TestPageOwnership(t *testing.T) {
	x := openRig(t, Options{})
	for _, p := range x.m.pages.order {
		for i := range p.used {
			if p.used[i] {
				must.OK(t, x.m.host.DMAWrite(p.iova+uint64(i)*contextSize, []byte{0xee}))
			}
		}
	}
	x.do(dwords(64, 0, 0x938<<16, 0x14, x.table), 16)
	x.do(dwords(64, 0, 0x934<<16, 0x14, x.table, 0x18, x.group), 16)
	x.ExpectViolation("is the firmware's, and the host wrote to it")
}

func TestPageRequest(t *testing.T) {
	x := openRig(t, Options{InitPages: 1})
	var last []byte
	for range perPage * 8 {
		if last = x.exec(dwords(16, 0, 0x800<<16), 16); last[0] != 0 {
			break
		}
	}
	must.Equal(t, last[0], stNoRes, "status %xh with no page left")
	ask := func(want int32) {
		t.Helper()
		for i := 0; i < 32; i++ {
			if e := x.eq.Bytes[64*i:][:64]; e[63] == 0 && e[1] == eventPageRequest && int32(w32(e, 36)) == want {
				return
			}
		}
		t.Errorf("no page request for %d", want)
	}
	ask(pagesAtATime)
	x.give(pagesAtATime)
	x.do(dwords(16, 0, 0x800<<16), 16)
	x.m.AskPages(-5)
	x.Port.Settle(3)
	ask(-5)
	if out := x.do(dwords(16, 0, 0x108<<16, 4, 2, 12, 5), 16+40); w32(out, 8) != 5 {
		t.Errorf("gave %d pages back", w32(out, 8))
	}
}

func TestBusCost(t *testing.T) {
	x := openRig(t, Options{})
	idx, half := uint32(0), 0
	costs := func(name string, want sim.Counts, do func()) {
		t.Helper()
		before := x.Port.Counts()
		do()
		check.Equal(t, x.Port.Counts().Since(before), want, name+": %+v")
	}
	send := func(name string, n, inl int, push bool, want sim.Counts) {
		t.Helper()
		f := toPeer(n)
		w := x.wqe(idx, f, inl)
		stored := w[:8]
		if push {
			stored = w
		}
		costs(name, want, func() { x.push(half, stored) })
		x.Sent(f, "%s", name)
		if e := x.cqe(); e == nil || e[63]>>4 != cqeRequest || binary.BigEndian.Uint16(e[60:]) != uint16(idx) ||
			w32(e, 0x38) != 0x0a<<24|x.sqn {
			t.Errorf("%s: completion %x", name, e)
		}
		idx += uint32(len(w) / 64)
		half ^= 1
	}
	for range 3 {
		send("64 bytes pushed", 64, 64, true, sim.Counts{MMIOWrite: 2, DMAWrite: 1})
		send("98 bytes pushed", 98, 98, true, sim.Counts{MMIOWrite: 2, DMAWrite: 1})
		send("226 bytes pushed", 226, 226, true, sim.Counts{MMIOWrite: 4, DMAWrite: 1})
		send("header pushed", 1514, 18, true, sim.Counts{MMIOWrite: 1, DMAWrite: 1, DMARead: 1})
		send("doorbell, inline", 98, 98, false, sim.Counts{MMIOWrite: 1, DMAWrite: 1, DMARead: 1})
		send("doorbell, pointer", 1514, 18, false, sim.Counts{MMIOWrite: 1, DMAWrite: 1, DMARead: 2})
	}
	x.post(8)
	costs("receive", sim.Counts{DMARead: 2, DMAWrite: 2}, func() { x.Arrive(frameOf(64)) })
	costs("receive with a WQE at hand", sim.Counts{DMAWrite: 2}, func() { x.Arrive(frameOf(64)) })
	if e := x.cqe(); e == nil || e[63]>>4 != cqeResponseSend || w32(e, 0x2c) != 64 {
		t.Errorf("completion %x", e)
	}
}

// TestTrappedPush stores a WQE eight bytes at a time, as a guest does through a hypervisor.
func TestTrappedPush(t *testing.T) {
	x := openRig(t, Options{})
	for idx := range uint32(6) {
		f := toPeer(34)
		w := x.wqe(idx, f, 34)
		for i := 0; i < 64; i += 8 {
			x.Must(x.Port.WriteBAR(0, uint64(x.uar)*4096+0x800+uint64(idx&1)*0x100+uint64(i), w[i:i+8]))
			if i == 24 {
				x.Port.Step() // in the middle
			}
		}
		x.Port.Settle(1000)
		if got := x.Far.Recv(0); !bytes.Equal(got[:34], f) {
			t.Fatalf("push %d: the wire has %x", idx, got)
		}
	}
	// The first push of each half is served as a doorbell, because nothing indicates yet that more words will come.
	check.Equal(t, x.m.Counters().Pushed, 4, "%d WQEs were taken whole")
}

// Each push comes in two parts, so far apart that the model treats the first one as complete: the late words never
// become part of the next push.
func TestLatePush(t *testing.T) {
	for _, part := range []int{8, 64, 128} {
		x := openRig(t, Options{})
		var late []byte
		for i := range uint32(12) {
			f := numbered(226, i)
			w := x.wqe(4*i, f, len(f))
			x.storeAt(part, late)
			x.push(0, w[:part])
			x.Sent(f, "push %d of %d bytes", i, part)
			late = w[part:]
		}
		x.storeAt(part, late)
		for i := range uint32(3) { // complete pushes are recognised again
			f := toPeer(226)
			x.push(0, x.wqe(4*(12+i), f, len(f)))
			x.Sent(f, "whole push %d after pushes of %d bytes", i, part)
		}
		if n := x.m.Counters().Pushed; n < 2 {
			t.Errorf("%d WQEs were taken whole after pushes of %d bytes", n, part)
		}
	}
}

// numbered returns a frame that is full of its number.
func numbered(n int, number uint32) []byte {
	return append(toPeer(14), bytes.Repeat([]byte{byte(number)}, n-14)...)
}

// The model polls between the two parts of each push, many times in a row: late words of the previous push make each
// push look complete, and are never treated as its own.
func TestPushSeenInParts(t *testing.T) {
	x := openRig(t, Options{})
	for i := range uint32(100) {
		f := numbered(98, i)
		w := x.wqe(2*i, f, len(f))
		x.store(0, w[:64])
		if i == 0 {
			x.Port.Settle(5000) // long enough to be treated as complete
		} else {
			x.Port.Settle(1)
		}
		x.storeAt(64, w[64:])
		x.Port.Settle(100)
		x.Sent(f, "push %d", i)
		x.completions()
	}
	check.Equal(t, x.m.Counters().Pushed, 99, "%d WQEs were taken whole, expected all but the first")
}

// Blocks that are stored through a pointer may become visible in any order (MOVDIR64B), so a push may contain one of
// another push. The model then fetches the WQE from the ring.
func TestPushWithForeignBlock(t *testing.T) {
	x := openRig(t, Options{})
	for i := range uint32(20) {
		f := toPeer(98)
		f[60] = byte(i)
		w := x.wqe(2*i, f, len(f))
		if i%4 == 3 {
			w[64+26]-- // the frame's byte 60
		}
		x.push(0, w)
		x.Sent(f, "push %d", i)
		x.cqe()
	}
	check.Equal(t, x.m.Counters().Pushed, 15, "%d WQEs were taken whole, expected all but 5")
}

// A push that the model still waits for is over when a command resets its queue.
func TestResetAfterPush(t *testing.T) {
	x := openRig(t, Options{})
	w := x.wqe(0, toPeer(98), 98)
	w[64]++ // so that the model waits for words of a later push
	x.store(0, w)
	for _, state := range [][2]uint32{{1, 3}, {3, 0}, {0, 1}} { // ready to error, to reset, to ready
		x.do(dwords(0x110, 0, 0x905<<16, 8, state[0]<<28|x.sqn, 0x20, state[1]<<20), 16)
	}
	x.Port.Settle(1000)
	x.completions()
	x.Far.Recv(0)
	x.push(0, x.wqe(0, toPeer(99), 99)[:8])
	x.Sent(toPeer(99), "after the reset")
	if x.Far.Recv(0) != nil {
		t.Error("the wire has a frame that was not posted")
	}
}

func TestBadWQE(t *testing.T) {
	x := openRig(t, Options{})
	for _, c := range []struct {
		name  string
		synd  uint8
		spoil func(w []byte)
		text  string
	}{
		{"index", syndLocalOp, func(w []byte) { w[2]++ }, "wqe_index"},
		{"opcode", syndLocalOp, func(w []byte) { w[3] = 0x29 }, "opcode is 29h"},
		{"lkey", syndLocalProt, func(w []byte) { w[55]++ }, "lkey"},
		{"opmod", syndLocalOp, func(w []byte) { w[0] = 1 }, "opmod is 1"},
		{"no header", syndLocalLength, func(w []byte) { w[29] = 4 }, "min_wqe_inline_mode"},
		{"checksum flags", syndLocalOp, func(w []byte) { w[20] = 1 }, "cs_flags"},
	} {
		w := x.wqe(0, frameOf(200), 18)
		doorbell := bytes.Clone(w[:8])
		c.spoil(w)
		copy(x.sq.Bytes, w)
		x.push(0, doorbell)
		x.ExpectViolation(c.text)
		x.failed(c.name, x.cqe(), cqeRequestErr, c.synd)
		if q := x.do(dwords(16, 0, 0x907<<16, 8, x.sqn), 0x110); w32(q, 0x20)>>20&15 != stateError {
			t.Errorf("%s: state %x", c.name, w32(q, 0x20)>>20&15)
		}
		x.do(dwords(0x110, 0, 0x905<<16, 8, 3<<28|x.sqn), 16)
		x.do(dwords(0x110, 0, 0x905<<16, 8, x.sqn, 0x20, 1<<20), 16)
	}
	x.wqe(0, frameOf(64), 64)
	binary.BigEndian.PutUint32(x.rec.Bytes[4:], 1)
	x.push(0, x.sq.Bytes[:8])
	x.ExpectViolation("the doorbell record says 0x1: it is written first")
	x.Far.Recv(0)
	x.cqe()
	for i := range uint32(33) { // the first ones could be mixed with words of another push
		at := 2 + 2*i
		w := x.wqe(at, frameOf(64), 64)
		x.sq.Bytes[at%(1<<testLogSQ)*64+40]++
		x.push(0, w)
		x.cqe()
	}
	x.ExpectViolation("the ring has")
	x.push(0, dwords(8, 0, 0x500<<8|0x0a, 4, x.sqn<<8|1))
	x.ExpectViolation("doorbell for WQE 0x500")
}

func TestFaults(t *testing.T) {
	opcodes := map[uint16]bool{}
	x := newRig(t, Options{Status: func(op uint16) (uint8, uint32) {
		if opcodes[op] {
			return stLimit, 0xabcdef
		}
		return 0, 0
	}})
	x.open()
	opcodes[0x800] = true
	if out := x.exec(dwords(16, 0, 0x800<<16), 16); out[0] != stLimit || w32(out, 4) != 0xabcdef {
		t.Errorf("status %x", out)
	}
	x.post(8)
	x.m.CompressNext()
	x.Arrive(frameOf(64))
	if e := x.cqe(); e == nil || e[63]>>2&3 != 3 {
		t.Errorf("compressed: %x", e)
	}
	x.m.FailNextReceive(syndLocalProt)
	x.Arrive(frameOf(64))
	x.failed("a receive", x.cqe(), cqeResponseErr, syndLocalProt)
	x.m.FailNextSend(syndBadResponse)
	w := x.wqe(0, frameOf(64), 64)
	x.push(0, w)
	x.failed("a send", x.cqe(), cqeRequestErr, syndBadResponse)
	x.push(1, x.wqe(2, frameOf(64), 64))
	x.failed("the next send", x.cqe(), cqeRequestErr, syndFlushed)
	x.push(0, w) // found late: it announces nothing new, as before the failure
	if e := x.cqe(); e != nil {
		t.Errorf("flushed again: %x", e)
	}
	x.m.Fatal(1)
	x.Port.Step()
	h := x.rd(0x1010)
	x.Port.Settle(10)
	if x.rd(0x1010) != h || h>>24 != 1 {
		t.Errorf("the health counter is %08x, then %08x", h, x.rd(0x1010))
	}
	x.wr(0x14, 7<<8|uint32(x.cmd.IOVA))
	if x.rd(0x1010)>>24 != 0 || x.rd(0x14)>>8&7 != 1 {
		t.Errorf("after software reset: health %08x, nic_interface %x", x.rd(0x1010), x.rd(0x14)>>8&7)
	}
	x.given = nil
	x.Port.ForgetViolations()
	x.cqCI = 0
	delete(opcodes, 0x800)
	x.open()
}

func TestDoorbellBeforeCommand(t *testing.T) {
	x := openRig(t, Options{})
	x.store(0, x.wqe(0, toPeer(64), 18)[:8])
	x.do(dwords(16, 0, 0x906<<16, 8, x.sqn), 16)
}

// Arming a CQ that was destroyed is only a warning: a driver may still be doing it on another processor.
func TestArmAfterDestroy(t *testing.T) {
	x := openRig(t, Options{})
	cqn := w32(x.do(x.createCQ(), 16), 8)
	x.do(dwords(16, 0, 0x401<<16, 8, cqn), 16)
	x.arm(cqn, 0)
	x.ExpectWarning("was destroyed")
	x.arm(cqn+1, 0)
	x.ExpectError("does not exist")
	x.arm(1, 0)
	x.ExpectError("does not exist")
}

// An arm that was in flight while the device read a newer consumer counter is not a step backwards.
func TestArmOnItsWay(t *testing.T) {
	x := openRig(t, Options{})
	for i := range uint32(1<<testLogCQ + 1) {
		if i == 1<<testLogCQ { // as far as the device knows, no entry is free: it reads the record
			binary.BigEndian.PutUint32(x.rec.Bytes[64:], i)
		}
		x.push(0, x.wqe(i, toPeer(64), 18)[:8])
	}
	x.arm(x.cqn, 20)
	x.Clean()
	x.arm(x.cqn, 1<<testLogCQ+2)
	x.ExpectError("armed at consumer counter 0x22")
	x.arm(x.cqn, 1<<testLogCQ)
	x.Clean()
	x.arm(x.cqn, 20) // doorbells themselves arrive in order
	x.ExpectError("armed at consumer counter 0x14")
}
