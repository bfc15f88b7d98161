package virtio

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
	refillBatch = 32 // buffers that are returned before the device is notified
	reclaimAt   = 32 // transmits that may wait for reclaim while each pass answers something
	minFrame    = 14 // an Ethernet header
)

// Owner of a buffer, or of the transmit descriptor of the same number. A buffer that the loop owns has none of these
// values.
const (
	inReceive = 1 << iota // the device may write the buffer
	inReply               // the device reads the buffer
	inSend                // the device reads the Send buffer of this number
)

// Queue is one receive ring and one transmit ring of the same size, and as many buffers.
type Queue struct {
	rx, tx ring

	buf   unsafe.Pointer // the buffers
	owner unsafe.Pointer // one byte per buffer: its owner

	iova   uint64 // of buf
	delta  uint64 // iova - buf
	bufLen uint32 // bytes that the device may write to one buffer, including the header
	// from one buffer to the next: an odd number of cache lines, or all heads would share a few sets of the L1 cache
	stride uint32

	posted uint32 // receive entries before it are visible to the device

	// One writer, this loop; ReadStats and the watch load them.
	rxFrames, rxBytes, txFrames, txBytes polling.Counter
	txFull, badLength                    polling.Counter
	// a wrong* below: the device broke the protocol, and the queue stalls until it is reset
	distrusted uint32
	culprit    uint32 // the invalid number

	sendBuf  unsafe.Pointer // queue 0: one buffer for each transmit descriptor, for Send
	sendIOVA uint64
	sendNext uint32

	_ [36]byte // to whole cache lines, so that the heap puts no two queues into one
}

var _ [0]byte = [unsafe.Sizeof(Queue{}) % 64]byte{}

// Invalid used entries.
const (
	wrongRxIndex = 1 + iota
	wrongTxIndex
	wrongRxID
	wrongTxID
)

var wrongs = [...]string{
	wrongRxIndex: "receive ring: the used index jumps to %d",
	wrongTxIndex: "transmit ring: the used index jumps to %d",
	wrongRxID:    "receive ring: a used entry names buffer %d, which the device does not have",
	wrongTxID:    "transmit ring: a used entry names buffer %d, which the device does not have",
}

// hugePage is the smallest page size in which memory is contiguous behind two IOMMUs: the guest's, and the one that a
// back end of the device keeps.
const hugePage = 2 << 20

// crosses reports whether buffer id at base crosses the end of a huge page. Such a buffer is never used. The next page
// may be elsewhere in the guest's memory, and DPDK's vhost assumes that it follows (vhost_user_iotlb_cache_find adds up
// entries that are adjacent in device addresses, and returns the location of the first): it would write past the first
// page.
func (q *Queue) crosses(base unsafe.Pointer, id uint32) bool {
	first := uintptr(base) + uintptr(id*q.stride)
	return first/hugePage != (first+uintptr(q.bufLen)-1)/hugePage
}

// has returns the owner of buffer id.
func (q *Queue) has(id uint32) *uint8 { return (*uint8)(unsafe.Add(q.owner, id)) }

