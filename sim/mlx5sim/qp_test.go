package mlx5sim

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/sim/rdma"
)

// testQP is a QP of a rig: 16 receive WQEs of 64 bytes, followed by 16 basic blocks for sends, a doorbell record and a
// buffer.
type testQP struct {
	x        *rig
	qpn      uint32
	ring     []byte
	rec, buf []byte
	at       uint64 // the buffer's address
	idx      uint32 // next WQE
	posted   uint32
	half     int
}

const (
	qpRQBytes = 16 * 64
	testKey   = 0x80010001
)

func (x *rig) queryQP(q *testQP) []byte {
	x.Helper()
	return x.do(dwords(16, 0, 0x50b<<16, 8, q.qpn), 0x1d0)
}

// createQP creates a QP in the reset state. Its rings and record are in one page, and it has a buffer of 64 KiB.
func (x *rig) createQP(st uint32, more ...uint32) *testQP {
	x.Helper()
	mem, buf := x.Alloc(4096), x.Alloc(64<<10)
	rec := mem.IOVA + 4096 - 64
	in := append([]uint32{0, 0x500 << 16, 0x18, st<<16 | 3<<11, 0x1c, x.pd, 0x20, 4<<19 | 2<<16 | 4<<11, 0x24, x.uar,
		0x94, x.cqn, 0xb4, x.cqn,
		0xb8, uint32(rec >> 32), 0xbc, uint32(rec), 0x110, uint32(mem.IOVA >> 32), 0x114, uint32(mem.IOVA)}, more...)
	return &testQP{x: x, qpn: w32(x.do(dwords(0x118, in...), 16), 8), ring: mem.Bytes, rec: mem.Bytes[4096-64:],
		buf: buf.Bytes, at: buf.IOVA}
}

// up moves a QP through its states. For RC, path and numbers are those of a peer with the same address as ours.
func (q *testQP) up(remote, sendPSN, recvPSN uint32) {
	q.x.Helper()
	do := func(op uint32, more ...uint32) {
		q.x.Helper()
		q.x.do(dwords(272, append([]uint32{0, op << 16, 8, q.qpn}, more...)...), 16)
	}
	do(0x502, 0x18, 3<<11, 0x54, 1<<16, 0xa8, 1<<15|1<<14, 0xc0, testKey)
	do(0x503, 0x20, 3<<29|30<<24, 0x2c, remote, 0x38, 64, 0x40, 0, 0x48, 0xffff, 0x4c, 0x0a090002, 0x50, 49152, 0x54,
		1<<16|0x0200, 0x58, 1,
		0xac, 12<<24|recvPSN)
	do(0x504, 0x38, 8<<27, 0x88, 2<<16|3<<13, 0x90, sendPSN)
}

// openRoCE is openRig with RoCE enabled.
func openRoCE(t testing.TB, p Profile) *rig {
	t.Helper()
	x := openRig(t, Options{Profile: p})
	x.roce()
	return x
}

// createUD creates a QP for datagrams, ready to send.
func (x *rig) createUD() *testQP {
	x.Helper()
	q := x.createQP(serviceUD)
	q.up(0, 1, 1)
	return q
}

// roce enables RoCE and sets an address: 10.9.0.2, version 2.
func (x *rig) roce() {
	x.Helper()
	x.do(dwords(512, 0, 0x755<<16, 12, selectRoCE, 0x100, 1), 16)
	x.do(dwords(48, 0, 0x761<<16, 0x18, 0xffff, 0x1c, 0x0a090002, 0x20, 0x0200, 0x24, 1, 0x28, 2), 16)
}

func (q *testQP) receive(n, size int) {
	for range n {
		i := int(q.posted % 16)
		copy(q.ring[64*i:], append(q.data(32<<10+2048*i, size), dwords(48, 4, endOfList)...))
		q.posted++
	}
	binary.BigEndian.PutUint32(q.rec, q.posted)
}

func (q *testQP) received(i int) []byte { return q.buf[32<<10+i*2048:] }

