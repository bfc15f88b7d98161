//go:build !purego

package mmio

import "golang.org/x/sys/cpu"

// lacks returns the reason why this processor cannot store blocks with p, or "".
func lacks(p Push) string {
	switch {
	case p == AVX512 && !cpu.X86.HasAVX512F:
		return "the processor (or the kernel) has no AVX-512F"
	case p == AVX2 && !cpu.X86.HasAVX2:
		return "the processor (or the kernel) has no AVX2"
	case p == MOVDIR64B && !hasMOVDIR64B():
		return "the processor has no MOVDIR64B (CPUID.7.0:ECX[28] is 0)"
	}
	return ""
}
