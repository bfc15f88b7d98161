package afxdp

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
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/kit/netif"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/nictest"
	"github.com/rebound-nic/rebound/proof/random"
)

// kernel is the other end of a queue's rings and socket, in memory.
type kernel struct {
	t                                  *testing.T
	q                                  *Queue
	socket                             int      // wake-ups of the transmit ring arrive here as empty messages
	free                               []uint64 // chunks to receive into
	sending                            []uint64
	fillTail, rxHead, txTail, doneHead uint32
}

const (
	received, toSend = 64, 4 // chunks
	chunkSize        = 2048
)

// newKernel returns the kernel with its queue. All numbers of entries soon exceed 2^32.
func newKernel(t *testing.T) *kernel {
	pair := must.Get(unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK, 0))(t)
	t.Cleanup(func() {
		unix.Close(pair[0])
		unix.Close(pair[1])
	})
	const start = ^uint32(0) - 100
	ringOf := func(entries, size int) ring {
		words, mem := new([3]uint32), make([]byte, entries*size)
		words[0], words[1] = start, start
		return ring{&words[0], &words[1], &words[2], unsafe.Pointer(&mem[0]), uint32(entries - 1), mem}
	}
	q := &Queue{umem: make([]byte, (received+toSend)*chunkSize), fd: uintptr(pair[0]), sendBase: received * chunkSize,
		rx: ringOf(received, 16), tx: ringOf(2*received, 16), fill: ringOf(received, 8),
		completion: ringOf(2*received, 8),
		rxTail:     start, txHead: start, fillHead: start, filled: start, doneTail: start}
	k := &kernel{t: t, q: q, socket: pair[1], fillTail: start, rxHead: start, txTail: start, doneHead: start}
	for i := range uint64(received) {
		k.free = append(k.free, i*chunkSize)
	}
	for i := range uint64(toSend) {
		q.spare = append(q.spare, (received+i)*chunkSize)
	}
	return k
}

// arrive receives frames.
func (k *kernel) arrive(frames ...[]byte) {
	for _, f := range frames {
		addr := k.free[0] + headroom
		k.free = k.free[1:]
		clear(k.q.umem[addr-headroom:][:chunkSize])
		copy(k.q.umem[addr:], f)
		*k.q.rx.desc(k.rxHead) = unix.XDPDesc{Addr: addr, Len: uint32(len(f)), Options: 7}
		k.rxHead++
	}
	*k.q.rx.producer = k.rxHead
}

// take takes what the queue has published in its rings, and returns the frames to send.
func (k *kernel) take() (frames [][]byte) {
	for ; k.fillTail != *k.q.fill.producer; k.fillTail++ {
		k.free = append(k.free, *k.q.fill.address(k.fillTail)&^(chunkSize-1))
	}
	for ; k.txTail != *k.q.tx.producer; k.txTail++ {
		d := *k.q.tx.desc(k.txTail)
		must.Equal(k.t, d.Options, 0, "options %#x of a descriptor")
		frames = append(frames, bytes.Clone(k.q.umem[d.Addr:][:d.Len]))
		k.sending = append(k.sending, d.Addr)
	}
	return frames
}

// complete has sent n frames.
func (k *kernel) complete(n int) {
	for _, addr := range k.sending[:n] {
		*k.q.completion.address(k.doneHead) = addr
		k.doneHead++
	}
	k.sending = k.sending[n:]
	*k.q.completion.producer = k.doneHead
}

// kicks returns how many wake-ups came.
func (k *kernel) kicks() (n int) {
	for ; ; n++ {
		if _, _, err := unix.Recvfrom(k.socket, make([]byte, 1), 0); err != nil {
			return n
		}
	}
}

// kept checks that each chunk is in exactly one place, and that the queue has published all that it has done.
func (k *kernel) kept() {
	k.t.Helper()
	must.Equal(k.t, *k.q.rx.consumer, k.rxHead, "entries up to %d are read")
	must.Equal(k.t, *k.q.completion.consumer, k.doneHead, "completions up to %d are read")
	must.Equal(k.t, k.q.filled, *k.q.fill.producer, "chunks up to %d are published")
	seen := map[uint64]int{}
	for _, all := range [][]uint64{k.free, k.sending, k.q.spare} {
		for _, addr := range all {
			seen[addr/chunkSize]++
		}
	}
	must.Equal(k.t, len(seen), received+toSend, "%d chunks are somewhere")
	for _, n := range seen {
		must.Equal(k.t, n, 1, "a chunk is in %d places")
	}
}

