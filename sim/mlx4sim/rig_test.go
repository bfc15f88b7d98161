package mlx4sim

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"testing"

	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/sim/simtest"
)

var testMAC = simtest.MAC

// rig is a raw driver: it encodes commands and WQEs by hand, and checks the results.
type rig struct {
	*simtest.Rig
	m      *Model
	toggle uint32
	in     dma.Block
	out    dma.Block

	icm                 dma.Block
	flags               uint32 // INIT_HCA
	wide                bool   // CQEs and EQEs of 64 bytes
	eq, cq, sq, rec, fb dma.Block
	eqCI, cqCI, head    uint32
}

const (
	testUAR   = 128
	testEQ    = 32
	testCQ    = 128
	testQP    = 256 // bits 6 and 7 are clear: it may push
	testMPT   = 256
	testLogCQ = 5
	testLogSQ = 6
	testLogRQ = 4
	testPD    = 7

	// Virtual addresses of the tables, each of at most a megabyte.
	qpcAt   = 0x000000
	cqcAt   = 0x100000
	eqcAt   = 0x200000
	srqcAt  = 0x300000
	dmptAt  = 0x400000
	mttAt   = 0x500000
	altcAt  = 0x600000
	auxcAt  = 0x700000
	rdmaAt  = 0x800000
	mcAt    = 0x900000
	cmptAt  = 0x10000000
	icmSize = cmptAt + 4<<24*64
)

func newRig(t testing.TB, o Options) *rig {
	t.Helper()
	o.MAC = testMAC
	m := New(o)
	x := &rig{Rig: simtest.New(t, "mlx4", m, 8<<20), m: m}
	x.in, x.out = x.Alloc(4096), x.Alloc(4096)
	return x
}

// openRig is newRig with an open device.
func openRig(t testing.TB, o Options) *rig {
	t.Helper()
	x := newRig(t, o)
	x.open()
	return x
}

func (x *rig) rd(off uint64) uint32    { return x.ReadBE(0, off) }
func (x *rig) wr(off uint64, v uint32) { x.WriteBE(0, off, v) }

// door stores four bytes in BAR 2.
func (x *rig) door(page, off uint64, v uint32) { x.WriteBE(2, page*4096+off, v) }

var dwords, w32, frameOf, toPeer = simtest.Words, simtest.Word, simtest.Frame, simtest.ToPeer

// issue writes a command into the command register, and does not wait for it.
func (x *rig) issue(op, opMod, mod uint32, in, out uint64) {
	x.Helper()
	x.toggle ^= 1
	for i, v := range []uint32{uint32(in >> 32), uint32(in), mod, uint32(out >> 32), uint32(out), 0xffff << 16,
		1<<23 | x.toggle<<21 | opMod<<12 | op} {
		x.wr(0x80680+uint64(4*i), v)
	}
}

func (x *rig) raw(op, opMod, mod uint32, in, out uint64) (status uint32, imm uint64) {
	x.Helper()
	x.issue(op, opMod, mod, in, out)
	x.Port.Settle(100)
	v := x.rd(0x80698)
	if v>>23&1 != 0 {
		x.Fatalf("command %x: the go bit is still set", op)
	}
	if v>>21&1 != x.toggle {
		x.Errorf("command %x: the toggle bit is %d", op, v>>21&1)
	}
	return v >> 24, uint64(x.rd(0x8068c))<<32 | uint64(x.rd(0x80690))
}

// exec runs a command with mailboxes: in may be nil, a mailbox of bytes, or an immediate; out selects an output
// mailbox.
func (x *rig) exec(op, opMod, mod uint32, in any, out bool) (status uint32, imm uint64) {
	x.Helper()
	var ip, op2 uint64
	switch v := in.(type) {
	case []byte:
		clear(x.in.Bytes)
		copy(x.in.Bytes, v)
		ip = x.in.IOVA
	case uint64:
		ip = v
	}
	if out {
		op2 = x.out.IOVA
	}
	return x.raw(op, opMod, mod, ip, op2)
}

func (x *rig) do(op, opMod, mod uint32, in any, out bool) uint64 {
	x.Helper()
	s, imm := x.exec(op, opMod, mod, in, out)
	if s != 0 {
		x.Fatalf("command %x: status %xh: %q", op, s, x.Port.Violations())
	}
	return imm
}

