package virtio

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"unsafe"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/nictest"
)

func TestStart(t *testing.T) {
	both(t, func(t *testing.T, b *testQueue, _ *fastpath.Responder) {
		seen := map[uint32]bool{}
		for n := range uint32(testRing) {
			id, addr, length, write, ok := b.next(&b.rx, n)
			if !ok || seen[id] || addr != testIOVA+uint64(id)*testStride || length != testLen || !write {
				t.Fatalf("receive entry %d: buffer %d at %#x, %d bytes, written by the device %v, there %v", n, id,
					addr, length, write, ok)
			}
			seen[id] = true
		}
		if _, _, _, _, ok := b.next(&b.rx, testRing); ok {
			t.Error("the receive ring has more than its size")
		}
		if _, _, _, _, ok := b.next(&b.tx, 0); ok {
			t.Error("something is to be transmitted")
		}
		for _, r := range []*ring{&b.rx, &b.tx} {
			if r.packed && *word(r.driver, 0)>>16 != 1 || !r.packed && *half(r.driver, 0) != 1 {
				t.Errorf("the device is asked for interrupts: %#x", *word(r.driver, 0))
			}
		}
	})
}

// TestNoBufferIsSplit: with jumbo frames, whose buffers are in several huge pages, neither the device nor Send gets a
// buffer that starts in one page and ends in the next, over many rounds of both rings.
func TestNoBufferIsSplit(t *testing.T) {
	both(t, func(t *testing.T, short *testQueue, r *fastpath.Responder) {
		const stride, length = 9152, 9026
		b := newTestQueueOf(t, short.rx.packed, stride, length)
		split := func(base unsafe.Pointer, off uint64) bool {
			first := uint64(uintptr(base)) + off
			return first>>21 != (first+length-1)>>21
		}
		want := map[uint64]bool{}
		skipped := 0
		for id := range uint64(testRing) {
			if split(b.buf, id*stride) {
				skipped++
			} else {
				want[id] = true
			}
		}
		if skipped == 0 {
			t.Fatal("the test has no buffer that is split")
		}
		for n := range uint32(len(want)) {
			id, addr, _, _, ok := b.next(&b.rx, n)
			if !ok || !want[uint64(id)] || addr != testIOVA+uint64(id)*stride {
				t.Fatalf("receive entry %d: buffer %d at %#x, there %v", n, id, addr, ok)
			}
			delete(want, uint64(id))
		}
		for i := range 3 * testRing {
			b.receive(b.frame)
			must.Equal(t, b.Poll(r), 1, "%d replies to a frame")
			id, addr, _, ok := b.transmit()
			if !ok || split(b.buf, addr-testIOVA) {
				t.Fatalf("reply %d: buffer %d at %#x, there %v", i, id, addr, ok)
			}
			b.finish(id)
			b.Poll(r)
		}
		for i := range 3 * testRing {
			must.OK(t, b.send(b.frame))
			id, addr, _, ok := b.transmit()
			if !ok || addr < b.sendIOVA || split(b.sendBuf, addr-b.sendIOVA) {
				t.Fatalf("Send %d: buffer %d at %#x, there %v", i, id, addr, ok)
			}
			b.finish(id)
		}
		whole, fit := 0, 0
		for id := range uint64(testRing) {
			if !split(b.sendBuf, id*stride) {
				whole++
			}
		}
		for b.send(b.frame) == nil {
			fit++
		}
		check.Equal(t, fit, whole, "%d frames are on their way")
	})
}

// A buffer that ends with a huge page is in one piece.
func TestCrosses(t *testing.T) {
	b := newTestQueueOf(t, false, 9152, 9026)
	end := hugePage - uintptr(b.buf)%hugePage
	for off, want := range map[int]bool{0: false, -1: true, -9025: true, -9026: false, -9027: false} {
		base := unsafe.Add(b.buf, int(end)+off-3*9152)
		check.Equal(t, b.crosses(base, 3), want, fmt.Sprintf("from %d on: crosses: %%t", off))
	}
}

