package fastpath

import (
	"encoding/binary"
	"math/bits"
	"unsafe"
)

// The Host Timing TLV tells a sender what its packet met in the responder's host before T2. Its type is from the range
// for private use (RFC 8972 §5.1). The value has TimingLength bytes:
//
//	0   4  TimingMark, so that another vendor's TLV of this type is not taken for it
//	4   1  flags: TimingLoop
//	5   1  zero
//	6   2  test packets that the loop had answered since that time: those ahead of this one
//	8   8  when the loop last looked at its queue and left nothing behind, by the clock and in the format of T2
//
// The sender sets everything after the mark to zero. The packet came after the last field and before T2, so their
// difference bounds how long it waited for the loop.
const (
	TLVTiming    = 253
	TimingLength = 16
	TimingMark   = 0x52424e44 // "RBND"

	TimingLoop = 1 << 0 // the last two fields are known; otherwise they are zero
)

// timing is what a Responder needs for the TLV.
type timing struct {
	any   bool // Reflector.Timing
	plain bool // answered without an HMAC, too
	since uint64
	count uint16 // test packets answered since the tick since
}

// timingAsked is how a requested TLV begins, as loaded: flag U, type, length and mark.
var timingAsked = binary.LittleEndian.Uint64([]byte{flagUnrecognized, TLVTiming, 0, TimingLength, TimingMark >> 24,
	TimingMark >> 16 & 0xff, TimingMark >> 8 & 0xff, TimingMark & 0xff})

// place counts a test packet, and returns how many were ahead of it.
func (r *Responder) place() (ahead uint16) {
	t := &r.timing
	if t.since != r.Loop.Looked {
		t.since, t.count = r.Loop.Looked, 0
	}
	if ahead = t.count; ahead < 1<<16-1 {
		t.count++
	}
	return ahead
}

// timingFields returns the fields of the TLV: the flags, how many packets were ahead, and the time. It is relative to
// T2, which is that of tick seen, because T2 may be from an earlier relation of the clocks than c. Before the loop's
// first pass all are zero.
func (r *Responder) timingFields(c *Clock, ahead uint16, seen, t2 uint64) (uint8, uint16, uint64) {
	if r.Loop.Looked == 0 {
		return 0, 0, 0
	}
	return TimingLoop, ahead, t2 - (c.At(seen) - c.At(r.Loop.Looked))
}

// timed answers the TLV that follows the base of the test packet whose UDP checksum is at at, if it is there. sum is as
// stamped.sum, and is returned with the changes.
func (r *Responder) timed(at unsafe.Pointer, sum uint64, c *Clock) uint64 {
	ahead := r.place()
	if bits.ReverseBytes16(*(*uint16)(unsafe.Add(at, -2))) < 8+stampBase+tlvHeader+TimingLength {
		return sum
	}
	x := unsafe.Add(at, 2+stampBase)
	if *(*uint64)(x) != timingAsked {
		return sum
	}
	flags, ahead, looked := r.timingFields(c, ahead, r.Loop.Start, bits.ReverseBytes64(*(*uint64)(unsafe.Add(at, 18))))
	// the first has 4 bytes
	words := [2]uint64{uint64(flags) | uint64(bits.ReverseBytes16(ahead))<<16, bits.ReverseBytes64(looked)}
	if sum != 0 {
		// As in Reply: old values are added, new ones subtracted.
		var carry uint64
		sum, carry = bits.Add64(sum, flagUnrecognized, 0)
		sum, carry = bits.Add64(sum, uint64(*(*uint32)(unsafe.Add(x, 8))), carry)
		sum, carry = bits.Add64(sum, *(*uint64)(unsafe.Add(x, 12)), carry)
		sum, carry = bits.Add64(sum, uint64(^uint32(words[0])), carry)
		sum, carry = bits.Add64(sum, ^words[1], carry)
		sum, _ = bits.Add64(sum, 0, carry)
	}
	*(*uint8)(x) = 0
	*(*uint32)(unsafe.Add(x, 8)) = uint32(words[0])
	*(*uint64)(unsafe.Add(x, 12)) = words[1]
	return sum
}

// timingFirst answers the TLV if x, which follows a base packet seen at a tick, begins with it.
func (r *Responder) timingFirst(x []byte, seen uint64, c *Clock) {
	ahead := r.place()
	if len(x) < tlvHeader+TimingLength || le.Uint64(x) != timingAsked {
		return
	}
	x[0] = 0
	r.putTiming(x[tlvHeader:], ahead, seen, c)
}

func (r *Responder) putTiming(v []byte, ahead uint16, seen uint64, c *Clock) {
	flags, ahead, looked := r.timingFields(c, ahead, seen, c.At(seen))
	v[4], v[5] = flags, 0
	be.PutUint16(v[6:], ahead)
	be.PutUint64(v[8:], looked)
}

// extendTiming answers the TLV with the value v among others. sealed means that the HMAC over it was right.
func (r *Responder) extendTiming(v []byte, sealed bool, seen uint64, c *Clock) uint8 {
	if !r.timing.any || !r.timing.plain && !sealed || len(v) < 4 || be.Uint32(v) != TimingMark {
		return flagUnrecognized
	}
	if len(v) != TimingLength {
		return flagMalformed
	}
	r.putTiming(v, r.place(), seen, c)
	return 0
}
