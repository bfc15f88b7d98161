package efa

import (
	"fmt"
	"math/bits"
	"slices"
	"testing"
	"unsafe"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic/kit"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/nictest"
)

// benchQueue is a queue with the test as its device: rings, buffers and send queues are in ordinary memory, and
// doorbells are ignored.
type benchQueue struct {
	*Queue
	pair     int    // receiving pair of the messages
	length   uint32 // bytes of each message
	handle   uint64 // and their sender
	imm      uint64 // including cqImmediate's word, 0 for none
	rxDone   [maxPairs]uint32
	rx, tx   uint32 // completions written
	txDone   [maxPairs]uint32
	sqDB     [maxPairs]uint32
	rqDB     [maxPairs]uint32
	reversed bool // sends are completed in reverse order
	ids      [maxPairs * ringSize]uint64
}

const ringSize, benchMTU = 256, 8928

func newBenchQueue(t testing.TB, length, entry uint32, stamp bool) *benchQueue {
	const pairs = 2
	stride := kit.Stride(room + benchMTU)
	slots := pairs * (ringSize + sendSlots)
	mem := nictest.Carve(t, slots*int(stride)+pairs*ringSize*(rxCQE+txCQE+descSize+int(entry))+4096)
	shift := func(n int) uint32 { return uint32(bits.TrailingZeros(uint(n))) }
	b := &benchQueue{length: length, handle: 5 | 77<<16}
	b.Queue = &Queue{
		rxSubs: 1, txSubs: 1, rxMask: pairs*ringSize - 1, rxShift: shift(pairs * ringSize), txMask: pairs*ringSize - 1,
		txShift: shift(pairs * ringSize),
		npairs:  pairs, pairShift: shift(ringSize), slots: pairs * ringSize, all: uint32(slots), word: kit.Words(slots),
		buf: mem(slots * int(stride)), iova: 1 << 32, stride: stride, size: benchMTU, key: 0x1234, qkey: DefaultQKey,
		sqMask: ringSize - 1, sqShift: shift(ringSize), burst: ringSize, entry: entry, maxInline: entry - metaSize,
		scratch: mem(128),
	}
	if entry == 128 {
		b.maxInline = 80
	}
	b.Queue.rx[0].at, b.Queue.tx[0].at = mem(pairs*ringSize*rxCQE), mem(pairs*ringSize*txCQE)
	for i := range pairs {
		b.pairs[i] = pair{llq: mem(ringSize * int(entry)), rq: mem(ringSize * descSize), free: array(ringSize),
			sendFree: array(sendSlots),
			sqDB:     &b.sqDB[i], rqDB: &b.rqDB[i], number: uint32(40 + i), stamp: stamp}
	}
	b.pairs[0].skip = grh
	b.reset()
	b.fill()
	return b
}

func (b *benchQueue) arrive(n int) {
	p := &b.pairs[b.pair]
	for range n {
		d := (*rxDesc)(unsafe.Add(p.rq, b.rxDone[b.pair]%ringSize*descSize))
		b.rxDone[b.pair]++
		c := (*rxCompletion)(unsafe.Add(b.Queue.rx[0].at, b.rx&b.rxMask*rxCQE))
		c.from = b.handle | b.imm<<32
		w := d.ctrl&0xFFFF | uint64(b.rx>>b.rxShift&1^1)<<24 | 2<<25 | uint64(p.number)<<32 |
			uint64(b.length+p.skip)<<48
		if b.imm != 0 {
			w |= 1 << 27
		}
		c.common = w
		b.rx++
	}
	b.complete(statusOK)
}

func (b *benchQueue) complete(status uint64) {
	for i := range b.npairs {
		p := &b.pairs[i]
		ids := b.ids[:0]
		for ; b.txDone[i] != p.rung; b.txDone[i]++ {
			ids = append(ids, *(*uint64)(unsafe.Add(p.llq, b.txDone[i]&b.sqMask*b.entry))&0xFFFF)
		}
		if b.reversed {
			slices.Reverse(ids)
		}
		for _, id := range ids {
			*(*uint64)(unsafe.Add(b.Queue.tx[0].at, b.tx&b.txMask*txCQE)) = id | status<<16 |
				uint64(b.tx>>b.txShift&1^1)<<24 | 1<<25 | uint64(p.number)<<32
			b.tx++
		}
	}
}

