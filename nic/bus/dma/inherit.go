package dma

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic/bus"
)

// Adopter is a Mapper that can continue with the mappings of another process.
type Adopter interface {
	Mapper

	// Adopt makes a mapping of another process ours: the device has m at iova already.
	Adopt(m Memory, iova uint64) error
	// Disown undoes Adopt, and leaves the device as it is.
	Disown(iova uint64, size int)
}

// Bequest describes an arena for another process that continues to use its memory. The files of its mappings go with it.
type Bequest struct {
	Mappings []BequestMapping
	Blocks   []BequestBlock // in the order in which they were allocated
	Apart    []BequestBlock // by AllocApart
}

// BequestMapping is one file of an arena, and the device addresses of its pieces.
type BequestMapping struct {
	Size, Page, Step int // bytes
	IOVAs            []uint64
	Notes            []string
}

// BequestBlock is a block that was allocated.
type BequestBlock struct {
	IOVA uint64
	Size int
}

// ErrLayout is returned by the Alloc of an inherited arena that the other process did not call in the same way.
var ErrLayout = errors.New("the other process laid out its memory differently")

// Bequest describes the arena, and returns the file of each mapping. The files remain the arena's.
func (a *Arena) Bequest() (b Bequest, files []int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, mp := range a.mappings {
		b.Mappings = append(b.Mappings, BequestMapping{Size: len(mp.mem.Bytes), Page: mp.mem.Page, Step: mp.step, IOVAs: mp.shown, Notes: mp.notes})
		files = append(files, mp.mem.FD)
	}
	b.Blocks, b.Apart = a.blocks, a.apart
	return b, files
}

// Inherit returns the arena of another process, which has one file for each mapping. Until Replayed, Alloc returns the blocks of that
// process, one after the other, with their contents. It owns the files: it closes them if it fails, and leaves the device as it is.
func Inherit(m Mapper, b Bequest, files []int) (_ *Arena, err error) {
	a := &Arena{mapper: m, inherited: b.Blocks, blocks: b.Blocks, apart: b.Apart, replaying: true}
	defer func() {
		if err != nil {
			bus.CloseFiles(files)
			err = errors.Join(err, a.Leave())
		}
	}()
	to, ok := m.(Adopter)
	if !ok || len(files) != len(b.Mappings) {
		return nil, fmt.Errorf("dma: inherited arena of %d mappings with %d files: %w", len(b.Mappings), len(files), errors.ErrUnsupported)
	}
	for _, w := range b.Mappings {
		fd := files[0]
		files = files[1:]
		mp, err := w.open(fd)
		if err != nil {
			unix.Close(fd)
			return nil, err
		}
		a.mappings = append(a.mappings, mp)
		for i, iova := range w.IOVAs {
			if err := to.Adopt(mp.piece(i*w.Step), iova); err != nil {
				return nil, err
			}
			mp.shown = append(mp.shown, iova)
		}
		a.segment(mp)
	}
	for _, k := range slices.Concat(b.Blocks, b.Apart) {
		if err := a.reserve(k); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// open maps the file of a mapping, which must be as described.
func (w *BequestMapping) open(fd int) (*mapping, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("dma: inherited memory: %w", err)
	}
	if w.Size <= 0 || w.Step <= 0 || w.Step%os.Getpagesize() != 0 || w.Size%w.Step != 0 || len(w.IOVAs) != w.Size/w.Step || st.Size != int64(w.Size) {
		return nil, fmt.Errorf("dma: inherited memory of %d bytes in %d pieces of %d, and its file has %d", w.Size, len(w.IOVAs), w.Step, st.Size)
	}
	mem, err := unix.Mmap(fd, 0, w.Size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("dma: map %d inherited bytes: %w", w.Size, err)
	}
	if w.Page < huge2M.page {
		_ = unix.Mlock(mem) // what is not possible is in the notes
	}
	return &mapping{mem: Memory{Bytes: mem, FD: fd, Page: w.Page}, step: w.Step, notes: w.Notes, used: true}, nil
}

// reserve takes the range of a block from its segment.
func (a *Arena) reserve(k BequestBlock) error {
	s := a.holding(k)
	if s == nil {
		return fmt.Errorf("dma: inherited block of %d bytes at %#x is not in the memory", k.Size, k.IOVA)
	}
	lo := k.IOVA - s.iova
	for i, f := range s.free {
		if f.lo <= lo && lo+uint64(k.Size) <= f.hi {
			s.cut(i, lo, lo+uint64(k.Size))
			return nil
		}
	}
	return fmt.Errorf("dma: inherited block of %d bytes at %#x overlaps another", k.Size, k.IOVA)
}

// holding returns the segment that a block is in, nil if there is none.
func (a *Arena) holding(k BequestBlock) *segment {
	for _, s := range a.segments {
		off, over := bits.Sub64(k.IOVA, s.iova, 0)
		if over == 0 && k.Size > 0 && off < uint64(len(s.bytes)) && uint64(k.Size) <= uint64(len(s.bytes))-off {
			return s
		}
	}
	return nil
}

// replay returns the next inherited block, for an Alloc of the same size.
func (a *Arena) replay(size, align int) (Block, error) {
	if len(a.inherited) == 0 {
		return Block{}, fmt.Errorf("dma: %d bytes, where the other process has no more: %w", size, ErrLayout)
	}
	k := a.inherited[0]
	if k.Size != size || k.IOVA%uint64(align) != 0 {
		return Block{}, fmt.Errorf("dma: %d bytes aligned to %d, where the other process has %d at %#x: %w", size, align, k.Size, k.IOVA, ErrLayout)
	}
	a.inherited = a.inherited[1:]
	s := a.holding(k)
	lo := k.IOVA - s.iova
	hi := lo + uint64(size)
	return Block{Bytes: s.bytes[lo:hi:hi], IOVA: k.IOVA}, nil
}

// Replayed ends the time in which Alloc returns inherited blocks. It fails if some are left.
func (a *Arena) Replayed() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.inherited) > 0 {
		return fmt.Errorf("dma: %d blocks of the other process are left: %w", len(a.inherited), ErrLayout)
	}
	a.replaying = false
	return nil
}

// Leave unmaps the memory from this process only: the device and another process continue to use it. No block may be used afterwards.
func (a *Arena) Leave() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var errs []error
	for _, mp := range a.mappings {
		if to, ok := a.mapper.(Adopter); ok {
			for _, iova := range mp.shown {
				to.Disown(iova, mp.step)
			}
		}
		errs = append(errs, unix.Munmap(mp.mem.Bytes), unix.Close(mp.mem.FD))
	}
	a.closed, a.segments, a.mappings = true, nil, nil
	return errors.Join(errs...)
}
