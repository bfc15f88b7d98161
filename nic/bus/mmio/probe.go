package mmio

import (
	"time"
	"unsafe"
)

// Timing is what ProbeStores measured on a window.
type Timing struct {
	Store time.Duration // one 8-byte store and its fence
	Block time.Duration // one 64-byte block and its fence
}

// Combined reports whether a block took about as long as a single store: it left as one write. Where each of its eight
// stores went on its own, a block takes about eight times as long as one store; the line is drawn at three times.
func (t Timing) Combined() bool { return t.Block < 3*t.Store }

// ProbeStores times stores to dst, which must be aligned to 64 bytes, and returns means per store and per block over the
// fastest of several runs of rounds rounds each. 1,000 rounds take about a millisecond on a card.
//
// What it writes is src, 64 bytes, again and again (and its first 8 bytes alone, at dst): the caller knows an address and
// a content that the device ignores. What it finds has limits:
//
//   - It holds for a real mapping only. On ordinary memory, such as a model's shadow, both times are a few nanoseconds and
//     say nothing.
//   - Posted writes queue up: with rounds too small (below some hundred) the time is that of filling buffers in the
//     processor, not of writes leaving.
//   - It tells one write per block from eight. It cannot see whether the bridge on the way splits or delays them.
func ProbeStores(dst, src unsafe.Pointer, rounds int) Timing {
	one := *(*uint64)(src)
	var best Timing
	for range 5 {
		t0 := time.Now()
		for range rounds {
			Store64((*uint64)(dst), one)
			FenceWC()
		}
		t1 := time.Now()
		for range rounds {
			CopyWC(dst, src, 1)
			FenceWC()
		}
		t2 := time.Now()
		best.Store = least(best.Store, t1.Sub(t0)/time.Duration(rounds))
		best.Block = least(best.Block, t2.Sub(t1)/time.Duration(rounds))
	}
	return best
}

func least(a, b time.Duration) time.Duration {
	if a == 0 {
		return b
	}
	return min(a, b)
}