func (q *testQP) send(op uint32, imm uint32, segs ...[]byte) {
	q.x.Helper()
	body := bytes.Join(segs, nil)
	w := append(dwords(16, 0, q.idx<<8|op, 4, q.qpn<<8|uint32(16+len(body))/16, 8, 8, 12, imm), body...)
	w = append(w, make([]byte, -len(w)&63)...)
	for i := 0; i < len(w); i += 64 {
		copy(q.ring[qpRQBytes+int(q.idx%16)*64:], w[i:i+64])
		q.idx++
	}
	binary.BigEndian.PutUint32(q.rec[4:], q.idx)
	q.x.store(q.half, w[:8])
	q.half ^= 1
	q.x.Port.Settle(300)
}

func (q *testQP) data(off, n int) []byte {
	return q.x.data(n, q.at+uint64(off))
}

func remoteAt(at uint64, key uint32) []byte {
	return dwords(16, 0, uint32(at>>32), 4, uint32(at), 8, key)
}

func avTo(qpn, key uint32) []byte {
	return dwords(48, 0, key, 8, 1<<31|qpn, 12, 49152, 20, 0x02000000, 24, 0x00010040, 28, 1<<30, 40, 0xffff, 44,
		0x0a090002)
}

func fill(b []byte) {
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
}

func find(all [][]byte, qpn uint32, op byte) []byte {
	for _, e := range all {
		if w32(e, 0x38)&0xffffff == qpn && e[63]>>4 == op {
			return e
		}
	}
	return nil
}

func TestQPLife(t *testing.T) {
	x := openRoCE(t, ConnectX4)
	q := x.createQP(serviceRC)
	x.fails(dwords(272, 0, 0x504<<16, 8, q.qpn), 16, stBadResState, "is in state 0, the command is for [2]")
	q.up(q.qpn, 0x123, 0x456)
	out := x.queryQP(q)
	if w32(out, 0x18)>>28 != qpRTS || w32(out, 0x90) != 0x123 || w32(out, 0xac)&0xffffff != 0x456 ||
		w32(out, 0x2c) != q.qpn {
		t.Errorf("QUERY_QP: state %d, next_send_psn %x, next_rcv_psn %x, remote_qpn %x", w32(out, 0x18)>>28,
			w32(out, 0x90), w32(out, 0xac)&0xffffff, w32(out, 0x2c))
	}
	x.fails(dwords(16, 0, 0x401<<16, 8, x.cqn), 16, stBadResState, "is in use by")
	q.receive(2, 2048)
	x.do(dwords(16, 0, 0x507<<16, 8, q.qpn), 16)
	x.Port.Settle(10)
	if all := x.completions(); len(all) != 2 || all[0][0x37] != syndFlushed || all[1][63]>>4 != cqeResponseErr {
		t.Errorf("two receives that end with the QP: %x", all)
	}
	x.do(dwords(16, 0, 0x50a<<16, 8, q.qpn), 16)
	x.do(dwords(16, 0, 0x501<<16, 8, q.qpn), 16)
	x.Clean()
	x.m.caps.general().Set("log_max_qp", 1)
	q = x.createQP(serviceUD)
	x.createQP(serviceUD)
	in := dwords(0x118, 0, 0x500<<16, 0x18, serviceUD<<16, 0x1c, x.pd, 0x20, 1<<15, 0xb4, x.cqn, 0xbc, 64, 0xc4,
		receiveNone<<24)
	if out := x.exec(in, 16); out[0] != stBadRes || w32(out, 4) != 0x65b500 {
		t.Errorf("the third QP of two: status %xh, syndrome %x", out[0], w32(out, 4))
	}
	x.ExpectViolation("all 2 QPs are in use")
	x.do(dwords(16, 0, 0x501<<16, 8, q.qpn), 16)
	if out := x.exec(dwords(16, 0, 0x50a<<16, 8, q.qpn), 16); out[0] != stBadResState || w32(out, 4) != 0x7ea02d {
		t.Errorf("2RST_QP of a QP that is gone: %x", out)
	}
	x.ExpectError("does not exist")
}

