package engine

import (
	"encoding/binary"
	"errors"
	"math"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/polling"
)

// stampState is the state of a STAMP stream beyond round trips.
type stampState struct {
	network, residence, there, back *latency.Track
	estimate                        uint16 // this host's
	ssid                            uint16
	tos                             uint8
	stop                            bool // stop at a zeroed SSID
	anchor                          anchor
	tai                             int64 // seconds that TAI is ahead of UTC, 0 if unknown

	// The measured replies of this run: the first and the last by number, and how many there are.
	first, latest pair
	replies       int64
	// copies counts the packets of the reflector that answer a probe again: the network duplicated the probe on its way
	// there. The greatest number among them and the first replies is highest; far remembers the latest numbers, each
	// plus one, to recognise replies that were duplicated on their way back.
	copies  int64
	highest uint32
	far     []uint64
	// differ means that the reflector's count is not a copy of ours, so that it is stateful. Our numbers start at 1, as
	// if the first packet were lost before it left, so that a stateful reflector's count differs from the first packet
	// on.
	differ bool
	before struct { // the previous reply
		number uint32
		at     uint64
	}
	sum STAMP
}

type pair struct{ sender, reflector uint32 }

// STAMP has the results about the reflector of a STAMP stream.
type STAMP struct {
	Stateful     bool    // the reflector numbers its own packets
	LostThere    int64   // Stateful: probes that did not reach it
	LostBack     int64   // Stateful: probes that reached it, and whose replies were lost
	Synchronised bool    // every reply claims that its clock is synchronised
	WorstError   float64 // the greatest error that it states, in nanoseconds
	NoEstimate   bool    // it sent a multiplier of 0, which is invalid (RFC 4656 §4.1.2)
	TTL          uint8   // the lowest hop limit with which a probe arrived
	// residence times that are negative or exceed the round trip: left out of residence and network
	Impossible int64
	ZeroSSID   bool // it returned the session identifier as 0
	PTP        bool // its timestamps are in PTP format

	// Negative one-way delays, which are caused by clock errors; they count as 0.
	NegativeThere, NegativeBack int64
	// NoTAI means that one-way delays were left out: the reflector's timestamps are PTP's, whose scale is TAI, and this
	// host's kernel does not know the offset of TAI from UTC.
	NoTAI bool

	TLVs      []TLVAnswers
	Untrusted int64 // replies whose HMAC TLV came back unverified
}

// TLVAnswers summarises the replies to one TLV.
type TLVAnswers struct {
	Type                                       probe.TLV
	Answered, Unrecognized, Malformed, Flagged int64  // replies, by the flags; Flagged is I
	First, Latest                              []byte // value

	// Other counts answers that differ from the expected values: for Class of Service, a probe arrived with another
	// DSCP or ECN than it was sent with; for Follow-Up, the previous reply was sent at another time than it stated.
	Other   int64
	Reverse int64 // Class of Service: replies that could not have the requested DSCP (RP)
}

func newStampState(rec *latency.Recorder, f probe.Flow, stop bool, window int) *stampState {
	s := &stampState{far: make([]uint64, window), network: rec.Track(networkSeries),
		residence: rec.Track(latency.ResidenceSeries), there: rec.Track(latency.ThereSeries),
		back:     rec.Track(latency.BackSeries),
		estimate: OwnEstimate(), ssid: f.Test.SSID, tos: f.TOS, stop: stop, tai: taiOffset(),
		sum: STAMP{TTL: math.MaxUint8, Synchronised: true}}
	for _, a := range f.Test.Ask {
		if a.Type != probe.HMAC {
			s.sum.TLVs = append(s.sum.TLVs, TLVAnswers{Type: a.Type, First: make([]byte, len(a.Value)),
				Latest: make([]byte, len(a.Value))})
		}
	}
	return s
}

// anchor is one moment on both clocks.
type anchor struct {
	tick uint64
	wall time.Time
	set  bool
	slew float64 // relative speed of the wall clock compared with the counter, measured since the previous anchor
}

