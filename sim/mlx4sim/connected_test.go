package mlx4sim

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/rebound-nic/rebound/sim/rdma"
)

// rcContext is the context of a connection to a LID and the QP of the same number there: MTU 1024, retransmission after
// 67 µs.
func (x *rig) rcContext(lid uint32) []byte {
	return with(x.qpContext(), 8, 3<<11, 0x10, 3<<29|30<<24|testLogRQ<<19|testLogSQ<<11|2<<8, 0x1c, testQP, 0x24, lid,
		0x28, 4<<27,
		0x78, 2<<16|1<<13, 0x98, 3<<14, 0x9c, 1<<24)
}

// reconnect gives the QP another context.
func (x *rig) reconnect(context []byte) {
	x.Helper()
	x.do(0x021, 3, testQP, nil, false)
	x.restart(testQP, context)
}

func openRC(t *testing.T) (x, y *rig) {
	x, y = openPair(t, 0)
	for lid, r := range []*rig{x, y} {
		r.do(0x012, 0, testEQ, uint64(1<<2|1<<4|1<<0x10|1<<0x11|1<<0x13|1<<0x14), false)
		r.activate(uint16(1 + lid))
		r.reconnect(r.rcContext(uint32(2 - lid)))
		for r.eqe() != nil {
		}
	}
	return x, y
}

// settle steps both until nothing has happened for longer than the longest timer: the acknowledgement's, 67 steps of 1
// µs.
func settle(x, y *rig) {
	for i, idle := 0, 0; i < 1000 && idle < 80; i, idle = i+1, idle+1 {
		if a, b := x.Port.Step(), y.Port.Step(); a || b {
			idle = 0
		}
	}
}

func raddr(y *rig, off int, key uint32) []byte {
	at := y.fb.IOVA + uint64(off)
	return dwords(16, 0, uint32(at>>32), 4, uint32(at), 8, key)
}

// Messages, RDMA and immediate data over a connection, in one packet or several, from the WQE and from memory.
func TestConnection(t *testing.T) {
	x, y := openRC(t)
	y.post(0, 8)
	body := toPeer(2500)
	for i, c := range []struct {
		op    uint32
		segs  [][]byte
		kind  byte // of the receive completion; 9 for none
		place int
		n     int
	}{
		{opSend, [][]byte{x.data(128<<10, body[:2000])}, receivedSend, 0, 2000},
		{opSendImm, [][]byte{inline(16, body[:30])}, receivedSendImm, 2048, 30},
		{opWrite, [][]byte{raddr(y, 200<<10, testKey), x.data(128<<10, body)}, 9, 200 << 10, 2500},
		{opWriteImm, [][]byte{raddr(y, 210<<10, testKey), x.data(128<<10, body[:100])}, receivedWriteImm, 210 << 10, 100},
	} {
		x.wqe(c.op, 3<<2, c.segs...)
		if c.op == opSendImm || c.op == opWriteImm {
			copy(x.sq.Bytes[64*i+12:], "imm!")
		}
		x.door(testUAR, 0x14, testQP<<8)
		settle(x, y)
		if e := x.cqe(); e == nil || e[31]&0x7f != 0x40|byte(c.op) || w32(e, 0) != testQP {
			t.Fatalf("opcode %x: completion %x: %q", c.op, e, x.Port.Violations())
		}
		e := y.cqe()
		switch {
		case c.kind == 9 && e != nil, c.kind != 9 && (e == nil || e[31]&0x7f != c.kind || w32(e, 0x14) != uint32(c.n) ||
			w32(e, 8)&0xffffff != testQP || w32(e, 0xc)&0xffff != 1):
			t.Errorf("opcode %x: receive completion %x", c.op, e)
		case c.kind == receivedSendImm && string(e[4:8]) != "imm!":
			t.Errorf("immediate data: %x", e)
		}
		if !bytes.Equal(y.fb.Bytes[c.place:][:c.n], body[:c.n]) {
			t.Errorf("opcode %x: other bytes arrived", c.op)
		}
	}
	copy(y.fb.Bytes[220<<10:], body)
	x.wqe(opRead, 3<<2, raddr(y, 220<<10, testKey), x.segment(190<<10, 2500))
	x.ring()
	settle(x, y)
	if e := x.cqe(); e == nil || e[31]&0x7f != 0x40|opRead || w32(e, 0x14) != 2500 ||
		!bytes.Equal(x.fb.Bytes[190<<10:][:2500], body) {
		t.Errorf("read: completion %x", e)
	}
	x.do(0x022, 0, testQP, nil, true)
	if q := as(x.out.Bytes[8:], qpLayout); q.U("next_send_psn") != 10 || q.U("state") != qpRTS {
		t.Errorf("QUERY_QP: next_send_psn %d", q.U("next_send_psn"))
	}
	// the peer is in RTS: no event for the first packet
	if e := y.eqe(); e != nil && (e[1] != eventComm || w32(e, 4) != testQP) {
		t.Errorf("event %x", e)
	}
}

