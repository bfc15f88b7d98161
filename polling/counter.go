package polling

import "sync/atomic"

// Counter is a counter of a polling loop. One goroutine adds, any may load. Adding is a plain read-modify-write, which
// is safe with a single writer and which both architectures store in one piece. Race builds store atomically, for the
// race detector (Go has no store that is neither locked nor a race).
type Counter uint64

// Raise sets the counter to v if v is greater. Only the loop may call it.
func (c *Counter) Raise(v uint64) { c.set(max(uint64(*c), v)) }

// Load may be called from any goroutine.
func (c *Counter) Load() uint64 { return atomic.LoadUint64((*uint64)(c)) }

// Publish writes a ring position that only the loop writes, and may read plainly, and that others read with
// atomic.LoadUint32. It orders nothing else (nic/memory-order.md: counters and positions).
func Publish(p *uint32, v uint32) { set32(p, v) }
