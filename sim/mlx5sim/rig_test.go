package mlx5sim

import (
	"encoding/binary"
	"testing"

	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/sim/simtest"
)

var testMAC = simtest.MAC

// rig is a raw driver: it encodes commands and WQEs by hand, as each test specifies, and examines the results.
type rig struct {
	*simtest.Rig
	m                *Model
	cmd              dma.Block // queue page, then mailboxes
	token            uint8
	sums             bool   // sign the mailboxes
	self             uint32 // self_lb_en of the TIR
	function         uint32 // the function's ID in page commands
	ts               uint32 // ts_format of the queues
	register, access uint32 // of ACCESS_REG
	compress         uint32 // cqe_comp_en and mini_cqe_res_format of the CQ

	uar, pd, td, tisn       uint32
	eqn, cqn, sqn, rqn      uint32
	tirn, table, group      uint32
	mkey                    uint32
	eq, cq, sq, rq, rec, fb dma.Block
	cqCI                    uint32
	given                   []uint64
}

func newRig(t testing.TB, o Options) *rig {
	t.Helper()
	o.MAC = testMAC
	if o.InitPages == 0 {
		o.InitPages = 10
	}
	m := New(o)
	x := &rig{Rig: simtest.New(t, "mlx5", m, 4<<20), m: m, sums: true}
	x.cmd = x.Alloc(128 << 10)
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

var dwords, w32, frameOf, toPeer = simtest.Words, simtest.Word, simtest.Frame, simtest.ToPeer

const mailboxesAt = 4096

// mailboxes returns how many mailboxes hold what the command's entry does not, of n bytes.
func mailboxes(n int) int { return (max(n, 16) - 16 + 511) / 512 }

// entry encodes a command into entry 0, with its mailboxes after the queue, input first.
func (x *rig) entry(in []byte, outLen int) []byte {
	e := x.cmd.Bytes[:64]
	clear(e)
	x.token++
	e[0] = 7
	binary.BigEndian.PutUint32(e[4:], uint32(len(in)))
	copy(e[16:32], in)
	binary.BigEndian.PutUint32(e[56:], uint32(outLen))
	e[60], e[63] = x.token, 1
	at := mailboxesAt
	chain := func(link []byte, n int, data []byte) {
		for i := range mailboxes(n) {
			binary.BigEndian.PutUint64(link, x.cmd.IOVA+uint64(at))
			b := x.cmd.Bytes[at : at+576]
			clear(b)
			copy(b[:512], data[min(len(data), 16+i*512):])
			binary.BigEndian.PutUint32(b[0x238:], uint32(i))
			b[0x23d] = x.token
			link = b[0x230:]
			at += 1024
		}
	}
	chain(e[8:], len(in), in)
	chain(e[48:], outLen, nil)
	for ; x.sums && at > mailboxesAt; at -= 1024 {
		b := x.cmd.Bytes[at-1024:][:576]
		b[0x23e] = ^xor(b[512:])
		b[0x23f] = ^xor(b)
	}
	e[61] = ^xor(e)
	return e
}

// ring rings the doorbell of entry 0 and collects its output.
func (x *rig) ring(in []byte, outLen int) (out []byte, delivery uint8) {
	x.Helper()
	x.wr(0x18, 1)
	x.Port.Settle(100)
	e := x.cmd.Bytes[:64]
	if e[63]&1 != 0 {
		x.Fatalf("command %x is still the device's", in[:2])
	}
	if xor(e) != 0xff {
		x.Errorf("the output's signature is wrong: %x", e)
	}
	out = append(out, e[32:48]...)
	at := mailboxesAt + mailboxes(len(in))*1024
	for len(out) < outLen {
		b := x.cmd.Bytes[at : at+576]
		if xor(b) != 0xff || xor(b[512:575]) != 0xff || b[0x23d] != x.token {
			x.Errorf("output mailbox: signatures or token wrong: %x", b[512:])
		}
		out = append(out, b[:512]...)
		at += 1024
	}
	return out[:outLen], e[63] >> 1
}

func (x *rig) exec(in []byte, outLen int) []byte {
	x.Helper()
	x.entry(in, outLen)
	out, d := x.ring(in, outLen)
	if d != 0 {
		x.Fatalf("command %x: delivery status %xh: %q", in[:2], d, x.Port.Violations())
	}
	return out
}

func (x *rig) do(in []byte, outLen int) []byte {
	x.Helper()
	out := x.exec(in, outLen)
	if out[0] != 0 {
		x.Fatalf("command %x: status %xh, syndrome %x: %q", in[:2], out[0], out[4:8], x.Port.Violations())
	}
	return out
}

func (x *rig) fails(in []byte, outLen int, status uint8, violation string) {
	x.Helper()
	out := x.exec(in, outLen)
	if out[0] != status || w32(out, 4) == 0 {
		x.Errorf("command %x: status %xh, syndrome %x, expected status %xh", in[:2], out[0], out[4:8], status)
	}
	x.ExpectViolation(violation)
}

// caps returns the capabilities of one kind.
func (x *rig) caps(kind uint32) []byte {
	x.Helper()
	return x.do(dwords(16, 0, 0x100<<16, 4, kind<<1|1), 4112)[16:]
}

// setCaps returns the command that sets general capabilities.
func setCaps(caps []byte) []byte { return append(dwords(16, 0, 0x109<<16), caps...) }

func (x *rig) address() {
	x.wr(0x10, uint32(x.cmd.IOVA>>32))
	x.wr(0x14, uint32(x.cmd.IOVA))
}

func (x *rig) give(n int) {
	x.Helper()
	b := x.Alloc(4096 * n)
	in := dwords(max(24, 16+8*n), 0, 0x108<<16, 4, 1, 8, x.function, 12, uint32(n))
	for i := range n {
		at := b.IOVA + uint64(4096*i)
		x.given = append(x.given, at)
		binary.BigEndian.PutUint64(in[16+8*i:], at)
	}
	x.do(in, 16)
}

func (x *rig) boot() {
	x.Helper()
	x.address()
	x.do(dwords(16, 0, 0x104<<16), 16)
	x.do(dwords(16, 0, 0x10b<<16, 8, 1), 16)
	want := x.do(dwords(16, 0, 0x107<<16, 4, 1), 16)
	x.function = w32(want, 8)
	x.give(int(w32(want, 12)))
	x.do(setCaps(x.caps(capGeneral)), 16)
	x.give(int(w32(x.do(dwords(16, 0, 0x107<<16, 4, 2), 16), 12)))
	x.do(dwords(16, 0, 0x102<<16), 16)
}

const (
	testLogSQ = 4
	testLogRQ = 4
	testLogCQ = 5
)

func (x *rig) open() {
	x.Helper()
	x.boot()
	x.uar = w32(x.do(dwords(16, 0, 0x802<<16), 16), 8)
	x.pd = w32(x.do(dwords(16, 0, 0x800<<16), 16), 8)
	x.td = w32(x.do(dwords(16, 0, 0x816<<16), 16), 8)
	x.eq, x.cq, x.sq, x.rq, x.rec, x.fb = x.Alloc(4096), x.Alloc(4096), x.Alloc(4096), x.Alloc(4096), x.Alloc(4096),
		x.Alloc(64<<10)
	for i := 0; i < 4096; i += 64 {
		x.eq.Bytes[i+63], x.cq.Bytes[i+63] = 1, 0xf1
	}
	x.eqn = w32(x.do(x.createEQ(), 16), 8)
	x.cqn = w32(x.do(x.createCQ(), 16), 8)
	x.mkey = w32(x.do(x.createMkey(), 16), 8)<<8 | 0x42
	x.tisn = w32(x.do(dwords(0xc0, 0, 0x912<<16, 0x44, x.td), 16), 8)
	x.sqn = w32(x.do(x.createSQ(), 16), 8)
	x.do(dwords(0x110, 0, 0x905<<16, 8, x.sqn, 0x20, 1<<20), 16)
	x.rqn = w32(x.do(x.createRQ(), 16), 8)
	x.do(dwords(0x110, 0, 0x909<<16, 8, x.rqn, 0x20, 1<<20), 16)
	x.tirn = w32(x.do(dwords(0x110, 0, 0x900<<16, 0x3c, x.rqn, 0x44, x.self<<24|x.td), 16), 8)
	x.table = w32(x.do(dwords(64, 0, 0x930<<16, 0x18, 4), 16), 8)
	x.group = w32(x.do(dwords(1024, 0, 0x933<<16, 0x14, x.table, 0x24, 15), 16), 8)
	x.do(dwords(0x348, 0, 0x936<<16, 0x14, x.table, 0x44, x.group, 0x4c, 4, 0x50, 1, 0x340, 2<<24|x.tirn), 16)
	x.do(dwords(64, 0, 0x92f<<16, 0x14, x.table), 16)
	x.Clean()
}

func (x *rig) createEQ() []byte {
	return dwords(0x118, 0, 0x301<<16, 0x1c, 5<<24|x.uar, 0x24, 3, 0x5c, 0xa00, 0x110, uint32(x.eq.IOVA>>32), 0x114,
		uint32(x.eq.IOVA))
}

func (x *rig) createCQ() []byte {
	rec := x.rec.IOVA + 64
	return dwords(0x118, 0, 0x400<<16, 0x10, x.compress, 0x1c, testLogCQ<<24|x.uar, 0x24, x.eqn, 0x48, uint32(rec>>32),
		0x4c, uint32(rec),
		0x110, uint32(x.cq.IOVA>>32), 0x114, uint32(x.cq.IOVA))
}

func (x *rig) arm(cqn, ci uint32) {
	x.Helper()
	x.Must(x.Port.WriteBAR(0, uint64(x.uar)*4096+uarCQ, dwords(8, 0, ci, 4, cqn)))
}

func (x *rig) createMkey() []byte {
	return dwords(0x110, 0, 0x200<<16, 0x10, 3<<10, 0x14, 0xffffff<<8|0x42, 0x1c, 1<<31|x.pd)
}

func (x *rig) createSQ() []byte {
	return dwords(0x118, 0, 0x904<<16, 0x20, 1<<28|1<<24|x.ts<<4, 0x28, x.cqn, 0x40, 1<<16, 0x4c, x.tisn, 0x50, 1<<28,
		0x58, x.pd, 0x5c, x.uar,
		0x60, uint32(x.rec.IOVA>>32), 0x64, uint32(x.rec.IOVA), 0x70, 6<<16|testLogSQ, 0x110, uint32(x.sq.IOVA>>32),
		0x114, uint32(x.sq.IOVA))
}

func (x *rig) createRQ() []byte {
	rec := x.rec.IOVA + 128
	return dwords(0x118, 0, 0x908<<16, 0x20, 1<<28|x.ts<<4, 0x28, x.cqn, 0x50, 1<<28, 0x58, x.pd, 0x60, uint32(rec>>32),
		0x64, uint32(rec),
		0x70, 4<<16|testLogRQ, 0x110, uint32(x.rq.IOVA>>32), 0x114, uint32(x.rq.IOVA))
}

// data is a data segment: n bytes of memory by the rig's key.
func (x *rig) data(n int, at uint64) []byte {
	return dwords(16, 0, uint32(n), 4, x.mkey, 8, uint32(at>>32), 12, uint32(at))
}

// post posts n receive buffers of 2048 bytes.
func (x *rig) post(n int) {
	for i := range n {
		copy(x.rq.Bytes[16*i:], x.data(2048, x.fb.IOVA+uint64(2048*i)))
	}
	binary.BigEndian.PutUint32(x.rec.Bytes[128:], uint32(n))
}

func (x *rig) cqe() []byte {
	e := x.cq.Bytes[x.cqCI%(1<<testLogCQ)*64:][:64]
	if e[63]>>4 == 15 || uint32(e[63]&1) != x.cqCI>>testLogCQ&1 {
		return nil
	}
	x.cqCI++
	binary.BigEndian.PutUint32(x.rec.Bytes[64:], x.cqCI)
	return e
}

// wqe builds a send WQE at idx: the first inl bytes of the frame inline, the rest by pointer to fb.
func (x *rig) wqe(idx uint32, frame []byte, inl int) []byte {
	w := dwords(16+max(16, (14+inl+15)/16*16), 0, idx<<8|0x0a, 8, 8, 28, uint32(inl)<<16)
	copy(w[30:], frame[:inl])
	if rest := frame[inl:]; len(rest) > 0 {
		copy(x.fb.Bytes[32<<10:], rest)
		w = append(w, x.data(len(rest), x.fb.IOVA+32<<10)...)
	}
	binary.BigEndian.PutUint32(w[4:], x.sqn<<8|uint32(len(w)/16))
	w = append(w, make([]byte, -len(w)&63)...)
	at := int(idx) % (1 << testLogSQ) * 64
	for i := 0; i < len(w); i += 64 {
		copy(x.sq.Bytes[(at+i)%(64<<testLogSQ):], w[i:i+64])
	}
	binary.BigEndian.PutUint32(x.rec.Bytes[4:], idx+uint32(len(w)/64))
	return w
}

// completions returns the completions since the last call.
func (x *rig) completions() (all [][]byte) {
	for e := x.cqe(); e != nil; e = x.cqe() {
		all = append(all, append([]byte(nil), e...))
	}
	return all
}

// failed fails the test unless e is an error completion of a kind, cqeRequestErr or cqeResponseErr, with a syndrome.
func (x *rig) failed(what string, e []byte, kind, syndrome byte) {
	x.Helper()
	if e == nil || e[63]>>4 != kind || e[0x37] != syndrome {
		x.Errorf("%s: completion %x, expected kind %d with syndrome %x", what, e, kind, syndrome)
	}
}

func (x *rig) store(half int, b []byte) { x.storeAt(half*0x100, b) }

// storeAt stores into the BlueFlame registers as a driver does through a pointer.
func (x *rig) storeAt(off int, b []byte) {
	copy(x.m.host.Shadow(0)[int(x.uar)*4096+0x800+off:], b)
}

// push is store, and steps the device until it is idle.
func (x *rig) push(half int, b []byte) {
	x.store(half, b)
	x.Port.Settle(5000)
}

func (x *rig) down() {
	x.Helper()
	x.do(dwords(64, 0, 0x938<<16, 0x14, x.table), 16)
	x.do(dwords(64, 0, 0x934<<16, 0x14, x.table, 0x18, x.group), 16)
	x.do(dwords(64, 0, 0x931<<16, 0x14, x.table), 16)
	for _, o := range [][2]uint32{{0x902, x.tirn}, {0x90a, x.rqn}, {0x906, x.sqn}, {0x914, x.tisn},
		{0x202, x.mkey >> 8}, {0x401, x.cqn},
		{0x302, x.eqn}, {0x817, x.td}, {0x801, x.pd}, {0x803, x.uar}} {
		x.do(dwords(16, 0, o[0]<<16, 8, o[1]), 16)
	}
	x.do(dwords(16, 0, 0x103<<16), 16)
	n := len(x.given)
	out := x.do(dwords(16, 0, 0x108<<16, 4, 2, 12, uint32(n)), 16+8*n)
	if int(w32(out, 8)) != n {
		x.Errorf("%d pages came back of %d", w32(out, 8), n)
	}
	x.do(dwords(16, 0, 0x105<<16), 16)
}