// A receiver that is never ready is an error. If the peer never answers, the sender gets an error, later entries are
// flushed, and the queue is in ERR. sim/rdma tests the retries.
func TestConnectionGivesUp(t *testing.T) {
	x, y := openRC(t)
	x.send(opSend, 3<<2, x.data(128<<10, toPeer(64)))
	settle(x, y)
	if e := x.cqe(); e == nil || e[0x1b] != syndRNRRetries || e[31]&0x7f != 0x40|cqeError {
		t.Errorf("no receive WQE: completion %x", e)
	}

	x, y = openRC(t)
	x.m.fault.lose = func([]byte) bool { return true }
	x.wqe(opSend, 3<<2, x.data(128<<10, toPeer(64)))
	x.wqe(opSend, 3<<2, x.data(128<<10, toPeer(64)))
	x.post(0, 1)
	x.ring()
	settle(x, y)
	seen := ""
	for e := x.cqe(); e != nil; e = x.cqe() {
		seen += string('a' + e[0x1b])
	}
	if seen != "vff" || x.m.findQP(testQP).state != qpError { // 15h, and 05h of both queues
		t.Errorf("syndromes %q in state %d", seen, x.m.findQP(testQP).state)
	}
}

// A forbidden request from the peer fails both queues: its own with a completion, the other with an event.
func TestConnectionRefuses(t *testing.T) {
	for _, c := range []struct {
		what  string
		op    uint32
		seg   func(y *rig) []byte
		synd  byte
		event byte
		told  string

		closed bool // the queue permits no remote access
	}{
		{"a key that is not there", opWrite, func(y *rig) []byte { return raddr(y, 0, testKey+1) }, syndRemoteAccess, eventWQAccess, "", false},
		{"reading by it", opRead, func(y *rig) []byte { return raddr(y, 0, testKey+1) }, syndRemoteAccess, eventWQAccess, "", false},
		{"a queue that lets nobody write", opWrite, func(y *rig) []byte { return raddr(y, 0, testKey) }, syndRemoteAccess, eventWQAccess, "", true},
		{"or read", opRead, func(y *rig) []byte { return raddr(y, 0, testKey) }, syndRemoteAccess, eventWQAccess, "", true},
		{"more than the receive WQE holds", opSend, nil, syndRemoteInvalid, 0, "no room", false},
	} {
		t.Run(c.what, func(t *testing.T) {
			x, y := openRC(t)
			if c.closed {
				y.do(0x01c, 0, testQP, with(y.rcContext(1), 0, optRWE|optRRE, 0x98, 0), false)
			}
			y.post(0, 1)
			binary.BigEndian.PutUint32(y.sq.Bytes[rqAt:], 100)
			segs := [][]byte{x.data(128<<10, toPeer(101))}
			if c.seg != nil {
				segs = append([][]byte{c.seg(y)}, segs...)
			}
			x.send(c.op, 3<<2, segs...)
			settle(x, y)
			x.failed(c.synd)
			if e := y.eqe(); (e == nil) != (c.event == 0) || e != nil && (e[1] != c.event || w32(e, 4) != testQP) {
				t.Errorf("event %x", e)
			}
			if e := y.cqe(); e == nil || e[0x1b] != syndFlushed && c.event != 0 || e[0x1b] != syndLocalLength &&
				c.event == 0 {
				t.Errorf("receive completion %x", e)
			}
			if c.told != "" {
				y.ExpectError(c.told)
			}
		})
	}
}

