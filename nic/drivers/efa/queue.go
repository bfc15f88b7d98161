package efa

import (
	"sync/atomic"
	"unsafe"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/polling"
)

const (
	maxBatch    = 32 // most messages that one pass processes from each completion ring
	refillBatch = 16 // number of free buffers posted together
	reclaimAt   = 32 // free buffers or sends that may wait for reclaim while each pass answers something
	maxSubs     = 8  // most rings in a completion queue that this driver supports
	sendSlots   = 64 // buffers of a queue pair for send

	pairBits = 2 // low bits of a slot's number: its queue pair
	maxPairs = 1 << pairBits
)

var _ [maxPairs]struct{} = [nic.Services]struct{}{}

// State of a slot, in the low bits of its word. Bits 15:2 of the word count its sends, 31:16 are the address handle of
// its last send: the watchdog uses them to find messages that were not accepted, and their peers.
const (
	slotOurs    = 0
	slotPosted  = 1
	slotSending = 2
	slotState   = 3
)

// ring is a completion ring. Its indices are free-running; their low bits index the ring, and the next bit is the round
// and so the phase.
type ring struct {
	at   unsafe.Pointer
	head uint32 // completions consumed
}

type pair struct {
	llq          unsafe.Pointer // send queue entries, in the device
	rq           unsafe.Pointer // receive descriptors
	free         unsafe.Pointer // uint16, a stack of receive slots to post; frees is its height
	sqDB, rqDB   *uint32
	frees        uint32
	posted, done uint32 // sends pushed, and how many of these are completed
	rung         uint32 // sends reported to the device
	rxTail       uint32 // receive descriptors written
	number       uint32
	skip         uint32 // bytes before each received message: 40 for datagrams
	stamp        bool
	sends        uint32         // free send slots
	sendFree     unsafe.Pointer // uint16, a stack of free send slots
	_            [32]byte
}

// Queue is the unit that one loop polls: up to four queue pairs that share a completion queue for receives and one for
// sends. A completion queue of some devices has several rings, and the device says which one a queue pair uses.
//
// A request ID is a slot, see the package documentation. The device may complete in any order. If it completes an ID
// that it does not have, fault is set and the device is reset.
type Queue struct {
	rx, tx           [maxSubs]ring
	rxSubs, txSubs   uint32
	rxMask, rxShift  uint32 // of each completion ring: entries - 1, and their binary logarithm
	txMask, txShift  uint32
	rxCQDB, txCQDB   *uint32 // completions consumed, on devices that require it; or nil
	rxTaken, txTaken uint32  // of all rings: consumed, reported to the device, and at the last reclaim
	rxTold, txTold   uint32
	rxTidied         uint32

	pairs     [maxPairs]pair
	npairs    uint32
	pairShift uint32 // a queue pair has 1 << pairShift receive slots
	slots     uint32 // receive slots of all pairs; those of send follow
	all       uint32
	word      unsafe.Pointer // uint32, by slot

	buf       unsafe.Pointer // slots: room, then the message
	iova      uint64
	stride    uint32
	size      uint32 // greatest length of a message in a slot
	key       uint64 // local key of the memory
	qkey      uint64
	sqMask    uint32 // entries of a send queue - 1
	sqShift   uint32
	burst     uint32 // entries that may be pushed between doorbells
	entry     uint32 // size of an entry in bytes
	maxInline uint32 // greatest number of data bytes in an entry
	scratch   unsafe.Pointer

	// The sender of the last message of recv, as in its completion.
	received struct {
		from uint64
		gid  [16]byte
	}

	unknownSender unknownSender

	fault atomic.Uint32 // why the device has to be reset (faultXxx); the loop stops then

	// Written only by this loop; ReadStats loads them.
	badRx, txFull polling.Counter
	failed        [statuses + 1]polling.Counter // sends by status; the last counts unknown statuses

	_ [32]byte // pads to whole cache lines, so that two queues on the heap never share one
}

var _ [0]byte = [unsafe.Sizeof(Queue{}) % 64]byte{}

// Reasons for which the loop stopped.
const (
	faultNone = iota
	faultRxID
	faultTxID
	faultFlushed
)