func TestDatagram(t *testing.T) {
	x := openRoCE(t, ConnectX5)
	a, b := x.createUD(), x.createUD()
	b.receive(3, 2048)
	fill(a.buf[:1024])
	a.send(opSend, 0, avTo(b.qpn, testKey), a.data(0, 1000), a.data(1000, 24))
	all := x.completions()
	e := find(all, b.qpn, cqeResponseSend)
	if e == nil || w32(e, 0x2c) != 1024+40 || w32(e, 0x18) != 1<<28|2<<24|a.qpn || find(all, a.qpn, cqeRequest) == nil {
		t.Fatalf("completions %x", all)
	}
	if got := b.received(0); !bytes.Equal(got[40:1064], a.buf[:1024]) || got[20] != 0x45 ||
		!bytes.Equal(got[36:40], []byte{10, 9, 0, 2}) {
		t.Errorf("received %x", got[:64])
	}
	a.send(opSendImm, 0xcafe, avTo(b.qpn, testKey), dwords(16, 0, 1<<31|5, 4, 0x01020304, 8, 0x05000000))
	e = find(x.completions(), b.qpn, cqeResponseSendImm)
	if got := b.received(1)[40:45]; e == nil || w32(e, 0x24) != 0xcafe || !bytes.Equal(got, []byte{1, 2, 3, 4, 5}) {
		t.Errorf("inline with immediate: %x, completion %x", got, e)
	}
	a.send(opSend, 0, avTo(b.qpn, 7), a.data(0, 8)) // a wrong key
	if all := x.completions(); find(all, b.qpn, cqeResponseSend) != nil || x.m.count.roceDropped != 1 {
		t.Errorf("a datagram with a wrong key: completions %x, %d dropped", all, x.m.count.roceDropped)
	}
	x.Clean()
	a.send(opSend, 0, avTo(b.qpn, testKey), a.data(0, 2000)) // more than the port's MTU
	x.failed("a datagram too long", find(x.completions(), a.qpn, cqeRequestErr), cqeRequestErr, syndLocalLength)
	x.ExpectViolation("datagram of 2000 bytes")
}

func (x *rig) connected() (a, b *testQP) {
	a, b = x.createQP(serviceRC), x.createQP(serviceRC)
	a.up(b.qpn, 0xfffffe, 77) // sequence numbers wrap
	b.up(a.qpn, 77, 0xfffffe)
	return a, b
}

func TestConnected(t *testing.T) {
	x := openRoCE(t, ConnectX5)
	a, b := x.connected()
	// permits everything
	key := w32(x.do(dwords(0x110, 0, 0x200<<16, 0x10, 0xf<<10, 0x14, 0xffffff<<8|7, 0x1c, 1<<31|x.pd), 16), 8)<<8 | 7
	b.receive(2, 2048)
	fill(a.buf[:16<<10])

	a.send(opSend, 0, a.data(0, 1500), a.data(1500, 500)) // two packets
	all := x.completions()
	if e := find(all, b.qpn, cqeResponseSend); e == nil || w32(e, 0x2c) != 2000 ||
		!bytes.Equal(b.received(0)[:2000], a.buf[:2000]) {
		t.Errorf("send: completion %x", e)
	}
	if e := find(all, a.qpn, cqeRequest); e == nil || w32(e, 0x38)>>24 != opSend {
		t.Errorf("send: completion of the sender %x", e)
	}

	a.send(opWrite, 0, remoteAt(b.at+100, key), a.data(0, 10000))
	all = x.completions()
	if len(all) != 1 || find(all, a.qpn, cqeRequest) == nil || !bytes.Equal(b.buf[100:10100], a.buf[:10000]) {
		t.Errorf("write: completions %x", all)
	}
	a.send(opWriteImm, 0xbeef, remoteAt(b.at, key), a.data(3, 30))
	if e := find(x.completions(), b.qpn, cqeResponseWriteImm); e == nil || w32(e, 0x24) != 0xbeef ||
		w32(e, 0x2c) != 30 {
		t.Errorf("write with immediate: completion %x", e)
	}
	clear(a.buf[:16<<10])
	a.send(opRead, 0, remoteAt(b.at+100, key), a.data(0, 9000))
	if e := find(x.completions(), a.qpn, cqeRequest); e == nil || !bytes.Equal(a.buf[:9000], b.buf[100:9100]) {
		t.Errorf("read: completion %x", e)
	}
	x.Clean()

	a.send(opWrite, 0, remoteAt(b.at, key+1), a.data(0, 8))
	e := find(x.completions(), a.qpn, cqeRequestErr)
	if e == nil || e[0x37] != syndRemoteAccess || w32(e, 0x38)>>24 != opWrite {
		t.Errorf("write with a wrong key: completion %x", e)
	}
	check.Equal(t, w32(x.queryQP(a), 0x18)>>28, qpError, "the QP is in state %d")
}

