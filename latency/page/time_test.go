package page

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// cut is a report of two runs with a pause between them; the last interval of the second run has a single sample.
func cut() (*report.Report, *latency.Series) {
	many := make([]int64, 1000)
	for i := range many {
		many[i] = 4000 + int64(i)
	}
	s := &latency.Series{Name: latency.MainSeries}
	rep := &report.Report{Runs: []latency.Run{{Start: 0, End: 3e9}, {Start: 10e9, End: 12_010e6}}}
	for _, at := range []int64{0, 1e9, 2e9, 10e9, 11e9} {
		s.Intervals = append(s.Intervals, latency.Interval{Start: at, End: at + 1e9,
			Histogram: latency.FromValues(many)})
	}
	s.Intervals = append(s.Intervals, latency.Interval{Start: 12e9, End: 12_010e6,
		Histogram: latency.FromValues([]int64{7})})
	s.Sum()
	rep.Series = []*latency.Series{s}
	return rep, s
}

// A last interval with one sample is not a separate point, and its sample is not lost.
func TestLastInterval(t *testing.T) {
	rep, s := cut()
	all := timeline(rep, s, maxColumns)
	must.Equal(t, len(all), 5, "%d stretches")
	last := all[4]
	if last.Count != 1001 || last.Quantile(0.5) < 4000 || last.end != 12.01 || last.run != 1 {
		t.Errorf("the last has %d samples, p50 %d, ends at %v", last.Count, last.Quantile(0.5), last.end)
	}
	// With fewer columns than intervals, still no stretch covers two runs.
	n := int64(0)
	for _, st := range timeline(rep, s, 2) {
		if st.start < 4 && st.end > 9 {
			t.Errorf("a stretch reaches over the pause: %v to %v", st.start, st.end)
		}
		n += st.Count
	}
	check.Equal(t, n, s.Total.Count, "%d samples")
}

func TestPauses(t *testing.T) {
	rep, s := cut()
	svg := string(timeFigure(rep, s, "round trip"))
	for _, part := range strings.Split(svg, `data-name="`)[1:] {
		d := part[strings.Index(part, ` d="`)+4:]
		d = d[:strings.Index(d, `"`)]
		if n := strings.Count(d, "M"); n != 2 {
			t.Errorf("%s: %d lines, want one for each run: %s", part[:3], n, d)
		}
	}
	same := func(v float64) float64 { return v }
	if d := pathOf(curve{x: []float64{1, 2, 3, 4}, y: []float64{1, math.NaN(), 3, 4}}, same, same,
		false); d != "M1.00 1.00L3.00 1.00M3.00 3.00L4.00 4.00" {
		t.Error(d)
	}
}

// The axis covers the whole run, and a part without replies is shaded, both in the middle and at the end of a run.
func TestOutagesAreShownOverTime(t *testing.T) {
	rep, s := cut()
	s.Intervals = append(s.Intervals[:1:1], s.Intervals[2:5]...) // nothing from 1 s to 2 s, nor after 12 s
	rep.Runs[1].End, rep.Counts.Sent = 20e9, 13000
	s.Sum()
	want := [][2]float64{{1, 2}, {12, 20}}
	if got := outages(rep, s); !slices.Equal(got, want) {
		t.Fatalf("outages %v, want %v", got, want)
	}
	if a := secondsAxis(rep, timeline(rep, s, maxColumns)); a.lo != 0 || a.hi != 20 {
		t.Errorf("the axis spans %v to %v, want 0 to 20", a.lo, a.hi)
	}
	check.Contains(t, show(t, Report, rep), "<title>no replies for 8.000 s, 12.00 s after the start</title>",
		"No replies for 1.000 s, 1.000 s after the start.")
	if text := show(t, PrintReport, rep); !strings.HasPrefix(text,
		"the target stopped answering 12.00 s after the start") {
		t.Error(text)
	}
	svg := string(timeFigure(rep, s, "round trip"))
	p50 := svg[strings.Index(svg, `data-name="p50"`):]
	if d := p50[strings.Index(p50, ` d="`)+4:]; strings.Count(d[:strings.Index(d, `"`)], "M") != 3 {
		t.Errorf("a line crosses the outage: %s", d[:strings.Index(d, `"`)])
	}
}

// An outage at the start has no time "0 ns after the start", and a short one has no two equal ends.
func TestOutageTexts(t *testing.T) {
	for _, c := range []struct {
		from, to float64
		want     string
	}{
		{0, 0.02, "No replies for the first 20.00 ms."},
		{0.01, 0.03, "No replies for 20.00 ms, 10.00 ms after the start."},
		{3600.01, 3600.03, "No replies for 20.00 ms, 3,600 s after the start."},
	} {
		check.Equal(t, strings.Join(outageAlerts([][2]float64{{c.from, c.to}}), "\n"), c.want, "%q")
	}
	check.Equal(t, strings.Join(outageAlerts([][2]float64{{1, 2}, {5, 5.5}, {6, 9}, {20, 22}}), " "),
		"No replies for 1.000 s, 1.000 s after the start. No replies for 3.000 s, 6.000 s after the start. "+
			"No replies for 2.000 s, 20.00 s after the start. 1 shorter outage.", "%q")
	rep, s := cut()
	s.Intervals = s.Intervals[1:] // nothing in the first second
	rep.Counts.Sent = 5001
	s.Sum()
	page := show(t, Report, rep)
	check.Contains(t, page, "<title>no replies for the first 1.000 s</title>", "No replies for the first 1.000 s.")
	if strings.Contains(page, "0 ns after the start") || strings.Contains(page, "0.0 s") {
		t.Error("an outage starts 0 ns after the start")
	}
}

func TestNoOutageInACompleteRecording(t *testing.T) {
	rep, s := cut()
	rep.Counts.Sent = 5001
	if got := outages(rep, s); len(got) != 0 {
		t.Errorf("outages %v", got)
	}
	s.Intervals = append(s.Intervals[:1:1], s.Intervals[2:]...)
	rep.Counts.Sent = 10 // two probes per second: a second without a reply is no outage
	if got := outages(rep, s); len(got) != 0 {
		t.Errorf("outages of a slow series: %v", got)
	}
}

// A file that has a summary only, or replies without times, does not show when a target stopped answering.
func TestNoOutagesWithoutTimes(t *testing.T) {
	r := &report.Report{Metric: report.RoundTrip, Counts: report.Counts{Sent: 50, Received: 50},
		Foreign: &report.Foreign{Points: []latency.Percentile{{Quantile: 1, Value: 43000}}},
		Runs:    []latency.Run{{End: 1e9}}, Series: []*latency.Series{
			{Name: latency.MainSeries, Total: latency.FromValues([]int64{43000})}}}
	if at, ok := stoppedAt(r); ok {
		t.Errorf("the target stopped answering after %v s", at)
	}
}
