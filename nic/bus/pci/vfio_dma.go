package pci

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic/bus/dma"
)

// iovas allocates addresses of an IOMMU's address space.
type iovas struct {
	mu     sync.Mutex
	usable []span // ascending
	used   []span // ascending
	closed bool
}

const (
	iovaLowest = 1 << 21 // so that a device address of 0, a bug, faults
	superpage  = 1 << 21 // so that the IOMMU can use huge pages
)

func newIOVAs(usable []span) iovas {
	slices.SortFunc(usable, func(a, b span) int {
		if a.lo < b.lo {
			return -1
		}
		return 1
	})
	return iovas{usable: usable}
}

// allocate returns the lowest free address for size bytes: low addresses suit the width of every device and IOMMU.
func (v *iovas) allocate(size uint64) (uint64, error) {
	align := uint64(superpage)
	if size >= 1<<30 {
		align = 1 << 30
	}
	for _, r := range v.usable {
		at := alignUp(max(r.lo, iovaLowest), align)
		for _, u := range v.used {
			if u.hi <= at {
				continue
			}
			if u.lo >= at && u.lo-at >= size {
				break
			}
			at = alignUp(u.hi, align)
		}
		if at >= r.lo && at < r.hi && r.hi-at >= size {
			i, _ := slices.BinarySearchFunc(v.used, at, func(s span, at uint64) int {
				if s.lo < at {
					return -1
				}
				return 1
			})
			v.used = slices.Insert(v.used, i, span{at, at + size})
			return at, nil
		}
	}
	return 0, fmt.Errorf("no %#x bytes are free in the IOMMU's address space", size)
}

// drop frees the range of that size that begins at an address, if there is one.
func (v *iovas) drop(at, size uint64) {
	if i := slices.Index(v.used, span{at, at + size}); i >= 0 {
		v.used = slices.Delete(v.used, i, i+1)
	}
}

func (v *iovas) close() {
	v.mu.Lock()
	v.closed = true
	v.mu.Unlock()
}

func alignUp(n, align uint64) uint64 { return (n + align - 1) &^ (align - 1) }

// iovaRanges asks the kernel which addresses a device behind the IOMMU can use: the IOMMU's range without what is
// reserved for interrupts and firmware.
func (f *vfioFunction) iovaRanges() ([]span, error) {
	info := vfioIOMMUInfo{argsz: uint32(unsafe.Sizeof(vfioIOMMUInfo{}))}
	if err := f.fill(f.container, vfioIOMMUGetInfo, unsafe.Pointer(&info)); err != nil {
		return nil, fmt.Errorf("VFIO_IOMMU_GET_INFO: %w", err)
	}
	buf := make([]byte, min(max(info.argsz, uint32(unsafe.Sizeof(info))), 1<<16))
	again := (*vfioIOMMUInfo)(unsafe.Pointer(&buf[0]))
	*again = vfioIOMMUInfo{argsz: uint32(len(buf))}
	if err := f.fill(f.container, vfioIOMMUGetInfo, unsafe.Pointer(&buf[0])); err != nil {
		return nil, fmt.Errorf("VFIO_IOMMU_GET_INFO with capabilities: %w", err)
	}
	if again.flags&iommuCaps != 0 {
		if body, ok := vfioCapability(buf, again.capOffset, capIOVARange); ok {
			var ranges []span
			for _, p := range vfioPairs(body) {
				if p[1] > p[0] {
					// the kernel's end is inclusive: its last byte is not used
					ranges = append(ranges, span{p[0], p[1]})
				}
			}
			if len(ranges) > 0 {
				return ranges, nil
			}
		}
	}
	// Linux before 5.4 does not report it. 39 bits are VT-d's minimum; the hole is x86's interrupt range.
	return []span{{0, 0xfee00000}, {0xfef00000, 1 << 39}}, nil
}

// Map implements dma.Mapper. The kernel pins the memory and maps it in the IOMMU.
func (f *vfioFunction) Map(m dma.Memory) (uint64, error) {
	if f.physical != nil {
		return f.physical.Map(m)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.iovas.closed {
		return 0, fmt.Errorf("pci: %s: %w", f.addr, errClosed)
	}
	size := uint64(len(m.Bytes))
	if size == 0 {
		return 0, fmt.Errorf("pci: %s: nothing to map", f.addr)
	}
	iova, err := f.allocate(size)
	if err != nil {
		return 0, fmt.Errorf("pci: %s: %w", f.addr, err)
	}
	arg := vfioDMAMap{
		argsz: uint32(unsafe.Sizeof(vfioDMAMap{})),
		flags: mapRead | mapWrite,
		vaddr: uint64(uintptr(unsafe.Pointer(&m.Bytes[0]))),
		iova:  iova,
		size:  size,
	}
	if err := f.fill(f.container, vfioIOMMUMapDMA, unsafe.Pointer(&arg)); err != nil {
		f.drop(iova, size)
		hint := ""
		if errors.Is(err, unix.ENOMEM) {
			hint = " (locked memory is limited: ulimit -l)"
		}
		return 0, fmt.Errorf("pci: %s: VFIO_IOMMU_MAP_DMA of %#x bytes at %#x%s: %w", f.addr, size, iova, hint,
			rights(err))
	}
	return iova, nil
}

// Unmap implements dma.Mapper. After Close it does nothing.
func (f *vfioFunction) Unmap(iova uint64, size int) error {
	if f.physical != nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.iovas.closed {
		return nil
	}
	arg := vfioDMAUnmap{argsz: uint32(unsafe.Sizeof(vfioDMAUnmap{})), iova: iova, size: uint64(size)}
	if err := f.fill(f.container, vfioIOMMUUnmapDMA, unsafe.Pointer(&arg)); err != nil {
		return fmt.Errorf("pci: %s: VFIO_IOMMU_UNMAP_DMA of %#x bytes at %#x: %w", f.addr, size, iova, err)
	}
	if arg.size != uint64(size) {
		return fmt.Errorf("pci: %s: VFIO_IOMMU_UNMAP_DMA of %#x bytes at %#x unmapped %#x", f.addr, size, iova,
			arg.size)
	}
	f.drop(iova, uint64(size))
	return nil
}

// The kernel's structs are in the processor's byte order; both supported architectures are little endian.
func leUint16(b []byte) uint16 { return binary.NativeEndian.Uint16(b) }
func leUint32(b []byte) uint32 { return binary.NativeEndian.Uint32(b) }
func leUint64(b []byte) uint64 { return binary.NativeEndian.Uint64(b) }