func newResponder(t testing.TB) *fastpath.Responder {
	t.Helper()
	return must.Get(fastpath.NewMessages(fastpath.Config{Rate: fastpath.DefaultRate, Burst: 1 << 30,
		TicksPerSecond: 1 << 30}))(t)
}

func TestPollAllocatesNothing(t *testing.T) {
	for _, entry := range []uint32{64, 128} {
		for _, length := range []uint32{0, 32, 33, 8928} {
			b := newBenchQueue(t, length, entry, false)
			nictest.NoAllocations(t, newResponder(t), func(n int) {
				b.pair ^= 1
				b.reversed = !b.reversed
				b.arrive(n)
			}, b.Queue.Poll)
		}
	}
}

func TestPasses(t *testing.T) {
	nictest.Passes(t, newResponder(t), func() (func(int), func(*fastpath.Responder) int, func() uint32) {
		b := newBenchQueue(t, 16, 64, false)
		return b.arrive, b.Queue.Poll, func() uint32 { return b.rxTidied }
	})
}

// Free buffers are posted sixteen at a time, and as many completions are reported to a device that needs that.
func TestSixteenAtATime(t *testing.T) {
	b, r := newBenchQueue(t, 16, 64, false), newResponder(t)
	var rxTold, txTold uint32
	b.rxCQDB, b.txCQDB = &rxTold, &txTold
	b.imm = uint64(fastpath.ReplyMark) // is not answered
	for n := range uint32(33) {
		check.Equal(t, b.rqDB[0], ringSize+n/16*16, "descriptors written: %d")
		check.Equal(t, rxTold, n/16*16, "receive completions reported: %d")
		b.arrive(1)
		b.Poll(r)
	}
	b.imm = 0
	for n := range uint32(33) {
		check.Equal(t, txTold, n/16*16, "send completions reported: %d")
		b.arrive(1)
		check.Equal(t, b.Poll(r), 1, "%d replies")
		b.arrive(0)
		b.Poll(r)
	}
}

func TestPushedEntry(t *testing.T) {
	for _, c := range []struct {
		pair          int
		length, entry uint32
		inline        bool
	}{{0, 32, 64, true}, {0, 33, 64, false}, {1, 0, 64, true}, {1, 80, 128, true}, {1, 81, 128, false}} {
		t.Run(fmt.Sprintf("pair %d, %d bytes in %d", c.pair, c.length, c.entry), func(t *testing.T) {
			b, r := newBenchQueue(t, c.length, c.entry, false), newResponder(t)
			b.pair = c.pair
			p := &b.pairs[c.pair]
			desc := *(*rxDesc)(p.rq)
			slot := desc.ctrl & 0xFFFF
			message := b.iova + slot*uint64(b.stride) + room
			if want := (rxDesc{message - uint64(p.skip), slot | uint64(benchMTU+p.skip)<<16 | 0x1234<<32 |
				3<<62}); desc != want {
				t.Errorf("receive descriptor %#x, want %#x", desc, want)
			}
			data := unsafe.Slice((*byte)(b.message(uint32(slot))), max(c.length, 1))
			for i := range data {
				data[i] = byte(i + 1)
			}
			for _, used := range []unsafe.Pointer{unsafe.Add(b.message(uint32(slot)), -metaSize), b.scratch} {
				*(*[4]uint64)(used) = [4]uint64{^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0)}
			}
			b.arrive(1)
			if b.Poll(r) != 1 || r.Stats()[fastpath.AnsweredMessage] != 1 {
				t.Fatal("not answered")
			}
			e := unsafe.Slice((*uint64)(p.llq), c.entry/8)
			// op 0, immediate, meta; first, last, completion requested; phase 0 in the first round.
			const ctrl = (1<<4|1<<7)<<16 | (1<<2|1<<3|1<<4)<<24
			want := []uint64{slot | ctrl | 77<<32 | 1<<48, uint64('R'<<24|'B'<<16|'N'<<8|'D') | 5<<32, 0x11111111, 0}
			if c.inline {
				want[0] = slot | ctrl | 1<<21 | 77<<32 | uint64(c.length)<<48
			}
			check.Same(t, e[:4], want, "meta descriptor %#x")
			if c.inline {
				if got := unsafe.Slice((*byte)(unsafe.Add(p.llq, metaSize)), c.length); c.length > 0 &&
					!slices.Equal(got, data) {
					t.Errorf("data % x", got)
				}
			} else {
				rest := make([]uint64, c.entry/8-4)
				rest[0], rest[1] = uint64(c.length)|0x1234<<32, message
				check.Same(t, e[4:], rest, "pointer %#x")
			}
			if b.sqDB[c.pair] != 1 || b.sqDB[1-c.pair] != 0 {
				t.Errorf("doorbells %v", b.sqDB)
			}
			check.Equal(t, *b.slotWord(uint32(slot)), 5<<16|1<<2|slotSending,
				"handle, sends and state of the slot: %#x")
			check.Equal(t, p.frees, 0, "%d slots are free while it is sent from")
			b.complete(statusOK)
			b.Poll(r)
			if *b.slotWord(uint32(slot))&slotState != slotOurs || p.frees != 1 {
				t.Error("the slot is not free after its send")
			}
		})
	}
}

