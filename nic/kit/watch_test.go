package kit

import (
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
)

func TestProgress(t *testing.T) {
	var p Progress
	if p.StalledFor(7) != 0 || p.StalledFor(7) != Every || p.StalledFor(7) != 2*Every || p.StalledFor(8) != 0 || p.StalledFor(8) != Every {
		t.Error("StalledFor does not count the checks since the number changed")
	}
	if !p.first() || p.StalledFor(8) != Every || p.first() || p.StalledFor(8) != 2*Every {
		t.Error("what stalls is not given as long again, once")
	}
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
