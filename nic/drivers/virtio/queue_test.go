package virtio

import (
	"math/bits"
	"testing"
	"unsafe"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/proof/nictest"
)

// testQueue is a queue with rings, buffers and a doorbell in ordinary memory. The test plays the device, written from
// the words of §2.7 and §2.8, and shares only the rings' layout with the driver.
type testQueue struct {
	*Queue
	bells  [2]uint32 // of receive and transmit
	taken  []uint32  // buffers that the device took from the receive ring, in order, and has not used
	rxAt   uint32    // receive entries that the device took
	rxUsed uint32    // receive entries that it used
	txAt   uint32    // transmit entries that it took
	txUsed uint32    // transmit entries that it used
	frame  []byte
}

const (
	testRing   = 256
	testStride = 1600
	testLen    = 1534
	testIOVA   = 1 << 32
	noBell     = ^uint32(0)
)

func newTestQueue(t testing.TB, packed bool) *testQueue {
	return newTestQueueOf(t, packed, testStride, testLen)
}

func newTestQueueOf(t testing.TB, packed bool, stride, length uint32) *testQueue {
	const area = testRing*descSize + 4096
	take := nictest.Carve(t, 6*area+2*testRing*int(stride))
	b := &testQueue{frame: nictest.EchoRequest(64)}
	b.Queue = &Queue{bufLen: length, stride: stride, iova: testIOVA,
		owner: unsafe.Pointer(unsafe.SliceData(make([]byte, testRing+1)))}
	for i, r := range []*ring{&b.rx, &b.tx} {
		*r = ring{index: uint32(i), mask: testRing - 1, shift: uint8(bits.TrailingZeros(testRing)), packed: packed,
			desc: take(area), driver: take(area), device: take(area), bell: unsafe.Pointer(&b.bells[i])}
	}
	b.buf = take(testRing * int(stride))
	b.sendBuf, b.sendIOVA = take(testRing*int(stride)), testIOVA+1<<31
	b.restart()
	return b
}

func (b *testQueue) restart() {
	b.reset()
	b.taken, b.rxAt, b.rxUsed, b.txAt, b.txUsed = b.taken[:0], 0, 0, 0, 0
	b.bells = [2]uint32{noBell, noBell}
}

func word(p unsafe.Pointer, off uint32) *uint32 { return (*uint32)(unsafe.Add(p, off)) }
func half(p unsafe.Pointer, off uint32) *uint16 { return (*uint16)(unsafe.Add(p, off)) }

// wrap is the wrap counter of entry n: 1 in the first round (§2.8.1).
func wrap(n uint32) uint16 { return uint16(1 - n/testRing%2) }

// next returns the descriptor that the driver made available as entry n of r, and its number.
func (b *testQueue) next(r *ring, n uint32) (id uint32, addr uint64, length uint32, write, ok bool) {
	if r.packed {
		at := n % testRing * 16
		flags := *half(r.desc, at+14)
		if flags>>7&1 != wrap(n) || flags>>15&1 == wrap(n) || flags&^(1<<7|1<<15|2) != 0 {
			return 0, 0, 0, false, false
		}
		return uint32(*half(r.desc, at+12)), *(*uint64)(unsafe.Add(r.desc, at)), *word(r.desc, at+8), flags&2 != 0, true
	}
	if *half(r.driver, 2) == uint16(n) {
		return 0, 0, 0, false, false
	}
	id = uint32(*half(r.driver, 4+n%testRing*2))
	return id, *(*uint64)(unsafe.Add(r.desc, id*16)), *word(r.desc, id*16+8), *half(r.desc, id*16+12)&2 != 0, true
}

func (b *testQueue) use(r *ring, n, id, length uint32) {
	if r.packed {
		at := n % testRing * 16
		*word(r.desc, at+8) = length
		*half(r.desc, at+12) = uint16(id)
		*half(r.desc, at+14) = wrap(n)<<7 | wrap(n)<<15
		return
	}
	*word(r.device, 4+n%testRing*8) = id
	*word(r.device, 8+n%testRing*8) = length
	*half(r.device, 2) = uint16(n + 1)
}

func (b *testQueue) gather() {
	for {
		id, _, _, _, ok := b.next(&b.rx, b.rxAt)
		if !ok {
			return
		}
		b.taken = append(b.taken, id)
		b.rxAt++
	}
}

func (b *testQueue) buffer(id uint32) []byte {
	return unsafe.Slice((*byte)(unsafe.Add(b.buf, id*b.stride)), b.bufLen)
}

func (b *testQueue) receive(frame []byte) (id uint32) {
	b.gather()
	id = b.taken[0]
	b.taken = append(b.taken[:0], b.taken[1:]...)
	p := b.buffer(id)
	copy(p, []byte{10: 1, 11: 0})
	n := headerLen + copy(p[headerLen:], frame)
	b.use(&b.rx, b.rxUsed, id, uint32(n))
	b.rxUsed++
	return id
}

func (b *testQueue) transmit() (id uint32, addr uint64, frame []byte, ok bool) {
	id, addr, n, write, ok := b.next(&b.tx, b.txAt)
	if !ok || write {
		return 0, 0, nil, false
	}
	b.txAt++
	if addr >= b.sendIOVA {
		return id, addr, unsafe.Slice((*byte)(unsafe.Add(b.sendBuf, addr-b.sendIOVA)), n), true
	}
	return id, addr, unsafe.Slice((*byte)(unsafe.Add(b.buf, addr-testIOVA)), n), true
}

func (b *testQueue) finish(id uint32) {
	b.use(&b.tx, b.txUsed, id, 0)
	b.txUsed++
}

// arrive and complete play the device for benchmarks: n frames arrive, and all posted transmits complete.
func (b *testQueue) arrive(n int) {
	for {
		id, _, _, ok := b.transmit()
		if !ok {
			break
		}
		b.finish(id)
	}
	for range n {
		b.receive(b.frame)
	}
}

// both runs f on a split and on a packed queue.
func both(t *testing.T, f func(t *testing.T, b *testQueue, r *fastpath.Responder)) {
	for _, packed := range []bool{false, true} {
		t.Run(map[bool]string{false: "split", true: "packed"}[packed],
			func(t *testing.T) { f(t, newTestQueue(t, packed), nictest.NewResponder(t)) })
	}
}
