package fastpath

import (
	"fmt"
	"math"
	"math/bits"
	"unsafe"

	"github.com/rebound-nic/rebound/cksum"
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
		if n >= wideBytes {
			sum, c = bits.Add64(sum, cksum.Blocks((*byte)(p), n&^31), 0)
			sum, _ = bits.Add64(sum, 0, c)
			p, n = unsafe.Add(p, n&^31), n&31
		}
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
	return r.limit.at(r.Loop.Start, hash) // Slow settles a source that is not at home
}

// multiple reports whether a ones' complement sum that is not zero is a multiple of 65535, which is what the sum over a right
// checksum is. The compiler makes one multiplication of it.
func multiple(s uint64) bool { return s%0xffff == 0 }

// slots is how many sources have a bucket of their own, in sets of ways.
const slots, slotShift, limiterWays = 4096, 64 - 12, 8

// limiter rations replies by source: a token bucket for each, kept as the moment at which it will be full again (the
// generic cell rate algorithm of ITU-T I.371).
//
// A source has one of the places of its set, the first choice of which is its home. Hot loops look only there: two words of one
// cache line. A source without a place displaces the one whose bucket has been full longest, among those that have been full for
// more than patience times the time that they were in use. So a flood of new sources displaces only its own kind, and nothing is forgotten that
// would let a source have more than its rate. Sources that find no place share the bucket of their set.
type limiter struct {
	cost  uint64 // of a reply, in 1/16 ticks
	burst uint64 // how far ahead of now a full moment may lie for one more reply
	most  uint64 // burst + cost: how far it is at most, and only one that has passed seems to lie further
	tag   uint64 // the bits of a hash that are compared: none without a limit
	idle  uint64 // a source whose bucket has been full for so long may be displaced however long it was in use

	// unsettled is the source of a request that passed all other guards but was not at home, or 0: meet lets it settle, so that the same
	// function can answer. Without that a flood of new sources would cost Slow for each.
	unsettled uint64

	places [slots]place
	begun  [slots]uint64 // when the place's source took it
	shared [slots / limiterWays]uint64
}

// place is one source's.
type place struct {
	full   uint64
	source uint64 // its hash, 0 where the place is free
}

// idleSeconds is after how many a source without a request may be displaced.
const idleSeconds = 600

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
	l.burst, l.most, l.tag, l.idle = most-l.cost, most, math.MaxUint64, ticksPerSecond*idleSeconds<<fraction
	return nil
}

// at reports whether the source whose hash is given is at home and may have a reply at time now, and counts it. Otherwise
// take decides, which refuses what at refused for its rate.
func (l *limiter) at(now, hash uint64) bool {
	p := &l.places[hash>>slotShift]
	return (p.source^hash)&l.tag == 0 && l.charge(&p.full, now<<fraction)
}

// take reports whether the source whose hash is given may have a reply at time now, and counts it.
//
//go:noinline
func (l *limiter) take(now, hash uint64) bool {
	now <<= fraction
	if p := &l.places[hash>>slotShift]; (p.source^hash)&l.tag == 0 || l.settle(now, hash) {
		return l.charge(&p.full, now)
	}
	return l.charge(&l.shared[hash>>slotShift/limiterWays], now)
}

// charge takes a reply from a bucket.
func (l *limiter) charge(full *uint64, now uint64) bool {
	ahead := *full - now
	if ahead > l.most { // below now: full
		*full, ahead = now, 0
	}
	if ahead > l.burst {
		return false
	}
	*full += l.cost
	return true
}

// meet settles the source that was not at home, and reports whether it is now.
func (l *limiter) meet(now uint64) bool {
	source := l.unsettled
	l.unsettled = 0
	return l.settle(now<<fraction, source)
}

// settle gives a source its home: what is there moves to the place that the source had, or to one that may be displaced. It reports whether
// there was one.
func (l *limiter) settle(now, hash uint64) bool {
	home := hash >> slotShift
	set := home &^ (limiterWays - 1)
	to, longest := uint64(slots), uint64(0)
	for i := set; i < set+limiterWays; i++ {
		switch p := &l.places[i]; {
		case p.source == hash:
			l.places[i], l.places[home] = l.places[home], l.places[i]
			l.begun[i], l.begun[home] = l.begun[home], l.begun[i]
			return true
		case p.source == 0:
			to, longest = i, math.MaxUint64
		default:
			silence := now - p.full                       // how long it has been full
			if -silence <= l.most || silence <= longest { // not yet
				continue
			}
			if silence > l.idle || silence/patience > p.full-l.cost-l.begun[i] {
				to, longest = i, silence
			}
		}
	}
	if to == slots {
		return false
	}
	l.places[to], l.begun[to] = l.places[home], l.begun[home]
	l.places[home], l.begun[home] = place{full: now, source: hash}, now
	return true
}

// messageHash spreads the numbers that messages have for senders.
const messageHash = 0x9e37_79b9_7f4a_7c15

// hash4 and hash6 hash a source address. No two of IPv4 have the same hash. Somebody can choose addresses that share a set, or a
// hash of IPv6, but who can send from them can send from the victim's.
func hash4(a []byte) uint64 { return uint64(le.Uint32(a)) * 0x9e37_79b9_7f4a_7c15 }

func hash6(a []byte) uint64 {
	return (le.Uint64(a)*0xbf58_476d_1ce4_e5b9 ^ le.Uint64(a[8:])) * 0x9e37_79b9_7f4a_7c15
}
