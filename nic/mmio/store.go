package mmio

// Store32 stores v at p, whole, once, and not before earlier stores of this goroutine.
//
//go:noescape
func Store32(p *uint32, v uint32)

// Store64 is Store32 for eight bytes.
//
//go:noescape
func Store64(p *uint64, v uint64)