// Poll makes one pass: it takes the available messages, at most maxBatch from each ring, turns those that need one into
// replies in place, pushes them, and rings the doorbells. It calls reclaim if there was nothing to answer, or if much
// is waiting for reclaim. It returns the number of replies.
func (q *Queue) Poll(r *fastpath.Responder) int {
	if q.fault.Load() != faultNone {
		return 0
	}
	n := 0
	for s := uint32(0); s < q.rxSubs; s++ {
		c := &q.rx[s&(maxSubs-1)]
		head := c.head
		for end := head + maxBatch; head != end; head++ {
			d := (*rxCompletion)(unsafe.Add(c.at, head&q.rxMask*rxCQE))
			w := atomic.LoadUint64(&d.common) // nic/memory-order.md: done, then the rest
			if uint32(w>>cqPhase)&1 == head>>(q.rxShift&31)&1 {
				break
			}
			slot, from := uint32(w&0xFFFF), d.from
			p := q.complete(slot, uint32(w>>cqPair)&0xFFFF)
			if p == nil {
				break
			}
			m, imm := uint32(w>>cqLength)-p.skip, uint32(0)
			if w&cqImmediate != 0 {
				imm = uint32(from >> 32)
			}
			if w&cqKind != cqReceived || m > q.size {
				q.bad(r, p, slot, w)
				continue
			}
			sender := from & 0xFFFF_FFFF
			switch {
			case from&0xFFFF == noHandle:
				q.park(r, p, slot, m, from, imm, &d.gid)
				continue
			case p.stamp:
				if m = q.reflect(r, slot, m, sender, imm); m == 0 {
					q.recycle(p, slot)
					continue
				}
			case r.Message(sender, imm):
				r.Returned()
			default:
				n += q.unsettled(r, p, slot, m, sender, imm)
				continue
			}
			if !q.transmit(p, slot, m, sender, reply) {
				q.txFull.Add(1)
				q.recycle(p, slot)
				continue
			}
			n++
		}
		q.rxTaken += head - c.head
		c.head = head
	}
	if n > 0 {
		q.ring()
	}
	if n == 0 || q.rxTaken-q.rxTidied >= reclaimAt {
		q.reclaim()
		if q.unknownSender.waiting != 0 {
			q.unpark(r)
		}
	}
	return n
}

func (q *Queue) slotWord(slot uint32) *uint32 { return (*uint32)(unsafe.Add(q.word, slot*4)) }

// complete checks a receive completion's request ID and takes the buffer back from the device. It returns the queue
// pair, or nil if the device does not have such a buffer.
func (q *Queue) complete(slot, number uint32) *pair {
	if slot < q.slots { // before there is a pointer to its word, because the garbage collector checks pointers
		p, word := &q.pairs[slot>>(q.pairShift&31)&(maxPairs-1)], q.slotWord(slot)
		if *word&slotState == slotPosted && p.number == number {
			polling.Publish(word, *word^slotPosted)
			return p
		}
	}
	q.fault.Store(faultRxID)
	return nil
}

// recycle adds a receive slot to those to be posted.
func (q *Queue) recycle(p *pair, slot uint32) {
	*(*uint16)(unsafe.Add(p.free, p.frees*2)) = uint16(slot)
	p.frees++
}

// bad counts an impossible message, or a failed receive.
//
//go:noinline
func (q *Queue) bad(r *fastpath.Responder, p *pair, slot uint32, w uint64) {
	q.badRx.Add(1)
	switch {
	case uint8(w>>cqStatus) == statusFlushed:
		q.fault.Store(faultFlushed) // only the device could have flushed the queue pair
	case uint8(w>>cqStatus) == statusOK && r != nil:
		r.RefuseFor(fastpath.RefusedMessage)
	}
	q.recycle(p, slot)
}

// message is the start of a slot's message.
func (q *Queue) message(slot uint32) unsafe.Pointer { return unsafe.Add(q.buf, slot*q.stride+room) }

// reflect turns a test packet into its reply. It returns the reply's length, or 0 if there is none.
//
//go:noinline
func (q *Queue) reflect(r *fastpath.Responder, slot, m uint32, sender uint64, imm uint32) uint32 {
	return uint32(r.ReflectMessage(unsafe.Slice((*byte)(q.message(slot)), q.size), int(m), sender, imm))
}

