package efasim

import (
	"fmt"
	"maps"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/sim/amazon"
)

// One valid WQE, and the effect of changing some fields: a warning and a frame, or a refusal with a status.
func TestStrictWQE(t *testing.T) {
	x, c, ud, ah := loop(t, Options{}, typeUD)
	srd := x.qpair(typeSRD, 64, c).ready()
	other := le.Uint16(x.OK(opAllocPD, nil))
	foreign := le.Uint16(x.OK(opCreateAH, fields{4: x.m.gid, 20: other}))
	type change struct {
		what   string
		f      fields
		status uint8
	}
	try := func(q *qpair, good fields, d change) {
		t.Helper()
		q.restart()
		q.offer(16384, 0)
		maps.Copy(good, d.f)
		q.post(good)
		sent := 0
		for got := c.take(); got != nil; got = c.take() {
			if got[3]&6 == cqeSend {
				expect(t, d.what, got, 5, d.status, got[3]&^1, q.num)
				sent++
			}
		}
		check.Equal(t, sent, 1, d.what+": %d completions")
		if d.status == compOK {
			x.ExpectWarning(d.what)
		} else {
			x.ExpectError(d.what)
		}
	}
	for _, q := range []*qpair{ud, srd} {
		mem := func() fields {
			return fields{0: uint16(5), 4: q.num, 6: uint16(2), 12: ah, 16: uint32(testKey), 32: uint32(10), 36: q.lkey,
				40: q.mem.IOVA,
				48: uint32(20), 52: q.lkey, 56: q.mem.IOVA + 100}
		}
		for _, d := range []change{
			{"reserved bits 0x40 set in ctrl1", fields{2: uint8(ctrl1Meta | ctrl1Ext)}, compOK},
			{"reserved bits 0x22 set in ctrl2", fields{3: uint8(ctrl2First | ctrl2Last | ctrl2Comp | 0x22)}, compOK},
			{"set in processing hints", fields{14: uint8(2)}, compOK},
			{"set in byte 15", fields{15: uint8(1)}, compOK},
			{"set in bytes 20 to 27", fields{20: uint8(1)}, compOK},
			{"set in bytes 28 to 31", fields{31: uint8(1)}, compOK},
			{"bits 31:24 of l_key", fields{36: q.lkey | 1<<24}, compOK},
			{"phase 1, expected 0", fields{3: uint8(ctrl2First | ctrl2Last | ctrl2Comp | ctrl2Phase)}, compQPInternal},
			{"must be set", fields{2: uint8(0)}, compQPInternal},
			{"must be set", fields{3: uint8(ctrl2First | ctrl2Comp)}, compQPInternal},
			{"must be set", fields{3: uint8(ctrl2Last | ctrl2Comp)}, compQPInternal},
			{"operation 5", fields{2: uint8(ctrl1Meta | 5)}, compUnsupportedOp},
			{"has no AH 77", fields{12: uint16(77)}, compInvalidAH},
			{fmt.Sprintf("has no AH %d", foreign), fields{12: foreign}, compInvalidAH},
			{"3 buffers", fields{6: uint16(3)}, compBadLength},
			{"33 bytes inline", fields{2: uint8(ctrl1Meta | ctrl1Inline), 6: uint16(33)}, compBadLength},
			{"message of 8938 bytes", fields{48: uint32(mtu)}, compBadLength},
			{"has no region", fields{36: uint32(0x123456)}, compInvalidLKey},
			{"not in the region", fields{56: uint64(0)}, compInvalidLKey},
		} {
			try(q, mem(), d)
		}
		if q == ud {
			try(q, mem(), change{"operation 2 on a QP of type 1", fields{2: uint8(ctrl1Meta | opWrite)},
				compUnsupportedOp})
		}
	}
	rdma := func() fields { return srd.rdma(opRead, 5, srd.num, ah, 30, srd.mem.IOVA, srd.rkey) }
	try(srd, rdma(), change{"30 bytes of local memory for 10", fields{2: uint8(ctrl1Meta | opWrite), 32: uint32(10)},
		compBadLength})
	try(srd, rdma(), change{"RDMA read with an immediate", fields{2: uint8(ctrl1Meta | opRead | ctrl1Imm)},
		compUnsupportedOp})
}

