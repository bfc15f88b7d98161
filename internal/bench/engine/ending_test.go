package engine

import (
	"bytes"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/polling"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

func TestPortFails(t *testing.T) {
	for _, rate := range []float64{0, 10000} {
		s, rec := stream(t, &fake{fail: failsAt(10, nic.ErrGone)}, rate, 50*time.Millisecond, nil)
		check.Fails(t, "Run", s.Run(Limit{Count: 20}, new(atomic.Bool)), nic.ErrGone)
		if n := series(rec)(latency.MainSeries).Count; n < 9 {
			t.Errorf("rate %v: %d recorded", rate, n)
		}
	}
}

// Probes that are outstanding when the port fails are not lost: they are no longer in Sent.
func TestPortFailsWhileWaiting(t *testing.T) {
	f := &fake{fail: failsAt(10, nic.ErrGone)}
	f.onSend = func(n int, b []byte) {
		if n < 7 {
			f.reply(b, 0)
		}
	}
	s, _ := stream(t, f, 100000, time.Minute, nil)
	check.Fails(t, "Run", s.Run(Limit{Count: 20}, new(atomic.Bool)), nic.ErrGone)
	if c := s.Counts(); c.Unanswered() != 0 || c.Abandoned != 3 || c.Sent != 8 || c.Unsent != 1 {
		t.Errorf("%+v", c)
	}
}

// The bench is descheduled between its last poll of the ring and the end of the last probe's timeout. A reply that came
// meanwhile is late, not lost.
func TestAwayAtTheEnd(t *testing.T) {
	for _, rate := range []float64{0, 1000} {
		f := &fake{}
		f.onSend = func(n int, b []byte) { f.reply(b, polling.TSC()+testClock.Ticks(time.Millisecond)) }
		away := false
		f.onRecv = func(int) {
			if f.sent > 0 && !away {
				away = true
				spin(40 * time.Millisecond)
			}
		}
		s, rec := stream(t, f, rate, 20*time.Millisecond, nil)
		must.OK(t, s.Run(Limit{Count: 1}, new(atomic.Bool)))
		if c := s.Counts(); c.Unanswered() != 0 || c.Received+c.Late != 1 ||
			series(rec)(latency.MainSeries).Count != 1 {
			t.Errorf("rate %v: %+v, %d lost", rate, c, c.Unanswered())
		}
	}
}

// A stopped run ends at once. A probe whose reply could still come is neither sent nor lost.
func TestStop(t *testing.T) {
	needs.Long(t)
	for _, rate := range []float64{0, 100000} {
		for _, answered := range []bool{true, false} {
			f := &fake{}
			var stop atomic.Bool
			f.onSend = func(n int, b []byte) {
				if n < 100 || answered {
					f.reply(b, 0)
				}
				stop.Store(n == 100)
			}
			s, rec := stream(t, f, rate, time.Minute, nil)
			must.OK(t, s.Run(Limit{}, &stop))
			recorded := map[bool]int64{true: 101, false: 100}[answered]
			if c := s.Counts(); c.Unanswered() != 0 || c.Abandoned != 101-recorded || c.Sent != recorded ||
				c.Received != recorded ||
				series(rec)(latency.MainSeries).Count != recorded {
				t.Errorf("rate %v, the last probe is answered: %t: %+v", rate, answered, c)
			}
		}
	}
}

// Corrupt replies to probes of the warm-up are counted separately.
func TestCorruptInWarmup(t *testing.T) {
	for _, rate := range []float64{0, 1000} {
		f := &fake{}
		var s *Stream
		warm := int64(0)
		f.onSend = func(n int, b []byte) {
			if !s.measured {
				warm++
			}
			if !s.measured || n%2 == 0 {
				b = bytes.Clone(b)
				b[len(b)-1] ^= 4
			}
			f.reply(b, 0)
		}
		s, _ = stream(t, f, rate, 50*time.Millisecond, nil)
		must.OK(t, s.Run(Limit{Warmup: 5 * time.Millisecond, Count: 20}, new(atomic.Bool)))
		if c := s.Counts(); c.CorruptInWarmup != warm || c.Corrupt != warm+10 || c.Spoiled != 10 {
			t.Errorf("rate %v: %d replies of the warm-up were corrupt; %+v", rate, warm, c)
		}
	}
}
