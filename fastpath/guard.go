package fastpath

import (
	"fmt"
	"math"
	"math/bits"
)

// multiple reports whether a non-zero ones' complement sum is a multiple of 65535, as the sum over a correct checksum
// is. The compiler turns it into one multiplication.
func multiple(s uint64) bool { return s%0xffff == 0 }

// slots is how many sources have a separate bucket, in sets of limiterWays.
const slots, slotShift, limiterWays = 4096, 64 - 12, 8

// limiter limits the rate of replies by source: a token bucket for each, stored as the time at which it will be full
// again (the generic cell rate algorithm of ITU-T I.371).
//
// A source occupies one of the places of its set; its preferred place is its home. Hot loops check only the home: two
// words of one cache line. A source without a place displaces the one whose bucket has been full longest, among those
// that have been full for more than patience times the time that they were in use. So a flood of new sources only
// displaces other sources of the flood, and no state is lost that would let a source exceed its rate. Sources that find
// no place share the bucket of their set.
type limiter struct {
	cost  uint64 // of a reply, in 1/16 tick
	burst uint64 // how far the time at which a bucket is full may be in the future for one more reply
	most  uint64 // burst + cost: the maximum of that distance; only a time in the past seems to be farther away
	tag   uint64 // the bits of a hash that are compared: none without a limit
	idle  uint64 // a source whose bucket has been full for this long may be displaced however long it was in use

	// unsettled is the source of a request that passed all other guards but was not at home, or 0: meet then settles
	// it, so that the same function can answer. Otherwise a flood of new sources would cost a call of Slow for each.
	unsettled uint64

	places [slots]place
	begun  [slots]uint64 // when the place's source occupied it
	shared [slots / limiterWays]uint64
}

type place struct {
	full   uint64
	source uint64 // its hash, 0 if the place is free
}

// idleSeconds is the time without requests after which a source may be displaced.
const idleSeconds = 600

// fraction is the number of fractional bits of a tick: 16 steps per tick.
const fraction = 4

// set gives every source a full bucket of burst replies. A rate of 0 means no limit: replies cost nothing.
func (l *limiter) set(rate, burst, ticksPerSecond uint64) error {
	if rate == 0 {
		l.burst, l.most = math.MaxUint64, math.MaxUint64
		return nil
	}
	if burst == 0 || ticksPerSecond == 0 {
		return fmt.Errorf("%w: rate %d/s with burst %d and %d ticks a second, expected both above 0", ErrConfig, rate,
			burst, ticksPerSecond)
	}
	l.cost = ticksPerSecond << fraction / rate
	hi, most := bits.Mul64(l.cost, burst)
	if l.cost == 0 || hi != 0 || most>>60 != 0 {
		return fmt.Errorf("%w: rate %d/s with burst %d is beyond a counter of %d ticks a second", ErrConfig, rate,
			burst, ticksPerSecond)
	}
	l.burst, l.most, l.tag, l.idle = most-l.cost, most, math.MaxUint64, ticksPerSecond*idleSeconds<<fraction
	return nil
}

// allowAtHome reports whether the source with the given hash is at home and may get a reply at time now, and charges
// it. Otherwise allow decides; it also refuses sources that allowAtHome refused because of their rate.
func (l *limiter) allowAtHome(now, hash uint64) bool {
	p := &l.places[hash>>slotShift]
	return (p.source^hash)&l.tag == 0 && l.charge(&p.full, now<<fraction)
}

// allow reports whether the source with the given hash may get a reply at time now, and charges it.
//
//go:noinline
func (l *limiter) allow(now, hash uint64) bool {
	now <<= fraction
	if p := &l.places[hash>>slotShift]; (p.source^hash)&l.tag == 0 || l.moveHome(now, hash) {
		return l.charge(&p.full, now)
	}
	return l.charge(&l.shared[hash>>slotShift/limiterWays], now)
}

// charge takes one request out of a token bucket and reports whether there was one. full is the time at which the
// bucket is full again, in the unit of now, ticks<<fraction; none is left when it is more than burst ahead of now.
func (l *limiter) charge(full *uint64, now uint64) bool {
	ahead := *full - now
	if ahead > l.most { // in the past: the bucket is full
		*full, ahead = now, 0
	}
	if ahead > l.burst {
		return false
	}
	*full += l.cost
	return true
}

// meet settles the source that was not at home, and reports whether it is at home now.
func (l *limiter) meet(now uint64) bool {
	source := l.unsettled
	l.unsettled = 0
	return l.moveHome(now<<fraction, source)
}

// moveHome moves a source to its home: the current occupant moves to the source's old place, or to one whose source may
// be displaced. It reports whether there was such a place.
func (l *limiter) moveHome(now, hash uint64) bool {
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
			silence := now - p.full                       // how long the bucket has been full
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

// messageHash spreads the numbers that identify the senders of messages.
const messageHash = 0x9e37_79b9_7f4a_7c15

// hash4 and hash6 hash a source address. No two IPv4 addresses have the same hash. An attacker can choose addresses
// that share a set, or an IPv6 hash, but one who can send from them can also send from the victim's.
func hash4(a []byte) uint64 { return uint64(le.Uint32(a)) * 0x9e37_79b9_7f4a_7c15 }

func hash6(a []byte) uint64 {
	return (le.Uint64(a)*0xbf58_476d_1ce4_e5b9 ^ le.Uint64(a[8:])) * 0x9e37_79b9_7f4a_7c15
}