func (x *rig) fails(status, op, opMod, mod uint32, in any, out bool, violation string) {
	x.Helper()
	s, _ := x.exec(op, opMod, mod, in, out)
	if s != status {
		x.Errorf("command %x: status %xh, expected %xh: %q", op, s, status, x.Port.Violations())
	}
	x.ExpectError(violation)
}

func mappings(virt uint64, b dma.Block, pages int) []byte {
	in := make([]byte, 16*pages)
	for i := range pages {
		binary.BigEndian.PutUint64(in[16*i:], virt+uint64(i)<<12)
		binary.BigEndian.PutUint64(in[16*i+8:], b.IOVA+uint64(i)<<12)
	}
	return in
}

// give maps pages, up to 128 with a command.
func (x *rig) give(op uint32, virt uint64, b dma.Block, pages int) {
	x.Helper()
	for ; pages > 0; pages -= 128 {
		n := min(128, pages)
		x.do(op, 0, uint32(n), mappings(virt, b, n), false)
		virt += 128 << 12
		b.IOVA += 128 << 12
	}
}

func (x *rig) firmware() {
	x.Helper()
	x.do(0x004, 0, 0, nil, true)
	pages := int(w32(x.out.Bytes, 0) >> 16)
	x.give(0xfff, 0, x.Alloc(4096*pages), pages)
	x.do(0xff6, 0, 0, nil, false)
}

func (x *rig) context() {
	x.Helper()
	aux := int(x.do(0xffd, 0, 0, uint64(icmSize), false))
	x.give(0xffc, 0, x.Alloc(4096*aux), aux)
	x.icm = x.Alloc(4096 * 64)
	next := x.icm
	for _, t := range []struct {
		virt  uint64
		pages int
	}{{mttAt, 2}, {qpcAt + testQP*qpcSize, 8}, {qpcAt, 1}, {cqcAt, 8}, {eqcAt, 1}, {srqcAt, 3}, {dmptAt, 8},
		{altcAt, 1}, {altcAt + testQP*altcSize, 1},
		{auxcAt, 1}, {auxcAt + testQP*auxcSize, 1}, {rdmaAt, 3}, {mcAt, 4}, {cmptAt, 1}, {cmptAt + testQP*cmptSize, 1}, {cmptAt + 1<<24*64, 2},
		{cmptAt + 2<<24*64, 4}, {cmptAt + 3<<24*64, 2}} {
		x.give(0xffa, t.virt, next, t.pages)
		next.IOVA += uint64(t.pages) << 12
	}
}

// Pages of the MTT table and of the QP's context in the provided memory.
const mttPage, qpcPage = 0, 2

func (x *rig) initHCA() []byte {
	v := uint32(0)
	if x.wide {
		v = 3 << 29
	}
	return dwords(0x200, 0, 2<<24, 0x14, 1|x.flags, 0x34, qpcAt|9, 0x4c, srqcAt|7, 0x54, cqcAt|9, 0x58, v, 0x64, altcAt,
		0x74, auxcAt, 0x84, eqcAt|6, 0x94, rdmaAt,
		0xc4, mcAt, 0xd0, 10, 0xd8, 4, 0xf4, dmptAt, 0xf8, 10, 0x104, mttAt, 0x10c, cmptAt, 0x128, 10<<8, 0x1d4, mcAt,
		0x1e0, 10, 0x1e8, 4)
}

func (x *rig) mtt(first int, b dma.Block, pages int) uint32 {
	for i := range pages {
		binary.BigEndian.PutUint64(x.icm.Bytes[mttPage<<12+8*(first+i):], b.IOVA+uint64(i)<<12|1)
	}
	return uint32(8 * first)
}

func (x *rig) boot() {
	x.Helper()
	x.firmware()
	x.do(0x003, 0, 0, nil, true)
	x.context()
	x.do(0x007, 0, 0, x.initHCA(), false)
	x.eq, x.cq, x.sq, x.rec, x.fb = x.Alloc(4096), x.Alloc(4096), x.Alloc(8192), x.Alloc(4096), x.Alloc(256<<10)
}

