package mlx4

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"testing"
	"unsafe"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/nic/kit"
	"github.com/rebound-nic/rebound/nic/kit/mlxkit"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/nictest"
	"github.com/rebound-nic/rebound/proof/nictest/rig"
)

const (
	ring     = 512
	benchQPN = 0x000305
)

// bench is a queue's doorbells and BlueFlame in ordinary memory. The test plays the device.
type bench struct {
	flame    []byte // the BlueFlame register
	records  [3]uint32
	doorbell uint32
	arrived  uint32
}

// fill gives a queue rings, slots of stride bytes, and buffers for Send.
func (b *bench) fill(t testing.TB, q *Queue, stride, sends, inlineMax int, push bool) {
	aligned := nictest.Carve(t, ring*(cqeSize+4*cqeSize+4*txbb+rxWQE+stride)+sends*stride+512)
	flame := aligned(512)
	b.flame = unsafe.Slice((*byte)(flame), 512)
	*q = Queue{
		rxCQ: aligned(ring * cqeSize), txCQ: aligned(4 * ring * cqeSize),
		wq: mmio.SendRing{Base: aligned(4 * ring * txbb), Mask: 4*ring - 1}, rq: aligned(ring * rxWQE),
		buf: aligned(ring * stride), pend: kit.Words(ring), asked: kit.Words(8 * ring),
		rqRec: &b.records[0], rxCQRec: &b.records[1], txCQRec: &b.records[2],
		iova: 1 << 32, stride: uint32(stride), mask: ring - 1, shift: 9, txMask: 4*ring - 1, txShift: 11,
		txRoom: 4*ring - headroom,
		lkey:   0x1200, number: benchQPN << 8, askEvery: 32, bfHalf: 256, inlineMax: uint32(inlineMax), db: &b.doorbell,
	}
	if push {
		q.setFlame(flame)
	}
	q.out = mlxkit.NewBuffers(dma.Block{Bytes: unsafe.Slice((*byte)(aligned(sends*stride)), sends*stride)},
		make([]uint32, sends))
	emptyCQ(q.rxCQ, ring)
	emptyCQ(q.txCQ, 4*ring)
	q.reset()
}

// benchQueue is a queue of Ethernet frames.
type benchQueue struct {
	*Queue
	bench
	frame []byte
}

func newBenchQueue(t testing.TB, frame []byte, push bool) *benchQueue {
	b, stride := &benchQueue{Queue: new(Queue), frame: frame}, max(25*64, (slack+len(frame)+63)&^63|64)
	b.fill(t, b.Queue, stride, ring, 224, push)
	b.size = uint32(stride - slack)
	return b
}

// consistent fails the test if a queue's counters are impossible after it answered so many frames.
func (q *Queue) consistent(t *testing.T, answered int) {
	t.Helper()
	if q.fault.Load() != faultNone && q.faultText() == "" {
		t.Error("a queue that stopped does not say why")
	}
	if answered > 512 || q.txTail-q.txDone > q.txMask+1 || q.rxNext-q.freed > q.mask+1 {
		t.Errorf("%d replies; blocks %d to %d; slots %d to %d", answered, q.txDone, q.txTail, q.freed, q.rxNext)
	}
}

// done is the last word of a completion that is the device's n-th in a ring of 1<<shift.
func done(kind uint8, index, n, shift uint32) uint64 {
	return uint64(kind)<<cqeKind | uint64(n>>shift&1)<<cqeOwner | uint64(bits.ReverseBytes16(uint16(index)))
}

// arrive receives the next n frames as the device does: payload, then completion. It also completes all sends.
func (b *benchQueue) arrive(n int) {
	for range n {
		slot := b.arrived & b.mask
		copy(unsafe.Slice((*byte)(unsafe.Add(b.buf, slot*b.stride)), len(b.frame)), b.frame)
		*b.completion(b.rxCQ, slot) = cqe{byteCount: swap(uint32(len(b.frame))),
			last: done(1, b.arrived, b.arrived, b.shift)}
		b.arrived++
	}
	b.sendAll()
}

