package dma

import (
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// Pool keeps the memory of closed arenas for reuse: a test opens a device hundreds of times, a fuzz target for each
// input, and mapping and populating memory then takes more time than the rest. The zero Pool is empty. A Pool is safe
// for use by several goroutines.
type Pool struct {
	// With Guard an access to kept memory faults, as if it were unmapped, so that a use after Close is found. A target
	// that opens a device for each input is a third slower with it.
	Guard bool

	mu   sync.Mutex
	free []*mapping
}

// kept returns the pool of a mapper that has a method Kept, or nil.
func kept(m Mapper) *Pool {
	if k, ok := m.(interface{ Kept() *Pool }); ok {
		return k.Kept()
	}
	return nil
}

// reuse returns the first mapping with room for size bytes but at most twice that, or nil. It still has its previous
// content: Alloc zeroes what it returns.
func (p *Pool) reuse(size int) *mapping {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.free, func(mp *mapping) bool {
		return len(mp.mem.Bytes) >= size && len(mp.mem.Bytes) <= max(2*size, 2*mib)
	})
	if i < 0 || p.Guard && unix.Mprotect(p.free[i].mem.Bytes, unix.PROT_READ|unix.PROT_WRITE) != nil {
		return nil
	}
	mp := p.free[i]
	p.free = slices.Delete(p.free, i, i+1)
	return mp
}

// keep takes a mapping that no device has any more, and reports whether it did.
func (p *Pool) keep(mp *mapping) bool {
	if p == nil || p.Guard && unix.Mprotect(mp.mem.Bytes, unix.PROT_NONE) != nil {
		return false
	}
	mp.used = true
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, mp)
	return true
}
