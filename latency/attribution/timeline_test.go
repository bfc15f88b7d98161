package attribution

import (
	"fmt"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// A timeline has the kinds that took most, with neighbouring causes as one span, nothing that only counters know, and
// nothing outside the measurement.
func TestTimeline(t *testing.T) {
	const from, to = epoch, epoch + 400e6 // causes less than 1 ms apart are one
	cause := func(start, took int64, text, name string) Interval {
		return Interval{Start: from + start, End: from + start + took, Text: text, Name: name}
	}
	all := []Interval{cause(50e6, 3e6, "descheduled", "hog"), cause(10e6, 1e6, "descheduled", "hog"),
		cause(11.5e6, 1e6, "descheduled", "hog"),
		cause(-5e6, 6e6, "stopped", ""), cause(399e6, 50e6, "stopped", ""), cause(500e6, 50e6, "stopped", ""),
		{Start: from, End: to},
		{Start: from, End: to, Text: "interrupts", Weak: true}}
	for i := range int64(timelineKinds) {
		all = append(all, cause(100e6, 1000+i, "timer", string(rune('a'+i))))
	}
	tracks := Timeline(Here, all, from, to)
	must.Equal(t, len(tracks), timelineKinds, "%d kinds")
	check.Equal(t, tracks[0].Name, "hog", "most: %s")
	check.Equal(t, tracks[0].Took, 5e6, "took %d ns")
	check.Same(t, tracks[0].Spans, []Span{{from/1000 + 10_000, 2500, 2e6}, {from/1000 + 50_000, 3000, 3e6}}, "%v")
	check.Same(t, tracks[1].Spans, []Span{{from / 1000, 1000, 1e6}, {from/1000 + 399_000, 1000, 1e6}}, "%v")
	check.Equal(t, tracks[2].Took, 1000+timelineKinds-1, "the longest of the short ones took %d ns")
}

// Causes that begin up to a four-hundredth of the measurement after the former ended are one span.
func TestSpans(t *testing.T) {
	for apart, want := range map[int64][]Span{
		1_000_000: {{epoch/1000 + 10_000, 3000, 2e6}}, 1_001_000: {{epoch/1000 + 10_000, 1000, 1e6}, {epoch/1000 + 12_001, 1000, 1e6}},
		-1_500_000: {{epoch/1000 + 9500, 1500, 2e6}},
		-1_000_300: {{epoch/1000 + 9999, 1001, 2e6}},
		-999_300:   {{epoch/1000 + 10_000, 1001, 2e6}},
	} {
		second := epoch + 11e6 + apart
		all := []Interval{{Start: second, End: second + 1e6, Text: "hog"}, {Start: epoch + 10e6, End: epoch + 11e6, Text: "hog"}}
		check.Same(t, Timeline(Here, all, epoch, epoch+400e6)[0].Spans, want, fmt.Sprint(apart, ": %v"))
	}
	for _, c := range []Interval{{Start: epoch - 5, End: epoch}, {Start: epoch + 400e6, End: epoch + 500e6}} {
		c.Text = "outside"
		check.Equal(t, len(Timeline(Here, []Interval{c}, epoch, epoch+400e6)), 0, "%d")
	}
}

// The responder's causes are at the times of this host's clock.
func TestTimelineOfResponder(t *testing.T) {
	const offset, drift = 300_123_456, 20e-6
	r, l, _ := planted(offset, drift, 600, 200, 200)
	r.Timeline = []Track{{Side: Here.String(), Text: "timer"}}
	for range 2 { // a second time changes nothing
		must.OK(t, r.AddResponder(l, trips, -1))
	}
	must.Equal(t, len(r.Timeline), 2, "%d kinds")
	hog := r.Timeline[1]
	if hog.Side != Responder.String() || hog.Name != "hog" {
		t.Fatalf("%+v", hog)
	}
	for _, s := range hog.Spans {
		begins := false
		for _, c := range l.Intervals {
			at := c.Start - offset
			at -= int64(drift * float64(at-epoch))
			begins = begins || c.Name == "hog" && max(at/1000-s.At, s.At-at/1000) < 100
		}
		if !begins {
			t.Errorf("no cause begins at %d µs", s.At-epoch/1000)
		}
	}
}