// Every second round of the send queue has the other phase, starting with 0, and a doorbell has only 16 bits.
func TestRounds(t *testing.T) {
	b, r := newBenchQueue(t, 8, 64, false), newResponder(t)
	b.pair = 1
	for n := range uint32(1<<16 + 3*ringSize) {
		b.arrive(1)
		if b.Poll(r) != 1 {
			t.Fatalf("message %d: not answered, fault %d", n, b.fault.Load())
		}
		w := *(*uint64)(unsafe.Add(b.pairs[1].llq, n%ringSize*64))
		if phase := uint32(w>>24) & 1; phase != n/ringSize&1 || b.sqDB[1] != (n+1)&0xFFFF {
			t.Fatalf("send %d: phase %d, doorbell %d", n, phase, b.sqDB[1])
		}
	}
}

func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		name  string
		set   func(b *benchQueue)
		edit  func(w *uint64)
		want  fastpath.Verdict
		fault uint32
		bad   uint64
	}{
		{"a reply", func(b *benchQueue) { b.imm = uint64(fastpath.ReplyMark) }, nil, fastpath.RefusedReply, 0, 0},
		{"a reply of an unknown sender", func(b *benchQueue) { b.imm, b.handle = uint64(fastpath.ReplyMark), noHandle }, nil, fastpath.RefusedReply, 0, 0},
		{"shorter than its prefix", nil, func(w *uint64) { *w = *w&(1<<48-1) | 39<<48 }, fastpath.RefusedMessage, 0, 1},
		{"longer than its buffer", nil, func(w *uint64) { *w = *w&(1<<48-1) | (benchMTU+41)<<48 }, fastpath.RefusedMessage, 0, 1},
		{"an RDMA write", nil, func(w *uint64) { *w |= 2 << 28 }, fastpath.RefusedMessage, 0, 1},
		{"an error", nil, func(w *uint64) { *w |= 2 << 16 }, 0, 0, 1},
		{"flushed", nil, func(w *uint64) { *w |= 1 << 16 }, 0, faultFlushed, 1},
		{"a slot that there is not", nil, func(w *uint64) { *w |= 0xFFFF }, 0, faultRxID, 0},
		{"of another queue pair", nil, func(w *uint64) { *w ^= 1 << 32 }, 0, faultRxID, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, r := newBenchQueue(t, 16, 64, false), newResponder(t)
			if c.set != nil {
				c.set(b)
			}
			b.arrive(1)
			if c.edit != nil {
				c.edit((*uint64)(b.Queue.rx[0].at))
			}
			must.Equal(t, b.Poll(r), 0, "answered %d")
			if b.fault.Load() != c.fault || b.badRx.Load() != c.bad || b.sqDB[0] != 0 {
				t.Errorf("fault %d, %d bad, doorbell %d; want fault %d, %d bad", b.fault.Load(), b.badRx.Load(),
					b.sqDB[0], c.fault, c.bad)
			}
			s := r.Stats()
			if c.want != 0 && s[c.want] != 1 || s.Refused() != min(uint64(c.want), 1) {
				t.Errorf("counted %v", s)
			}
			check.Equal(t, b.pairs[0].frees == 1, c.fault != faultRxID, "the buffer came back: %v")
			b.imm, b.handle = 0, 5
			b.arrive(1)
			check.Equal(t, b.Poll(r) == 1, c.fault == 0, "the next is answered: %t")
		})
	}
	// The immediate data count only if the completion says that there are any.
	b, r := newBenchQueue(t, 16, 64, false), newResponder(t)
	b.imm = uint64(fastpath.ReplyMark)
	b.arrive(1)
	*(*uint64)(b.Queue.rx[0].at) &^= cqImmediate
	check.Equal(t, b.Poll(r), 1, "%d replies")
	// A slot is received from once.
	b = newBenchQueue(t, 16, 64, false)
	b.imm = uint64(fastpath.ReplyMark)
	b.arrive(2)
	first, second := (*uint64)(b.Queue.rx[0].at), (*uint64)(unsafe.Add(b.Queue.rx[0].at, rxCQE))
	*second = *second&^0xFFFF | *first&0xFFFF
	b.Poll(r)
	check.Equal(t, b.fault.Load(), faultRxID, "a slot received from twice: fault %d")
	// A duplicate completion, and one of a send that never was.
	b = newBenchQueue(t, 16, 64, false)
	b.arrive(1)
	b.Poll(r)
	b.complete(statusOK)
	b.txDone[0]--
	b.complete(statusOK)
	b.Poll(r)
	check.Equal(t, b.fault.Load(), faultTxID, "a send completed twice: fault %d")
	// Errors of sends are counted by status.
	b, r = newBenchQueue(t, 16, 64, false), newResponder(t)
	for _, status := range []uint64{13, 15, 200} {
		b.arrive(1)
		b.Poll(r)
		b.complete(status)
		b.Poll(r)
	}
	if b.failed[13].Load() != 1 || b.failed[15].Load() != 1 || b.failed[statuses].Load() != 1 || b.fault.Load() != 0 {
		t.Errorf("sends by status: %v, fault %d", b.failed, b.fault.Load())
	}
}

