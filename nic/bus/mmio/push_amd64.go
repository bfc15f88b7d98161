//go:build !purego

package mmio

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

// cpuid executes CPUID for a leaf and subleaf.
func cpuid(leaf, sub uint32) (a, b, c, d uint32)

func bestPush() Push {
	if hasMOVDIR64B() {
		return MOVDIR64B
	}
	return bestCached()
}

// bestCached is the best of those that store by way of the caches, where the mapping has them.
func bestCached() Push {
	switch {
	case cpu.X86.HasAVX512F:
		return AVX512
	case cpu.X86.HasAVX2:
		return AVX2
	}
	return Stores
}

// hasMOVDIR64B reads CPUID.(EAX=7,ECX=0):ECX[28].
func hasMOVDIR64B() bool {
	if top, _, _, _ := cpuid(0, 0); top < 7 {
		return false
	}
	_, _, c, _ := cpuid(7, 0)
	return c>>28&1 != 0
}

// PushInline makes an entry of n64 blocks, which holds length bytes of data inline, at block tail of the ring,
// fences, stores the same blocks into a write-combining window, and fences: mlx4's BlueFlame. Without a window the
// ring is all there is. c0 and c1 are the entry's first 16 bytes, as they are in memory. Each block's data is its own
// segment, whose header says its length (big-endian, with bit 31): 44 bytes in the first, 60 in each behind it.
//
// The device may read the ring at any time, and takes each block for valid by its first four bytes. They are stored
// behind the rest of their block, and those of the first block, which hand the entry over, behind all.
//
// Up to 64 bytes behind the data may be read, and copied to where the last block has room.
//
//go:noescape
func PushInline(q *SendRing, tail, n64 uint32, data unsafe.Pointer, length uint32, c0, c1 uint64, window unsafe.Pointer)

// PushHeaded is PushInline for an entry whose first block is the 64 bytes at head, and whose data, one byte or more, is in the blocks behind
// it: n64 is two or more.
//
//go:noescape
func PushHeaded(q *SendRing, tail, n64 uint32, head, data unsafe.Pointer, length uint32, window unsafe.Pointer)