// sendAll completes all sends, as the device does.
func (q *Queue) sendAll() {
	for t := q.txNext; t != q.askTail; t++ {
		a := (*[2]uint32)(unsafe.Add(q.asked, t&q.txMask*8))
		*q.completion(q.txCQ, t&q.txMask) = cqe{last: done(kindSend|wqeSend, a[0], t, q.txShift)}
	}
}

// arriveOnly receives n frames, and completes no sends.
func (b *benchQueue) arriveOnly(n int) {
	next := b.txNext
	b.txNext = b.askTail
	b.arrive(n)
	b.txNext = next
}

// wqe returns blocks of the send queue.
func (q *Queue) wqe(first, blocks uint32) (w []byte) {
	for i := range blocks {
		w = append(w, unsafe.Slice((*byte)(unsafe.Pointer(q.block(first+i))), txbb)...)
	}
	return w
}

// Linux's driver lets the card write completions of 64 bytes, of which the second half is used: beside it, ours are the
// same.
func TestWideCompletions(t *testing.T) {
	b, r := newBenchQueue(t, rig.Echo(98), true), rig.NewResponder(t)
	aligned := nictest.Carve(t, 10*512*cqeSize+512)
	for cq, entries := range map[*unsafe.Pointer]uint32{&b.rxCQ: 512, &b.txCQ: 2048} {
		*cq = aligned(int(2 * entries * cqeSize))
		emptyCQ(*cq, 2*entries)
		*cq = unsafe.Add(*cq, cqeSize)
	}
	b.wide = 1
	for i := range 3000 { // several rounds of both rings
		b.arrive(1)
		if b.Poll(r) != 1 {
			t.Fatalf("no reply to frame %d", i)
		}
	}
	first := unsafe.Slice((*byte)(unsafe.Add(b.rxCQ, -cqeSize)), 2*512*cqeSize)
	for i := range 512 {
		if got := binary.BigEndian.Uint32(first[(2*i+1)*cqeSize+0x14:]); got != 98 {
			t.Fatalf("the completion in slot %d has %d bytes", i, got)
		}
	}
}

// A WQE has the device's format byte for byte, in the send queue and in BlueFlame.
func TestPushedWQE(t *testing.T) {
	f := rig.Echo(98)
	b, r := newBenchQueue(t, f, true), rig.NewResponder(t)
	b.arrive(1)
	if b.Poll(r) != 1 {
		t.Fatal("no reply")
	}
	reply := unsafe.Slice((*byte)(b.buf), 98)
	want := []byte{
		0, 0, 0, 0x0A, // owner 0, index 0, opcode: Send
		0, 3, 5, 8, // the QP, for BlueFlame; 8 units of 16 bytes: 16 + 4 + 44 + 4 + 54, rounded up
		0, 0, 0, 2, // flags: no ICRC; no completion requested
		0, 0, 0, 0,
		0x80, 0, 0, 44, // inline, up to the end of the line
	}
	want = append(append(want, reply[:44]...), 0x80, 0, 0, 54)
	want = append(want, reply[44:]...)
	check.Same(t, b.wqe(0, 2)[:len(want)], want, "WQE\n% x")
	check.Same(t, b.flame[:128], b.wqe(0, 2), "BlueFlame holds\n% x")
	check.Same(t, reply[:6], f[6:12], "the reply is to % x")
	check.Same(t, reply[42:], f[42:], "the reply's payload % x")
	check.Equal(t, b.doorbell, 0, "the doorbell was rung besides: %#x")
	b.arrive(1)
	b.Poll(r)
	second := b.wqe(2, 2)
	check.Same(t, b.flame[256:256+128], second, "the other half of the register holds\n% x")
	check.Same(t, second[:4], []byte{0, 0, 2, 0x0A}, "the second WQE begins with % x")
}

