package afpacket

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic/kit/netif"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/nictest"
	"github.com/rebound-nic/rebound/proof/random"
)

// kernel is the other end of a queue's ring and sockets, in memory.
type kernel struct {
	q            *Queue
	sent, pushed int     // the other ends of the queue's sockets, for frames and for wake-ups of the ring of long ones
	next         uintptr // offset of the slot to fill
}

const slots, slotSize, longSize = 64, 16384, 8192

func newKernel(t *testing.T) *kernel {
	pair := func(kind int) [2]int {
		fds := must.Get(unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_NONBLOCK, 0))(t)
		t.Cleanup(func() {
			unix.Close(fds[0])
			unix.Close(fds[1])
		})
		return fds
	}
	frames, pushes := pair(unix.SOCK_SEQPACKET), pair(unix.SOCK_DGRAM)
	mem := func(size int) []byte { // aligned
		return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(make([]uint64, size/8)))), size)
	}
	return &kernel{sent: frames[1], pushed: pushes[1], q: &Queue{
		ring: ring{mem: mem(slots * slotSize), size: slotSize, end: slots * slotSize},
		fd:   uintptr(frames[0]),
		long: long{mem: mem(longSlots * longSize), fd: uintptr(pushes[0]), size: longSize},
	}}
}

// arrive receives a frame that was n bytes long on the wire, with a tag outside of it if status says so.
func (k *kernel) arrive(frame []byte, n int, status uint32, tag [4]byte) {
	h := k.q.ring.slot(k.next)
	h.mac, h.snaplen, h.len = macFrom, uint32(len(frame)), uint32(n)
	h.vlanTPID, h.vlanTCI = binary.BigEndian.Uint16(tag[:]), binary.BigEndian.Uint16(tag[2:])
	copy(k.q.ring.mem[k.next+macFrom:], frame)
	h.status = status | statusUser
	k.next = (k.next + slotSize) % (slots * slotSize)
}

// take returns the frames that were sent.
func (k *kernel) take() (frames [][]byte) {
	for {
		buf := make([]byte, slotSize)
		n, _, err := unix.Recvfrom(k.sent, buf, 0)
		if err != nil {
			return frames
		}
		frames = append(frames, buf[:n])
	}
}

// pushes returns how many wake-ups came.
func (k *kernel) pushes() (n int) {
	for ; ; n++ {
		if _, _, err := unix.Recvfrom(k.pushed, make([]byte, 1), 0); err != nil {
			return n
		}
	}
}

type counts struct{ rxFrames, rxBytes, txFrames, txBytes, rxTruncated, txFull, txErrors uint64 }

func (q *Queue) counts() counts {
	return counts{q.rxFrames.Load(), q.rxBytes.Load(), q.txFrames.Load(), q.txBytes.Load(), q.rxTruncated.Load(),
		q.txFull.Load(), q.txErrors.Load()}
}

// Poll sends what a responder answers to each whole frame, with the tag that the kernel took out of it, and with the
// checksum that a local sender left out.
func TestPoll(t *testing.T) {
	rnd, k := random.New(t), newKernel(t)
	unanswered := nictest.EchoRequest(300)
	copy(unanswered, "\x02other")
	kinds := [][]byte{unanswered}
	for _, n := range nictest.Kinds() {
		if n.Size <= 1500 && n.Name != "stamp" && !n.Tagged {
			kinds = append(kinds, n.Frame())
		}
	}
	r, alike := nictest.NewResponder(t), nictest.NewResponder(t)
	var want counts
	for range 300 {
		var sent [][]byte
		for range rnd.IntN(batch + 1) {
			whole := bytes.Clone(kinds[rnd.IntN(len(kinds))])
			on, status, length, tag := bytes.Clone(whole), uint32(0), len(whole), [4]byte{0x81, 0, 0, 100}
			if rnd.IntN(3) == 0 && whole[12] == 8 && whole[23] == unix.IPPROTO_UDP {
				status |= statusPartial
				on[40]++ // it is summed again
				complete(whole)
				copy(whole[40:42], on[40:42])
				complete(whole)
			}
			switch rnd.IntN(4) {
			case 0:
				status |= statusVLAN
				binary.BigEndian.PutUint16(tag[:], 0x88a8)
				whole = slices.Insert(whole, 12, 0x81, 0, 0, 100)
			case 1:
				status |= statusVLAN | statusVLANTPID
				binary.BigEndian.PutUint16(tag[:], 0x88a8)
				whole = slices.Insert(whole, 12, tag[:]...)
			case 2:
				length += rnd.IntN(2)
			}
			k.arrive(on, length, status, tag)
			want.rxFrames, want.rxBytes = want.rxFrames+1, want.rxBytes+uint64(length)
			if length != len(on) {
				want.rxTruncated++
				continue
			}
			n := len(whole)
			reply := append(whole, make([]byte, 64)...)
			if !alike.Reply((*[64]byte)(reply), n) {
				n = alike.Slow((*[64]byte)(reply), n)
			}
			if n > 0 {
				sent = append(sent, reply[:n])
				want.txFrames, want.txBytes = want.txFrames+1, want.txBytes+uint64(n)
			}
		}
		must.Equal(t, k.q.Poll(r), len(sent), "%d replies")
		must.Equal(t, k.q.head, k.next, "the next slot is at %d")
		taken := k.take()
		must.Equal(t, len(taken), len(sent), "%d frames were sent")
		for i, f := range taken {
			must.Equal(t, string(f), string(sent[i]), "sent %x")
		}
		for at := uintptr(0); at < k.q.ring.end; at += slotSize {
			must.Equal(t, k.q.ring.slot(at).status, 0, "status %#x of a slot")
		}
	}
	check.Equal(t, k.q.counts(), want, "counted %+v")
	check.Equal(t, k.pushes(), 0, "%d wake-ups of the other ring")
}

