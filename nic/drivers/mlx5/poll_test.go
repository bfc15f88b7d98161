package mlx5

import (
	"bytes"
	"fmt"
	"math/bits"
	"testing"
	"unsafe"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/nic/kit"
	"github.com/rebound-nic/rebound/nic/kit/mlxkit"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/nictest"
	"github.com/rebound-nic/rebound/proof/nictest/rig"
)

// benchQueue is a queue with rings, buffers, doorbell records and BlueFlame in ordinary memory. The test acts as the
// device.
type benchQueue struct {
	*Queue
	frame    []byte
	said     uint16 // headers of each completion
	flame    []byte // the BlueFlame register
	records  [4]uint32
	doorbell uint64
	arrived  uint32
}

func newBenchQueue(t testing.TB, frame []byte, push bool) *benchQueue {
	const ring = 512
	stride := max(25*64, (room+len(frame)+63)&^63|64)
	b := &benchQueue{frame: frame}
	aligned := nictest.Carve(t, ring*(cqeSize+4*cqeSize+4*wqebb+rxWQE+2*stride)+maxBlocks*wqebb+512)
	flame := aligned(512)
	b.flame = unsafe.Slice((*byte)(flame), 512)
	b.Queue = &Queue{
		rxCQ: aligned(ring * cqeSize), txCQ: aligned(4 * ring * cqeSize),
		wq:  mmio.SendRing{Base: aligned(4 * ring * wqebb), Record: &b.records[1], Mask: 4*ring - 1},
		rq:  aligned(ring * rxWQE),
		buf: aligned(ring * stride), scratch: aligned(maxBlocks * wqebb), pend: kit.Words(ring),
		asked: kit.Words(8 * ring),
		rqRec: &b.records[0], rxCQRec: &b.records[2], txCQRec: &b.records[3],
		iova: 1 << 32, stride: uint32(stride), size: uint32(stride - room), mask: ring - 1, shift: 9,
		txMask: 4*ring - 1, txShift: 11, lkey: 0x1200, sqn: 0x77,
		askEvery: 32, bfHalf: 256, headers: 18, db: &b.doorbell,
	}
	if push {
		b.bf, b.maxInline = flame, 226
	}
	b.out = mlxkit.NewBuffers(dma.Block{Bytes: unsafe.Slice((*byte)(aligned(ring*stride)), ring*stride)},
		make([]uint32, ring))
	emptyCQ(b.rxCQ, ring)
	emptyCQ(b.txCQ, 4*ring)
	b.reset()
	return b
}

// arrive receives the next n frames as the device does: payload, then completion. It also completes all sends.
func (b *benchQueue) arrive(n int) {
	for range n {
		slot := b.arrived & b.mask
		copy(unsafe.Slice((*byte)(unsafe.Add(b.buf, slot*b.stride+room)), len(b.frame)), b.frame)
		*b.completion(b.rxCQ, slot) = cqe{byteCount: swap(uint32(len(b.frame))), headers: b.said,
			counterOwn: uint32(bits.ReverseBytes16(uint16(b.arrived))) | (2<<4|b.arrived>>b.shift&1)<<24}
		b.arrived++
	}
	for t := b.txNext; t != b.askTail; t++ {
		a := (*[2]uint32)(unsafe.Add(b.asked, t&b.txMask*8))
		*b.completion(b.txCQ, t&b.txMask) = cqe{counterOwn: uint32(bits.ReverseBytes16(uint16(a[0]))) |
			t>>b.txShift&1<<24}
	}
}

// A WQE equals the manual's layout byte for byte, both in the send queue and in BlueFlame.
func TestPushedWQE(t *testing.T) {
	f := rig.Echo(98)
	b, r := newBenchQueue(t, f, true), rig.NewResponder(t)
	b.arrive(1)
	if b.Poll(r) != 1 {
		t.Fatal("no reply")
	}
	w := unsafe.Slice((*byte)(b.wq.Base), 128)
	want := []byte{
		0, 0, 0, 0x0A, // opmod, wqe_index, opcode: Send
		0, 0, 0x77, 8, // qpn, ds: 128 bytes
		0, 0, 0, 0, // signature, fm_ce_se: no completion requested
		0, 0, 0, 0,
		0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
		0, 98, // inline_hdr_sz
		2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, // the reply, MACs exchanged
	}
	check.Same(t, w[:len(want)], want, "WQE\n% x")
	check.Same(t, b.flame[:128], w, "BlueFlame holds\n% x")
	check.Same(t, w[room+42:room+98], f[42:], "payload % x")
	check.Equal(t, b.records[1], swap(2), "doorbell record %#x, want block 2 in network order")
	b.arrive(1)
	b.Poll(r)
	check.Same(t, b.flame[256:256+128], unsafe.Slice((*byte)(b.wq.Base), 256)[128:],
		"the other half of the register holds\n% x")
}

