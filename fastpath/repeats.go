package fastpath

import "math"

// repeats finds loops with an echo service on another host, which answers each reply from an ephemeral or registered
// port and with a new TTL, so that a single datagram looks like a client's (CVE-2024-2169). Swapping addresses and
// ports leaves the UDP checksum unchanged: the datagram that comes back has the checksum and the length of the one
// before, and comes back at the pace of the round trip. So most equal datagrams from one source are answered within
// window, and the next one, which is the loop's only frame, is refused.
//
// Of each source one datagram is followed at a time, for window from when it arrived. Several loops of one source
// therefore end one after the other, and a client whose data changes only leaves a new datagram each window. The places
// are those of the sources' homes in the rate table. A datagram without a checksum equals others of its length.
type repeats struct {
	window uint64 // in ticks
	most   uint32
	of     [slots]repeat
}

type repeat struct {
	began      uint64 // when the first of count equal datagrams arrived
	key, count uint32 // key: length and checksum of a UDP header as loaded
}

// repeatsPerSecond is how often window fits into a second.
const repeatsPerSecond = 100

// set allows most equal datagrams in each window. 0 means no limit.
func (r *repeats) set(most uint32, ticksPerSecond uint64) {
	if most == 0 {
		most = math.MaxUint32
	}
	r.most, r.window = most, ticksPerSecond/repeatsPerSecond
}

// allow reports whether a datagram from the source with the given hash may be answered at time now, and counts it.
// Reply contains the same code.
func (r *repeats) allow(now, hash uint64, key uint32) bool {
	e := &r.of[hash>>slotShift]
	switch {
	case now-e.began > r.window:
		*e = repeat{now, key, 1}
	case e.key == key:
		if e.count >= r.most {
			return false
		}
		e.count++
	}
	return true
}
