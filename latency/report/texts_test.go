package report_test

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/attribution"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/random"

	"github.com/klauspost/compress/zstd"
)

// texts calls f with each text that v has outside of maps.
func texts(v reflect.Value, f func(string)) {
	switch v.Kind() {
	case reflect.String:
		f(v.String())
	case reflect.Pointer:
		if !v.IsNil() {
			texts(v.Elem(), f)
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			texts(v.Index(i), f)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				texts(v.Field(i), f)
			}
		}
	}
}

// Of any report that was made from another tool's file, no text has a control character after Escape.
func TestEscape(t *testing.T) {
	var rep report.Report
	fill(random.New(t), reflect.ValueOf(&rep).Elem())
	var evil func(reflect.Value)
	evil = func(v reflect.Value) {
		switch v.Kind() {
		case reflect.String:
			v.SetString("a\nb\x1b[31m" + v.String())
		case reflect.Pointer:
			evil(v.Elem())
		case reflect.Slice:
			for i := range v.Len() {
				evil(v.Index(i))
			}
		case reflect.Struct:
			for i := range v.NumField() {
				if v.Type().Field(i).Tag.Get("json") != "-" && v.Type().Field(i).IsExported() {
					evil(v.Field(i))
				}
			}
		}
	}
	evil(reflect.ValueOf(&rep))
	rep.Foreign = &report.Foreign{Format: "x\x1b", Limits: []string{"y\n"}}
	before, after, control := 0, 0, "\n\x1b"
	texts(reflect.ValueOf(&rep), func(s string) { before++ })
	rep.Escape()
	texts(reflect.ValueOf(&rep), func(s string) {
		if after++; strings.ContainsAny(s, control) {
			t.Errorf("%q", s)
		}
	})
	check.Equal(t, after, before, "%d texts")
	if before < 50 {
		t.Errorf("only %d texts", before)
	}
	check.Contains(t, rep.Label, "[31m<") // the rest is there
}

// The limits of each number in gaps.csv.zst.
func TestGapLimits(t *testing.T) {
	const year2200, most = 7258118400 * 1_000_000_000, 1 << 60
	r := &report.Report{Dir: t.TempDir(), Gaps: &report.Gaps{}}
	head := "core,start_ns,duration_ns,cause,name,weak\n"
	for _, c := range []struct{ text, want string }{
		{head, ""},
		{head + "1,0,0,,,\n", ""},
		{head + fmt.Sprintf("1,%d,%d,,,\n", year2200, most), ""},
		{head + fmt.Sprintf("1,%d,0,,,\n", year2200+1), ":2: "},
		{head + fmt.Sprintf("1,0,%d,,,\n", most+1), ":2: "},
		{head + "1,0,0,,,\n1,-1,0,,,\n", ":3: "},
		{head + "1,0,-1,,,\n", ":2: "},
		{head + "\"1\n\",0,0,,,\n", ":2: "},
		{head + "x,0,0,,,\n", ":2: "}, {head + "1,x,0,,,\n", ":2: "}, {head + "1,0,x,,,\n", ":2: "},
		{head + "1,0,0,,\n", "gaps.csv.zst"},
		{"cores,start_ns,duration_ns,cause,name,weak\n", ":1: "},
	} {
		z := must.Get(zstd.NewWriter(nil))(t)
		must.OK(t, os.WriteFile(filepath.Join(r.Dir, report.GapsFile), z.EncodeAll([]byte(c.text), nil), 0o644))
		if err := r.ReadGaps(); c.want == "" {
			check.OK(t, err)
			check.Equal(t, len(r.Gaps.All), strings.Count(c.text, "\n")-1, "%d gaps")
		} else {
			check.Fails(t, c.text, err, report.ErrFormat, c.want)
		}
	}
}