// After the last retry of a packet that is lost, or of one that a receiver is not ready for, both sides get an error.
// sim/rdma tests the retries.
func TestConnectedGivesUp(t *testing.T) {
	x := openRoCE(t, ConnectX5)
	a, b := x.connected()
	sends := func() []byte {
		a.send(opSend, 0, a.data(0, 64))
		for step := 0; step < 1_000_000 && x.m.obj.qps.m[a.qpn].state != qpError; step++ {
			x.Port.Step()
		}
		return find(x.completions(), a.qpn, cqeRequestErr)
	}
	x.m.lose = func([]byte) bool { return true }
	b.receive(1, 2048)
	if e := sends(); e == nil || e[0x37] != syndRetries || e[0x36] != 0x81 {
		t.Errorf("everything lost: completion %x", e)
	}
	x.m.lose = nil
	a, _ = x.connected()
	x.failed("a receiver that is never ready", sends(), cqeRequestErr, syndRNRRetries)
}

func TestRoCEPackets(t *testing.T) {
	x := openRoCE(t, ConnectX5)
	a, b := x.createUD(), x.createUD()
	b.receive(8, 2048)
	peer := avTo(b.qpn, testKey)
	copy(peer[20:26], []byte{2, 0, 0, 0, 0xee, 1})
	a.send(opSend, 0, peer, a.data(0, 64))
	f := x.Far.Recv(0)
	if f == nil || len(f) != 14+20+8+12+8+64+4 {
		t.Fatalf("the wire has %x", f)
	}
	copy(f, testMAC[:])
	for _, c := range []struct {
		changed string
		change  func(f []byte)
		arrives bool
	}{
		{"nothing", func([]byte) {}, true},
		{"time to live and checksum", func(f []byte) { f[14+8]--; f[14+10]++ }, true}, // what a router does
		{"payload", func(f []byte) { f[80]++ }, false},
		{"checksum", func(f []byte) { f[len(f)-1]++ }, false},
		{"destination", func(f []byte) { f[14+19]++ }, false},
		{"QP", func(f []byte) { f[14+20+8+7]++ }, false},
	} {
		g := bytes.Clone(f)
		c.change(g)
		x.Arrive(g)
		check.Equal(t, find(x.completions(), b.qpn, cqeResponseSend) != nil, c.arrives,
			"a packet with another "+c.changed+" arrives: %v")
	}
	x.do(dwords(512, 0, 0x755<<16, 12, selectRoCE), 16)
	x.post(1)
	x.Arrive(f)
	if e := x.cqe(); e == nil || w32(e, 0x38) != 0 || w32(e, 0x2c) != uint32(len(f)) {
		t.Errorf("with RoCE off a packet is a frame like others: completion %x", e)
	}
}

func TestSharedReceive(t *testing.T) {
	x := openRoCE(t, ConnectX5)
	mem := x.Alloc(4096)
	rec := mem.IOVA + 2048
	rmp := w32(x.do(dwords(0x118, 0, 0x90c<<16, 0x20, 1<<20, 0x58, x.pd, 0x60, uint32(rec>>32), 0x64, uint32(rec), 0x70,
		5<<16|3,
		0x110, uint32(mem.IOVA>>32), 0x114, uint32(mem.IOVA)), 16), 8)
	a := x.createQP(serviceRC)
	b := x.createQP(serviceRC, 0xc4, receiveShared<<24|rmp)
	a.up(b.qpn, 5, 6)
	b.up(a.qpn, 6, 5)
	order := []uint16{0, 5, 2} // in the order of the list
	for i, n := range order {
		w := mem.Bytes[32*int(n):]
		if i+1 < len(order) {
			binary.BigEndian.PutUint16(w[2:], order[i+1])
		}
		copy(w[16:], b.data(int(n)*1024, 1024))
	}
	binary.BigEndian.PutUint32(mem.Bytes[2048:], uint32(len(order)))
	fill(a.buf[:4096])
	for i, n := range order {
		a.send(opSend, 0, a.data(i*512, 512))
		e := find(x.completions(), b.qpn, cqeResponseSend)
		if e == nil || binary.BigEndian.Uint16(e[0x3c:]) != n ||
			!bytes.Equal(b.buf[int(n)*1024:][:512], a.buf[i*512:][:512]) {
			t.Errorf("message %d: completion %x, expected WQE %d", i, e, n)
		}
	}
	x.fails(dwords(16, 0, 0x90e<<16, 8, rmp), 16, stBadResState, "is in use by 1")
	x.do(dwords(16, 0, 0x501<<16, 8, b.qpn), 16)
	x.do(dwords(16, 0, 0x90e<<16, 8, rmp), 16)
}