// A frame that is not pushed completely has its headers in the WQE and a pointer to the rest, for every minimum inline
// mode.
func TestPointerWQE(t *testing.T) {
	for headers, blocks := range map[uint32]uint32{0: 1, 18: 1, 62: 2, 82: 2} {
		for _, push := range []bool{true, false} {
			f := rig.Echo(300)
			b, r := newBenchQueue(t, f, push), rig.NewResponder(t)
			b.headers, b.maxInline = headers, headers
			b.arrive(1)
			if b.Poll(r) != 1 || b.txTail != blocks {
				t.Fatalf("%d bytes of headers: %d blocks, want %d", headers, b.txTail, blocks)
			}
			if !push {
				check.Equal(t, b.doorbell, *(*uint64)(b.wq.Base), "the doorbell was rung with %#x")
			}
			reply := unsafe.Slice((*byte)(unsafe.Add(b.buf, room)), 300)
			w := unsafe.Slice((*byte)(b.wq.Base), 128)
			if got := uint32(w[28])<<8 | uint32(w[29]); got != headers ||
				!bytes.Equal(w[room:room+headers], reply[:headers]) {
				t.Errorf("%d bytes of headers: inline_hdr_sz %d, % x", headers, got, w[room:room+headers])
			}
			at := w[7]&0x3F*16 - 16
			check.Equal(t, at, map[uint32]byte{0: 32, 18: 48, 62: 96, 82: 112}[headers], "the data segment is at %d")
			seg := *(*mlxkit.DataSegment)(unsafe.Pointer(&w[at]))
			if want := mlxkit.NewData(300-headers, 0x1200, 1<<32+room+uint64(headers)); seg != want ||
				uint32(at) < room+headers {
				t.Errorf("%d bytes of headers: data segment %x at %d, want %x", headers, seg, at, want)
			}
		}
	}
	for size, pushed := range map[int]uint64{226: 1, 227: 0} { // the most that goes inline, and one byte more
		b, r := newBenchQueue(t, rig.Echo(size), true), rig.NewResponder(t)
		b.arrive(1)
		b.Poll(r)
		check.Equal(t, b.pushed.Load(), pushed, "%d frames went inline")
		check.Equal(t, b.pointed.Load(), 1-pushed, "%d frames are pointed to")
	}
}

// WQEs of every length, including those that wrap, are identical in the ring and in the push.
func TestWrappedWQE(t *testing.T) {
	r := rig.NewResponder(t)
	for _, n := range []int{60, 99, 170, 226} {
		b := newBenchQueue(t, rig.Echo(n), true)
		blocks := uint32(n+room+63) / 64
		for range 3 * (b.txMask + 1) / blocks {
			half, start := b.bfOff, b.txTail
			b.arrive(1)
			if b.Poll(r) != 1 {
				t.Fatalf("%d bytes: no reply at block %d: %s", n, start, b.faultText())
			}
			var got []byte
			for i := range blocks {
				got = append(got, unsafe.Slice((*byte)(unsafe.Add(b.wq.Base, (start+i)&b.txMask*wqebb)), wqebb)...)
			}
			if !bytes.Equal(got, b.flame[half:][:len(got)]) {
				t.Fatalf("%d bytes: WQE at block %d differs from what was pushed", n, start)
			}
		}
	}
}

// A slot whose WQE has a pointer is not returned before the send completed.
func TestSlotWaitsForSend(t *testing.T) {
	b, r := newBenchQueue(t, rig.Echo(1000), true), rig.NewResponder(t)
	slotsGiven := func() uint32 { return swap(b.records[0]) - (b.mask + 1) }
	for range 100 {
		next := b.txNext
		b.txNext = b.askTail // no send completes
		b.arrive(1)
		b.txNext = next
		b.Poll(r)
	}
	must.Equal(t, slotsGiven(), 0, "%d slots were given back before any send completed")
	b.arrive(0)
	b.Poll(r)
	if got := slotsGiven(); got < 90 || got > b.txAsked {
		t.Fatalf("%d slots were given back, completions stand for %d", got, b.txAsked)
	}
}

