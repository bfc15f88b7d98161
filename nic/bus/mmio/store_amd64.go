//go:build !purego

package mmio

// Store32 stores v at p, whole, once, and after all earlier stores of this thread to ordinary memory: a doorbell in
// an uncached window, or a doorbell record.
//
// It is its own call on purpose. The compiler moves no store across a call that it does not inline, merges none with
// those of another function, and makes one MOV of an aligned store of up to 64 bits; amd64 keeps stores in program
// order, also from write-back memory to uncached (Intel SDM vol. 3 §9.2.2, AMD APM vol. 2 §7.4.2). In Go its
// arguments stay in registers, which assembly would take from the stack.
//
//go:noinline
//go:norace
func Store32(p *uint32, v uint32) { *p = v }

// Store8 is Store32 for one byte.
//
//go:noinline
//go:norace
func Store8(p *uint8, v uint8) { *p = v }

// Store16 is Store32 for two bytes.
//
//go:noinline
//go:norace
func Store16(p *uint16, v uint16) { *p = v }

// Store64 is Store32 for eight bytes.
//
//go:noinline
//go:norace
func Store64(p *uint64, v uint64) { *p = v }
