package ena

import (
	"sync/atomic"
	"unsafe"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/polling"
)

const (
	maxBatch = 32 // frames that one pass takes at most
	consumed = 16 // completions between two reports to a device that needs them
	minFrame = 14 // an Ethernet header
)

// Values of a transmit request ID's entry.
const (
	idFree = 0      // not in use
	idOnly = 0xFFFF // it is, with no receive buffer
	// Any other value is the receive buffer's slot + 1.
)

// Queue is one receive and one transmit queue, each a submission queue (SQ) and a completion queue (CQ). Entry numbers
// are free-running; their low bits index the ring, and the bit above those gives the round and so the phase.
//
// A request ID is a buffer on the receive side and an entry's index in the ring on the transmit side. The device may
// complete in any order. An ID that is not in use sets fault: the device is no longer trusted and is reset.
type Queue struct {
	rxSQ, rxCQ, txCQ unsafe.Pointer
	txSQ             unsafe.Pointer // descriptors in host memory, or nil with LLQ
	llq              unsafe.Pointer // entries in the device, or nil without
	rxDB, txDB       *uint32
	rxHeadDB         *uint32 // completions consumed, on devices that need it; or nil
	txHeadDB         *uint32

	buf    unsafe.Pointer // slots: room, then the frame; first those that receive, then those that send fills
	iova   uint64
	stride uint32
	size   uint32 // size of a slot in bytes of frame
	mask   uint32 // depth of the receive queue - 1
	shift  uint32 // its binary logarithm: the bit of a number that is the round
	// lot is how many frames one pass takes at most, and how many free buffers or transmits may wait for reclaim while
	// each pass answers something; half as many free buffers are posted together. So an eighth of the ring at most has
	// no buffers: newer devices lose a frame if the part of the ring that its hash chooses is empty (iPXE b2e846821).
	lot uint32

	txMask    uint32 // depth of the transmit queue - 1
	txShift   uint32
	entry     uint32 // bytes of an LLQ entry
	maxInline uint32 // bytes of a frame that go with the descriptors
	burst     uint32 // LLQ entries that may be pushed between doorbells
	omitMeta  bool   // no meta descriptor in front of frames that are pushed
	headerMax uint32 // without LLQ: the maximum header length in the descriptor

	rxHead, rxTail uint32 // completions consumed, descriptors written
	txHead, txTail uint32
	txRung         uint32 // of these, reported to the device

	// Arrays of one element for each entry of the ring. IDs that the device names are checked before they index one.
	posted unsafe.Pointer // bool, by receive request ID: the device has the buffer
	free   unsafe.Pointer // uint16, a stack of buffers to post, frees high
	frees  uint32
	txHeld unsafe.Pointer // uint16, by transmit request ID: idFree, idOnly or a buffer

	fault atomic.Uint32 // reset reason (resetXxx + 1); the loop stops

	// One writer, this loop; ReadStats loads them.
	badRx, txFull, txErrors, l3Errors, l4Errors polling.Counter

	rxSQIOVA, rxCQIOVA, txSQIOVA, txCQIOVA uint64 // of the rings

	_ [48]byte // to whole cache lines, so that the heap puts no two queues into one
}

var _ [0]byte = [unsafe.Sizeof(Queue{}) % 64]byte{}

// Poll makes one pass: it receives waiting frames, at most lot, rewrites those that it answers in place, pushes or
// posts them, and rings the doorbell once. It calls reclaim if there was nothing to answer, or if lot buffers or
// requests wait. It returns the number of replies.
func (q *Queue) Poll(r *fastpath.Responder) int {
	if q.fault.Load() != 0 {
		return 0
	}
	n := 0
	head := q.rxHead
	for end := head + q.lot; head != end; head++ {
		c := (*rxCompletion)(unsafe.Add(q.rxCQ, head&q.mask*descSize))
		status := atomic.LoadUint32(&c.status) // nic/memory-order.md: done, then the rest
		if status>>rxPhase&1 == head>>(q.shift&31)&1 {
			break
		}
		slot, length := uint32(c.id), uint32(c.length)
		if !q.complete(slot, c.offset) {
			break
		}
		if status&(rxL3Err|rxL4Err) != 0 {
			q.countErrors(status)
		}
		if status&(rxFirst|rxLast) != rxFirst|rxLast || length < minFrame || length > q.size {
			q.badRx.Add(1)
			q.recycle(slot)
			continue
		}
		h, m := (*[64]byte)(unsafe.Add(q.buf, slot*q.stride+room)), int(length)
		if m >= fastpath.LongFrame {
			r.Verified = status&(rxL4Checked|rxL4Err|rxFragment) == rxL4Checked
		}
		if !r.Reply(h, m) {
			if m = r.Slow(h, m); m == 0 {
				q.recycle(slot)
				continue
			}
		}
		r.Departing() // the frame may be copied, whole or its head
		if !q.transmit(slot, uint32(m)) {
			q.txFull.Add(1)
			q.recycle(slot)
			continue
		}
		n++
	}
	q.rxHead = head
	if q.txTail != q.txRung {
		q.ring()
	}
	if n == 0 || q.frees >= q.lot || q.txTail-q.txHead >= q.lot {
		q.reclaim()
	}
	return n
}

