package kit

import (
	"errors"
	"math/bits"
	"unsafe"

	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/bus/pci"
)

// Allocate creates the arena for Block, with an initial size in bytes, and frees the previous one. The device must do
// no DMA.
func (c *Card) Allocate(size int) (err error) {
	if err := c.Deallocate(); err != nil {
		return err
	}
	c.Arena, err = dma.NewArena(c.Fn, size)
	return err
}

// Deallocate frees all DMA memory. The device must not do DMA any more.
func (c *Card) Deallocate() error {
	if c.Arena == nil {
		return nil
	}
	a := c.Arena
	c.Arena = nil
	return a.Close()
}

// Release switches bus mastering off, in case the device ignored its reset, and frees all DMA memory.
func (c *Card) Release() error {
	if err := c.Fn.SetBusMaster(false); err != nil && !pci.Gone(c.Fn) {
		c.Log.Warn("bus mastering stays on", "err", err)
	}
	return c.Deallocate()
}

// Block returns size zeroed bytes of DMA memory that are contiguous for the device too, aligned to align. It grows the
// arena if needed.
func (c *Card) Block(size, align int) (dma.Block, error) {
	b, err := c.Arena.Alloc(size, align)
	if errors.Is(err, dma.ErrNoRoom) { // pages that are not contiguous for the device leave gaps
		if err = c.Arena.Grow(size + align); err == nil {
			b, err = c.Arena.Alloc(size, align)
		}
	}
	switch {
	case errors.Is(err, dma.ErrNoRoom):
		return b, c.Errorf("%d contiguous bytes: %w (use an IOMMU, larger huge pages or a smaller ring)", size, err)
	case err != nil:
		return b, c.Errorf("%d bytes for the device: %w", size, err)
	case c.AddressBits != 0 && (b.IOVA+uint64(size)-1)>>c.AddressBits != 0:
		return b, c.Errorf("DMA address %#x is beyond the device's %d bits", b.IOVA, c.AddressBits)
	}
	return b, nil
}

// Lay has f allocate blocks. If there is no arena yet, it first calls f with Rings that return nothing and add up the
// sizes, and creates an arena of that size: all blocks are then in one mapping and have one key.
func (c *Card) Lay(f func(*Rings)) error {
	if c.Arena == nil {
		sum := Rings{Card: c, Err: errLaying}
		f(&sum)
		if err := c.Allocate(sum.size); err != nil {
			return err
		}
	}
	r := Rings{Card: c}
	f(&r)
	return r.Err
}

var errLaying = errors.New("no memory yet")

// Rings allocates blocks of DMA memory one after the other, and keeps the first error.
type Rings struct {
	Card *Card
	Err  error
	size int // while Lay adds up
}

// Page returns size bytes at the start of a page, as Poll needs them, and the device's address of the first; nil after
// an error.
func (r *Rings) Page(size int) (unsafe.Pointer, uint64) { return r.aligned(size, 4096) }

// Whole is Page for memory that must not cross the end of a larger page either, such as a huge page.
func (r *Rings) Whole(size int) (unsafe.Pointer, uint64) {
	return r.aligned(size, max(4096, 1<<bits.Len(uint(size-1))))
}

func (r *Rings) aligned(size, align int) (unsafe.Pointer, uint64) {
	b := r.Block(size, align)
	if r.Err != nil {
		return nil, 0
	}
	return Pointer(b), b.IOVA
}

// Block is Card.Block, without memory after an error.
func (r *Rings) Block(size, align int) (b dma.Block) {
	switch r.Err {
	case nil:
		b, r.Err = r.Card.Block(size, align)
	case errLaying: // the arena begins at a page
		page := min(align, 4096)
		r.size = (r.size+page-1)&^(page-1) + align - page + size
	}
	return b
}

// Pointer returns the start of b as the processor sees it. The arena keeps it mapped.
func Pointer(b dma.Block) unsafe.Pointer { return unsafe.Pointer(&b.Bytes[0]) }

// Table returns size zeroed bytes that only the processor uses. They are in the arena, which is pinned and uses huge
// pages if it can.
func (r *Rings) Table(size int) unsafe.Pointer {
	p, _ := r.aligned(size, 64)
	return p
}

// Words returns n zeroed uint32 in ordinary memory, which Poll reads without bounds checks.
func Words(n int) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(make([]uint32, n))) }

// Stride returns the distance from one buffer to the next, for buffers of size bytes in cache lines of 64: an odd
// number of lines, or all heads would share a few sets of the L1 cache.
func Stride(size int) uint32 {
	lines := uint32(size+63) / 64
	return (lines | 1) * 64
}