// A pass takes at most 32 frames. A test packet says when it was received, which is after the reply to the one before,
// and when its reply was sent.
func TestPasses(t *testing.T) {
	k, r := newKernel(t), must.Get(fastpath.New(nictest.KindsConfig()))(t)
	request := nictest.Kind{Name: "stamp", Size: 86}.Frame()
	for range 33 {
		k.arrive(request, len(request), 0, [4]byte{})
	}
	before := uint64(0)
	for _, want := range []int{32, 1, 0} {
		check.Equal(t, k.q.Poll(r), want, "%d replies")
		for _, f := range k.take() {
			sent, came := binary.BigEndian.Uint64(f[46:]), binary.BigEndian.Uint64(f[58:])
			if came <= before || sent <= came {
				t.Errorf("received at %d and sent at %d, after %d", came, sent, before)
			}
			before = sent
		}
	}
	check.Equal(t, unsafe.Sizeof(*k.q)%64, 0, "%d bytes more than whole cache lines")
}

// A frame that the socket finds too long goes through the ring for such frames, if a slot of it is free and large
// enough. What cannot be sent is counted by whether the kernel had no room.
func TestPollRefused(t *testing.T) {
	k, r := newKernel(t), nictest.NewResponder(t)
	q := k.q
	must.OK(t, unix.SetsockoptInt(int(q.fd), unix.SOL_SOCKET, unix.SO_SNDBUF, 1)) // the kernel makes more of it
	poll := func(size, want int) {
		t.Helper()
		f := nictest.Kind{Name: "ping", Size: size}.Frame()
		k.arrive(f, len(f), 0, [4]byte{})
		check.Equal(t, q.Poll(r), want, fmt.Sprintf("%d bytes: %%d replies", size))
	}
	const most = longSize - dataAt - virtioHdr
	room := 0
	for size := 4000; q.long.next == 0; size++ { // the shortest frame that the socket does not take
		room = size
		poll(size, 1)
		k.take()
	}
	check.Equal(t, k.pushes(), 1, "%d wake-ups")
	for slot := range longSlots {
		size := []int{room, most}[slot%2]
		if slot > 0 {
			poll(size, 1)
			check.Equal(t, k.pushes(), 1, "%d wake-ups")
		}
		at := slot * longSize
		h := (*header)(unsafe.Pointer(&q.long.mem[at]))
		check.Equal(t, h.status, unix.TP_STATUS_SEND_REQUEST, "status %#x of a slot")
		check.Equal(t, h.len, uint32(virtioHdr+max(size, room)), "%d bytes in a slot")
	}
	was := q.counts()
	poll(room, 0) // all slots are full
	poll(room, 0)
	for slot := range longSlots {
		status := []uint32{unix.TP_STATUS_AVAILABLE, unix.TP_STATUS_WRONG_FORMAT}[slot%2]
		(*header)(unsafe.Pointer(&q.long.mem[slot*longSize])).status = status
	}
	poll(most+1, 0)
	poll(room, 1)
	poll(room, 1)
	want := was
	want.txFull, want.txErrors, want.txFrames, want.txBytes = 2, 1, was.txFrames+2, was.txBytes+2*uint64(room)
	want.rxFrames, want.rxBytes = was.rxFrames+5, was.rxBytes+uint64(most+1+4*room)
	check.Equal(t, q.counts(), want, "counted %+v")
	for q.txFull.Load() == 2 { // until the socket is full
		f := nictest.EchoRequest(64)
		k.arrive(f, len(f), 0, [4]byte{})
		q.Poll(r)
	}
	check.Equal(t, q.txErrors.Load(), 1, "%d errors")
}

// Serve refuses a queue that does not exist, and ends when it is stopped.
func TestServe(t *testing.T) {
	d := &Device{queues: make([]*Queue, 2), iface: &netif.Interface{Name: "eth7"}, watch: new(netif.Watch)}
	for _, n := range []int{-1, 2, 3} {
		check.Fails(t, "Serve", d.Serve(n, nil, nil), nil, fmt.Sprintf("eth7: queue %d of 2", n))
	}
	var stop atomic.Bool
	stop.Store(true)
	for n := range d.queues {
		check.OK(t, d.Serve(n, &stop, nictest.NewResponder(t)))
	}
}