// How transmit sends a message.
const (
	reply   uint64 = txAlways | txImmediate // with fastpath.ReplyMark
	request uint64 = txAlways
)

// transmit pushes the entry that sends the m bytes of slot to an address handle (15:0) and a queue pair (31:16). The
// slot belongs to the device until the send is completed.
func (q *Queue) transmit(p *pair, slot, m uint32, to, kind uint64) bool {
	place := p.posted & q.sqMask
	if p.posted-p.done > q.sqMask {
		return false
	}
	if p.posted-p.rung == q.burst {
		q.ring()
	}
	at := unsafe.Add(q.buf, slot*q.stride+room-metaSize)
	w0 := uint64(slot) | kind | uint64(p.posted>>(q.sqShift&31)&1)<<txPhase | to>>16<<txDestination
	if m <= q.maxInline {
		w0 |= txInline | uint64(m)<<txLength
	} else {
		at = q.scratch
		w0 |= 1 << txLength
		b := (*[2]uint64)(unsafe.Add(at, metaSize))
		b[0] = uint64(m) | q.key<<txKey
		b[1] = q.iova + uint64(slot*q.stride) + room
	}
	d := (*txMeta)(at)
	d[0] = w0
	d[1] = to&0xFFFF<<txHandle | uint64(fastpath.ReplyMark)*(kind>>20&1) // bit 20: txImmediate
	d[2] = q.qkey
	d[3] = 0
	mmio.CopyWC(unsafe.Add(p.llq, place*q.entry), at, int(q.entry/mmio.BlockSize))
	polling.Publish(q.slotWord(slot), uint32(to)<<16|uint32(uint16(*q.slotWord(slot)+4))&^slotState|slotSending)
	polling.Publish(&p.posted, p.posted+1)
	return true
}

// ring notifies the device of all pushed entries, which must have left the write-combining buffers before.
func (q *Queue) ring() {
	mmio.FenceWC() // nic/memory-order.md: entries, then the doorbell
	for i := uint32(0); i < q.npairs; i++ {
		if p := &q.pairs[i&(maxPairs-1)]; p.posted != p.rung {
			p.rung = p.posted
			mmio.Store32(p.sqDB, p.posted&0xFFFF)
		}
	}
}

// reclaim collects completed sends and posts free buffers.
func (q *Queue) reclaim() {
	q.rxTidied = q.rxTaken
	for s := uint32(0); s < q.txSubs; s++ {
		c := &q.tx[s&(maxSubs-1)]
		for {
			w := atomic.LoadUint64((*uint64)(unsafe.Add(c.at, c.head&q.txMask*txCQE)))
			if uint32(w>>cqPhase)&1 == c.head>>(q.txShift&31)&1 {
				break
			}
			if !q.sent(w) {
				return
			}
			c.head++
			q.txTaken++
		}
	}
	for i := uint32(0); i < q.npairs; i++ {
		if p := &q.pairs[i&(maxPairs-1)]; p.frees >= refillBatch {
			if q.rxTold != q.rxTaken { // first, so that posted buffers never complete to more entries than the ring has
				q.rxTold = q.rxTaken
				if q.rxCQDB != nil {
					mmio.Store32(q.rxCQDB, q.rxTaken&0xFFFF)
				}
			}
			q.refill(p)
		}
	}
	if q.txTaken-q.txTold >= refillBatch {
		q.txTold = q.txTaken
		if q.txCQDB != nil {
			mmio.Store32(q.txCQDB, q.txTaken&0xFFFF)
		}
	}
}

// sent takes back the slot of a send completion.
func (q *Queue) sent(w uint64) bool {
	slot := uint32(w & 0xFFFF)
	i := slot >> (q.pairShift & 31)
	if slot >= q.slots {
		i = (slot - q.slots) / sendSlots
	}
	p := &q.pairs[i&(maxPairs-1)]
	if slot >= q.all || *q.slotWord(slot)&slotState != slotSending || p.number != uint32(w>>cqPair)&0xFFFF ||
		w>>25&3 != cqSent>>25 {
		q.fault.Store(faultTxID)
		return false
	}
	if status := uint8(w >> cqStatus); status != statusOK {
		q.failed[min(status, statuses)].Add(1)
	}
	polling.Publish(q.slotWord(slot), *q.slotWord(slot)&^slotState)
	polling.Publish(&p.done, p.done+1)
	if slot < q.slots {
		q.recycle(p, slot)
	} else {
		*(*uint16)(unsafe.Add(p.sendFree, p.sends*2)) = uint16(slot)
		p.sends++
	}
	return true
}

