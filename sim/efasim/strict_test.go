package efasim

import (
	"fmt"
	"testing"

	"github.com/rebound-nic/rebound/sim/amazon"
)

// One valid WQE, and the effect of changing one field: a violation and a frame, or a refusal with a status.
func TestStrictWQE(t *testing.T) {
	type change struct {
		what   string
		at     int
		v      any
		status uint8
		told   bool
	}
	x := openRig(t, Options{})
	c := x.completions(16, nil)
	ud, srd := x.qpair(typeUD, 64, c).ready(), x.qpair(typeSRD, 64, c).ready()
	ah := x.handle(x.m.gid)
	other := le.Uint16(x.OK(opAllocPD, nil))
	foreign := le.Uint16(x.OK(opCreateAH, fields{4: x.m.gid, 20: other}))
	mem := func(q *qpair) fields {
		return fields{0: uint16(5), 4: q.num, 6: uint16(2), 12: ah, 16: uint32(testKey), 32: uint32(10), 36: q.lkey, 40: q.mem.IOVA, 48: uint32(20), 52: q.lkey, 56: q.mem.IOVA + 100}
	}
	all := []change{
		{"reserved bits 0x40 set in ctrl1", 2, uint8(ctrl1Meta | ctrl1Ext), compOK, true},
		{"reserved bits 0x22 set in ctrl2", 3, uint8(ctrl2First | ctrl2Last | ctrl2Comp | 0x22), compOK, true},
		{"set in processing hints", 14, uint8(2), compOK, true},
		{"set in byte 15", 15, uint8(1), compOK, true},
		{"set in bytes 20 to 27", 20, uint8(1), compOK, true},
		{"set in bytes 28 to 31", 31, uint8(1), compOK, true},
		{"bits 31:24 of l_key", 39, uint8(1), compOK, true},
		{"phase 1, expected 0", 3, uint8(ctrl2First | ctrl2Last | ctrl2Comp | ctrl2Phase), compQPInternal, false},
		{"must be set", 2, uint8(0), compQPInternal, false},
		{"must be set", 3, uint8(ctrl2First | ctrl2Comp), compQPInternal, false},
		{"must be set", 3, uint8(ctrl2Last | ctrl2Comp), compQPInternal, false},
		{"operation 5", 2, uint8(ctrl1Meta | 5), compUnsupportedOp, false},
		{"has no AH 77", 12, uint16(77), compInvalidAH, false},
		{fmt.Sprintf("has no AH %d", foreign), 12, foreign, compInvalidAH, false},
		{"3 buffers", 6, uint16(3), compBadLength, false},
		{"33 bytes inline", 2, []uint8{ctrl1Meta | ctrl1Inline, ctrl2First | ctrl2Last | ctrl2Comp, 0, 0, 33, 0}, compBadLength, false},
		{"message of 8938 bytes", 48, uint32(mtu), compBadLength, false},
		{"has no region", 36, uint32(0x123456), compInvalidLKey, false},
		{"not in the region", 56, uint64(0), compInvalidLKey, false},
	}
	for _, q := range []*qpair{ud, srd} {
		for _, d := range append(all, map[*qpair][]change{
			ud:  {{"operation 2 on a QP of type 1", 2, uint8(ctrl1Meta | opWrite), compUnsupportedOp, false}},
			srd: {{"30 bytes of local memory for 10", 2, uint8(ctrl1Meta | opWrite), compBadLength, false}, {"RDMA read with an immediate", 2, []uint8{ctrl1Meta | opRead | ctrl1Imm}, compUnsupportedOp, false}},
		}[q]...) {
			q.offer(16384, 0)
			f := mem(q)
			if d.what == "30 bytes of local memory for 10" || d.what == "RDMA read with an immediate" {
				f = q.rdma(opRead, 5, q.num, ah, 30, q.mem.IOVA, q.rkey)
				if d.status == compBadLength {
					f[32] = uint32(10)
				}
			}
			if b, many := d.v.([]uint8); many {
				for i, v := range b {
					f[d.at+i] = v
				}
				if len(b) > 4 { // the destination must stay valid
					f[4] = q.num
				}
			} else {
				f = f.With(d.at, d.v)
			}
			if d.at == 39 { // within the key's word
				f[36] = q.lkey | 1<<24
				delete(f, 39)
			}
			if q.sent%qDepth == 0 || amazon.Phase(uint32(q.sent), qDepth) == 0 { // the phases above are those of the first round
				x.OK(opModifyQP, fields{4: uint32(modState), 8: q.handle, 12: uint32(stateReset)})
				q.sent, q.posted = 0, 0
				q.ready()
				q.offer(16384, 0)
			}
			q.post(f)
			sent := false
			for got := c.take(); got != nil; got = c.take() {
				if got[3]&6 == cqeSend {
					sent = true
					if got[2] != d.status || le.Uint16(got) != 5 {
						t.Errorf("%s: completion %x, want status %d", d.what, got, d.status)
					}
				}
			}
			if !sent {
				t.Errorf("%s: no completion", d.what)
			}
			if d.told {
				x.ExpectWarning(d.what)
			} else {
				x.ExpectError(d.what)
			}
		}
	}
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
		le.PutUint64(q.rq.Bytes, q.mem.IOVA)
		le.PutUint16(q.rq.Bytes[10:], 64)
		le.PutUint32(q.rq.Bytes[12:], q.lkey|c.ctl)
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
	for i, n := range []uint16{2, 1, 100} {
		b := r.rq.Bytes[16*i:]
		le.PutUint64(b, r.mem.IOVA+uint64(i)*1000)
		le.PutUint16(b[8:], 9)
		le.PutUint16(b[10:], n)
		le.PutUint32(b[12:], r.lkey|map[int]uint32{0: rxFirst, 2: rxLast}[i])
	}
	readonly := le.Uint32(y.OK(opRegMR, fields{4: y.pd, 8: r.mem.IOVA, 40: uint64(4096), 48: uint8(12), 56: r.mem.IOVA}))
	b := r.rq.Bytes[48:]
	le.PutUint64(b, r.mem.IOVA)
	le.PutUint16(b[8:], 10)
	le.PutUint16(b[10:], 64)
	le.PutUint32(b[12:], readonly|rxFirst|rxLast)
	r.posted = 4
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

// A WQE must be complete when its doorbell is rung, in any order of stores, and within the depth.
func TestStrictDoorbells(t *testing.T) {
	x := openRig(t, Options{Profile: EFA2})
	c := x.completions(16, nil)
	q := x.qpair(typeSRD, 64, c).ready()
	ah := x.handle(x.m.gid)
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
	q.sent = 1
	q.ring()
	x.settle()
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
	q.sent = 2
	q.ring()
	x.settle()
	x.ExpectError("8 of its 64 bytes were not pushed")
	expect(t, "not pushed", c.take(), 1, compQPInternal, cqeSend, q.num)

	// In the next round, slots contain nothing that was not pushed again.
	for i := range uint16(qDepth) {
		q.post(q.inline(i, q.num+1, ah, "x"))
		c.take()
	}
	q.sent++
	q.ring()
	x.settle()
	x.ExpectError("64 of its 64 bytes were not pushed")

	// The full depth at once, where one less is allowed; the model sees the number only for trapped doorbells.
	for i := range uint16(qDepth) {
		q.push(q.inline(i, q.num+1, ah, "x"))
	}
	x.Must(x.Port.WriteBAR(x.m.opt.doorbells, q.sqBell, []byte{byte(q.sent), 0, 0, 0}))
	x.ExpectError("in one doorbell")

	x.Clean()

	y := openRig(t, Options{Profile: Profile{Name: "odd", Device: 0xefa1, SubCQs: 1, Doorbells: 4, MaxMR: 10, Batch: 2}})
	q = y.qpair(typeUD, 64, y.completions(16, nil)).ready()
	for i := range uint16(3) {
		q.push(q.inline(i, q.num, y.handle(y.m.gid), "x"))
		y.Port.ForgetViolations() // the same handle requested twice
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
		say := func() {
			q.post(q.inline(1, q.num, ah, "x"))
		}
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
			if b := event(); b == nil || le.Uint16(b[8:]) != c.idx || le.Uint32(b)&^1 != 0 || event() != nil || len(x.Vectors) != 1 || x.Vectors[0] != 2 {
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
			x.OK(opModifyQP, fields{4: uint32(modState), 8: q.handle, 12: uint32(stateReset)})
			q.sent, q.posted = 0, 0
			q.ready()
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