// What a slot waited for half of all numbers ago, it does not wait for again.
func TestSlotForgetsSends(t *testing.T) {
	for _, recv := range []bool{false, true} {
		b, r := newBenchQueue(t, rig.Echo(98), true), rig.NewResponder(t)
		*b.pending(0) = 1 << 31
		b.arrive(1)
		if recv {
			b.recv(make([]byte, 1024))
		} else {
			b.Poll(r)
			b.Poll(r)
		}
		check.Equal(t, b.freed, 1, "%d slots are free")
	}
}

// The queue stops at every invalid completion and reports what it saw.
func TestBadCompletions(t *testing.T) {
	for name, c := range map[string]struct {
		cqe  cqe
		want string
	}{
		"compressed": {cqe{counterOwn: (2<<4 | 3<<2) << 24}, "compressed"},
		"error":      {cqe{counterOwn: 14 << 4 << 24, syndrome: 1, vendor: 0x68}, "local length error, vendor syndrome 0x68"},
		"opcode":     {cqe{counterOwn: 5 << 4 << 24}, "opcode 0x5"},
		"counter":    {cqe{counterOwn: 2<<4<<24 | 0x0700}, "WQE 7"},
	} {
		b, r := newBenchQueue(t, rig.Echo(64), true), rig.NewResponder(t)
		*b.completion(b.rxCQ, 0) = c.cqe
		check.Equal(t, b.Poll(r), 0, name+": %d replies")
		check.Equal(t, b.fault.Load(), faultReceive, name+": fault %d")
		check.Contains(t, b.faultText(), c.want)
		b.arrive(1)
		check.Equal(t, b.Poll(r), 0, name+": %d replies after it")
	}
	b, r := newBenchQueue(t, rig.Echo(64), true), rig.NewResponder(t)
	for b.askTail == 0 {
		b.arrive(1)
		b.Poll(r)
	}
	*b.completion(b.txCQ, 0) = cqe{counterOwn: 13 << 4 << 24, syndrome: 4}
	b.reclaim()
	check.Equal(t, b.fault.Load(), faultSend, "fault %d")
	check.Contains(t, b.faultText(), "local protection error")
	b = newBenchQueue(t, rig.Echo(64), true)
	*b.completion(b.txCQ, 0) = cqe{} // of a send that requested none
	b.reclaim()
	check.Equal(t, b.fault.Load(), faultSend, "fault %d")
}

func TestPasses(t *testing.T) {
	for _, size := range []int{98, 1000} {
		for _, push := range []bool{true, false} {
			nictest.Passes(t, rig.NewResponder(t), func() (func(int), func(*fastpath.Responder) int, func() uint32) {
				b := newBenchQueue(t, rig.Echo(size), push)
				b.askEvery = 1
				return b.arrive, b.Queue.Poll, func() uint32 { return b.freed }
			})
		}
	}
}

// A frame has at least an Ethernet header, and at most the bytes of a slot. Slots are given back eight at a time.
func TestFrameLengths(t *testing.T) {
	r, size := rig.NewResponder(t), newBenchQueue(t, rig.Echo(64), true).size
	for length, good := range map[uint32]bool{0: false, 13: false, 14: true, size: true, size + 1: false,
		1 << 31: false} {
		nictest.Taken(t, fmt.Sprintf("%d bytes", length), int(length), good, func() nictest.Arrived {
			b := newBenchQueue(t, rig.Echo(64), true)
			b.arrive(1)
			b.completion(b.rxCQ, 0).byteCount = swap(length)
			return nictest.Arrived{Poll: b.Queue.Poll, Recv: func(buf []byte) int { n, _ := b.recv(buf); return n },
				Bad: &b.badRx, Next: &b.rxNext}
		})
	}
	b := newBenchQueue(t, make([]byte, 13), true)
	for n := range uint32(17) {
		given := n / refillBatch * refillBatch
		check.Equal(t, b.records[0], swap(b.mask+1+given), "slots given: %#x")
		check.Equal(t, b.records[2], swap(given), "completions given: %#x")
		b.arrive(1)
		b.Poll(r)
	}
	check.Equal(t, refillBatch, 8, "%d slots at a time")
}

