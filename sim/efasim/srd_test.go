package efasim

import (
	"slices"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/sim"
)

func two(t *testing.T, o, p Options) (q, r *qpair, there, back uint16) {
	t.Helper()
	x, y := pair(t, o, p, sim.Impairment{})
	q, r = x.qpair(typeSRD, 64, x.completions(16, nil)).ready(), y.qpair(typeSRD, 64, y.completions(16, nil)).ready()
	return q, r, x.handle(y.m.gid), y.handle(x.m.gid)
}

func (q *qpair) sends(f fields) []byte {
	q.x.Helper()
	q.post(f)
	return q.scq.take()
}

// completes expects n completions with a status.
func (q *qpair) completes(n int, status uint8) {
	q.x.Helper()
	for range n {
		if c := q.scq.take(); c == nil || c[2] != status {
			q.x.Errorf("completion %x, want status %d", c, status)
		}
	}
}

// A refusal by the peer fails that one message only.
func TestRemoteErrors(t *testing.T) {
	q, r, there, _ := two(t, Options{}, Options{})
	y := r.x
	expect(t, "unknown QP", q.sends(q.inline(0, r.num+1, there, "a")), 0, compRemoteQPN, cqeSend, q.num)
	expect(t, "QP of another type", q.sends(q.inline(1, y.qpair(typeUD, 64, r.rcq).ready().num, there, "b")), 1,
		compRemoteQPN, cqeSend, q.num)
	expect(t, "wrong Q_Key", q.sends(q.inline(2, r.num, there, "c").With(16, uint32(7))), 2, compRemoteQPN, cqeSend,
		q.num)
	check.Equal(t, y.m.Counters().QKeyViolations, 1, "%d violations of a Q_Key")
	q.retries(0)
	expect(t, "not ready", q.sends(q.inline(3, r.num, there, "d")), 3, compRemoteRNR, cqeSend, q.num)
	r.offer(4, 0)
	y.settle()
	expect(t, "too long", q.sends(q.inline(4, r.num, there, "12345")), 4, compRemoteLength, cqeSend, q.num)
	expect(t, "it fits", q.sends(q.inline(5, r.num, there, "1234")), 5, compOK, cqeSend, q.num)
	expect(t, "it came", r.rcq.take(), 0, compOK, cqeRecv, r.num)
	r.modify(stateErr)
	expect(t, "QP in error", q.sends(q.inline(6, r.num, there, "e")), 6, compRemoteQPN, cqeSend, q.num)
	check.Equal(t, y.m.Counters().RxDrops, 6, "%d drops")
}

// retries sets how often a message is sent again while its receiver has no buffer.
func (q *qpair) retries(n uint8) { q.x.OK(opModifyQP, fields{4: uint32(modRNR), 8: q.handle, 29: n}) }

// Without MODIFY_QP, an SRD queue pair retries indefinitely.
func TestRNRRetry(t *testing.T) {
	q, r, there, _ := two(t, Options{}, Options{})
	q.push(q.inline(2, r.num, there, "late"))
	q.ring()
	for range 500 {
		q.x.Port.Step()
		r.x.Port.Step()
	}
	if c, n := q.scq.take(), r.x.m.Counters().RxPackets; c != nil || n < 10 || n > 500/20+1 {
		t.Errorf("completion %x before there is a receive, %d packets", c, n)
	}
	r.offer(64, 3)
	q.x.settle()
	expect(t, "retries without end", q.scq.take(), 2, compOK, cqeSend, q.num)
	expect(t, "receive", r.rcq.take(), 3, compOK, cqeRecv, r.num)
	if r.got(64, 3, 4) != "late" || r.rcq.take() != nil {
		t.Error("it did not arrive once")
	}
	before := r.x.m.Counters().RxPackets
	q.retries(2)
	expect(t, "two retries", q.sends(q.inline(1, r.num, there, "in vain")), 1, compRemoteRNR, cqeSend, q.num)
	check.Equal(t, r.x.m.Counters().RxPackets-before, 3, "it was sent %d times")
}

