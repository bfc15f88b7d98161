package compare

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/host"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

func TestVerdictTexts(t *testing.T) {
	for v, want := range map[Verdict]string{Unknown: "? cannot tell unknown", Noise: "~ no change seen noise",
		Faster: "- faster faster", Slower: "+ slower slower"} {
		check.Equal(t, v.Mark()+" "+v.String()+" "+v.Class(), want, "%q")
	}
	inf := math.Inf(1)
	for want, r := range map[string]Row{"none": {Base: 100, Least: inf}, "25 %": {Base: 100, Least: 25},
		"200 ns": {Least: 200}, "1.000 s": {Base: 1, Least: 1e9}, "300 %": {Base: 100, Least: 300},
		"301 ns": {Base: 100, Least: 301}} {
		check.Equal(t, r.Visible(), want, "%q")
	}
	check.Equal(t, Row{Base: 200, Shift: -50}.Percent(), -25, "%v %%")
	check.Equal(t, math.IsNaN(Row{Shift: -50}.Percent()), true, "not a number without a base: %t")
}

// If nothing could be tested, the differences are shown as such, unless there is a verdict or an obstacle.
func TestUntested(t *testing.T) {
	rows := func(how string) []Row {
		return []Row{{Stat: p50, PooledA: 100, PooledB: 150, How: how}, {Stat: Max, PooledA: math.NaN(), PooledB: 3},
			{Stat: Min, PooledA: 0, PooledB: 7}, {Stat: Mean, PooledA: 1, PooledB: 2}}
	}
	own, other := &report.Report{}, &report.Report{Foreign: &report.Foreign{}}
	for _, c := range []struct {
		p    Pair
		want string
	}{
		{Pair{A: own, B: other, Rows: rows("")}, "B minus A, not tested: p50 +50 ns (+50.0 %), min +7 ns, mean +1 ns (+100.0 %)"},
		{Pair{A: other, B: own, Rows: rows("")}, "B minus A, not tested: p50 +50 ns (+50.0 %), min +7 ns, mean +1 ns (+100.0 %)"},
		{Pair{A: own, B: own, Rows: rows("")}, ""},
		{Pair{A: own, B: other, Rows: rows("8 runs")}, ""},
		{Pair{A: own, B: other, Rows: rows(""), Obstacles: []string{"mode"}}, ""},
		{Pair{A: own, B: other, Rows: rows("")[1:2]}, ""},
	} {
		check.Equal(t, c.p.Untested(), c.want, "%q")
	}
}

