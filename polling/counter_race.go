//go:build race

package polling

import "sync/atomic"

func set32(p *uint32, v uint32) { atomic.StoreUint32(p, v) }

// Add adds n. Only the loop may call it.
func (c *Counter) Add(n uint64) { c.set(uint64(*c) + n) }

func (c *Counter) set(v uint64) { atomic.StoreUint64((*uint64)(c), v) }
