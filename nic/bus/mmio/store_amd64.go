//go:build !purego

package mmio

// Store32 stores v at p with a single store, after all earlier stores of this thread to ordinary memory. Use it for a
// doorbell in an uncached window, or a doorbell record.
//
// It must stay a separate function. The compiler moves no store across a call that it does not inline, merges none with
// those of another function, and compiles an aligned store of up to 64 bits to one MOV. amd64 keeps stores in program
// order, also from write-back memory to uncached (Intel SDM vol. 3 §9.2.2, AMD APM vol. 2 §7.4.2). Unlike assembly, a
// Go function receives its arguments in registers.
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
