package ixgbe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/kit"
	"github.com/rebound-nic/rebound/polling"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/nictest"
)

// benchQueue is a queue with rings, buffers and doorbells in ordinary memory. The test plays the device.
type benchQueue struct {
	*Queue
	t        testing.TB
	frame    []byte
	said     uint32 // additional status bits of each frame
	wild     bool   // the device also writes slots that it does not have
	rdt, tdt uint32
}

func newBenchQueue(t testing.TB, frame []byte) *benchQueue {
	const ring = 512
	size := max(2048, len(frame))
	stride := (size+63)&^63 + 64
	b := &benchQueue{t: t, frame: frame}
	take := nictest.Carve(t, ring*(2*descSize+2*stride))
	b.Queue = &Queue{
		rx: take(ring * descSize), tx: take(ring * descSize), buf: take(ring * stride),
		batches: kit.Words(2 * ring),
		bufSize: uint32(size), stride: uint32(stride), mask: ring - 1, rdt: &b.rdt, tdt: &b.tdt, iova: 1 << 32,
		sendBuf: take(ring * stride), sendIOVA: 1 << 33,
	}
	b.restart()
	return b
}

func (b *benchQueue) restart() {
	b.reset()
	b.rdt = b.mask // as init writes it
}

// receive receives the next n frames as the device does: payload, then write-back.
func (b *benchQueue) receive(n int) {
	for i := range uint32(n) {
		slot := (b.rxNext + i) & b.mask
		if want := (rxRead{1<<32 + uint64(slot*b.stride), 0}); !b.wild && (slot == b.rdt || *b.rxRead(slot) != want) {
			b.t.Fatalf("slot %d of those before %d is %#x, want %#x", slot, b.rdt, *b.rxRead(slot), want)
		}
		copy(unsafe.Slice((*byte)(unsafe.Add(b.buf, slot*b.stride)), len(b.frame)), b.frame)
		*b.rxDone(slot) = rxWriteback{status: 1 | 2 | b.said, length: uint16(len(b.frame))}
	}
}

// arrive is receive, and completes all transmits.
func (b *benchQueue) arrive(n int) {
	b.receive(n)
	for n := b.txDone; n != b.txTail; n++ {
		if d := b.txDesc(n & b.mask); d.cmd&(1<<27) != 0 {
			d.status |= 1
		}
	}
}

func TestPollAllocatesNothing(t *testing.T) {
	b := newBenchQueue(t, nictest.EchoRequest(64))
	nictest.NoAllocations(t, nictest.NewResponder(t), b.arrive, b.Queue.Poll)
}

func TestPasses(t *testing.T) {
	nictest.Passes(t, nictest.NewResponder(t), func() (func(int), func(*fastpath.Responder) int, func() uint32) {
		b := newBenchQueue(t, nictest.EchoRequest(64))
		return b.arrive, b.Queue.Poll, func() uint32 { return b.txDone }
	})
}

// A frame is whole and without errors, has at least an Ethernet header, and at most the bytes of a buffer. Slots are
// given back 32 at a time.
func TestFrameLengths(t *testing.T) {
	const whole = 1 | 2 // done, and the end of a packet
	for _, c := range []struct {
		length uint16
		status uint32
		good   bool
	}{{0, whole, false}, {13, whole, false}, {14, whole, true}, {2048, whole, true}, {2049, whole, false},
		{64, 1, false}, {64, whole | 1<<29, false}} {
		what := fmt.Sprintf("%d bytes, status %#x", c.length, c.status)
		nictest.Taken(t, what, int(c.length), c.good, func() nictest.Arrived {
			b := newBenchQueue(t, nictest.EchoRequest(64))
			b.receive(1)
			b.rxDone(0).length, b.rxDone(0).status = c.length, c.status
			return nictest.Arrived{Poll: b.Queue.Poll, Recv: func(buf []byte) int { n, _, _ := b.recv(buf); return n },
				Bad: &b.badWriteback, Next: &b.rxNext}
		})
	}
	b, r := newBenchQueue(t, make([]byte, 13)), nictest.NewResponder(t)
	for n := range uint32(65) {
		check.Equal(t, b.rdt, (n/32*32-1)&511, "slots before %d are given back")
		b.receive(1)
		b.Poll(r)
	}
}