func TestConfidence(t *testing.T) {
	one, many := &report.Report{}, &report.Report{Schedule: &report.Schedule{Looks: 2}}
	for _, c := range []struct {
		p    Pair
		want string
	}{
		{Pair{A: one, B: one}, ""},
		{Pair{A: one, B: one, Rows: []Row{{Level: 0.01}}}, "intervals are at 99.0 % each, so that at most 5 % of tables"},
		{Pair{A: one, B: one, Rows: []Row{{Level: 0.001, Asked: true}}}, "intervals are at 99.90 % each, so"},
		{Pair{A: one, B: one, Rows: []Row{{Level: 0.002, Asked: true}, {Level: 0.05}}},
			"intervals are at 99.8 % for each row that -fail-if names, 95.0 % for each other row, so"},
		{Pair{A: one, B: many, Rows: []Row{{Level: 0.01}}}, "adjusted for that and for 2 tests, any of which could end"},
	} {
		if got := c.p.Confidence(); !strings.Contains(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
	if got := (&Pair{A: one, B: one, Rows: []Row{{Level: 0.01}}}).Confidence(); strings.Contains(got, "tests, any") {
		t.Errorf("one test: %q", got)
	}
}

// of is a report with these values and no other data.
func of(values ...int64) *report.Report {
	r := &report.Report{Label: "r", Metric: report.RoundTrip}
	r.Add(latency.MainSeries, latency.FromValues(values))
	return r
}

// A statistic is the same from a report, a histogram and a summary; what a foreign file lacks is no number.
func TestStatOf(t *testing.T) {
	r := of(100, 200, 300, 400)
	sum := r.Main().Total.Summary()
	for name, want := range map[string]float64{"min": 100, "max": 400, "mean": 250, "p50": 200, "p90": 400} {
		st := must.Get(ParseStat(name))(t)
		check.Equal(t, st.OfReport(r), want, name+" of the report: %v")
		check.Equal(t, st.Of(r.Main().Total), want, name+" of the histogram: %v")
		check.Equal(t, st.OfSummary(&sum), want, name+" of the summary: %v")
		q, ok := st.Quantile()
		check.Equal(t, ok, name[0] == 'p', name+" is a percentile: %t")
		check.Equal(t, ok && fmt.Sprintf("p%g", 100*q) != name, false, name+" is another percentile: %t")
	}
	p25 := must.Get(ParseStat("p25"))(t)
	check.Equal(t, p25.OfReport(r), 100, "p25 of the report: %v")
	check.Equal(t, math.IsNaN(p25.OfSummary(&sum)), true, "a summary has no p25: %t")
	r.Foreign = &report.Foreign{Points: []latency.Percentile{{Quantile: 0.25, Value: 7}}, Min: 1, Max: 9, Mean: 5}
	for st, want := range map[Stat]float64{p25: 7, Min: 1, Max: 9, Mean: 5} {
		check.Equal(t, st.OfReport(r), want, st.String()+" of a foreign report: %v")
	}
	check.Equal(t, math.IsNaN(p50.OfReport(r)), true, "a file without p50 has none: %t")
	for st, want := range map[Stat]int64{p50: 20, Min: MinTail, must.Get(ParseStat("p99.9"))(t): 10_000,
		must.Get(ParseStat("p1"))(t): 1000} {
		check.Equal(t, st.Needs(), want, st.String()+" needs %d")
	}
}

// change returns two reports that differ in one thing.
func change(edit func(*report.Report)) (a, b *report.Report) {
	a, b = of(100, 200), of(100, 200)
	a.Label, b.Label = "a", "b"
	a.Traffic = report.Traffic{Mode: "closed", Protocol: "icmp", IPVersion: 4, FrameSize: 64, Transport: "raw",
		Outstanding: 1}
	b.Traffic = a.Traffic
	edit(b)
	return a, b
}

// What two reports must have in common, and what may differ within a session.
func TestObstaclesByField(t *testing.T) {
	for _, c := range []struct {
		want   string
		edit   func(*report.Report)
		varies bool // within a session
	}{
		{"", func(*report.Report) {}, false},
		{"metric: a has round trip, b has turnaround", func(r *report.Report) { r.Metric = report.Turnaround }, false},
		{"mode: a has closed, b has open", func(r *report.Report) { r.Traffic.Mode = "open" }, false},
		{"outstanding requests: a has 1, b has 2", func(r *report.Report) { r.Traffic.Outstanding = 2 }, false},
		{"protocol: a has icmp, b has udp", func(r *report.Report) { r.Traffic.Protocol = "udp" }, true},
		{"IP version: a has 4, b has 6", func(r *report.Report) { r.Traffic.IPVersion = 6 }, true},
		{"frame size: a has 64, b has 128", func(r *report.Report) { r.Traffic.FrameSize = 128 }, true},
		{"rate: a has none, b has 5", func(r *report.Report) { r.Traffic.Rate = 5 }, true},
		{"transport: a has raw, b has socket", func(r *report.Report) { r.Traffic.Transport = "socket" }, true},
		{"arrivals that are not periodic: a has none, b has poisson",
			func(r *report.Report) { r.Traffic.Arrivals = "poisson" }, true},
		{"backend: a has none, b has sim", func(r *report.Report) { r.Device.Backend = "sim" }, false},
		{"b has no samples", func(r *report.Report) { r.Series = nil }, false},
		{"b has no samples: 1 of 1 probe lost",
			func(r *report.Report) { r.Series, r.Counts = nil, report.Counts{Sent: 1, Lost: 1} }, false},
		{"b has no samples: 5 of 7 probes lost",
			func(r *report.Report) { r.Series, r.Counts = nil, report.Counts{Sent: 7, Lost: 5} }, false},
	} {
		a, b := change(c.edit)
		check.Equal(t, strings.Join(obstacles(a, b), "; "), c.want, "obstacles %q")
		a.Session, b.Session = "s", "s"
		if c.varies {
			check.Equal(t, strings.Join(obstacles(a, b), "; "), "", "obstacles within a session: %q")
			check.Contains(t, strings.Join(differences(a, b), "; "), c.want)
			b.Session = "t"
		}
		check.Equal(t, strings.Join(obstacles(a, b), "; "), c.want, "obstacles %q")
	}
	// what another tool's file does not state is no difference
	a, b := change(func(r *report.Report) { r.Traffic.Protocol, r.Metric, r.Tool = "", report.Unlabeled, "k6" })
	b.Foreign = &report.Foreign{}
	check.Equal(t, strings.Join(obstacles(a, b), "; "), "", "obstacles %q")
	check.Equal(t, strings.Join(differences(a, b), "; "),
		"a was measured by none, b by k6: tools take their timestamps in different places", "%q")
	b.Tool, b.Traffic.Protocol = "", "udp"
	check.Equal(t, strings.Join(differences(a, b), "; "), "", "%q")
	check.Equal(t, strings.Join(obstacles(a, b), "; "), "protocol: a has icmp, b has udp", "obstacles %q")
	check.Equal(t, Reports(a, b).Pairs[0].Rows[0].Why, "not comparable", "why there is no verdict: %q")
	check.Fails(t, "limits", check.Err(Against([]Limit{{Stat: p50, Absolute: 1}}, a, b).Exceeded()), ErrNotComparable)
	b.Foreign = nil
	check.Equal(t, len(obstacles(a, b)), 2, "%d obstacles between our own reports")
}

func TestDifferences(t *testing.T) {
	a, b := change(func(r *report.Report) {
		r.Device.Driver, r.Version = "mlx5", "2"
		r.Host.Findings = []host.Finding{{What: "a governor"}, {What: "both"}}
	})
	a.Host.Findings = []host.Finding{{What: "both"}, {What: "C-states"}}
	check.Same(t, Differences(a, b), []string{"driver: a has none, b has mlx5", "version: a has none, b has 2",
		"only a: C-states", "only b: a governor"}, "%q")
}

// Notes about one report.
func TestInspect(t *testing.T) {
	for _, c := range []struct {
		want string
		edit func(*report.Report)
	}{
		{"", func(*report.Report) {}},
		{"b ran on a device model: its nanoseconds are the model's", func(r *report.Report) { r.Device.Backend = "sim" }},
		{"b was timed by a clock of no constant rate", func(r *report.Report) { r.Clock.Source = "tsc" }},
		{"", func(r *report.Report) { r.Clock.Source, r.Clock.Steady = "tsc", true }},
		{"b: hot", func(r *report.Report) { r.Host.Findings = []host.Finding{{Severity: "serious", What: "hot"}} }},
		{"", func(r *report.Report) { r.Host.Findings = []host.Finding{{Severity: "minor", What: "warm"}} }},
		{"b: the measuring thread was descheduled 4 times", func(r *report.Report) {
			r.Series, r.Runs, r.Traffic.Mode = nil, []latency.Run{{End: 1_700_000_000}}, "closed"
			r.Add(latency.MainSeries, latency.FromCounts([]int64{5000, 400_005_000}, []int64{20_000, 4}))
			r.Add(latency.GapSeries, latency.FromCounts([]int64{400_100_000}, []int64{4}))
		}},
		{"b: ping output, values in ms", func(r *report.Report) { r.Foreign = &report.Foreign{Format: "ping output", Unit: "ms"} }},
	} {
		_, b := change(c.edit)
		var got Comparison
		got.inspect(b)
		if text := strings.Join(got.Notes, "; "); !strings.Contains(text, c.want) || c.want == "" && text != "" {
			t.Errorf("%q, want %q", text, c.want)
		}
	}
}

// Reports of the same name are distinguished by their folders.
func TestDistinct(t *testing.T) {
	a, b, c := of(1), of(1), of(1)
	a.Dir, b.Dir, c.Dir, c.Label = "out//a", "out/b", "out/c", "other"
	check.Equal(t, Reports(a, b).Pairs[0].A.Name(), "r (out/a)", "the base is %q")
	var got []string
	for _, r := range distinct([]*report.Report{a, b, c}) {
		got = append(got, r.Name())
	}
	check.Same(t, got, []string{"r (out/a)", "r (out/b)", "other"}, "%q")
	check.Equal(t, a.Label, "r", "the report itself has the label %q")
}

// The spread between runs is the middle half of the wider side, if there are four runs.
func TestSpread(t *testing.T) {
	side := func(values ...int64) (all []part) {
		for _, v := range values {
			all = append(all, part{Histogram: latency.FromValues([]int64{v})})
		}
		return append(all, part{}) // an empty run
	}
	for _, c := range []struct {
		a, b []part
		want float64
	}{
		{side(100, 200, 300), side(), 0},
		{side(400, 100, 300, 200), side(), 200},
		{side(400, 100, 300, 200), side(10, 20, 30, 1000), 980},
		{side(10, 20, 30, 1000), side(400, 100, 300, 200), 980},
	} {
		p := Pair{runsA: c.a, runsB: c.b}
		check.Equal(t, p.Spread(Mean), c.want, "%v ns")
	}
}

// A history keeps reports of different kinds apart, in order of time, and says what is missing.
func TestHistory(t *testing.T) {
	at := time.Date(2026, 11, 28, 8, 0, 0, 0, time.UTC)
	h := NewHistory(p50, Max)
	add := func(name string, hour int, level int64, edit func(*report.Report)) {
		r := of()
		r.Series = nil
		r.Add(latency.MainSeries, latency.FromCounts([]int64{level, level + 1}, []int64{50, 50}))
		r.Start, r.Traffic = at.Add(time.Duration(hour)*time.Hour), report.Traffic{Protocol: "icmp", FrameSize: 64}
		edit(r)
		h.Add(name, r)
	}
	for i := range 12 {
		add(fmt.Sprint("run ", i), 12-i, []int64{2000, 1000}[i/6], func(r *report.Report) { r.Version = fmt.Sprint(2 - i/6) })
	}
	add("six", 3, 1000, func(r *report.Report) { r.Traffic.IPVersion, r.Traffic.Rate, r.Traffic.Transport = 6, 20, "raw" })
	add("model", 3, 1000, func(r *report.Report) { r.Device.Backend, r.Session, r.Label = "sim", "s", "big" })
	add("few", 3, 1000, func(r *report.Report) { r.Series = nil; r.Add(latency.MainSeries, latency.FromValues([]int64{5})) })
	add("cut", 3, 1000, func(r *report.Report) { r.Unfinished = &report.Unfinished{Runs: 20, Run: 1e9} })
	add("foreign", 3, 1000, func(r *report.Report) { r.Foreign, r.Tool = &report.Foreign{}, "ping" })
	lines, notes := h.Lines(0.04)
	var got []string
	for _, l := range lines {
		got = append(got, fmt.Sprintf("%s %s %d", l.What, l.Stat, len(l.Points)))
	}
	check.Same(t, got, []string{"round trip, icmp, 64 bytes p50 12", "round trip, icmp, 64 bytes max 12",
		"round trip, icmp, IPv6, 64 bytes, 20/s, raw p50 1", "round trip, icmp, IPv6, 64 bytes, 20/s, raw max 1",
		"round trip, icmp, 64 bytes, on a device model, big p50 1", "round trip, icmp, 64 bytes, on a device model, big max 1",
		"round trip, icmp, 64 bytes, by ping p50 1", "round trip, icmp, 64 bytes, by ping max 1"}, "%q")
	first := lines[0]
	check.Equal(t, first.Points[0].Name, "run 11", "the earliest is %s")
	check.Equal(t, first.Points[0].Value, 1000, "and has %v ns")
	check.Equal(t, first.Why, "", "not tested: %q")
	check.Equal(t, first.Steps[0].P, 4.0/1250, "p=%v by 1250 orders, at half the level for each of two lines")
	must.Equal(t, len(first.Steps), 1, "%d steps")
	s := first.Steps[0]
	check.Equal(t, s.At, 6, "the step is at %d")
	check.Equal(t, s.Before, 1000, "before it %v ns")
	check.Equal(t, s.After, 2000, "after it %v ns")
	check.Equal(t, s.Percent(), 100, "%v %%")
	check.Same(t, s.Differ, []string{"version: run 6 has 1, run 5 has 2"}, "%q")
	check.Contains(t, lines[2].Why, "no change can be found in 1 report: there must be 4 on each side")
	check.Same(t, notes, []string{"cut is unfinished: " + strings.TrimPrefix(notes[0], "cut is unfinished: "),
		"p50 (round trip, icmp, 64 bytes): 1 of 13 reports have too few samples for it",
		"max (round trip, icmp, 64 bytes): 1 of 13 reports have too few samples for it"}, "notes %q")
	// one report without a time: all stay in their order
	add("untimed", 0, 1000, func(r *report.Report) { r.Start = time.Time{} })
	lines, notes = h.Lines(0.05)
	check.Contains(t, strings.Join(notes, "\n"), "some reports do not say when they were measured")
	check.Equal(t, lines[0].Points[len(lines[0].Points)-1].Name, "untimed", "the last is %s")
}

// What was measured is described by what is known of it.
func TestWhat(t *testing.T) {
	for want, edit := range map[string]func(*report.Report){
		"round trip":               func(r *report.Report) { r.Tool = "ping" },
		"round trip, 1 bytes, 1/s": func(r *report.Report) { r.Traffic.FrameSize, r.Traffic.Rate = 1, 1 },
		"round trip, by ping":      func(r *report.Report) { r.Tool, r.Foreign = "ping", &report.Foreign{} },
		"round trip, IPv6, raw": func(r *report.Report) {
			r.Foreign, r.Traffic.IPVersion, r.Traffic.Transport = &report.Foreign{}, 6, "raw"
		},
		"round trip, on a device model": func(r *report.Report) { r.Device.Backend, r.Session, r.Label = "sim", "s", "" },
	} {
		r := of(1)
		edit(r)
		check.Equal(t, what(r), want, "%q")
	}
	check.Equal(t, Step{Before: 1000, After: 1500}.Percent(), 50, "%v %%")
	h := NewHistory(Min, Max)
	h.Add("", of(0, 0, 0, 0, 0, 0, 0, 0, 0, 1))
	lines, _ := h.Lines(0.05)
	check.Equal(t, len(lines[0].Points), 0, "%d points of 0 ns")
	check.Equal(t, len(lines[1].Points), 1, "%d points of 1 ns")
}

// A change needs four reports on each side.
func TestShortHistory(t *testing.T) {
	h := NewHistory(Mean)
	for n := range 2 * FewestValues {
		lines, _ := h.Lines(0.05)
		if n > 0 {
			check.Contains(t, lines[0].Why, "there must be 4 on each side")
		}
		h.Add(fmt.Sprint(n), of(1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000))
	}
	lines, _ := h.Lines(0.05)
	check.Equal(t, lines[0].Why, "", "%q")
}

// The oldest reports are left out if there are too many, and exactly MostValues are not.
func TestLongHistory(t *testing.T) {
	for _, extra := range []int{0, 1} {
		h := NewHistory(Mean)
		for i := range MostValues + extra {
			r := of(1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000)
			r.Start = time.Unix(int64(1+i), 0)
			h.Add(fmt.Sprint(i), r)
		}
		for _, k := range h.kinds { // equal values have no changes, and are quick
			for i := range k.points {
				k.points[i].values[0] = 1000
			}
		}
		lines, notes := h.Lines(0.05)
		check.Equal(t, len(lines[0].Points), MostValues, "%d points")
		check.Equal(t, lines[0].Points[0].Name, fmt.Sprint(extra), "the first is %s")
		check.Equal(t, strings.Join(notes, "\n"), []string{"",
			"mean (round trip): the oldest 1 reports are left out, the newest 1000 are shown"}[extra], "%q")
	}
}

// Finer percentiles are tested if there are runs for so many points, at a level that all points share.
func TestShiftFunction(t *testing.T) {
	for _, c := range []struct {
		pairs, runs, looks int
		want               int
	}{
		{runs: 4, want: 0}, {runs: 8, want: 20}, {runs: 8, looks: 20, want: 10}, {runs: 8, looks: 40, want: 5},
		{pairs: 7, want: 0}, {pairs: 8, want: 5}, // 2/2^n at most the level
		{pairs: 9, want: 10}, {pairs: 10, want: 20},
	} {
		a, b := machines(3, c.pairs+c.runs, c.pairs > 0, steady, 0.5)
		if c.looks > 0 {
			a.Schedule = &report.Schedule{Looks: c.looks}
		}
		p := &Reports(a, b).Pairs[0]
		rows := p.ShiftFunction()
		if check.Equal(t, len(rows), c.want, fmt.Sprintf("%+v: %%d points", c)); c.want == 0 {
			continue
		}
		for i, r := range rows {
			check.Equal(t, r.Level, tableLevel/float64(c.want*max(c.looks, 1)), "level %v")
			if i > 0 && rows[i-1].Stat.q >= r.Stat.q {
				t.Errorf("%s after %s", r.Stat, rows[i-1].Stat)
			}
		}
		p.Obstacles = []string{"metric"}
		check.Equal(t, len(p.ShiftFunction()), 0, "%d points of reports that cannot be compared")
	}
	a, b := machines(3, 10, true, steady, 0.5)
	var names []string
	for _, r := range Reports(a, b).Pairs[0].ShiftFunction() {
		names = append(names, r.Stat.String())
		q := must.Get(ParseStat(r.Stat.String()))(t).q
		check.Equal(t, near9(r.Stat.q, q), true, r.Stat.String()+" is this quantile: %t")
	}
	check.Equal(t, strings.Join(names, " "), "p1 p5 p10 p20 p30 p40 p50 p60 p70 p80 p90 p95 p98 p99 p99.5 p99.8 p99.9 "+
		"p99.95 p99.98 p99.99", "%s")
}
