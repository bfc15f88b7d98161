package enasim

import (
	"maps"
	"slices"
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
	x.mem = x.BAR(2)
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
	return x.OK(opGetFeature, about(id, f))
}

func (x *rig) set(id uint8, f fields) []byte {
	x.Helper()
	return x.OK(opSetFeature, about(id, f))
}

// about returns f and the ID of a feature.
func about(id uint8, f fields) fields {
	g := fields{17: id}
	maps.Copy(g, f)
	return g
}

// bad expects that the device refuses a command, with a violation and the status that it returns.
func (x *rig) bad(op uint8, f fields, what string) (status uint8) {
	x.Helper()
	if status, _ = x.Do(op, f); status == statusOK {
		x.Errorf("%s: status %d", what, status)
	}
	x.ExpectViolation(what)
	return status
}

// spread hashes UDP over IPv4 and distributes it over receive queues 0 and 1. It returns the key.
func (x *rig) spread() (key []byte) {
	x.Helper()
	ctl := x.Alloc(4096)
	le.PutUint32(ctl.Bytes, keyWords)
	for i := range 40 {
		ctl.Bytes[8+i] = byte(i * 37)
	}
	key = slices.Clone(ctl.Bytes[8:48])
	slices.Reverse(key)
	x.set(featHash, fields{3: uint8(4), 4: uint32(48), 8: ctl.IOVA, 24: uint32(hashToeplitz)})
	x.hashUDP(ctl)
	clear(ctl.Bytes)
	for i := range 128 {
		le.PutUint16(ctl.Bytes[4*i:], uint16(i&1))
	}
	x.set(featTable, table(ctl))
	return key
}

func (x *rig) hashUDP(ctl dma.Block) {
	x.Helper()
	clear(ctl.Bytes)
	le.PutUint16(ctl.Bytes[64+4*protoUDP4:], fieldL3|fieldL4)
	x.set(featHashInput, fields{3: uint8(4), 4: uint32(256), 8: ctl.IOVA})
}

func table(ctl dma.Block) fields {
	return fields{3: uint8(4), 4: uint32(512), 8: ctl.IOVA, 24: uint16(tableLog), 28: uint32(noInline)}
}

// ring is a submission queue with its completion queue.
type ring struct {
	x      *rig
	sq, cq dma.Block
	idx    uint16
	bell   uint64
	llq    uint64
	size   int // of a completion
	tail   uint16
	head   uint16 // completions taken
	irq    uint64
}

func (x *rig) queue(dir uint8, push bool, vector int) *ring {
	x.Helper()
	q := &ring{x: x, size: 8}
	if dir == dirRX {
		q.size = 16
	}
	q.cq = x.Alloc(4096)
	f := fields{5: uint8(q.size / 4), 6: uint16(testDepth), 12: q.cq.IOVA}
	if vector > 0 {
		f[4], f[8] = uint8(1<<5), uint32(vector)
	}
	r := x.OK(opCreateCQ, f)
	q.irq = uint64(le.Uint32(r[12:]))
	f = fields{4: dir << 5, 6: uint8(placeHost), 7: uint8(1), 8: le.Uint16(r), 10: uint16(testDepth)}
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

// words writes a descriptor into a host ring, with the phase added in byte 3.
func (q *ring) words(w ...uint32) {
	b := q.sq.Bytes[16*int(q.tail%testDepth):]
	for i, v := range w {
		le.PutUint32(b[4*i:], v)
	}
	b[3] |= amazon.Phase(q.tail, testDepth)
	q.tail++
}

// pushEntry pushes an LLQ entry: descriptors, with the phase added, and the header after two of them.
func (q *ring) pushEntry(size int, header []byte, descs ...[4]uint32) {
	q.x.Helper()
	b := make([]byte, size)
	for i, d := range descs {
		d[0] |= uint32(amazon.Phase(q.tail, testDepth)) << 24
		for k, v := range d {
			le.PutUint32(b[16*i+4*k:], v)
		}
	}
	copy(b[32:], header)
	at := must.Get(q.x.mem.Pointer(q.llq+uint64(size)*uint64(q.tail%testDepth), uint64(size)))(q.x)
	mmio.CopyWC(at, pointer(b), size/64)
	q.tail++
}

func (q *ring) ring() { q.x.Regs.Write32(q.bell, uint32(q.tail)) }

// send sends n bytes of host memory as one frame.
func (q *ring) send(buf dma.Block, n, id uint32) {
	q.words(tx0|n, id<<22, uint32(buf.IOVA), uint32(buf.IOVA>>32))
	q.ring()
	q.x.Port.Settle(3)
}

func (q *ring) take() []byte {
	b := q.cq.Bytes[q.size*int(q.head%testDepth):][:q.size]
	if b[3]&1 != amazon.Phase(q.head, testDepth) {
		return nil
	}
	q.head++
	return slices.Clone(b)
}

func (q *ring) offer(buf dma.Block, size int, ids ...int) {
	for _, i := range ids {
		a := buf.IOVA + uint64(size)*uint64(i)
		q.words(uint32(size)|0x1c<<24, uint32(i), uint32(a), uint32(a>>32))
	}
	q.ring()
}

func pointer(b []byte) unsafe.Pointer { return unsafe.Pointer(&b[0]) }