func TestTailLines(t *testing.T) {
	share := func(v float64) *float64 { return &v }
	of := func(c report.Cause) []string { return (&report.Tail{Probes: 1000, Causes: []report.Cause{c}}).Lines() }
	for _, c := range []struct {
		cause report.Cause
		want  string
	}{
		{report.Cause{What: "x", Probes: 250}, "around 25 % of the slowest 1,000: x"},
		{report.Cause{What: "x", Probes: 250, Explains: share(0.5)},
			"around 25 % of the slowest 1,000: x, up to 50 % of their time above the median"},
		{report.Cause{What: "x", Probes: 250, Explains: share(0.009)}, ""},
		{report.Cause{What: "x", Probes: 250, Explains: share(0.01)},
			"around 25 % of the slowest 1,000: x, up to 1 % of their time above the median"},
		{report.Cause{What: "x", Probes: 250, Within: 2000}, "around 25 % of the slowest 1,000: x, within 2.000 µs"},
		{report.Cause{What: "x", Probes: 250, Base: share(0.1)}, "around 25 % of the slowest 1,000: x (by chance 10 %)"},
		{report.Cause{What: "x", Probes: 10, Base: share(0)}, "around 1 % of the slowest 1,000: x (by chance 0 %)"},
		{report.Cause{What: "x", Probes: 250, Base: share(0.24)}, ""}, // 1.2 times and 1 % more would be 29.8 %
	} {
		check.Equal(t, strings.Join(of(c.cause), "\n"), c.want, "%q")
	}
	r := &report.Report{Tail: &report.Tail{Probes: 1, Causes: []report.Cause{{What: "x", Probes: 1}}}}
	check.Equal(t, len(r.TailLines()), 1, "%d lines")
	r.Attribution = &attribution.Result{}
	check.Equal(t, len(r.TailLines()), 1, "%d lines beside an empty attribution")
	r.Attribution.Probes = 1
	check.Equal(t, len(r.TailLines()), 0, "%d lines beside an attribution")
	check.Equal(t, len((*report.Tail)(nil).Lines())+len((&report.Tail{}).Lines()), 0, "%d lines of none")
}

func TestDropTexts(t *testing.T) {
	to := report.AddDrops(nil, []report.Drop{{Place: report.DroppedHere, By: "a", Frames: 1, Ours: true},
		{Place: report.DroppedHere, By: "b"}})
	to = report.AddDrops(to, []report.Drop{{Place: report.DroppedHere, By: "a", Frames: 2, Ours: true},
		{Place: report.DroppedThere, By: "a", Frames: 5, Ours: true}, {Place: report.NotSent, By: "c", Frames: 7}})
	check.Same(t, to, []report.Drop{{Place: report.DroppedHere, By: "a", Frames: 3, Ours: true},
		{Place: report.DroppedThere, By: "a", Frames: 5, Ours: true},
		{Place: report.NotSent, By: "c", Frames: 7}}, "%v")
	added := report.AddDrops(to, []report.Drop{{Place: report.NotSent, By: "c", Ours: true}})
	check.Equal(t, added[2].Ours, false, "%t")
	r := &report.Report{Drops: to, Counts: report.Counts{DroppedHere: 3, DroppedThere: 4, SendFailed: 7}}
	check.Same(t, r.ByCounter(), []string{"not sent: 7 by c (may include other traffic)", "dropped here: 3 by a",
		"dropped there: 5 by a (includes probes that are not in sent: of the warm-up, or not awaited)"}, "%q")
	r.Rejected = []report.Rejection{{Reason: "wrong source", Frames: 1200}, {Reason: "wrong length", Frames: 1}}
	check.Equal(t, r.RejectedText(), "1,200 wrong source, 1 wrong length", "%q")
	check.Equal(t, (&report.Report{}).RejectedText(), "", "%q")
}