func TestStrictReceive(t *testing.T) {
	for _, c := range []struct {
		what string
		ctl  uint32
		told bool
	}{
		{"reserved bits 0x1000000", rxFirst | rxLast | 1<<24, true},
		{"first is false, expected true", rxLast, false},
	} {
		x := openRig(t, Options{})
		q := x.qpair(typeUD, 64, x.completions(16, nil)).ready()
		q.receive(q.mem.IOVA, 0, 64, q.lkey|c.ctl)
		x.bel.Write32(q.rqBell, 1)
		x.settle()
		if r := x.OK(opQueryQP, fields{4: q.handle}); (le.Uint32(r) == stateErr) == c.told {
			t.Errorf("%s: state %d", c.what, le.Uint32(r))
		}
		x.ExpectViolation(c.what)
	}
	// Several buffers; read-only memory.
	q, r, there, _ := two(t, Options{}, Options{})
	y := r.x
	readonly, _ := y.page(y.pd, r.mem, 0)
	r.receive(r.mem.IOVA, 9, 2, r.lkey|rxFirst)
	r.receive(r.mem.IOVA+1000, 9, 1, r.lkey)
	r.receive(r.mem.IOVA+2000, 9, 100, r.lkey|rxLast)
	r.receive(r.mem.IOVA, 10, 64, readonly|rxFirst|rxLast)
	y.bel.Write32(r.rqBell, 4)
	expect(t, "three buffers", q.sends(q.inline(0, r.num, there, "abcdef")), 0, compOK, cqeSend, q.num)
	expect(t, "receive", r.rcq.take(), 9, compOK, cqeRecv, r.num)
	if m := r.mem.Bytes; string(m[:2])+string(m[1000:1001])+string(m[2000:2003]) != "abcdef" {
		t.Errorf("%q %q %q", m[:3], m[1000:1002], m[2000:2004])
	}
	expect(t, "read only", q.sends(q.inline(1, r.num, there, "abcdef")), 1, compRemoteAbort, cqeSend, q.num)
	expect(t, "receive into it", r.rcq.take(), 10, compInvalidLKey, cqeRecv, r.num)
	y.ExpectError("permissions")
}

// skip rings the doorbell of a WQE that the test pushed, or did not.
func (q *qpair) skip() {
	q.x.Helper()
	q.sent++
	q.ring()
	q.x.settle()
}

// A WQE must be complete when its doorbell is rung, in any order of stores, and within the depth.
func TestStrictDoorbells(t *testing.T) {
	x, c, q, ah := loop(t, Options{Profile: EFA2}, typeSRD)
	x.bel.Write32(q.sqBell, qDepth+1)
	x.ExpectError("it has 16 WQEs")
	x.bel.Write32(q.rqBell, qDepth+1)
	x.ExpectError("it has 16 descriptors")
	x.bel.Write16(q.sqBell, 1)
	x.ExpectError("doorbells have 4")
	x.bel.Write32(q.sqBell, 0)

	// The words of a WQE in reverse, each by its own store, as write-combining memory may drain.
	b := make([]byte, 64)
	b[2], b[3] = ctrl1Meta, ctrl2First|ctrl2Last|ctrl2Comp
	q.inline(1, q.num, ah, "in any order").Put(b)
	q.offer(64, 0)
	for off := 56; off >= 0; off -= 8 {
		x.llq.Write64(q.llq+uint64(off), le.Uint64(b[off:]))
	}
	before := x.Port.Counts()
	q.skip()
	if q.got(64, 0, 12) != "in any order" || x.Port.Counts().Since(before).MMIOWrite != 1 {
		t.Errorf("received %q, %+v", q.got(64, 0, 12), x.Port.Counts().Since(before))
	}
	c.take()
	c.take()
	x.Clean()
	x.llq.Write32(q.llq, 1)
	x.ExpectError("pushed by 8")

	// A missing word.
	for off := 0; off < 56; off += 8 {
		x.llq.Write64(q.llq+64+uint64(off), le.Uint64(b[off:]))
	}
	q.skip()
	x.ExpectError("8 of its 64 bytes were not pushed")
	expect(t, "not pushed", c.take(), 1, compQPInternal, cqeSend, q.num)

	// In the next round, slots contain nothing that was not pushed again.
	for i := range uint16(qDepth) {
		q.post(q.inline(i, q.num+1, ah, "x"))
		c.take()
	}
	q.skip()
	x.ExpectError("64 of its 64 bytes were not pushed")

	// The full depth at once, where one less is allowed; the model sees the number only for trapped doorbells.
	for i := range uint16(qDepth) {
		q.push(q.inline(i, q.num+1, ah, "x"))
	}
	x.Must(x.Port.WriteBAR(x.m.opt.doorbells, q.sqBell, []byte{byte(q.sent), 0, 0, 0}))
	x.ExpectError("in one doorbell")

	x.Clean()
	y, _, q, ah := loop(t, Options{Profile: Profile{Name: "odd", Device: 0xefa1, SubCQs: 1, Doorbells: 4, MaxMR: 10,
		Batch: 2}}, typeUD)
	for i := range uint16(3) {
		q.push(q.inline(i, q.num, ah, "x"))
	}
	y.Must(y.Port.WriteBAR(4, q.sqBell, []byte{3, 0, 0, 0}))
	y.ExpectError("max_tx_batch is 2")
}

