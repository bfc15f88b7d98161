package measure

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/internal/bench/engine"
	"github.com/rebound-nic/rebound/internal/bench/observe"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/proof/must"
)

// Four slow round trips: one in which the bench was descheduled, one that was sent late, one with a context switch and
// the wait for the core, and one with nothing unusual around it.
func TestTail(t *testing.T) {
	clock := must.Get(latency.NewClock())(t)
	const base = 1 << 40
	at := func(us int) uint64 { return base + clock.Ticks(time.Duration(us)*time.Microsecond) }
	ticks := func(us int) uint64 { return clock.Ticks(time.Duration(us) * time.Microsecond) }
	slowest := []engine.Slow{
		{Intended: at(100), Sent: at(100), Seen: at(1110), Away: ticks(1000)},
		{Intended: at(20_100), Sent: at(21_000), Seen: at(21_110)},
		{Intended: at(40_100), Sent: at(40_100), Seen: at(41_110)},
		{Intended: at(60_100), Sent: at(60_100), Seen: at(61_110)},
	}
	var watched []observe.Sample
	for i := range 11 {
		s := observe.Sample{At: at(10_000 * i), Softirqs: uint64(i)}
		if i > 4 {
			s.Preempted, s.Waited = 1, 750_000
		}
		watched = append(watched, s)
	}
	rep := findCauses(slowest, 10_000, clock, watched)
	if rep.Probes != 4 || math.Abs(rep.Own-(1000+900)/4000.) > 0.01 {
		t.Errorf("%+v", rep)
	}
	for what, want := range map[string]struct {
		probes         int
		explains, base float64
	}{
		"did not poll for replies": {1, 0.25, -1}, "left late": {1, 0.225, -1}, "waited for its core": {1, 0.1875, -1},
		"context switch": {1, -1, 0.1}, "interrupts on the core, without the timer's": {0, -1, 0}, "softirqs": {4, -1, 1},
	} {
		found := false
		for _, c := range rep.Causes {
			if !strings.Contains(c.What, what) {
				continue
			}
			found = true
			near := func(got *float64, want float64) bool {
				return got == nil && want < 0 || got != nil && math.Abs(*got-want) < 0.01
			}
			if c.Probes != want.probes || !near(c.Explains, want.explains) || !near(c.Base, want.base) {
				t.Errorf("%s: %+v, want %+v", what, c, want)
			}
		}
		if !found {
			t.Errorf("nothing said of %q", what)
		}
	}
	if rep := findCauses(slowest[:2], 10_000, clock, nil); rep.Probes != 2 || len(rep.Causes) != 2 {
		t.Errorf("without a watch: %+v", rep)
	}
	if rep := findCauses(nil, 0, clock, watched); rep != nil {
		t.Errorf("of nothing: %+v", rep)
	}
	if lines := rep.Lines(); len(lines) != 4 || !strings.Contains(lines[0], "slowest 4") {
		t.Errorf("%q", lines)
	}
}