// What becomes of a message and of a send if one bit of the first word of their completion is inverted, from bit 0 on:
// "." as if it were not, "b" counted as bad, "F" counted as bad and "X" not counted and the queue stops, "-" not there.
func TestEachBitOfCompletions(t *testing.T) {
	outcome := func(b *benchQueue, counted uint64, done bool) string {
		switch fault := b.fault.Load() != faultNone; {
		case fault && counted == 1:
			return "F"
		case fault && counted == 0:
			return "X"
		case counted == 1:
			return "b"
		case counted == 0 && done:
			return "."
		}
		return "-"
	}
	receives, polled, sends := "", "", ""
	for bit := range 64 {
		for _, recv := range []bool{false, true} {
			b, r, taken := newBenchQueue(t, 16, 64, false), newResponder(t), false
			b.arrive(1)
			*(*uint64)(b.Queue.rx[0].at) ^= 1 << bit
			if recv {
				n, _ := b.recv(make([]byte, 1<<16))
				taken = n > 0
				receives += outcome(b, b.badRx.Load(), taken)
			} else {
				taken = b.Poll(r) == 1
				polled += outcome(b, b.badRx.Load(), taken)
			}
			check.Equal(t, b.Queue.rx[0].head == 1, b.fault.Load() != faultRxID && bit != 24, "it is taken: %t")
		}
		b, r, failed := newBenchQueue(t, 16, 64, false), newResponder(t), uint64(0)
		b.arrive(1)
		b.Poll(r)
		b.complete(statusOK)
		*(*uint64)(b.Queue.tx[0].at) ^= 1 << bit
		b.reclaim()
		for i := range b.failed {
			failed += b.failed[i].Load()
		}
		sends += outcome(b, failed, b.pairs[0].done == 1)
	}
	//                             slot             status   phase, kind, immediate, operation
	check.Equal(t, polled, "........XXXXXXXX"+"Fbbbbbbb"+"-bb.bbbb"+"XXXXXXXXXXXXXXXX"+".....b........bb", "Poll: %s")
	check.Equal(t, receives, "........XXXXXXXX"+"Fbbbbbbb"+"-bb.bbbb"+"XXXXXXXXXXXXXXXX"+"....-b........bb", "Recv: %s")
	check.Equal(t, sends, "XXXXXXXXXXXXXXXX"+"bbbbbbbb"+"-XX....."+"XXXXXXXXXXXXXXXX"+"................", "sends: %s")
}

