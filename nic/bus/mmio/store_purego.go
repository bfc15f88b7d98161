//go:build purego || !(amd64 || arm64)

package mmio

import (
	"sync/atomic"
	"unsafe"
)

// Without assembly, each store is a function that the compiler does not inline, so that it can neither merge, delete
// nor move it. The fence is an atomic read-modify-write of a variable: on amd64 it drains write-combining buffers too;
// on arm64 it only orders what processors see, which is enough for models but not for a device.

// PureGo reports a build without assembly, which works with models but not with devices.
const PureGo = true

func bestPush() Push   { return Stores }
func bestCached() Push { return Stores }

var fence atomic.Uint32

//go:noinline
func store8(p *uint8, v uint8) { *p = v }

//go:noinline
func store16(p *uint16, v uint16) { *p = v }

//go:noinline
func store32(p *uint32, v uint32) { *p = v }

//go:noinline
func store64(p *uint64, v uint64) { *p = v }

// Store32 stores v at p with a single store, after all earlier stores of this thread to ordinary memory.
func Store32(p *uint32, v uint32) { fence.Add(1); store32(p, v) }

// Store8 is Store32 for one byte.
func Store8(p *uint8, v uint8) { fence.Add(1); store8(p, v) }

// Store16 is Store32 for two bytes.
func Store16(p *uint16, v uint16) { fence.Add(1); store16(p, v) }

// Store64 is Store32 for eight bytes.
func Store64(p *uint64, v uint64) { fence.Add(1); store64(p, v) }

// RingDoorbell stores the doorbell record, and after it the doorbell in an uncached window.
func RingDoorbell(rec *uint32, recVal uint32, db *uint64, v uint64) {
	Store32(rec, recVal)
	Store64(db, v)
}

// RingDoorbellWC is RingDoorbell for a doorbell in a write-combining window.
func RingDoorbellWC(rec *uint32, recVal uint32, db *uint64, v uint64) {
	RingDoorbell(rec, recVal, db, v)
	FenceWC()
}

// CopyWC copies n64 blocks into a write-combining window. It does not fence.
func CopyWC(dst, src unsafe.Pointer, n64 int) {
	for off := 0; off < n64*BlockSize; off += 8 {
		store64((*uint64)(unsafe.Add(dst, off)), *(*uint64)(unsafe.Add(src, off)))
	}
}

// FenceWC flushes stores to write-combining windows before any later store.
func FenceWC() { fence.Add(1) }

// PushWQE copies n64 blocks into the ring, starting at block tail, stores the doorbell record, fences, copies the
// blocks into a write-combining window, and fences again.
func PushWQE(q *SendRing, tail, record uint32, window, src unsafe.Pointer, n64 int) {
	for i := range max(n64, 0) {
		CopyWC(unsafe.Add(q.Base, (tail+uint32(i))&q.Mask*BlockSize), unsafe.Add(src, i*BlockSize), 1)
	}
	Store32(q.Record, record)
	FenceWC()
	CopyWC(window, src, n64)
	FenceWC()
}

// WriteBarrier orders stores to memory that the device reads.
func WriteBarrier() { fence.Add(1) }
