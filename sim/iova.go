package sim

import (
	"fmt"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"unsafe"
)

// Mapping is memory that the device can access.
type Mapping struct {
	Size        uint64
	Bytes       []byte // the memory itself, Size bytes; nil if Remote is set
	Remote      Remote // memory that only its owner can access
	Read, Write bool   // access rights of the device
	Release     func() // called when the mapping is removed; may be nil
}

// Remote copies bytes to and from a mapping outside of this process's memory.
type Remote interface {
	ReadDMA(iova uint64, p []byte) error
	WriteDMA(iova uint64, p []byte) error
}

// table is the IOMMU: mappings sorted by address.
type table struct {
	maps  []entry
	fence atomic.Uint32
}

type entry struct {
	iova uint64
	Mapping
}

func (e *entry) end() uint64 { return e.iova + e.Size - 1 } // inclusive: a mapping may end at 2^64

// find returns the index of the first mapping that ends at or after iova.
func (t *table) find(iova uint64) int {
	i, _ := slices.BinarySearchFunc(t.maps, iova, func(e entry, x uint64) int {
		if e.end() < x {
			return -1
		}
		return 1
	})
	return i
}

func (t *table) add(iova uint64, m Mapping) error {
	if m.Size == 0 || iova+m.Size-1 < iova || m.Remote == nil && uint64(len(m.Bytes)) != m.Size {
		return fmt.Errorf("sim: cannot map %#x bytes at IOVA %#x", m.Size, iova)
	}
	i := t.find(iova)
	if i < len(t.maps) && t.maps[i].iova <= iova+m.Size-1 {
		return fmt.Errorf("sim: mapping %#x+%#x overlaps %#x+%#x", iova, m.Size, t.maps[i].iova, t.maps[i].Size)
	}
	t.maps = slices.Insert(t.maps, i, entry{iova, m})
	return nil
}

func (t *table) remove(iova, size uint64) (uint64, error) {
	if size == 0 || iova+size-1 < iova {
		return 0, fmt.Errorf("sim: cannot unmap %#x bytes at IOVA %#x", size, iova)
	}
	first, last := t.find(iova), t.find(iova)
	sum := uint64(0)
	for ; last < len(t.maps) && t.maps[last].iova <= iova+size-1; last++ {
		e := &t.maps[last]
		if e.iova < iova || e.end() > iova+size-1 {
			return 0, fmt.Errorf("sim: unmapping %#x+%#x would cut %#x+%#x", iova, size, e.iova, e.Size)
		}
		sum += e.Size
	}
	for i := first; i < last; i++ {
		t.maps[i].release()
	}
	// a region is unmapped page by page from its start: move the shorter side
	if n := last - first; first < len(t.maps)-last {
		copy(t.maps[n:], t.maps[:first])
		clear(t.maps[:n])
		t.maps = t.maps[n:]
	} else {
		t.maps = slices.Delete(t.maps, first, last)
	}
	return sum, nil
}

func (t *table) drop() {
	for i := range t.maps {
		t.maps[i].release()
	}
	t.maps = nil
}

func (e *entry) release() {
	if e.Release != nil {
		e.Release()
	}
}

// access copies p to or from the mappings at iova, which must cover all of it without a gap.
func (t *table) access(iova uint64, p []byte, write bool) error {
	if len(p) == 0 {
		return fmt.Errorf("DMA of no bytes at IOVA %#x", iova)
	}
	last := iova + uint64(len(p)) - 1
	first := t.find(iova)
	for i, at := first, iova; ; i++ { // all or nothing: check before copying
		switch {
		case last < iova, i == len(t.maps), t.maps[i].iova > at:
			return fmt.Errorf("DMA %s of %d bytes at IOVA %#x: nothing is mapped at %#x", dir(write), len(p), iova, at)
		case write && !t.maps[i].Write, !write && !t.maps[i].Read:
			return fmt.Errorf("DMA %s of %d bytes at IOVA %#x: the mapping %#x+%#x does not allow it",
				dir(write), len(p), iova, t.maps[i].iova, t.maps[i].Size)
		}
		if t.maps[i].end() >= last {
			break
		}
		at = t.maps[i].end() + 1
	}
	for i := first; len(p) > 0; i++ {
		e := &t.maps[i]
		n := min(uint64(len(p)), e.end()-iova+1)
		if err := t.move(e, iova, p[:n], write); err != nil {
			return fmt.Errorf("DMA %s of %d bytes at IOVA %#x: %w", dir(write), n, iova, err)
		}
		iova, p = iova+n, p[n:]
	}
	return nil
}

// move copies to or from one mapping. Memory shared by another process can vanish at any time, if that process
// truncates its file.
func (t *table) move(e *entry, iova uint64, p []byte, write bool) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if v := recover(); v != nil {
			if _, fault := v.(interface{ Addr() uintptr }); !fault {
				panic(v)
			}
			err = fmt.Errorf("the mapped memory is gone: %v", v)
		}
	}()
	switch {
	case e.Remote != nil && write:
		return e.Remote.WriteDMA(iova, p)
	case e.Remote != nil:
		return e.Remote.ReadDMA(iova, p)
	case write:
		t.store(e.Bytes[iova-e.iova:], p)
	default:
		load(p, e.Bytes[iova-e.iova:])
	}
	return nil
}

func dir(write bool) string {
	if write {
		return "write"
	}
	return "read"
}

// quad is a size that a CPU stores atomically if it is aligned. The compiler copies it with one instruction.
type quad [16]byte

// store writes p in PCIe order: after all earlier writes, and the last 16 bytes last. A driver that polls a word of an
// aligned 16-byte descriptor sees the whole descriptor at once. For a longer descriptor this holds if the word is in
// the last 16 bytes.
func (t *table) store(dst, p []byte) {
	t.fence.Add(1) // orders stores on arm64; amd64 orders them anyway
	n := len(p) &^ 15
	if n == 0 || uintptr(unsafe.Pointer(&dst[0]))%16 != 0 {
		storeSmall(dst, p)
		return
	}
	if n > 16 {
		copy(dst, p[:n-16])
		t.fence.Add(1)
	}
	*(*quad)(dst[n-16 : n]) = quad(p[n-16 : n])
	copy(dst[n:], p[n:])
}

// storeSmall writes aligned words atomically, because drivers poll consumer indices and phase bits.
func storeSmall(dst, p []byte) {
	switch at := unsafe.Pointer(&dst[0]); {
	case len(p) == 8 && uintptr(at)%8 == 0:
		atomic.StoreUint64((*uint64)(at), *(*uint64)(unsafe.Pointer(&p[0])))
	case len(p) == 4 && uintptr(at)%4 == 0:
		atomic.StoreUint32((*uint32)(at), *(*uint32)(unsafe.Pointer(&p[0])))
	default:
		copy(dst, p)
	}
}

// load reads aligned words, such as producer indices, atomically, and also a descriptor of 16 bytes, which may contain
// its own valid bit.
func load(p, src []byte) {
	switch at := unsafe.Pointer(&src[0]); {
	case len(p) == 16 && uintptr(at)%16 == 0:
		*(*quad)(unsafe.Pointer(&p[0])) = *(*quad)(at)
	case len(p) == 8 && uintptr(at)%8 == 0:
		*(*uint64)(unsafe.Pointer(&p[0])) = atomic.LoadUint64((*uint64)(at))
	case len(p) == 4 && uintptr(at)%4 == 0:
		*(*uint32)(unsafe.Pointer(&p[0])) = atomic.LoadUint32((*uint32)(at))
	default:
		copy(p, src[:len(p)])
	}
}