// An unknown sender's message waits in its slot, and is answered once the handle is known; messages beyond the limit
// are refused.
func TestUnknownSenders(t *testing.T) {
	b, r := newBenchQueue(t, 16, 64, false), newResponder(t)
	b.pair, b.handle = 1, noHandle|9<<16
	b.arrive(maxUnknownSenders + 2)
	if n := b.Poll(r); n != 0 || b.unknownSender.waiting != maxUnknownSenders ||
		r.Stats()[fastpath.RefusedSender] != 2 {
		t.Fatalf("answered %d, %d wait, counted %v", n, b.unknownSender.waiting, r.Stats())
	}
	for n := range uint32(maxUnknownSenders) { // as the goroutine does
		e := &b.unknownSender.entry[n]
		if e.reachable = n != 3; e.reachable {
			e.to |= 6
		}
		b.unknownSender.answered.Store(n + 1)
	}
	b.Poll(r)
	s := r.Stats()
	if b.sqDB[1] != maxUnknownSenders-1 || s[fastpath.AnsweredMessage] != maxUnknownSenders-1 ||
		s[fastpath.RefusedSender] != 3 || b.unknownSender.waiting != 0 {
		t.Errorf("doorbell %d, %d wait, counted %v", b.sqDB[1], b.unknownSender.waiting, s)
	}
	if w := *(*[2]uint64)(b.pairs[1].llq); w[0]>>32&0xFFFF != 9 || w[1]>>32 != 6 {
		t.Errorf("sent to queue pair %d of handle %d", w[0]>>32&0xFFFF, w[1]>>32)
	}
}

func TestOneUnknownSender(t *testing.T) {
	b, r := newBenchQueue(t, 16, 64, false), newResponder(t)
	b.handle = noHandle | 9<<16
	b.arrive(1)
	check.Equal(t, b.Poll(r), 0, "%d replies")
	b.unknownSender.entry[0].reachable = true
	b.unknownSender.answered.Store(1)
	b.Poll(r)
	check.Equal(t, b.sqDB[0], 1, "the doorbell is %d")
}

// If the send queue is full, messages that do not fit are dropped and counted, and their buffers are returned.
func TestFull(t *testing.T) {
	b, r := newBenchQueue(t, 16, 64, false), newResponder(t)
	b.sqMask, b.sqShift, b.burst = 7, 3, 4
	b.pair = 1
	done := b.txDone
	b.arrive(10)
	if n := b.Poll(r); n != 8 || b.txFull.Load() != 2 || b.pairs[1].frees != 2 || b.sqDB[1] != 8 {
		t.Errorf("answered %d, %d dropped, %d free, doorbell %d", n, b.txFull.Load(), b.pairs[1].frees, b.sqDB[1])
	}
	b.txDone = done
	b.complete(statusOK)
	b.arrive(1)
	b.Poll(r)
	b.Poll(r)
	check.Equal(t, b.fault.Load(), 0, "fault %d")
}

// The doorbell is rung before more entries are pushed than the device takes.
func TestBurst(t *testing.T) {
	b := newBenchQueue(t, 16, 64, false)
	b.burst = 4
	for n := range uint32(9) {
		check.Equal(t, b.transmit(&b.pairs[1], n, 16, 5, reply), true, "pushed: %t")
		check.Equal(t, b.sqDB[1], n/4*4, "the doorbell is %d")
		check.Equal(t, b.sqDB[0], 0, "the other queue pair's is %d")
	}
}

