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

// bestCached returns the best method that goes through the caches if the mapping is cached.
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

// PushInline writes an entry of n64 blocks with length bytes of inline data at block tail of the ring, fences, copies
// the blocks into a write-combining window, and fences again: mlx4's BlueFlame. If there is no window, only the ring is
// written. c0 and c1 are the entry's first 16 bytes, as in memory. The data of each block is a separate segment, whose
// header holds its length (big-endian, with bit 31 set): 44 bytes in the first block, 60 in each later one.
//
// The device may read the ring at any time, and considers a block valid once its first four bytes are. These are stored
// after the rest of their block, and the first block's, which transfer ownership of the entry, last.
//
// Up to 64 bytes after the data may be read, and copied into the unused part of the last block.
//
//go:noescape
func PushInline(q *SendRing, tail, n64 uint32, data unsafe.Pointer, length uint32, c0, c1 uint64, window unsafe.Pointer)

// PushHeaded is PushInline for an entry whose first block is the 64 bytes at head and whose data, at least one byte,
// follows in the next blocks. n64 is at least 2.
//
//go:noescape
func PushHeaded(q *SendRing, tail, n64 uint32, head, data unsafe.Pointer, length uint32, window unsafe.Pointer)
