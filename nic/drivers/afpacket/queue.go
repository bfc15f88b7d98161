package afpacket

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/polling"
)

// batch is the largest number of frames of one Poll, so that Serve checks stop in time.
const batch = 32

// Queue is one socket with its ring. Only one goroutine may poll it at a time.
type Queue struct {
	ring ring
	head uintptr // offset of the slot that the kernel fills next
	fd   uintptr
	long long

	// Written by the polling goroutine, read by ReadStats.
	rxFrames, rxBytes, txFrames, txBytes polling.Counter
	// longer than a slot: a GSO frame of a local sender, or beyond the MTU
	rxTruncated      polling.Counter
	txFull, txErrors polling.Counter

	_ [32]byte // to whole cache lines, so that the heap puts no two queues into one
}

var _ [0]byte = [unsafe.Sizeof(Queue{}) % 64]byte{}

// Poll answers waiting frames, at most a batch, and returns the number of replies sent.
func (q *Queue) Poll(r *fastpath.Responder) int {
	sent := 0
	for range batch {
		h := q.ring.slot(q.head)
		status, ok := h.full()
		if !ok {
			break
		}
		frame, n := h.frame(), int(h.snaplen)
		q.rxFrames.Add(1)
		q.rxBytes.Add(uint64(h.len))
		if h.len != h.snaplen {
			q.rxTruncated.Add(1)
			h.free()
			q.head = q.ring.next(q.head)
			continue
		}
		if status&statusVLAN != 0 {
			frame = h.retag(status)
			n += tagSize
		}
		if status&statusPartial != 0 {
			complete(unsafe.Slice((*byte)(frame), n))
		}
		e, m := (*[64]byte)(frame), n
		if !r.Reply(e, n) {
			m = r.Slow(e, n)
		}
		if m != 0 {
			r.Departing()
			_, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, q.fd, uintptr(frame), uintptr(m), unix.MSG_DONTWAIT, 0, 0)
			if errno == unix.EMSGSIZE {
				errno = q.long.send(frame, m)
			}
			r.Loop.Begin() // the next frame may have come during the call, which takes longer than all else
			if errno == 0 {
				q.txFrames.Add(1)
				q.txBytes.Add(uint64(m))
				sent++
			} else {
				q.failed(errno)
			}
		}
		h.free()
		q.head = q.ring.next(q.head)
	}
	return sent
}

// failed counts a reply that the kernel refused. It is not sent again, because the sender of the request has a timeout,
// and other frames are waiting.
//
//go:noinline
func (q *Queue) failed(e unix.Errno) {
	if e == unix.EAGAIN || e == unix.ENOBUFS {
		q.txFull.Add(1)
	} else {
		q.txErrors.Add(1)
	}
}

// Serve implements nic.Device.
func (d *Device) Serve(queue int, stop *atomic.Bool, r *fastpath.Responder) error {
	if queue < 0 || queue >= len(d.queues) {
		return fmt.Errorf("afpacket: interface %s: queue %d of %d", d.iface.Name, queue, len(d.queues))
	}
	q := d.queues[queue]
	t := r.Loop.Begin()
	for !stop.Load() && d.watch.OK() {
		t = r.Loop.Pass(t, q.Poll(r))
	}
	return d.watch.Err()
}
