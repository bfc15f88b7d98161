package ixgbe

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic/kit"
	"github.com/rebound-nic/rebound/polling"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/nictest"
)

// benchQueue is a queue with rings, buffers and doorbells in ordinary memory. The test plays the device.
type benchQueue struct {
	*Queue
	frame    []byte
	said     uint32 // additional status bits of each frame
	rdt, tdt uint32
}

func newBenchQueue(t testing.TB, frame []byte) *benchQueue {
	const ring = 512
	size := max(2048, len(frame))
	stride := (size+63)&^63 + 64
	b := &benchQueue{frame: frame}
	take := nictest.Carve(t, ring*(2*descSize+stride))
	b.Queue = &Queue{
		rx: take(ring * descSize), tx: take(ring * descSize), buf: take(ring * stride),
		batches: kit.Words(2 * ring),
		bufSize: uint32(size), stride: uint32(stride), mask: ring - 1, rdt: &b.rdt, tdt: &b.tdt, iova: 1 << 32,
	}
	b.reset()
	return b
}

// receive receives the next n frames as the device does: payload, then write-back.
func (b *benchQueue) receive(n int) {
	for i := range uint32(n) {
		slot := (b.rxNext + i) & b.mask
		copy(unsafe.Slice((*byte)(unsafe.Add(b.buf, slot*b.stride)), len(b.frame)), b.frame)
		*b.rxDone(slot) = rxWriteback{status: rxDD | rxEOP | b.said, length: uint16(len(b.frame))}
	}
}

// arrive is receive, and completes all transmits.
func (b *benchQueue) arrive(n int) {
	b.receive(n)
	for n := b.txDone; n != b.txTail; n++ {
		if d := b.txDesc(n & b.mask); d.cmd&txRS != 0 {
			d.status |= txDD
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
	const whole = rxDD | rxEOP
	for _, c := range []struct {
		length uint16
		status uint32
		good   bool
	}{{0, whole, false}, {13, whole, false}, {14, whole, true}, {2048, whole, true}, {2049, whole, false},
		{64, rxDD, false}, {64, whole | rxErrors, false}} {
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
		check.Equal(t, b.rdt, max(n/32*32, 1)-1, "slots before %d are given back")
		b.receive(1)
		b.Poll(r)
	}
}

// If the transmit ring is full, the reply is dropped and counted, and no descriptor that the device may still read
// changes.
func TestPollWithoutRoom(t *testing.T) {
	b, r := newBenchQueue(t, nictest.EchoRequest(64)), nictest.NewResponder(t)
	ring := unsafe.Slice((*txRead)(b.tx), b.mask+1)
	for range b.mask {
		b.receive(1)
		must.Equal(t, b.Poll(r), 1, "posted %d replies")
	}
	was := slices.Clone(ring)
	for range 2 {
		b.receive(1)
		must.Equal(t, b.Poll(r), 0, "posted %d replies to a full ring")
	}
	if n := b.txFull.Load(); n != 2 || !slices.Equal(ring, was) {
		t.Errorf("%d counted, want 2; ring as it was: %v", n, slices.Equal(ring, was))
	}
	stats := r.Stats()
	check.Equal(t, stats.Answered(), uint64(b.mask)+2, "%d answered")
	b.arrive(0)
	b.Poll(r)
	b.receive(1)
	check.Equal(t, b.Poll(r), 1, "posted %d replies to a ring that has room again")
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
		q.said = []uint32{0, rxL4I | rxL4E, rxL4I}[word]
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
