package engine

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/polling"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

// mirror is a reflector that takes 3 us and whose clock is ahead of this host's by offset.
type mirror struct {
	*fake
	stateful    bool
	count       uint32
	there, back []int // the sends, counted from 0, that are lost in each direction
	// those that are duplicated; the reply to a copy is lost if its number plus 1000 is in back
	copyThere, copyBack []int
	offset              time.Duration
	ptp                 bool
	tai                 int64
	noTAI               bool   // this host does not know it
	zero                bool   // it zeroes the SSID
	estimate, sees      uint16 // its own, and that in the latest probe
	ask                 []probe.Ask
	took                time.Duration // from T2 to T3 instead of 3 us
	looked              time.Duration // before T2, for the Host Timing TLV; 0 means that it is not answered
}

func (m *mirror) send(n int, b []byte) {
	if slices.Contains(m.there, n) {
		return
	}
	m.reflect(n, b)
	if slices.Contains(m.copyThere, n) {
		m.reflect(n+1000, b)
	}
}

func (m *mirror) reflect(n int, b []byte) {
	r := slices.Clone(b)
	m.sees = be.Uint16(b[12:])
	if m.stateful {
		binary.BigEndian.PutUint32(r, m.count)
		m.count++
	}
	if slices.Contains(m.back, n) {
		return
	}
	t2 := time.Now().Add(m.offset)
	t3 := t2.Add(3 * time.Microsecond)
	stamp := func(to []byte, t time.Time) {
		if m.ptp {
			binary.BigEndian.PutUint64(to, uint64(uint32(t.Unix()+m.tai))<<32|uint64(t.Nanosecond()))
		} else {
			binary.BigEndian.PutUint64(to, NTP(t))
		}
	}
	if m.took != 0 {
		t2 = t3.Add(-m.took)
	}
	if tlv := r[44:]; m.looked != 0 {
		tlv[0], tlv[8] = 0, fastpath.TimingLoop
		binary.BigEndian.PutUint16(tlv[10:], 7) // packets ahead
		stamp(tlv[12:], t2.Add(-m.looked))
	}
	stamp(r[16:], t2)
	stamp(r[4:], t3)
	binary.BigEndian.PutUint16(r[12:], m.estimate)
	if m.zero {
		r[14], r[15] = 0, 0
	}
	copy(r[24:38], b[:14])
	r[40] = 62
	m.reply(r, polling.TSC()+testClock.Ticks(100*time.Microsecond))
	if slices.Contains(m.copyBack, n) {
		m.reply(r, polling.TSC()+testClock.Ticks(100*time.Microsecond))
	}
}

// run sends count probes in each of some runs, which end with an error.
func (m *mirror) run(t *testing.T, count int64, runs int, ends error) (*Stream, *latency.Recorder) {
	t.Helper()
	m.fake = &fake{onSend: m.send}
	m.estimate = max(m.estimate, 0x8000|20<<8|9)
	// longer than a busy machine delays a thread
	s, rec := stream(t, m.fake, 0, 400*time.Millisecond, func(o *Options) {
		test := probe.TestPacket{SSID: 7, Ask: m.ask}
		o.Codec = codec(t, func(f *probe.Flow) {
			f.Proto, f.DstPort, f.Size, f.Test = probe.STAMP, 862, 86+test.Extra(),
				test
		})
		o.StopAtZero = m.zero
	})
	if s.stamp.tai = m.tai; m.noTAI {
		s.stamp.tai = 0
	}
	for range runs {
		if err := s.Run(Limit{Count: count}, new(atomic.Bool)); !errors.Is(err, ends) {
			t.Fatalf("%v, want %v", err, ends)
		}
	}
	return s, rec
}