// Poll posts what a responder answers, and Send what is sent, in order. They wake the kernel if it asks for that, and
// give all chunks back.
func TestPollAndSend(t *testing.T) {
	rnd, k := random.New(t), newKernel(t)
	d := &Device{queues: []*Queue{k.q}, info: nic.Info{MTU: 1500}, iface: &netif.Interface{}, watch: &netif.Watch{}}
	unanswered := nictest.EchoRequest(300) // half of the frames
	copy(unanswered, "\x02other")
	kinds := [][]byte{unanswered}
	for _, n := range nictest.Kinds() {
		if n.Size <= 1500 && n.Name != "stamp" {
			kinds = append(kinds, n.Frame())
		}
	}
	r, alike := nictest.NewResponder(t), nictest.NewResponder(t)
	var got, want nic.Stats
	for range 500 {
		var frames, sent [][]byte
		for range rnd.IntN(min(len(k.free), batch) + 1) {
			f := kinds[rnd.IntN(len(kinds))*rnd.IntN(2)]
			frames = append(frames, f)
			want.RxFrames, want.RxBytes = want.RxFrames+1, want.RxBytes+uint64(len(f))
			reply := append(bytes.Clone(f), make([]byte, 64)...)
			n := len(f)
			if !alike.Reply((*[64]byte)(reply), n) {
				n = alike.Slow((*[64]byte)(reply), n)
			}
			if n > 0 {
				sent = append(sent, reply[:n])
			}
		}
		k.arrive(frames...)
		k.complete(rnd.IntN(len(k.sending) + 1))
		asks := rnd.IntN(2)
		*k.q.tx.flags = uint32(asks) * unix.XDP_RING_NEED_WAKEUP
		must.Equal(t, k.q.Poll(r), len(sent), "%d replies")
		must.Equal(t, k.kicks(), asks*min(len(sent), 1), "%d wake-ups")
		for range rnd.IntN(3) {
			f, err := kinds[rnd.IntN(len(kinds))], error(nic.ErrFull)
			if room := len(k.q.spare) > 0; room {
				sent, err = append(sent, f), nil
			} else {
				want.TxDropped++
			}
			must.Equal(t, d.Send(f), err, "sent: %v")
			must.Equal(t, k.kicks() == asks, err == nil || asks == 0, "a wake-up for each frame: %t")
		}
		taken := k.take()
		must.Equal(t, len(taken), len(sent), "%d frames were sent")
		for i, f := range taken {
			must.Equal(t, string(f), string(sent[i]), "sent %x")
			want.TxFrames, want.TxBytes = want.TxFrames+1, want.TxBytes+uint64(len(f))
		}
		k.kept()
	}
	q := k.q
	got = nic.Stats{RxFrames: q.rxFrames.Load(), RxBytes: q.rxBytes.Load(), TxFrames: q.txFrames.Load(),
		TxBytes: q.txBytes.Load(), TxErrors: q.txErrors.Load(), TxDropped: q.txFull.Load()}
	check.Equal(t, fmt.Sprint(got), fmt.Sprint(want), "counted %s")
}

// A pass takes at most 32 frames, and writes the time of sending into test packets.
func TestPoll(t *testing.T) {
	k, r := newKernel(t), must.Get(fastpath.New(nictest.KindsConfig()))(t)
	request := nictest.Kind{Name: "stamp", Size: 86}.Frame()
	k.arrive(slices.Repeat([][]byte{request}, 33)...)
	for _, want := range []int{32, 1, 0} {
		check.Equal(t, k.q.Poll(r), want, "%d replies")
		for _, f := range k.take() {
			if sent, came := binary.BigEndian.Uint64(f[46:]), binary.BigEndian.Uint64(f[58:]); sent <= came {
				t.Errorf("sent at %d, received at %d", sent, came)
			}
		}
	}
	check.Equal(t, unsafe.Sizeof(*k.q)%64, 0, "%d bytes more than whole cache lines")
}

// Without frames, Poll calls the kernel if it asks for that to receive, or always if it polls busily, and repeats a
// wake-up that failed. Errors that pass are counted apart from others.
func TestIdle(t *testing.T) {
	for _, c := range []struct{ busy, asks, unsent bool }{{}, {busy: true}, {asks: true}, {unsent: true}} {
		k := newKernel(t)
		q := k.q
		q.busyPoll, q.unsent = c.busy, c.unsent
		if c.asks {
			*q.fill.flags = unix.XDP_RING_NEED_WAKEUP
		}
		must.OK(t, unix.Sendto(k.socket, nil, 0, nil)) // what a call receives
		check.Equal(t, q.Poll(nil), 0, "%d replies")
		check.Equal(t, q.unsent, false, "it has something to send: %t")
		check.Equal(t, k.kicks() == 1, c.unsent, "a wake-up: %t")
		_, _, err := unix.Recvfrom(int(q.fd), make([]byte, 1), 0)
		check.Equal(t, err != nil, c.busy || c.asks, "the kernel's receive path ran: %t")
	}
	k := newKernel(t)
	for !k.q.unsent { // until the socket is full
		k.q.kick()
	}
	check.Equal(t, k.q.kicksAgain.Load(), 1, "%d wake-ups are due again")
	for k.kicks() == 0 {
	}
	k.q.idle()
	check.Equal(t, k.q.unsent, false, "it has something to send: %t")
	must.OK(t, unix.Shutdown(k.socket, unix.SHUT_RD))
	k.q.kick()
	check.Equal(t, k.q.unsent, true, "it has something to send: %t")
	check.Equal(t, k.q.txErrors.Load(), 1, "%d errors")
	check.Equal(t, k.q.kicksAgain.Load(), 1, "%d wake-ups are due again")
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