// A peer that never answers is reported as unreachable, one that stopped answering as unresponsive, after a bounded
// time.
func TestDeadPeer(t *testing.T) {
	q, r, there, _ := two(t, Options{}, Options{})
	nobody := q.x.handle(gidOf([6]byte{2, 0, 0, 0, 0, 99}))
	expect(t, "nobody", q.sends(q.inline(0, r.num, nobody, "a")), 0, compUnreachable, cqeSend, q.num)
	r.offer(64, 0, 1)
	expect(t, "alive", q.sends(q.inline(1, r.num, there, "b")), 1, compOK, cqeSend, q.num)
	r.x.m.DropReceives(true)
	expect(t, "dead", q.sends(q.inline(2, r.num, there, "c")), 2, compUnresponsive, cqeSend, q.num)
	r.x.m.DropReceives(false)
	expect(t, "again", q.sends(q.inline(3, r.num, there, "d")), 3, compOK, cqeSend, q.num)
	if k := q.x.m.Counters(); k.Unresponsive != 2 || k.RetransPackets < 4 || k.Impaired == 0 {
		t.Errorf("network statistics %+v", k)
	}
	if n := r.x.m.Counters().NotOurs; n == 0 {
		t.Error("frames for nobody were taken")
	}
}

type lateHost struct {
	sim.Host
	late time.Duration
}

func (h *lateHost) Now() time.Duration { return h.Host.Now() + h.late }

// Nothing is sent again while the peer has not taken the frame, and after a pause of this model.
func TestSlowHostLosesNothing(t *testing.T) {
	q, r, there, _ := two(t, Options{}, Options{})
	clock := &lateHost{Host: q.x.m.Host}
	q.x.m.Host = clock
	r.offer(64, 0)
	q.push(q.inline(1, r.num, there, "a"))
	q.ring()
	for range 3000 { // 3 ms; the limit is 2 ms
		q.x.Port.Step()
	}
	for range 10 {
		r.x.Port.Step()
	}
	clock.late = time.Minute
	q.x.settle()
	expect(t, "slow peer", q.scq.take(), 1, compOK, cqeSend, q.num)
	check.Equal(t, q.x.m.Counters().RetransPackets, 0, "%d retransmissions on a wire without losses")
}

// Objects that are destroyed while messages are pending: messages of a destroyed handle complete as flushed, also those
// of a QP in error. Those of a destroyed QP do not complete.
func TestDestroyedUnderWay(t *testing.T) {
	q, r, there, _ := two(t, Options{}, Options{})
	x := q.x
	r.x.m.DropReceives(true)
	start := func(p *qpair, req uint16, ah uint16) {
		p.push(p.inline(req, r.num, ah, "x"))
		p.ring()
		x.Port.Step()
	}
	start(q, 1, there)
	x.OK(opDestroyAH, fields{4: there, 6: x.pd})
	expect(t, "its handle is gone", q.scq.take(), 1, compFlushed, cqeSend, q.num)
	there = x.handle(r.x.m.gid)
	start(q, 2, there)
	q.offer(64, 7)
	q.modify(stateErr)
	expect(t, "QP in error, send", q.scq.take(), 2, compFlushed, cqeSend, q.num)
	expect(t, "QP in error, receive", q.scq.take(), 7, compFlushed, cqeRecv, q.num)
	q.push(q.inline(3, r.num, there, "x"))
	q.ring()
	q.offer(64, 8)
	x.settle()
	both := []byte{q.scq.take()[3] & 6, q.scq.take()[3] & 6}
	if both[0]+both[1] != cqeSend+cqeRecv {
		t.Errorf("what is posted in error completes as %x", both)
	}
	gone := x.qpair(typeSRD, 64, q.scq).ready()
	start(gone, 4, there)
	x.OK(opDestroyQP, fields{4: gone.handle})
	x.settle()
	if c := q.scq.take(); c != nil {
		t.Errorf("completion %x of a QP that is gone", c)
	}
	r.x.m.DropReceives(false)
}

// frame returns a frame of a message from q to r, with a sequence number.
func (q *qpair) frame(r *qpair, seq uint32) []byte {
	f := &frame{typ: typeSRDSend, src: q.x.m.gid, dst: r.x.m.gid, srcQP: q.num, dstQP: r.num, qkey: testKey,
		epoch: q.x.m.epoch, seq: seq, payload: []byte("x")}
	return f.marshal()
}