// Slots of send go back to their queue pair.
func TestSlotsOfSend(t *testing.T) {
	b := newBenchQueue(t, 16, 64, false)
	for i := range b.npairs {
		p := &b.pairs[i]
		for range sendSlots {
			check.Equal(t, b.send(p, make([]byte, 16), 5), true, "sent: %t")
		}
		check.Equal(t, p.sends, 0, "%d slots are free")
		b.complete(statusOK)
		b.reclaim()
		check.Equal(t, p.sends, sendSlots, "%d slots are free")
		last := *(*uint16)(unsafe.Add(p.sendFree, (sendSlots-1)*2)) // the first of all was sent from last
		check.Equal(t, uint32(last), b.slots+i*sendSlots, "the one on top is %d")
		check.Equal(t, b.fault.Load()+p.frees, 0, "fault, and slots of receives: %d")
	}
}

// A send's completion has the slot and the queue pair of a send that is under way, and says that it is one.
func TestWrongSends(t *testing.T) {
	for name, change := range map[string]func(b *benchQueue, w *uint64){
		"beyond all slots": func(b *benchQueue, w *uint64) { *w = *w&^0xFFFF | uint64(b.all) },
		"far beyond":       func(b *benchQueue, w *uint64) { *w |= 0xFFFF },
		"not under way":    func(b *benchQueue, w *uint64) { *w ^= 1 },
		"of another pair":  func(b *benchQueue, w *uint64) { *w ^= 1 << cqPair },
		"not of a send":    func(b *benchQueue, w *uint64) { *w ^= 1 << 25 },
	} {
		b, r := newBenchQueue(t, 16, 64, false), newResponder(t)
		b.arrive(1)
		check.Equal(t, b.Poll(r), 1, "%d replies")
		b.complete(statusOK)
		change(b, (*uint64)(b.Queue.tx[0].at))
		check.Equal(t, b.Poll(r), 0, "%d replies")
		check.Equal(t, b.fault.Load(), faultTxID, name+": fault %d")
		b.arrive(1)
		check.Equal(t, b.Poll(r), 0, name+": %d replies after it")
	}
}

// Nothing of before a reset remains.
func TestReset(t *testing.T) {
	b, r := newBenchQueue(t, 16, 64, false), newResponder(t)
	for range 2 {
		b.handle = noHandle
		b.arrive(2)
		b.Poll(r)
		check.Equal(t, b.unknownSender.waiting, 2, "%d messages wait")
		b.handle = 5
		for range 15 { // more than all slots
			b.arrive(20)
			check.Equal(t, b.Poll(r), 20, "%d replies")
		}
		b.arrive(3) // not taken
		clear(unsafe.Slice((*byte)(b.Queue.rx[0].at), (b.rxMask+1)*rxCQE))
		clear(unsafe.Slice((*byte)(b.Queue.tx[0].at), (b.txMask+1)*txCQE))
		b.rx, b.tx, b.rxDone, b.txDone = 0, 0, [maxPairs]uint32{}, [maxPairs]uint32{}
		b.fault.Store(faultRxID)
		b.reset()
		b.fill()
		check.Equal(t, b.unknownSender.waiting, 0, "%d messages wait after a reset")
		check.Equal(t, b.rxTaken|b.txTaken|b.rxTold|b.txTold|b.rxTidied, 0, "%d completions taken and reported")
		check.Equal(t, b.rqDB[0], ringSize, "descriptors written: %d")
	}
}

