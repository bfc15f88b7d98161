package engine

import (
	"errors"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/polling"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// An open loop sends what is due in the warm-up and in the run, without what is due when they end. A closed loop
// measures for the whole time. Counts are those of one run.
func TestLimits(t *testing.T) {
	const part, due = 20 * time.Millisecond, 128
	for _, rate := range []float64{0, due / part.Seconds()} {
		s, rec := stream(t, &fake{}, rate, 20*time.Second, nil)
		if rate > 0 {
			s.period = float64(testClock.Ticks(part)) / due // a clock's frequency is no round number
		}
		must.OK(t, s.Run(Limit{Warmup: part, Duration: part}, new(atomic.Bool)))
		c, run := s.Counts(), rec.Recording().Runs[0]
		if rate > 0 && (c.Sent != due || s.Warmup != due) {
			t.Errorf("%d sent after a warm-up of %d", c.Sent, s.Warmup)
		}
		if run.End-run.Start < part.Nanoseconds() && rate == 0 {
			t.Errorf("a run of %d ns", run.End-run.Start)
		}
		before := c.Sent
		must.OK(t, s.Run(Limit{Count: 5}, new(atomic.Bool)))
		check.Equal(t, s.Counts().Sent, before+5, "%d sent in both runs")
	}
	slow, rec := stream(t, &fake{}, 0.5, 20*time.Second, nil)
	must.OK(t, slow.Run(Limit{Count: 1}, new(atomic.Bool)))
	check.Equal(t, series(rec)(latency.LagSeries).Count, 1, "%d times of one probe in two seconds")
	check.Equal(t, slow.Behind, 0, "%d ticks behind two seconds before the next probe is due")
	late, _ := stream(t, &fake{onSend: func(int, []byte) { spin(2 * time.Millisecond) }}, 1000, time.Millisecond, nil)
	must.OK(t, late.Run(Limit{Count: 1}, new(atomic.Bool)))
	if late.Behind < testClock.Ticks(time.Millisecond)-2 {
		t.Errorf("%d ticks behind", late.Behind)
	}
	for _, rate := range []float64{-1, math.NaN(), math.Inf(1), math.Inf(-1)} {
		o := Options{Port: &fake{}, Codec: codec(t, func(*probe.Flow) {}), Recorder: rec, Rate: rate}
		check.Fails(t, "a rate", check.Err(New(o)), nil, "want probes per second")
	}
}

// The counts for a progress bar are written when 50 ms have passed, and at the end.
func TestProgressIsShown(t *testing.T) {
	for _, rate := range []float64{0, 100_000} {
		const probes, stall = 2000, 500
		f := &fake{}
		var s *Stream
		times, shown := 0, int64(0)
		f.onSend = func(n int, b []byte) {
			if now := s.Progress.Sent.Load(); now != shown {
				times, shown = times+1, now
			}
			if n == stall {
				spin(60 * time.Millisecond)
			}
			if n == stall+1 {
				check.Equal(t, shown, stall+1, "%d are shown")
			}
			f.reply(b, 0)
		}
		s, _ = stream(t, f, rate, 20*time.Second, nil)
		must.OK(t, s.Run(Limit{Count: probes}, new(atomic.Bool)))
		if times > probes/4 {
			t.Errorf("rate %v: shown %d times", rate, times)
		}
		check.Equal(t, s.Progress.Sent.Load(), probes, "%d sent in the end")
		check.Equal(t, s.Progress.Received.Load(), probes, "%d received in the end")
	}
}

// refusing is a port that does not send some frames.
type refusing struct {
	*fake
	frame string
	err   error
}

func (r refusing) Send(b []byte) error {
	if string(b) == r.frame {
		return r.err
	}
	return r.fake.Send(b)
}

// A full ring delays an answer or a request for the next hop, which are repeated. Another error ends the run.
func TestFramesBesideProbes(t *testing.T) {
	for _, rate := range []float64{0, 10_000} {
		for _, err := range []error{nic.ErrFull, nic.ErrGone, nil} {
			for _, what := range []string{"answer", "request"} {
				f := &fake{}
				s, _ := stream(t, refusing{f, what, err}, rate, time.Millisecond, func(o *Options) {
					if what == "request" {
						o.Unanswered = func(bool) []byte { return []byte(what) }
						return
					}
					o.Codec = codec(t, func(f *probe.Flow) { f.Layer = probe.Frame })
					o.Answer = answerTo([]byte("question"))
				})
				f.onSend = func(int, []byte) {
					spin(100 * time.Microsecond) // together they take longer than the timeout
					if what == "answer" {
						f.reply([]byte("question"), 0)
					}
				}
				want := err
				if errors.Is(err, nic.ErrFull) {
					want = nil
				}
				if got := s.Run(Limit{Count: 50}, new(atomic.Bool)); !errors.Is(got, want) {
					t.Errorf("rate %v, %s, %v: %v", rate, what, err, got)
				}
				if want == nil {
					check.Equal(t, s.Counts().Sent, 50, what+": %d sent")
					check.Equal(t, s.Counts().Unsent, 0, what+": %d not sent")
				}
			}
		}
	}
}

// A probe that the driver refuses because of a full ring, and then for another reason, was not sent.
func TestFullAndThenRefused(t *testing.T) {
	f := &fake{fail: func(n int) error { return map[int]error{2: nic.ErrFull, 3: nic.ErrGone}[n] }}
	s, _ := stream(t, f, 0, 20*time.Second, nil)
	check.Fails(t, "Run", s.Run(Limit{Count: 5}, new(atomic.Bool)), nic.ErrGone)
	check.Equal(t, s.Counts(), Counts{Sent: 3, Received: 2, Unsent: 1}, "%+v")
	var stop atomic.Bool
	f = &fake{fail: func(n int) error { stop.Store(n == 9); return nic.ErrFull }}
	s, _ = stream(t, f, 0, time.Hour, nil)
	must.OK(t, s.Run(Limit{Count: 5}, &stop))
	check.Equal(t, s.Counts(), Counts{Sent: 1, Unsent: 1}, "%+v")
	check.Equal(t, s.Full, 10, "full %d times")
}

// A probe's time is that of its last attempt, and it left before the first poll after that.
func TestTimesOfAFullRing(t *testing.T) {
	var first, last uint64
	f := &fake{}
	f.fail = func(n int) error {
		if last = polling.TSC(); n > 3 {
			return nil
		}
		if first == 0 {
			first = last
		}
		spin(time.Millisecond)
		return nic.ErrFull
	}
	s, _ := stream(t, f, 0, 20*time.Second, nil)
	must.OK(t, s.Run(Limit{Count: 1}, new(atomic.Bool)))
	k := s.Slowest()[0]
	if k.Intended > first || k.Sent <= first || k.Sent > last || k.Left < last || k.Left > k.Seen {
		t.Errorf("attempts from %d to %d: %+v", first, last, k)
	}
}