// A device that was reset starts a new epoch: its peer accepts its new sequence numbers, and nothing from before.
func TestEpoch(t *testing.T) {
	q, r, there, _ := two(t, Options{}, Options{})
	x := q.x
	r.offer(64, 0, 1)
	expect(t, "before", q.sends(q.inline(0, r.num, there, "a")), 0, compOK, cqeSend, q.num)
	old := q.frame(r, 9)
	x.open()
	q = x.qpair(typeSRD, 64, x.completions(16, nil)).ready()
	expect(t, "after", q.sends(q.inline(5, r.num, x.handle(r.x.m.gid), "b")), 5, compOK, cqeSend, q.num)
	r.x.m.Receive(old)
	r.x.settle()
	r.rcq.take()
	expect(t, "second", r.rcq.take(), 1, compOK, cqeRecv, r.num)
	if c := r.rcq.take(); c != nil || r.x.m.Counters().Stale != 1 {
		t.Errorf("a frame of an old epoch is taken: %x", c)
	}
}

// RDMA over an impaired wire: many parts, each executed once, and the immediate after all of them.
func TestRDMA(t *testing.T) {
	x, y := pair(t, Options{Profile: EFA3, Seed: 8}, Options{Profile: EFA3, Seed: 9},
		sim.Impairment{Loss: 0.1, Duplicate: 0.1, Reorder: 0.2, Seed: 5})
	q, r := x.qpair(typeSRD, 128, x.completions(16, nil)).ready(), y.qpair(typeSRD, 64, y.completions(32, nil)).ready()
	there := x.handle(y.m.gid)
	wr := func(code uint8, req uint16, n uint32) fields {
		return q.rdma(code, req, r.num, there, n, r.mem.IOVA+100, r.rkey)
	}
	fill := func(b []byte, seed byte) {
		for i := range b {
			b[i] = byte(i*7) + seed + byte(i>>8)
		}
	}
	expect(t, "no handle of the requester", q.sends(wr(opWrite, 0, 10)), 0, compUnknownPeer,
		cqeSend|opWrite<<cqeOpShift, q.num)
	y.handle(x.m.gid)
	for i, n := range []int{0, 1, partSize - 1, partSize, partSize + 1, 60000} {
		fill(q.mem.Bytes[:n], byte(i))
		expect(t, "write", q.sends(wr(opWrite, 1, uint32(n))), 1, compOK, cqeSend|opWrite<<cqeOpShift, q.num)
		if string(r.mem.Bytes[100:100+n]) != string(q.mem.Bytes[:n]) {
			t.Errorf("a write of %d bytes arrived otherwise", n)
		}
		fill(r.mem.Bytes[100:100+n], byte(i+50))
		expect(t, "read", q.sends(wr(opRead, 2, uint32(n))), 2, compOK, cqeSend|opRead<<cqeOpShift, q.num)
		if string(r.mem.Bytes[100:100+n]) != string(q.mem.Bytes[:n]) {
			t.Errorf("a read of %d bytes brought something else", n)
		}
	}
	// With an immediate: it consumes a receive, but not its buffer.
	r.offer(64, 5)
	f := wr(opWrite, 3, 60000).With(2, uint8(ctrl1Meta|ctrl1Imm|opWrite)).With(8, uint32(0xabcd))
	fill(q.mem.Bytes[:60000], 99)
	expect(t, "write with immediate", q.sends(f), 3, compOK, cqeSend|opWrite<<cqeOpShift, q.num)
	c := r.rcq.take()
	expect(t, "immediate", c, 5, compOK, cqeRecv|cqeImm|opWrite<<cqeOpShift, r.num)
	if le.Uint32(c[12:]) != 0xabcd || int(le.Uint16(c[6:]))|int(le.Uint16(c[16:]))<<16 != 60000 ||
		string(r.mem.Bytes[100:60100]) != string(q.mem.Bytes[:60000]) {
		t.Errorf("completion %x", c)
	}
	q.retries(0)
	expect(t, "immediate without a receive", q.sends(f.With(0, uint16(4))), 4, compRemoteRNR,
		cqeSend|opWrite<<cqeOpShift, q.num)
	// Unsolicited: it needs no receive.
	u := y.queues(typeSRD, 64, r.rcq)
	made := y.OK(opCreateQP, u.create().With(7, uint8(4)))
	u.handle, u.num = le.Uint32(made), le.Uint16(made[4:])
	u.ready()
	expect(t, "unsolicited", q.sends(f.With(4, u.num).With(0, uint16(6))), 6, compOK, cqeSend|opWrite<<cqeOpShift,
		q.num)
	if c := r.rcq.take(); c == nil || c[3]&cqeUnsolicited == 0 || le.Uint32(c[12:]) != 0xabcd {
		t.Errorf("unsolicited completion %x", c)
	}
	// Inline, in a WQE of 128 bytes.
	in := fields{0: uint16(7), 2: uint8(ctrl1Meta | ctrl1Inline | opWrite), 4: r.num, 6: uint16(80), 12: there,
		16: uint32(testKey), 32: uint32(80), 36: r.rkey, 40: r.mem.IOVA}
	for i := range 80 {
		in[48+i] = uint8(i + 1)
	}
	expect(t, "inline write", q.sends(in), 7, compOK, cqeSend|opWrite<<cqeOpShift, q.num)
	if r.mem.Bytes[0] != 1 || r.mem.Bytes[79] != 80 {
		t.Errorf("inline write left %x", r.mem.Bytes[:80])
	}
	k, l := x.m.Counters(), y.m.Counters()
	if k.ReadWRs != 6 || k.ReadBytes != uint64(1+3*partSize+60000) || k.WriteErrors != 2 ||
		l.WriteRecvBytes != uint64(1+3*partSize+3*60000+60000+80) || l.ReadResponseBytes < k.ReadBytes {
		t.Errorf("counters %+v, %+v", k, l)
	}
}

