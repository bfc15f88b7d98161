package mlx4

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
	maxBatch    = 32 // frames that one pass takes at most
	reclaimAt   = 32 // received slots that may wait for reclaim while each pass answers something
	refillBatch = 8  // receive slots that are free again before the device is notified
	minFrame    = 14 // an Ethernet header

	// slack is the number of bytes that may be loaded after the end of a frame: the rest of a block.
	slack = txbb
)

// Queue is a receive QP and a send QP, each with its completion queue. Numbers of slots, blocks and completions are
// free-running: their low bits index the ring, and the bit above those corresponds to the owner bit.
//
// A receive WQE is written once and always points to the buffer of its slot. Posting it again only advances the
// counter.
type Queue struct {
	rxCQ, txCQ unsafe.Pointer
	rq         unsafe.Pointer
	buf        unsafe.Pointer // a buffer for each receive slot: the frame, then slack
	pend       unsafe.Pointer // for each slot: the block of the send queue before which all must be done, uint32
	asked      unsafe.Pointer // WQEs that requested a completion, in order: first block, and the block after it
	bf         unsafe.Pointer // BlueFlame register, or nil
	db         *uint32        // send doorbell, if there is no BlueFlame

	wq mmio.SendRing // the send queue's blocks; there is no record

	rqRec, rxCQRec, txCQRec *uint32 // doorbell records

	iova   uint64 // of buf
	stride uint32
	size   uint32 // size of a slot in bytes of frame
	mask   uint32 // slots - 1
	shift  uint32
	wide   uint32 // 1 if completions take 64 bytes, of which the last 32 are used; rxCQ and txCQ lead there
	lkey   uint32
	number uint32 // of the send QP, in bits 31:8 as doorbell and BlueFlame have it

	// Parts of a WQE's first two dwords that are used with BlueFlame only, 0 without: see setFlame.
	indexes uint32 // a mask of bits of the index
	numbers uint64 // the number as it is in memory

	rxNext uint32 // next slot; all before it were received
	freed  uint32 // slots before it are free again
	posted uint32 // slots before it are the device's again

	txTail   uint32 // blocks before it were posted
	txDone   uint32 // blocks before it were sent, and are stamped
	txRung   uint32 // without BlueFlame: blocks before it were announced by a doorbell
	txAsked  uint32 // the block after the last WQE that requested a completion
	txMask   uint32 // blocks - 1
	txShift  uint32
	txRoom   uint32 // blocks that may be posted at the same time
	askEvery uint32 // blocks from one request for a completion to the next
	askTail  uint32 // completions requested
	txNext   uint32 // completions taken

	bfOff, bfHalf uint32 // the half of the register that is next, and the distance between both
	inlineMax     uint32 // frames up to this length go whole into the WQE

	fault atomic.Uint32 // why the queue stopped: faultXxx
	bad   cqe           // the invalid completion, written before fault

	txFull, badRx, pushed, pointed polling.Counter // one writer, this loop; ReadStats loads them

	out mlxkit.Buffers // of queue 0, for Send

	rxQPN, txQPN, rxCQN, txCQN uint32
	uar                        uint32
	sendContext                mailbox // of the send QP, to start it again with

	failed polling.Counter // frames that an error of the send queue left unsent; written by the watch

	_ [48]byte // to whole cache lines, so that the heap puts no two queues into one
}

var _ [0]byte = [unsafe.Sizeof(Queue{}) % 64]byte{}

// Why a queue stopped.
const (
	faultNone = iota
	faultReceive
	faultSend
)

func (q *Queue) completion(cq unsafe.Pointer, n uint32) *cqe {
	return (*cqe)(unsafe.Add(cq, n*cqeSize<<(q.wide&31)))
}

// pending is the block of the send queue before which all must be done before the slot of a number is free.
func (q *Queue) pending(n uint32) *uint32 { return (*uint32)(unsafe.Add(q.pend, n&q.mask*4)) }