// send uses separate slots, and recv copies the message without the device's prefix.
func TestSendRecv(t *testing.T) {
	b := newBenchQueue(t, 16, 64, false)
	message := []byte("sixteen bytes ok")
	for n := range 3 * sendSlots {
		if !b.send(&b.pairs[0], message, 5|77<<16) {
			t.Fatalf("send %d: full", n)
		}
		w := *(*uint64)(unsafe.Add(b.pairs[0].llq, uint32(n)%ringSize*64))
		if slot := uint32(w & 0xFFFF); slot < b.slots || w&txImmediate != 0 {
			t.Fatalf("send %d: from slot %d, word %#x", n, slot, w)
		}
		if n%2 == 1 {
			b.complete(statusOK)
		}
	}
	b.complete(statusOK)
	sent := 0
	for b.send(&b.pairs[0], message, 5) {
		sent++
	}
	check.Equal(t, sent, sendSlots, "%d sends fit")
	slot := uint32((*rxDesc)(b.pairs[0].rq).ctrl & 0xFFFF)
	copy(unsafe.Slice((*byte)(b.message(slot)), 16), message)
	b.arrive(1)
	buf := make([]byte, 64)
	if n, at := b.recv(buf); n != 16 || at == 0 || string(buf[:16]) != string(message) {
		t.Errorf("received %d bytes: %q", n, buf[:16])
	}
	if n, _ := b.recv(buf); n != -1 {
		t.Errorf("received %d bytes more", n)
	}
	b.arrive(1)
	*(*uint64)(unsafe.Add(b.Queue.rx[0].at, rxCQE)) |= 2 << 28
	if n, _ := b.recv(buf); n != -1 || b.badRx.Load() != 1 {
		t.Errorf("received %d bytes of an RDMA write, %d bad", n, b.badRx.Load())
	}
}

// Send needs room in the send queue, too. Recv takes back what was sent, also if nothing was received.
func TestSendQueueFull(t *testing.T) {
	b := newBenchQueue(t, 16, 64, false)
	b.sqMask, b.sqShift = 3, 2
	for n := range 5 {
		check.Equal(t, b.send(&b.pairs[0], make([]byte, 16), 5), n < 4, fmt.Sprintf("message %d is sent: %%t", n))
	}
	b.complete(statusOK)
	b.recv(nil)
	check.Equal(t, [2]uint32{b.pairs[0].done, b.pairs[0].sends}, [2]uint32{4, sendSlots}, "done, and free slots: %d")
}

func TestPollIsAHotLoop(t *testing.T) {
	const pkg = "github.com/rebound-nic/rebound/nic/drivers/efa"
	nictest.StackAccesses(t, pkg, "(*Queue).Poll", 60)
	nictest.StackAccesses(t, pkg, "(*Queue).complete", 0)
	nictest.StackAccesses(t, pkg, "(*Queue).transmit", 36)
	nictest.HotLoop(t, pkg, "(*Queue).Poll", "efa.(*Queue).complete", "efa.(*Queue).transmit", "efa.(*Queue).ring",
		"efa.(*Queue).reclaim",
		"efa.(*Queue).bad", "efa.(*Queue).park", "efa.(*Queue).unpark", "efa.(*Queue).reflect",
		"efa.(*Queue).unsettled")
	nictest.HotLoop(t, pkg, "(*Queue).complete")
	nictest.HotLoop(t, pkg, "(*Queue).transmit", "efa.(*Queue).ring", "mmio.CopyWC")
	nictest.HotLoop(t, pkg, "(*Queue).ring", "mmio.FenceWC", "mmio.Store32")
	nictest.HotLoop(t, pkg, "(*Queue).reclaim", "efa.(*Queue).sent", "efa.(*Queue).refill", "mmio.Store32")
	nictest.HotLoop(t, pkg, "(*Queue).sent")
	nictest.HotLoop(t, pkg, "(*Queue).refill", "mmio.Store32")
}

func BenchmarkPoll(b *testing.B) {
	for _, bm := range []struct {
		name          string
		length, entry uint32
		batch, pair   int
	}{{"32/srd/batch=1", 32, 64, 1, 1}, {"32/ud/batch=1", 32, 64, 1, 0}, {"32/srd/batch=32", 32, 64, 32, 1},
		{"80/srd/batch=1", 80, 128, 1, 1},
		{"64/srd/fetched/batch=1", 64, 64, 1, 1}} {
		b.Run(bm.name, func(b *testing.B) {
			q, r := newBenchQueue(b, bm.length, bm.entry, false), newResponder(b)
			q.pair = bm.pair
			loop := q.Queue // saves a load before each pass
			nictest.Cycles(b, r, bm.batch, q.arrive, func() int { return loop.Poll(r) })
		})
	}
}
