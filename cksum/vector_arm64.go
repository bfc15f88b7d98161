//go:build !purego

package cksum

// vector is constant: every arm64 processor that Go runs on has Advanced SIMD.
const vector = true

// sumVector returns the sum of the n bytes at p as 32-bit little-endian words. n is a multiple of 32, and below 2^33.
//
//go:noescape
func sumVector(p *byte, n int) uint64
