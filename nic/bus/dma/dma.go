// Package dma provides memory that a device can read and write: mapped with mmap, pinned, never moved by the Go
// runtime, and with a device address (IOVA).
package dma

import "errors"

var (
	// ErrNoRoom is returned when an Arena has no free range that is long enough. Grow adds memory.
	ErrNoRoom = errors.New("arena has no room")
	// errClosed is returned by methods of a closed Arena.
	errClosed = errors.New("arena is closed")
	// errScattered is returned by a Mapper without an IOMMU if the memory is not contiguous for the device. An Arena
	// then maps page by page.
	errScattered = errors.New("memory is not contiguous for the device")
)

// Memory is one mapping for a device. FD and Off identify the file behind it (a memfd), so that a device model in
// another process can map it too. FD is -1 if there is none.
type Memory struct {
	Bytes []byte // page-aligned, whole pages
	FD    int
	Off   int64
	Page  int // page size in bytes, 0 if unknown
}

// Mapper makes memory accessible to a device: an IOMMU container, a vfio-user server, a model in this process. A Mapper
// that knows the NUMA node of its device also has a method NUMANode() int (-1 if unknown).
type Mapper interface {
	// Map returns the device address of m. The caller keeps m mapped, at the same address, until Unmap.
	Map(m Memory) (iova uint64, err error)
	// Unmap undoes Map. When it has returned, the device can no longer access the memory.
	Unmap(iova uint64, size int) error
}

// Block is a range allocated from an Arena.
type Block struct {
	Bytes []byte
	IOVA  uint64 // device address of Bytes[0]
}
