package mlxkit

import (
	"unsafe"

	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/kit"
)

// Buffers are those that Send copies frames to, one after the other. A buffer is free when the send queue's blocks
// before its end are done. The zero Buffers, of a queue that does not send, have none.
type Buffers struct {
	base   unsafe.Pointer
	iova   uint64
	ends   []uint32 // a power of two
	stride uint32
	next   uint32
}

// NewBuffers divides memory into as many buffers as there are ends, a power of two.
func NewBuffers(memory dma.Block, ends []uint32) Buffers {
	return Buffers{base: kit.Pointer(memory), iova: memory.IOVA, ends: ends,
		stride: uint32(len(memory.Bytes) / len(ends))}
}

// Reset frees all buffers, those of a send queue that starts again at block 0.
func (b *Buffers) Reset() {
	b.next = 0
	clear(b.ends)
}

// Next returns the next buffer, if it is free when all blocks before done are done.
func (b *Buffers) Next(done uint32) (at unsafe.Pointer, iova uint64, free bool) {
	n := b.next & uint32(len(b.ends)-1)
	return unsafe.Add(b.base, n*b.stride), b.iova + uint64(n*b.stride), int32(done-b.ends[n]) >= 0
}

// Use uses the buffer that Next returned, for blocks before end.
func (b *Buffers) Use(end uint32) {
	b.ends[b.next&uint32(len(b.ends)-1)] = end
	b.next++
}

// Free updates the ends of free buffers before they are half the range of numbers behind, and would appear to be ahead.
//
//go:noinline
func (b *Buffers) Free(done uint32) {
	for n, end := range b.ends {
		if int32(done-end) >= 0 {
			b.ends[n] = done
		}
	}
}