func (q *Queue) isPosted(slot uint32) *bool { return (*bool)(unsafe.Add(q.posted, slot)) }
func (q *Queue) held(id uint32) *uint16     { return (*uint16)(unsafe.Add(q.txHeld, id*2)) }

// complete checks a receive completion's request ID and takes the buffer back from the device.
func (q *Queue) complete(slot uint32, offset uint8) bool {
	if slot > q.mask || !*q.isPosted(slot) || offset != 0 {
		q.fault.Store(resetInvalidRxID + 1)
		return false
	}
	*q.isPosted(slot) = false
	return true
}

// recycle adds a buffer to those to be posted.
func (q *Queue) recycle(slot uint32) {
	*(*uint16)(unsafe.Add(q.free, q.frees*2)) = uint16(slot)
	q.frees++
}

//go:noinline
func (q *Queue) countErrors(status uint32) {
	if status&rxL3Mask == rxL3IPv4 && status&rxL3Err != 0 {
		q.l3Errors.Add(1)
	}
	if status&rxL4Checked != 0 && status&rxL4Err != 0 {
		q.l4Errors.Add(1)
	}
}

// transmit writes the request that sends m bytes from slot. The buffer of a frame that is pushed whole is free at once;
// otherwise the request owns it until its completion.
func (q *Queue) transmit(slot, m uint32) bool {
	id := q.txTail & q.txMask
	if *q.held(id) != idFree || q.txTail-q.txHead == q.txMask { // one entry stays empty, so that full and empty differ
		return false
	}
	at := unsafe.Add(q.buf, slot*q.stride)
	addr := q.iova + uint64(slot*q.stride) + room
	ctrl := uint64(q.txTail>>(q.txShift&31)&1^1)<<txPhase | txFirst | txLast | txCompReq | uint64(id>>10)<<txIDHi |
		uint64(id)<<txIDLo
	held := uint16(idOnly)
	if q.llq == nil {
		held = uint16(slot) + 1
		*(*txDesc)(unsafe.Add(q.txSQ, id*descSize)) = txDesc{ctrl | uint64(m),
			addr | uint64(min(m, q.headerMax))<<txHeader}
	} else {
		pushed := m
		if m > q.maxInline {
			pushed = q.maxInline
			held = uint16(slot) + 1
			ctrl |= uint64(m - pushed)
			addr += uint64(pushed)
		} else {
			addr = 0
		}
		entry := (*[2]txDesc)(at)
		// Every frame has a meta descriptor: devices may cache none, and newer ones need it without announcing that.
		entry[0] = txDesc{ctrl&(1<<txPhase) | txMeta | txFirst | metaExtValid | metaExtended | metaStore, 0}
		entry[1] = txDesc{ctrl &^ txFirst, addr | uint64(pushed)<<txHeader}
		if q.omitMeta {
			*entry = [2]txDesc{{ctrl, entry[1].addr}, {}}
		}
		if q.burst != 0 && q.txTail-q.txRung == q.burst {
			q.ring()
		}
		mmio.CopyWC(unsafe.Add(q.llq, id*q.entry), at, int(q.entry/64))
	}
	*q.held(id) = held
	polling.Publish(&q.txTail, q.txTail+1)
	if held == idOnly {
		q.recycle(slot)
	}
	return true
}

// ring notifies the device of everything that was pushed or posted. Pushed entries must have left the write-combining
// buffers before.
func (q *Queue) ring() {
	q.txRung = q.txTail
	if q.llq != nil {
		mmio.FenceWC() // nic/memory-order.md: entries, then the doorbell
	}
	mmio.Store32(q.txDB, q.txTail&0xFFFF) // nic/memory-order.md: descriptors, then the doorbell
}

