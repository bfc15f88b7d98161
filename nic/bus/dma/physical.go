package dma

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"unsafe"
)

// Physical is a Mapper that gives physical addresses to a device without an IOMMU. Nothing then stops the device, or a
// driver with a wrong address, from writing anywhere in memory, and the device keeps access after Unmap and after the
// process exits. It uses huge pages only, because the kernel may move ordinary pages, even locked ones.
type Physical struct {
	pagemap *os.File
}

// UnsafeNoIOMMU opens a Physical mapper. Call it only if the user has set unsafe_no_iommu. It needs CAP_SYS_ADMIN.
func UnsafeNoIOMMU() (*Physical, error) {
	f, err := os.Open("/proc/self/pagemap")
	if err != nil {
		return nil, fmt.Errorf("dma: physical addresses: %w", err)
	}
	return &Physical{pagemap: f}, nil
}

// Map returns m's physical address, or errScattered if its pages are not contiguous in physical memory.
func (p *Physical) Map(m Memory) (uint64, error) {
	if m.Page < 2*mib {
		return 0, errors.New("dma: physical addresses need huge pages: ordinary pages move (" +
			ReserveHuge(os.Getpagesize()) + ")")
	}
	var first uint64
	for off := 0; off < len(m.Bytes); off += m.Page {
		addr, err := p.address(&m.Bytes[off])
		if err != nil {
			return 0, err
		}
		if off == 0 {
			first = addr
		} else if addr != first+uint64(off) {
			return 0, fmt.Errorf("dma: %d bytes at physical address %#x: %w", len(m.Bytes), first, errScattered)
		}
	}
	return first, nil
}

// address reads b's entry of /proc/self/pagemap (Linux Documentation/admin-guide/mm/pagemap.rst): bit 63 is "present",
// and bits 0 to 54 are the frame number, which reads as 0 without CAP_SYS_ADMIN.
func (p *Physical) address(b *byte) (uint64, error) {
	page := uintptr(os.Getpagesize())
	at := uintptr(unsafe.Pointer(b))
	var e [8]byte
	if _, err := p.pagemap.ReadAt(e[:], int64(at/page*8)); err != nil {
		return 0, fmt.Errorf("dma: pagemap: %w", err)
	}
	entry := binary.NativeEndian.Uint64(e[:])
	frame := entry & (1<<55 - 1)
	switch {
	case entry>>63 == 0:
		return 0, fmt.Errorf("dma: pagemap entry %#x: the page is not present", entry)
	case frame == 0:
		return 0, errors.New("dma: pagemap hides physical addresses (needs CAP_SYS_ADMIN)")
	}
	return frame*uint64(page) + uint64(at%page), nil
}

// Unmap does nothing: no IOMMU mapping exists.
func (p *Physical) Unmap(uint64, int) error { return nil }

// Close closes the pagemap. Addresses that Map returned stay valid.
func (p *Physical) Close() error { return p.pagemap.Close() }
