package ixgbe

import (
	"testing"
	"unsafe"

	"rebound/nic/kit"
	"rebound/nic/nictest"
	"rebound/polling"
)

// bench is a queue whose device is the test: rings and buffers in ordinary memory, doorbells that nobody hears.
type benchQueue struct {
	*Queue
	frame    []byte
	rdt, tdt uint32
}

func newBenchQueue(frame []byte) *benchQueue {
	const ring, stride = 512, 2048 + 64
	b := &benchQueue{frame: frame}
	mem := func(n int) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(make([]uint64, n/8))) }
	b.Queue = &Queue{
		rx: mem(ring * descSize), tx: mem(ring * descSize), buf: mem(ring * stride),
		pend: kit.Words(ring), batch: kit.Words(ring),
		bufSize: 2048, stride: stride, mask: ring - 1, rdt: &b.rdt, tdt: &b.tdt, iova: 1 << 32,
	}
	b.reset()
	return b
}

// arrive does what the device does for the next n frames: payload, then write-back. It also completes all transmits.
func (b *benchQueue) arrive(n int) {
	for i := range uint32(n) {
		slot := (b.rxNext + i) & b.mask
		copy(unsafe.Slice((*byte)(unsafe.Add(b.buf, slot*b.stride)), len(b.frame)), b.frame)
		*b.rxDone(slot) = rxWriteback{status: rxDD | rxEOP, length: uint16(len(b.frame))}
	}
	for n := b.txDone; n != b.txTail; n++ {
		if d := b.txDesc(n & b.mask); d.cmd&txRS != 0 {
			d.status |= txDD
		}
	}
}

func TestPollAllocatesNothing(t *testing.T) {
	b, r := newBenchQueue(nictest.EchoRequest(64)), nictest.NewResponder(t)
	if n := testing.AllocsPerRun(1000, func() {
		b.arrive(3)
		if n := b.Poll(r); n != 3 {
			t.Fatalf("answered %d of 3", n)
		}
	}); n != 0 {
		t.Errorf("%v allocations a pass", n)
	}
}

// BenchmarkPoll reports what Poll alone costs for each reply. The device's part is timed away: it runs between two reads of
// the cycle counter that are not added up.
func BenchmarkPoll(b *testing.B) {
	for _, bm := range []struct {
		name  string
		batch int
	}{{"batch=1", 1}, {"batch=32", 32}} {
		b.Run(bm.name, func(b *testing.B) {
			q, r := newBenchQueue(nictest.EchoRequest(64)), nictest.NewResponder(b)
			var spent uint64
			n := 0
			for b.Loop() {
				q.arrive(bm.batch)
				t := polling.TSC()
				n += q.Poll(r)
				spent += polling.TSC() - t
			}
			var idle uint64 // what the two reads cost by themselves
			for range 1000 {
				t := polling.TSC()
				idle += polling.TSC() - t
			}
			net := float64(spent) - float64(b.N)*float64(idle)/1000
			b.ReportMetric(net/float64(n), "cycles/reply")
			b.ReportMetric(float64(n)/float64(b.N), "replies/pass")
		})
	}
}

func TestPollIsAHotLoop(t *testing.T) {
	nictest.HotLoop(t, "rebound/nic/ixgbe", "(*Queue).Poll", "ixgbe.(*Queue).post", "ixgbe.(*Queue).tidy", "runtime.panicunsafeslicelen")
	nictest.HotLoop(t, "rebound/nic/ixgbe", "(*Queue).post", "mmio.Store32")
	nictest.HotLoop(t, "rebound/nic/ixgbe", "(*Queue).tidy", "mmio.Store32")
}
