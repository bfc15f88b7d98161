package efasim

import (
	"maps"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/amazon"
	"github.com/rebound-nic/rebound/sim/amazon/amazontest"
	"github.com/rebound-nic/rebound/sim/simtest"
)

// rig is a raw driver: it writes registers and entries as the test requests, and checks the results.
type rig struct {
	amazontest.Driver
	m        *Model
	llq, bel *mmio.Window
	pd, uar  uint16
	others   []*rig // stepped with this one
}

const testDepth = amazontest.Depth

func fast(o Options) Options {
	o.Retransmit, o.Timeout, o.RNRDelay, o.Busy = 40*time.Microsecond, 2*time.Millisecond, 20*time.Microsecond, true
	return o
}

func newRig(t testing.TB, o Options) *rig {
	t.Helper()
	if o.MAC == [6]byte{} {
		o.MAC = [6]byte{2, 0, 0, 0, 0, 1}
	}
	x := &rig{m: New(fast(o))}
	r := simtest.New(t, "efa", x.m, 4<<20)
	x.Driver = amazontest.New(r, r.BAR(0))
	x.llq = x.BAR(2)
	x.bel = x.BAR(x.m.opt.doorbells)
	return x
}

// openRig is newRig with an open device.
func openRig(t testing.TB, o Options) *rig {
	t.Helper()
	x := newRig(t, o)
	x.open()
	return x
}

// loop returns an open device with a completion queue, a queue pair, and an address handle that leads back to it.
func loop(t testing.TB, o Options, typ uint8) (x *rig, c *cring, q *qpair, ah uint16) {
	t.Helper()
	x = openRig(t, o)
	c = x.completions(16, nil)
	return x, c, x.qpair(typ, 64, c).ready(), x.handle(x.m.gid)
}

func pair(t testing.TB, o, p Options, bad sim.Impairment) (x, y *rig) {
	t.Helper()
	p.MAC = [6]byte{2, 0, 0, 0, 0, 2}
	x, y = newRig(t, o), newRig(t, p)
	a, b := sim.Pair()
	bad2 := bad
	bad2.Seed++
	x.Port.Connect(sim.Impair(a, bad))
	y.Port.Connect(sim.Impair(b, bad2))
	x.open()
	y.open()
	x.others = []*rig{y}
	return x, y
}

func (x *rig) settle() {
	x.Helper()
	for range 20000 {
		busy := x.Port.Step()
		for _, y := range x.others {
			busy = y.Port.Step() || busy
		}
		if !busy {
			return
		}
	}
	x.Fatal("it does not settle")
}

func (x *rig) open() {
	x.Helper()
	x.Open()
	x.pd, x.uar = le.Uint16(x.OK(opAllocPD, nil)), le.Uint16(x.OK(opAllocUAR, nil))
}

type fields = amazontest.Fields

func (x *rig) bad(status, opcode uint8, f fields, text string) {
	x.Helper()
	if s, _ := x.Do(opcode, f); s != status {
		x.Errorf("opcode %d: status %d, want %d", opcode, s, status)
	}
	x.ExpectError(text)
}

func (x *rig) get(id uint8) []byte {
	x.Helper()
	return x.OK(opGetFeature, fields{17: id})
}

// region registers b with a list of its pages, which are more than fit into the command.
func (x *rig) region(b dma.Block) (lkey, rkey uint32) {
	x.Helper()
	n := len(b.Bytes) / 4096
	list := x.Alloc(8 * n)
	for i := range n {
		le.PutUint64(list.Bytes[8*i:], b.IOVA+4096*uint64(i))
	}
	r := x.OK(opRegMR, fields{3: uint8(cmdCtrlData), 4: x.pd, 8: uint32(8 * n), 12: list.IOVA, 40: uint64(len(b.Bytes)),
		48: uint8(12), 49: uint8(7),
		56: b.IOVA})
	return le.Uint32(r), le.Uint32(r[4:])
}

// page registers the first page of b with these rights.
func (x *rig) page(pd uint16, b dma.Block, rights uint8) (lkey, rkey uint32) {
	x.Helper()
	r := x.OK(opRegMR, fields{4: pd, 8: b.IOVA, 40: uint64(4096), 48: uint8(12), 49: rights, 56: b.IOVA})
	return le.Uint32(r), le.Uint32(r[4:])
}

func (x *rig) handle(gid [16]byte) uint16 {
	x.Helper()
	return le.Uint16(x.OK(opCreateAH, fields{4: gid, 20: x.pd}))
}

// cring is the test's view of a completion queue.
type cring struct {
	x     *rig
	mem   dma.Block
	idx   uint16
	bell  uint64
	size  int
	heads []uint32
	taken uint32
}

const cqDepth = 64

func (x *rig) completions(size int, f fields) *cring {
	x.Helper()
	subs := x.m.opt.Profile.SubCQs
	c := &cring{x: x, size: size, heads: make([]uint32, subs), mem: x.Alloc(size * cqDepth * int(subs))}
	g := fields{5: uint8(size / 4), 6: uint16(cqDepth), 12: c.mem.IOVA, 24: subs, 26: x.uar}
	maps.Copy(g, f)
	r := x.OK(opCreateCQ, g)
	c.idx, c.bell = le.Uint16(r), uint64(le.Uint32(r[4:]))
	return c
}