func TestCountTexts(t *testing.T) {
	c := report.Counts{Lost: 5, LostUncertain: 2, DroppedHere: 7, DroppedHereUncertain: 7, RefusedThere: 1}
	check.Equal(t, c.LostText(), "between 3 and 5", "%q")
	check.Equal(t, c.LostWhere(), "on the way or in the target", "%q")
	check.Equal(t, c.Elsewhere(), "between 0 and 7 dropped here, 1 refused there", "%q")
	for _, p := range report.Places { // an amount of 0 is known only if counters covered the place
		check.Equal(t, (&report.Counts{}).AtText(p), map[report.Place]string{report.NotSent: "0"}[p]+
			map[bool]string{true: "unknown"}[p != report.NotSent], string(p)+": %q")
		all := report.Counts{DroppedHereCounted: true, RefusedThereCounted: true, DroppedThereCounted: true,
			UnknownCounted: true}
		check.Equal(t, all.AtText(p), "0", string(p)+": %q")
	}
	c.DroppedThereCounted, c.RefusedThereCounted = true, true
	check.Equal(t, c.LostWhere(), "between the hosts", "%q")
	c.RefusedThereCounted, c.DroppedThereCounted = false, true
	check.Equal(t, c.LostWhere(), "on the way or in the target", "%q")
	check.Equal(t, c.UnknownText(), "", "%q")
	c.Unknown = 1
	check.Contains(t, c.UnknownText(), "1 unknown: this host's kernel rejected replies")
	check.Equal(t, c.LostWhere(), "on the way or in the target", "%q")
	c.LostUncertain = 5
	check.Equal(t, c.LostWhere(), "", "%q")
	c.LostUncertain = 9
	check.Equal(t, c.LostLeast(), 0, "at least %d lost")
}

// What another tool's file has of a distribution, and what it says about that.
func TestForeign(t *testing.T) {
	points := func(q ...float64) (all []latency.Percentile) {
		for _, q := range q {
			all = append(all, latency.Percentile{Quantile: q, Value: int64(1000 * q)})
		}
		return all
	}
	for _, c := range []struct {
		f       report.Foreign
		want    string
		partial bool
	}{
		{report.Foreign{Runs: "16 parts"}, "runs: 16 parts", false},
		{report.Foreign{Single: "no order"}, "no verdicts, because it counts as one run: no order", false},
		{report.Foreign{Points: points(0, 1)}, "only minimum, mean and maximum are known: no verdicts", true},
		{report.Foreign{Points: points(0, 0.9)}, "only the listed percentiles are known: no verdicts", true},
		{report.Foreign{Points: points(0.1, 1)}, "only the listed percentiles are known: no verdicts", true},
		{report.Foreign{Points: points(0, 0.5, 1)}, "only the listed percentiles are known: no verdicts", true},
		{report.Foreign{Runs: "x", Beyond: 1, Limits: []string{"l"}},
			"runs: x\n1 samples or more are above the tool's histogram: percentiles among them are unknown\nl", true},
	} {
		c.f.Format, c.f.Unit = "ping output", "ms"
		check.Equal(t, strings.Join(c.f.Lines(), "\n"), "ping output, values in ms\n"+c.want, "%q")
		check.Equal(t, c.f.Partial(), c.partial, c.want+": partial %t")
	}
	none := (*report.Foreign)(nil)
	check.Equal(t, len(none.Lines()), 0, "%d lines of none")
	check.Equal(t, none.Partial() || !none.Dated(), false, "a report of ours lacks something: %t")
	check.Equal(t, (&report.Foreign{}).Dated(), false, "dated %t")
	check.Equal(t, (&report.Foreign{Timed: true}).Dated(), true, "dated %t")

	r := report.New("x", report.RoundTrip)
	r.Add(latency.MainSeries, latency.FromValues([]int64{10, 20, 30, 40}))
	quantile := func(q, want float64) {
		t.Helper()
		if got := r.Quantile(q); got != want && !(math.IsNaN(got) && math.IsNaN(want)) {
			t.Errorf("quantile %v is %v, want %v", q, got, want)
		}
	}
	extremes := func(want ...float64) {
		t.Helper()
		least, greatest, mean := r.Extremes()
		check.Same(t, []float64{least, greatest, mean}, want, "%v")
	}
	quantile(0.75, 30)
	extremes(10, 40, 25)
	r.Foreign = &report.Foreign{Beyond: 1, Min: 9, Max: 99, Mean: 50}
	quantile(0.75, 30)
	quantile(0.76, math.NaN())
	extremes(9, 99, 50)
	r.Foreign.Points = points(0.5)
	quantile(0.5, 500)
	quantile(0.75, math.NaN())
	check.Equal(t, r.Measured(), true, "measured %t")
	r.Series = nil
	r.Add(latency.MainSeries, &latency.Histogram{})
	check.Equal(t, r.Measured(), true, "with percentiles only it is measured: %t")
	r.Foreign.Points = nil
	check.Equal(t, r.Measured(), false, "without samples it is measured: %t")
}

