package mlx5

import (
	"fmt"
	"math/bits"
	"sync/atomic"
	"unsafe"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/nic/kit/mlxkit"
	"github.com/rebound-nic/rebound/polling"
)

const (
	maxBatch    = 32 // maximum frames in one pass
	reclaimAt   = 32 // received slots that may wait for reclaim while every pass sends a reply
	refillBatch = 8  // free receive slots before the device is notified
	minFrame    = 14 // an Ethernet header
)

// Queue is a receive queue and a send queue, each with its completion queue. The indices of slots, blocks and
// completions never wrap to the ring size: their low bits index the ring, and the next bit is the expected owner bit.
//
// A receive WQE is written once, because it always points to the buffer of its slot. Posting it again only advances the
// counter.
type Queue struct {
	rxCQ, txCQ unsafe.Pointer
	rq         unsafe.Pointer
	buf        unsafe.Pointer // one buffer per receive slot: room, then the frame
	scratch    unsafe.Pointer // where WQEs with a pointer are built
	pend       unsafe.Pointer // for each slot: the send queue index up to which blocks must be done, uint32
	asked      unsafe.Pointer // WQEs that requested a completion, in order: first block, block after the last
	bf         unsafe.Pointer // BlueFlame register, or nil
	db         *uint64        // doorbell if there is no BlueFlame

	wq                      mmio.SendRing // the send queue's blocks and doorbell record
	rqRec, rxCQRec, txCQRec *uint32       // doorbell records

	iova   uint64 // of buf
	stride uint32
	size   uint32 // size of a slot in bytes of frame
	mask   uint32 // slots - 1
	shift  uint32
	lkey   uint32
	sqn    uint32

	rxNext uint32 // next slot to check; all before it were received
	freed  uint32 // slots before it are free
	posted uint32 // slots before it belong to the device

	txTail   uint32 // blocks before it are posted
	txDone   uint32 // blocks before it are sent
	txRung   uint32 // without BlueFlame: blocks before it were announced by a doorbell
	txAsked  uint32 // block after the last WQE that requested a completion
	txMask   uint32 // blocks - 1
	txShift  uint32
	askEvery uint32 // blocks between requests for a completion
	askTail  uint32 // completions requested
	txNext   uint32 // completions processed
	doorWord uint64 // without BlueFlame: doorbell value

	bfOff, bfHalf uint32 // offset of the next half of the register, and the size of a half
	wcDoorbell    bool   // the doorbell is in a write-combining window
	maxInline     uint32 // frames up to this length are sent inline
	headers       uint32 // inline bytes of longer frames

	fault atomic.Uint32 // why the queue stopped: faultXxx
	bad   cqe           // the completion that caused it, written before fault

	txFull, badRx, pushed, pointed polling.Counter // written by this loop only; ReadStats loads them

	out mlxkit.Buffers // of queue 0, for Send

	rqn, rxCQN, txCQN, tir uint32
	uar                    uar
	proof                  proof
	stamp                  uint64          // of the frame that recv returned
	failed                 polling.Counter // frames not sent because of a send queue error; written by the watchdog

	_ [48]byte // pads to whole cache lines, so that two queues on the heap never share one
}

var _ [0]byte = [unsafe.Sizeof(Queue{}) % 64]byte{}

// Reasons for which a queue stops.
const (
	faultNone = iota
	faultReceive
	faultSend
)

func (q *Queue) completion(cq unsafe.Pointer, n uint32) *cqe {
	return (*cqe)(unsafe.Add(cq, n*cqeSize))
}

// pending returns the send queue index up to which blocks must be done before slot n is free.
func (q *Queue) pending(n uint32) *uint32 { return (*uint32)(unsafe.Add(q.pend, n&q.mask*4)) }