// Poll makes one pass: it receives waiting frames, at most maxBatch, rewrites those that it answers in place, and
// pushes each at once, or rings the doorbell for all without BlueFlame. It calls reclaim if there was nothing to
// answer, or if reclaimAt slots or half of the send queue wait. It returns the number of replies.
func (q *Queue) Poll(r *fastpath.Responder) int {
	if q.fault.Load() != faultNone {
		return 0
	}
	next, n := q.rxNext, 0
	for ; next-q.rxNext != maxBatch; next++ {
		c := q.completion(q.rxCQ, next&q.mask)
		last := atomic.LoadUint64(&c.last) // nic/memory-order.md: done, then the rest
		if (last>>cqeOwner^uint64(next>>(q.shift&31)))&1 != 0 {
			break
		}
		if last>>cqeKind&kindMask > kindReceive {
			q.fail(c, faultReceive)
			break
		}
		*q.pending(next) = q.txDone
		l := int(swap(c.byteCount))
		if uint(l-minFrame) > uint(q.size-minFrame) || c.flags&cqeBadFCS != 0 {
			q.badRx.Add(1)
			continue
		}
		h := (*[64]byte)(unsafe.Add(q.buf, next&q.mask*q.stride))
		if !r.Reply(h, l) {
			if l = r.Slow(h, l); l == 0 {
				continue
			}
		}
		r.Departing() // the frame may be copied
		if uint32(l) <= q.inlineMax {
			if !q.post(unsafe.Pointer(h), uint32(l)) {
				q.txFull.Add(1)
				continue
			}
			q.pushed.Add(1) // the frame is in the send queue: its buffer is free
		} else {
			if !q.point(q.iova+uint64(next&q.mask*q.stride), uint32(l)) {
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

// fits reports whether that many blocks are free in the send queue, without the headroom.
func (q *Queue) fits(blocks uint32) bool { return q.txTail+blocks-q.txDone <= q.txRoom }

// requestCompletion returns the WQE's request for a completion, set after every askEvery blocks.
func (q *Queue) requestCompletion(blocks uint32) uint64 {
	end := q.txTail + blocks
	if end-q.txAsked < q.askEvery {
		return flagNoICRC
	}
	a := (*[2]uint32)(unsafe.Add(q.asked, q.askTail&q.txMask*8))
	a[0], a[1] = q.txTail, end
	polling.Publish(&q.askTail, q.askTail+1)
	q.txAsked = end
	return flagNoICRC | flagComplete
}

// block returns the address of a block of the send queue.
func (q *Queue) block(n uint32) *[8]uint64 {
	return (*[8]uint64)(unsafe.Add(q.wq.Base, n&q.txMask*txbb))
}

// setFlame sets the BlueFlame register, nil for none.
//
// The WQE's index and the queue's number are of use with BlueFlame only, and the number must not be there without: it
// would be read as a VLAN tag.
func (q *Queue) setFlame(bf unsafe.Pointer) {
	q.bf, q.indexes, q.numbers = bf, 0, 0
	if bf != nil {
		q.indexes, q.numbers = 0xFFFF, uint64(swap(q.number))<<32
	}
}

// control returns the first two dwords of the send WQE at the tail, ds units of 16 bytes long, at most 63.
func (q *Queue) control(ds uint32) uint64 {
	return uint64(swap(q.txTail>>(q.txShift&31)<<31|wqeSend|q.txTail&q.indexes<<8)) | q.numbers | uint64(ds)<<56
}

// window returns the address in the BlueFlame register for the next WQE, or nil without BlueFlame.
func (q *Queue) window() unsafe.Pointer {
	if q.bf == nil {
		return nil
	}
	to := unsafe.Add(q.bf, q.bfOff)
	q.bfOff ^= q.bfHalf
	return to
}

// advance moves the tail past the posted WQE.
func (q *Queue) advance(blocks uint32) {
	q.txTail += blocks
	if q.bf != nil {
		q.txRung = q.txTail
	}
}

// post builds a WQE for the frame of l bytes at h and posts it. It reports whether there was room.
// nic/memory-order.md: blocks, then their marks; blocks, then BlueFlame.
func (q *Queue) post(h unsafe.Pointer, l uint32) bool {
	blocks := (l + 2*inlineNext - inlineFirst - 1) / inlineNext
	if !q.fits(blocks) {
		return false
	}
	flags := q.requestCompletion(blocks)
	c := q.control((16 + l + blocks*4 + 15) >> 4) // each block's segment has a header
	mmio.PushInline(&q.wq, q.txTail, blocks, h, l, c, flags, q.window())
	q.advance(blocks)
	return true
}

// hand writes the first two dwords of the WQE of one block at b, and hands it over.
// nic/memory-order.md: blocks, then their marks; blocks, then BlueFlame.
func (q *Queue) hand(b *[8]uint64, c uint64) {
	w := (*[2]uint32)(unsafe.Pointer(b))
	w[1] = uint32(c >> 32)
	mmio.Store32(&w[0], uint32(c))
	if to := q.window(); to != nil {
		mmio.FenceWC()
		mmio.CopyWC(to, unsafe.Pointer(b), 1)
		mmio.FenceWC()
	}
	q.advance(1)
}

// point posts a WQE with a pointer to the frame of l bytes at iova.
func (q *Queue) point(iova uint64, l uint32) bool {
	if !q.fits(1) {
		return false
	}
	b := q.block(q.txTail)
	b[1] = q.requestCompletion(1)
	b[2], b[3] = mlxkit.NewData(l, q.lkey, iova).Words()
	q.hand(b, q.control(2))
	q.pointed.Add(1)
	return true
}

// ring rings the doorbell for everything that was posted (nic/memory-order.md: ring, then the register).
func (q *Queue) ring() {
	q.txRung = q.txTail
	mmio.Store32(q.db, swap(q.number))
}

// reclaim handles send completions, stamps the blocks that they free, and reposts free slots in order.
func (q *Queue) reclaim() {
	done, taken := q.txDone, q.txNext
	for {
		c := q.completion(q.txCQ, taken&q.txMask)
		last := atomic.LoadUint64(&c.last)
		if (last>>cqeOwner^uint64(taken>>(q.txShift&31)))&1 != 0 {
			break
		}
		a := (*[2]uint32)(unsafe.Add(q.asked, taken&q.txMask*8))
		if last>>cqeKind&(kindSend|opcodeMask) != kindSend|wqeSend || taken == q.askTail ||
			(uint32(bits.ReverseBytes16(uint16(last)))^a[0])&q.txMask&0xFFFF != 0 {
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
		mmio.Store32(q.txCQRec, swap(taken&0xFFFFFF))
		// copies, because the compiler would reload the fields after each stamp
		base, mask, shift := q.wq.Base, q.txMask, q.txShift&31
		for n := q.txDone; n != done; {
			lap := min(done-n, mask+1-n&mask) // blocks up to the ring's end
			v, at := swap(stamp|n>>shift<<31), unsafe.Add(base, n&mask*txbb)
			n += lap
			for ; lap != 0; lap-- {
				*(*uint32)(at) = v
				at = unsafe.Add(at, txbb)
			}
		}
		q.txDone = done
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

// fail stops the queue at a completion that is an error or invalid.
//
//go:noinline
func (q *Queue) fail(c *cqe, why uint32) {
	q.bad = *c
	q.fault.Store(why)
}

// unsent returns how many frames the device did not send because of an error completion: from the WQE that it names on.
func (q *Queue) unsent() uint64 {
	if q.fault.Load() != faultSend || uint8(q.bad.last>>cqeKind)&opcodeMask != opcodeError {
		return 0
	}
	return mlxkit.Unsent(q.wq.Base, q.txMask, q.txDone, q.txTail, bits.ReverseBytes16(uint16(q.bad.last)))
}

// countUnsent counts those frames, once. No loop uses the queue.
func (q *Queue) countUnsent() {
	q.failed.Add(q.unsent())
	q.bad = cqe{}
}

// faultText returns why the queue stopped.
func (q *Queue) faultText() string {
	c, side := &q.bad, "receive"
	if q.fault.Load() == faultSend {
		side = "send"
	}
	kind, index := uint8(c.last>>cqeKind)&kindMask, bits.ReverseBytes16(uint16(c.last))
	if kind&opcodeMask == opcodeError {
		return fmt.Sprintf("%s completion with error: syndrome %v, vendor syndrome %#02x, WQE %d, QP %#06x", side,
			mlxkit.Syndrome(c.last>>24), uint8(c.last>>16), index, swap(c.qpn)&0xFFFFFF)
	}
	return fmt.Sprintf("%s completion is not what is due: opcode %#02x, of a send %v, WQE %d, QP %#06x", side,
		kind&opcodeMask, kind&kindSend != 0,
		index, swap(c.qpn)&0xFFFFFF)
}

// reset puts the rings into the state in which a new queue is: all slots the device's, nothing to send.
func (q *Queue) reset() {
	q.rxNext, q.freed, q.posted = 0, 0, 0
	for slot := range q.mask + 1 {
		*(*uint32)(unsafe.Add(q.pend, slot*4)) = 0
	}
	*q.rxCQRec = 0
	mmio.Store32(q.rqRec, swap(q.mask+1))
	q.txNext, q.askTail = 0, 0
	*q.txCQRec = 0
	q.resetSend()
}

// resetSend puts the send queue into that state. Its completion queue continues.
func (q *Queue) resetSend() {
	q.txTail, q.txDone, q.txRung, q.txAsked, q.bfOff = 0, 0, 0, 0, 0
	q.out.Reset()
	for n := range q.txMask + 1 {
		*(*uint32)(unsafe.Pointer(q.block(n))) = ^uint32(0)
	}
	q.fault.Store(faultNone)
}

// send posts a copy of frame.
func (q *Queue) send(frame []byte) error {
	q.reclaim()
	l := uint32(len(frame))
	at, iova, free := q.out.Next(q.txDone)
	if q.fault.Load() != faultNone || !free {
		return nic.ErrFull
	}
	buf := unsafe.Slice((*byte)(at), q.size)
	clear(buf[copy(buf, frame):max(l, shortest)])
	l = max(l, shortest)
	if l <= q.inlineMax {
		if !q.post(at, l) {
			return nic.ErrFull
		}
		q.pushed.Add(1) // the frame is in the send queue: its buffer is free
	} else {
		if !q.point(iova, l) {
			return nic.ErrFull
		}
		q.out.Use(q.txTail)
	}
	if q.txRung != q.txTail {
		q.ring()
	}
	return nil
}

// recv copies out the next frame and frees its slot. It returns -1 if there is none.
func (q *Queue) recv(buf []byte) (n int, at int64) {
	for q.fault.Load() == faultNone {
		slot := q.rxNext & q.mask
		c := q.completion(q.rxCQ, slot)
		last := atomic.LoadUint64(&c.last)
		if (last>>cqeOwner^uint64(q.rxNext>>(q.shift&31)))&1 != 0 {
			break
		}
		at = int64(polling.TSC())
		if last>>cqeKind&kindMask > kindReceive {
			q.fail(c, faultReceive)
			break
		}
		l := swap(c.byteCount)
		bad := l < minFrame || l > q.size || c.flags&cqeBadFCS != 0
		if bad {
			q.badRx.Add(1)
		} else {
			copy(buf, unsafe.Slice((*byte)(unsafe.Add(q.buf, slot*q.stride)), l))
		}
		*(*uint32)(unsafe.Add(q.pend, slot*4)) = q.txDone
		polling.Publish(&q.rxNext, q.rxNext+1)
		q.reclaim()
		if !bad {
			return int(l), at
		}
	}
	q.reclaim()
	return -1, 0
}
