package dma

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	mib = 1 << 20
	gib = 1 << 30
)

// mapping is one memfd, mapped and populated.
type mapping struct {
	mem   Memory
	shown []uint64 // device addresses of its pieces, all of the same size
	step  int      // size of a piece
	notes []string
	used  bool // it was in an arena before: its bytes may not be zero
}

// kind is a page size for a memfd.
type kind struct {
	page  int
	flags int // for memfd_create
	name  string
}

var (
	huge2M = kind{2 * mib, unix.MFD_HUGETLB | unix.MFD_HUGE_2MB, "2 MiB pages"}
	huge1G = kind{gib, unix.MFD_HUGETLB | unix.MFD_HUGE_1GB, "1 GiB pages"}
)

// ReserveHuge is the command that reserves 64 huge pages of 2 MiB, for a kernel with pages of page bytes. nr_hugepages
// counts pages of the kernel's default size, which is 512 MiB where pages have 64 KiB.
func ReserveHuge(page int) string {
	if page == 4096 {
		return "echo 64 > /proc/sys/vm/nr_hugepages"
	}
	return "echo 64 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
}

// newMapping maps size bytes with the largest pages available, preferably on a NUMA node unless node is negative.
func newMapping(size, node int) (*mapping, error) {
	if size <= 0 || size > 1<<40 {
		return nil, fmt.Errorf("dma: invalid mapping of %d bytes", size)
	}
	kinds := []kind{huge2M, huge1G}
	if size >= gib {
		kinds = []kind{huge1G, huge2M}
	}
	for _, k := range kinds {
		if mp, err := mapPages(size, node, k); err == nil {
			mp.notes = append(mp.notes, "DMA memory in "+k.name)
			return mp, nil
		}
	}
	mp, err := mapPages(size, node, kind{page: os.Getpagesize()})
	if err != nil {
		return nil, err
	}
	note := "DMA memory in ordinary pages: no huge pages are free (" + ReserveHuge(os.Getpagesize()) + ")"
	if err := unix.Mlock(mp.mem.Bytes); err != nil {
		note += fmt.Sprintf("; they are not locked: %v (ulimit -l)", err)
	}
	mp.notes = append(mp.notes, note)
	return mp, nil
}

// mapPages maps and populates size bytes, rounded up to 2 MiB or a whole page of kind k.
func mapPages(size, node int, k kind) (*mapping, error) {
	round := max(k.page, 2*mib)
	size = (size + round - 1) &^ (round - 1)
	fd, err := unix.MemfdCreate("rebound-dma", unix.MFD_CLOEXEC|k.flags)
	if err != nil {
		return nil, fmt.Errorf("dma: memfd: %w", err)
	}
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("dma: memfd of %d bytes: %w", size, err)
	}
	b, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("dma: map %d bytes: %w", size, err)
	}
	mp := &mapping{mem: Memory{Bytes: b, FD: fd, Page: k.page}}
	if node >= 0 {
		if err := prefer(b, node); err != nil {
			mp.notes = append(mp.notes, fmt.Sprintf("DMA memory may not be on NUMA node %d: %v", node, err))
		}
	}
	if err := populate(b, fd, k.page); err != nil {
		unix.Munmap(b)
		unix.Close(fd)
		return nil, fmt.Errorf("dma: populate %d bytes: %w", size, err)
	}
	return mp, nil
}

// madvise is a variable so that tests can replace it.
var madvise = unix.Madvise

// populate allocates the pages of b. MADV_POPULATE_WRITE (Linux 5.14) reports when there is no memory. On older kernels
// fallocate reports it, and the pages are then touched.
func populate(b []byte, fd, page int) error {
	err := madvise(b, unix.MADV_POPULATE_WRITE)
	if !errors.Is(err, unix.EINVAL) {
		return err
	}
	if err := unix.Fallocate(fd, 0, 0, int64(len(b))); err != nil {
		return err
	}
	for i := 0; i < len(b); i += page {
		b[i] = 0
	}
	return nil
}

// prefer asks for b's pages to come from a NUMA node. It must be called before they are touched.
func prefer(b []byte, node int) error {
	const mpolPreferred = 1 // linux/mempolicy.h
	var mask [16]uint64
	if node >= len(mask)*64 {
		return unix.EINVAL
	}
	mask[node/64] = 1 << (node % 64)
	_, _, e := unix.Syscall6(unix.SYS_MBIND, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), mpolPreferred,
		uintptr(unsafe.Pointer(&mask)), uintptr(len(mask)*64+1), 0)
	if e != 0 {
		return e
	}
	return nil
}

// nodeOf returns the NUMA node of m's device, or -1.
func nodeOf(m Mapper) int {
	if n, ok := m.(interface{ NUMANode() int }); ok {
		return n.NUMANode()
	}
	return -1
}

// show maps pieces of step bytes for the device. On error, earlier pieces stay mapped: close undoes them.
func (mp *mapping) show(m Mapper, step int) error {
	mp.step = step
	for off := 0; off < len(mp.mem.Bytes); off += step {
		iova, err := m.Map(Memory{Bytes: mp.mem.Bytes[off : off+step : off+step], FD: mp.mem.FD,
			Off: mp.mem.Off + int64(off), Page: mp.mem.Page})
		if err != nil {
			return err
		}
		mp.shown = append(mp.shown, iova)
	}
	return nil
}

// hide undoes show. Pieces that the mapper fails to unmap stay in mp.shown.
func (mp *mapping) hide(m Mapper) error {
	var kept []uint64
	var errs []error
	for _, iova := range mp.shown {
		if err := m.Unmap(iova, mp.step); err != nil {
			kept, errs = append(kept, iova), append(errs, err)
		}
	}
	mp.shown = kept
	return errors.Join(errs...)
}

// close calls hide and frees the memory.
func (mp *mapping) close(m Mapper) error {
	if err := mp.hide(m); err != nil {
		return err
	}
	if kept(m).keep(mp) {
		return nil
	}
	return errors.Join(unix.Munmap(mp.mem.Bytes), unix.Close(mp.mem.FD))
}
