package report

import (
	"fmt"
	"math"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/attribution"
	"github.com/rebound-nic/rebound/proof/check"
)

// Causes are counted by the gaps of their own core that they are a part of, each once, and by their times.
func TestGapCauses(t *testing.T) {
	const us = int64(1000)
	g := Gaps{All: []Gap{ // in the order of time
		{Core: 0, Start: 0, Duration: 100 * us},
		{Core: 2, Start: 0, Duration: 100 * us},
		{Core: 0, Start: 10 * us, Duration: 30 * us, Text: "descheduled", Name: "hog"},
		{Core: 0, Start: 50 * us, Duration: 30 * us, Text: "descheduled", Name: "hog"}, // of the same gap
		{Core: 0, Start: 90 * us, Duration: 5 * us, Text: "timer tick"},                // less than a tenth
		{Core: -1, Start: 95 * us, Duration: 300 * us, Text: "pause", Weak: true},      // of all cores
		{Core: 0, Start: 200 * us, Duration: 20 * us},
		{Core: 0, Start: 205 * us, Duration: 10 * us, Text: "descheduled", Name: "cron"},
		{Core: 0, Start: 500 * us, Duration: 1000 * us, Text: "descheduled", Name: "hog"}, // in no gap
	}}
	for range 2 { // a second time changes nothing
		g.Sum()
		check.Equal(t, g.Kept, 3, "%d gaps")
		check.Same(t, g.Causes, []GapCause{
			{Text: "pause", Weak: true, Gaps: 3, Times: 1},
			{Text: "descheduled", Name: "hog", Gaps: 1, Times: 3, Took: 1060 * us, Longest: 1000 * us},
			{Text: "descheduled", Name: "cron", Gaps: 1, Times: 1, Took: 10 * us, Longest: 10 * us},
			{Text: "timer tick", Times: 1, Took: 5 * us, Longest: 5 * us},
		}, "%+v")
	}
	g = Gaps{}
	for k := range int64(2 * mostGapCauses) {
		g.All = append(g.All, Gap{Core: 0, Start: k, Duration: 1, Text: "a thread", Name: string(rune('A' + k))})
	}
	g.Sum()
	check.Equal(t, len(g.Causes), mostGapCauses, "%d causes")
}

func TestVersionOf(t *testing.T) {
	const revision = "0123456789abcdef"
	for _, c := range []struct{ key, value, key2, value2, want string }{
		{"GOOS", "linux", "", "", "v1.2.3"}, {"vcs.modified", "true", "", "", "v1.2.3"},
		{"vcs.revision", revision, "vcs.modified", "false", "0123456789ab"},
		{"vcs.revision", revision, "vcs.modified", "true", "0123456789ab modified"},
		{"vcs.revision", revision[:5], "other", "true", "01234"},
	} {
		b := &debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}, Settings: []debug.BuildSetting{
			{Key: c.key, Value: c.value}, {Key: c.key2, Value: c.value2}}}
		check.Equal(t, versionOf(b), c.want, "version %q")
	}
}

// The limits of what a report from another machine may say, each with the next value beyond it.
func TestCheckLimits(t *testing.T) {
	year := func(y int) func(*Report) {
		return func(r *Report) { r.Start = time.Date(y, 7, 1, 0, 0, 0, 0, time.UTC) }
	}
	sent := func(n int64) func(*Report) { return func(r *Report) { r.Counts.Sent = n } }
	rate := func(f float64) func(*Report) { return func(r *Report) { r.Traffic.Rate = f } }
	core := func(n int) func(*Report) { return func(r *Report) { r.Host.Core = n } }
	runs := func(all ...latency.Run) func(*Report) { return func(r *Report) { r.Runs = all } }
	series := func(n int) func(*Report) {
		return func(r *Report) {
			for i := range n {
				r.Series = append(r.Series, &latency.Series{Name: fmt.Sprint(i)})
			}
		}
	}
	at := func(ns int64) func(*Report) {
		return func(r *Report) {
			r.Attribution = &attribution.Result{Rows: []attribution.Row{{}, {Times: attribution.Times{0, ns}}}}
		}
	}
	summary := func(m latency.Summary) func(*Report) {
		return func(r *Report) { r.Series = []*latency.Series{{Name: "rtt", Summary: m}} }
	}
	ascending := latency.Summary{Min: 1e6, P50: 2e6, P90: 3e6, P99: 4e6, P999: 5e6, P9999: 6e6, Max: 7e6, Mean: 3e6}
	mean := func(ns float64) func(*Report) {
		m := ascending
		m.Mean = ns
		return summary(m)
	}
	for i, c := range []struct {
		good, bad func(*Report)
		says      string
	}{
		{year(1970), year(1969), "start: 1969"}, {year(2200), year(2201), "start: 2201"},
		{sent(0), sent(-1), "counts.sent: -1"}, {sent(maxTime), sent(maxTime + 1), "counts.sent: "},
		{rate(1e18), rate(1.01e18), "traffic.rate: 1.01e+18"}, {rate(-1e18), rate(-1.01e18), "traffic.rate: -1.01e+18"},
		{rate(0), rate(math.NaN()), "traffic.rate: NaN"}, {core(-1), core(-2), "host.core: -2"},
		{runs(latency.Run{Start: 5, End: 5}, latency.Run{Start: 5, End: 7}), runs(latency.Run{Start: 5, End: 4}),
			"runs[0]"},
		{runs(), runs(latency.Run{Start: 5, End: 7}, latency.Run{Start: 6, End: 8}), "runs[1]"},
		{series(256), series(257), "257 of them"},
		{at(attribution.NotKnown), at(attribution.NotKnown - 1), "[1]: -"}, {at(maxTime), at(maxTime + 1), "want 0 to"},
		{mean(7e6 + 6e-3), mean(7e6 + 8e-3), "mean_ns"}, {mean(1e6 - 6e-3), mean(1e6 - 8e-3), "mean_ns"},
	} {
		var good, bad Report
		c.good(&good)
		c.bad(&bad)
		check.OK(t, good.check())
		check.Fails(t, fmt.Sprint("row ", i), bad.check(), nil, c.says)
	}
	for _, lower := range []func(*latency.Summary){func(m *latency.Summary) { m.Min = m.P50 + 1 },
		func(m *latency.Summary) { m.P50 = m.P90 + 1 }, func(m *latency.Summary) { m.P90 = m.P99 + 1 },
		func(m *latency.Summary) { m.P99 = m.P999 + 1 }, func(m *latency.Summary) { m.P999 = m.P9999 + 1 },
		func(m *latency.Summary) { m.P9999 = m.Max + 1 }} {
		m := ascending
		lower(&m)
		check.Fails(t, fmt.Sprintf("%+v", m), ordered(&m), nil, "is above")
	}
	r := Report{Label: "a\x1b", Transfers: map[string]int64{"b\x1b": 7}}
	check.OK(t, r.check())
	check.Equal(t, strings.Contains(fmt.Sprint(r.Label, r.Transfers), "\x1b"), false, "a control character is left: %t")
	check.Equal(t, len(r.Transfers), 1, "%d transfers")
}
