package measure

import (
	"testing"
	"time"

	"github.com/rebound-nic/rebound/internal/bench/engine"
	"github.com/rebound-nic/rebound/internal/host/osnoise"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/attribution"
	"github.com/rebound-nic/rebound/latency/report"
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
	slow := []engine.Slow{{Intended: at(400), Seen: at(500)}, {Intended: at(100), Seen: at(200)},
		{Intended: at(120), Seen: at(180)}}
	var got []string
	for _, c := range n.causes(slow, clock) {
		got = append(got, c.Text+" "+c.Name)
	}
	check.Same(t, got, []string{"polling thread descheduled on cpu 0 hog", "timer tick on cpu 0 ",
		"stolen by the hypervisor on cpu 0 ", "interrupts on cpu 0 "}, "%q")
}

// The kernel's times are relative to the send, with the error of the relation of both clocks. They are unknown if they
// are not within the round trip: its clock was set meanwhile.
func TestKernelTimes(t *testing.T) {
	clock := must.Get(latency.NewClock())(t)
	const base, wall = uint64(1 << 40), int64(1_700_000_000e9)
	at := func(us int) uint64 { return base + clock.Ticks(time.Duration(us)*time.Microsecond) }
	for what, c := range map[string]struct {
		sent, seen         int64 // us after the send, by the kernel; negative for none
		set                time.Duration
		wantSent, wantSeen bool
		card               bool
	}{
		"both":               {5, 90, 0, true, true, false},
		"by the card":        {5, 90, 0, true, true, true},
		"no time of sending": {-1, 90, 0, false, true, false},
		"set forward":        {5, 90, time.Second, false, false, false},
		"set back":           {5, 90, -time.Second, false, false, false},
		"the card was reset": {5, 90, -time.Second, false, false, true},
		"reversed":           {95, 90, 0, false, true, false},
	} {
		k := engine.Slow{Sent: at(0), Seen: at(100), NIC: engine.NIC{Tick: at(120), Within: at(122) - at(120),
			Card: c.card, Clock: wall + 121_000 + int64(c.set), Seen: wall + c.seen*1000}}
		if c.sent >= 0 {
			k.NIC.Sent = wall + c.sent*1000
		}
		p := attribution.Probe{Seen: 100_000}
		addNIC(&p, &k, clock)
		for _, v := range []struct {
			known          bool
			want, got, off int64
		}{{c.wantSent, c.sent * 1000, p.LeftNIC, p.LeftNICError},
			{c.wantSeen, c.seen * 1000, p.Reached, p.ReachedError}} {
			// A card's clock differs from the counter by less than CLOCK_REALTIME while that is corrected.
			most := int64(1100)
			if c.card {
				most = 1030
			}
			if d := v.got - v.want; v.known && (max(d, -d) > v.off || v.off < 1000 || v.off > most) || !v.known &&
				v.got != 0 {
				t.Errorf("%s: %d±%d, want %d", what, v.got, v.off, v.want)
			}
		}
	}
}

// A report's timeline has the causes during its own runs, in this host's time.
func TestNoiseTimeline(t *testing.T) {
	clock := must.Get(latency.NewClock())(t)
	began := clock.Time(1 << 40)
	rep := &report.Report{Start: began, Runs: []latency.Run{{Start: 0, End: 100e6}, {Start: 200e6, End: 300e6}}}
	var n Noise
	for ms, name := range map[int]string{50: "first", 150: "between", 250: "second"} {
		from := 1<<40 + clock.Ticks(time.Duration(ms)*time.Millisecond)
		n.Events = append(n.Events, osnoise.Event{Cause: osnoise.Descheduled, Name: name, From: from,
			To: from + clock.Ticks(time.Millisecond)})
	}
	at := map[string]int64{}
	for _, track := range n.timeline(rep, clock) {
		at[track.Name] = (track.Spans[0].At - began.UnixMicro() + 500) / 1000
	}
	check.Equal(t, len(at), 2, "%d kinds")
	check.Equal(t, at["first"], 50, "the first began after %d ms")
	check.Equal(t, at["second"], 250, "the second began after %d ms")
}
