package ixgbe

import (
	"sync/atomic"
	"unsafe"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/polling"
)

const (
	maxBatch    = 32 // frames that one pass takes at most
	refillBatch = 32 // receive slots that are refilled before RDT is written
	reclaimAt   = 32 // received slots that may wait for reclaim while each pass answers something
	minFrame    = 14 // an Ethernet header
)

// Queue is one receive ring and one transmit ring of the same size. Slot numbers and transmit numbers are free-running;
// their low bits index the rings.
type Queue struct {
	rx  unsafe.Pointer // receive descriptors
	tx  unsafe.Pointer // transmit descriptors
	buf unsafe.Pointer // one buffer for each receive slot
	rdt *uint32
	tdt *uint32

	iova    uint64 // of buf
	bufSize uint32 // bytes that the device may write to one buffer
	stride  uint32 // from one buffer to the next: a cache line more, or all heads would share two sets of the L1 cache
	mask    uint32 // ring size - 1

	rxNext   uint32 // next slot; all before it were received
	refilled uint32 // slots before it were received, are free again and refilled for their next round
	posted   uint32 // slots before it were given to the device by RDT

	txTail uint32 // transmits before it were posted
	txDone uint32 // transmits before it are done: their buffers are ours
	txRoom uint32 // txDone + mask: transmits before it fit

	batches unsafe.Pointer // one batch per transmit descriptor: the pass whose first transmit it is

	// Values that Poll would otherwise compute for each frame, or keep on the stack.
	delta    uint64         // iova - buf
	rxStatus unsafe.Pointer // status word of the first receive descriptor
	rxEnd    uint32         // the slot before which the pass ends
	most     uint32         // bufSize - minFrame

	txFull, badWriteback polling.Counter // one writer, this loop; ReadStats loads them

	sendBuf  unsafe.Pointer // queue 0: one buffer for each transmit descriptor, for Send
	sendIOVA uint64

	rxIOVA, txIOVA uint64 // of the rings

	_ [24]byte // to whole cache lines, so that the heap puts no two queues into one
}

var _ [0]byte = [unsafe.Sizeof(Queue{}) % 64]byte{}

func (q *Queue) rxRead(slot uint32) *rxRead { return (*rxRead)(unsafe.Add(q.rx, slot*descSize)) }
func (q *Queue) rxDone(slot uint32) *rxWriteback {
	return (*rxWriteback)(unsafe.Add(q.rx, slot*descSize))
}
func (q *Queue) txDesc(n uint32) *txRead { return (*txRead)(unsafe.Add(q.tx, n*descSize)) }

// transmit is the descriptor of the transmit with that number.
func (q *Queue) transmit(n uint32) *txRead {
	return (*txRead)(unsafe.Add(q.tx, uint64(n&q.mask)*descSize))
}

// batch is what one pass posted. Only its last transmit requests a write-back, which completes all, because transmits
// of one ring complete in order.
type batch struct {
	end  uint32 // the number after its last transmit's
	slot uint32 // start of the pass: transmits from this batch on use no buffer of an earlier slot
}

const batchSize = 8

var _ [batchSize]byte = [unsafe.Sizeof(batch{})]byte{}

func (q *Queue) batch(first uint32) *batch {
	return (*batch)(unsafe.Add(q.batches, first&q.mask*batchSize))
}

// Poll makes one pass: it receives waiting frames, at most maxBatch, rewrites those that it answers in place, posts
// them, and writes TDT once. It calls reclaim if there was nothing to answer, or if reclaimAt slots wait. It returns
// the number of replies posted.
//
// The fields of q are read where they are used: copies of them in local variables would not fit the registers.
func (q *Queue) Poll(r *fastpath.Responder) int {
	next, tail := q.rxNext, q.txTail
	for q.rxEnd = next + maxBatch; next != q.rxEnd; {
		slot := next & q.mask
		// nic/memory-order.md: done, then the rest
		w := atomic.LoadUint64((*uint64)(unsafe.Add(q.rxStatus, uint64(slot)*descSize)))
		if uint32(w)&(rxDD|rxEOP|rxErrors) != rxDD|rxEOP {
			if uint32(w)&rxDD == 0 {
				break
			}
			next++
			q.badWriteback.Add(1)
			continue
		}
		next++
		n := int(uint16(w >> rxLength))
		if uint32(n-minFrame) > q.most {
			q.badWriteback.Add(1)
			continue
		}
		h := (*[64]byte)(unsafe.Add(q.buf, uint64(slot)*uint64(q.stride)))
		if tail == q.txRoom {
			q.full(r, h, n)
			continue
		}
		if n >= fastpath.LongFrame {
			r.Verified = uint32(w)&(rxL4I|rxL4E) == rxL4I
		}
		// The descriptor is written before the reply exists (it has the same length), so that none of its inputs stays
		// live across the call. The device does not read descriptors from TDT on.
		*q.transmit(tail) = txRead{q.delta + uint64(uintptr(unsafe.Pointer(h))), uint32(n) | txWhole,
			uint32(n) << txPayShift}
		if !r.Reply(h, n) {
			if n = r.Slow(h, n); n == 0 {
				continue
			}
			t := q.transmit(tail)
			t.cmd, t.status = uint32(n)|txWhole, uint32(n)<<txPayShift
			tail++
			continue
		}
		tail++
	}
	first, began := q.txTail, q.rxNext
	q.rxNext = next
	if tail != first {
		r.Departing()
		// post, inlined by hand: a call here would delay the doorbell.
		q.txDesc((tail - 1) & q.mask).cmd |= txRS
		*q.batch(first) = batch{tail, began}
		polling.Publish(&q.txTail, tail)
		mmio.Store32(q.tdt, tail&q.mask) // nic/memory-order.md: descriptors, then the doorbell
		if next-q.refilled < reclaimAt {
			return int(tail - first)
		}
	}
	if q.txDone != tail || q.refilled != next {
		q.reclaim()
	}
	return int(tail - first)
}