// Every askEvery blocks a send requests a completion, and the send queue is filled to its last block.
func TestSendQueueFull(t *testing.T) {
	r := rig.NewResponder(t)
	for _, c := range []struct {
		size   int
		push   bool
		blocks uint32 // of each frame
		wc     bool   // the doorbell is in a write-combining window
	}{{98, true, 2, false}, {60, false, 1, false}, {60, false, 1, true}, {1000, true, 1, false}} {
		b := newBenchQueue(t, rig.Echo(c.size), c.push)
		b.txMask, b.txShift, b.wq.Mask, b.askEvery, b.wcDoorbell = 15, 4, 15, 4, c.wc
		asked := uint32(0)
		sq := unsafe.Slice((*byte)(b.wq.Base), 16*wqebb)
		copy(sq, bytes.Repeat([]byte{0xAA}, len(sq))) // of earlier rounds, as in the buffers
		slots := unsafe.Slice((*byte)(b.buf), 17*b.stride)
		copy(slots, bytes.Repeat([]byte{0xAA}, len(slots)))
		if c.push {
			b.doorWord = 1 // is not written
		}
		for n := range 16/c.blocks + 1 {
			fits := n < 16/c.blocks
			next := b.txNext
			b.txNext = b.askTail // no send completes
			b.arrive(1)
			b.txNext = next
			check.Equal(t, b.Poll(r) == 1, fits, fmt.Sprintf("frame %d: answered: %%t", n))
			if end := (n + 1) * c.blocks; fits && end%4 == 0 {
				a := *(*[2]uint32)(unsafe.Add(b.asked, asked*8))
				check.Equal(t, a, [2]uint32{end - c.blocks, end}, "a completion is requested for blocks %d")
				asked++
			}
			check.Equal(t, b.askTail, asked, "%d completions are requested")
			rung := uint64(0) // with the first words of the last WQE, or not at all beside BlueFlame
			if last := (b.txTail - c.blocks) & b.txMask; !c.push {
				rung = *(*uint64)(unsafe.Add(b.wq.Base, last*wqebb))
			}
			check.Equal(t, b.doorbell, rung, "the doorbell was rung with %#x")
			check.Equal(t, b.records[1], swap(b.txTail), "doorbell record %#x")
			check.Equal(t, b.txRung, b.txTail, "%d blocks are announced")
			if !fits {
				continue
			}
			w := unsafe.Add(b.wq.Base, n*c.blocks*wqebb)
			ce := uint64(0)
			if (n+1)*c.blocks%4 == 0 {
				ce = ceAlways
			}
			check.Equal(t, *(*[2]uint64)(unsafe.Add(w, 8)), [2]uint64{ce, 0}, "request and checksums: %#x")
			if c.blocks == 1 {
				check.Equal(t, *(*mlxkit.DataSegment)(unsafe.Add(w, 48)), mlxkit.NewData(uint32(c.size)-18, 0x1200,
					1<<32+uint64(n*b.stride)+room+18), "data segment %x")
			}
		}
		check.Equal(t, b.txFull.Load(), 1, "%d replies found no room")
		check.Equal(t, b.pushed.Load()+b.pointed.Load(), uint64(16/c.blocks), "%d were posted")
		check.Equal(t, b.txTail, 16, "%d blocks")
	}
	// More than half of the send queue that waits is reclaimed, too.
	for frames, done := range map[int]uint32{6: 0, 7: 1} {
		b := newBenchQueue(t, rig.Echo(60), false)
		b.txMask, b.txShift, b.wq.Mask, b.askEvery = 15, 4, 15, 1
		for range 2 {
			b.arrive(3)
			b.Poll(r)
			b.arrive(0)
			b.Poll(r)
		}
		b.arrive(1)
		b.Poll(r)
		b.arrive(frames)
		b.Poll(r)
		check.Equal(t, b.txDone, 6+done, fmt.Sprintf("%d more frames: %%d blocks are done", frames))
		check.Equal(t, b.records[3], swap(6+done), "completions given back: %#x")
	}
}

// A pass without frames takes back what was sent, also when no slot waits for it.
func TestIdlePassReclaims(t *testing.T) {
	b, r := newBenchQueue(t, rig.Echo(98), true), rig.NewResponder(t)
	b.askEvery = 1
	b.arrive(1)
	b.Poll(r)
	b.Poll(r)
	check.Equal(t, b.freed, 1, "%d slots are free")
	check.Equal(t, b.txDone, 0, "%d blocks are done")
	b.arrive(0)
	b.Poll(r)
	check.Equal(t, b.txDone, b.txTail, "%d blocks are done")
}

func TestReset(t *testing.T) {
	b, r := newBenchQueue(t, rig.Echo(1000), true), rig.NewResponder(t)
	for range 5 {
		b.arrive(20)
		b.Poll(r)
	}
	b.fail(b.completion(b.rxCQ, 0), faultReceive)
	b.reset()
	check.Equal(t, b.records, [4]uint32{swap(b.mask + 1)}, "doorbell records %#x")
	check.Equal(t, b.rxNext|b.freed|b.posted|b.txTail|b.txDone|b.txRung|b.txAsked|b.askTail|b.txNext|b.bfOff|
		b.fault.Load(), 0, "numbers and fault: %#x")
	for n := range b.mask + 1 {
		must.Equal(t, *b.pending(n), 0, "a slot waits for block %d")
	}
}

