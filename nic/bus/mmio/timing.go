package mmio

import "time"

// Timing is what a driver measured on a window of a card.
type Timing struct {
	Store time.Duration // one 8-byte store and its fence
	Block time.Duration // one 64-byte block and its fence
}

// Combined reports whether a block took about as long as a single store: it left as one write. Where each of its eight
// stores went on its own, a block takes about eight times as long as one store; the line is drawn at three times.
func (t Timing) Combined() bool { return t.Block < 3*t.Store }