// If the transmit ring is full, the reply is dropped and counted, and no descriptor that the device may still read
// changes.
func TestPollWithoutRoom(t *testing.T) {
	b, r := newBenchQueue(t, nictest.EchoRequest(64)), nictest.NewResponder(t)
	ring := unsafe.Slice((*txRead)(b.tx), b.mask+1)
	for range 3 {
		must.OK(t, b.send(b.frame, 0))
	}
	for range b.mask - 3 {
		b.receive(1)
		must.Equal(t, b.Poll(r), 1, "posted %d replies")
	}
	was := slices.Clone(ring)
	for n, frame := range [][]byte{b.frame, make([]byte, 64), b.frame} {
		b.frame = frame
		b.receive(1)
		must.Equal(t, b.Poll(r), 0, "posted %d replies to a full ring")
		check.Equal(t, b.txFull.Load(), uint64(n+2)/2, "%d replies found no room")
	}
	check.Same(t, ring, was, "descriptors %x")
	check.Equal(t, errors.Is(b.send(b.frame, 0), nic.ErrFull), true, "sent to a full ring: %t")
	stats := r.Stats()
	check.Equal(t, stats.Answered(), uint64(b.mask)-1, "%d answered")
	b.arrive(0)
	b.Poll(r)
	b.receive(1)
	check.Equal(t, b.Poll(r), 1, "posted %d replies to a ring that has room again")
}

func TestDepartures(t *testing.T) {
	for _, full := range []bool{false, true} {
		nictest.Departs(t, func(frame []byte) (func(*fastpath.Responder) int, func() []byte) {
			b := newBenchQueue(t, frame)
			if full {
				b.txRoom = b.txTail
			}
			b.receive(1)
			return b.Queue.Poll, func() []byte { return unsafe.Slice((*byte)(b.buf), b.bufSize) }
		})
	}
}

// sent is the frame of a transmit, as the device reads it.
func (b *benchQueue) sent(n uint32, more uint32) []byte {
	d := *b.transmit(n)
	length := d.cmd & 0xFFFF
	check.Equal(b.t, [2]uint32{d.cmd, d.status},
		[2]uint32{length | 3<<20 | 1<<24 | 1<<25 | 1<<29 | more, length << 14}, "command and status: %#x")
	if d.addr >= b.sendIOVA {
		check.Equal(b.t, d.addr, b.sendIOVA+uint64(n&b.mask*b.stride), "Send's buffer at %#x")
		return unsafe.Slice((*byte)(unsafe.Add(b.sendBuf, d.addr-b.sendIOVA)), length)
	}
	return unsafe.Slice((*byte)(unsafe.Add(b.buf, d.addr-b.iova)), length)
}

// Each pass posts its replies, of which the last requests a write-back, in all rounds of the ring. A reply of Slow may
// be longer than its request.
func TestTransmits(t *testing.T) {
	c := nictest.KindsConfig()
	c.STAMPBase = true
	r := must.Get(fastpath.New(c))(t)
	for _, c := range []struct {
		frame []byte
		size  int // of its reply
	}{{nictest.EchoRequest(64), 64}, {nictest.EchoRequest(2048), 2048},
		{nictest.Kind{Name: "stamp", Size: 60}.Frame(), 86}} {
		b := newBenchQueue(t, c.frame)
		for pass := uint32(1); b.txTail < 3*512; pass++ {
			first, slot, n := b.txTail, b.rxNext, pass%32+1
			b.arrive(int(n))
			skip := uint32(0)
			if pass%5 == 0 {
				b.rxDone(slot & 511).length = 0 // is refused
				skip = 1
			}
			must.Equal(t, uint32(b.Poll(r)), n-skip, "%d replies")
			for i := skip; i < n; i++ {
				more := uint32(0)
				if i == n-1 {
					more = 1 << 27
				}
				f := b.sent(first+i-skip, more)
				check.Equal(t, unsafe.Pointer(&f[0]), unsafe.Add(b.buf, (slot+i)&511*b.stride), "the reply is at %p")
				check.Equal(t, len(f), c.size, "the reply has %d bytes")
				check.Same(t, f[:6], c.frame[6:12], "the reply is to % x")
			}
			check.Equal(t, *b.batch(first), batch{first + n - skip, slot}, "the pass is %d")
			check.Equal(t, b.tdt, b.txTail&511, "doorbell %d")
		}
	}
}

