//go:build !purego

package mmio

func bestPush() Push { return Stores }

// ReadBarrier orders loads from memory that the device writes: those after it are no older than those before it, such as
// the atomic load of a descriptor's done bit.
func ReadBarrier()
