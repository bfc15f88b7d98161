package mmio

import "unsafe"

// Push names how 64-byte blocks are stored, chosen once from what the processor has.
type Push uint8

// The ways to store a block. Their numbers are known to the assembly.
const (
	Stores    Push = 0 // 8-byte stores (on arm64 pairs of 8 or 16 bytes), which a write-combining buffer joins
	AVX512    Push = 1 // one 64-byte store: it fills a write-combining buffer at once
	MOVDIR64B Push = 2 // one direct store: a single 64-byte write on the bus whatever the mapping's type
	AVX2      Push = 3 // two 32-byte stores, which a write-combining buffer joins
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

// pushWith is read by the assembly in each copy, and written by tests only.
var pushWith = bestPush()

// PushMethod returns how blocks are stored. MOVDIR64B follows the write-combining protocol even in a window that is mapped
// uncached (Intel SDM vol. 2, MOVDIR64B); with the others a block becomes one bus write in a write-combining window only.
func PushMethod() Push { return pushWith }

// PushToMemory is for benchmarks whose window is ordinary memory: MOVDIR64B goes past the caches and takes 200 ns there, which it does
// not in a write-combining window. Blocks are stored the next best way until undo is called.
func PushToMemory() (undo func()) {
	was := pushWith
	pushWith = bestCached()
	return func() { pushWith = was }
}

// SendRing is a ring of 64-byte blocks in memory, with the record that tells the device how many were written.
type SendRing struct {
	Base   unsafe.Pointer
	Record *uint32
	Mask   uint32 // blocks - 1, of a power of two
}