// time returns the wall time at a tick, which must be now or shortly before. The relation of the two clocks is measured
// ten times a second, including the rate, because the wall clock is steered. It allocates nothing.
func (s *stampState) time(c *latency.Clock, tick uint64) time.Time {
	if a := s.anchor; !a.set || c.Between(a.tick, tick) > 100e6 {
		best := uint64(math.MaxUint64)
		for range 3 { // the thread may be interrupted between two readings
			before := polling.TSC()
			now := time.Now()
			if width := polling.TSC() - before; width < best {
				best, s.anchor = width, anchor{tick: before + width/2, wall: now.Round(0), set: true}
			}
		}
		if a.set {
			s.anchor.slew = slew(s.anchor.wall.Sub(a.wall), c.Between(a.tick, s.anchor.tick))
		}
	}
	d := float64(c.Between(s.anchor.tick, tick))
	return s.anchor.wall.Add(time.Duration(d + d*s.anchor.slew))
}

// slew is the relative speed of the wall clock compared with the counter, from the elapsed ns of both. If it is more
// than the kernel steers a clock (500 ppm, adjtimex(2)), the clock was stepped, and slew returns 0.
func slew(wall time.Duration, counter int64) float64 {
	if p := float64(wall)/float64(counter) - 1; math.Abs(p) <= 500e-6 {
		return p
	}
	return 0
}

// begin and end enclose the measured part of a run.
func (s *stampState) begin() { s.replies, s.copies = 0, 0 }

// end adds a run to the sums. Between the first and the last probe that were answered, probes that the reflector did
// not count were lost on the way there, and those that it counted without a reply here were lost on the way back. For
// losses before or after that, the direction is unknown. The reflector also counts copies of probes that the network
// made on the way there: those whose reply arrived are subtracted. For as many losses as there may be copies whose
// replies were lost, the direction is unknown.
func (s *stampState) end() {
	if s.replies == 0 {
		return
	}
	sent, seen := int64(s.latest.sender-s.first.sender)+1, int64(int32(s.highest-s.first.reflector))+1
	if lost := sent - s.replies; lost > 0 {
		there := min(max(sent-(seen-s.copies), 0), lost)
		hidden := min(hiddenCopies(s.copies, seen-s.replies-s.copies, seen), lost-there)
		s.sum.LostThere += there
		s.sum.LostBack += lost - there - hidden
	}
	s.replies = 0
}

// hiddenCopies bounds how many copies of probes a reflector has counted beyond those that were seen, if it sent all
// packets and lost of them did not arrive: either of a copy and the original may be among them. The bound exceeds the
// expected number by three standard deviations.
func hiddenCopies(seen, lost, all int64) int64 {
	if lost <= 0 {
		return 0
	}
	expected := 2 * float64(seen) * float64(lost) / float64(all)
	return min(int64(math.Ceil(expected+3*math.Sqrt(expected))), lost)
}

// duplicated processes a further reply to a probe.
func (s *stampState) duplicated(r *probe.Reply) {
	if s.fresh(r.Stamped.Seq) && s.replies > 0 && int32(r.Stamped.Seq-s.first.reflector) > 0 {
		s.copies++
		if int32(r.Stamped.Seq-s.highest) > 0 {
			s.highest = r.Stamped.Seq
		}
	}
}

// fresh reports whether no reply with this number of the reflector has arrived before, and remembers it.
func (s *stampState) fresh(number uint32) bool {
	at := &s.far[number%uint32(len(s.far))]
	was := *at
	*at = uint64(number) + 1
	return was != *at
}

// errZeroSSID means that the reflector returned a zeroed session identifier, as reflectors without support for it do.
var errZeroSSID = errors.New(
	"the reflector zeroes the session identifier (it does not know RFC 8972), and -stamp-zero-ssid is stop")

// handleReply handles every good reply, including those of the warm-up.
func (s *stampState) handleReply(r *probe.Reply) error {
	s.differ = s.differ || r.Stamped.Seq != r.Seq
	if s.ssid != 0 && r.Stamped.SSID == 0 {
		if s.sum.ZeroSSID = true; s.stop {
			return errZeroSSID
		}
	}
	return nil
}