func TestXRC(t *testing.T) {
	x := openRig(t, Options{})
	mem := x.Alloc(4096)
	d := w32(x.do(dwords(16, 0, 0x80e<<16), 16), 8)
	rec := mem.IOVA + 2048
	srq := w32(x.do(dwords(0x118, 0, 0x705<<16, 0x10, 3<<24, 0x14, 1<<24|d, 0x18, x.cqn, 0x28, x.pd, 0x38,
		uint32(rec>>32), 0x3c, uint32(rec),
		0x110, uint32(mem.IOVA>>32), 0x114, uint32(mem.IOVA)), 16), 8)
	x.fails(dwords(16, 0, 0x80f<<16, 8, d), 16, stBadResState, "is in use by 1")
	x.fails(dwords(16, 0, 0x90e<<16, 8, srq), 16, stBadRes, "the command is for the other kind")
	x.do(dwords(16, 0, 0x706<<16, 8, srq), 16)
	x.do(dwords(16, 0, 0x80f<<16, 8, d), 16)
}

func TestUMR(t *testing.T) {
	x := openRoCE(t, ConnectX4)
	u := x.createQP(serviceUMR, 0x1c, 0) // Linux sets the PD with RST2INIT_QP, up to 5.10 not that of its lists
	pd := w32(x.do(dwords(16, 0, 0x800<<16), 16), 8)
	x.do(dwords(272, 0, 0x502<<16, 8, u.qpn, 0x18, 3<<11, 0x1c, pd), 16)
	x.do(dwords(272, 0, 0x503<<16, 8, u.qpn), 16)
	x.do(dwords(272, 0, 0x504<<16, 8, u.qpn), 16)
	key := w32(x.do(dwords(0x110, 0, 0x200<<16, 0x10, 1<<30|1<<15|1<<8, 0x14, 0xffffff<<8|9, 0x1c, x.pd, 0x44, 1, 0x48,
		12), 16), 8)<<8 | 9
	list, pages := x.Alloc(4096), x.Alloc(8192)
	binary.BigEndian.PutUint64(list.Bytes, pages.IOVA+4096|3)
	binary.BigEndian.PutUint64(list.Bytes[8:], pages.IOVA|3)
	umr := func(flags byte) {
		ctrl := dwords(48, 0, uint32(flags)<<24, 4, 4<<16, 8, 0, 12,
			umrLen|umrPageSize|umrStart|umrKey|umrLR|umrLW|umrRR|umrRW|umrFree)
		mkc := dwords(64, 0, 0xf<<10, 4, 0xffffff<<8|9, 0x14, 0x10000, 0x1c, 8192, 0x38, 12)
		u.send(opUMR, key, ctrl, mkc, x.data(64, list.IOVA))
	}
	check.Fails(t, "a free key is used", check.Err(x.m.translate(key, 0x10000, 8, x.pd, false, localRead)), nil)
	umr(umrNotFree)
	if e := x.cqe(); e == nil || e[63]>>4 != cqeRequest || w32(e, 0x38) != opUMR<<24|u.qpn {
		t.Errorf("UMR: completion %x", e)
	}
	p, err := x.m.translate(key, 0x10000+4000, 200, x.pd, false, remoteWrite)
	if err != nil || len(p) != 2 || p[0] != (rdma.Piece{At: pages.IOVA + 4096 + 4000, N: 96}) ||
		p[1] != (rdma.Piece{At: pages.IOVA, N: 104}) {
		t.Errorf("the key leads to %x, %v", p, err)
	}
	x.Clean()
	umr(umrNotFree)
	if e := x.cqe(); e == nil || e[63]>>4 != cqeRequestErr || e[0x37] != syndBind || e[0x36] != 0x78 {
		t.Errorf("UMR of a key that is not free: completion %x", e)
	}
	x.ExpectViolation("free is false")
}