// Without BlueFlame the WQE contains neither the index nor the QP, and the doorbell is rung once per batch.
func TestDoorbellWQE(t *testing.T) {
	b, r := newBenchQueue(t, rig.Echo(60), false), rig.NewResponder(t)
	b.arrive(3)
	if b.Poll(r) != 3 {
		t.Fatal("no replies")
	}
	for n := range uint32(3) {
		w := b.wqe(2*n, 2)
		if want := []byte{0, 0, 0, 0x0A, 0, 0, 0, 6, 0, 0, 0, 2, 0, 0, 0, 0, 0x80, 0, 0, 44}; !bytes.Equal(w[:20],
			want) || w[64] != 0x80 || w[67] != 16 {
			t.Errorf("WQE %d: % x, want % x", n, w, want)
		}
	}
	check.Equal(t, swap(b.doorbell), benchQPN<<8, "doorbell %#x")
}

// decode reads a WQE back as the device would, whose inline segments begin at an offset. It returns its frame and how
// many blocks it has.
func decode(t *testing.T, w []byte, at int) (frame []byte, blocks uint32) {
	t.Helper()
	size := int(w[7]&0x3F) * 16
	if size > len(w) || size < 32 {
		t.Fatalf("WQE of %d bytes", size)
	}
	for at < size {
		n := binary.BigEndian.Uint32(w[at:])
		if n>>31 == 0 {
			t.Fatalf("segment at %d has byte count %#x", at, n)
		}
		n &^= 1 << 31
		if end := at + 4 + int(n); end > size || (end-1)/64 != at/64 {
			t.Fatalf("inline segment of %d bytes at %d crosses a line, or the end", n, at)
		}
		frame = append(frame, w[at+4:at+4+int(n)]...)
		if at += (4 + int(n) + 15) &^ 15; at%64 != 0 && at < size {
			t.Fatalf("segment at %d inside of a line", at)
		}
	}
	return frame, uint32(size+63) / 64
}

// WQEs of every length go round the ring several times, including wrapped ones. Each contains the reply and the owner
// bit of its lap, and BlueFlame has the same bytes as the ring.
func TestEveryLength(t *testing.T) {
	r := rig.NewResponder(t)
	for n := 42; n <= 224; n += needs.Cases(1, 3) {
		b := newBenchQueue(t, rig.Echo(n), true)
		for b.txTail < 3*(b.txMask+1)-uint32(n) {
			half, start, slot := b.bfOff, b.txTail, b.arrived
			b.arrive(1)
			if b.Poll(r) != 1 {
				t.Fatalf("%d bytes: no reply at block %d: %s", n, start, b.faultText())
			}
			w := b.wqe(start, b.txTail-start)
			frame, blocks := decode(t, w, 16)
			if want := unsafe.Slice((*byte)(unsafe.Add(b.buf, slot&b.mask*b.stride)), n); !bytes.Equal(frame, want) ||
				blocks != b.txTail-start {
				t.Fatalf("%d bytes: WQE of %d blocks at %d holds\n% x\nwant\n% x", n, blocks, start, frame, want)
			}
			if uint32(w[0]>>7) != start>>b.txShift&1 || binary.BigEndian.Uint16(w[1:]) != uint16(start) {
				t.Fatalf("%d bytes: control % x at block %d", n, w[:4], start)
			}
			if !bytes.Equal(w, b.flame[half:][:len(w)]) {
				t.Fatalf("%d bytes: WQE at block %d differs from what was pushed", n, start)
			}
		}
	}
}

// A frame that does not go inline is pointed to, by one block.
func TestPointerWQE(t *testing.T) {
	b, r := newBenchQueue(t, rig.Echo(224), true), rig.NewResponder(t)
	b.arrive(1)
	b.Poll(r)
	check.Equal(t, b.pushed.Load(), 1, "%d frames of the greatest length that goes inline went so")
	check.Equal(t, [2]uint32{inlineMax(1), inlineMax(4)}, [2]uint32{44, 224}, "one block and four take %d bytes")
	b = newBenchQueue(t, rig.Echo(225), true)
	b.arrive(1)
	if b.Poll(r) != 1 || b.txTail != 1 {
		t.Fatalf("%d blocks", b.txTail)
	}
	want := []byte{0, 0, 0, 0x0A, 0, 3, 5, 2, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 225, 0, 0, 0x12, 0, 0, 0, 0, 1, 0, 0, 0,
		0}
	check.Same(t, b.wqe(0, 1)[:32], want, "% x")
	check.Same(t, b.flame[:64], b.wqe(0, 1), "BlueFlame holds % x")
}