// losses are cases of probes and replies that are lost or duplicated.
var losses = []struct {
	name                string
	there, back         []int
	copyThere, copyBack []int
	stateless           bool
	runs                int
	wantThere, wantBack int64
	lost                int64
}{
	{name: "both", there: []int{4, 5}, back: []int{8}, runs: 1, wantThere: 2, wantBack: 1, lost: 3},
	{name: "back alone", back: []int{3, 4, 8}, runs: 1, wantBack: 3, lost: 3},
	{name: "there alone", there: []int{3}, runs: 1, wantThere: 1, lost: 1},
	{name: "nothing", runs: 1},
	{name: "at the ends", there: []int{0, 11}, back: []int{10}, runs: 1, lost: 3},
	{name: "two runs", there: []int{4, 13}, back: []int{15, 23}, runs: 2, wantThere: 2, wantBack: 1, lost: 4},
	{name: "there, and copies there", there: []int{4, 5}, copyThere: []int{2, 7}, runs: 1, wantThere: 2, lost: 2},
	{name: "there, and copies back", there: []int{4, 5}, copyBack: []int{2, 7}, runs: 1, wantThere: 2, lost: 2},
	{name: "back, and copies back", back: []int{4, 5}, copyBack: []int{2, 7}, runs: 1, wantBack: 2, lost: 2},
	{name: "both, and copies back", there: []int{3}, back: []int{5}, copyBack: []int{2, 7}, runs: 1, wantThere: 1, wantBack: 1, lost: 2},
	{name: "there, and copies there of the last", there: []int{4}, copyThere: []int{11}, runs: 1, wantThere: 1, lost: 1},
	{name: "there, and copies of the last of the run before", there: []int{16}, copyThere: []int{11}, runs: 2, wantThere: 1, lost: 1},
	{name: "there, and copies both ways", there: []int{4}, copyThere: []int{2}, copyBack: []int{2, 1002, 8}, runs: 1, wantThere: 1, lost: 1},
	{name: "back, and copies there: either way", back: []int{4}, copyThere: []int{2, 7}, runs: 1, lost: 1}, // two copies of 12 seen, one reply lost: it may be of a copy
	{name: "back, and a copy whose reply is lost", back: []int{1007}, there: []int{4}, copyThere: []int{2, 7}, runs: 1, lost: 1},
	{name: "back, after a run with copies there", back: []int{16}, copyThere: []int{2, 7}, runs: 2, wantBack: 1, lost: 1},
	{name: "back, and copies there of the last: either way", back: []int{4}, copyThere: []int{11}, runs: 1, lost: 1},
	{name: "stateless", there: []int{4, 5}, back: []int{8}, stateless: true, runs: 1, lost: 3},
}

// Probes 4 and 5 are lost on the way there, probe 8 on the way back. For losses before the first reply of a run, or
// after the last, the direction is unknown. A stateful reflector is recognised even if nothing is lost on the way
// there.
func TestLossEachWay(t *testing.T) {
	needs.Long(t)
	for _, c := range losses {
		t.Run(c.name, func(t *testing.T) {
			m := &mirror{stateful: !c.stateless, there: c.there, back: c.back, copyThere: c.copyThere,
				copyBack: c.copyBack}
			s, _ := m.run(t, 12, c.runs, nil)
			n, got := s.Counts(), s.STAMP()
			if n.Unanswered() != c.lost || n.Corrupt != 0 || n.Duplicates != 0 && c.copyThere == nil &&
				c.copyBack == nil || n.Stray != 0 {
				t.Errorf("%+v %v, want %d lost", n, s.Fields, c.lost)
			}
			if got.Stateful == c.stateless || got.LostThere != c.wantThere || got.LostBack != c.wantBack {
				t.Errorf("stateful %t, lost %d there and %d back, want %d and %d", got.Stateful, got.LostThere,
					got.LostBack, c.wantThere, c.wantBack)
			}
		})
	}
}

func TestResidence(t *testing.T) {
	m := &mirror{}
	s, rec := m.run(t, 12, 1, nil)
	check.Equal(t, m.sees, s.stamp.estimate, "a probe states an error of %#x")
	get := series(rec)
	if h := get(latency.ResidenceSeries); h.Count != 12 || h.Min < 2999 || h.Max > 3000 {
		t.Errorf("residence %d, %d to %d ns", h.Count, h.Min, h.Max)
	}
	rtt, network := get(latency.MainSeries), get(networkSeries)
	if d := rtt.Sum - network.Sum; d < 12*3000-24 || d > 12*3000+24 {
		t.Errorf("round trips and network differ by %v ns", d)
	}
	if got := s.STAMP(); !got.Synchronised || math.Abs(got.WorstError-estimateNS(20<<8|9)) > 1 || got.TTL != 62 ||
		got.ZeroSSID {
		t.Errorf("%+v", got)
	}
}

// One-way delays are computed from the two clocks: if the reflector's is an hour ahead, the delay to it is an hour too
// long, and the delay back is negative, which counts as 0 and is reported.
func TestOneWay(t *testing.T) {
	const hour = int64(time.Hour)
	for name, m := range map[string]*mirror{
		"NTP": {offset: time.Hour}, "PTP": {offset: time.Hour, ptp: true, tai: 37, estimate: 0xc000 | 20<<8 | 9},
	} {
		s, rec := m.run(t, 50, 1, nil)
		get := series(rec)
		there, back, rtt := get(latency.ThereSeries), get(latency.BackSeries), get(latency.MainSeries)
		if there.Count != 50 || there.Min < hour-1000 || there.Max > hour+rtt.Max+1000 {
			t.Errorf("%s: there %d, %d to %d ns", name, there.Count, there.Min, there.Max)
		}
		if got := s.STAMP(); back.Count != 50 || back.Max != 0 || got.NegativeBack != 50 || got.NegativeThere != 0 ||
			got.PTP != m.ptp {
			t.Errorf("%s: back %d, up to %d ns, %+v", name, back.Count, back.Max, got)
		}
	}
	s, rec := (&mirror{ptp: true, tai: 37, noTAI: true, estimate: 0xc000 | 20<<8 | 9}).run(t, 5, 1, nil)
	if !s.STAMP().NoTAI || series(rec)(latency.ThereSeries).Count != 0 {
		t.Errorf("PTP's times, and no TAI here: %+v", s.STAMP())
	}
}

