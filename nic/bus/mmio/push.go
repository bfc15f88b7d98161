package mmio

import "unsafe"

// Push is a method of storing 64-byte blocks, chosen at start from the processor's features.
type Push uint8

// The assembly uses these numbers.
const (
	Stores    Push = 0 // 8-byte stores (on arm64 pairs of 8 or 16 bytes), joined by a write-combining buffer
	AVX512    Push = 1 // one 64-byte store, which fills a write-combining buffer at once
	MOVDIR64B Push = 2 // one direct store: a single 64-byte bus write, whatever the mapping's type
	AVX2      Push = 3 // two 32-byte stores, joined by a write-combining buffer
)

func (p Push) String() string {
	switch p {
	case AVX512:
		return "AVX-512"
	case MOVDIR64B:
		return "MOVDIR64B"
	case AVX2:
		return "AVX2"
	}
	return "8-byte stores"
}

// pushWith is read by the assembly on each copy. Only tests change it.
var pushWith = bestPush()

// PushMethod returns how blocks are stored. MOVDIR64B follows the write-combining protocol even in an uncached window
// (Intel SDM vol. 2, MOVDIR64B). With the other methods, a block is one bus write only in a write-combining window.
func PushMethod() Push { return pushWith }

// PushToMemory selects the next best method to MOVDIR64B until undo is called. It is for benchmarks whose window is
// ordinary memory: MOVDIR64B bypasses the caches and takes 200 ns there, but not in a write-combining window.
func PushToMemory() (undo func()) {
	was := pushWith
	pushWith = bestCached()
	return func() { pushWith = was }
}

// SendRing is a ring of 64-byte blocks in memory, with the doorbell record that holds the number of blocks written.
type SendRing struct {
	Base   unsafe.Pointer
	Record *uint32
	Mask   uint32 // number of blocks, a power of two, minus 1
}