// NTP converts to seconds since 1900 in 32.32 bits (RFC 5905 §6).
func NTP(t time.Time) uint64 {
	return uint64(t.Unix()+ntpEra)<<32 | uint64(t.Nanosecond())<<32/1e9
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

// record records one measured reply, and returns what it says of the reflector's part. Residence only uses the
// reflector's clock; one-way delays use both clocks.
func (s *stampState) record(stream *Stream, slot *slot, at uint64) Far {
	r := &stream.reply.Stamped
	p := pair{stream.reply.Seq, r.Seq}
	if s.replies == 0 || int32(p.sender-s.first.sender) < 0 {
		s.first = p
	}
	if s.replies == 0 || int32(p.sender-s.latest.sender) > 0 {
		s.latest = p
	}
	if s.replies == 0 || int32(p.reflector-s.highest) > 0 {
		s.highest = p.reflector
	}
	s.fresh(p.reflector)
	s.replies++
	s.sum.Synchronised = s.sum.Synchronised && r.ErrorEstimate&estimateSync != 0
	if e := estimateNS(r.ErrorEstimate); e == 0 {
		s.sum.NoEstimate = true
	} else {
		s.sum.WorstError = max(s.sum.WorstError, e)
	}
	s.sum.TTL = min(s.sum.TTL, r.TTL)
	s.recordAnswers(r)

	ptp := r.ErrorEstimate&estimatePTP != 0
	rtt := stream.clock.Between(slot.sent, at)
	took := between(r.T2, r.T3, ptp)
	far := FarOf(r, rtt)
	if took < 0 || took > rtt {
		s.sum.Impossible++
		if took > rtt {
			if t1, t4, ok := s.ends(stream.clock, slot.sent, at, ptp); ok {
				far.There, far.Back = between(t1, r.T3, ptp), between(r.T3, t4, ptp)
			}
		}
		return far
	}
	s.residence.Record(at, took)
	s.network.Record(at, rtt-took)
	far.There, far.Back = s.oneWay(stream.clock, slot.sent, at, r, ptp)
	return far
}

// FarOf returns what a reply says of the reflector's part of a round trip of rtt ns. One-way delays are left out,
// because they need this host's wall clock.
func FarOf(r *probe.Stamped, rtt int64) Far {
	ptp := r.ErrorEstimate&estimatePTP != 0
	far, took := unknownFar, between(r.T2, r.T3, ptp)
	switch {
	case took < 0:
	case took > rtt:
		// T2 is when the reflector's iteration began. It was held up before it looked at its queue, and the probe came
		// meanwhile: all of that bounds the wait, which ends at T3, as the way there does.
		far.Residence, far.Seen = 0, unixNS(r.T3, ptp)
		if timing(&far, r, ptp); far.Wait >= 0 {
			far.Wait += took
		}
	default:
		far.Residence, far.Seen = took, unixNS(r.T2, ptp)
		timing(&far, r, ptp)
	}
	return far
}

// timing reads the answer to the Host Timing TLV.
func timing(far *Far, r *probe.Stamped, ptp bool) {
	if r.Untrusted {
		return
	}
	for i := range r.Answers {
		a := &r.Answers[i]
		if a.Type != probe.HostTiming || !a.Usable() || len(a.Value) != fastpath.TimingLength ||
			a.Value[4]&fastpath.TimingLoop == 0 {
			continue
		}
		if wait := between(be.Uint64(a.Value[8:]), r.T2, ptp); wait >= 0 {
			far.Wait, far.Ahead = wait, int32(be.Uint16(a.Value[6:]))
		}
	}
}

// unixNS converts a timestamp of this century to ns since 1970.
func unixNS(t uint64, ptp bool) int64 {
	if ptp {
		return int64(t>>32)*1e9 + int64(uint32(t))
	}
	return int64(uint32(t>>32)-ntpEra)*1e9 + int64(uint64(uint32(t))*1e9>>32)
}

const ntpEra = 2208988800 // 1900 to 1970 in seconds

// ends returns T1 and T4 in the format of the reflector's timestamps, if they are known in it.
func (s *stampState) ends(c *latency.Clock, sent, at uint64, ptp bool) (t1, t4 uint64, ok bool) {
	left, came := s.time(c, sent), s.time(c, at)
	if s.sum.PTP = ptp; !ptp {
		return NTP(left), NTP(came), true
	}
	if s.tai == 0 {
		s.sum.NoTAI = true
		return 0, 0, false
	}
	return s.ptp(left), s.ptp(came), true
}

// oneWay records the one-way delays of a probe and its reply, by the wall clocks of both ends.
func (s *stampState) oneWay(c *latency.Clock, sent, at uint64, r *probe.Stamped, ptp bool) (there, back int64) {
	t1, t4, ok := s.ends(c, sent, at, ptp)
	if !ok {
		return 0, 0
	}
	there, back = between(t1, r.T2, ptp), between(r.T3, t4, ptp)
	if there < 0 {
		s.sum.NegativeThere++
	}
	if back < 0 {
		s.sum.NegativeBack++
	}
	s.there.Record(at, there)
	s.back.Record(at, back)
	return there, back
}

// ptp is t in PTP's truncated format: seconds of TAI in 32 bits, nanoseconds (RFC 8186 §2.1).
func (s *stampState) ptp(t time.Time) uint64 {
	return uint64(uint32(t.Unix()+s.tai))<<32 | uint64(t.Nanosecond())
}

// recordAnswers records a reply's answers to our TLVs.
func (s *stampState) recordAnswers(r *probe.Stamped) {
	if r.Untrusted {
		s.sum.Untrusted++
	}
	for i := range r.Answers {
		a, t := &r.Answers[i], &s.sum.TLVs[i]
		switch {
		case a.Flags&probe.Integrity != 0:
			t.Flagged++
		case a.Flags&probe.Malformed != 0:
			t.Malformed++
		case a.Flags&probe.Unrecognized != 0:
			t.Unrecognized++
		case !r.Untrusted:
			if t.Answered++; t.Answered == 1 {
				copy(t.First, a.Value)
			}
			copy(t.Latest, a.Value)
			s.compare(t, a.Value)
		}
	}
	s.before.number, s.before.at = r.Seq, r.T3
}

// between returns the nanoseconds from one timestamp to the next, in NTP's format or PTP's truncated one.
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

// OwnEstimate returns the error estimate of the wall clock, from the kernel's bound. A clock that is not disciplined is
// not synchronised.
func OwnEstimate() uint16 {
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	return estimateOf(&t, state, err)
}

// estimateOf is OwnEstimate for a result of adjtimex(2).
func estimateOf(t *unix.Timex, state int, err error) uint16 {
	synchronised := err == nil && state != unix.TIME_ERROR && t.Status&unix.STA_UNSYNC == 0
	return fastpath.KernelEstimate(synchronised, t.Maxerror)
}

// compare counts answers that differ from the known values.
func (s *stampState) compare(t *TLVAnswers, v []byte) {
	switch t.Type {
	case probe.ClassOfService:
		if came := v[0]<<6 | v[1]>>2; came != s.tos { // DSCP2 and ECN
			t.Other++
		}
		if v[1]&3 != 0 {
			t.Reverse++
		}
	case probe.FollowUp:
		if be.Uint32(v) == s.before.number && be.Uint64(v[4:]) != s.before.at {
			t.Other++
		}
	}
}

var be = binary.BigEndian

// taiOffset is the kernel's offset of TAI from UTC in seconds; 0 if it is not set.
func taiOffset() int64 {
	var t unix.Timex
	unix.Adjtimex(&t) // an error leaves it 0
	return int64(t.Tai)
}

// STAMP returns the results about the reflector for the runs that have ended; nil for other protocols.
func (s *Stream) STAMP() *STAMP {
	if s.stamp == nil {
		return nil
	}
	sum := s.stamp.sum
	if sum.Stateful = s.stamp.differ; !sum.Stateful {
		sum.LostThere, sum.LostBack = 0, 0
	}
	return &sum
}