// refill posts all free buffers of a queue pair.
func (q *Queue) refill(p *pair) {
	mask := uint32(1)<<(q.pairShift&31) - 1
	for p.frees > 0 {
		p.frees--
		slot := uint32(*(*uint16)(unsafe.Add(p.free, p.frees*2)))
		addr := q.iova + uint64(slot*q.stride+room-p.skip)
		*(*rxDesc)(unsafe.Add(p.rq, p.rxTail&mask*descSize)) = rxDesc{
			addr, uint64(slot) | uint64(q.size+p.skip)<<rxLength | q.key<<rxKey | rxWhole,
		}
		polling.Publish(q.slotWord(slot), *q.slotWord(slot)|slotPosted)
		p.rxTail++
	}
	mmio.Store32(p.rqDB, p.rxTail&0xFFFF) // nic/memory-order.md: descriptors, then the doorbell
}

// reset empties the rings, for new queue pairs of the device. fill then posts all buffers.
func (q *Queue) reset() {
	for s := range q.rxSubs {
		q.rx[s].head = 0
	}
	for s := range q.txSubs {
		q.tx[s].head = 0
	}
	q.rxTaken, q.txTaken, q.rxTold, q.txTold, q.rxTidied = 0, 0, 0, 0, 0
	clear(unsafe.Slice((*uint32)(q.word), q.all))
	for i := range q.npairs {
		p := &q.pairs[i]
		p.posted, p.done, p.rung, p.rxTail, p.frees, p.sends = 0, 0, 0, 0, 0, 0
		for n := range uint32(1) << q.pairShift {
			q.recycle(p, i<<q.pairShift+n)
		}
		for n := range uint32(sendSlots) {
			*(*uint16)(unsafe.Add(p.sendFree, n*2)) = uint16(q.slots + i*sendSlots + n)
		}
		p.sends = sendSlots
	}
	q.unknownSender.reset()
	q.fault.Store(faultNone)
}

func (q *Queue) fill() {
	for i := range q.npairs {
		q.refill(&q.pairs[i])
	}
}

// send pushes a copy of a message, from one of send's slots.
func (q *Queue) send(p *pair, message []byte, to uint64) bool {
	q.reclaim()
	if q.fault.Load() != faultNone || p.sends == 0 {
		return false
	}
	slot := uint32(*(*uint16)(unsafe.Add(p.sendFree, (p.sends-1)*2)))
	copy(unsafe.Slice((*byte)(q.message(slot)), q.size), message)
	if !q.transmit(p, slot, uint32(len(message)), to, request) {
		return false
	}
	p.sends--
	q.ring()
	return true
}

// recv copies the next message out. It returns -1 if there is none.
func (q *Queue) recv(buf []byte) (n int, at int64) {
	for s := uint32(0); s < q.rxSubs && q.fault.Load() == faultNone; s++ {
		c := &q.rx[s&(maxSubs-1)]
		for {
			d := (*rxCompletion)(unsafe.Add(c.at, c.head&q.rxMask*rxCQE))
			w := atomic.LoadUint64(&d.common)
			if uint32(w>>cqPhase)&1 == c.head>>(q.rxShift&31)&1 {
				break
			}
			at = int64(polling.TSC())
			slot := uint32(w & 0xFFFF)
			p := q.complete(slot, uint32(w>>cqPair)&0xFFFF)
			if p == nil {
				break
			}
			c.head++
			q.rxTaken++
			m := uint32(w>>cqLength) - p.skip
			if w&cqKind != cqReceived || m > q.size {
				q.bad(nil, p, slot, w)
				continue
			}
			copy(buf, unsafe.Slice((*byte)(q.message(slot)), m))
			q.received.from = d.from
			if d.from&0xFFFF == noHandle { // the completion has a GID then
				q.received.gid = d.gid
			}
			q.recycle(p, slot)
			q.reclaim()
			if m > 0 {
				return int(m), at
			}
		}
	}
	q.reclaim()
	return -1, 0
}
