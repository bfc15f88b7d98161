package dma

import "slices"

// Pool keeps the memory of closed arenas for reuse. A fuzz target opens a device for each input, and mapping and
// populating memory takes a thousand times the time of most inputs. A Pool belongs to one goroutine. The zero Pool is
// empty.
type Pool struct{ free []*mapping }

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
	i := slices.IndexFunc(p.free, func(mp *mapping) bool {
		return len(mp.mem.Bytes) >= size &&
			len(mp.mem.Bytes) <= max(2*size, 2*mib)
	})
	if i < 0 {
		return nil
	}
	mp := p.free[i]
	p.free = slices.Delete(p.free, i, i+1)
	return mp
}