// TestReply: a reply is in the buffer of its request, with a cleared header, and the buffer returns to the receive ring
// after it was sent, over many rounds of both rings, with used entries in any order.
func TestReply(t *testing.T) {
	both(t, func(t *testing.T, b *testQueue, r *fastpath.Responder) {
		frames := uint64(0)
		for round := range 40 {
			n := 1 + round*7%31
			frames += uint64(n)
			ids := map[uint32]bool{}
			for range n {
				ids[b.receive(b.frame)] = true
			}
			must.Equal(t, b.Poll(r), n, "%d replies")
			var sent []uint32
			for range n {
				id, addr, frame, ok := b.transmit()
				if !ok || !ids[id] || addr != testIOVA+uint64(id)*testStride || len(frame) != headerLen+len(b.frame) {
					t.Fatalf("round %d: buffer %d at %#x with %d bytes, there %v", round, id, addr, len(frame), ok)
				}
				delete(ids, id)
				if !bytes.Equal(frame[:headerLen], make([]byte, headerLen)) ||
					!bytes.Equal(frame[headerLen:][:6], b.frame[6:12]) {
					t.Fatalf("round %d: header and frame %x", round, frame)
				}
				sent = append(sent, id)
			}
			for i := range sent { // the last first
				b.finish(sent[len(sent)-1-i])
			}
			b.Poll(r)
		}
		b.receive(make([]byte, 14)) // is not answered
		b.Poll(r)
		check.Equal(t, [4]uint64{b.rxFrames.Load(), b.rxBytes.Load(), b.txFrames.Load(), b.txBytes.Load()},
			[4]uint64{frames + 1, frames*64 + 14, frames, frames * 64}, "frames and bytes received and sent: %d")
		b.gather()
		if n := len(b.taken); n+int(b.rx.next-b.posted) < testRing-refillBatch {
			t.Errorf("the device has %d buffers of %d after all", n, testRing)
		}
	})
}

// TestNotify: each pass that posts rings the doorbell once, with the queue's number, unless the device requests no
// notification. With NOTIFICATION_DATA it includes the next entry (§2.9).
func TestNotify(t *testing.T) {
	both(t, func(t *testing.T, b *testQueue, r *fastpath.Responder) {
		pass := func(n int) uint32 {
			b.bells[1] = noBell
			b.arrive(n)
			must.Equal(t, b.Poll(r), n, "%d replies")
			return b.bells[1]
		}
		check.Equal(t, pass(3), noBell&^0xffff|1, "the notification is %#x, want 16 bits of 1")
		quiet := func(on uint16) {
			if b.tx.packed {
				*half(b.tx.device, 2) = on
			} else {
				*half(b.tx.device, 0) = on
			}
		}
		quiet(1)
		check.Equal(t, pass(3), noBell, "notified by %#x a device that wants none")
		quiet(0)
		b.tx.data = true
		for b.tx.next < 2*testRing-1 {
			n := min(5, int(2*testRing-1-b.tx.next))
			got, want := pass(n), 1|b.tx.next<<16
			if b.tx.packed {
				want = 1 | b.tx.next%testRing<<16 | uint32(wrap(b.tx.next))<<31
			}
			must.Equal(t, got, want, "the notification is %#x")
		}
	})
}

func TestPasses(t *testing.T) {
	for _, packed := range []bool{false, true} {
		nictest.Passes(t, nictest.NewResponder(t), func() (func(int), func(*fastpath.Responder) int, func() uint32) {
			b := newTestQueue(t, packed)
			return b.arrive, b.Queue.Poll, func() uint32 { return b.tx.seen }
		})
	}
}

// Buffers are given back 32 at a time, by Recv in the call after.
func TestThirtyTwoAtATime(t *testing.T) {
	both(t, func(t *testing.T, fresh *testQueue, r *fastpath.Responder) {
		for _, take := range []func(*testQueue){func(b *testQueue) { b.Poll(r) }, func(b *testQueue) {
			b.recv(make([]byte, 64))
			b.recv(nil)
		}} {
			b := newTestQueue(t, fresh.rx.packed)
			b.frame = make([]byte, 64) // is not answered
			for n := range uint32(65) {
				check.Equal(t, b.posted, testRing+n/32*32, "buffers before %d are given back")
				check.Equal(t, b.bells[0] != noBell, n > 0 && n%32 == 0, "notified: %t")
				b.bells[0] = noBell
				b.arrive(1)
				take(b)
			}
		}
	})
}

func TestRefillNotifies(t *testing.T) {
	both(t, func(t *testing.T, b *testQueue, r *fastpath.Responder) {
		for range 8 {
			b.arrive(testRing)
			for got := 0; got < testRing; {
				got += b.Poll(r)
			}
			if b.gather(); len(b.taken) > testRing/2 {
				t.Fatalf("the device has %d buffers while their replies are under way", len(b.taken))
			}
			b.bells[0] = noBell
			b.arrive(0)
			b.Poll(r)
			if b.gather(); b.bells[0] == noBell || len(b.taken) != testRing {
				t.Fatalf("the device has %d buffers of %d, the notification is %#x", len(b.taken), testRing, b.bells[0])
			}
		}
	})
}