// Poll makes one pass: it receives at most maxBatch frames, rewrites those that need a reply in place, and pushes each
// reply immediately, or rings the doorbell once for all if there is no BlueFlame. It calls reclaim if there was nothing
// to answer, or if reclaimAt slots or half of the send queue are waiting. It returns the number of replies.
func (q *Queue) Poll(r *fastpath.Responder) int {
	if q.fault.Load() != faultNone {
		return 0
	}
	next, n := q.rxNext, 0
	for ; next-q.rxNext != maxBatch; next++ {
		c := q.completion(q.rxCQ, next&q.mask)
		own := atomic.LoadUint32(&c.counterOwn) // nic/memory-order.md: done, then the rest
		if (own>>cqeOwner^next>>(q.shift&31))&1 != 0 {
			break
		}
		if own>>cqeFormat != cqeSend || bits.ReverseBytes16(uint16(own)) != uint16(next) {
			q.fail(c, faultReceive)
			break
		}
		*q.pending(next) = q.txDone
		l := int(swap(c.byteCount))
		if uint(l-minFrame) > uint(q.size-minFrame) {
			q.badRx.Add(1)
			continue
		}
		h := (*[64]byte)(unsafe.Add(q.buf, next&q.mask*q.stride+room))
		if l >= fastpath.LongFrame {
			r.Verified = c.headers&cqeHeaders == cqeGoodUDP && c.tunneled&cqeTunneled == 0
		}
		if !r.Reply(h, l) {
			if l = r.Slow(h, l); l == 0 {
				continue
			}
		}
		r.Departing() // the frame may be copied, completely or only its head
		at := unsafe.Add(unsafe.Pointer(h), -room)
		if uint32(l) <= q.maxInline {
			if !q.post(at, uint32(l+room+15)>>4, uint32(l)) {
				q.txFull.Add(1)
				continue
			}
			q.pushed.Add(1) // the frame was copied to the send queue, so its buffer is free
		} else {
			if !q.point(at, q.iova+uint64(next&q.mask*q.stride), uint32(l)) {
				q.txFull.Add(1)
				continue
			}
			*q.pending(next) = q.txTail
		}
		n++
	}
	polling.Publish(&q.rxNext, next)
	if q.txRung != q.txTail {
		q.ring()
	}
	if n > 0 && next-q.freed < reclaimAt && q.txTail-q.txDone <= q.txMask>>1 {
		return n
	}
	if q.txDone != q.txTail || q.freed != next {
		q.reclaim()
	}
	return n
}

// fits reports whether the send queue has room for this many blocks.
func (q *Queue) fits(blocks uint32) bool { return q.txTail+blocks-q.txDone <= q.txMask+1 }

// requestCompletion returns the completion request of a WQE of this many blocks at the tail: set once per askEvery
// blocks.
func (q *Queue) requestCompletion(blocks uint32) uint64 {
	end := q.txTail + blocks
	if end-q.txAsked < q.askEvery {
		return 0
	}
	a := (*[2]uint32)(unsafe.Add(q.asked, q.askTail&q.txMask*8))
	a[0], a[1] = q.txTail, end
	polling.Publish(&q.askTail, q.askTail+1)
	q.txAsked = end
	return ceAlways
}

// post completes the WQE of ds units at w, whose first inline bytes of the frame are already in it, copies it to the
// send queue and pushes it. It reports whether there was room.
func (q *Queue) post(w unsafe.Pointer, ds, inline uint32) bool {
	tail, blocks := q.txTail, (ds+3)>>2
	if !q.fits(blocks) {
		return false
	}
	ce := q.requestCompletion(blocks)
	word := control(wqeSend, tail, q.sqn, ds)
	head := (*[4]uint64)(w)
	// Stores whole words because the block copy loads whole words, which store forwarding requires. The last word ends
	// with the frame's first two bytes.
	head[0], head[1], head[2] = word, ce, 0
	head[3] = uint64(bits.ReverseBytes16(uint16(inline)))<<32 | uint64(*(*uint16)(unsafe.Add(w, room)))<<48
	end := tail + blocks
	q.txTail = end
	if q.bf != nil {
		q.txRung = end
		// nic/memory-order.md: record, then BlueFlame
		mmio.PushWQE(&q.wq, tail, swap(end&0xFFFF), unsafe.Add(q.bf, q.bfOff), w, int(blocks))
		q.bfOff ^= q.bfHalf
		return true
	}
	for i := range blocks { // the blocks may wrap
		copyBlock(unsafe.Add(q.wq.Base, (tail+i)&q.txMask*wqebb), unsafe.Add(w, i*wqebb))
	}
	q.doorWord = word
	return true
}

