package rig

import (
	"testing"

	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/bus/pci"
)

// Script is the part of a function that a test plays: memory that the driver maps. A scripted device embeds it, and has
// its own registers.
type Script struct {
	pci.Function // the rest is unused
	testing.TB
	Maps map[uint64][]byte // memory by device address
	Pool *dma.Pool         // memory that is kept for the next driver

	next uint64
}

// NewScript returns a script without mapped memory.
func NewScript(t testing.TB) Script { return Script{TB: t, Maps: map[uint64][]byte{}, next: 1 << 32} }

func (s *Script) Name() string    { return "script" }
func (s *Script) Simulated() bool { return true }
func (s *Script) Kept() *dma.Pool { return s.Pool }

func (s *Script) Map(m dma.Memory) (uint64, error) {
	at := s.next
	s.Maps[at] = m.Bytes
	s.next += uint64(len(m.Bytes)) + 1<<30
	return at, nil
}

func (s *Script) Unmap(iova uint64, size int) error {
	delete(s.Maps, iova)
	return nil
}

// Memory returns n bytes of mapped memory.
func (s *Script) Memory(iova uint64, n int) []byte {
	for at, b := range s.Maps {
		if iova >= at && iova+uint64(n) <= at+uint64(len(b)) {
			return b[iova-at:][:n:n]
		}
	}
	s.Fatalf("address %#x of %d bytes is not mapped", iova, n)
	return nil
}