func TestPollAllocatesNothing(t *testing.T) {
	for _, push := range []bool{true, false} {
		b := newBenchQueue(t, rig.Echo(64), push)
		nictest.NoAllocations(t, rig.NewResponder(t), b.arrive, b.Queue.Poll)
	}
}

// BlueFlame is ordinary memory here, so the cost of stores on the bus is not included.
func BenchmarkPoll(b *testing.B) {
	for _, bm := range []struct {
		size, batch int
		push        bool
	}{{64, 1, true}, {64, 32, true}, {226, 1, true}, {227, 1, true}, {64, 1, false}, {64, 32, false}} {
		b.Run(fmt.Sprintf("size=%d/batch=%d/push=%v", bm.size, bm.batch, bm.push), func(b *testing.B) {
			q, r := newBenchQueue(b, rig.Echo(bm.size), bm.push), rig.NewResponder(b)
			loop := q.Queue // saves a load before each pass
			nictest.Cycles(b, r, bm.batch, q.arrive, func() int { return loop.Poll(r) })
		})
	}
}

func TestDeviceChecksums(t *testing.T) {
	nictest.DeviceChecksums(t, func(t testing.TB, frame []byte, word nictest.Word) (func(int),
		func(*fastpath.Responder) int) {
		q := newBenchQueue(t, frame, true)
		q.said = []uint16{0, 2<<12 | 1<<1, 2<<12 | 1<<2 | 1<<1}[word]
		return q.arrive, q.Queue.Poll
	})
}

func kindsQueue(t testing.TB, frame []byte) (func(int), func(*fastpath.Responder) int) {
	q := newBenchQueue(t, frame, true)
	return q.arrive, q.Queue.Poll
}

func TestEmptyPing(t *testing.T) { nictest.EmptyPing(t, kindsQueue) }

func BenchmarkKinds(b *testing.B) { nictest.BenchmarkKinds(b, kindsQueue) }

func BenchmarkQueues(b *testing.B) { nictest.BenchmarkQueues(b, kindsQueue) }

func TestPollIsAHotLoop(t *testing.T) {
	const p = "github.com/rebound-nic/rebound/nic/drivers/mlx5"
	nictest.StackAccesses(t, p, "(*Queue).Poll", 54)
	nictest.StackAccesses(t, p, "(*Queue).post", 18)
	nictest.StackAccesses(t, p, "(*Queue).point", 12)
	nictest.HotLoop(t, p, "(*Queue).Poll", "mlx5.(*Queue).post", "mlx5.(*Queue).point", "mlx5.(*Queue).ring",
		"mlx5.(*Queue).reclaim",
		"mlx5.(*Queue).fail", "runtime.panicunsafeslicelen")
	nictest.HotLoop(t, p, "(*Queue).post", "mmio.PushWQE")
	nictest.HotLoop(t, p, "(*Queue).point", "mlx5.(*Queue).post", "mlx5.(*Queue).pointOnce")
	nictest.HotLoop(t, p, "(*Queue).pointOnce")
	nictest.HotLoop(t, p, "(*Queue).ring", "mmio.RingDoorbell", "mmio.RingDoorbellWC")
	nictest.HotLoop(t, p, "(*Queue).reclaim", "mmio.Store32", "mlx5.(*Queue).fail", "mlxkit.(*Buffers).Free")
}

// Send finds free buffers after Serve has answered for any length of time: block numbers wrap.
func TestSendAfterManyReplies(t *testing.T) {
	b := newBenchQueue(t, rig.Echo(64), true)
	for range 3 {
		must.OK(t, b.send(rig.Echo(64)))
	}
	for step := range 7 { // as after hours of replies
		b.txTail += 1 << 30
		b.txRung, b.txAsked = b.txTail, b.txTail
		*(*[2]uint32)(unsafe.Add(b.asked, b.askTail&b.txMask*8)) = [2]uint32{b.txTail - 1, b.txTail}
		b.askTail++
		b.arrive(0)
		b.reclaim()
		if b.fault.Load() != faultNone || b.txDone != b.txTail {
			t.Fatalf("fault %d, %d of %d blocks done", b.fault.Load(), b.txDone, b.txTail)
		}
		if _, _, free := b.out.Next(b.txDone); !free {
			t.Fatalf("a buffer that was never used is not free %d blocks later", uint64(step+1)<<30)
		}
	}
	for range 512 {
		must.OK(t, b.send(rig.Echo(64)))
	}
}
