package mmio

import "time"

// Timing is what a driver measured on a window of a card.
type Timing struct {
	Store time.Duration // one 8-byte store and its fence
	Block time.Duration // one 64-byte block and its fence
}

// Combined reports whether a block took about the time of a single store: it was sent as one write. Where each of its
// eight stores went on its own, a block takes about the time of eight stores; the limit is three.
func (t Timing) Combined() bool { return t.Block < 3*t.Store }
