package dma

import (
	"errors"
	"fmt"
	"slices"
	"sync"
)

// Arena allocates blocks from one or more pinned mappings and frees all of them on Close. It is for the control path,
// and safe for use by several goroutines.
type Arena struct {
	mapper Mapper

	mu       sync.Mutex
	mappings []*mapping
	segments []*segment
	notes    []string
	closed   bool
}

// segment is a range of memory that is contiguous for both the processor and the device.
type segment struct {
	bytes []byte
	iova  uint64
	used  bool   // by an earlier arena: its free bytes may not be zero
	free  []span // ascending, not adjacent
}

// span is a range of offsets in a segment, hi excluded.
type span struct{ lo, hi uint64 }

// NewArena returns an arena of size bytes, rounded up to whole pages, mapped for the device behind m. It uses free huge
// pages of 2 MiB or 1 GiB, on the device's NUMA node if possible, and ordinary pages otherwise. Notes reports which.
func NewArena(m Mapper, size int) (*Arena, error) {
	a := &Arena{mapper: m}
	if err := a.Grow(size); err != nil {
		return nil, err
	}
	return a, nil
}

// Grow adds size bytes, rounded up to whole pages, as a separate mapping. No block spans two mappings.
func (a *Arena) Grow(size int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return fmt.Errorf("dma: %w", errClosed)
	}
	mp := kept(a.mapper).reuse(size)
	if mp == nil {
		var err error
		if mp, err = newMapping(size, nodeOf(a.mapper)); err != nil {
			return err
		}
	}
	if err := a.show(mp); err != nil {
		return errors.Join(err, mp.close(a.mapper))
	}
	a.mappings = append(a.mappings, mp)
	for _, n := range mp.notes {
		if !slices.Contains(a.notes, n) {
			a.notes = append(a.notes, n)
		}
	}
	return nil
}

// show maps mp for the device, in one piece if possible, otherwise page by page, and adds its segments.
func (a *Arena) show(mp *mapping) error {
	step := len(mp.mem.Bytes)
	err := mp.show(a.mapper, step)
	if errors.Is(err, errScattered) {
		step = mp.mem.Page
		err = mp.show(a.mapper, step)
	}
	if err != nil {
		return err
	}
	var last *segment
	for i, iova := range mp.shown {
		bytes := mp.mem.Bytes[i*step : (i+1)*step]
		if last != nil && last.iova+uint64(len(last.bytes)) == iova {
			last.bytes = mp.mem.Bytes[i*step-len(last.bytes) : (i+1)*step]
			last.free[0].hi = uint64(len(last.bytes))
			continue
		}
		last = &segment{bytes: bytes, iova: iova, used: mp.used, free: []span{{0, uint64(step)}}}
		a.segments = append(a.segments, last)
	}
	return nil
}

// Alloc returns size zeroed bytes whose device address is a multiple of align, a power of two. For align up to the page
// size, the processor's address is aligned too. It returns ErrNoRoom if the arena must grow first.
func (a *Arena) Alloc(size, align int) (Block, error) {
	if size <= 0 || align <= 0 || align&(align-1) != 0 {
		return Block{}, fmt.Errorf("dma: invalid block of %d bytes aligned to %d", size, align)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return Block{}, fmt.Errorf("dma: %w", errClosed)
	}
	longest := uint64(0)
	for _, s := range a.segments {
		for i, f := range s.free {
			longest = max(longest, f.hi-f.lo)
			lo := (s.iova+f.lo+uint64(align)-1)&^(uint64(align)-1) - s.iova
			hi := lo + uint64(size)
			if hi > f.hi {
				continue
			}
			var rest []span
			if f.lo < lo {
				rest = append(rest, span{f.lo, lo})
			}
			if hi < f.hi {
				rest = append(rest, span{hi, f.hi})
			}
			s.free = slices.Replace(s.free, i, i+1, rest...)
			b := s.bytes[lo:hi:hi]
			if s.used { // the kernel zeroed new memory when it was populated
				clear(b)
			}
			return Block{Bytes: b, IOVA: s.iova + lo}, nil
		}
	}
	return Block{}, fmt.Errorf("dma: %d bytes aligned to %d: %w: the largest free range of %d mappings has %d bytes",
		size, align, ErrNoRoom, len(a.mappings), longest)
}

// Notes describes the arena's pages, and why they are not better: "2 MiB pages", "no huge pages free ...".
func (a *Arena) Notes() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.notes)
}

// Close unmaps the memory from the device, then from the process. No block may be used afterwards. The device must be
// quiet, with bus mastering off. Memory that the mapper fails to unmap stays mapped, so that a device never writes to
// memory that the kernel has given to another process. Calling Close again retries that, and otherwise does nothing.
func (a *Arena) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed, a.segments = true, nil
	var errs []error
	a.mappings = slices.DeleteFunc(a.mappings, func(mp *mapping) bool {
		err := mp.close(a.mapper)
		errs = append(errs, err)
		return err == nil
	})
	return errors.Join(errs...)
}
