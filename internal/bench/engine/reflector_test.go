package engine

import (
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/random"
)

// newState is the state of a reflector's replies, with the wall clock and the counter related at tick 1,000,000.
func newState(t *testing.T, asks ...probe.Ask) *stampState {
	rec := must.Get(latency.NewRecorder(testClock, latency.RecorderOptions{}))(t)
	s := newStampState(rec, probe.Flow{TOS: 46 << 2, Test: probe.TestPacket{Ask: asks}}, false, 8)
	s.anchor = anchor{tick: 1_000_000, wall: time.Unix(1_800_000_000, 5000), set: true}
	return s
}

// The cases of TestLossEachWay, by the numbers of the packets alone, which may wrap. Without copies, the order of the
// replies makes no difference.
func TestLossByNumbers(t *testing.T) {
	rnd := random.New(t)
	for _, c := range losses {
		for _, from := range []uint32{0, math.MaxUint32 - 5} {
			st, _ := stream(t, &fake{}, 0, time.Hour, nil)
			s := newState(t)
			st.stamp = s
			count := from
			for run := range c.runs {
				type packet struct {
					n      int
					number uint32
				}
				var all []packet
				for n := 12 * run; n < 12*(run+1); n++ {
					reflect := func(as int) {
						number := count
						if c.stateless {
							number = from + uint32(n) + 1
						}
						if count++; !slices.Contains(c.back, as) {
							all = append(all, packet{n, number})
							if slices.Contains(c.copyBack, as) {
								all = append(all, packet{n, number})
							}
						}
					}
					if !slices.Contains(c.there, n) {
						if reflect(n); slices.Contains(c.copyThere, n) {
							reflect(n + 1000)
						}
					}
				}
				if c.copyThere == nil && c.copyBack == nil {
					rnd.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
				}
				s.begin()
				seen := map[int]bool{}
				for _, p := range all {
					st.reply = probe.Reply{Seq: from + uint32(p.n) + 1, HasSeq: true}
					st.reply.Stamped.Seq, st.reply.Stamped.ErrorEstimate = p.number, estimateSync|1
					must.OK(t, s.handleReply(&st.reply))
					if seen[p.n] {
						s.duplicated(&st.reply)
					} else {
						s.record(st, &slot{}, 0)
					}
					seen[p.n] = true
				}
				s.end()
				s.end() // adds nothing
			}
			if got := st.STAMP(); got.Stateful == c.stateless || got.LostThere != c.wantThere ||
				got.LostBack != c.wantBack {
				t.Errorf("%s from %d: stateful %t, lost %d there and %d back, want %d and %d", c.name, from, got.Stateful,
					got.LostThere, got.LostBack, c.wantThere, c.wantBack)
			}
		}
	}
}

// A residence from 0 to the round trip is possible. The clock counts as synchronised while all replies say so, and the
// worst of the valid error estimates counts.
func TestRecordReply(t *testing.T) {
	st, _ := stream(t, &fake{}, 0, time.Hour, nil)
	s := newState(t)
	s.tai = 37
	from := s.anchor.tick
	rtt := testClock.Between(from, from+100_000)
	for _, c := range []struct {
		took, residence, impossible int64
		estimate                    uint16
		synchronised, none          bool
		worst                       float64
	}{
		{0, 0, 0, estimateSync | 3, true, false, estimateNS(3)},
		{rtt, rtt, 0, estimateSync | 1, true, false, estimateNS(3)},
		{-1, -1, 1, estimateSync, true, true, estimateNS(3)},
		{rtt + 1, 0, 2, 5, false, true, estimateNS(5)},
		{1, 1, 2, estimateSync | 1, false, true, estimateNS(5)},
	} {
		st.reply.Stamped = probe.Stamped{T2: 10<<32 | 1000, T3: uint64(10<<32 | (1000 + c.took)),
			ErrorEstimate: c.estimate | estimatePTP, TTL: uint8(60 + c.impossible)}
		got := s.record(st, &slot{sent: from}, from+100_000)
		check.Equal(t, got.Residence, c.residence, "residence %d")
		check.Equal(t, s.sum.Impossible, c.impossible, "%d impossible")
		check.Equal(t, s.sum.Synchronised, c.synchronised, "synchronised: %t")
		check.Equal(t, s.sum.NoEstimate, c.none, "an invalid estimate: %t")
		check.Equal(t, s.sum.WorstError, c.worst, "worst error %v")
	}
	check.Equal(t, s.sum.TTL, 60, "TTL %d")
	for _, c := range []struct {
		ours, theirs uint16
		stop, want   bool
	}{{0, 0, true, false}, {7, 7, true, false}, {7, 0, false, true}, {7, 0, true, true}} {
		s := newState(t)
		s.ssid, s.stop = c.ours, c.stop
		err := s.handleReply(&probe.Reply{Stamped: probe.Stamped{SSID: c.theirs}})
		check.Equal(t, s.sum.ZeroSSID, c.want, "SSID zeroed: %t")
		check.Equal(t, err == errZeroSSID, c.want && c.stop, "the stream ends: %t")
	}
}

