package kit

import (
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/check"
)

func TestProgress(t *testing.T) {
	var p Progress
	for i, c := range []struct {
		number uint32
		want   time.Duration
	}{{7, 0}, {7, Every}, {7, 2 * Every}, {8, 0}, {8, Every}} {
		if got := p.StalledFor(c.number); got != c.want {
			t.Errorf("check %d: %d has stalled for %v, want %v", i, c.number, got, c.want)
		}
	}
	check.Equal(t, p.first(), true, "the first time that it stalls: first is %v")
	check.Equal(t, p.StalledFor(8), Every, "given as long again: stalled for %v")
	check.Equal(t, p.first(), false, "the second time: first is %v")
	check.Equal(t, p.StalledFor(8), 2*Every, "stalled for %v")
	if p.StalledFor(9); !p.first() {
		t.Error("what has moved since is not given as long again")
	}
	var done, tail uint32 = 5, 5
	for range 3 {
		check.Equal(t, p.Waiting(&done, &tail), 0, "an empty ring waits for %v")
	}
	tail = 6
	for n := range 3 {
		if w := p.Waiting(&done, &tail); int(w/Every) != n+1 {
			t.Errorf("look %d: %v", n+1, w)
		}
	}
	done = 6
	check.Equal(t, p.Waiting(&done, &tail), 0, "worked off: %v")
}