// TestLies: invalid used entries are counted with a reason, and cause no access outside of the buffers.
func TestLies(t *testing.T) {
	both(t, func(t *testing.T, fresh *testQueue, r *fastpath.Responder) {
		// after three frames, each entry is the next, unless it is said otherwise
		rx := func(id, length uint32) func(*testQueue) {
			return func(b *testQueue) { b.use(&b.rx, 3, id, length) }
		}
		for _, c := range []struct {
			name    string
			lie     func(b *testQueue)
			wrong   uint32 // as distrusted has it
			culprit uint32
			bad     uint64 // as badLength has it
		}{
			{"receive: no such buffer", rx(testRing, 100), wrongRxID, testRing, 0},
			{"receive: far beyond", rx(0xffff, 100), wrongRxID, 0xffff, 0},
			{"receive: the same buffer twice", func(b *testQueue) {
				// a request, because other frames are returned at once
				n := uint32(headerLen + copy(b.buffer(7)[headerLen:], b.frame))
				b.use(&b.rx, 3, 7, n)
				b.use(&b.rx, 4, 7, n)
			}, wrongRxID, 7, 0},
			{"receive: a buffer that is being sent from", func(b *testQueue) {
				id := b.receive(b.frame)
				b.Poll(r)
				b.use(&b.rx, 4, id, 100)
			}, wrongRxID, 3, 0},
			{"receive: longer than the buffer", rx(7, testLen+1), 0, 0, 1},
			{"receive: 4 GiB", rx(7, ^uint32(0)), 0, 0, 1},
			{"receive: shorter than its header", rx(7, 11), 0, 0, 1},
			{"receive: shorter than Ethernet's", rx(7, 25), 0, 0, 1},
			{"receive: the shortest", rx(7, 26), 0, 0, 0},
			{"receive: the longest", rx(7, testLen), 0, 0, 0},
			{"receive: nothing", rx(7, 0), 0, 0, 1},
			{"receive: the index jumps", func(b *testQueue) { b.jump(&b.rx, 3+testRing+1) }, wrongRxIndex,
				3 + testRing + 1, 0},
			{"receive: the index goes back", func(b *testQueue) { b.jump(&b.rx, 2) }, wrongRxIndex, 1<<16 + 2, 0},
			{"transmit: nothing was", func(b *testQueue) { b.tx.next++; b.finish(3) }, wrongTxID, 3, 0},
			{"transmit: no such buffer", func(b *testQueue) { b.tx.next++; b.finish(testRing) }, wrongTxID, testRing, 0},
			{"transmit: the index jumps", func(b *testQueue) { b.tx.next++; b.jump(&b.tx, 5) }, wrongTxIndex, 5, 0},
		} {
			if fresh.rx.packed && (c.wrong == wrongRxIndex || c.wrong == wrongTxIndex) {
				continue // there is no index
			}
			for _, recv := range []bool{false, true} {
				b := newTestQueue(t, fresh.rx.packed)
				b.arrive(3)
				b.Poll(r)
				b.arrive(0)
				b.Poll(r)
				c.lie(b)
				if recv && strings.HasSuffix(c.name, "twice") {
					continue // Recv returns the buffer at once
				}
				for n := range 3 {
					if !recv {
						b.Poll(r)
					} else if size, at := b.recv(make([]byte, testLen)); n == 2 {
						check.Equal(t, [2]int64{int64(size), at}, [2]int64{-1, 0}, c.name+": received %d")
					}
				}
				check.Equal(t, [3]uint32{b.distrusted, b.culprit, uint32(b.badLength.Load())},
					[3]uint32{c.wrong, c.culprit, uint32(c.bad)}, c.name+": distrusted, culprit, bad lengths: %d")
				b.owned(t)
				if c.wrong != 0 {
					t.Log(c.name, "-", fmt.Sprintf(wrongs[b.distrusted], b.culprit))
				}
				b.restart()
				b.arrive(5)
				check.Equal(t, b.Poll(r), 5, c.name+": %d replies of 5 after a reset")
			}
		}
	})
}

func (b *testQueue) jump(r *ring, to int) { *half(r.device, 2) = uint16(to) }