// Memory that RDMA must not access.
func TestRDMARights(t *testing.T) {
	q, r, there, _ := two(t, Options{Profile: EFA1}, Options{Profile: EFA1})
	y := r.x
	only := func(may uint8) (rkey uint32) {
		_, rkey = y.page(y.pd, r.mem, may)
		return rkey
	}
	_, foreign := y.page(le.Uint16(y.OK(opAllocPD, nil)), r.mem, 7)
	for i, c := range []struct {
		what   string
		code   uint8
		key    uint32
		at     uint64
		n      uint32
		status uint8
	}{
		{"write without right", opWrite, only(mayLocalWrite | mayRemoteRead), 0, 10, compRemoteAddress},
		{"read without right", opRead, only(mayLocalWrite | mayRemoteWrite), 0, 10, compRemoteAddress},
		{"beyond the region", opRead, only(7), 4090, 10, compRemoteAddress},
		{"before the region", opRead, only(7), ^uint64(0), 10, compRemoteAddress},
		{"no such key", opRead, 0x40ffffff, 0, 10, compRemoteAddress},
		{"a local key", opRead, r.lkey, 0, 10, compRemoteAddress},
		{"of another PD", opRead, foreign, 0, 10, compRemoteAddress},
		{"with the right", opRead, only(mayRemoteRead), 4086, 10, compOK},
	} {
		c2 := q.sends(q.rdma(c.code, uint16(i), r.num, there, c.n, r.mem.IOVA+c.at, c.key))
		expect(t, c.what, c2, uint16(i), c.status, cqeSend|c.code<<cqeOpShift, q.num)
	}
}

// A sender for which the receiver has no handle: 0xFFFF, and the sender's GID if the CQ requests it.
func TestUnknownSender(t *testing.T) {
	x, y := pair(t, Options{}, Options{}, sim.Impairment{})
	q := x.qpair(typeSRD, 64, x.completions(16, nil)).ready()
	there := x.handle(y.m.gid)
	for _, source := range []uint8{0, 1 << 5} {
		r := y.qpair(typeSRD, 64, y.completions(32, fields{5: 8 | source})).ready()
		r.offer(64, 0)
		expect(t, "send", q.sends(q.inline(0, r.num, there, "who?")), 0, compOK, cqeSend, q.num)
		c := r.rcq.take()
		expect(t, "receive", c, 0, compOK, cqeRecv, r.num)
		if known := [16]byte(c[16:32]) == x.m.gid; le.Uint16(c[8:]) != noAH || known != (source != 0) {
			t.Errorf("set_src_addr %v: completion %x", source != 0, c)
		}
	}
}

