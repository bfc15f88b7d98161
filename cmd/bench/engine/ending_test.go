package engine

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"rebound/latency"
	"rebound/nic"
)

// TestPortFails: what was measured before the interface went stays.
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
		if err := s.Run(Limit{}, &stop); err != nil {
			t.Fatal(err)
		}
		if n := series(rec)(latency.MainSeries).Count; n != 101 || s.window.counts.Lost() != 0 {
			t.Errorf("rate %v: %d recorded, %+v", rate, n, s.Counts())
		}
	}
}

// TestStopWhileWaiting: after a signal no time-out of a minute is sat out.
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
		if err := s.Run(Limit{}, &stop); err != nil {
			t.Fatal(err)
		}
		if c := s.Counts(); c.Lost() != 0 || c.Abandoned != 1 || c.Received != c.Sent {
			t.Errorf("rate %v: %+v", rate, c)
		}
	}
}
