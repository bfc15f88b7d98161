//go:build (amd64 || arm64) && !purego

package mmio

import "unsafe"

// PureGo says that the build has no assembly: it works on models, and is not for devices.
const PureGo = false

// RingDoorbell stores the doorbell record, and after it the doorbell in an uncached window. Both values are stored as they
// are: the caller has swapped what the device wants big-endian.
//
//go:noescape
func RingDoorbell(rec *uint32, recVal uint32, db *uint64, v uint64)

// RingDoorbellWC is RingDoorbell for a doorbell in a write-combining window. When it returns, the doorbell has left the
// write-combining buffer.
//
//go:noescape
func RingDoorbellWC(rec *uint32, recVal uint32, db *uint64, v uint64)

// CopyWC copies n64 blocks into a write-combining window, and fences nothing.
//
//go:noescape
func CopyWC(dst, src unsafe.Pointer, n64 int)

// FenceWC makes what was stored into write-combining windows leave, before any later store.
func FenceWC()

// PushWQE copies n64 blocks from src to block tail of the ring and those after it, stores the doorbell record, fences, copies
// the blocks into a write-combining window, and fences: mlx5's BlueFlame. The record is stored as it is.
//
//go:noescape
func PushWQE(q *SendRing, tail, record uint32, window, src unsafe.Pointer, n64 int)

// WriteBarrier orders stores to memory that the device reads: those before it are seen no later than those after it. A
// driver puts it between a descriptor's content and the bit that hands it over.
func WriteBarrier()
