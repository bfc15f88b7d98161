package engine

import (
	"fmt"
	"testing"

	"github.com/rebound-nic/rebound/latency/outcome"
	"github.com/rebound-nic/rebound/proof/check"
)

// TestWindow plays sequences of events. A timeout is 10 ticks; "s" sends the next probe.
func TestWindow(t *testing.T) {
	type reply struct {
		seq  uint32
		at   uint64
		want outcome.Kind
	}
	send := func(at uint64) reply { return reply{at: at, want: 255} }
	spoil := func(seq uint32) reply { return reply{seq: seq, want: 254} }
	for _, c := range []struct {
		name   string
		events []reply
		want   Counts
		lost   int64
	}{
		{"all answered", []reply{send(0), {0, 5, outcome.Answered}, send(6), {1, 9, outcome.Answered}}, Counts{Sent: 2, Received: 2}, 0},
		{"lost", []reply{send(0), send(1), send(2), {0, 3, outcome.Answered}, {2, 4, outcome.Answered}}, Counts{Sent: 3, Received: 2}, 1},
		{"a lost one is no reordering", []reply{send(0), send(1), {1, 3, outcome.Answered}}, Counts{Sent: 2, Received: 1}, 1},
		{"reordered", []reply{send(0), send(1), {1, 3, outcome.Answered}, {0, 4, outcome.Answered}}, Counts{Sent: 2, Received: 2, Reordered: 1}, 0},
		{"one overtakes two", []reply{send(0), send(1), send(2), {2, 3, outcome.Answered}, {0, 4, outcome.Answered}, {1, 5, outcome.Answered}},
			Counts{Sent: 3, Received: 3, Reordered: 2}, 0},
		{"duplicate", []reply{send(0), {0, 3, outcome.Answered}, {0, 4, outcome.Duplicate}, {0, 5, outcome.Duplicate}}, Counts{Sent: 1, Received: 1, Duplicates: 2}, 0},
		{"on the deadline", []reply{send(0), {0, 10, outcome.Answered}}, Counts{Sent: 1, Received: 1}, 0},
		{"late", []reply{send(0), {0, 11, outcome.Late}}, Counts{Sent: 1, Late: 1}, 0},
		{"late, after the next was answered", []reply{send(0), send(11), {1, 12, outcome.Answered}, {0, 13, outcome.Late}},
			Counts{Sent: 2, Received: 1, Late: 1, Reordered: 1}, 0},
		{"late, and it answers its own probe, not the one that waits", []reply{send(0), send(11), {0, 12, outcome.Late}, {1, 13, outcome.Answered}},
			Counts{Sent: 2, Received: 1, Late: 1}, 0},
		{"late duplicate", []reply{send(0), {0, 3, outcome.Answered}, {0, 50, outcome.Duplicate}}, Counts{Sent: 1, Received: 1, Duplicates: 1}, 0},
		{"never sent", []reply{send(0), {1, 3, outcome.Stray}, {0xffffffff, 4, outcome.Stray}}, Counts{Sent: 1, Stray: 2}, 1},
		{"nothing sent at all", []reply{{0, 3, outcome.Stray}, {0xffffffff, 3, outcome.Stray}}, Counts{Stray: 2}, 0},
		{"corrupt only", []reply{send(0), spoil(0)}, Counts{Sent: 1, Spoiled: 1}, 0},
		{"corrupt twice", []reply{send(0), spoil(0), spoil(0)}, Counts{Sent: 1, Spoiled: 1}, 0},
		{"corrupt, then good", []reply{send(0), spoil(0), {0, 3, outcome.Answered}}, Counts{Sent: 1, Received: 1}, 0},
		{"good, then corrupt", []reply{send(0), {0, 3, outcome.Answered}, spoil(0)}, Counts{Sent: 1, Received: 1}, 0},
		{"corrupt, then late", []reply{send(0), spoil(0), {0, 30, outcome.Late}}, Counts{Sent: 1, Late: 1}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWindow(64, 10)
			for i, e := range c.events {
				switch e.want {
				case 255:
					w.send(e.at, e.at, 0, true)
				case 254:
					w.spoil(e.seq)
				default:
					if _, got := w.reply(e.seq, e.at); got != e.want {
						t.Errorf("event %d: %v, want %v", i, got, e.want)
					}
				}
			}
			if w.counts != c.want || w.counts.Unanswered() != c.lost {
				t.Errorf("counts %+v lost %d, want %+v lost %d", w.counts, w.counts.Unanswered(), c.want, c.lost)
			}
		})
	}
}

