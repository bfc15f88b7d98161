//go:build !purego

package mmio

// Store32 stores v at p, whole, once, and after all earlier stores of this thread to ordinary memory: a doorbell in an
// uncached window, or a doorbell record.
//
// It is a call of its own on purpose. The compiler moves no store across a call that it does not inline, merges none with
// those of another function, and makes one MOVL of an aligned 32-bit store; amd64 keeps stores in program order, also from
// write-back memory to uncached (Intel SDM vol. 3 §9.2.2, AMD APM vol. 2 §7.4.2). In Go its arguments stay in registers,
// which assembly would take from the stack.
//
//go:noinline
//go:norace
func Store32(p *uint32, v uint32) { *p = v }