// Blocks that the device may read ahead are stamped with the owner bit that makes them invalid, in every lap: those
// that were freed, and before the first lap all. The headroom is never posted.
func TestStamps(t *testing.T) {
	check.Equal(t, headroom, 33, "%d blocks are not posted, of 64 bytes: 2 KiB, and the one that is executed")
	r := rig.NewResponder(t)
	b := newBenchQueue(t, rig.Echo(150), true)
	for range 3000 {
		b.arrive(1)
		if b.Poll(r) != 1 {
			t.Fatal(b.faultText())
		}
		if free := b.txMask + 1 - (b.txTail - b.txDone); free < headroom {
			t.Fatalf("%d blocks are left, want %d", free, headroom)
		}
		for n := b.txTail; n != b.txTail+headroom; n++ {
			if w := swap(uint32(b.block(n)[0])); w&stamp != stamp || w>>31 == n>>b.txShift&1 {
				t.Fatalf("block %d ahead of the tail begins with %#08x in lap %d", n, w, n>>b.txShift)
			}
		}
	}
	// A queue whose sends do not complete ends in time.
	b = newBenchQueue(t, rig.Echo(150), true)
	for range 40 {
		b.arriveOnly(32)
		b.Poll(r)
	}
	if free := b.txMask + 1 - (b.txTail - b.txDone); free < headroom || b.txFull.Load() == 0 {
		t.Errorf("%d blocks are left of a queue that was overrun, %d replies found no room", free, b.txFull.Load())
	}
}

