package dma

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Arena hands out blocks of one or more pinned mappings and gives them all back at Close.
type Arena struct {
	mapper Mapper
	mem    Memory
	iova   uint64
	used   int
}

// NewArena maps size bytes, rounded up to whole pages, and shows them to the device behind m.
func NewArena(m Mapper, size int) (*Arena, error) {
	const page = 1 << 21
	size = (size + page - 1) &^ (page - 1)
	fd, err := unix.MemfdCreate("rebound-dma", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("dma: memfd: %w", err)
	}
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("dma: memfd of %d bytes: %w", size, err)
	}
	b, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("dma: map %d bytes: %w", size, err)
	}
	a := &Arena{mapper: m, mem: Memory{Bytes: b, FD: fd}}
	if a.iova, err = m.Map(a.mem); err != nil {
		unix.Munmap(b)
		unix.Close(fd)
		return nil, err
	}
	return a, nil
}

// Alloc returns size zeroed bytes whose device address is a multiple of align, a power of two up to 2 MiB.
func (a *Arena) Alloc(size, align int) (Block, error) {
	start := (a.used + align - 1) &^ (align - 1)
	if start+size > len(a.mem.Bytes) {
		return Block{}, fmt.Errorf("dma: arena of %d bytes has no room for %d more", len(a.mem.Bytes), size)
	}
	a.used = start + size
	return Block{Bytes: a.mem.Bytes[start:a.used:a.used], IOVA: a.iova + uint64(start)}, nil
}

// Close takes the memory away from the device, then unmaps it. The device must be quiet: bus mastering off.
func (a *Arena) Close() error {
	err := a.mapper.Unmap(a.iova, len(a.mem.Bytes))
	unix.Munmap(a.mem.Bytes)
	unix.Close(a.mem.FD)
	return err
}
