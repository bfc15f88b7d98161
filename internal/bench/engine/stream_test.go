package engine

import (
	"bytes"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/polling"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

func TestFarStall(t *testing.T) {
	f := &fake{}
	var until uint64
	f.onSend = func(n int, b []byte) {
		if n == 50 {
			until = polling.TSC() + testClock.Ticks(20*time.Millisecond)
		}
		f.reply(b, until)
	}
	s, rec := stream(t, f, 10000, 20*time.Second, nil)
	must.OK(t, s.Run(Limit{Count: 400}, new(atomic.Bool)))
	get := series(rec)
	if a := get(latency.MainSeries).CountAbove(10_000_000); a < 99 {
		t.Errorf("corrected: %d above 10 ms", a)
	}
	if a := get(latency.UncorrectedSeries).CountAbove(19_500_000); a < 1 {
		t.Errorf("uncorrected: the first probe of the stall does not show it")
	}
}

// Probe 2 is lost, probe 5's reply comes after its timeout while probe 6 waits, probe 8 is answered twice, probe 9 only
// by a corrupt reply, probe 10 by a corrupt and a good one.
func TestClosedLoop(t *testing.T) {
	needs.Long(t)
	f := &fake{}
	var held []byte
	f.onSend = func(n int, b []byte) {
		switch n {
		case 2:
			return
		case 5:
			held = bytes.Clone(b)
			return
		case 6:
			f.reply(held, 0)
		case 8:
			f.reply(b, 0)
		case 9, 10:
			bad := bytes.Clone(b)
			bad[len(bad)-1] ^= 1
			f.reply(bad, 0)
			if n == 9 {
				return
			}
		}
		f.reply(b, 0)
	}
	// the test waits three times this long, and no machine delays a thread for so long
	s, rec := stream(t, f, 0, time.Second, nil)
	must.OK(t, s.Run(Limit{Count: 20}, new(atomic.Bool)))
	want := Counts{Sent: 20, Received: 17, Late: 1, Spoiled: 1, Duplicates: 1, Corrupt: 2}
	if c := s.Counts(); c != want || c.Unanswered() != 1 {
		t.Errorf("%+v lost %d, want %+v lost 1", c, c.Unanswered(), want)
	}
	h := series(rec)(latency.MainSeries)
	if h.Count != 18 || h.CountAbove(999_000_000) != 1 {
		t.Errorf("%d recorded, %d beyond the time-out: a late reply belongs into the histogram", h.Count,
			h.CountAbove(999_000_000))
	}
	if s.Fields[probe.Payload] != 2 {
		t.Errorf("fields %v", s.Fields)
	}
}

func TestRingFull(t *testing.T) {
	f := &fake{fail: func(n int) error {
		if n < 3 {
			return nic.ErrFull
		}
		return nil
	}}
	s, _ := stream(t, f, 0, 20*time.Second, nil)
	must.OK(t, s.Run(Limit{Count: 5}, new(atomic.Bool)))
	if c := s.Counts(); c.Sent != 5 || c.Received != 5 || s.Full != 3 {
		t.Errorf("%+v, full %d", c, s.Full)
	}
	f.fail = func(int) error { return nic.ErrFull }
	s, _ = stream(t, f, 0, 5*time.Millisecond, nil)
	err := s.Run(Limit{Count: 5}, new(atomic.Bool))
	check.Fails(t, "a ring that stays full", err, ErrSend)
	check.Fails(t, "a ring that stays full", err, nic.ErrFull)
	if c := s.Counts(); c.Sent != 1 || c.Unsent != 1 || c.Unanswered() != 0 {
		t.Errorf("%+v", c)
	}
}

// A probe that the port refuses was not sent, in a warm-up or not: it does not count as unanswered.
func TestRefusedByThePort(t *testing.T) {
	for _, warmup := range []time.Duration{0, time.Hour} {
		bad := errors.New("no route")
		s, _ := stream(t, &fake{fail: failsAt(3, bad)}, 0, 20*time.Second, nil)
		check.Fails(t, "Run", s.Run(Limit{Count: 5, Warmup: warmup}, new(atomic.Bool)), bad)
		want := Counts{Sent: 4, Received: 3, Unsent: 1}
		if warmup > 0 {
			want = Counts{}
		}
		if c := s.Counts(); c != want || c.Unanswered() != 0 {
			t.Errorf("warm-up %v: %+v, want %+v", warmup, c, want)
		}
	}
}

// A sender that cannot reach the rate gives up after -do-late, instead of sending everything late.
func TestTooLate(t *testing.T) {
	f := &fake{onSend: func(int, []byte) { spin(20 * time.Microsecond) }}
	s, _ := stream(t, f, 1e6, time.Millisecond, nil)
	must.OK(t, s.Run(Limit{Count: 100_000, Behind: time.Millisecond}, new(atomic.Bool)))
	if c := s.Counts(); c.Sent > 1000 || testClock.Nanoseconds(s.Behind) < 1_000_000 {
		t.Errorf("%d sent, %d ns behind", c.Sent, testClock.Nanoseconds(s.Behind))
	}
}

// Gaps during the warm-up say nothing about the round trips, and of one that lasts beyond it only the rest counts. The
// gap here is far longer than a busy machine delays a few probes.
func TestGapOfTheMeasuredPart(t *testing.T) {
	needs.Long(t)
	for _, c := range []struct {
		rate        float64
		warmup      time.Duration
		send        bool // the first probe's Send takes so long, not the Recv after it
		least, most time.Duration
	}{
		{0, heldFor + 5*time.Millisecond, false, 0, heldFor * 3 / 4},
		{0, heldFor / 2, false, 0, heldFor * 3 / 4},
		{2 / heldFor.Seconds(), heldFor / 4, true, heldFor / 4, heldFor * 3 / 4},
	} {
		f := &fake{}
		slow := false
		f.onSend = func(n int, b []byte) {
			if slow = n == 0 && !c.send; n == 0 && c.send {
				spin(heldFor)
			}
			f.reply(b, 0)
		}
		s, _ := stream(t, f, c.rate, 20*time.Second, func(o *Options) { o.Port = held{f, &slow} })
		must.OK(t, s.Run(Limit{Warmup: c.warmup, Count: 1}, new(atomic.Bool)))
		top := s.Gap.Load(new([polling.Buckets]uint64))
		if top < testClock.Ticks(c.least) || top >= testClock.Ticks(c.most) {
			t.Errorf("%+v: the longest gap is of %v", c, time.Duration(testClock.Nanoseconds(top)))
		}
	}
}

const heldFor = 400 * time.Millisecond

// held is a port whose Recv takes heldFor if slow is set.
type held struct {
	*fake
	slow *bool
}

func (h held) Recv(buf []byte) (int, int64, error) {
	if *h.slow {
		*h.slow = false
		spin(heldFor)
	}
	return h.fake.Recv(buf)
}

func TestWarmupStaysOut(t *testing.T) {
	for _, rate := range []float64{0, 10000} {
		f := &fake{}
		s, rec := stream(t, f, rate, 20*time.Second, nil)
		must.OK(t, s.Run(Limit{Warmup: 100 * time.Millisecond, Count: 30}, new(atomic.Bool)))
		n := series(rec)(latency.MainSeries).Count
		if c := s.Counts(); n != 30 || c.Sent != 30 || s.Warmup == 0 || int64(f.sent) != 30+s.Warmup {
			t.Errorf("rate %v: %d recorded, %d sent, warm-up %d, %+v", rate, n, f.sent, s.Warmup, c)
		}
	}
}

// Frames that are not replies go to Answer, and its result is sent, before, in and after a run.
func TestQuestionsAreAnswered(t *testing.T) {
	f := &fake{}
	question := make([]byte, 60)
	answers := 0
	f.onSend = func(n int, b []byte) {
		if string(b) == "answer" {
			answers++
			return
		}
		f.reply(question, 0)
		f.reply(b, 0)
	}
	f.reply(question, 0)
	s, _ := stream(t, f, 0, 20*time.Second, func(o *Options) {
		o.Codec = codec(t, func(f *probe.Flow) { f.Layer = probe.Frame })
		o.Answer = answerTo(question)
	})
	must.OK(t, s.Run(Limit{Count: 3}, new(atomic.Bool)))
	check.Equal(t, answers, 4, "%d answers")
}

func answerTo(question []byte) func([]byte) []byte {
	return func(b []byte) []byte {
		if !bytes.Equal(b, question) {
			return nil
		}
		return []byte("answer")
	}
}

// Gap includes every delay of the bench itself: while it polls for a reply, while it sends, and in between.
func TestEveryStallIsRecorded(t *testing.T) {
	needs.Long(t)
	const stall = 30 * time.Millisecond
	for _, rate := range []float64{0, 1000, 100000} {
		for _, where := range []string{"send", "receive"} {
			f := &fake{}
			f.onSend = func(n int, b []byte) {
				if where == "send" && n%20 == 10 {
					spin(stall)
				}
				f.reply(b, polling.TSC()+testClock.Ticks(20*time.Microsecond))
			}
			if where == "receive" {
				next := 10
				f.onRecv = func(int) {
					if f.sent >= next { // in the open loop the next probe is due when the gap ends
						next += 20
						spin(stall)
					}
				}
			}
			s, _ := stream(t, f, rate, 20*time.Second, nil)
			must.OK(t, s.Run(Limit{Count: 100}, new(atomic.Bool)))
			if n := latency.FromHot(&s.Gap, testClock).CountAbove(int64(stall) * 95 / 100); n < 4 {
				t.Errorf("rate %v, %s: %d of 5 stalls are recorded", rate, where, n)
			}
		}
	}
}

// The pause between two runs does not count as a gap: Discard, which polls the ring after it, records none.
func TestPauseBetweenRunsIsNoGap(t *testing.T) {
	s, _ := stream(t, &fake{}, 0, 20*time.Second, nil)
	must.OK(t, s.Run(Limit{Count: 3}, new(atomic.Bool)))
	var before, after [polling.Buckets]uint64
	s.Gap.Load(&before)
	must.OK(t, s.Discard())
	if s.Gap.Load(&after); before != after {
		t.Error("Discard recorded the pause since the run as a gap")
	}
}

// A sender that cannot reach its rate ends early with an error that has both rates. One that was not running for a
// while catches up.
func TestBehind(t *testing.T) {
	needs.Long(t)
	f := &fake{}
	f.onSend = func(_ int, b []byte) { spin(20 * time.Microsecond); f.reply(b, 0) }
	s, _ := stream(t, f, 1e6, 20*time.Second, nil)
	err := s.Run(Limit{Count: 1e6}, new(atomic.Bool)) // it would take 20 s
	check.Fails(t, "a rate that is too high", err, ErrBehind)
	check.Contains(t, err.Error(), "1,000,000 probes a second were requested, ", " achieved in ", "lower -rate")
	if c := s.Counts(); c.Sent == 0 || c.Sent > 500_000 || c.Unanswered() != 0 || c.Abandoned != 0 {
		t.Errorf("%+v", c)
	}
}

func TestBacklog(t *testing.T) {
	for _, c := range []struct {
		name string
		late []uint64 // at each tick from 0
		want bool
	}{
		{"in time", []uint64{0, 5, 10, 0, 10}, false},
		{"stopped once, and back in time", []uint64{0, 40, 35, 30, 15, 5, 0}, false},
		{"late for too short a time", []uint64{12, 13, 14, 15, 16}, false},
		{"ever later", []uint64{11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24}, true},
		{"late, and no better", []uint64{11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11, 11}, true},
	} {
		b, got := backlog{limit: 10}, false
		for now, late := range c.late {
			got = got || b.grows(uint64(now), late)
		}
		check.Equal(t, got, c.want, c.name+": %t")
	}
}

// Each stream draws its own sample.
func TestSamplesDiffer(t *testing.T) {
	seen := map[uint64]bool{0: true} // of which only zeros would follow
	for range 4 {
		s, _ := stream(t, nil, 0, time.Second, nil)
		check.Equal(t, seen[s.sample.dice], false, "drawn again: %t")
		seen[s.sample.dice] = true
	}
}
