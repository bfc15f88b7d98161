package polling

import "sync/atomic"

// Counter counts what a polling loop does. One goroutine adds, any may load. Adding is a plain read-modify-write, which no
// other goroutine can disturb and which both architectures store in one piece; race builds store atomically, so that the race
// detector knows it too (Go has no store that is neither locked nor a race).
type Counter uint64

// Raise makes v the counter's value if it is greater. It is the loop's alone.
func (c *Counter) Raise(v uint64) { c.set(max(uint64(*c), v)) }

// Load may be called from any goroutine.
func (c *Counter) Load() uint64 { return atomic.LoadUint64((*uint64)(c)) }

// Publish writes a number that the loop alone writes and may read plainly, and that others read with atomic.LoadUint32: where
// on a ring it is. It orders nothing else (docs/memory-order.md: counters and positions).
func Publish(p *uint32, v uint32) { set32(p, v) }