// owned fails the test unless each buffer is in the receive ring or in a reply, and not in both.
func (b *testQueue) owned(t testing.TB) {
	t.Helper()
	for i, o := range unsafe.Slice((*uint8)(b.owner), testRing) {
		if (o&inReply != 0) == (o&inReceive != 0) || o&inReply != 0 && o != inReply {
			t.Fatalf("buffer %d is given to %#b", i, o)
		}
	}
}

// FuzzUsed: with arbitrary bytes in the device's parts of the rings, passes end, no buffer is used twice, and after a
// reset the queue works.
func FuzzUsed(f *testing.F) {
	f.Add(false, []byte{0, 7, 0, 110, 0, 1, 8, 0, 110, 0})
	f.Add(true, []byte{0, 7, 0, 110, 0, 9, 8, 0, 110, 0})
	f.Add(true, []byte{5, 0xff, 0xff, 0xff, 0xff, 2, 1, 0, 0, 0})
	f.Fuzz(func(t *testing.T, packed bool, script []byte) {
		b, r := newTestQueue(t, packed), nictest.NewResponder(t)
		for len(script) >= 5 {
			op, id, length := script[0], uint32(script[1])|uint32(script[2])<<8, uint32(script[3])|uint32(script[4])<<8
			script = script[5:]
			switch op % 8 {
			case 0:
				b.use(&b.rx, b.rxUsed, id, length)
				b.rxUsed++
			case 1:
				b.use(&b.tx, b.txUsed, id, length)
				b.txUsed++
			case 2:
				b.jump(&b.rx, int(id))
			case 3:
				b.jump(&b.tx, int(id))
			case 4:
				if b.gather(); len(b.taken) > 0 {
					b.receive(b.frame)
				}
			case 5:
				*word(b.rx.desc, id%(testRing*16)&^3) = length
			case 6:
				if id, _, _, ok := b.transmit(); ok && id < testRing {
					b.finish(id)
				}
			case 7:
				b.send(b.frame)
			}
			b.Poll(r)
			b.owned(t)
			if n := b.tx.next - b.tx.seen; n > testRing {
				t.Fatalf("%d transmits in a ring of %d", n, testRing)
			}
		}
		b.restart()
		b.arrive(20)
		must.Equal(t, b.Poll(r), 20, "%d replies of 20 after a reset")
	})
}

// TestSendReceive: frames of a bench, while replies of an earlier loop are still pending.
func TestSendReceive(t *testing.T) {
	both(t, func(t *testing.T, b *testQueue, r *fastpath.Responder) {
		b.arrive(3)
		b.Poll(r)
		sent := 0
		for b.send(b.frame) == nil {
			if sent++; sent > testRing {
				t.Fatal("Send has no end")
			}
		}
		if sent != 0 { // the first buffer's number is the first reply's
			t.Errorf("%d frames were taken beside a reply of the same number", sent)
		}
		buf, full := make([]byte, 2048), newTestQueue(t, b.rx.packed)
		full.arrive(testRing)
		for range testRing {
			n, _ := full.recv(buf)
			must.Equal(t, n, 64, "Recv of a frame of a full ring: %d bytes")
		}
		for i := range 3 * testRing {
			b.arrive(0)
			b.frame[20] = byte(i)
			must.OK(t, b.send(b.frame))
			id, addr, frame, ok := b.transmit()
			if !ok || addr != b.sendIOVA+uint64(id)*testStride || !bytes.Equal(frame[headerLen:], b.frame) ||
				!bytes.Equal(frame[:headerLen], make([]byte, headerLen)) {
				t.Fatalf("Send %d: %x at %#x, there %v", i, frame, addr, ok)
			}
			b.finish(id)
			b.receive(b.frame)
			if n, at := b.recv(buf); n != len(b.frame) || at == 0 || !bytes.Equal(buf[:n], b.frame) {
				t.Fatalf("Recv %d: %d bytes at %d", i, n, at)
			}
		}
		must.OK(t, b.send(bytes.Repeat([]byte{1}, testLen)))
		_, _, frame, _ := b.transmit()
		check.Equal(t, frame[testLen], 0, "Send writes %d behind its buffer")
		n, at := b.recv(buf)
		check.Equal(t, [2]int64{int64(n), at}, [2]int64{-1, 0}, "Recv of nothing: %d")
		const frames = 3*testRing + 3 // the first three by Poll
		check.Equal(t, [4]uint64{b.rxFrames.Load(), b.rxBytes.Load(), b.txFrames.Load(), b.txBytes.Load()},
			[4]uint64{frames, frames * 64, frames + 1, frames*64 + testLen}, "frames and bytes received and sent: %d")
	})
}