// A slot whose frame is pointed to is not returned before the send completed.
func TestSlotWaitsForSend(t *testing.T) {
	b, r := newBenchQueue(t, rig.Echo(1000), true), rig.NewResponder(t)
	slotsGiven := func() uint32 { return swap(b.records[0]) - (b.mask + 1) }
	for range 100 {
		b.arriveOnly(1)
		b.Poll(r)
	}
	must.Equal(t, slotsGiven(), 0, "%d slots were given back before any send completed")
	b.arrive(0)
	b.Poll(r)
	if got := slotsGiven(); got < 64 || got > b.txAsked {
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

// On an invalid completion the queue stops and reports what it saw. A frame with a bad checksum is counted.
func TestBadCompletions(t *testing.T) {
	const syndrome = uint64(0x01)<<24 | 0x68<<16
	takes := []func(*benchQueue) bool{
		func(b *benchQueue) bool { return b.Poll(rig.NewResponder(t)) == 1 },
		func(b *benchQueue) bool { n, _ := b.recv(make([]byte, 64)); return n == 64 },
	}
	for name, c := range map[string]struct {
		last uint64
		want string
	}{
		"error":  {done(0x1E, 7, 0, 9) | syndrome, "syndrome 0x01 local length error, vendor syndrome 0x68, WQE 7, QP 0x000305"},
		"opcode": {done(0x05, 0, 0, 9), "opcode 0x05, of a send false, WQE 0, QP 0x000305"},
		"send":   {done(0x4A, 0, 0, 9), "opcode 0x0a, of a send true"},
	} {
		for _, taken := range takes {
			b := newBenchQueue(t, rig.Echo(64), true)
			*b.completion(b.rxCQ, 0) = cqe{last: c.last, qpn: swap(0xAB<<24 | benchQPN)}
			check.Equal(t, taken(b), false, name+": taken: %t")
			check.Equal(t, b.fault.Load(), faultReceive, name+": fault %d")
			check.Contains(t, b.faultText(), c.want)
			b.arrive(1)
			check.Equal(t, taken(b), false, name+": taken after it: %t")
		}
	}
	for _, taken := range takes {
		for kind := range uint8(5) { // up to 3 the opcodes are those of received frames
			b := newBenchQueue(t, rig.Echo(64), true)
			b.arrive(1)
			b.completion(b.rxCQ, 0).last = done(kind, 0, 0, b.shift)
			check.Equal(t, taken(b), kind < 4, fmt.Sprintf("opcode %d: taken: %%t", kind))
		}
		b := newBenchQueue(t, rig.Echo(64), true)
		b.arrive(1)
		b.completion(b.rxCQ, 0).flags = cqeBadFCS
		if taken(b) || b.badRx.Load() != 1 || b.fault.Load() != faultNone {
			t.Errorf("a frame with a bad checksum: %d counted, fault %d", b.badRx.Load(), b.fault.Load())
		}
	}
	b, r := newBenchQueue(t, rig.Echo(64), true), rig.NewResponder(t)
	for b.askTail == 0 {
		b.arrive(1)
		b.Poll(r)
	}
	for name, c := range map[string]struct {
		last uint64
		want string
	}{
		"error": {done(kindSend|0x1E, 0, 0, 11) | 4<<24, "send completion with error: syndrome 0x04 local protection error"},
		"index": {done(kindSend|wqeSend, 3, 0, 11), "send completion is not what is due"},
		"frame": {done(1, 0, 0, 11), "of a send false"},
	} {
		b.fault.Store(faultNone)
		b.completion(b.txCQ, 0).last = c.last
		b.reclaim()
		check.Equal(t, b.fault.Load(), faultSend, name+": fault %d")
		check.Contains(t, b.faultText(), c.want)
		check.Equal(t, b.unsent() > 0, name == "error", name+": frames are unsent: %t")
	}
	b = newBenchQueue(t, rig.Echo(64), true)
	b.completion(b.txCQ, 0).last = done(kindSend|wqeSend, 0, 0, b.txShift) // of a send that requested none
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
		check.Equal(t, b.records[1], swap(given), "completions given: %#x")
		b.arrive(1)
		b.Poll(r)
	}
	check.Equal(t, refillBatch, 8, "%d slots at a time")
}

// Every askEvery blocks a send requests a completion, and no more blocks are posted than there is room for.
func TestSendQueueFull(t *testing.T) {
	r := rig.NewResponder(t)
	for _, c := range []struct {
		size   int
		push   bool
		blocks uint32 // of each frame
	}{{98, true, 2}, {98, false, 2}, {1000, true, 1}} {
		b := newBenchQueue(t, rig.Echo(c.size), c.push)
		b.txRoom, b.askEvery = 16, 4
		asked := uint32(0)
		for n := range 16/c.blocks + 1 {
			fits := n < 16/c.blocks
			b.arriveOnly(1)
			check.Equal(t, b.Poll(r) == 1, fits, fmt.Sprintf("frame %d: answered: %%t", n))
			if end := (n + 1) * c.blocks; fits && end%4 == 0 {
				a := *(*[2]uint32)(unsafe.Add(b.asked, asked*8))
				check.Equal(t, a, [2]uint32{end - c.blocks, end}, "a completion is requested for blocks %d")
				asked++
			}
			check.Equal(t, b.askTail, asked, "%d completions are requested")
			check.Equal(t, b.txRung, b.txTail, "%d blocks are announced")
			if fits && c.blocks == 1 {
				low, high := mlxkit.NewData(uint32(c.size), 0x1200, 1<<32+uint64(n*b.stride)).Words()
				check.Equal(t, *(*[2]uint64)(unsafe.Pointer(&b.block(n)[2])), [2]uint64{low, high}, "data segment %#x")
			}
		}
		check.Equal(t, b.txFull.Load(), 1, "%d replies found no room")
		check.Equal(t, b.pushed.Load()+b.pointed.Load(), uint64(16/c.blocks), "%d were posted")
		check.Equal(t, b.txTail, 16, "%d blocks")
	}
	// More than half of the send queue that waits is reclaimed, too.
	for frames, done := range map[int]uint32{6: 0, 7: 1} {
		b := newBenchQueue(t, rig.Echo(1000), true)
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
		check.Equal(t, b.records[2], swap(6+done), "completions given back: %#x")
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
	check.Equal(t, b.records, [3]uint32{swap(b.mask + 1)}, "doorbell records %#x")
	check.Equal(t, b.rxNext|b.freed|b.posted|b.txTail|b.txDone|b.txRung|b.txAsked|b.askTail|b.txNext|b.bfOff|
		b.fault.Load(), 0, "numbers and fault: %#x")
	for n := range b.mask + 1 {
		must.Equal(t, *b.pending(n), 0, "a slot waits for block %d")
	}
	for n := range b.txMask + 1 {
		must.Equal(t, uint32(b.block(n)[0]), ^uint32(0), "a block begins with %#x")
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
		push        string // false: without BlueFlame; off: without BlueFlame and inlining
	}{{64, 1, "true"}, {64, 32, "true"}, {224, 1, "true"}, {225, 1, "true"}, {64, 1, "false"}, {64, 32, "false"},
		{64, 1, "off"}, {64, 32, "off"}} {
		b.Run(fmt.Sprintf("size=%d/batch=%d/push=%s", bm.size, bm.batch, bm.push), func(b *testing.B) {
			q, r := newBenchQueue(b, rig.Echo(bm.size), bm.push == "true"), rig.NewResponder(b)
			if bm.push == "off" {
				q.inlineMax = 0
			}
			loop := q.Queue // a load less before each pass
			nictest.Cycles(b, r, bm.batch, q.arrive, func() int { return loop.Poll(r) })
		})
	}
}

func kindsQueue(t testing.TB, frame []byte) (func(int), func(*fastpath.Responder) int) {
	q := newBenchQueue(t, frame, true)
	return q.arrive, q.Queue.Poll
}

func TestEmptyPing(t *testing.T) { nictest.EmptyPing(t, kindsQueue) }

func BenchmarkKinds(b *testing.B) { nictest.BenchmarkKinds(b, kindsQueue) }

func BenchmarkQueues(b *testing.B) { nictest.BenchmarkQueues(b, kindsQueue) }

func TestPollIsAHotLoop(t *testing.T) {
	const p = "github.com/rebound-nic/rebound/nic/drivers/mlx4"
	nictest.StackAccesses(t, p, "(*Queue).Poll", 48)
	nictest.StackAccesses(t, p, "(*Queue).post", 20)
	nictest.StackAccesses(t, p, "(*Queue).point", 10)
	nictest.HotLoop(t, p, "(*Queue).Poll", "mlx4.(*Queue).post", "mlx4.(*Queue).point", "mlx4.(*Queue).reclaim",
		"mlx4.(*Queue).fail",
		"mmio.Store32", "runtime.panicunsafeslicelen")
	nictest.HotLoop(t, p, "(*Queue).post", "mmio.PushInline")
	nictest.HotLoop(t, p, "(*Queue).point", "mlx4.(*Queue).hand")
	nictest.HotLoop(t, p, "(*Queue).hand", "mmio.Store32", "mmio.FenceWC", "mmio.CopyWC")
	nictest.HotLoop(t, p, "(*Queue).reclaim", "mmio.Store32", "mlx4.(*Queue).fail", "mlxkit.(*Buffers).Free")
}

// Send finds its buffers free after Serve has answered for any length of time: block numbers wrap.
func TestSendAfterManyReplies(t *testing.T) {
	b := newBenchQueue(t, rig.Echo(64), true)
	for range 3 {
		must.OK(t, b.send(rig.Echo(64)))
	}
	for step := range 7 { // as after hours of replies
		b.txTail = uint32(step+1) << 30
		b.txDone = b.txTail - 1
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

// Send copies a frame into one of its buffers, of which each is used if the WQE points there. It rings the doorbell if
// there is no BlueFlame.
func TestSend(t *testing.T) {
	for _, push := range []bool{true, false} {
		for size, blocks := range map[int]uint32{98: 2, 300: 1} {
			b, f := newBenchQueue(t, rig.Echo(300), push), rig.Echo(size)
			for n := range uint32(3 * ring) {
				f[0], f[size-1], b.doorbell = byte(n), byte(n), 0
				at, iova, _ := b.out.Next(b.txDone)
				must.OK(t, b.send(f))
				check.Same(t, unsafe.Slice((*byte)(at), size), f, "the buffer holds % x")
				w := b.wqe(n*blocks, blocks)
				if size == 98 {
					frame, _ := decode(t, w, 16)
					check.Same(t, frame, f, "the WQE holds % x")
				} else {
					low, high := mlxkit.NewData(300, 0x1200, iova).Words()
					check.Equal(t, *(*[2]uint64)(unsafe.Pointer(&w[16])), [2]uint64{low, high}, "data segment %#x")
				}
				rung := uint32(0)
				if !push {
					rung = swap(benchQPN << 8)
				}
				check.Equal(t, [3]uint32{b.doorbell, b.txTail, b.txRung}, [3]uint32{rung, (n + 1) * blocks,
					(n + 1) * blocks}, "doorbell, posted and announced blocks: %#x")
				b.sendAll()
			}
			check.Equal(t, b.pushed.Load(), uint64(3*ring)*uint64(blocks-1), "%d are pushed")
			check.Equal(t, b.pointed.Load(), uint64(3*ring)*uint64(2-blocks), "%d are pointed to")
			at, _, _ := b.out.Next(b.txDone)
			b.txRoom = 0
			check.Equal(t, errors.Is(b.send(f), nic.ErrFull), true, "sent without room: %t")
			same, _, _ := b.out.Next(b.txDone)
			check.Equal(t, same, at, "the next buffer is at %p")
			check.Equal(t, b.txTail, 3*ring*blocks, "%d blocks")
		}
	}
}

// Recv takes frames in all rounds of the ring, and what was sent is taken back meanwhile.
func TestRecv(t *testing.T) {
	b, buf := newBenchQueue(t, rig.Echo(64), true), make([]byte, 65)
	b.askEvery = 1
	for n := range uint32(3 * ring) {
		b.frame[40] = byte(n)
		must.OK(t, b.send(b.frame))
		b.arrive(1)
		size, at := b.recv(buf)
		must.Equal(t, size, 64, "received %d bytes")
		check.Equal(t, at != 0, true, "has a time: %t")
		check.Same(t, buf, append(bytes.Clone(b.frame), 0), "% x")
		check.Equal(t, [4]uint32{b.rxNext, b.txDone, b.freed, b.records[0]}, [4]uint32{n + 1, 2 * (n + 1), n + 1,
			swap(ring + (n+1)/8*8)}, "received, sent, free and given: %d")
	}
	must.OK(t, b.send(b.frame))
	b.arrive(0)
	size, at := b.recv(buf)
	check.Equal(t, [3]int64{int64(size), at, int64(b.txDone)}, [3]int64{-1, 0, 2 * (3*ring + 1)},
		"nothing received: %d")
}

// Frames that are shorter than the inline minimum are padded with zeros, as they would be on the wire.
func TestShortestSend(t *testing.T) {
	b := newBenchQueue(t, rig.Echo(64), true)
	at, _, _ := b.out.Next(0)
	copy(unsafe.Slice((*byte)(at), 300), bytes.Repeat([]byte{7}, 300)) // earlier contents of the buffer
	must.OK(t, b.send(bytes.Repeat([]byte{9}, 14)))
	f, _ := decode(t, b.wqe(0, 1), 16)
	check.Same(t, f, append(bytes.Repeat([]byte{9}, 14), 0, 0, 0), "% x")
}