// One event per arm, at once if completions exist, none for a late arm; the same for interrupts.
func TestEvents(t *testing.T) {
	for _, p := range Profiles() {
		x := openRig(t, Options{Profile: p})
		page := x.Alloc(4096)
		e := le.Uint16(x.OK(opCreateEQ, fields{4: uint16(4), 6: uint8(2), 7: uint8(4), 8: page.IOVA, 16: uint32(1)}))
		c := x.completions(32, fields{4: uint8(1 << 5), 8: e})
		q := x.qpair(typeSRD, 64, c).ready()
		ah := x.handle(x.m.gid)
		events, heads := 0, uint32(0)
		event := func() []byte {
			b := page.Bytes[16*(heads%4):][:16]
			if b[0]&1 != amazon.Phase(heads, 4) {
				return nil
			}
			heads++
			return b
		}
		// On efa0 each queue of a QP has its own sub-CQ: the count includes both.
		arm := func(sn int) {
			x.bel.Write32(c.bell, c.taken&cqdbConsumer|uint32(sn)&3<<cqdbSNShift|cqdbArm)
		}
		say := func() { q.post(q.inline(1, q.num, ah, "x")) }
		for round := range 10 { // around the ring
			x.Vectors = nil
			x.Set(regEQDB, uint32(e)|eqdbArm)
			arm(2 * round)
			x.settle()
			if b := event(); b != nil || len(x.Vectors) > 0 {
				t.Fatalf("%s: event %x, interrupts %v before anything happened", p.Name, b, x.Vectors)
			}
			q.offer(64, 0)
			say()
			events++
			if b := event(); b == nil || le.Uint16(b[8:]) != c.idx || le.Uint32(b)&^1 != 0 || event() != nil ||
				len(x.Vectors) != 1 || x.Vectors[0] != 2 {
				t.Fatalf("%s: event %x of CQ %d, interrupts %v", p.Name, b, c.idx, x.Vectors)
			}
			for c.take() != nil {
			}
			arm(2 * round) // late: that event was already sent
			q.offer(64, 0)
			say()
			if b := event(); b != nil {
				t.Fatalf("%s: event %x for a late arm", p.Name, b)
			}
			arm(2*round + 1) // a completion exists
			x.settle()
			if event() == nil || len(x.Vectors) != 1 {
				t.Fatalf("%s: no event for what was there before the arm, interrupts %v", p.Name, x.Vectors)
			}
			x.Set(regEQDB, uint32(e)|eqdbArm) // the event was written before the interrupt
			if len(x.Vectors) != 2 {
				t.Fatalf("%s: interrupts %v", p.Name, x.Vectors)
			}
			for c.take() != nil {
			}
			q.restart()
		}
		x.bel.Write32(c.bell, c.taken+1)
		x.settle()
		x.ExpectError("completions were written")
		x.Clean()
	}
}

// Completions must not overrun a CQ whose doorbell is used.
func TestFullCQ(t *testing.T) {
	x := openRig(t, Options{Profile: EFA2})
	c := x.completions(16, nil)
	q := x.qpair(typeUD, 64, c).ready()
	ah := x.handle(gidOf([6]byte{2, 9}))
	x.bel.Write32(c.bell, 0|1<<29) // any different value
	x.settle()
	for i := range uint16(cqDepth) {
		q.post(q.inline(i, 1, ah, "x"))
	}
	x.Clean()
	q.post(q.inline(0, 1, ah, "x"))
	x.ExpectError("is full")
}

// What a driver may set, the definitions give a meaning, and the model does not act on: the command succeeds, with a
// warning.
func TestAcceptedWithoutEffect(t *testing.T) {
	x := openRig(t, Options{})
	q := x.qpair(typeSRD, 64, x.completions(16, nil))
	for _, c := range []struct {
		op   uint8
		f    fields
		what string
	}{
		{opModifyQP, fields{4: uint32(modDrained), 8: q.handle, 28: uint8(1)}, "MODIFY_QP: sq_drained_async_notify is accepted"},
		{opGetStats, fields{4: uint32(64)}, "GET_STATS: control_length is accepted"},
		{opGetStats, fields{8: uint64(4096)}, "GET_STATS: control_addr is accepted"},
		{opGetFeature, fields{17: uint8(featAENQ), 4: uint32(64)}, "GET_FEATURE AENQ_CONFIG: control_length is accepted"},
		{opGetFeature, fields{17: uint8(featAENQ), 8: uint64(4096)}, "control_addr is accepted"},
	} {
		x.OK(c.op, c.f)
		x.ExpectWarning(c.what)
	}
	x.OK(opModifyQP, fields{4: uint32(modDrained), 8: q.handle})
}
