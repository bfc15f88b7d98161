package measure

import (
	"testing"
	"time"

	"github.com/rebound-nic/rebound/internal/bench/engine"
	"github.com/rebound-nic/rebound/internal/host/osnoise"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// Only events during one of the round trips are causes, and of those by counters only rare ones or those with a length.
func TestNoiseCauses(t *testing.T) {
	clock := must.Get(latency.NewClock())(t)
	const base = 1 << 40
	at := func(us int) uint64 { return base + clock.Ticks(time.Duration(us)*time.Microsecond) }
	var n Noise
	event := func(from, to int, e osnoise.Event) {
		e.From, e.To = at(from), at(to)
		n.Events = append(n.Events, e)
	}
	event(150, 160, osnoise.Event{Cause: osnoise.Descheduled, Name: "hog"})
	event(250, 260, osnoise.Event{Cause: osnoise.Descheduled, Name: "between"})
	event(450, 460, osnoise.Event{Cause: osnoise.Timer})
	event(0, 1000, osnoise.Event{Cause: osnoise.PageFault, Weak: true, Count: 1}) // as often elsewhere
	event(0, 1000, osnoise.Event{Cause: osnoise.Steal, Weak: true, Count: 1, Took: time.Millisecond})
	event(400, 450, osnoise.Event{Cause: osnoise.Interrupt, Weak: true, Count: 1})
	slow := []engine.Slow{{Intended: at(400), Seen: at(500)}, {Intended: at(100), Seen: at(200)}, {Intended: at(120), Seen: at(180)}}
	var got []string
	for _, c := range n.causes(slow, clock) {
		got = append(got, c.Text+" "+c.Name)
	}
	check.Same(t, got, []string{"polling thread descheduled on cpu 0 hog", "timer tick on cpu 0 ", "stolen by the hypervisor on cpu 0 ", "interrupts on cpu 0 "}, "%q")
}