// A responder's loop that was interrupted after T2, and before it looked at its queue, reports more time from T2 to T3
// than the round trip took. All of it bounds how long the probe waited for the loop; it is no residence. With T3 before
// T2 nothing is known.
func TestInterruptedAfterT2(t *testing.T) {
	const hour, ms = int64(time.Hour), int64(time.Millisecond)
	for name, c := range map[string]struct {
		mirror
		want Far
	}{
		"interrupted":              {mirror{took: time.Hour, looked: 5 * time.Millisecond, ask: []probe.Ask{probe.AskTiming()}}, Far{Wait: hour + 5*ms, Ahead: 7}},
		"and the loop is not told": {mirror{took: time.Hour}, Far{Wait: -1}},
		"T3 before T2":             {mirror{took: -time.Hour, looked: 5 * time.Millisecond, ask: []probe.Ask{probe.AskTiming()}}, unknownFar},
		"usual":                    {mirror{looked: 5 * time.Millisecond, ask: []probe.Ask{probe.AskTiming()}}, Far{Residence: 3000, Wait: 5 * ms, Ahead: 7}},
	} {
		s, rec := c.run(t, 5, 1, nil)
		impossible := int64(5)
		if name == "usual" {
			impossible = 0
		}
		if n := series(rec)(latency.ResidenceSeries).Count; n != 5-impossible || s.STAMP().Impossible != impossible {
			t.Errorf("%s: %d residence times, %+v", name, n, s.STAMP())
		}
		for _, k := range s.Slowest() {
			got := k.Far
			if known := got.Seen != 0; known != (c.want != unknownFar) {
				t.Errorf("%s: T2 %d", name, got.Seen)
			}
			got.Seen, got.There, got.Back = 0, 0, 0
			near := func(a, b int64) bool { return a-b <= 2 && b-a <= 2 } // the format's rounding
			if !near(got.Residence, c.want.Residence) || !near(got.Wait, c.want.Wait) || got.Ahead != c.want.Ahead {
				t.Errorf("%s: %+v, want %+v", name, got, c.want)
			}
		}
		check.Equal(t, len(s.Slowest()), 5, "%d slowest")
	}
}

// The reflector was interrupted between T2 and its look at the queue: the way there and the wait end at T3, and the way
// back is known.
func TestOneWayOfStaleT2(t *testing.T) {
	began := time.Now().UnixNano()
	s, _ := (&mirror{took: time.Hour}).run(t, 12, 1, nil)
	for _, k := range s.Slowest() {
		rtt := testClock.Between(k.Sent, k.Seen)
		// the mirror's replies take 100 µs
		if off := k.Far.There + k.Far.Back - rtt; off < -2000 || off > 2000 || k.Far.Back < 50_000 {
			t.Errorf("there %d, back %d of %d ns", k.Far.There, k.Far.Back, rtt)
		}
		if k.Far.Seen < began {
			t.Errorf("the wait ended %d ns before the probe was sent", began-k.Far.Seen)
		}
	}
}

func TestZeroSSID(t *testing.T) {
	s, _ := (&mirror{zero: true}).run(t, 5, 1, errZeroSSID)
	check.Equal(t, s.STAMP().ZeroSSID, true, "SSID zeroed: %t")
}

// A reflector without TLV support returns them unchanged, with flag U set: they do not count as answered.
func TestTLVsNotUnderstood(t *testing.T) {
	ask := must.Get(probe.ParseAsk("location"))(t)
	s, _ := (&mirror{ask: []probe.Ask{ask}}).run(t, 5, 1, nil)
	if got := s.STAMP().TLVs; len(got) != 1 || got[0].Unrecognized != 5 || got[0].Answered != 0 ||
		s.Counts().Received != 5 {
		t.Errorf("%+v, %+v", got, s.Counts())
	}
}

// At 3 % of loss and duplicates in each direction, of a million probes, the losses of each direction are known to 1 %.
func TestHiddenCopies(t *testing.T) {
	for _, c := range []struct{ seen, lost, all, least, most int64 }{
		{0, 30_000, 1_000_000, 0, 0}, {30_000, 0, 1_000_000, 0, 0}, {1, 100, 1_000_000, 1, 1}, {28_000, 30_000, 1_000_000, 1802, 1804}, {5, 2, 10, 2, 2},
	} {
		if n := hiddenCopies(c.seen, c.lost, c.all); n < c.least || n > c.most {
			t.Errorf("%+v: %d", c, n)
		}
	}
}
