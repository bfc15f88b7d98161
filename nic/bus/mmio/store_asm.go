//go:build (amd64 || arm64) && !purego

package mmio

import "unsafe"

// PureGo reports a build without assembly, which works with models but not with devices.
const PureGo = false

// RingDoorbell stores the doorbell record, and after it the doorbell in an uncached window. Both values are stored as
// they are: the caller swaps bytes if the device is big-endian.
//
//go:noescape
func RingDoorbell(rec *uint32, recVal uint32, db *uint64, v uint64)

// RingDoorbellWC is RingDoorbell for a doorbell in a write-combining window. When it returns, the doorbell has left the
// write-combining buffer.
//
//go:noescape
func RingDoorbellWC(rec *uint32, recVal uint32, db *uint64, v uint64)

// CopyWC copies n64 blocks into a write-combining window. It does not fence.
//
//go:noescape
func CopyWC(dst, src unsafe.Pointer, n64 int)

// FenceWC flushes stores to write-combining windows before any later store.
func FenceWC()

// PushWQE copies n64 blocks from src into the ring, starting at block tail, stores the doorbell record, fences, copies
// the blocks into a write-combining window, and fences again: mlx5's BlueFlame. The record is stored as it is.
//
//go:noescape
func PushWQE(q *SendRing, tail, record uint32, window, src unsafe.Pointer, n64 int)

// WriteBarrier orders stores to memory that the device reads: it sees those before the barrier no later than those
// after it. Drivers put it between the content of a descriptor and the bit that transfers ownership.
func WriteBarrier()
