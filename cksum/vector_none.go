//go:build purego || !(amd64 || arm64)

package cksum

const vector = false

func sumVector(*byte, int) uint64 { return 0 } // never called