// Poll makes one pass: it receives waiting frames, at most maxBatch, rewrites those that it answers in place, posts
// them, and notifies once. It calls reclaim if there was nothing to answer, or if reclaimAt transmits wait. It returns
// the number of replies posted.
//
// The fields of q are read where they are used: copies of them in local variables would not fit the registers.
//
// A used entry is read after an atomic load of the word that makes it valid: the used index, or the descriptor's own
// flags. The order holds on amd64 without more, and on arm64 because that load is an acquire. A reply's descriptor is
// written before its available entry or its flags, which are written by a store with release semantics
// (nic/memory-order.md, "done, then the rest" and "entries, then the device's wish").
func (q *Queue) Poll(r *fastpath.Responder) int {
	next, tail := q.rx.seen, q.tx.next
	end := next + maxBatch
	if !q.rx.packed {
		ready := q.rx.usedEnd(next)
		if ready-next > q.rx.mask+1 {
			q.distrust(wrongRxIndex, ready)
			ready = next
		}
		if ready-next < maxBatch {
			end = ready
		}
	}
	for ; next != end; next++ {
		var id, length uint32
		if q.rx.packed {
			d := q.rx.packedAt(next)
			w := atomic.LoadUint32(&d.tail)
			if !q.rx.isUsed(w, next) {
				break
			}
			id, length = w&0xffff, d.len
		} else {
			e := q.rx.usedAt(next)
			id, length = e.id, e.len
		}
		if id > q.rx.mask || *q.has(id)&inReceive == 0 {
			q.distrust(wrongRxID, id)
			break
		}
		*q.has(id) &^= inReceive
		n := int(length) - headerLen
		if uint(n-minFrame) > uint(q.bufLen-headerLen-minFrame) {
			q.badLength.Add(1)
			q.arm(id)
			continue
		}
		q.rxBytes.Add(uint64(n))
		h := (*[64]byte)(unsafe.Add(q.buf, id*q.stride+headerLen))
		if !r.Reply(h, n) {
			if n = r.Slow(h, n); n == 0 {
				q.arm(id)
				continue
			}
		}
		if *q.has(id) != 0 { // Send's, of before this loop
			r.Departing() // while the buffer is ours
			q.txFull.Add(1)
			q.arm(id)
			continue
		}
		*q.has(id) = inReply
		p := unsafe.Add(unsafe.Pointer(h), -headerLen)
		*(*uint64)(p), *(*uint32)(unsafe.Add(p, 8)) = 0, 0 // the header
		size := uint32(n) + headerLen
		if q.rx.packed {
			r.Departing() // the device may read the frame at once
			d := q.tx.packedAt(tail)
			d.addr = q.delta + uint64(uintptr(p))
			mmio.Store64((*uint64)(unsafe.Pointer(&d.len)), uint64(size)|uint64(id|q.tx.avail(tail)<<16)<<32)
		} else {
			d := q.tx.splitAt(id)
			d.addr, d.len = q.delta+uint64(uintptr(p)), size
			*q.tx.availAt(tail) = uint16(id)
		}
		q.txBytes.Add(uint64(n))
		tail++
	}
	replies, frames := tail-q.tx.next, next-q.rx.seen
	if replies != 0 {
		r.Departing()
		q.post(tail) // first, counting later
	}
	if frames != 0 {
		q.rx.seen = next
		q.rxFrames.Add(uint64(frames))
		q.txFrames.Add(uint64(replies))
		if replies != 0 && tail-q.tx.seen < reclaimAt {
			return int(replies)
		}
	}
	if q.tx.seen != tail {
		q.reclaim()
	}
	if q.rx.next-q.posted >= refillBatch {
		q.publish()
	}
	return int(replies)
}

// post makes the transmits before tail available and notifies the device.
func (q *Queue) post(tail uint32) {
	polling.Publish(&q.tx.next, tail)
	if !q.tx.packed { // there the descriptors themselves show it
		q.tx.publish()
	}
	q.tx.notify()
}

// reclaim takes back the transmits that are done, and arms their buffers again.
func (q *Queue) reclaim() {
	r := &q.tx
	done, end := r.seen, r.next
	if !r.packed {
		if end = r.usedEnd(done); end-done > r.next-done {
			q.distrust(wrongTxIndex, end)
			return
		}
	}
	for ; done != end; done++ {
		var id uint32
		if r.packed {
			w := atomic.LoadUint32(&r.packedAt(done).tail)
			if !r.isUsed(w, done) {
				break
			}
			id = w & 0xffff
		} else {
			id = r.usedAt(done).id
		}
		own := (*uint8)(unsafe.Add(q.owner, id&r.mask))
		if id > r.mask || *own&(inReply|inSend) == 0 {
			q.distrust(wrongTxID, id)
			break
		}
		if *own&inSend != 0 {
			*own &^= inSend
		} else {
			*own = 0
			q.arm(id)
		}
	}
	polling.Publish(&r.seen, done)
}

// arm posts buffer id to the receive ring. The device may use it at once in a packed ring, and after give in a split
// ring.
func (q *Queue) arm(id uint32) {
	r := &q.rx
	*q.has(id) |= inReceive
	if r.packed {
		d := r.packedAt(r.next)
		d.addr = q.iova + uint64(id*q.stride)
		mmio.Store64((*uint64)(unsafe.Pointer(&d.len)), uint64(q.bufLen)|uint64(id|(r.avail(r.next)|descWrite)<<16)<<32)
	} else {
		*r.availAt(r.next) = uint16(id)
	}
	r.next++
}

