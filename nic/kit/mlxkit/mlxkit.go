// Package mlxkit contains what the drivers of ConnectX-3 and of later cards share: data segments, buffers for Send,
// syndromes of completions, and the steps of a start.
package mlxkit

import (
	"errors"
	"fmt"
	"math/bits"
	"unsafe"
)

// DataSegment points to data in host memory (PRM, Data Segment; Linux, mlx4_wqe_data_seg). It is a whole receive WQE.
type DataSegment struct {
	byteCount uint32
	lkey      uint32
	addrHigh  uint32
	addrLow   uint32
}

// NewData returns the segment of n bytes at addr.
func NewData(n, lkey uint32, addr uint64) DataSegment {
	return DataSegment{bits.ReverseBytes32(n), bits.ReverseBytes32(lkey), bits.ReverseBytes32(uint32(addr >> 32)),
		bits.ReverseBytes32(uint32(addr))}
}

// Words returns the segment as two words. Narrow stores of its fields would stall the wide load that pushes them.
func (s DataSegment) Words() (uint64, uint64) {
	return uint64(s.byteCount) | uint64(s.lkey)<<32, uint64(s.addrHigh) | uint64(s.addrLow)<<32
}

// Block is the size in bytes of a send queue's block (PRM, WQEBB, TXBB).
const Block = 64

// Unsent returns how many WQEs of a send queue an error completion leaves unsent: those of blocks done to tail, of
// which the completion names the one at counter, modulo 2^16. base is the queue of mask+1 blocks. The low six bits of a
// WQE's second word are its size in units of 16 bytes.
func Unsent(base unsafe.Pointer, mask, done, tail uint32, counter uint16) (n uint64) {
	for after := uint32(counter - uint16(done)); after < tail-done; n++ {
		ds := bits.ReverseBytes32(*(*uint32)(unsafe.Add(base, (done+after)&mask*Block+4))) & 0x3F
		after += max((ds+3)/4, 1)
	}
	return n
}

// Syndrome is the reason why a work request failed (PRM, Completion With Error; Linux, include/linux/mlx4/cq.h).
type Syndrome uint8

var syndromes = map[Syndrome]string{
	0x01: "local length error", 0x02: "local QP operation error", 0x04: "local protection error",
	0x05: "flushed: the queue was in error", 0x06: "memory window bind error", 0x10: "bad response",
	0x11: "local access error", 0x12: "remote invalid request", 0x13: "remote access error",
	0x14: "remote operation error",
	0x15: "transport retries exceeded", 0x16: "RNR retries exceeded", 0x22: "remote aborted",
}

func (s Syndrome) String() string { return Named(syndromes, s) }

// Named returns v with its name.
func Named[T ~uint8](names map[T]string, v T) string {
	if n := names[v]; n != "" {
		return fmt.Sprintf("%#02x %s", uint8(v), n)
	}
	return fmt.Sprintf("%#02x (unknown)", uint8(v))
}

// Steps are the completed steps of a start, each with the function that undoes it.
type Steps struct {
	all []step
}

type step struct {
	name string
	undo func() error
}

// Done adds a step.
func (s *Steps) Done(name string, undo func() error) { s.all = append(s.all, step{name, undo}) }

// Forget drops all steps, because a reset has undone them.
func (s *Steps) Forget() { s.all = nil }

// Undo undoes all steps in reverse. It stops at an error if dead reports that the device does not answer: its reset
// undoes the rest.
func (s *Steps) Undo(dead func() bool) error {
	var errs []error
	for i := len(s.all) - 1; i >= 0; i-- {
		if err := s.all[i].undo(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s.all[i].name, err))
			if dead() {
				break
			}
		}
	}
	s.all = nil
	return errors.Join(errs...)
}
