package enasim

import (
	"encoding/binary"
	"testing"
	"unsafe"

	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/sim/simtest"
)

var testMAC = [6]byte{2, 0, 0, 0, 0, 1}

// rig is a raw driver: it writes registers and entries as the tests say, and looks at what comes back.
type rig struct {
	*simtest.Rig
	m          *Model
	bar, mem   *mmio.Window
	resp       dma.Block
	aq, acq    dma.Block
	aenq       dma.Block
	cmds, acks uint16
	seq        uint16
	next       uint16 // command ID
}

const testDepth = 8

func newRig(t testing.TB, o Options) *rig {
	t.Helper()
	o.MAC, o.AnyDriver = testMAC, true // what firmware asks of a driver is TestParticularFirmware's
	x := &rig{m: New(o)}
	x.Rig = simtest.New(t, "ena", x.m, 4<<20)
	x.bar = x.BAR(0)
	if !o.NoMemBAR {
		x.mem = x.BAR(2)
	}
	x.resp = x.Alloc(4096)
	return x
}

func (x *rig) addr(lo reg, a uint64) {
	x.bar.Write32(uint64(lo), uint32(a))
	x.bar.Write32(uint64(lo)+4, uint32(a>>32))
}

func (x *rig) read(r reg) uint32 {
	x.Helper()
	x.seq++
	x.bar.Write32(uint64(regREADREQ), uint32(r)<<16|uint32(x.seq))
	if got := le.Uint16(x.resp.Bytes); got != x.seq || le.Uint16(x.resp.Bytes[2:]) != uint16(r) {
		x.Fatalf("response %x to read %d of %#x", x.resp.Bytes[:8], x.seq, r)
	}
	return le.Uint32(x.resp.Bytes[4:])
}

func (x *rig) reset(reason uint32) {
	x.Helper()
	x.addr(regRESPLO, x.resp.IOVA)
	x.bar.Write32(uint64(regDEVCTL), ctlReset|reason<<ctlReason)
	x.addr(regRESPLO, x.resp.IOVA)
	for n := 0; x.read(regDEVSTS)&stsResetProgress == 0; n++ {
		if n > 10 {
			x.Fatal("reset does not begin")
		}
	}
	x.bar.Write32(uint64(regDEVCTL), 0)
	for n := 0; x.read(regDEVSTS)&stsResetProgress != 0; n++ {
		if n > 10 {
			x.Fatal("reset does not end")
		}
	}
	x.cmds, x.acks = 0, 0
}

func (x *rig) open() {
	x.Helper()
	x.reset(0)
	if x.aq.Bytes == nil {
		x.aq, x.acq, x.aenq = x.Alloc(64*testDepth), x.Alloc(64*testDepth), x.Alloc(64*testDepth)
	}
	clear(x.acq.Bytes)
	clear(x.aenq.Bytes)
	x.addr(regAQBASELO, x.aq.IOVA)
	x.addr(regACQBASELO, x.acq.IOVA)
	x.bar.Write32(uint64(regAQCAPS), testDepth|64<<16)
	x.bar.Write32(uint64(regACQCAPS), testDepth|64<<16)
	x.addr(regAENQBASELO, x.aenq.IOVA)
	x.bar.Write32(uint64(regAENQCAPS), testDepth|64<<16)
}

// fields are bytes of a command by offset: uint8, uint16, uint32 or uint64.
type fields map[int]any

func (f fields) put(b []byte) {
	for at, v := range f {
		if _, err := binary.Encode(b[at:], le, v); err != nil {
			panic(err)
		}
	}
}

func (x *rig) submit(opcode uint8, f fields) (id uint16) {
	e := x.aq.Bytes[64*int(x.cmds%testDepth):][:64]
	clear(e)
	f.put(e)
	x.next++
	le.PutUint16(e, x.next)
	e[2] = opcode
	e[3] |= byte(phase(x.cmds, testDepth))
	x.cmds++
	x.bar.Write32(uint64(regAQDB), uint32(x.cmds))
	return x.next
}

func (x *rig) ack() []byte {
	e := x.acq.Bytes[64*int(x.acks%testDepth):][:64]
	if uint32(e[3]&1) != phase(x.acks, testDepth) {
		return nil
	}
	x.acks++
	return append([]byte(nil), e...)
}

func (x *rig) do(opcode uint8, f fields) (uint8, []byte) {
	x.Helper()
	id := x.submit(opcode, f)
	x.Port.Step()
	e := x.ack()
	if e == nil || le.Uint16(e) != id || le.Uint16(e[6:]) != x.cmds {
		x.Fatalf("completion %x of command %d", e, id)
	}
	return e[2], e[8:]
}