func (c *cring) take() []byte {
	for i := range c.heads {
		b := c.mem.Bytes[(i*cqDepth+int(c.heads[i]%cqDepth))*c.size:][:c.size]
		if b[3]&1 == amazon.Phase(c.heads[i], cqDepth) {
			c.heads[i]++
			c.taken++
			return slices.Clone(b)
		}
	}
	return nil
}

// qpair is the test's view of a queue pair.
type qpair struct {
	x              *rig
	num            uint16
	handle         uint32
	sqBell, rqBell uint64
	llq            uint64
	size           int
	sent, posted   uint16
	rq             dma.Block
	scq, rcq       *cring
	mem            dma.Block // memory of its work requests
	lkey, rkey     uint32
	typ            uint8
}

const qDepth = 16

func (x *rig) qpair(typ uint8, size int, cq *cring) *qpair {
	x.Helper()
	q := x.queues(typ, size, cq)
	q.mem = x.Alloc(1 << 16)
	r := x.OK(opCreateQP, q.create())
	q.handle, q.num, q.sqBell, q.rqBell, q.llq = le.Uint32(r), le.Uint16(r[4:]), uint64(le.Uint32(r[12:])),
		uint64(le.Uint32(r[16:])), uint64(le.Uint32(r[20:]))
	q.lkey, q.rkey = x.region(q.mem)
	return q
}

// queues returns what the creation of a queue pair needs.
func (x *rig) queues(typ uint8, size int, cq *cring) *qpair {
	x.Helper()
	return &qpair{x: x, typ: typ, size: size, scq: cq, rcq: cq, rq: x.Alloc(4096)}
}

func (q *qpair) create() fields {
	return fields{4: q.x.pd, 6: q.typ, 16: q.rq.IOVA, 24: uint32(q.scq.idx), 28: uint32(q.rcq.idx),
		40: uint32(q.size * qDepth), 44: uint32(qDepth),
		48: uint32(16 * qDepth), 52: uint32(qDepth), 56: q.x.uar}
}

const testKey = 0x1234567

func (q *qpair) ready() *qpair {
	q.x.Helper()
	q.x.OK(opModifyQP, fields{4: uint32(modState | modQKey), 8: q.handle, 12: uint32(stateInit), 20: uint32(testKey)})
	q.modify(stateRTR)
	q.x.OK(opModifyQP, fields{4: uint32(modState | modPSN), 8: q.handle, 12: uint32(stateRTS), 24: uint32(77)})
	return q
}

// modify changes the state alone.
func (q *qpair) modify(state int) {
	q.x.Helper()
	q.x.OK(opModifyQP, fields{4: uint32(modState), 8: q.handle, 12: uint32(state)})
}

// restart empties the rings.
func (q *qpair) restart() {
	q.x.Helper()
	q.modify(stateReset)
	q.sent, q.posted = 0, 0
	q.ready()
}

func (q *qpair) push(f fields) {
	q.x.Helper()
	b := make([]byte, q.size)
	b[2], b[3] = ctrl1Meta, ctrl2First|ctrl2Last|ctrl2Comp
	f.Put(b)
	b[3] ^= amazon.Phase(uint32(q.sent), qDepth) ^ 1
	q.write(b)
}

// write copies a WQE to the next place in LLQ memory.
func (q *qpair) write(b []byte) {
	q.x.Helper()
	at := must.Get(q.x.llq.Pointer(q.llq+uint64(q.size)*uint64(q.sent%qDepth), uint64(q.size)))(q.x)
	mmio.CopyWC(at, unsafe.Pointer(&b[0]), q.size/64)
	q.sent++
}

func (q *qpair) ring() { q.x.bel.Write32(q.sqBell, uint32(q.sent)) }

// post pushes a WQE, rings its doorbell, and steps the devices until they are idle.
func (q *qpair) post(f fields) {
	q.x.Helper()
	q.push(f)
	q.ring()
	q.x.settle()
}

func (q *qpair) inline(req, dest, ah uint16, text string) fields {
	f := fields{0: req, 2: uint8(ctrl1Meta | ctrl1Inline), 4: dest, 6: uint16(len(text)), 12: ah, 16: uint32(testKey)}
	for i := range len(text) {
		f[32+i] = text[i]
	}
	return f
}

// offer posts receives of n bytes each, one after another in the second half of the QP's memory, with these request
// IDs.
func (q *qpair) offer(n int, ids ...uint16) {
	q.x.Helper()
	for _, id := range ids {
		q.receive(q.mem.IOVA+uint64(q.slot(n, id)), id, uint16(n), q.lkey|rxFirst|rxLast)
	}
	q.x.bel.Write32(q.rqBell, uint32(q.posted))
}

// receive writes a receive descriptor.
func (q *qpair) receive(at uint64, id, n uint16, control uint32) {
	fields{0: at, 8: id, 10: n, 12: control}.Put(q.rq.Bytes[16*int(q.posted%qDepth):])
	q.posted++
}

func (q *qpair) slot(n int, id uint16) int { return 1<<15 + n*int(id%8) }

func (q *qpair) got(n int, id uint16, length int) string {
	return string(q.mem.Bytes[q.slot(n, id):][:length])
}

func (q *qpair) rdma(code uint8, req, dest, ah uint16, n uint32, raddr uint64, rkey uint32) fields {
	return fields{0: req, 2: uint8(ctrl1Meta | code), 4: dest, 6: uint16(1), 12: ah, 16: uint32(testKey),
		32: n, 36: rkey, 40: raddr, 48: n, 52: q.lkey, 56: q.mem.IOVA}
}