// publish makes the posted buffers visible to the device.
func (q *Queue) publish() {
	q.posted = q.rx.next
	if !q.rx.packed {
		q.rx.publish()
	}
	q.rx.notify()
}

// distrust notes that the device's rings make no sense. The watch resets it; until then nothing more is taken from that
// ring.
//
//go:noinline
func (q *Queue) distrust(what, number uint32) {
	if q.distrusted == 0 {
		q.culprit = number
		atomic.StoreUint32(&q.distrusted, what)
	}
}

// reset puts the rings into the state in which the device is started with them: all buffers given to receive that are
// in one piece, nothing to transmit.
func (q *Queue) reset() {
	q.rx.reset()
	q.tx.reset()
	q.sendNext, q.distrusted = 0, 0
	q.delta = q.iova - uint64(uintptr(q.buf))
	clear(unsafe.Slice((*byte)(q.owner), q.rx.mask+1))
	for id := range q.rx.mask + 1 {
		if q.crosses(q.buf, id) {
			continue
		}
		if !q.rx.packed {
			*q.rx.splitAt(id) = splitDesc{addr: q.iova + uint64(id*q.stride), len: q.bufLen, flags: descWrite}
		}
		q.arm(id)
	}
	q.posted = q.rx.next
	if !q.rx.packed {
		q.rx.publish()
	}
}

// send posts a copy of frame.
func (q *Queue) send(frame []byte) error {
	q.reclaim()
	for q.crosses(q.sendBuf, q.sendNext&q.tx.mask) {
		q.sendNext++
	}
	id := q.sendNext & q.tx.mask
	own := (*uint8)(unsafe.Add(q.owner, id))
	if *own&(inReply|inSend) != 0 || q.distrusted != 0 {
		return nic.ErrFull
	}
	*own |= inSend
	q.sendNext++
	p, at := unsafe.Add(q.sendBuf, id*q.stride), q.sendIOVA+uint64(id*q.stride)
	copy(unsafe.Slice((*byte)(unsafe.Add(p, headerLen)), q.bufLen-headerLen), frame) // the header before it stays zero
	size, tail := uint32(len(frame))+headerLen, q.tx.next
	if q.tx.packed {
		d := q.tx.packedAt(tail)
		d.addr = at
		mmio.Store64((*uint64)(unsafe.Pointer(&d.len)), uint64(size)|uint64(id|q.tx.avail(tail)<<16)<<32)
	} else {
		d := q.tx.splitAt(id)
		d.addr, d.len = at, size
		*q.tx.availAt(tail) = uint16(id)
	}
	q.post(tail + 1)
	q.txFrames.Add(1)
	q.txBytes.Add(uint64(len(frame)))
	return nil
}

// recv copies the next frame out and returns its buffer. It returns -1 if there is none.
func (q *Queue) recv(buf []byte) (int, int64) {
	for {
		if q.tx.seen != q.tx.next {
			q.reclaim()
		}
		if q.rx.next-q.posted >= refillBatch {
			q.publish()
		}
		next := q.rx.seen
		var id, length uint32
		if q.rx.packed {
			d := q.rx.packedAt(next)
			w := atomic.LoadUint32(&d.tail)
			if !q.rx.isUsed(w, next) {
				return -1, 0
			}
			id, length = w&0xffff, d.len
		} else {
			if ready := q.rx.usedEnd(next); ready == next {
				return -1, 0
			} else if ready-next > q.rx.mask+1 {
				q.distrust(wrongRxIndex, ready)
				return -1, 0
			}
			e := q.rx.usedAt(next)
			id, length = e.id, e.len
		}
		at := int64(polling.TSC())
		if id > q.rx.mask || *q.has(id)&inReceive == 0 {
			q.distrust(wrongRxID, id)
			return -1, 0
		}
		n := int(length) - headerLen
		bad := uint(n-minFrame) > uint(q.bufLen-headerLen-minFrame)
		if bad {
			q.badLength.Add(1)
		} else {
			copy(buf, unsafe.Slice((*byte)(unsafe.Add(q.buf, id*q.stride+headerLen)), n))
			q.rxBytes.Add(uint64(n))
		}
		q.rx.seen++
		q.rxFrames.Add(1)
		q.arm(id)
		if !bad {
			return n, at
		}
	}
}
