package enasim

import (
	"testing"
	"unsafe"

	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim/amazon"
	"github.com/rebound-nic/rebound/sim/amazon/amazontest"
	"github.com/rebound-nic/rebound/sim/simtest"
)

var testMAC = [6]byte{2, 0, 0, 0, 0, 1}

// rig is a raw driver: it writes registers and entries as the tests request, and checks the results.
type rig struct {
	amazontest.Driver
	m   *Model
	mem *mmio.Window
}

const testDepth = amazontest.Depth

func newRig(t testing.TB, o Options) *rig {
	t.Helper()
	o.MAC, o.AnyDriver = testMAC, true // TestParticularFirmware covers the firmware's requirements for drivers
	x := &rig{m: New(o)}
	r := simtest.New(t, "ena", x.m, 4<<20)
	x.Driver = amazontest.New(r, r.BAR(0))
	if !o.NoMemBAR {
		x.mem = x.BAR(2)
	}
	return x
}

// openRig is newRig with an open device.
func openRig(t testing.TB, o Options) *rig {
	t.Helper()
	x := newRig(t, o)
	x.Open()
	return x
}

type fields = amazontest.Fields

func (x *rig) get(id uint8, f fields) []byte {
	x.Helper()
	g := fields{17: id}
	for k, v := range f {
		g[k] = v
	}
	return x.OK(opGetFeature, g)
}

func (x *rig) set(id uint8, f fields) []byte {
	x.Helper()
	g := fields{17: id}
	for k, v := range f {
		g[k] = v
	}
	return x.OK(opSetFeature, g)
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
	r := x.OK(opCreateCQ, f)
	q.cqIdx, q.irq = le.Uint16(r), uint64(le.Uint32(r[12:]))
	f = fields{4: dir << 5, 6: uint8(placeHost), 7: uint8(1), 8: q.cqIdx, 10: uint16(testDepth)}
	if push {
		f[6] = uint8(placeDevice)
	} else {
		q.sq = x.Alloc(4096)
		f[12] = q.sq.IOVA
	}
	r = x.OK(opCreateSQ, f)
	q.idx, q.bell, q.llq = le.Uint16(r), uint64(le.Uint32(r[4:])), uint64(le.Uint32(r[8:]))
	return q
}

// words writes a descriptor into a host ring. The phase is added at bit 24 of the first word, or, of a receive descriptor,
// of byte 3 (which is the same).
func (q *ring) words(w ...uint32) {
	b := q.sq.Bytes[16*int(q.tail%q.entries):]
	for i, v := range w {
		if i == 0 {
			v |= uint32(amazon.Phase(q.tail, q.entries)) << 24
		}
		le.PutUint32(b[4*i:], v)
	}
	q.tail++
}

// pushEntry pushes an LLQ entry: descriptors, with the phase added, and the header after two of them.
func (q *ring) pushEntry(size int, header []byte, descs ...[4]uint32) {
	q.x.Helper()
	b := make([]byte, size)
	for i, d := range descs {
		d[0] |= uint32(amazon.Phase(q.tail, q.entries)) << 24
		for k, v := range d {
			le.PutUint32(b[16*i+4*k:], v)
		}
	}
	copy(b[32:], header)
	at := must.Get(q.x.mem.Pointer(q.llq+uint64(size)*uint64(q.tail%q.entries), uint64(size)))(q.x)
	mmio.CopyWC(at, pointer(b), size/64)
	q.tail++
}

func (q *ring) ring() { q.x.Regs.Write32(q.bell, uint32(q.tail)) }

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
