package ena

import (
	"fmt"
	"math/bits"
	"testing"
	"unsafe"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/nictest"
)

// benchQueue is a queue with rings, buffers, doorbells and LLQ in ordinary memory. The test plays the device.
type benchQueue struct {
	*Queue
	frame          []byte
	said           uint32 // additional status bits of each frame
	rxDone, txDone uint32 // descriptors consumed
	rxDB, txDB     uint32
}

func newBenchQueue(t testing.TB, frame []byte, entry uint32) *benchQueue {
	const ring = 512
	size := max(1522, len(frame))
	stride := (room+size+63)&^63 + 64
	b := &benchQueue{frame: frame}
	mem := nictest.Carve(t, ring*(3*descSize+txCQE+stride+int(entry)+5)+4096)
	shift := uint32(bits.TrailingZeros(ring))
	b.Queue = &Queue{
		rxSQ: mem(ring * descSize), rxCQ: mem(ring * descSize), txCQ: mem(ring * txCQE), txSQ: mem(ring * descSize),
		buf: mem(ring * stride), stride: uint32(stride), size: uint32(size), iova: 1 << 32,
		mask: ring - 1, shift: shift, txMask: ring - 1, txShift: shift, headerMax: 128,
		posted: mem(ring), free: mem(2 * (ring + 1)), txHeld: mem(2 * ring),
	}
	b.Queue.rxDB, b.Queue.txDB = &b.rxDB, &b.txDB
	if entry > 0 {
		b.llq, b.entry, b.maxInline = mem(ring*int(entry)), entry, entry-room
	}
	b.reset()
	return b
}

func (b *benchQueue) arrive(n int) {
	for range n {
		d := (*rxDesc)(unsafe.Add(b.rxSQ, b.rxDone&b.mask*descSize))
		at := unsafe.Add(b.buf, d.addr-b.iova)
		copy(unsafe.Slice((*byte)(at), len(b.frame)), b.frame)
		*(*rxCompletion)(unsafe.Add(b.rxCQ, b.rxDone&b.mask*descSize)) = rxCompletion{
			status: (b.rxDone>>b.shift&1^1)<<rxPhase | rxFirst | rxLast | b.said, length: uint16(len(b.frame)),
			id: uint16(d.ctrl >> rxDescID),
		}
		b.rxDone++
	}
	for ; b.txDone != b.txTail; b.txDone++ {
		d := (*txDesc)(unsafe.Add(b.txSQ, b.txDone&b.txMask*descSize))
		if b.llq != nil {
			d = (*txDesc)(unsafe.Add(b.llq, b.txDone&b.txMask*b.entry+descSize)) // after the meta descriptor
		}
		*(*uint64)(unsafe.Add(b.txCQ, b.txDone&b.txMask*txCQE)) = d.ctrl>>txIDLo | uint64(b.txDone>>b.txShift&1^1)<<24
	}
}

func TestPollAllocatesNothing(t *testing.T) {
	for _, entry := range []uint32{0, 128, 256} {
		b := newBenchQueue(t, nictest.EchoRequest(64), entry)
		nictest.NoAllocations(t, nictest.NewResponder(t), b.arrive, b.Queue.Poll)
	}
}

func TestPasses(t *testing.T) {
	for _, entry := range []uint32{0, 128} {
		nictest.Passes(t, nictest.NewResponder(t), func() (func(int), func(*fastpath.Responder) int, func() uint32) {
			b := newBenchQueue(t, nictest.EchoRequest(64), entry)
			return b.arrive, b.Queue.Poll, func() uint32 { return b.txHead }
		})
	}
}

// A frame is in one completion, has at least an Ethernet header, and at most the bytes of a slot.
func TestFrameLengths(t *testing.T) {
	const whole = rxFirst | rxLast
	for _, c := range []struct {
		length uint16
		status uint32
		good   bool
	}{{0, whole, false}, {13, whole, false}, {14, whole, true}, {1522, whole, true}, {1523, whole, false},
		{64, rxFirst, false}, {64, rxLast, false}} {
		what := fmt.Sprintf("%d bytes, status %#x", c.length, c.status)
		nictest.Taken(t, what, int(c.length), c.good, func() nictest.Arrived {
			b := newBenchQueue(t, nictest.EchoRequest(64), 128)
			b.arrive(1)
			d := (*rxCompletion)(b.rxCQ)
			d.length, d.status = c.length, d.status&^whole|c.status
			return nictest.Arrived{Poll: b.Queue.Poll, Recv: func(buf []byte) int { n, _ := b.recv(buf); return n },
				Bad: &b.badRx, Next: &b.rxHead}
		})
	}
}

