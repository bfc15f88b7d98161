//go:build !purego

package mmio

// Store8 is Store32 for one byte.
//
//go:noescape
func Store8(p *uint8, v uint8)

// Store16 is Store32 for two bytes.
//
//go:noescape
func Store16(p *uint16, v uint16)

// Store64 is Store32 for eight bytes.
//
//go:noescape
func Store64(p *uint64, v uint64)

// Store32 stores v at p with a single store, after all earlier stores of this thread to ordinary memory. Use it for a
// doorbell in an uncached window, or a doorbell record.
//
//go:noescape
func Store32(p *uint32, v uint32)