// An error in a connection's own WQE is reported in order; invalid contexts are refused.
func TestConnectionChecks(t *testing.T) {
	for what, w := range map[string]struct {
		op    uint32
		segs  func(x *rig) [][]byte
		synd  byte
		words string
	}{
		"an opcode":     {0x0c, func(x *rig) [][]byte { return [][]byte{x.data(128<<10, toPeer(64))} }, syndLocalOp, "opcode is 0ch"},
		"no address":    {opWrite, func(x *rig) [][]byte { return nil }, syndLocalOp, "without a remote address"},
		"a key":         {opSend, func(x *rig) [][]byte { return [][]byte{with(x.data(128<<10, toPeer(64)), 4, 5<<8)} }, syndLocalProt, "MPT 0x5"},
		"length 0":      {opSend, func(x *rig) [][]byte { return [][]byte{dwords(16, 4, testKey)} }, syndLocalLength, "0 stands for"},
		"inline in two": {opSend, func(x *rig) [][]byte { return [][]byte{dwords(64, 0, 1<<31|60)} }, syndLocalOp, "crosses a line"},
	} {
		t.Run(what, func(t *testing.T) {
			x, y := openRC(t)
			x.wqe(opWrite, 3<<2, raddr(y, 0, testKey), x.data(128<<10, toPeer(64)))
			x.send(w.op, 3<<2, w.segs(x)...)
			settle(x, y)
			x.completed(opWrite)
			x.failed(w.synd)
			x.ExpectError(w.words)
		})
	}
	x, _ := openRC(t)
	x.do(0x021, 3, testQP, nil, false)
	x.do(0x019, 0, testQP, x.rcContext(2), false)
	x.fails(stBadParam, 0x1a, 0, testQP, x.rcContext(0), false, "rlid")
	x.fails(stBadParam, 0x1a, 0, testQP, with(x.rcContext(2), 0x24, 1<<23|2, 0x28, 4<<27|9<<16), false, "mgid_index")
	x.do(0x021, 3, testQP, nil, false)
	x.fails(stBadRes, 0x19, 0, testQP, with(x.rcContext(2), 8+0xac, 1<<24|0x41), false, "srqn")
}

func TestSharedReceive(t *testing.T) {
	x, y := openRC(t)
	const srqn, log = 0x40, 3
	ring := y.Alloc(4096)
	rec := y.Alloc(4096)
	for i := range 1 << log {
		e := ring.Bytes[64*i:]
		binary.BigEndian.PutUint16(e[2:], uint16((i+3)%(1<<log))) // not one after the other
		copy(e[16:], append(y.segment(2048*i, 2048), dwords(16, 4, invalidLKey)...))
	}
	y.do(0x035, 0, srqn, dwords(64, 0, log<<24|srqn, 4, 2<<24, 0x14, y.mtt(90, ring, 1), 0x18, testPD, 0x28,
		uint32(rec.IOVA>>32), 0x2c, uint32(rec.IOVA)), false)
	y.do(0x021, 3, testQP, nil, false)
	y.ready(testQP, with(y.rcContext(1), 8+0xac, 1<<24|srqn))
	y.fails(stResBusy, 0x036, 1, srqn, nil, false, "QPs take")
	binary.BigEndian.PutUint32(rec.Bytes, 3)
	for i := range 3 {
		x.send(opSend, 3<<2, x.data(128<<10, toPeer(300)))
		settle(x, y)
		place := 3 * i % (1 << log)
		if e := y.cqe(); e == nil || be.Uint16(e[0x18:]) != uint16(place) || w32(e, 0x14) != 300 {
			t.Errorf("receive completion %x", e)
		}
		if !bytes.Equal(y.fb.Bytes[2048*place:][:300], toPeer(300)) {
			t.Errorf("message %d is not in WQE %d", i, place)
		}
		x.completed(opSend)
	}
	y.do(0x01e, 0, testQP, make([]byte, 256), false)
	if e := y.eqe(); e == nil || e[1] != eventLastWQE || w32(e, 4) != testQP {
		t.Errorf("event %x, expected that the queue took its last WQE", e)
	}
	y.do(0x021, 3, testQP, nil, false)
	y.do(0x036, 1, srqn, nil, false)
	binary.BigEndian.PutUint32(rec.Bytes, 99)
}