// Free buffers are posted sixteen at a time, and as many completions are reported to a device that needs that.
func TestSixteenAtATime(t *testing.T) {
	b, r := newBenchQueue(t, make([]byte, 13), 128), nictest.NewResponder(t)
	var rxHead, txHead uint32
	b.rxHeadDB, b.txHeadDB = &rxHead, &txHead
	for n := range uint32(33) {
		check.Equal(t, b.rxDB, 511+n/16*16, "descriptors written: %d")
		check.Equal(t, rxHead, n/16*16, "receive completions reported: %d")
		b.arrive(1)
		b.Poll(r)
	}
	b.frame = nictest.EchoRequest(64)
	for n := range uint32(33) {
		check.Equal(t, txHead, n/16*16, "transmit completions reported: %d")
		b.arrive(1)
		check.Equal(t, b.Poll(r), 1, "%d replies")
		b.arrive(0)
		b.Poll(r)
	}
}

// The doorbell is rung before more entries are pushed than the device takes, and otherwise once for all.
func TestBurst(t *testing.T) {
	for _, burst := range []uint32{0, 4} {
		b := newBenchQueue(t, nictest.EchoRequest(64), 128)
		b.burst = burst
		for n := range uint32(9) {
			check.Equal(t, b.transmit(n, 64), true, "pushed: %t")
			check.Equal(t, b.txDB, n*burst/4/4*4, "the doorbell is %d")
		}
	}
}

// Without a meta descriptor the first one is the frame's, and the second is empty.
func TestWithoutMeta(t *testing.T) {
	b, r := newBenchQueue(t, nictest.EchoRequest(96), 128), nictest.NewResponder(t)
	b.omitMeta = true
	b.arrive(1)
	check.Equal(t, b.Poll(r), 1, "%d replies")
	check.Equal(t, *(*[2]txDesc)(b.llq), [2]txDesc{{1<<txPhase | txFirst | txLast | txCompReq, 96 << txHeader}, {}},
		"descriptors %#x")
}

// The device's findings are counted: those about an IPv4 header, and those about a checksum that it checked.
func TestChecksumErrors(t *testing.T) {
	for _, c := range []struct {
		status        uint32
		l3, l4Checked uint64
	}{{rxL3IPv4 | rxL3Err, 1, 0}, {rxL3Err, 0, 0}, {rxL3IPv4, 0, 0}, {rxL4Checked | rxL4Err, 0, 1}, {rxL4Err, 0, 0},
		{rxL4Checked, 0, 0}, {rxL3IPv4 | rxL3Err | rxL4Checked | rxL4Err, 1, 1}} {
		b, r := newBenchQueue(t, nictest.EchoRequest(64), 128), nictest.NewResponder(t)
		b.said = c.status
		b.arrive(1)
		check.Equal(t, b.Poll(r), 1, "%d replies")
		check.Equal(t, b.l3Errors.Load(), c.l3, fmt.Sprintf("%#x: %%d wrong headers", c.status))
		check.Equal(t, b.l4Errors.Load(), c.l4Checked, fmt.Sprintf("%#x: %%d wrong checksums", c.status))
	}
}

// One entry of the transmit ring stays empty.
func TestTransmitRingFull(t *testing.T) {
	for _, entry := range []uint32{0, 128} {
		b, r := newBenchQueue(t, nictest.EchoRequest(64), entry), nictest.NewResponder(t)
		b.txMask, b.txShift = 15, 4
		for n := range 17 {
			b.txDone = b.txTail // no transmit completes
			b.arrive(1)
			check.Equal(t, b.Poll(r) == 1, n < 15, fmt.Sprintf("frame %d: answered: %%t", n))
		}
		check.Equal(t, b.txFull.Load(), 2, "%d replies found no room")
	}
}

