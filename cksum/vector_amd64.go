//go:build !purego

package cksum

import "golang.org/x/sys/cpu"

// vector reports whether this processor, and the kernel, have what sumVector needs.
var vector = cpu.X86.HasAVX2

// sumVector returns the sum of the n bytes at p as 32-bit little-endian words. n is a multiple of 32, and below 2^33.
//
//go:noescape
func sumVector(p *byte, n int) uint64