// What is done up to the oldest pass that is still being sent is taken back, and slots of those passes are refilled.
func TestReclaim(t *testing.T) {
	for done, want := range [][3]uint32{{0, 511, 0}, {3, 514, 3}, {4, 515, 5}, {8, 519, 9}} {
		b, r := newBenchQueue(t, nictest.EchoRequest(64)), nictest.NewResponder(t)
		for _, n := range []int{3, 2, 4} {
			b.receive(n)
			if n == 2 {
				b.rxDone(3).length = 0 // is refused
			}
			b.Poll(r)
		}
		if done < 2 {
			b.txDesc(7).status |= txDD // the last pass is done early
		}
		for _, last := range []uint32{2, 3, 7}[:done] {
			b.txDesc(last).status |= txDD
		}
		b.Poll(r)
		check.Equal(t, [3]uint32{b.txDone, b.txRoom, b.refilled}, want, "done, room and refilled: %d")
	}
}

// Send copies a frame into a buffer of the queue, and a pass without frames takes back what was sent.
func TestSend(t *testing.T) {
	b, r, f := newBenchQueue(t, nil), nictest.NewResponder(t), nictest.EchoRequest(2048)
	for n := range uint32(3 * 512) {
		f[0] = byte(n)
		must.OK(t, b.send(f, txStamp))
		check.Same(t, b.sent(n, 1<<27|1<<19), f, "% x")
		check.Equal(t, [3]uint32{b.tdt, b.txDone, b.rxNext}, [3]uint32{(n + 1) & 511, n, 0}, "doorbell, done, slots %d")
		b.arrive(0)
		if n%2 == 0 { // otherwise Send does
			b.Poll(r)
			check.Equal(t, b.txDone, n+1, "%d are done")
		}
	}
}

// Recv takes frames in all rounds of the ring, and what was sent is taken back meanwhile.
func TestRecv(t *testing.T) {
	b, buf := newBenchQueue(t, nictest.EchoRequest(64)), make([]byte, 65)
	b.said = 1 << 16
	for n := range uint32(3 * 512) {
		b.frame[40] = byte(n)
		must.OK(t, b.send(b.frame, 0))
		b.arrive(1)
		size, at, status := b.recv(buf)
		check.Equal(t, [2]uint32{uint32(size), status}, [2]uint32{64, 1 | 2 | 1<<16}, "bytes and status %#x")
		check.Equal(t, at != 0, true, "has a time: %t")
		check.Same(t, buf, append(slices.Clone(b.frame), 0), "% x")
		check.Equal(t, [4]uint32{b.rxNext, b.txDone, b.refilled, b.rdt}, [4]uint32{n + 1, n + 1, n + 1,
			((n+1)/32*32 - 1) & 511}, "received, sent, refilled and given: %d")
	}
	must.OK(t, b.send(b.frame, 0))
	b.arrive(0)
	size, at, status := b.recv(buf)
	check.Equal(t, [4]int64{int64(size), at, int64(status), int64(b.txDone)}, [4]int64{-1, 0, 0, 3*512 + 1},
		"nothing received: %d")
}

// A reset leaves nothing of earlier frames.
func TestReset(t *testing.T) {
	b := newBenchQueue(t, nil)
	b.mask = 255
	rings := [2][]rxRead{unsafe.Slice((*rxRead)(b.rx), 257), unsafe.Slice((*rxRead)(b.tx), 257)}
	for i := range uint64(257) {
		rings[0][i], rings[1][i] = rxRead{i, i}, rxRead{i, i}
	}
	for i, n := range []*uint32{&b.rxNext, &b.refilled, &b.posted, &b.txTail, &b.txDone, &b.txRoom, &b.most} {
		*n = 77 * uint32(i+1)
	}
	b.delta, b.rxStatus = 0, nil
	b.reset()
	for i := range uint64(256) {
		check.Equal(t, [2]rxRead{rings[0][i], rings[1][i]}, [2]rxRead{{1<<32 + i*2112, 0}, {}}, "descriptors %#x")
	}
	check.Equal(t, [2]rxRead{rings[0][256], rings[1][256]}, [2]rxRead{{256, 256}, {256, 256}}, "behind the rings: %#x")
	check.Equal(t, [7]uint32{b.rxNext, b.refilled, b.posted, b.txTail, b.txDone, b.txRoom, b.most},
		[7]uint32{0, 0, 0, 0, 0, 255, 2034}, "numbers: %d")
	check.Equal(t, b.delta, 1<<32-uint64(uintptr(b.buf)), "delta %#x")
	check.Equal(t, b.rxStatus, unsafe.Add(b.rx, 8), "status words at %p")
}