// An interval belongs to the run that its middle is in.
func TestByRun(t *testing.T) {
	r := report.New("bench", report.RoundTrip)
	r.Runs = []latency.Run{{Start: 0, End: 100}, {Start: 200, End: 300}, {Start: 300, End: 400}}
	check.Equal(t, len(r.ByRun()), 3, "%d runs without a series")
	s := &latency.Series{Name: latency.MainSeries}
	add := func(start, end int64, values ...int64) {
		s.Intervals = append(s.Intervals, latency.Interval{Start: start, End: end,
			Histogram: latency.FromValues(values)})
	}
	add(0, 50, 1)
	add(50, 101, 2)
	add(110, 190, 3) // in no run
	add(200, 300)    // empty
	add(299, 301, 6) // in both, at the end of the first
	add(300, 400, 4)
	add(500, 600, 5)
	s.Sum()
	r.Series = []*latency.Series{s}
	var got []string
	for _, h := range r.ByRun() {
		if h == nil {
			got = append(got, "none")
		} else {
			got = append(got, fmt.Sprint(h.Count, " to ", h.Max))
		}
	}
	check.Same(t, got, []string{"2 to 2", "1 to 6", "1 to 4"}, "%q")
	r.Add(latency.JitterSeries, latency.FromValues([]int64{1}))
	check.Equal(t, r.Series[1].Intervals[0].End, 0, "a series of a report without an end ends at %d")
}

func TestNames(t *testing.T) {
	r := &report.Report{Metric: report.RoundTrip, Device: report.Device{Driver: "mlx5", Device: "eth1"}}
	check.Equal(t, r.Name(), "mlx5 eth1 round trip", "%q")
	r.Traffic = report.Traffic{Protocol: "udp", Target: "10.0.0.2:7"}
	check.Equal(t, r.Name(), "UDP 10.0.0.2:7", "%q")
	r.Dir = "out/a\x1b"
	check.Equal(t, strings.HasPrefix(r.Name(), "a") && !strings.Contains(r.Name(), "\x1b"), true, "a folder's name: %t")
	r.Label = "l"
	check.Equal(t, r.Name(), "l", "%q")
	r.Transfers, r.Counts = map[string]int64{"dma read": 30}, report.Counts{Sent: 10, Received: 5}
	check.Equal(t, r.PerReply("dma read"), 6, "%v reads a reply")
	r.Tool = "responder"
	check.Equal(t, r.PerReply("dma read"), 3, "%v reads a reply")
	r.Counts = report.Counts{}
	check.Equal(t, r.PerReply("dma read"), 30, "%v reads without a reply")
	check.Equal(t, r.Device.Sim(), false, "a model: %t")
	r.Device.Backend = "sim"
	check.Equal(t, r.Device.Sim(), true, "a model: %t")
	check.Equal(t, (&report.OneWay{}).Known(), true, "delays are known: %t")
	check.Equal(t, (&report.OneWay{Why: "no clock"}).Known(), false, "delays are known: %t")
	for arrivals, want := range map[string]string{"": "", "poisson": "Poisson arrivals", "burst:8": "bursts of 8",
		"replay:a:b": "times between packets from a:b", "odd": "odd"} {
		check.Equal(t, (&report.Traffic{Arrivals: arrivals}).Spread(), want, "%q")
	}
}
