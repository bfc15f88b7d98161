package mmio

import "time"

// Timing has the times measured on a card's window.
type Timing struct {
	Store time.Duration // one 8-byte store and its fence
	Block time.Duration // one 64-byte block and its fence
}

// Combined reports whether a block took about the time of a single store and so was sent as one write. Eight separate
// stores take about eight times as long. The limit is three.
func (t Timing) Combined() bool { return t.Block < 3*t.Store }
