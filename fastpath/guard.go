package fastpath

import (
	"fmt"
	"math"
	"math/bits"
	"unsafe"
)

// Admit is the last guard of a request that passed all the others: it reports whether its checksum is right, as far as
// Config.ChecksumBytes has it looked at, and its source is within its rate, which it takes the reply from. k is one of the
// kinds that leaves answer. It is not inlined: one call costs less than what it would displace.
//
//go:noinline
func (r *Responder) Admit(h *[64]byte, k Kind) bool {
	// An echo request over IPv4 goes straight through.
	packet := int(be.Uint16(h[16:]))
	p, n, hash, sum := unsafe.Pointer(&h[34]), packet-20, hash4(h[26:]), uint64(0)
	switch {
	case k == ICMPv4:
	case k == UDPv4: // from the addresses on, and the rest of the pseudo-header: protocol and length
		p, n, sum = unsafe.Pointer(&h[26]), n+8, 0x1100+uint64(le.Uint16(h[38:]))
	default:
		hash, p = hash6(h[22:]), unsafe.Pointer(&h[22])
		n = int(be.Uint16(h[18:])) + 32
		packet, sum = n+8, uint64(k>>16&0xff00)+uint64(le.Uint16(h[18:]))
	}
	if packet <= r.checksumBytes {
		// The sum of n bytes, 8 or more, as a little-endian machine loads them. None that is requested here is of
		// zeros alone.
		var c uint64
		for ; n >= 32; n -= 32 {
			b := (*[32]byte)(p)
			sum, c = bits.Add64(sum, le.Uint64(b[:]), 0)
			sum, c = bits.Add64(sum, le.Uint64(b[8:]), c)
			sum, c = bits.Add64(sum, le.Uint64(b[16:]), c)
			sum, c = bits.Add64(sum, le.Uint64(b[24:]), c)
			sum, _ = bits.Add64(sum, 0, c)
			p = unsafe.Add(p, 32)
		}
		if n >= 16 {
			b := (*[16]byte)(p)
			sum, c = bits.Add64(sum, le.Uint64(b[:]), 0)
			sum, c = bits.Add64(sum, le.Uint64(b[8:]), c)
			sum, _ = bits.Add64(sum, 0, c)
			p, n = unsafe.Add(p, 16), n-16
		}
		if n >= 8 {
			sum, c = bits.Add64(sum, le.Uint64((*[8]byte)(p)[:]), 0)
			sum, _ = bits.Add64(sum, 0, c)
			p, n = unsafe.Add(p, 8), n-8
		}
		if n != 0 { // the last bytes are the high ones of the word that ends with them
			sum, c = bits.Add64(sum, le.Uint64((*[8]byte)(unsafe.Add(p, n-8))[:])>>(-8*n&63), 0)
			sum, _ = bits.Add64(sum, 0, c)
		}
		if !multiple(sum) && (k != UDPv4 || le.Uint16(h[40:]) != 0) { // RFC 768: zero is none
			return false
		}
	}
	return r.limit.take(r.Loop.Start, hash)
}

// multiple reports whether a ones' complement sum that is not zero is a multiple of 65535, which is what the sum over a right
// checksum is. The compiler makes one multiplication of it.
func multiple(s uint64) bool { return s%0xffff == 0 }

// slots is how many sources have a count of their own, hash collisions aside.
const slots, slotShift = 4096, 64 - 12

// limiter rations replies by source: a token bucket for each, kept as the moment at which it will be full again (the
// generic cell rate algorithm of ITU-T I.371). That is one word, so that a source costs one load and one store, and a table
// without keys is bounded and cannot be thrashed: sources that share a slot share a bucket.
type limiter struct {
	cost  uint64 // of a reply, in 1/16 ticks
	burst uint64 // how far ahead of now a full moment may lie for one more reply
	most  uint64 // burst + cost: how far it is at most, and only one that has passed seems to lie further
	full  [slots]uint64
}

// fraction is how far a tick is shifted up: 16 steps a tick.
const fraction = 4

// set gives every source a full bucket of burst replies. A rate of 0 is no limit: replies cost nothing.
func (l *limiter) set(rate, burst, ticksPerSecond uint64) error {
	if rate == 0 {
		l.burst, l.most = math.MaxUint64, math.MaxUint64
		return nil
	}
	if burst == 0 || ticksPerSecond == 0 {
		return fmt.Errorf("%w: rate %d/s with burst %d and %d ticks a second, expected both above 0", ErrConfig, rate, burst, ticksPerSecond)
	}
	l.cost = ticksPerSecond << fraction / rate
	hi, most := bits.Mul64(l.cost, burst)
	if l.cost == 0 || hi != 0 || most>>60 != 0 {
		return fmt.Errorf("%w: rate %d/s with burst %d is beyond a counter of %d ticks a second", ErrConfig, rate, burst, ticksPerSecond)
	}
	l.burst, l.most = most-l.cost, most
	return nil
}

// take reports whether the source whose hash is given may have a reply at time now, and counts it.
func (l *limiter) take(now, hash uint64) bool {
	f := &l.full[hash>>slotShift]
	now <<= fraction
	switch ahead := *f - now; {
	case ahead > l.most: // below now: full
		*f = now + l.cost
	case ahead > l.burst:
		return false
	default:
		*f += l.cost
	}
	return true
}

// messageHash spreads the numbers that messages have for senders.
const messageHash = 0x9e37_79b9_7f4a_7c15

// hash4 and hash6 hash a source address. That somebody can choose addresses that share a slot is no loss: who can send
// from them can send from the victim's.
func hash4(a []byte) uint64 { return uint64(le.Uint32(a)) * 0x9e37_79b9_7f4a_7c15 }

func hash6(a []byte) uint64 {
	return (le.Uint64(a)*0xbf58_476d_1ce4_e5b9 ^ le.Uint64(a[8:])) * 0x9e37_79b9_7f4a_7c15
}