// reclaim takes back the transmits that are done and posts the buffers that are free.
func (q *Queue) reclaim() {
	for {
		c := txCompletion(atomic.LoadUint64((*uint64)(unsafe.Add(q.txCQ, q.txHead&q.txMask*txCQE))))
		if uint32(c>>24)&1 == q.txHead>>(q.txShift&31)&1 {
			break
		}
		id := uint32(c) & 0xFFFF
		if id > q.txMask || *q.held(id) == idFree {
			q.fault.Store(resetInvalidTxID + 1)
			return
		}
		if uint8(c>>16) != 0 {
			q.txErrors.Add(1)
		}
		if held := *q.held(id); held != idOnly {
			q.recycle(uint32(held) - 1)
		}
		*q.held(id) = idFree
		polling.Publish(&q.txHead, q.txHead+1)
		if q.txHeadDB != nil && q.txHead%consumed == 0 {
			mmio.Store32(q.txHeadDB, q.txHead&0xFFFF)
		}
	}
	if q.frees >= q.lot/2 {
		q.refill()
	}
}

// refill posts all free buffers. One entry of the ring stays empty, so that full and empty differ.
func (q *Queue) refill() {
	for q.frees > 0 {
		q.frees--
		slot := uint32(*(*uint16)(unsafe.Add(q.free, q.frees*2)))
		addr := q.iova + uint64(slot*q.stride) + room
		*(*rxDesc)(unsafe.Add(q.rxSQ, q.rxTail&q.mask*descSize)) = rxDesc{
			uint64(q.size) | rxWhole | uint64(q.rxTail>>(q.shift&31)&1^1)<<rxDescPhase | uint64(slot)<<rxDescID, addr,
		}
		*q.isPosted(slot) = true
		q.rxTail++
	}
	mmio.Store32(q.rxDB, q.rxTail&0xFFFF) // nic/memory-order.md: descriptors, then the doorbell
	if q.rxHeadDB != nil {
		mmio.Store32(q.rxHeadDB, q.rxHead&0xFFFF)
	}
}

// reset empties the rings for new queues of the device, and posts all buffers.
func (q *Queue) reset() {
	depth, txDepth := q.mask+1, q.txMask+1
	clear(unsafe.Slice((*byte)(q.rxCQ), depth*descSize))
	clear(unsafe.Slice((*byte)(q.txCQ), txDepth*txCQE))
	q.rxHead, q.rxTail, q.txHead, q.txTail, q.txRung = 0, 0, 0, 0, 0
	q.frees, q.lot = 0, min(maxBatch, depth/16)
	for n := range q.mask { // one buffer fewer than entries
		q.recycle(n)
	}
	clear(unsafe.Slice((*bool)(q.posted), depth))
	clear(unsafe.Slice((*uint16)(q.txHeld), txDepth))
	q.fault.Store(0)
	q.refill()
}

// send pushes or posts a copy of frame from a buffer of the queue's own.
func (q *Queue) send(frame []byte) bool {
	q.reclaim()
	if q.fault.Load() != 0 {
		return false
	}
	// The device owns the receive buffers. These are additional ones, one per transmit request, which are free while
	// the request is.
	id := q.txTail & q.txMask
	slot := q.mask + 1 + id
	if *q.held(id) != idFree {
		return false
	}
	copy(unsafe.Slice((*byte)(unsafe.Add(q.buf, slot*q.stride+room)), q.size), frame)
	frees := q.frees
	if !q.transmit(slot, uint32(len(frame))) {
		return false
	}
	q.frees, *q.held(id) = frees, idOnly // no receive buffer is returned
	q.ring()
	return true
}

// recv copies the next frame out. It returns -1 if there is none.
func (q *Queue) recv(buf []byte) (n int, at int64) {
	for q.fault.Load() == 0 {
		c := (*rxCompletion)(unsafe.Add(q.rxCQ, q.rxHead&q.mask*descSize))
		status := atomic.LoadUint32(&c.status)
		if status>>rxPhase&1 == q.rxHead>>(q.shift&31)&1 {
			break
		}
		at = int64(polling.TSC())
		slot, length := uint32(c.id), uint32(c.length)
		if !q.complete(slot, c.offset) {
			break
		}
		q.rxHead++
		bad := status&(rxFirst|rxLast) != rxFirst|rxLast || length < minFrame || length > q.size
		if bad {
			q.badRx.Add(1)
		} else {
			n = int(length)
			copy(buf, unsafe.Slice((*byte)(unsafe.Add(q.buf, slot*q.stride+room)), length))
		}
		q.recycle(slot)
		q.reclaim()
		if !bad {
			return n, at
		}
	}
	q.reclaim()
	return -1, 0
}