// point posts a WQE with the headers of the m-byte frame at at+room and a pointer to the rest. iova is the device's
// address of at.
func (q *Queue) point(at unsafe.Pointer, iova uint64, m uint32) bool {
	head := q.headers
	data := (max(head, 2) + room + 15) &^ 15 // the Ethernet segment has room for two bytes even without headers
	low, high := mlxkit.NewData(m-head, q.lkey, iova+room+uint64(head)).Words()
	if q.bf == nil && head == layer2 {
		return q.pointOnce(at, low, high)
	}
	w := q.scratch
	for off := uint32(room); off < room+head; off += wqebb { // copies whole blocks; the excess is overwritten
		copyBlock(unsafe.Add(w, off), unsafe.Add(at, off))
	}
	segment := (*[2]uint64)(unsafe.Add(w, data))
	segment[0], segment[1] = low, high
	if !q.post(w, data>>4+1, head) {
		return false
	}
	q.pointed.Add(1)
	return true
}

// pointOnce is point for a device without BlueFlame that requires the layer 2 header inline. The WQE is one block and
// is built in the send queue.
func (q *Queue) pointOnce(at unsafe.Pointer, low, high uint64) bool {
	if !q.fits(1) {
		return false
	}
	ce := q.requestCompletion(1)
	q.doorWord = control(wqeSend, q.txTail, q.sqn, wqebb/16)
	frame := unsafe.Add(at, room)
	w := (*[8]uint64)(unsafe.Add(q.wq.Base, q.txTail&q.txMask*wqebb))
	w[0], w[1], w[2] = q.doorWord, ce, 0
	w[3] = uint64(bits.ReverseBytes16(layer2))<<32 | uint64(*(*uint16)(frame))<<48
	w[4], w[5] = *(*uint64)(unsafe.Add(frame, 2)), *(*uint64)(unsafe.Add(frame, 10))
	w[6], w[7] = low, high
	q.txTail++
	q.pointed.Add(1)
	return true
}

// copyBlock copies 64 bytes between areas that do not overlap, without a call.
func copyBlock(dst, src unsafe.Pointer) {
	d, s := (*[8]uint64)(dst), (*[8]uint64)(src)
	d[0], d[1], d[2], d[3] = s[0], s[1], s[2], s[3]
	d[4], d[5], d[6], d[7] = s[4], s[5], s[6], s[7]
}

// ring notifies the device of all posted WQEs (nic/memory-order.md: record, then the doorbell).
func (q *Queue) ring() {
	q.txRung = q.txTail
	if q.wcDoorbell {
		mmio.RingDoorbellWC(q.wq.Record, swap(q.txTail&0xFFFF), q.db, q.doorWord)
	} else {
		mmio.RingDoorbell(q.wq.Record, swap(q.txTail&0xFFFF), q.db, q.doorWord)
	}
}

// reclaim processes send completions and returns free slots to the device, in order.
func (q *Queue) reclaim() {
	done, taken := q.txDone, q.txNext
	for {
		c := (*cqe)(unsafe.Add(q.txCQ, taken&q.txMask*cqeSize))
		own := atomic.LoadUint32(&c.counterOwn)
		if (own>>cqeOwner^taken>>(q.txShift&31))&1 != 0 {
			break
		}
		a := (*[2]uint32)(unsafe.Add(q.asked, taken&q.txMask*8))
		if own>>cqeFormat != cqeRequest || taken == q.askTail || bits.ReverseBytes16(uint16(own)) != uint16(a[0]) {
			q.fail(c, faultSend)
			break
		}
		done = a[1]
		taken++
	}
	if taken != q.txNext {
		if (done^q.txDone)>>30 != 0 {
			q.out.Free(done)
		}
		polling.Publish(&q.txNext, taken)
		q.txDone = done
		mmio.Store32(q.txCQRec, swap(taken&0xFFFFFF))
	}
	freed, next, mask := q.freed, q.rxNext, q.mask
	for freed != next && int32(done-*(*uint32)(unsafe.Add(q.pend, freed&mask*4))) >= 0 {
		freed++
	}
	q.freed = freed
	if freed-q.posted >= refillBatch {
		q.posted = freed
		// before the slots that will complete there again (nic/memory-order.md: rings)
		mmio.Store32(q.rxCQRec, swap(next&0xFFFFFF))
		mmio.Store32(q.rqRec, swap((freed+mask+1)&0xFFFF))
	}
}

// fail stops the queue at an error completion or an invalid one.
//
//go:noinline
func (q *Queue) fail(c *cqe, why uint32) {
	q.bad = *c
	q.fault.Store(why)
}