// ok is do for a command that must succeed.
func (x *rig) ok(opcode uint8, f fields) []byte {
	x.Helper()
	s, r := x.do(opcode, f)
	if s != 0 {
		x.Fatalf("opcode %d: status %d, violations %q", opcode, s, x.Port.Violations())
	}
	return r
}

func (x *rig) get(id uint8, f fields) []byte {
	x.Helper()
	g := fields{17: id}
	for k, v := range f {
		g[k] = v
	}
	return x.ok(opGetFeature, g)
}

func (x *rig) set(id uint8, f fields) []byte {
	x.Helper()
	g := fields{17: id}
	for k, v := range f {
		g[k] = v
	}
	return x.ok(opSetFeature, g)
}

// ring is a submission queue with its completion queue.
type ring struct {
	x       *rig
	sq, cq  dma.Block
	idx     uint16
	cqIdx   uint16
	bell    uint64
	llq     uint64
	push    bool
	size    int // of a completion
	tail    uint16
	head    uint16 // completions taken
	irq     uint64
	entries uint16
}

func (x *rig) queue(dir uint8, push bool, vector int) *ring {
	x.Helper()
	q := &ring{x: x, push: push, size: 8, entries: testDepth}
	if dir == dirRX {
		q.size = 16
	}
	q.cq = x.Alloc(4096)
	f := fields{5: uint8(q.size / 4), 6: uint16(testDepth), 12: q.cq.IOVA}
	if vector > 0 {
		f[4], f[8] = uint8(1<<5), uint32(vector)
	}
	r := x.ok(opCreateCQ, f)
	q.cqIdx, q.irq = le.Uint16(r), uint64(le.Uint32(r[12:]))
	f = fields{4: dir << 5, 6: uint8(placeHost), 7: uint8(1), 8: q.cqIdx, 10: uint16(testDepth)}
	if push {
		f[6] = uint8(placeDevice)
	} else {
		q.sq = x.Alloc(4096)
		f[12] = q.sq.IOVA
	}
	r = x.ok(opCreateSQ, f)
	q.idx, q.bell, q.llq = le.Uint16(r), uint64(le.Uint32(r[4:])), uint64(le.Uint32(r[8:]))
	return q
}

// words writes a descriptor into a host ring. The phase is added at bit 24 of the first word, or, of a receive descriptor,
// of byte 3 (which is the same).
func (q *ring) words(w ...uint32) {
	b := q.sq.Bytes[16*int(q.tail%q.entries):]
	for i, v := range w {
		if i == 0 {
			v |= phase(q.tail, q.entries) << 24
		}
		le.PutUint32(b[4*i:], v)
	}
	q.tail++
}

// pushEntry pushes an LLQ entry: descriptors, whose phase is added, and the header behind two of them.
func (q *ring) pushEntry(size int, header []byte, descs ...[4]uint32) {
	q.x.Helper()
	b := make([]byte, size)
	for i, d := range descs {
		d[0] |= phase(q.tail, q.entries) << 24
		for k, v := range d {
			le.PutUint32(b[16*i+4*k:], v)
		}
	}
	copy(b[32:], header)
	at, err := q.x.mem.Pointer(q.llq+uint64(size)*uint64(q.tail%q.entries), uint64(size))
	q.x.Must(err)
	mmio.CopyWC(at, pointer(b), size/64)
	q.tail++
}

func (q *ring) ring() { q.x.bar.Write32(q.bell, uint32(q.tail)) }

func (q *ring) take() []byte {
	b := q.cq.Bytes[q.size*int(q.head%q.entries):][:q.size]
	p := uint32(b[3] & 1)
	if q.head/q.entries%2 == 1 {
		p ^= 1
	}
	if p == 0 {
		return nil
	}
	q.head++
	return append([]byte(nil), b...)
}

func (q *ring) offer(buf dma.Block, size int, ids ...int) {
	for _, i := range ids {
		a := buf.IOVA + uint64(size)*uint64(i)
		q.words(uint32(size)|0x1c<<24, uint32(i), uint32(a), uint32(a>>32))
	}
	q.ring()
}

func pointer(b []byte) unsafe.Pointer { return unsafe.Pointer(&b[0]) }

func unsafeBytes(p unsafe.Pointer, n int) []byte { return unsafe.Slice((*byte)(p), n) }
