package ena

import (
	"bytes"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
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
	t              testing.TB
	frame          []byte
	said           uint32 // additional status bits of each frame
	rxDone, txDone uint32 // descriptors consumed
	rxDB, txDB     uint32
}

func newBenchQueue(t testing.TB, frame []byte, entry uint32) *benchQueue {
	const ring, most = 512, 4096
	size := max(1522, len(frame))
	stride := (room+size+63)&^63 + 64
	b := &benchQueue{t: t, frame: frame}
	mem := nictest.Carve(t, most*(3*descSize+txCQE+stride+int(entry)+5)+4096)
	b.Queue = &Queue{
		rxSQ: mem(most * descSize), rxCQ: mem(most * descSize), txCQ: mem(most * txCQE), txSQ: mem(most * descSize),
		buf: mem(most * stride), stride: uint32(stride), size: uint32(size), iova: 1 << 32, headerMax: 128,
		posted: mem(most), free: mem(2 * most), txHeld: mem(2 * most),
	}
	b.Queue.rxDB, b.Queue.txDB = &b.rxDB, &b.txDB
	if entry > 0 {
		b.llq, b.entry, b.maxInline = mem(most*int(entry)), entry, entry-room
	}
	b.rings(ring, ring)
	b.reset()
	return b
}

// rings sets the depths, up to 4096.
func (b *benchQueue) rings(rx, tx uint32) {
	b.mask, b.shift = rx-1, uint32(bits.TrailingZeros32(rx))
	b.txMask, b.txShift = tx-1, uint32(bits.TrailingZeros32(tx))
}