func TestWindow(t *testing.T) {
	q, r, there, _ := two(t, Options{}, Options{})
	r.x.m.DropReceives(true)
	q.push(q.rdma(opRead, 0, r.num, there, 60000, r.mem.IOVA, r.rkey))
	for i := range uint16(qDepth - 1) {
		q.push(q.inline(i+1, r.num, there, "x"))
	}
	q.ring()
	for range 5 {
		q.x.Port.Step()
	}
	p := q.x.m.peers[r.x.m.gid]
	check.Equal(t, len(p.out), (60000+partSize-1)/partSize+qDepth-1, "%d frames are on their way")
	r.x.m.DropReceives(false)
	r.offer(64, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
	q.x.settle()
	q.completes(qDepth, compOK)
	if len(p.out) != 0 || len(p.order) != 0 {
		t.Errorf("left: %d, %d", len(p.out), len(p.order))
	}
}

// Linux destroys the address handles of a killed process before its QPs. WQEs that were rung before are not a
// violation.
func TestHandleGoesFirst(t *testing.T) {
	q, r, there, _ := two(t, Options{}, Options{})
	for i := range uint16(qDepth) {
		q.push(q.inline(i, r.num, there, "x"))
	}
	q.ring() // and before any Step
	q.x.OK(opDestroyAH, fields{4: there, 6: q.x.pd})
	q.x.settle()
	q.completes(qDepth, compFlushed)
	q.x.Clean()
	q.post(q.inline(0, r.num, there, "x"))
	q.x.ExpectError("has no AH")
}

// The immediate of a write arrives after its data, whatever the wire does to the parts.
func TestImmediateLast(t *testing.T) {
	x, y := pair(t, Options{Profile: EFA2, Seed: 8}, Options{Profile: EFA2, Seed: 9},
		sim.Impairment{Loss: 0.1, Reorder: 0.3, Seed: 6})
	q, r := x.qpair(typeSRD, 64, x.completions(16, nil)).ready(), y.qpair(typeSRD, 64, y.completions(32, nil)).ready()
	there := x.handle(y.m.gid)
	y.handle(x.m.gid)
	for round := range uint16(20) {
		r.offer(64, round)
		for i := range q.mem.Bytes[:5*partSize] {
			q.mem.Bytes[i] = byte(round + 1)
		}
		q.push(q.rdma(opWrite, round, r.num, there, 5*partSize, r.mem.IOVA, r.rkey).With(2,
			uint8(ctrl1Meta|ctrl1Imm|opWrite)))
		q.ring()
		var c []byte
		for n := 0; c == nil; n++ {
			x.Port.Step()
			y.Port.Step()
			if c = r.rcq.take(); n > 10000 {
				t.Fatal("no completion")
			}
		}
		for i, v := range r.mem.Bytes[:5*partSize] {
			if v != byte(round+1) {
				t.Fatalf("round %d: byte %d is not there when the immediate is", round, i)
			}
		}
		x.settle()
		q.scq.take()
	}
}

func TestReorder(t *testing.T) {
	for _, ordered := range []bool{false, true} {
		q, r, there, _ := two(t, Options{InOrder: ordered}, Options{InOrder: ordered})
		var ids, got []uint16
		for i := range uint16(qDepth) {
			ids = append(ids, i)
			q.push(q.inline(i, r.num, there, string(rune('a'+i))))
		}
		r.offer(8, ids...)
		q.ring()
		q.x.settle()
		for c := q.scq.take(); c != nil; c = q.scq.take() {
			got = append(got, le.Uint16(c))
		}
		if slices.Equal(got, ids) != ordered || len(got) != qDepth {
			t.Errorf("in order %v: completions %v", ordered, got)
		}
	}
}

// A device that was disconnected for longer than the window of sequence numbers accepts new frames and rejects old
// ones.
func TestLongGone(t *testing.T) {
	q, r, there, _ := two(t, Options{}, Options{})
	r.offer(64, 0, 1, 2, 3)
	expect(t, "before", q.sends(q.inline(0, r.num, there, "a")), 0, compOK, cqeSend, q.num)
	r.rcq.take()
	for i, c := range []struct {
		seq uint32
		new bool
	}{{1 << 20, true}, {1 << 20, false}, {1<<20 - 5, true}, {1, false}, {1 << 30, true}} {
		r.x.m.Receive(q.frame(r, c.seq))
		r.x.settle()
		if got := r.rcq.take() != nil; got != c.new {
			t.Errorf("frame %d, of sequence number %d: delivered is %v", i, c.seq, got)
		}
	}
	if n := len(r.x.m.peers[q.x.m.gid].seen); n > 2*window {
		t.Errorf("%d results are kept", n)
	}
}
