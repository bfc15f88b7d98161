//go:build !purego

package mmio

import "golang.org/x/sys/cpu"

// cpuid executes CPUID for a leaf and subleaf.
func cpuid(leaf, sub uint32) (a, b, c, d uint32)

func bestPush() Push {
	switch {
	case hasMOVDIR64B():
		return MOVDIR64B
	case cpu.X86.HasAVX512F:
		return AVX512
	}
	return Stores
}

// hasMOVDIR64B reads CPUID.(EAX=7,ECX=0):ECX[28].
func hasMOVDIR64B() bool {
	if top, _, _, _ := cpuid(0, 0); top < 7 {
		return false
	}
	_, _, c, _ := cpuid(7, 0)
	return c>>28&1 != 0
}
