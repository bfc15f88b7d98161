package engine

import "math/bits"

// slowestKept is how many of the slowest round trips a Stream keeps.
const slowestKept = 1000

// Slow is one of the slowest round trips. All times are in ticks.
type Slow struct {
	Intended, Sent, Seen uint64 // Intended is equal to Sent in a closed loop
	// the part of Intended to Seen during which the bench stalled: late polls of the receive ring
	Away uint64

	Left   uint64 // after the port took it
	Looked uint64 // the last poll of the receive ring before Seen that found nothing
	Far    Far
	Kernel Kernel
}

// Kernel has the kernel's timestamps of a probe, in ns of CLOCK_REALTIME, and how that clock is related to ticks. It is
// zero without them.
type Kernel struct {
	Sent, Seen   int64  // when it gave the probe to the driver, and took the reply from it; 0 if unknown
	Wall         int64  // what the clock showed
	Tick, Within uint64 // between Tick and Tick + Within

	seq uint32
}

// Far is what a STAMP reflector reported of a probe. Durations are in ns; negative is unknown.
type Far struct {
	Residence   int64 // T2 to T3
	Wait        int64 // at most this long before T2 the probe waited for the reflector's loop
	There, Back int64 // by both clocks
	Seen        int64 // T2 in ns since 1970 by its clock; 0 if unknown
	Ahead       int32 // test packets ahead of it
}

var unknownFar = Far{Residence: -1, Wait: -1}

// RTT returns the round trip from the intended send, in ticks.
func (s *Slow) RTT() uint64 { return s.Seen - s.Intended }

// slowest is a heap of the slowest round trips, the least slow on top, and the latest stalls. It allocates nothing.
type slowest struct {
	kept [slowestKept]Slow
	n    int

	least  uint64 // ticks: the shortest stall
	stalls [1 << 10]stall
	count  uint64 // of all stalls
}

type stall struct{ from, to uint64 }

// recordGap records the time from one poll of the receive ring to the next.
func (s *slowest) recordGap(from, to uint64) {
	if to-from >= s.least {
		s.stalls[s.count%uint64(len(s.stalls))] = stall{from, to}
		s.count++
	}
}

// takes reports whether a round trip of so many ticks is among the slowest.
func (s *slowest) takes(rtt uint64) bool { return s.n < len(s.kept) || rtt > s.kept[0].RTT() }

// sent sets when the probe seq left, if its round trip is kept.
func (s *slowest) sent(seq uint32, ns int64) {
	for i := range s.kept[:s.n] {
		if k := &s.kept[i].Kernel; k.Tick != 0 && k.seq == seq {
			k.Sent = ns
		}
	}
}

// add keeps a round trip if it is among the slowest.
func (s *slowest) add(k *Slow) {
	intended, seen := k.Intended, k.Seen
	if s.n < len(s.kept) {
		k.Away = s.away(intended, seen)
		i := s.n
		s.n++
		for ; i > 0 && s.kept[(i-1)/2].RTT() > k.RTT(); i = (i - 1) / 2 {
			s.kept[i] = s.kept[(i-1)/2]
		}
		s.kept[i] = *k
		return
	}
	if !s.takes(k.RTT()) {
		return
	}
	k.Away = s.away(intended, seen)
	i := 0
	for {
		c := 2*i + 1
		if c >= s.n {
			break
		}
		if c+1 < s.n && s.kept[c+1].RTT() < s.kept[c].RTT() {
			c++
		}
		if s.kept[c].RTT() >= k.RTT() {
			break
		}
		s.kept[i] = s.kept[c]
		i = c
	}
	s.kept[i] = *k
}

// away returns how much of the time between two ticks is in the latest stalls.
func (s *slowest) away(from, to uint64) (sum uint64) {
	for k := s.count; k > 0 && s.count-k < uint64(len(s.stalls)); k-- {
		st := s.stalls[(k-1)%uint64(len(s.stalls))]
		if int64(st.to-from) <= 0 {
			break
		}
		if a, b := max(st.from, from), min(st.to, to); a < b {
			sum += b - a
		}
	}
	return sum
}

// Slowest returns the slowest measured round trips, at most slowestKept, in no order.
func (s *Stream) Slowest() []Slow { return s.slow.kept[:s.slow.n] }

// sample keeps a uniform random sample of the round trips. It allocates nothing after its creation.
type sample struct {
	kept []Slow // its capacity is the size
	seen uint64
	dice uint64
}

// add keeps k with the same probability as every other element seen (reservoir sampling, with a xorshift generator).
// It does not allocate.
func (s *sample) add(k *Slow) {
	s.seen++
	if len(s.kept) < cap(s.kept) {
		s.kept = append(s.kept, *k)
		return
	}
	s.dice ^= s.dice << 13
	s.dice ^= s.dice >> 7
	s.dice ^= s.dice << 17
	if i, _ := bits.Mul64(s.dice, s.seen); i < uint64(len(s.kept)) {
		s.kept[i] = *k
	}
}

// Sample returns a random sample of the measured round trips, of at most Options.Sample.
func (s *Stream) Sample() []Slow { return s.sample.kept }