// TestReplyBesideSend: a reply whose descriptor still sends a bench's frame is dropped and counted, and that frame
// stays.
func TestReplyBesideSend(t *testing.T) {
	both(t, func(t *testing.T, b *testQueue, r *fastpath.Responder) {
		must.OK(t, b.send(b.frame))
		must.Equal(t, b.receive(b.frame), 0, "the device took buffer %d first")
		if n := b.Poll(r); n != 0 || b.txFull.Load() != 1 {
			t.Errorf("%d replies, %d dropped", n, b.txFull.Load())
		}
		b.owned(t)
		if id, addr, _, ok := b.transmit(); !ok || addr != b.sendIOVA {
			t.Errorf("buffer %d at %#x is sent, there %v", id, addr, ok)
		}
		if id, _, _, ok := b.transmit(); ok {
			t.Errorf("buffer %d is sent too", id)
		}
		b.finish(0)
		b.arrive(5)
		check.Equal(t, b.Poll(r), 5, "%d replies of 5 afterwards")
	})
}

func TestDepartures(t *testing.T) {
	both(t, func(t *testing.T, fresh *testQueue, _ *fastpath.Responder) {
		for _, full := range []bool{false, true} {
			nictest.Departs(t, func(frame []byte) (func(*fastpath.Responder) int, func() []byte) {
				b := newTestQueue(t, fresh.rx.packed)
				if full {
					*b.has(0) |= inSend
				}
				check.Equal(t, b.receive(frame), 0, "received into buffer %d")
				return b.Queue.Poll, func() []byte { return b.buffer(0)[headerLen:] }
			})
		}
	})
}

func TestPollAllocatesNothing(t *testing.T) {
	both(t, func(t *testing.T, b *testQueue, r *fastpath.Responder) {
		b.gather()
		nictest.NoAllocations(t, r, b.arrive, b.Queue.Poll)
	})
}

func BenchmarkPoll(b *testing.B) {
	for _, packed := range []bool{false, true} {
		for _, batch := range []int{1, 32} {
			b.Run(fmt.Sprintf("packed=%v/batch=%d", packed, batch), func(b *testing.B) {
				q, r := newTestQueue(b, packed), nictest.NewResponder(b)
				loop := q.Queue // a load less before each pass
				nictest.Cycles(b, r, batch, q.arrive, func() int { return loop.Poll(r) })
			})
		}
	}
}

func kindsQueue(t testing.TB, frame []byte) (func(int), func(*fastpath.Responder) int) {
	q := newTestQueueOf(t, false, 9280, 9216)
	q.frame = frame
	return q.arrive, q.Queue.Poll
}

func TestEmptyPing(t *testing.T) { nictest.EmptyPing(t, kindsQueue) }

func BenchmarkKinds(b *testing.B) { nictest.BenchmarkKinds(b, kindsQueue) }

func BenchmarkQueues(b *testing.B) { nictest.BenchmarkQueues(b, kindsQueue) }

func TestPollIsAHotLoop(t *testing.T) {
	const pkg = "github.com/rebound-nic/rebound/nic/drivers/virtio"
	nictest.StackAccesses(t, pkg, "(*Queue).Poll", 76)
	nictest.StackAccesses(t, pkg, "(*Queue).post", 8)
	nictest.HotLoop(t, pkg, "(*Queue).Poll", "virtio.(*Queue).post", "virtio.(*Queue).reclaim", "virtio.(*Queue).arm",
		"virtio.(*Queue).publish",
		"virtio.(*Queue).distrust", "mmio.Store64")
	nictest.HotLoop(t, pkg, "(*Queue).post", "virtio.(*ring).notify", "mmio.Store32")
	nictest.HotLoop(t, pkg, "(*Queue).reclaim", "virtio.(*Queue).arm", "virtio.(*Queue).distrust")
	nictest.HotLoop(t, pkg, "(*Queue).arm", "mmio.Store64")
	nictest.HotLoop(t, pkg, "(*Queue).publish", "virtio.(*ring).notify", "mmio.Store32")
	nictest.HotLoop(t, pkg, "(*ring).notify", "mmio.Store16", "mmio.Store32")
}