func TestRoCE(t *testing.T) {
	x, y := newRig(t, Options{}), newRig(t, Options{})
	y.m.opt.MAC[5] = 9
	y.Port.Connect(x.Far)
	gid := func(n byte) []byte { return append(make([]byte, 10), 0xff, 0xff, 10, 9, 0, n) }
	for i, r := range []*rig{x, y} {
		r.open()
		table := make([]byte, 2048)
		copy(table[16*3:], gid(byte(1+i)))
		r.do(0x00c, 1, 5<<8|1, table, false)
	}
	context := func(r *rig, to byte, mac uint32) []byte {
		c := with(r.rcContext(0), 0x24, 1<<23, 0x28, 4<<27|3<<16|64, 8+0x38, 0x83<<24, 8+0x3c, 0x0200, 8+0x40, mac)
		copy(c[0x30:], gid(to))
		return c
	}
	x.reconnect(context(x, 2, 9))
	y.reconnect(context(y, 1, 1))
	y.post(0, 4)
	x.send(opSend, 3<<2, x.data(128<<10, toPeer(2000)))
	settle(x, y)
	x.completed(opSend)
	if e := y.cqe(); e == nil || w32(e, 0x14) != 2000 || e[8]>>7 == 0 || !bytes.Equal(y.fb.Bytes[:2000], toPeer(2000)) {
		t.Errorf("receive completion %x", e)
	}

	x.reconnect(x.udContext())
	y.reconnect(y.udContext())
	y.post(0, 4)
	to := func(n byte, mac uint32) []byte {
		s := datagramTo(0, testQP, testQKey, gid(n))
		return with(s, 8, 3<<16|64, 0x28, 0xffff<<16|0x0200, 0x2c, mac)
	}
	send := func(seg []byte) []byte {
		x.send(opSend, 3<<2, seg, x.data(128<<10, toPeer(101)))
		settle(x, y)
		return y.cqe()
	}
	e := send(to(2, 9))
	if e == nil || w32(e, 0x14) != 141 || w32(e, 8) != 1<<31|testQP || !bytes.Equal(e[0x0e:0x14], testMAC[:]) {
		t.Fatalf("datagram: completion %x: %q", e, x.Port.Violations())
	}
	if !bytes.Equal(y.fb.Bytes[24:40], gid(2)) || !bytes.Equal(y.fb.Bytes[8:24], gid(1)) ||
		!bytes.Equal(y.fb.Bytes[40:141], toPeer(101)) {
		t.Errorf("received %x", y.fb.Bytes[:141])
	}
	if e := send(to(3, 9)); e != nil || y.m.Counters().InfiniBand.NotHere == 0 {
		t.Errorf("an address that is not there: %x", e)
	}
}

// FuzzRoCE receives the input as a frame, with a valid checksum at the end of the packet that the header announces.
func FuzzRoCE(f *testing.F) {
	f.Add(make([]byte, 60))
	f.Add(append([]byte{0x60, 0, 0, 0, 0, 36, nextIBA, 64}, make([]byte, 80)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		b = append(make([]byte, etherSize), b[:min(len(b), 4096)]...)
		if p := b[etherSize:]; len(p) > 6 {
			if n := rdma.GRHSize + int(be.Uint16(p[4:])); n <= len(p) && n > rdma.ICRCSize {
				p[6] = nextIBA
				copy(p[n-rdma.ICRCSize:], rdma.ICRC(p[:n-rdma.ICRCSize], false))
			}
		}
		if p, ok := parseRoCE(b); ok && (len(p.grh) != rdma.GRHSize || len(p.payload) > len(b) ||
			len(p.Body) > len(b)) {
			t.Errorf("%x is %+v", b, p)
		}
	})
}

// FuzzSegments parses the input as the data segments of a WQE.
func FuzzSegments(f *testing.F) {
	f.Add(make([]byte, 32), byte(16))
	f.Add(inline(16, make([]byte, 100)), byte(16))
	f.Fuzz(func(t *testing.T, b []byte, at byte) {
		list, total, err := segments(b, int(at)&^15)
		n := 0
		for _, s := range list {
			n += s.N
			if s.Inline != nil && len(s.Inline) != s.N {
				t.Errorf("%x: segment %+v", b, s)
			}
		}
		if err == nil && n != total || total > maxMessage && err == nil {
			t.Errorf("%x: %d bytes of %d", b, n, total)
		}
	})
}