func (x *rig) eqContext() []byte {
	return dwords(64, 0, 9<<8, 0xc, 4<<24, 0x14, 3, 0x1c, x.mtt(64, x.eq, 1))
}

func (x *rig) cqContext() []byte {
	return dwords(64, 0xc, testLogCQ<<24|testUAR, 0x14, testEQ, 0x1c, x.mtt(72, x.cq, 1), 0x38,
		uint32((x.rec.IOVA+64)>>32), 0x3c, uint32(x.rec.IOVA+64))
}

func (x *rig) mptContext() []byte {
	return dwords(64, 0, 3<<12|3<<10|1<<9|1<<8, 8, testMPT, 0xc, testPD, 0x28, 1<<22)
}

const testKey = testMPT << 8

func (x *rig) qpContext() []byte {
	return dwords(0x100, 8, 7<<16|3<<11, 0xc, testPD, 0x10, 0xff<<24|testLogRQ<<19|testLogSQ<<11|2<<8, 0x14, testUAR,
		0x18, testQP,
		8+0x38, 0x83<<24, 8+0x7c, testCQ, 8+0x9c, testCQ, 8+0xa0, uint32(x.rec.IOVA>>32), 8+0xa4, uint32(x.rec.IOVA),
		8+0xcc, x.mtt(80, x.sq, 2))
}

func (x *rig) rings() {
	x.Helper()
	x.do(0x00d, 0, testMPT, x.mptContext(), false)
	x.do(0x013, 0, testEQ, x.eqContext(), false)
	x.do(0x012, 0, testEQ, uint64(1<<9|1<<4|1<<10|1<<0x1d), false)
	x.do(0x016, 0, testCQ, x.cqContext(), false)
}

// invalidate stamps all blocks of the send queue, so that the device executes none.
func (x *rig) invalidate() {
	for i := 0; i < 64<<testLogSQ; i += 64 {
		binary.BigEndian.PutUint32(x.sq.Bytes[i:], 0xffffffff)
	}
}

// ready takes a QP from reset to ready to send.
func (x *rig) ready(qpn uint32, context []byte) {
	x.Helper()
	for _, op := range []uint32{0x19, 0x1a, 0x1b} {
		x.do(op, 0, qpn, context, false)
	}
}

func (x *rig) open() {
	x.Helper()
	x.boot()
	x.rings()
	x.invalidate()
	x.ready(testQP, x.qpContext())
	x.do(0x00c, 1, 0<<8|1, dwords(64, 0, 7, 4, 1522), false)
	if x.flags&hcaDeviceManaged == 0 {
		x.do(0x00c, 1, 2<<8|1, dwords(1024, 0, 1<<31|0x0200, 4, 1), false)
		x.do(0x00c, 1, 1<<8|1, x.rqpCalc(), false)
	}
	x.do(0x009, 0, 1, nil, false)
	x.Clean()
}

func (x *rig) rqpCalc() []byte {
	return dwords(64, 0, testQP, 4, 7<<16, 8, 128, 12, 126<<16|127, 0x14, testQP, 0x18, 2<<30|testQP)
}

const rqAt = 64 << testLogSQ

// post posts n receive buffers of 2048 bytes, and publishes their total number.
func (x *rig) post(from, n int) {
	for i := from; i < from+n; i++ {
		copy(x.sq.Bytes[rqAt+16*(i%(1<<testLogRQ)):], x.segment(2048*i, 2048))
	}
	binary.BigEndian.PutUint32(x.rec.Bytes, uint32(from+n))
}

// cqe returns the next completion's 32 bytes, or nil.
func (x *rig) cqe() []byte {
	size := x.m.hca.cqeSize
	e := x.cq.Bytes[int(x.cqCI)%(1<<testLogCQ)*size:][size-32 : size]
	if uint32(e[31]>>7) != x.cqCI>>testLogCQ&1 {
		return nil
	}
	x.cqCI++
	binary.BigEndian.PutUint32(x.rec.Bytes[64:], x.cqCI)
	return e
}

// completed takes the next completion, which must be one of a send without an error.
func (x *rig) completed(op byte) {
	x.Helper()
	if e := x.cqe(); e == nil || e[31]&0x7f != 0x40|op {
		x.Fatalf("completion %x, expected one of opcode %x: %q", e, op, x.Port.Violations())
	}
}

