//go:build !race

package polling

func set32(p *uint32, v uint32) { *p = v }

// Add is the loop's alone. It calls nothing: each inlined call leaves a NOP behind in the loop.
func (c *Counter) Add(n uint64) { *c += Counter(n) }

func (c *Counter) set(v uint64) { *c = Counter(v) }