func TestNode(t *testing.T) {
	x := openRig(t, Options{})
	x.do(dwords(80, 0, 0x805<<16, 8, regNodeDesc, 16, 0x61626300), 16)
	if out := x.do(dwords(80, 0, 0x805<<16, 4, 1, 8, regNodeDesc), 80); string(out[16:20]) != "abc\x00" {
		t.Errorf("NODE_DESC: %q", out[16:])
	}
	if out := x.do(dwords(16, 0, 0x765<<16), 20); w32(out, 16) != 0xffff {
		t.Errorf("partition key: %x", out)
	}
	x.fails(dwords(16, 0, 0x765<<16, 12, 4096), 20, stBadParam, "pkey_index is 4096")
}

func TestUMEM(t *testing.T) {
	x := openRoCE(t, ConnectX7)
	check.Equal(t, w32(x.caps(capGeneral), 0x48)>>13&1, 1, "umem_uid_0: %d")
	mem, buf := x.Alloc(8192), x.Alloc(64<<10)
	id := w32(x.do(dwords(64, 0, 0xa08<<16, 0x24, 256, 0x2c, 2, 0x30, uint32(mem.IOVA>>32), 0x34, uint32(mem.IOVA),
		0x38, uint32(mem.IOVA>>32), 0x3c, uint32(mem.IOVA+4096)), 16), 8)
	const ring = 0 // after page_offset
	in := []uint32{0, 0x500 << 16, 0x18, serviceUD<<16 | 3<<11, 0x1c, x.pd, 0x20, 4<<19 | 2<<16 | 4<<11, 0x24, x.uar,
		0x94, x.cqn, 0xb4, x.cqn,
		0xbc, 7680, 0xe8, 1 << 28, 0xfc, id, 0x104, ring, 0x108, id, 0x10c, 1 << 31}
	x.fails(dwords(272, append(in, 0x104, 8000)...), 16, stBadParam, "are beyond")
	x.fails(dwords(272, append(in, 0x104, 1024)...), 16, stBadParam, "in a umem with pages of 0x1000")
	a := &testQP{x: x, qpn: w32(x.do(dwords(272, in...), 16), 8), ring: mem.Bytes[256+ring:], rec: mem.Bytes[256+7680:],
		buf: buf.Bytes, at: buf.IOVA}
	a.up(0, 1, 1)
	a.receive(1, 2048)
	fill(a.buf[:100])
	a.send(opSend, 0, avTo(a.qpn, testKey), a.data(0, 100))
	if e := find(x.completions(), a.qpn, cqeResponseSend); e == nil ||
		!bytes.Equal(a.received(0)[40:140], a.buf[:100]) {
		t.Errorf("a datagram to ourselves: completion %x", e)
	}
	x.fails(dwords(16, 0, 0xa0a<<16, 8, id), 16, stBadResState, "is in use by 1")
	x.do(dwords(16, 0, 0x501<<16, 8, a.qpn), 16)
	x.do(dwords(48, 0, 0xa0a<<16, 8, id), 16) // the length that libmlx5 sends

	x = openRig(t, Options{Profile: ConnectX5})
	x.fails(dwords(64, 0, 0xa08<<16, 0x2c, 1, 0x30, 1, 0x34, 0), 16, stBadOp, "umem_uid_0 is not there")
}

// An address determines the protocol of its packets: roce_l3_type is 0 for IPv4 and 1 for IPv6 (Linux, driver.h).
func TestRoCEAddressTypes(t *testing.T) {
	for _, c := range []struct {
		l3, ether uint32
		at        int // of the UDP header
	}{{0, 0x0800, 34}, {1, 0x86dd, 54}} {
		x := openRoCE(t, ConnectX5)
		x.do(dwords(48, 0, 0x761<<16, 0x18, 0xffff, 0x1c, 0x0a090002, 0x20, 0x0200, 0x24, 1, 0x28, c.l3<<8|2), 16)
		x.fails(dwords(48, 0, 0x761<<16, 8, 1<<16, 0x18, 0xffff, 0x1c, 1, 0x28, 2<<8|2), 16, stBadParam,
			"roce_l3_type 2")
		q := x.createUD()
		to := avTo(q.qpn, testKey)
		to[25]++ // another port's MAC address
		q.send(opSend, 0, to, q.data(0, 100))
		f := x.Far.Recv(0)
		if f == nil || uint32(binary.BigEndian.Uint16(f[12:])) != c.ether ||
			binary.BigEndian.Uint16(f[c.at+2:]) != portRoCE {
			t.Errorf("roce_l3_type %d: %x", c.l3, f)
		}
	}
}
