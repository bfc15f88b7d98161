package toy

import (
	"sync/atomic"
	"unsafe"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/polling"
)

const (
	maxBatch = 16 // most frames that one pass processes
	minFrame = 14 // an Ethernet header
)

// Queue is one receive ring and one transmit ring of the same size. Slot and transmit numbers are free-running; their
// low bits index the rings. The comment on each ring field says who writes it.
type Queue struct {
	rx, tx, buf    unsafe.Pointer // descriptors, and one buffer for each receive slot
	rxBell, txBell *uint32

	iova         uint64 // of buf
	stride, size uint32 // from one buffer to the next, and what the device may write to one
	mask         uint32 // ring size - 1

	rxNext uint32 // next slot; all before it were received
	posted uint32 // slots before it belong to the device
	txTail uint32 // transmits before it were posted; read by the watchdog
	txDone uint32 // transmits before it are done; read by the watchdog

	// pend has, for each received slot, the transmit that must be done before the slot may be posted again (its number
	// + 1), or a number that is already done.
	pend unsafe.Pointer

	rxBytes, txBytes, txFull, badRx polling.Counter

	sendBuf        unsafe.Pointer // one buffer for each transmit descriptor, for Send
	sendIOVA       uint64
	rxIOVA, txIOVA uint64
}

func (q *Queue) rxDesc(n uint32) *desc    { return (*desc)(unsafe.Add(q.rx, n&q.mask*descSize)) }
func (q *Queue) txDesc(n uint32) *desc    { return (*desc)(unsafe.Add(q.tx, n&q.mask*descSize)) }
func (q *Queue) pending(n uint32) *uint32 { return (*uint32)(unsafe.Add(q.pend, n&q.mask*4)) }

// Poll makes one pass: it takes the available frames, at most maxBatch, rewrites those that need a reply in place,
// posts them, rings the doorbell once, and only then reclaims. It returns the number of replies posted.
func (q *Queue) Poll(r *fastpath.Responder) int {
	next, first := q.rxNext, q.txTail
	tail := first
	for end := min(maxBatch, q.posted-next) + next; next != end; next++ {
		// acquires the device's earlier writes (nic/memory-order.md, "done, then the rest")
		w := atomic.LoadUint64(&q.rxDesc(next).word)
		if w&descDone == 0 {
			break
		}
		*q.pending(next) = q.txDone
		n := int(uint16(w))
		if w&descError != 0 || uint(n-minFrame) > uint(q.size-minFrame) {
			q.badRx.Add(1)
			continue
		}
		q.rxBytes.Add(uint64(n))
		at := next & q.mask * q.stride
		h := (*[64]byte)(unsafe.Add(q.buf, at))
		if !r.Reply(h, n) {
			if n = r.Slow(h, n); n == 0 {
				continue
			}
		}
		if tail-q.txDone > q.mask {
			q.txFull.Add(1)
			continue
		}
		*q.txDesc(tail) = desc{addr: q.iova + uint64(at), word: uint64(n)}
		q.txBytes.Add(uint64(n))
		tail++
		*q.pending(next) = tail
	}
	q.rxNext = next
	r.Departing() // before the doorbell, and before the slots of replies that did not fit are returned
	if tail != first {
		polling.Publish(&q.txTail, tail)
		mmio.Store32(q.txBell, tail) // nic/memory-order.md, "descriptors, then the doorbell"
	}
	q.reclaim()
	return int(tail - first)
}

// reclaim collects completed transmits, and returns free slots to the device, in order.
func (q *Queue) reclaim() {
	done := q.txDone
	for done != q.txTail && atomic.LoadUint64(&q.txDesc(done).word)&descDone != 0 {
		done++
	}
	polling.Publish(&q.txDone, done)
	posted := q.posted
	for posted != q.rxNext+q.mask+1 && int32(done-*q.pending(posted)) >= 0 {
		*q.rxDesc(posted) = desc{addr: q.iova + uint64(posted&q.mask*q.stride)}
		posted++
	}
	if posted != q.posted {
		q.posted = posted
		mmio.Store32(q.rxBell, posted)
	}
}

// reset restores the ring state that start programs: all slots belong to the device, nothing to transmit.
func (q *Queue) reset() {
	q.rxNext, q.posted, q.txTail, q.txDone = 0, 0, 0, 0
	for n := range q.mask + 1 {
		*q.pending(n) = 0
		*q.txDesc(n) = desc{}
	}
	q.reclaim()
}

func (q *Queue) send(frame []byte) error {
	q.reclaim()
	n := q.txTail
	if n-q.txDone > q.mask {
		return nic.ErrFull
	}
	at := n & q.mask * q.stride
	copy(unsafe.Slice((*byte)(unsafe.Add(q.sendBuf, at)), q.size), frame)
	*q.txDesc(n) = desc{addr: q.sendIOVA + uint64(at), word: uint64(len(frame))}
	q.txBytes.Add(uint64(len(frame)))
	polling.Publish(&q.txTail, n+1)
	mmio.Store32(q.txBell, n+1)
	return nil
}

// recv copies the next frame out and frees its slot. It returns -1 if there is none.
func (q *Queue) recv(buf []byte) (n int, at int64) {
	defer q.reclaim()
	for q.rxNext != q.posted {
		w := atomic.LoadUint64(&q.rxDesc(q.rxNext).word)
		if w&descDone == 0 {
			break
		}
		at = int64(polling.TSC())
		*q.pending(q.rxNext) = q.txDone
		slot := q.rxNext & q.mask
		q.rxNext++
		n = int(uint16(w))
		if w&descError != 0 || n < minFrame || uint32(n) > q.size {
			q.badRx.Add(1)
			continue
		}
		q.rxBytes.Add(uint64(n))
		copy(buf, unsafe.Slice((*byte)(unsafe.Add(q.buf, slot*q.stride)), n))
		return n, at
	}
	return -1, 0
}