// unsent returns how many frames the device did not send because of an error completion: from the WQE that it names on.
func (q *Queue) unsent() uint64 {
	if q.fault.Load() != faultSend || q.bad.counterOwn>>28 != cqeOpReqErr {
		return 0
	}
	return mlxkit.Unsent(q.wq.Base, q.txMask, q.txDone, q.txTail, bits.ReverseBytes16(uint16(q.bad.counterOwn)))
}

// countUnsent counts those frames, once. No loop uses the queue.
func (q *Queue) countUnsent() {
	q.failed.Add(q.unsent())
	q.bad = cqe{}
}

func (q *Queue) faultText() string {
	c, side := &q.bad, "receive"
	if q.fault.Load() == faultSend {
		side = "send"
	}
	own := c.counterOwn >> 24
	op := own >> 4
	switch {
	case own>>2&3 == cqeCompressed:
		return fmt.Sprintf("%s completion is compressed, which was not asked for (op_own %#02x)", side, own)
	case op == cqeOpReqErr || op == cqeOpRespErr:
		return fmt.Sprintf("%s completion with error: syndrome %v, vendor syndrome %#02x, WQE %d, opcode and queue %#08x", side,
			mlxkit.Syndrome(c.syndrome), c.vendor, bits.ReverseBytes16(uint16(c.counterOwn)), swap(c.opcodeQPN))
	}
	return fmt.Sprintf("%s completion is not what is due: opcode %#x, WQE %d", side, op,
		bits.ReverseBytes16(uint16(c.counterOwn)))
}

// reset resets the rings to the state of a new queue: the device owns all slots, nothing to send.
func (q *Queue) reset() {
	q.rxNext, q.freed, q.posted = 0, 0, 0
	for slot := range q.mask + 1 {
		*(*uint32)(unsafe.Add(q.pend, slot*4)) = 0
	}
	*q.rxCQRec = 0
	mmio.Store32(q.rqRec, swap(q.mask+1))
	q.resetSend()
}

// resetSend resets the send side only.
func (q *Queue) resetSend() {
	q.txTail, q.txDone, q.txRung, q.txAsked, q.askTail, q.txNext, q.bfOff = 0, 0, 0, 0, 0, 0, 0
	q.out.Reset()
	*q.wq.Record, *q.txCQRec = 0, 0
	q.fault.Store(faultNone)
}

// send sends a copy of a frame and rings the doorbell. It returns nic.ErrFull if no slot is free or if the queue has
// failed.
func (q *Queue) send(frame []byte) error {
	q.reclaim()
	m := uint32(len(frame))
	at, iova, free := q.out.Next(q.txDone)
	if q.fault.Load() != faultNone || !free {
		return nic.ErrFull
	}
	copy(unsafe.Slice((*byte)(unsafe.Add(at, room)), q.size), frame)
	if m <= q.maxInline {
		if !q.post(at, (m+room+15)>>4, m) {
			return nic.ErrFull
		}
		q.pushed.Add(1) // the frame is in the send queue: its buffer is free
	} else {
		if !q.point(at, iova, m) {
			return nic.ErrFull
		}
		q.out.Use(q.txTail)
	}
	if q.txRung != q.txTail {
		q.ring()
	}
	return nil
}

// recv copies the next frame to buf and frees its slot. It returns -1 if there is none.
func (q *Queue) recv(buf []byte) (n int, at int64) {
	for q.fault.Load() == faultNone {
		slot := q.rxNext & q.mask
		c := q.completion(q.rxCQ, slot)
		own := atomic.LoadUint32(&c.counterOwn)
		if (own>>cqeOwner^q.rxNext>>(q.shift&31))&1 != 0 {
			break
		}
		at = int64(polling.TSC())
		if own>>cqeFormat != cqeSend || bits.ReverseBytes16(uint16(own)) != uint16(q.rxNext) {
			q.fail(c, faultReceive)
			break
		}
		l := swap(c.byteCount)
		bad := l < minFrame || l > q.size
		if bad {
			q.badRx.Add(1)
		} else {
			copy(buf, unsafe.Slice((*byte)(unsafe.Add(q.buf, slot*q.stride+room)), l))
		}
		*(*uint32)(unsafe.Add(q.pend, slot*4)) = q.txDone
		q.stamp = c.timestamp()
		polling.Publish(&q.rxNext, q.rxNext+1)
		q.reclaim()
		if !bad {
			return int(l), at
		}
	}
	q.reclaim()
	return -1, 0
}
