package engine

import (
	"bytes"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/polling"
	"github.com/rebound-nic/rebound/proof/must"
)

func TestPortFails(t *testing.T) {
	for _, rate := range []float64{0, 10000} {
		f := &fake{}
		f.onSend = func(n int, b []byte) error {
			if n == 10 {
				return nic.ErrGone
			}
			f.reply(b, 0)
			return nil
		}
		s, rec := stream(t, f, rate, 50*time.Millisecond, nil)
		var stop atomic.Bool
		if err := s.Run(Limit{Count: 20}, &stop); !errors.Is(err, nic.ErrGone) {
			t.Errorf("rate %v: %v", rate, err)
		}
		if n := series(rec)(latency.MainSeries).Count; n < 9 {
			t.Errorf("rate %v: %d recorded", rate, n)
		}
	}
}

// Probes that are outstanding when the port fails are not lost: they are no longer in Sent.
func TestPortFailsWhileWaiting(t *testing.T) {
	f := &fake{}
	f.onSend = func(n int, b []byte) error {
		switch {
		case n == 10:
			return nic.ErrGone
		case n < 7:
			f.reply(b, 0)
		}
		return nil
	}
	s, _ := stream(t, f, 100000, time.Minute, nil)
	if err := s.Run(Limit{Count: 20}, new(atomic.Bool)); !errors.Is(err, nic.ErrGone) {
		t.Fatal(err)
	}
	if c := s.Counts(); c.Unanswered() != 0 || c.Abandoned != 3 || c.Sent != 8 || c.Unsent != 1 {
		t.Errorf("%+v", c)
	}
}

// The bench is descheduled between its last poll of the ring and the end of the last probe's timeout. A reply that came
// meanwhile is late, not lost.
func TestAwayAtTheEnd(t *testing.T) {
	for _, rate := range []float64{0, 1000} {
		f := &fake{}
		f.onSend = func(n int, b []byte) error {
			f.reply(b, polling.TSC()+testClock.Ticks(time.Millisecond))
			return nil
		}
		away := false
		f.onRecv = func(int) {
			if f.sent > 0 && !away {
				away = true
				spin(40 * time.Millisecond)
			}
		}
		s, rec := stream(t, f, rate, 20*time.Millisecond, nil)
		must.OK(t, s.Run(Limit{Count: 1}, new(atomic.Bool)))
		if c := s.Counts(); c.Unanswered() != 0 || c.Received+c.Late != 1 || series(rec)(latency.MainSeries).Count != 1 {
			t.Errorf("rate %v: %+v, %d lost", rate, c, c.Unanswered())
		}
	}
}

func TestStop(t *testing.T) {
	for _, rate := range []float64{0, 100000} {
		f := &fake{}
		var stop atomic.Bool
		f.onSend = func(n int, b []byte) error {
			if n == 100 {
				stop.Store(true)
			}
			f.reply(b, 0)
			return nil
		}
		s, rec := stream(t, f, rate, 20*time.Second, nil)
		must.OK(t, s.Run(Limit{}, &stop))
		if n := series(rec)(latency.MainSeries).Count; n != 101 || s.window.counts.Unanswered() != 0 {
			t.Errorf("rate %v: %d recorded, %+v", rate, n, s.Counts())
		}
	}
}

func TestStopWhileWaiting(t *testing.T) {
	for _, rate := range []float64{0, 100000} {
		f := &fake{}
		var stop atomic.Bool
		f.onSend = func(n int, b []byte) error {
			if n == 100 {
				stop.Store(true)
			} else {
				f.reply(b, 0)
			}
			return nil
		}
		s, _ := stream(t, f, rate, time.Minute, nil)
		must.OK(t, s.Run(Limit{}, &stop))
		if c := s.Counts(); c.Unanswered() != 0 || c.Abandoned != 1 || c.Received != c.Sent {
			t.Errorf("rate %v: %+v", rate, c)
		}
	}
}

// Corrupt replies to probes of the warm-up are counted separately.
func TestCorruptInWarmup(t *testing.T) {
	for _, rate := range []float64{0, 1000} {
		f := &fake{}
		var s *Stream
		warm := int64(0)
		f.onSend = func(n int, b []byte) error {
			if !s.measured {
				warm++
			}
			if !s.measured || n%2 == 0 {
				b = bytes.Clone(b)
				b[len(b)-1] ^= 4
			}
			f.reply(b, 0)
			return nil
		}
		s, _ = stream(t, f, rate, 50*time.Millisecond, nil)
		must.OK(t, s.Run(Limit{Warmup: 5 * time.Millisecond, Count: 20}, new(atomic.Bool)))
		if c := s.Counts(); c.CorruptInWarmup != warm || c.Corrupt != warm+10 || c.Spoiled != 10 {
			t.Errorf("rate %v: %d replies of the warm-up were corrupt; %+v", rate, warm, c)
		}
	}
}