func BenchmarkPoll(b *testing.B) {
	for _, bm := range []struct {
		name  string
		batch int
	}{{"batch=1", 1}, {"batch=32", 32}} {
		b.Run(bm.name, func(b *testing.B) {
			q, r := newBenchQueue(b, nictest.EchoRequest(64)), nictest.NewResponder(b)
			loop := q.Queue // a load less before each pass
			nictest.Cycles(b, r, bm.batch, q.arrive, func() int { return loop.Poll(r) })
		})
	}
}

func TestDeviceChecksums(t *testing.T) {
	nictest.DeviceChecksums(t, func(t testing.TB, frame []byte, word nictest.Word) (func(int),
		func(*fastpath.Responder) int) {
		q := newBenchQueue(t, frame)
		q.said = []uint32{0, 1<<5 | 1<<30, 1 << 5}[word]
		return q.arrive, q.Queue.Poll
	})
}

func kindsQueue(t testing.TB, frame []byte) (func(int), func(*fastpath.Responder) int) {
	q := newBenchQueue(t, frame)
	return q.arrive, q.Queue.Poll
}

func TestEmptyPing(t *testing.T) { nictest.EmptyPing(t, kindsQueue) }

func BenchmarkKinds(b *testing.B) { nictest.BenchmarkKinds(b, kindsQueue) }

func BenchmarkQueues(b *testing.B) { nictest.BenchmarkQueues(b, kindsQueue) }

// BenchmarkStampBias measures, in ticks, how long before Poll returns (a few instructions after its doorbell) a test
// packet's T3 was read, and how long before T3 its T2 was read: means over all packets of a pass. Slow's times are
// those of packets with two tags.
func BenchmarkStampBias(b *testing.B) {
	clock := new(atomic.Pointer[fastpath.Clock])
	clock.Store(&fastpath.Clock{Rate: 1 << 32}) // its time is the tick
	c := nictest.KindsConfig()
	c.Clock = clock
	for _, tags := range []int{0, 2} {
		for _, batch := range []uint32{1, 32} {
			b.Run(fmt.Sprintf("%s/batch=%d", map[int]string{0: "Reply", 2: "Slow"}[tags], batch), func(b *testing.B) {
				frame := nictest.Kind{Name: "stamp", Size: 86}.Frame()
				for range tags {
					frame = slices.Insert(frame, 12, 0x81, 0, 0, 100)
				}
				q := newBenchQueue(b, frame)
				r := must.Get(fastpath.New(c))(b)
				const groups = 2000
				var late, residence []float64
				for b.Loop() {
					for range groups {
						first := q.rxNext
						q.arrive(int(batch))
						r.Loop.Begin()
						if q.Poll(r) != int(batch) {
							b.Fatal("not all answered")
						}
						now := polling.FencedTSC()
						for i := range batch {
							p := unsafe.Slice((*byte)(unsafe.Add(q.buf, (first+i)&q.mask*q.stride)),
								len(frame))[42+4*tags:]
							t3, t2 := binary.BigEndian.Uint64(p[4:]), binary.BigEndian.Uint64(p[16:])
							late, residence = append(late, float64(now-t3)), append(residence, float64(t3-t2))
						}
					}
				}
				b.ReportMetric(trimmed(late), "ticks-after-T3")
				b.ReportMetric(trimmed(residence), "ticks-T2-to-T3")
			})
		}
	}
}

// trimmed is the mean of the lower three quarters: a pass that was interrupted is in the rest. The counter may have
// steps of tens of ticks, so a quantile would be one of them.
func trimmed(v []float64) (mean float64) {
	slices.Sort(v)
	v = v[:len(v)*3/4]
	for _, x := range v {
		mean += x / float64(len(v))
	}
	return mean
}

func TestPollIsAHotLoop(t *testing.T) {
	nictest.StackAccesses(t, "github.com/rebound-nic/rebound/nic/drivers/ixgbe", "(*Queue).Poll", 52)
	nictest.HotLoop(t, "github.com/rebound-nic/rebound/nic/drivers/ixgbe", "(*Queue).Poll", "mmio.Store32",
		"ixgbe.(*Queue).reclaim", "ixgbe.(*Queue).full")
	nictest.HotLoop(t, "github.com/rebound-nic/rebound/nic/drivers/ixgbe", "(*Queue).full")
	nictest.HotLoop(t, "github.com/rebound-nic/rebound/nic/drivers/ixgbe", "(*Queue).post", "mmio.Store32")
	nictest.HotLoop(t, "github.com/rebound-nic/rebound/nic/drivers/ixgbe", "(*Queue).reclaim", "mmio.Store32")
}
