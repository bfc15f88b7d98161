// Package dma is memory that a device reads and writes: mmap'd, pinned, never moved by the runtime, with a device
// address (IOVA).
package dma

import "errors"

var (
	// ErrNoRoom says that an Arena has no free piece that is long enough: Grow adds to it.
	ErrNoRoom = errors.New("arena has no room")
	// ErrClosed says that an Arena was closed.
	ErrClosed = errors.New("arena is closed")
	// ErrScattered is what a Mapper without an IOMMU answers where the device would see the memory in pieces. An Arena
	// then maps page by page.
	ErrScattered = errors.New("memory is not contiguous for the device")
)

// Memory is one mapping to be shown to a device. FD and Off name the file behind it (a memfd), so that a device model in
// another process can map it too; FD is -1 where there is none.
type Memory struct {
	Bytes []byte // page-aligned, whole pages
	FD    int
	Off   int64
	Page  int // size of the pages that it is made of, in bytes; 0 if unknown
}

// Mapper makes memory visible to a device: an IOMMU container, a vfio-user server, a model in this process. A Mapper that
// knows which NUMA node its device is attached to has a method NUMANode() int besides (-1 if unknown).
type Mapper interface {
	// Map returns the address at which the device sees m. The caller keeps m mapped and unmoved until Unmap.
	Map(m Memory) (iova uint64, err error)
	// Unmap ends what Map began. After it returned the device cannot reach the memory.
	Unmap(iova uint64, size int) error
}

// Block is a piece of an Arena.
type Block struct {
	Bytes []byte
	IOVA  uint64 // the device's address of Bytes[0]
}
