//go:build !purego

package mmio

// Store32 stores v at p, whole, once, and after all earlier stores of this thread to ordinary memory: a doorbell in an
// uncached window, or a doorbell record.
//
//go:noescape
func Store32(p *uint32, v uint32)