// failed takes the next completion, which must be one with an error.
func (x *rig) failed(syndrome byte) {
	x.Helper()
	if e := x.cqe(); e == nil || e[31]&0x1f != cqeError || e[0x1b] != syndrome {
		x.Errorf("completion %x, expected an error with syndrome %x", e, syndrome)
	}
}

// eqe returns the next event's 32 bytes, or nil, and updates the consumer index.
func (x *rig) eqe() []byte {
	size := x.m.hca.eqeSize
	e := x.eq.Bytes[int(x.eqCI)%16*size:][size-32 : size]
	if uint32(e[31]>>7) != x.eqCI>>4&1 {
		return nil
	}
	x.eqCI++
	x.door(testEQ/4, 0x800+8*(testEQ%4), 1<<31|x.eqCI)
	return e
}

// wqe writes a send WQE at the head: a control segment, then segs, whose total length is a multiple of 16 bytes.
func (x *rig) wqe(op, flags uint32, segs ...[]byte) []byte {
	w := append(dwords(16, 0, op|x.head>>testLogSQ&1<<31, 8, flags), bytes.Join(segs, nil)...)
	binary.BigEndian.PutUint32(w[4:], uint32(len(w)/16))
	for i := 0; i < len(w); i += 64 {
		copy(x.sq.Bytes[int(x.head%(1<<testLogSQ))*64:][:64], w[i:min(i+64, len(w))])
		x.head++
	}
	return w
}

// send posts a WQE, and rings its doorbell.
func (x *rig) send(op, flags uint32, segs ...[]byte) {
	x.wqe(op, flags, segs...)
	x.ring()
}

// sendFrame sends a frame of 64 bytes to the peer.
func (x *rig) sendFrame() { x.send(opSend, sendFlags, x.data(0, toPeer(64))) }

func (x *rig) ring() {
	x.door(testUAR, 0x14, testQP<<8)
	x.Port.Settle(20)
}

func (x *rig) arm(sn, cmd, ci uint32) {
	x.Helper()
	binary.BigEndian.PutUint32(x.rec.Bytes[68:], sn<<28|cmd<<24|ci)
	x.armDoorbell(sn, cmd, ci)
}

func (x *rig) armDoorbell(sn, cmd, ci uint32) {
	x.Helper()
	x.Must(x.Port.WriteBAR(2, testUAR*4096+0x20, dwords(8, 0, sn<<28|cmd<<24|testCQ, 4, ci)))
}

func (x *rig) steps(n int) {
	for range n {
		x.Port.Step()
	}
}

// segment is a data segment: n bytes of the rig's buffer.
func (x *rig) segment(off, n int) []byte {
	at := x.fb.IOVA + uint64(off)
	return dwords(16, 0, uint32(n), 4, testKey, 8, uint32(at>>32), 12, uint32(at))
}

func (x *rig) data(off int, b []byte) []byte {
	copy(x.fb.Bytes[off:], b)
	return x.segment(off, len(b))
}

// inline returns inline segments for b, each of which ends with a 64-byte line; at is their offset in the WQE.
func inline(at int, b []byte) (segs []byte) {
	for len(b) > 0 {
		n := min(len(b), 60-at&63)
		s := make([]byte, (4+n+15)&^15)
		binary.BigEndian.PutUint32(s, 1<<31|uint32(n))
		copy(s[4:], b[:n])
		segs, b, at = append(segs, s...), b[n:], at+len(s)
	}
	return segs
}

const sendFlags = 3<<2 | 1<<1

func (x *rig) down() {
	x.Helper()
	x.do(0x00a, 0, 1, nil, false)
	x.do(0x021, 3, testQP, nil, false)
	x.do(0x017, 0, testCQ, nil, true)
	x.do(0x014, 0, testEQ, nil, true)
	x.do(0x00f, 0, testMPT, nil, true)
	x.do(0x008, 0, 0, nil, false)
	x.do(0xff9, 0, 1<<bits.Len(icmSize>>12), uint64(0), false)
	x.do(0xffb, 0, 0, nil, false)
	x.do(0xffe, 0, 0, nil, false)
}

func (x *rig) restore() {
	x.Helper()
	x.Must(x.Port.WriteConfig(4, []byte{6, 0}))
}
