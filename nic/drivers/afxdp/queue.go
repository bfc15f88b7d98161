package afxdp

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/polling"
)

// batch is the largest number of frames of one Poll, so that the first of a burst does not wait for all of it.
const batch = 32

// Queue is one socket. Only one goroutine may poll it at a time.
//
// Each chunk of the UMEM is in exactly one place. Those below sendBase: fill ring, kernel, receive ring, transmit ring,
// completion ring, and back. The others: spare, transmit ring, completion ring, and back.
type Queue struct {
	umem                     []byte
	rx, tx, fill, completion ring
	fd                       uintptr
	rxTail                   uint32 // next entry of rx to read
	txHead, fillHead         uint32 // next entry to write
	filled                   uint32 // fillHead as published to the kernel
	doneTail                 uint32 // next entry of completion to read
	unsent                   bool   // the last kick did not send everything in tx
	busyPoll                 bool   // the kernel's receive path runs when we call for it
	sendBase                 uint64
	spare                    []uint64 // chunks of Send

	// Written by the polling goroutine, read by ReadStats.
	rxFrames, rxBytes, txFrames, txBytes polling.Counter
	kicksAgain, txErrors, txFull         polling.Counter

	_ [48]byte // to whole cache lines, so that the heap puts no two queues into one
}

var _ [0]byte = [unsafe.Sizeof(Queue{}) % 64]byte{}

// Poll answers waiting frames, at most a batch, and returns the number of replies posted.
func (q *Queue) Poll(r *fastpath.Responder) int {
	waiting := atomic.LoadUint32(q.rx.producer) - q.rxTail // nic/memory-order.md: done, then the rest
	if waiting == 0 {
		q.idle()
		return 0
	}
	waiting = min(waiting, batch)
	umem, first := unsafe.Pointer(unsafe.SliceData(q.umem)), q.txHead
	for range waiting {
		desc := q.rx.desc(q.rxTail)
		q.rxTail++
		addr, n := desc.Addr, int(desc.Len)
		frame := unsafe.Add(umem, uintptr(addr))
		q.rxFrames.Add(1)
		q.rxBytes.Add(uint64(n))
		e, m := (*[64]byte)(frame), n
		if !r.Reply(e, n) {
			m = r.Slow(e, n)
		}
		if m == 0 {
			*q.fill.address(q.fillHead) = addr
			q.fillHead++
			continue
		}
		reply := q.tx.desc(q.txHead)
		reply.Addr, reply.Len, reply.Options = addr, uint32(m), 0
		q.txHead++
		q.txFrames.Add(1)
		q.txBytes.Add(uint64(m))
	}
	sent := int(q.txHead - first)
	if sent > 0 {
		r.Departing()
		q.post()
	}
	mmio.Store32(q.rx.consumer, q.rxTail) // nic/memory-order.md: rings shared with the kernel
	q.reclaim()
	return sent
}

// post publishes the transmit ring's new entries, and makes the system call if the kernel requests it.
func (q *Queue) post() {
	mmio.Store32(q.tx.producer, q.txHead) // nic/memory-order.md: rings shared with the kernel
	if atomic.LoadUint32(q.tx.flags)&unix.XDP_RING_NEED_WAKEUP != 0 {
		q.kick()
	}
}

// idle does the work that replies need not wait for.
func (q *Queue) idle() {
	if q.unsent {
		q.kick()
	}
	q.reclaim()
	if q.busyPoll || atomic.LoadUint32(q.fill.flags)&unix.XDP_RING_NEED_WAKEUP != 0 {
		unix.RawSyscall6(unix.SYS_RECVFROM, q.fd, 0, 0, unix.MSG_DONTWAIT, 0, 0)
	}
}

// reclaim handles completions: received chunks return to the fill ring, those of Send to spare.
func (q *Queue) reclaim() {
	done := atomic.LoadUint32(q.completion.producer)
	if q.doneTail == done && q.filled == q.fillHead {
		return
	}
	for ; q.doneTail != done; q.doneTail++ {
		addr := *q.completion.address(q.doneTail)
		if addr >= q.sendBase {
			q.spare = q.spare[:len(q.spare)+1]
			q.spare[len(q.spare)-1] = addr
			continue
		}
		*q.fill.address(q.fillHead) = addr
		q.fillHead++
	}
	mmio.Store32(q.completion.consumer, q.doneTail)
	q.publishFill()
}

func (q *Queue) publishFill() {
	q.filled = q.fillHead
	mmio.Store32(q.fill.producer, q.fillHead)
}

// kick makes the kernel send the contents of the transmit ring. What it does not send stays in the ring, and the next
// pass kicks again.
func (q *Queue) kick() {
	_, _, e := unix.RawSyscall6(unix.SYS_SENDTO, q.fd, 0, 0, unix.MSG_DONTWAIT, 0, 0)
	q.unsent = e != 0
	switch e {
	case 0:
	case unix.EAGAIN, unix.EBUSY, unix.ENOBUFS:
		q.kicksAgain.Add(1)
	default:
		q.txErrors.Add(1)
	}
}

// Serve implements nic.Device.
func (d *Device) Serve(queue int, stop *atomic.Bool, r *fastpath.Responder) error {
	if queue < 0 || queue >= len(d.queues) {
		return fmt.Errorf("afxdp: interface %s: queue %d of %d", d.iface.Name, queue, len(d.queues))
	}
	q := d.queues[queue]
	t := r.Loop.Begin()
	for !stop.Load() && d.watch.OK() {
		t = r.Loop.Pass(t, q.Poll(r))
	}
	return d.watch.Err()
}