// full counts a frame for whose reply there is no room.
//
//go:noinline
func (q *Queue) full(r *fastpath.Responder, h *[64]byte, n int) {
	if !r.Reply(h, n) {
		n = r.Slow(h, n)
	}
	if n != 0 {
		r.Departing() // while the buffer is ours
		q.txFull.Add(1)
	}
}

// post passes the transmits from first up to tail to the device, for a pass that began at slot.
func (q *Queue) post(first, tail, slot uint32) {
	q.txDesc((tail - 1) & q.mask).cmd |= txRS
	*q.batch(first) = batch{tail, slot}
	polling.Publish(&q.txTail, tail)
	mmio.Store32(q.tdt, tail&q.mask)
}

// reclaim handles completed transmits and posts the slots that are free again: all those of passes before the oldest
// pass that is still being sent. DD of a slot is cleared before it is posted, and the slot before the oldest refilled
// one is never posted (§7.1.9: head equal to tail means empty), so Poll finds no stale DD however far the device gets.
func (q *Queue) reclaim() {
	done, mask, free := q.txDone, q.mask, q.rxNext
	for done != q.txTail {
		b := q.batch(done)
		if atomic.LoadUint32(&q.txDesc((b.end-1)&mask).status)&txDD == 0 { // nic/memory-order.md: done, then the rest
			free = b.slot
			break
		}
		done = b.end
	}
	q.txRoom = done + mask
	polling.Publish(&q.txDone, done)
	refilled := q.refilled
	for refilled != free {
		// Within the ring, each descriptor and each address follows from the previous one.
		slot, n := refilled&mask, free-refilled
		n = min(n, mask+1-slot)
		refilled += n
		d, stride := (*rxRead)(unsafe.Add(q.rx, slot*descSize)), uint64(q.stride)
		for at := q.iova + uint64(slot)*stride; n != 0; n-- {
			d.pkt, d.hdr = at, 0
			at += stride
			d = (*rxRead)(unsafe.Add(unsafe.Pointer(d), descSize))
		}
	}
	q.refilled = refilled
	if refilled-q.posted >= refillBatch {
		q.posted = refilled
		mmio.Store32(q.rdt, (refilled-1)&mask) // nic/memory-order.md: descriptors, then the doorbell
	}
}

// reset puts the rings into the state in which init programs them: all slots posted, nothing to transmit.
func (q *Queue) reset() {
	q.delta, q.rxStatus, q.most = q.iova-uint64(uintptr(q.buf)), unsafe.Add(q.rx, descSize/2), q.bufSize-minFrame
	q.rxNext, q.refilled, q.posted, q.txTail, q.txDone, q.txRoom = 0, 0, 0, 0, 0, q.mask
	for slot := range q.mask + 1 {
		*q.rxRead(slot) = rxRead{pkt: q.iova + uint64(slot*q.stride)}
		*q.txDesc(slot) = txRead{}
	}
}

// send posts a copy of frame. more are further bits of its descriptor.
func (q *Queue) send(frame []byte, more uint32) error {
	q.reclaim()
	n := q.txTail & q.mask
	if q.txTail == q.txRoom {
		return nic.ErrFull
	}
	copy(unsafe.Slice((*byte)(unsafe.Add(q.sendBuf, n*q.stride)), q.bufSize), frame)
	*q.txDesc(n) = txRead{
		addr:   q.sendIOVA + uint64(n*q.stride),
		cmd:    uint32(len(frame)) | txWhole | more,
		status: uint32(len(frame)) << txPayShift,
	}
	q.post(q.txTail, q.txTail+1, q.rxNext)
	return nil
}

// recv copies the next frame out and frees its slot. It returns -1 if there is none.
func (q *Queue) recv(buf []byte) (size int, at int64, status uint32) {
	for {
		slot := q.rxNext & q.mask
		d := q.rxDone(slot)
		status := atomic.LoadUint32(&d.status)
		if status&rxDD == 0 {
			q.reclaim()
			return -1, 0, 0
		}
		at := int64(polling.TSC())
		n := uint32(d.length)
		bad := status&(rxEOP|rxErrors) != rxEOP || n < minFrame || n > q.bufSize
		if bad {
			q.badWriteback.Add(1)
		} else {
			copy(buf, unsafe.Slice((*byte)(unsafe.Add(q.buf, slot*q.stride)), n))
		}
		q.rxNext++
		q.reclaim()
		if !bad {
			return int(n), at, status
		}
	}
}