// The wall time follows the counter at the measured rate for a tenth of a second.
func TestWallTime(t *testing.T) {
	clock := latency.FixedClock(latency.ClockInfo{Frequency: 1e9}, 0, time.Time{})
	s := newState(t)
	s.anchor.slew = 100e-6
	was := s.anchor
	for after, want := range map[time.Duration]time.Duration{0: 0, 100 * time.Millisecond: 100_010 * time.Microsecond} {
		got := s.time(clock, was.tick+uint64(after)).Sub(was.wall)
		check.Equal(t, got, want, "%v later")
		check.Equal(t, s.anchor, was, "anchor %v")
	}
	s.anchor.wall = time.Now().Add(-time.Hour)
	s.time(clock, was.tick+100_000_001)
	check.Equal(t, s.anchor.set && s.anchor.tick != was.tick, true, "the clocks are compared again: %t")
	check.Equal(t, s.anchor.slew, 0, "after a step of the clock the rate is %v")
	for wall, want := range map[time.Duration]float64{1_000_100: 100e-6, 999_900: -100e-6, 1_000_501: 0, 999_499: 0} {
		check.Equal(t, math.Round(slew(wall, 1_000_000)*1e9), math.Round(want*1e9), "rate %v / 1e9")
	}
}

// This host's clock is synchronised if the kernel says so by its status and by its state.
func TestEstimateOfTheClock(t *testing.T) {
	for _, c := range []struct {
		status int32
		state  int
		err    error
		want   bool
	}{
		{0, 0, nil, true}, {^unix.STA_UNSYNC, 0, nil, true}, {unix.STA_UNSYNC, 0, nil, false},
		{0, unix.TIME_ERROR, nil, false}, {0, 0, unix.EPERM, false},
	} {
		check.Equal(t, estimateOf(&unix.Timex{Maxerror: 1234, Status: c.status}, c.state, c.err),
			fastpath.KernelEstimate(c.want, 1234), "%#x")
	}
}

// One-way delays of exactly 0 are not negative, and ones below are.
func TestOneWayAtZero(t *testing.T) {
	for _, ptp := range []bool{false, true} {
		s := newState(t)
		s.tai = 37
		sent, at := uint64(1_000_100), uint64(1_000_900)
		t1, t4, ok := s.ends(testClock, sent, at, ptp)
		must.Equal(t, ok, true, "the ends are known: %t")
		there, back := s.oneWay(testClock, sent, at, &probe.Stamped{T2: t1, T3: t4}, ptp)
		check.Equal(t, there, 0, "there %d ns")
		check.Equal(t, back, 0, "back %d ns")
		check.Equal(t, s.sum.NegativeThere+s.sum.NegativeBack, 0, "%d are negative")
		s.oneWay(testClock, sent, at, &probe.Stamped{T2: t1 - 50, T3: t4 + 50}, ptp)
		check.Equal(t, s.sum.NegativeThere, 1, "%d are negative there")
		check.Equal(t, s.sum.NegativeBack, 1, "%d are negative back")
		check.Equal(t, s.sum.PTP, ptp, "PTP %t")
	}
	s := newState(t)
	s.tai = 0
	there, back := s.oneWay(testClock, 1_000_100, 1_000_200, &probe.Stamped{}, true)
	check.Equal(t, s.sum.NoTAI && there == 0 && back == 0, true, "PTP's times without TAI are left out: %t")
}

