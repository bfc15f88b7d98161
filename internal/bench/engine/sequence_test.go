package engine

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/polling"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// Consecutive losses form one period, and the end of a run ends one. Periods are those of RFC 3357's example: 1 1 0 0 0
// 1 0.
func TestLossPeriods(t *testing.T) {
	play := func(w *window, lost ...bool) {
		from := w.next
		for i, l := range lost {
			w.send(uint64(i), uint64(i), 0, true)
			if !l {
				w.reply(uint32(from)+uint32(i), uint64(i)+1)
			}
		}
		w.end()
	}
	w := newWindow(64, 10)
	play(w, false, true, true, false, false, true, false, true)
	play(w, true, false)
	got := w.seq
	if got.LossPeriods != 4 || got.LongestLoss != 2 || got.LossLengths[1] != 3 || got.LossLengths[2] != 1 {
		t.Errorf("%+v", got)
	}
	w = newWindow(64, 10) // more than the window remembers
	for range 500 {
		w.send(0, 0, 0, true)
	}
	w.end()
	if w.seq.LossPeriods != 1 || w.seq.LongestLoss != 500 || w.seq.LossLengths[lossLengths-1] != 1 {
		t.Errorf("500 losses: %+v", w.seq)
	}
}

// RFC 4737 §4.2.1: the extent is counted in replies, back to the earliest one that was sent later.
func TestReorderingExtent(t *testing.T) {
	var all []uint32
	for i := range uint32(300) {
		all = append(all, 300-1-i)
	}
	for _, c := range []struct {
		order []uint32
		want  int64
	}{
		{[]uint32{0, 1, 2, 3}, 0},
		{[]uint32{1, 0, 2}, 1},
		{[]uint32{1, 2, 3, 0}, 3},
		{[]uint32{0, 1, 2, 9, 5, 6, 7, 8, 3, 4}, 6},    // 3 and 4 follow 9, the latter by six
		{all[:255], 254}, {all[:256], 255}, {all, 255}, // of which the first comes last
	} {
		w := newWindow(512, 100)
		for range 300 {
			w.send(0, 0, 0, true)
		}
		for _, seq := range c.order {
			w.reply(seq, 5)
		}
		if w.seq.Extent != c.want {
			t.Errorf("%v: extent %d, want %d", c.order, w.seq.Extent, c.want)
		}
	}
}

// Replies after 1 ms and 3 ms alternately differ by 2 ms, in whatever order they come.
func TestDelayVariation(t *testing.T) {
	var h *latency.Histogram
	for range 10 { // a thread that is delayed while it sends causes greater differences
		f := &fake{}
		f.onSend = func(n int, b []byte) {
			f.reply(b, polling.TSC()+testClock.Ticks(time.Duration(1+2*(n%2))*time.Millisecond))
		}
		s, rec := stream(t, f, 0, 20*time.Second, nil)
		must.OK(t, s.Run(Limit{Count: 20}, new(atomic.Bool)))
		if h = series(rec)(ipdvSeries); h.Count != 19 {
			t.Fatalf("%d differences of 20 round trips", h.Count)
		}
		if h.Min <= 2_000_000 && h.Quantile(0.5) >= 1_900_000 {
			return
		}
	}
	t.Errorf("differences of 2 ms: least %d, median %d", h.Min, h.Quantile(0.5))
}

// A round trip is compared with those of the probes before and after it, if these are answered already.
func TestNeighboursOfAProbe(t *testing.T) {
	s, rec := stream(t, &fake{}, 0, time.Second, nil)
	rec.Begin(0)
	for range 5 {
		s.window.send(0, 0, 0, true)
	}
	for _, r := range [][2]uint32{{2, 10}, {1, 20}, {4, 25}, {3, 40}, {0, 80}} {
		at := testClock.Ticks(time.Duration(r[1]) * time.Millisecond)
		s.window.reply(r[0], at)
		s.variation(r[0], at)
	}
	rec.End(testClock.Ticks(time.Second))
	h := series(rec)(ipdvSeries)
	ms := func(ns int64) int64 { return (ns + 500_000) / 1_000_000 }
	check.Equal(t, fmt.Sprint(h.Count, ms(h.Min), ms(h.Quantile(0.5)), ms(h.Quantile(0.75)), ms(h.Max)),
		"4 10 15 30 60", "count and differences: %s")
}
