package ixgbesim

import (
	"testing"

	"github.com/rebound-nic/rebound/proof/must"
)

// Octets that are counted between the reads of the two halves belong to the next pair of reads.
func TestOctetsBetweenTheHalves(t *testing.T) {
	m := New(Options{})
	m.add64(regGORCL, 1<<32+5)
	read := func(r reg) uint32 {
		return must.Get(m.read(r))(t)
	}
	low := read(regGORCL)
	m.add64(regGORCL, 64)
	if high := read(regGORCL + 4); low != 5 || high != 1 {
		t.Errorf("low %d, high %d: want 5, 1", low, high)
	}
	if low, high := read(regGORCL), read(regGORCL+4); low != 64 || high != 0 {
		t.Errorf("then low %d, high %d: want 64, 0", low, high)
	}
}