// Answers count by their flags, the first flag of three alone. Values of replies that are not trusted do not count.
func TestAnswersByFlag(t *testing.T) {
	s := newState(t, probe.Ask{Type: probe.Location, Value: make([]byte, 2)})
	answer := func(flags uint8, value string, untrusted bool) {
		s.recordAnswers(&probe.Stamped{Untrusted: untrusted,
			Answers: []probe.Answer{{Type: probe.Location, Flags: flags, Value: []byte(value)}}})
	}
	answer(0, "ab", false)
	answer(0, "cd", false)
	answer(probe.Integrity|probe.Malformed|probe.Unrecognized, "ef", false)
	answer(probe.Malformed|probe.Unrecognized, "ef", false)
	answer(probe.Unrecognized, "ef", false)
	answer(0, "gh", true)
	got := s.sum.TLVs[0]
	for what, n := range map[string][2]int64{"answered": {got.Answered, 2}, "flagged": {got.Flagged, 1},
		"malformed": {got.Malformed, 1}, "unrecognized": {got.Unrecognized, 1}, "untrusted": {s.sum.Untrusted, 1}} {
		check.Equal(t, n[0], n[1], what+": %d")
	}
	check.Equal(t, string(got.First)+" "+string(got.Latest), "ab cd", "%q")
	s = newState(t, probe.Ask{Type: probe.ClassOfService, Value: make([]byte, 2)})
	s.recordAnswers(&probe.Stamped{Seq: 5, T3: 7,
		Answers: []probe.Answer{{Type: probe.ClassOfService, Value: []byte{0, 3}}}})
	check.Equal(t, s.sum.TLVs[0].Other, 1, "%d answers differ from what is known")
	check.Equal(t, uint64(s.before.number)<<32|s.before.at, 5<<32|7, "the reply before has number and time %#x")
}

// What a reflector says about the probe's DSCP and ECN, and about its previous reply, is compared with what is known.
func TestCompareAnswers(t *testing.T) {
	s := newState(t)
	s.tos = 46<<2 | 1
	for _, c := range []struct {
		value          []byte
		other, reverse int64
	}{
		{[]byte{0, 46<<2&0xff | 0}, 1, 0},
		{[]byte{46 >> 6, 0}, 1, 0},
		{[]byte{2, (46<<2 | 1) << 2 & 0xfc}, 0, 0}, // DSCP1's last bits, DSCP2 and ECN
		{[]byte{2, (46<<2|1)<<2&0xfc | 1}, 0, 1},
		{[]byte{3, (46<<2 | 1) << 2 & 0xfc}, 1, 0},
	} {
		a := TLVAnswers{Type: probe.ClassOfService}
		s.compare(&a, c.value)
		if a.Other != c.other || a.Reverse != c.reverse {
			t.Errorf("% x: %d other, %d reverse; want %d and %d", c.value, a.Other, a.Reverse, c.other, c.reverse)
		}
	}
	s.before.number, s.before.at = 7, 99
	for _, c := range []struct {
		number uint32
		at     uint64
		other  int64
	}{{7, 99, 0}, {7, 98, 1}, {6, 98, 0}} {
		a := TLVAnswers{Type: probe.FollowUp}
		s.compare(&a, binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(nil, c.number), c.at))
		check.Equal(t, a.Other, c.other, "%d answers differ")
	}
}

func TestUnixNS(t *testing.T) {
	check.Equal(t, unixNS(5<<32|7, true), 5_000_000_007, "PTP: %d")
	check.Equal(t, unixNS((ntpEra+5)<<32|1<<31, false), 5_500_000_000, "NTP: %d")
	for at, want := range map[time.Duration]int64{0: 0, time.Second - 1: 999_999_998, time.Second: 1e9} { // rounds down
		check.Equal(t, unixNS(NTP(time.Unix(0, int64(at))), false), want, "%d")
	}
}

