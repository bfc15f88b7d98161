package engine

import (
	"fmt"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
)

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