func (b *benchQueue) arrive(n int) {
	for range n {
		d := (*rxDesc)(unsafe.Add(b.rxSQ, b.rxDone&b.mask*descSize))
		id := d.ctrl >> 32
		if want := (rxDesc{uint64(b.size) | 7<<26 | uint64(b.rxDone>>b.shift&1^1)<<24 | id<<32,
			b.iova + id*uint64(b.stride) + 32}); *d != want {
			b.t.Fatalf("receive descriptor %#x of %#x is %#x, want %#x", b.rxDone, b.rxTail, *d, want)
		}
		at := unsafe.Add(b.buf, d.addr-b.iova)
		copy(unsafe.Slice((*byte)(at), len(b.frame)), b.frame)
		*(*rxCompletion)(unsafe.Add(b.rxCQ, b.rxDone&b.mask*descSize)) = rxCompletion{
			status: (b.rxDone>>b.shift&1^1)<<rxPhase | rxFirst | rxLast | b.said, length: uint16(len(b.frame)),
			id: uint16(id),
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

// owned fails the test unless each buffer is posted, free or of one transmit.
func (b *benchQueue) owned(t testing.TB) {
	t.Helper()
	places := make([]int, 2*(b.mask+1))
	for slot := range b.mask + 1 {
		if *b.isPosted(slot) {
			places[slot]++
		}
	}
	for i := range b.frees {
		places[*(*uint16)(unsafe.Add(b.free, i*2))]++
	}
	for id := range b.txMask + 1 {
		if h := *b.held(id); h != idFree && h != idOnly {
			places[h-1]++
		}
	}
	for slot, n := range places {
		if (n == 1) != (uint32(slot) < b.mask) || n > 1 {
			t.Fatalf("buffer %d of %d is in %d places", slot, b.mask, n)
		}
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
			b.rings(1024, 1024) // of longer rings a pass takes no more
			b.reset()
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

func TestDepartures(t *testing.T) {
	for _, entry := range []uint32{0, 128} {
		for _, full := range []bool{false, true} {
			nictest.Departs(t, func(frame []byte) (func(*fastpath.Responder) int, func() []byte) {
				b := newBenchQueue(t, frame, entry)
				if full {
					*b.held(0) = idOnly
				}
				b.arrive(1)
				return b.Queue.Poll, func() []byte {
					if entry > 0 && !full {
						return unsafe.Slice((*byte)(unsafe.Add(b.llq, room)), entry-room)
					}
					return unsafe.Slice((*byte)(unsafe.Add(b.buf, 510*b.stride+room)), b.size)
				}
			})
		}
	}
}

// A pass that answers something reclaims when 32 buffers are free, too.
func TestFreeBuffersWait(t *testing.T) {
	b, r := newBenchQueue(t, nil, 128), nictest.NewResponder(t)
	for _, posted := range []uint32{511, 543} {
		b.frame = nil
		b.arrive(15) // are refused
		b.frame = nictest.EchoRequest(64)
		b.arrive(1)
		check.Equal(t, b.Poll(r), 1, "%d replies")
		check.Equal(t, b.rxDB, posted, "descriptors written: %d")
	}
}

// Free buffers are posted sixteen at a time, and as many completions are reported to a device that needs that.
func TestSixteenAtATime(t *testing.T) {
	b, r := newBenchQueue(t, make([]byte, 13), 128), nictest.NewResponder(t)
	var rxHead, txHead uint32
	b.rxHeadDB, b.txHeadDB = &rxHead, &txHead
	for _, n := range []*uint32{&b.rxHead, &b.rxTail, &b.txHead, &b.txTail, &b.txRung, &b.rxDone, &b.txDone} {
		*n += 1 << 16 // doorbells take 16 bits
	}
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

// The device's findings are counted: those about an IPv4 header, and those about a checksum that it checked.
func TestChecksumErrors(t *testing.T) {
	const ipv4, wrong3, wrong4, checked4 = 8, 1 << 13, 1 << 14, 1 << 16
	for _, c := range []struct {
		status        uint32
		l3, l4Checked uint64
	}{{ipv4 | wrong3, 1, 0}, {wrong3, 0, 0}, {ipv4, 0, 0}, {checked4 | wrong4, 0, 1}, {wrong4, 0, 0},
		{checked4, 0, 0}, {ipv4 | wrong3 | checked4, 1, 0}, {ipv4 | checked4 | wrong4, 0, 1},
		{ipv4 | wrong3 | checked4 | wrong4, 1, 1}} {
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
		b.rings(512, 16)
		for n := range 17 {
			b.txDone = b.txTail // no transmit completes
			b.arrive(1)
			check.Equal(t, b.Poll(r) == 1, n < 15, fmt.Sprintf("frame %d: answered: %%t", n))
			b.owned(t)
		}
		check.Equal(t, b.txFull.Load(), 2, "%d replies found no room")
	}
}

// A transmit's descriptors, what is pushed, and who has the buffer, in a later round of a ring with long request IDs.
func TestTransmit(t *testing.T) {
	const (
		slot, number = 5, 0x2FC05 // request 0xC05 of 4096, with phase 0
		ctrl         = 1<<26 | 1<<27 | 1<<28 | 3<<16 | 5<<54
		phase        = 1 << 24
		meta         = 1<<23 | 1<<26 | 1<<14 | 1<<20 | 1<<21
		frame        = uint64(1<<32 + slot*1664 + 32) // where it is
		again        = slot + 1                       // the buffer is free after the transmit
	)
	for _, c := range []struct {
		entry, size, number uint32
		omitMeta            bool
		want                [2]txDesc
		held                uint16
	}{
		{0, 60, number, false, [2]txDesc{{ctrl | 60, frame | 60<<56}, {}}, again},
		{0, 129, number, false, [2]txDesc{{ctrl | 129, frame | 128<<56}, {}}, again},
		{0, 1522, number + 4096, false, [2]txDesc{{ctrl | phase | 1522, frame | 128<<56}, {}}, again},
		{128, 60, number, false, [2]txDesc{{meta, 0}, {ctrl &^ (1 << 26), 60 << 56}}, idOnly},
		{128, 96, number + 4096, false, [2]txDesc{{meta | phase, 0}, {ctrl&^(1<<26) | phase, 96 << 56}}, idOnly},
		{128, 97, number, false, [2]txDesc{{meta, 0}, {ctrl&^(1<<26) | 1, (frame + 96) | 96<<56}}, again},
		{256, 224, number, false, [2]txDesc{{meta, 0}, {ctrl &^ (1 << 26), 224 << 56}}, idOnly},
		{256, 1522, number, false, [2]txDesc{{meta, 0}, {ctrl&^(1<<26) | 1298, (frame + 224) | 224<<56}}, again},
		{128, 96, number, true, [2]txDesc{{ctrl, 96 << 56}, {}}, idOnly},
		{128, 97, number + 4096, true, [2]txDesc{{ctrl | phase | 1, (frame + 96) | 96<<56}, {}}, again},
	} {
		what := fmt.Sprintf("%+v: ", c)
		b := newBenchQueue(t, nil, c.entry)
		b.omitMeta = c.omitMeta
		b.rings(512, 4096)
		b.txHead, b.txTail, b.txRung = c.number, c.number, c.number
		ring, size := b.txSQ, uint32(descSize)
		if c.entry > 0 {
			ring, size = b.llq, c.entry
		}
		near := unsafe.Slice((*byte)(unsafe.Add(ring, 0xC04*size)), 3*size)
		want := bytes.Repeat([]byte{0xAA}, len(near))
		copy(near, want)
		sent := unsafe.Slice((*byte)(unsafe.Add(b.buf, slot*b.stride+room)), b.size)
		rand.NewChaCha8([32]byte{}).Read(sent)
		copy(want[size:2*size], unsafe.Slice((*byte)(unsafe.Pointer(&c.want)), room))
		if c.entry > 0 {
			copy(want[size+room:2*size], sent)
		}
		check.Equal(t, b.transmit(slot, c.size), true, what+"posted: %t")
		check.Same(t, near, want, what+"the entry, and those beside it:\n%x")
		check.Equal(t, *b.held(0xC05), c.held, what+"the request has %#x")
		free := c.held == idOnly
		check.Equal(t, b.frees == 1 && *(*uint16)(b.free) == slot, free, what+"the buffer is free: %t")
		check.Equal(t, b.txTail, c.number+1, what+"transmits: %#x")
		check.Equal(t, b.txDB, 0, what+"doorbell before ring: %#x")
		b.ring()
		check.Equal(t, b.txDB, (c.number+1)&0xFFFF, what+"doorbell %#x")
		check.Equal(t, b.txRung, c.number+1, what+"reported transmits: %#x")
	}
}

// A completion of a request that the device does not have stops the queue, and nothing of it is taken back.
func TestCompletions(t *testing.T) {
	r := nictest.NewResponder(t)
	type state struct{ errors, fault, head uint32 }
	for word, want := range map[uint64]state{
		0: {}, 1 << 24: {0, 0, 1}, ^uint64(0x1FFFFFF) | 1<<24: {0, 0, 1}, // what is above the phase means nothing here
		1<<24 | 1<<16: {1, 0, 1}, 1<<24 | 0x80<<16: {1, 0, 1}, 1<<24 | 1: {0, resetInvalidTxID + 1, 0},
		1<<24 | 16: {0, resetInvalidTxID + 1, 0}, 1<<24 | 0xFFFF: {0, resetInvalidTxID + 1, 0},
	} {
		b := newBenchQueue(t, nil, 0)
		b.rings(512, 16)
		*b.isPosted(5) = false
		b.transmit(5, 60)
		*(*uint64)(b.txCQ) = word
		b.reclaim()
		check.Equal(t, state{uint32(b.txErrors.Load()), b.fault.Load(), b.txHead}, want, fmt.Sprintf("%#x: %%d", word))
		b.owned(t)
	}
	for _, c := range []struct {
		id     uint16
		offset uint8
		posted bool
	}{{5, 0, false}, {5, 1, true}, {511, 0, true}, {512, 0, true}, {0xFFFF, 0, true}} {
		for _, recv := range []bool{false, true} {
			b := newBenchQueue(t, nictest.EchoRequest(64), 0)
			b.arrive(2)
			d := (*rxCompletion)(b.rxCQ)
			d.id, d.offset = c.id, c.offset
			*b.isPosted(5) = c.posted
			for range 2 {
				if n, _ := b.recv(make([]byte, 64)); recv {
					check.Equal(t, n, -1, fmt.Sprintf("%+v: received %%d bytes", c))
				} else {
					check.Equal(t, b.Poll(r), 0, fmt.Sprintf("%+v: %%d replies", c))
				}
			}
			check.Equal(t, state{b.frees, b.fault.Load(), b.rxHead}, state{0, resetInvalidRxID + 1, 0},
				fmt.Sprintf("%+v: %%d", c))
			check.Equal(t, b.send(make([]byte, 60)), false, "sent: %t")
		}
	}
}

// Send copies a frame into a buffer that is the request's own, unless the ring is full or the request is not done.
func TestSend(t *testing.T) {
	for _, c := range []struct{ entry, size uint32 }{{0, 60}, {0, 1522}, {128, 60}, {128, 97}} {
		b := newBenchQueue(t, nil, c.entry)
		b.rings(512, 16)
		f := make([]byte, c.size)
		rand.NewChaCha8([32]byte{}).Read(f)
		buffer := func(id uint32) []byte {
			return unsafe.Slice((*byte)(unsafe.Add(b.buf, (512+id)*b.stride+32)), c.size)
		}
		const frames = 45
		for n := range uint32(frames) {
			f[0] = byte(n)
			must.Equal(t, b.send(f), true, fmt.Sprintf("frame %d is sent: %%t", n))
			check.Same(t, buffer(n%16), f, "% x")
			d := (*txDesc)(unsafe.Add(b.txSQ, n%16*16))
			if c.entry > 0 {
				d = (*txDesc)(unsafe.Add(b.llq, n%16*c.entry+16))
			}
			if at := d.addr & (1<<48 - 1); d.ctrl&0xFFFF != 0 {
				at += d.ctrl&0xFFFF - uint64(c.size)
				check.Equal(t, at, b.iova+uint64((512+n%16)*b.stride+32), "it is at %#x")
			}
			check.Equal(t, [3]uint32{uint32(*b.held(n % 16)), b.frees, b.txDB}, [3]uint32{idOnly, 0, n + 1},
				"request, free buffers and doorbell: %#x")
			if n%15 == 14 {
				check.Equal(t, b.send(f), false, "sent from a full ring: %t")
				if n != frames-1 {
					b.arrive(0)
				}
			}
		}
		for _, id := range []uint64{frames - 1, frames - 14} { // are done before the oldest, whose turn the second is
			*(*uint64)(unsafe.Add(b.txCQ, b.txHead%16*8)) = uint64(b.txHead/16%2^1)<<24 | id%16
			check.Equal(t, b.send(make([]byte, c.size)), id == frames-1, fmt.Sprintf("%d is done, sent: %%t", id))
		}
		check.Equal(t, buffer((frames - 15) % 16)[0], frames-15, "the buffer of the oldest begins with %d")
		b.owned(t)
	}
}

// Recv takes frames in all rounds of the ring, and what was sent is taken back meanwhile.
func TestRecv(t *testing.T) {
	b, buf := newBenchQueue(t, nictest.EchoRequest(64), 0), make([]byte, 65)
	for n := range uint32(3 * 512) {
		b.frame[40] = byte(n)
		b.send(b.frame)
		b.arrive(1)
		size, at := b.recv(buf)
		must.Equal(t, size, 64, "received %d bytes")
		check.Equal(t, at != 0, true, "has a time: %t")
		check.Same(t, buf, append(slices.Clone(b.frame), 0), "% x")
		check.Equal(t, [3]uint32{b.rxHead, b.txHead, b.frees}, [3]uint32{n + 1, n + 1, (n + 1) % 16},
			"received, sent and free: %d")
	}
	b.owned(t)
	b.send(b.frame)
	b.arrive(0)
	size, at := b.recv(buf)
	check.Equal(t, [3]int64{int64(size), at, int64(b.txHead)}, [3]int64{-1, 0, 3*512 + 1}, "nothing received: %d")
}

// A reset clears the rings, no byte behind them, and posts all buffers but one. It chooses how many a pass takes.
func TestReset(t *testing.T) {
	for depth, lot := range map[uint32]uint32{64: 4, 256: 16, 512: 32} {
		b := newBenchQueue(t, nil, 0)
		b.rings(depth, 2*depth)
		areas := map[unsafe.Pointer]uint32{b.rxCQ: 16 * depth, b.txCQ: 8 * 2 * depth, b.posted: depth,
			b.txHeld: 2 * 2 * depth}
		const behind = 16
		for at, n := range areas {
			copy(unsafe.Slice((*byte)(at), n+behind), bytes.Repeat([]byte{1}, int(n)+behind))
		}
		for i, n := range []*uint32{&b.rxHead, &b.rxTail, &b.txHead, &b.txTail, &b.txRung, &b.frees, &b.lot} {
			*n = 77 * uint32(i+1)
		}
		b.fault.Store(1)
		b.reset()
		for at, n := range areas {
			want := make([]byte, n)
			if at == b.posted {
				want = append(bytes.Repeat([]byte{1}, int(n)-1), 0)
			}
			check.Same(t, unsafe.Slice((*byte)(at), n+behind), append(want, bytes.Repeat([]byte{1}, behind)...), "% x")
		}
		check.Equal(t, [8]uint32{b.rxHead, b.rxTail, b.txHead, b.txTail, b.txRung, b.frees, b.lot, b.fault.Load()},
			[8]uint32{0, depth - 1, 0, 0, 0, 0, lot, 0}, fmt.Sprintf("%d entries: numbers, lot and fault: %%d", depth))
		check.Equal(t, b.rxDB, depth-1, "descriptors written: %d")
		for range depth - 1 { // looks at each descriptor
			b.arrive(1)
		}
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
		q.said = []uint32{1<<16 | 1<<15, 1<<16 | 1<<14, 1 << 16}[word] // of a fragment it says nothing
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