// The wait before T2 is from the Host Timing TLV, if that is complete, trusted and has the loop's time.
func TestHostTiming(t *testing.T) {
	const second = 1 << 32
	value := func(flags byte, ahead uint16, looked uint64) []byte {
		v := make([]byte, fastpath.TimingLength)
		v[4] = flags
		binary.BigEndian.PutUint16(v[6:], ahead)
		binary.BigEndian.PutUint64(v[8:], looked)
		return v
	}
	good := value(fastpath.TimingLoop, 3, 9*second)
	for what, c := range map[string]struct {
		answer    probe.Answer
		untrusted bool
		rtt       int64
		want      Far
	}{
		"complete": {answer: probe.Answer{Type: probe.HostTiming, Value: good}, rtt: 2e9,
			want: Far{Residence: 5e8, Wait: 1e9, Ahead: 3}},
		"untrusted":        {probe.Answer{Type: probe.HostTiming, Value: good}, true, 2e9, Far{Residence: 5e8, Wait: -1, Ahead: -1}},
		"another TLV":      {probe.Answer{Type: probe.Location, Value: good}, false, 2e9, Far{Residence: 5e8, Wait: -1, Ahead: -1}},
		"flagged":          {probe.Answer{Type: probe.HostTiming, Value: good, Flags: probe.Malformed}, false, 2e9, Far{Residence: 5e8, Wait: -1, Ahead: -1}},
		"short":            {probe.Answer{Type: probe.HostTiming, Value: good[1:]}, false, 2e9, Far{Residence: 5e8, Wait: -1, Ahead: -1}},
		"no loop":          {probe.Answer{Type: probe.HostTiming, Value: value(0, 3, 9*second)}, false, 2e9, Far{Residence: 5e8, Wait: -1, Ahead: -1}},
		"later":            {probe.Answer{Type: probe.HostTiming, Value: value(fastpath.TimingLoop, 3, 11*second)}, false, 2e9, Far{Residence: 5e8, Wait: -1, Ahead: -1}},
		"at once":          {probe.Answer{Type: probe.HostTiming, Value: value(fastpath.TimingLoop, 0, 10*second)}, false, 2e9, Far{Residence: 5e8}},
		"as long":          {probe.Answer{Type: probe.HostTiming, Value: good}, false, 5e8, Far{Residence: 5e8, Wait: 1e9, Ahead: 3}},
		"held up, at once": {probe.Answer{Type: probe.HostTiming, Value: value(fastpath.TimingLoop, 0, 10*second)}, false, 4e8, Far{Wait: 5e8}},
		"held up long":     {probe.Answer{Type: probe.HostTiming, Value: good}, false, 4e8, Far{Wait: 15e8, Ahead: 3}},
	} {
		r := &probe.Stamped{T2: 10 * second, T3: 10*second + second/2, Untrusted: c.untrusted,
			Answers: []probe.Answer{c.answer}}
		got := FarOf(r, c.rtt)
		check.Equal(t, got.Residence, c.want.Residence, what+": residence %d")
		check.Equal(t, got.Wait, c.want.Wait, what+": wait %d")
		if c.want.Wait >= 0 {
			check.Equal(t, got.Ahead, c.want.Ahead, what+": %d ahead")
		}
		seen := unixNS(r.T2, false)
		if strings.HasPrefix(what, "held up") {
			seen = unixNS(r.T3, false)
		}
		check.Equal(t, got.Seen, seen, what+": seen at %d")
	}
	none := FarOf(&probe.Stamped{T2: 10 * second, T3: 10 * second}, 5e9)
	check.Equal(t, none.Residence, 0, "T3 at T2: residence %d")
	back := FarOf(&probe.Stamped{T2: 10 * second, T3: 9 * second}, 5e9)
	check.Equal(t, back, unknownFar, "T3 before T2: %+v")
}