// TestPushedEntry checks one reply in the device's memory: an empty meta descriptor, the descriptor, the frame.
func TestPushedEntry(t *testing.T) {
	b, r := newBenchQueue(t, nictest.EchoRequest(96), 128), nictest.NewResponder(t)
	b.arrive(1)
	must.Equal(t, b.Poll(r), 1, "answered %d")
	entry := unsafe.Slice((*byte)(b.llq), 128)
	if d, want := *(*txDesc)(unsafe.Pointer(&entry[0])), (txDesc{
		1<<txPhase | txFirst | txMeta | metaExtValid | metaExtended | metaStore, 0}); d != want {
		t.Errorf("meta descriptor %+v, want %+v", d, want)
	}
	d := *(*txDesc)(unsafe.Pointer(&entry[16]))
	id := uint64(0) // the first place in the ring
	if want := (txDesc{1<<txPhase | txLast | txCompReq | id<<txIDLo, 96 << txHeader}); d != want {
		t.Errorf("descriptor %+v, want %+v", d, want)
	}
	if f := entry[room:]; f[5] != 2 || f[11] != 1 || f[34] != 0 || f[29] != 1 || f[33] != 2 {
		t.Errorf("not a reply: %x", f)
	}
	if b.txDB != 1 || b.frees != 1 {
		t.Errorf("doorbell %d, %d buffers free: the frame was pushed whole", b.txDB, b.frees)
	}
	// One byte more than the entry holds: the start is pushed, a pointer covers the rest, and the buffer stays in use.
	b = newBenchQueue(t, nictest.EchoRequest(97), 128)
	b.arrive(1)
	b.Poll(r)
	d = *(*txDesc)(unsafe.Add(b.llq, descSize))
	slot := uint64(510)
	addr := b.iova + slot*uint64(b.stride) + room + 96
	if d.ctrl&0xFFFF != 1 || d.addr&(1<<48-1) != addr || d.addr>>txHeader != 96 || b.frees != 0 {
		t.Errorf("descriptor %+v, want 1 byte at %#x and a header of 96; %d buffers free", d, addr, b.frees)
	}
}

func TestPollIsAHotLoop(t *testing.T) {
	const pkg = "github.com/rebound-nic/rebound/nic/drivers/ena"
	nictest.StackAccesses(t, pkg, "(*Queue).Poll", 58)
	nictest.StackAccesses(t, pkg, "(*Queue).complete", 0)
	nictest.StackAccesses(t, pkg, "(*Queue).transmit", 24)
	nictest.HotLoop(t, pkg, "(*Queue).Poll", "ena.(*Queue).complete", "ena.(*Queue).recycle", "ena.(*Queue).transmit",
		"ena.(*Queue).ring",
		"ena.(*Queue).reclaim", "ena.(*Queue).countErrors", "runtime.panicunsafeslicelen")
	nictest.HotLoop(t, pkg, "(*Queue).complete")
	nictest.HotLoop(t, pkg, "(*Queue).recycle")
	nictest.HotLoop(t, pkg, "(*Queue).transmit", "ena.(*Queue).ring", "ena.(*Queue).recycle", "mmio.CopyWC")
	nictest.HotLoop(t, pkg, "(*Queue).ring", "mmio.FenceWC", "mmio.Store32")
	nictest.HotLoop(t, pkg, "(*Queue).reclaim", "ena.(*Queue).recycle", "ena.(*Queue).refill", "mmio.Store32")
	nictest.HotLoop(t, pkg, "(*Queue).refill", "mmio.Store32")
}

func TestDeviceChecksums(t *testing.T) {
	nictest.DeviceChecksums(t, func(t testing.TB, frame []byte, word nictest.Word) (func(int),
		func(*fastpath.Responder) int) {
		q := newBenchQueue(t, frame, 128)
		q.said = []uint32{0, rxL4Checked | rxL4Err, rxL4Checked}[word]
		return q.arrive, q.Queue.Poll
	})
}

func kindsQueue(t testing.TB, frame []byte) (func(int), func(*fastpath.Responder) int) {
	q := newBenchQueue(t, frame, 128)
	return q.arrive, q.Queue.Poll
}

func TestEmptyPing(t *testing.T) { nictest.EmptyPing(t, kindsQueue) }

func BenchmarkKinds(b *testing.B) { nictest.BenchmarkKinds(b, kindsQueue) }

func BenchmarkQueues(b *testing.B) { nictest.BenchmarkQueues(b, kindsQueue) }

func BenchmarkPoll(b *testing.B) {
	for _, bm := range []struct {
		name  string
		entry uint32
		batch int
	}{{"llq=128/batch=1", 128, 1}, {"llq=128/batch=32", 128, 32}, {"llq=256/batch=1", 256, 1},
		{"llq=off/batch=1", 0, 1}, {"llq=off/batch=32", 0, 32}} {
		b.Run(bm.name, func(b *testing.B) {
			q, r := newBenchQueue(b, nictest.EchoRequest(64), bm.entry), nictest.NewResponder(b)
			loop := q.Queue // a load less before each pass
			nictest.Cycles(b, r, bm.batch, q.arrive, func() int { return loop.Poll(r) })
		})
	}
}
