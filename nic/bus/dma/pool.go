package dma

import "slices"

// Pool keeps the memory of arenas that were closed for those that come after. To map and populate memory takes a
// thousand times the time of most inputs of a fuzz target, which opens a device for each. It belongs to one
// goroutine. The zero Pool is empty.
type Pool struct{ free []*mapping }

// kept is the pool of a mapper that has one: what it returns from Kept. Else it is nil.
func kept(m Mapper) *Pool {
	if k, ok := m.(interface{ Kept() *Pool }); ok {
		return k.Kept()
	}
	return nil
}

// take returns the first mapping that has room for size bytes but not more than twice as many, or nil. It is as its last user left it: Alloc
// zeroes what it hands out, and nobody reads the rest.
func (p *Pool) take(size int) *mapping {
	if p == nil {
		return nil
	}
	i := slices.IndexFunc(p.free, func(mp *mapping) bool { return len(mp.mem.Bytes) >= size && len(mp.mem.Bytes) <= max(2*size, 2*mib) })
	if i < 0 {
		return nil
	}
	mp := p.free[i]
	p.free = slices.Delete(p.free, i, i+1)
	return mp
}
