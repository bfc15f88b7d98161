package engine

import (
	"math"
	"time"

	"golang.org/x/sys/unix"

	"rebound/cmd/bench/probe"
	"rebound/latency"
	"rebound/polling"
)

// stampState is what a STAMP stream knows beyond round trips.
type stampState struct {
	network, residence *latency.Track
	estimate           uint16 // ours

	seen          bool
	first, latest pair // the first and the latest measured replies
	differ        bool // the reflector's count is not a copy of ours: it keeps state
	sum           STAMP
}

type pair struct{ sender, reflector uint32 }

// STAMP is what a STAMP stream learnt of its reflector.
type STAMP struct {
	Stateful     bool    // the reflector numbers its own packets
	LostForward  int64   // Stateful: probes that did not reach it
	Synchronised bool    // it claims that its clock is
	WorstError   float64 // the greatest error that it admits, in nanoseconds
	NoEstimate   bool    // it gave a multiplier of 0, which says nothing (RFC 4656 §4.1.2)
	TTL          uint8   // the least hop limit with which a probe reached it
	Impossible   int64   // residence times below zero or above the round trip: left out of residence and network
}

func newStampState(rec *latency.Recorder) *stampState {
	return &stampState{network: rec.Track(NetworkSeries), residence: rec.Track(latency.ResidenceSeries), estimate: ownEstimate(),
		sum: STAMP{TTL: math.MaxUint8}}
}

// now returns the wall time in NTP's format. It allocates nothing.
func (s *stampState) now(c *latency.Clock) uint64 { return NTP(c.Time(polling.TSC())) }

// NTP converts to seconds since 1900 in 32.32 bits (RFC 5905 §6).
func NTP(t time.Time) uint64 {
	const era = 2208988800 // 1900 to 1970 in seconds
	return uint64(t.Unix()+era)<<32 | uint64(t.Nanosecond())<<32/1e9
}

// genuine checks that the reflector copied the probe's own time.
func (s *stampState) genuine(w *window, r *probe.Reply) bool {
	slot, _, ok := w.find(r.Seq)
	return !ok || slot.t1 == r.Stamped.T1
}

const (
	estimateSync = 1 << 15 // S: synchronised to UTC
	estimatePTP  = 1 << 14 // Z: times are in PTP's format, not NTP's (RFC 8762 §4.2.1, RFC 8186 §2.1)
)

// record keeps what one reply tells. All of it is from the reflector's clock alone, so that clocks need not agree.
func (s *stampState) record(stream *Stream, slot *slot, at uint64) {
	r := &stream.reply.Stamped
	p := pair{stream.reply.Seq, r.Seq}
	if !s.seen {
		s.first, s.seen = p, true
	}
	if int32(p.sender-s.latest.sender) > 0 || s.latest == (pair{}) {
		s.latest = p
	}
	s.differ = s.differ || r.Seq != stream.reply.Seq
	s.sum.Synchronised = r.ErrorEstimate&estimateSync != 0
	if e := estimateNS(r.ErrorEstimate); e == 0 {
		s.sum.NoEstimate = true
	} else {
		s.sum.WorstError = max(s.sum.WorstError, e)
	}
	s.sum.TTL = min(s.sum.TTL, r.TTL)

	rtt := stream.clock.Between(slot.sent, at)
	took := between(r.T2, r.T3, r.ErrorEstimate&estimatePTP != 0)
	if took < 0 || took > rtt {
		s.sum.Impossible++
		return
	}
	s.residence.Record(at, took)
	s.network.Record(at, rtt-took)
}

// between returns the nanoseconds from one stamp to the next, in NTP's format or PTP's truncated one.
func between(a, b uint64, ptp bool) int64 {
	if ptp { // 32 bits of seconds, 32 of nanoseconds
		return int64(int32(b>>32)-int32(a>>32))*1e9 + int64(uint32(b)) - int64(uint32(a))
	}
	d := int64(b - a)
	return d>>32*1e9 + int64(uint64(uint32(d))*1e9>>32)
}

// estimateNS decodes an error estimate: multiplier * 2^(scale-32) seconds (RFC 4656 §4.1.2).
func estimateNS(e uint16) float64 {
	return float64(e&0xff) * math.Ldexp(1e9, int(e>>8&0x3f)-32)
}

// encodeEstimate is its inverse, rounded up.
func encodeEstimate(ns float64, synchronised bool) uint16 {
	units := ns / math.Ldexp(1e9, -32)
	scale := 0
	for ; units > 255 && scale < 63; scale++ {
		units /= 2
	}
	e := uint16(scale)<<8 | uint16(min(max(math.Ceil(units), 1), 255))
	if synchronised {
		e |= estimateSync
	}
	return e
}

// ownEstimate asks the kernel how wrong the wall clock may be. A clock that nothing disciplines is said to be wrong by the
// kernel's own upper bound, and not to be synchronised.
func ownEstimate() uint16 {
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	if err != nil {
		return encodeEstimate(16e9, false)
	}
	const unsynchronised, timeError = 0x40, 5
	return encodeEstimate(float64(t.Maxerror)*1e3, state != timeError && t.Status&unsynchronised == 0)
}

// STAMP returns what was learnt of the reflector; nil for other protocols.
func (s *Stream) STAMP() *STAMP {
	if s.stamp == nil {
		return nil
	}
	st := s.stamp
	sum := st.sum
	if st.seen && st.differ {
		sum.Stateful = true
		sum.LostForward = max(int64(int32(st.latest.sender-st.first.sender))-int64(int32(st.latest.reflector-st.first.reflector)), 0)
	}
	return &sum
}
