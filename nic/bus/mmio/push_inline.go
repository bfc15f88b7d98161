//go:build purego || !amd64

package mmio

import (
	"math/bits"
	"unsafe"
)

// Bytes of data per block of an entry: the first one has 16 bytes of control, and each has a 4-byte segment header.
const (
	inlineFirst = BlockSize - 16 - 4
	inlineNext  = BlockSize - 4
)

// PushInline writes an entry of n64 blocks with length bytes of inline data at block tail of the ring, fences, copies
// the blocks into a write-combining window, and fences again: mlx4's BlueFlame. If there is no window, only the ring is
// written. c0 and c1 are the entry's first 16 bytes, as in memory. The data of each block is a separate segment, whose
// header holds its length (big-endian, with bit 31 set): 44 bytes in the first block, 60 in each later one.
//
// The device may read the ring at any time, and considers a block valid once its first four bytes are. These are stored
// after the rest of their block, and the first block's, which transfer ownership of the entry, last.
//
// Up to 64 bytes after the data may be read, and copied into the unused part of the last block.
func PushInline(q *SendRing, tail, n64 uint32, data unsafe.Pointer, length uint32, c0, c1 uint64,
	window unsafe.Pointer) {
	b := inlineBehind(q, tail, n64, unsafe.Add(data, inlineFirst), length-min(length, inlineFirst))
	b[1], b[2], b[3], b[4] = uint32(c0>>32), uint32(c1), uint32(c1>>32), inlineSegment(min(length, inlineFirst))
	copy(b[5:], (*[inlineFirst / 4]uint32)(data)[:])
	Store32(&b[0], uint32(c0))
	fromRing(q, tail, n64, window)
}

// PushHeaded is PushInline for an entry whose first block is the 64 bytes at head and whose data, at least one byte,
// follows in the next blocks. n64 is at least 2.
func PushHeaded(q *SendRing, tail, n64 uint32, head, data unsafe.Pointer, length uint32, window unsafe.Pointer) {
	b, h := inlineBehind(q, tail, n64, data, length), (*[BlockSize / 4]uint32)(head)
	copy(b[1:], h[1:])
	Store32(&b[0], h[0])
	fromRing(q, tail, n64, window)
}

func inlineSegment(n uint32) uint32 { return bits.ReverseBytes32(1<<31 | n) }

// inlineBehind writes the blocks of an entry after its first one and returns the first.
func inlineBehind(q *SendRing, tail, n64 uint32, data unsafe.Pointer, left uint32) *[BlockSize / 4]uint32 {
	block := func(n uint32) *[BlockSize / 4]uint32 {
		return (*[BlockSize / 4]uint32)(unsafe.Add(q.Base, n&q.Mask*BlockSize))
	}
	for i := uint32(1); i < n64; i++ {
		from, b := (*[BlockSize / 4]uint32)(unsafe.Add(data, int(i-1)*inlineNext-4)), block(tail+i)
		copy(b[1:], from[1:])
		n := min(left, inlineNext)
		left -= n
		Store32(&b[0], inlineSegment(n))
	}
	return block(tail)
}

// fromRing copies the entry into the window, if there is one.
func fromRing(q *SendRing, tail, n64 uint32, window unsafe.Pointer) {
	if window == nil {
		return
	}
	FenceWC()
	head := min(n64, q.Mask+1-tail&q.Mask) // up to the end of the ring
	CopyWC(window, unsafe.Add(q.Base, tail&q.Mask*BlockSize), int(head))
	CopyWC(unsafe.Add(window, head*BlockSize), q.Base, int(n64-head))
	FenceWC()
}