// A reply that is rejected counts by its first wrong field, by what it seemed to answer, and in the warm-up apart.
func TestRejectCounts(t *testing.T) {
	s, _ := stream(t, &fake{}, 0, time.Second, nil)
	w := s.window
	w.send(1, 1, 0, false) // 0: in the warm-up
	w.send(2, 2, 0, true)  // 1
	s.reply.HasSeq = true
	for _, c := range []struct {
		seq      uint32
		wrong    probe.Field
		measured bool
		spoiled  int64 // of the probes so far
		warmup   int64 // in all
		alone    int64 // matching no probe, in all
	}{
		{1, probe.Payload, false, 1, 0, 0}, // in the warm-up, of a measured probe
		{0, probe.Payload, true, 1, 1, 0},  // measured, of a probe of the warm-up
		{9, probe.Payload, true, 1, 1, 1},
		{9, probe.Payload, false, 1, 2, 1},
		{1, probe.RunTag, true, 1, 2, 2}, // another run's number
		{1, probe.RunTag, false, 1, 3, 2},
	} {
		s.measured, s.reply.Seq = c.measured, c.seq
		s.reject(c.wrong)
		if w.counts.Spoiled != c.spoiled || w.counts.CorruptInWarmup != c.warmup || s.Unmatched != c.alone {
			t.Errorf("%+v: %d spoiled, %d in the warm-up, %d unmatched", c, w.counts.Spoiled, w.counts.CorruptInWarmup,
				s.Unmatched)
		}
	}
	check.Equal(t, w.counts.Corrupt, 6, "%d rejected")
	check.Equal(t, s.Fields[probe.Payload], 4, "%d by payload")
	check.Equal(t, s.Fields[probe.RunTag], 2, "%d by run")
	var sum int64
	for _, n := range s.Rejected {
		sum += n
	}
	check.Equal(t, sum, 3, "%d measured")
}

// Discard takes all frames that wait, and the probes of a Run that follows do not count them as foreign.
func TestDiscardTakesAll(t *testing.T) {
	f := &fake{}
	s, _ := stream(t, f, 0, time.Second, nil)
	for range 5 {
		f.reply([]byte{1}, 0)
		f.reply([]byte("not ours"), 0)
	}
	must.OK(t, s.Discard())
	check.Equal(t, len(f.queue), 0, "%d frames are left")
	check.Equal(t, s.Counts().Foreign, 0, "%d are foreign")
}

// If no reply has ever come, the time without one begins with the first probe that is overdue.
func TestUnansweredFromTheStart(t *testing.T) {
	f, asked := &fake{}, 0
	s, _ := stream(t, f, 0, time.Hour, func(o *Options) {
		o.Unanswered = func(bool) []byte {
			asked++
			return []byte{1}
		}
	})
	must.OK(t, s.unanswered())
	check.Equal(t, s.heard > 0, true, "the time is kept: %t")
	check.Equal(t, asked, 0, "%d requests")
	s.heard -= 2 * testClock.Ticks(time.Hour)
	must.OK(t, s.unanswered())
	check.Equal(t, asked, 1, "%d requests an hour later")
}

// A sample is everything while there is room, and then a part of everything with the same probability.
func TestSampleIsUniform(t *testing.T) {
	s := sample{kept: make([]Slow, 0, 100), dice: 1}
	for i := range 100 {
		check.Equal(t, s.place(), i+1, "place %d")
	}
	sum, n := 0.0, 0
	for round := range uint64(50) {
		s = sample{kept: s.kept[:0], dice: 1 + round}
		for i := range uint64(1000) {
			if at := s.place(); at > 0 {
				s.kept[at-1] = Slow{Sent: i}
			}
		}
		check.Equal(t, len(s.kept), 100, "%d are kept")
		for _, k := range s.kept {
			sum += float64(k.Sent)
			n++
		}
	}
	if mean := sum / float64(n); mean < 470 || mean > 530 { // 7 standard deviations
		t.Errorf("the mean of the sample is %v, want about 500", mean)
	}
}

// A reply of another length is rejected, and its length is kept for the warning.
func TestLengthOfARejectedReply(t *testing.T) {
	f := &fake{}
	length := 0
	f.onSend = func(_ int, b []byte) {
		length = len(b)
		f.reply(append(slices.Clone(b), 0), 0)
	}
	s, _ := stream(t, f, 0, time.Millisecond, nil)
	must.OK(t, s.Run(Limit{Count: 1}, new(atomic.Bool)))
	check.Equal(t, s.Fields[probe.Length], 1, "%d replies of another length")
	check.Equal(t, s.Payload, length+1, "%d bytes")
}