func TestWindowWrap(t *testing.T) {
	w := newWindow(64, 1000)
	w.next = 1<<32 - 3 // the number on the wire wraps
	w.tail, w.high, w.judged = w.next, w.next, w.next
	for i := range uint64(8) {
		w.send(i, i, 0, true)
	}
	for _, seq := range []uint32{0xfffffffd, 0xfffffffe, 0xffffffff, 0, 1, 2, 3, 4} {
		if _, e := w.reply(seq, 10); e != outcome.Answered {
			t.Errorf("seq %#x: %v", seq, e)
		}
	}
	if w.counts.Received != 8 || w.counts.Reordered != 0 {
		t.Errorf("%+v", w.counts)
	}
}

func TestWindowForgets(t *testing.T) {
	w := newWindow(64, 1000)
	for i := range uint64(65) {
		w.send(i, i, 0, true)
	}
	if _, e := w.reply(0, 70); e != outcome.Stray {
		t.Errorf("the probe of which the slot was taken: %v", e)
	}
	if _, e := w.reply(64, 70); e != outcome.Answered {
		t.Errorf("the probe that took it: %v", e)
	}
	if s, _ := w.reply(1, 70); s == nil || s.sent != 1 {
		t.Errorf("the oldest that is remembered: %+v", s)
	}
	if w.counts.Unanswered() != 63 {
		t.Errorf("%+v", w.counts)
	}
}

func TestWarmupIsNotCounted(t *testing.T) {
	w := newWindow(64, 10)
	w.send(0, 0, 0, false)
	w.send(1, 1, 0, false)
	w.send(2, 2, 0, true)
	w.reply(1, 3)
	w.reply(1, 4)
	w.reply(0, 5)
	w.spoil(0)
	if w.counts != (Counts{Sent: 1}) {
		t.Errorf("%+v", w.counts)
	}
}

func TestPending(t *testing.T) {
	w := newWindow(64, 10)
	for i := range uint64(100) { // more than it remembers
		w.send(i, i, 0, true)
	}
	for i, want := range []bool{true, true, false} {
		if got := w.pending([]uint64{99, 109, 110}[i]); got != want {
			t.Errorf("pending %d: %t", i, got)
		}
	}
	w.send(200, 200, 0, true)
	if !w.pending(201) {
		t.Error("a probe under way is not pending")
	}
	w.reply(100, 202)
	if w.pending(203) {
		t.Error("an answered probe is pending")
	}
}

func TestWindowAllocatesNothing(t *testing.T) {
	w := newWindow(64, 10)
	var at uint64
	if n := testing.AllocsPerRun(1000, func() {
		at++
		w.send(at, at, 0, true)
		w.reply(uint32(w.next-1), at)
		w.pending(at)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// An interrupted run does not wait for a long timeout: probes whose reply could still come are neither sent nor lost.
func TestAbandon(t *testing.T) {
	w := newWindow(64, 10)
	w.send(0, 0, 0, false)
	for i := range uint64(5) {
		w.send(i, i, 0, true)
	}
	w.reply(2, 4)
	// of the measured ones the first, sent at 0, is overdue, the second is answered, three could still be answered
	w.abandon(12)
	if want := (Counts{Sent: 2, Received: 1, Abandoned: 3, Silent: 1}); w.counts != want || w.counts.Unanswered() != 1 {
		t.Errorf("%+v lost %d, want %+v lost 1", w.counts, w.counts.Unanswered(), want)
	}
	if w.pending(12) {
		t.Error("something is waited for")
	}
}

// A number is ahead until it was sent, also after the number on the wire has wrapped.
func TestAhead(t *testing.T) {
	for _, c := range []struct {
		next uint64
		seq  uint32
		want bool
	}{
		{0, 0, true}, {0, 1, true}, {0, 1<<32 - 1, true}, {1, 0, false}, {1, 1, true}, {1, 1 << 31, true},
		{1, 1<<32 - 1, true},
		{1<<31 + 5, 5, false}, {1<<31 + 5, 1<<31 + 4, false}, {1<<31 + 5, 1<<31 + 5, true}, {1<<31 + 5, 1<<32 - 1, true},
		{1<<32 - 1, 1<<32 - 2, false}, {1<<32 - 1, 1<<32 - 1, true}, {1<<32 - 1, 5, true},
		{1 << 32, 1<<32 - 1, false}, {1 << 32, 0, true}, {1<<32 + 5, 4, false}, {1<<32 + 5, 5, true},
		{1<<32 + 5, 1<<32 - 1, false},
	} {
		got := (&window{next: c.next}).ahead(c.seq)
		check.Equal(t, got, c.want, fmt.Sprintf("after %d probes, number %d is ahead: %%t", c.next, c.seq))
	}
}

// The sample's generator is Marsaglia's xorshift64 (13, 7, 17), whose first numbers from 1 are known.
func TestSampleGenerator(t *testing.T) {
	s := sample{kept: make([]Slow, 0, 1), dice: 1}
	check.Equal(t, s.place(), 1, "the first is kept at %d")
	for _, want := range []uint64{1082269761, 1152992998833853505} {
		s.place()
		check.Equal(t, s.dice, want, "%d")
	}
}
