//go:build !race

package polling

func set32(p *uint32, v uint32) { *p = v }

// Add adds n. Only the loop may call it. It calls nothing, because each inlined call leaves a NOP in the loop.
func (c *Counter) Add(n uint64) { *c += Counter(n) }

func (c *Counter) set(v uint64) { *c = Counter(v) }
