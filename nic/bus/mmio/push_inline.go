//go:build purego || !amd64

package mmio

import (
	"math/bits"
	"unsafe"
)

// Bytes of data in the blocks of an entry: of the first one behind 16 bytes of control, of all behind the four bytes of their
// segment's header.
const (
	inlineFirst = BlockSize - 16 - 4
	inlineNext  = BlockSize - 4
)

// PushInline makes an entry of n64 blocks, which holds length bytes of data inline, at block tail of the ring,
// fences, stores the same blocks into a write-combining window, and fences: mlx4's BlueFlame. Without a window the
// ring is all there is. c0 and c1 are the entry's first 16 bytes, as they are in memory. Each block's data is its own
// segment, whose header says its length (big-endian, with bit 31): 44 bytes in the first, 60 in each behind it.
//
// The device may read the ring at any time, and takes each block for valid by its first four bytes. They are stored
// behind the rest of their block, and those of the first block, which hand the entry over, behind all.
//
// Up to 64 bytes behind the data may be read, and copied to where the last block has room.
func PushInline(q *SendRing, tail, n64 uint32, data unsafe.Pointer, length uint32, c0, c1 uint64, window unsafe.Pointer) {
	b := inlineBehind(q, tail, n64, unsafe.Add(data, inlineFirst), length-min(length, inlineFirst))
	b[1], b[2], b[3], b[4] = uint32(c0>>32), uint32(c1), uint32(c1>>32), inlineSegment(min(length, inlineFirst))
	copy(b[5:], (*[inlineFirst / 4]uint32)(data)[:])
	Store32(&b[0], uint32(c0))
	fromRing(q, tail, n64, window)
}

// PushHeaded is PushInline for an entry whose first block is the 64 bytes at head, and whose data, one byte or more, is in the blocks behind
// it: n64 is two or more.
func PushHeaded(q *SendRing, tail, n64 uint32, head, data unsafe.Pointer, length uint32, window unsafe.Pointer) {
	b, h := inlineBehind(q, tail, n64, data, length), (*[BlockSize / 4]uint32)(head)
	copy(b[1:], h[1:])
	Store32(&b[0], h[0])
	fromRing(q, tail, n64, window)
}

func inlineSegment(n uint32) uint32 { return bits.ReverseBytes32(1<<31 | n) }

// inlineBehind makes the blocks of an entry behind its first one, which it returns.
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

// fromRing stores the entry into the window, if there is one.
func fromRing(q *SendRing, tail, n64 uint32, window unsafe.Pointer) {
	if window == nil {
		return
	}
	FenceWC()
	head := min(n64, q.Mask+1-tail&q.Mask) // up to the ring's end
	CopyWC(window, unsafe.Add(q.Base, tail&q.Mask*BlockSize), int(head))
	CopyWC(unsafe.Add(window, head*BlockSize), q.Base, int(n64-head))
	FenceWC()
}
