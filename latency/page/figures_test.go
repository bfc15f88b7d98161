package page

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/check"
)

// The ticks of an axis are round, within it, and neither too many nor too few.
func TestTicks(t *testing.T) {
	text := func(all []tick) string {
		var out []string
		for _, t := range all {
			if t.label != "" {
				out = append(out, strings.ReplaceAll(t.label, "\u00a0", ""))
			}
		}
		return fmt.Sprint(len(all), " ", strings.Join(out, " "))
	}
	count := func(lo, hi float64, n int) []tick { return linearTicks(lo, hi, n, tickCount) }
	for _, c := range []struct {
		ticks []tick
		want  string
	}{
		{count(0, 10, 5), "6 0 2 4 6 8 10"}, {count(0, 5, 5), "6 0 1 2 3 4 5"}, {count(0, 24, 5), "5 0 5 10 15 20"},
		{count(0, 51, 5), "3 0 20 40"}, {count(-7, 7, 7), "7 -6 -4 -2 0 2 4 6"}, {count(100, 1600, 8), "8 200 400 600 800 1k 1.2k 1.4k 1.6k"},
		{logTicks(1, 2, tickCount), "6 1 1.2 1.4 1.6 1.8 2"}, {logTicks(1, 10, tickCount), "10 1 2 3 4 5 7 10"},
		{logTicks(1, 1000, tickCount), "28 1 2 5 10 20 50 100 200 500 1k"},
		{logTicks(1, 10_000, tickCount), "37 1 10 100 1k 10k"}, {logTicks(1, 1e5, tickCount), "46 1 10 100 1k 10k 100k"},
		{logTicks(1, 2e6, tickCount), "7 1 10 100 1k 10k 100k 1M"}, {logTicks(0.9, 3, tickCount), "4 1 2 3"},
		{ninesAxis(1).ticks, "3 0% 50% 90%"}, {ninesAxis(4.99).ticks, "6 0% 50% 90% 99% 99.9% 99.99%"},
	} {
		check.Equal(t, text(c.ticks), c.want, "%q")
	}
	for v, want := range map[float64]string{0: "0", 999: "999", 1000: "1k", 999_999: "999.999k",
		1e6: "1M", 2.5e8: "250M",
		1e9: "1G", 12e9: "12G"} {
		check.Equal(t, tickCount(v), want, "%q")
	}
	for v, want := range map[float64]string{1e9: "1 s", 999.95e6: "1 s", 999e6: "999 ms", 1e6: "1 ms", 2500: "2.5 µs",
		1000: "1 µs", 999: "999 ns", 0.5: "0.5 ns", 1.00004: "1 ns", 1.00006: "1.0001 ns"} {
		check.Equal(t, tickNS(v), strings.Replace(want, " ", "\u00a0", 1), fmt.Sprint(v, ": %q"))
	}
	for v, want := range map[float64]string{0: "0 %", 1e-10: "0 %", -1e-10: "0 %", 1e-9: "+1e-09 %", 2.5: "+2.5 %",
		-12: "-12 %"} {
		check.Equal(t, percentTick(v), want, "%q")
	}
	for v, want := range map[float64]float64{0: 0, 0.9: 1, 0.999: 3, 1: 15} {
		if got := nines(v); math.Abs(got-want) > 1e-9 {
			t.Errorf("%g of %g, want %g", got, v, want)
		}
	}
	for _, c := range []struct{ lo, hi, from, to float64 }{{1000, 1e6, 758.58, 1_318_257}, {100, 109, 95, 114.45},
		{0, 0, 0.9727, 2.0562}, {100, 110, 99.619, 110.42}} {
		if a := valueAxis("", c.lo, c.hi); math.Abs(a.lo/c.from-1) > 1e-4 || math.Abs(a.hi/c.to-1) > 1e-4 || !a.log {
			t.Errorf("%+v: %+v", c, a)
		}
	}
}

// Bins cover all values, at most 140, none of them empty, each 1.5 % wider than the former or more.
func TestBinEdges(t *testing.T) {
	for _, c := range []struct {
		lo, hi float64
		n      int
		last   float64
	}{{0, 0, 2, 2}, {1, 1, 3, 3}, {1000, 1000, 2, 1002}, {1000, 1013, 2, 1014}, {1000, 1100, 7, 1101}, {1000, 2000, 47, 2001},
		{1000, 1e9, 141, 1e9 + 1}, {1, 20, 21, 21}} {
		edges := binEdges(c.lo, c.hi)
		check.Equal(t, len(edges), c.n, fmt.Sprintf("%+v: %%d edges", c))
		check.Equal(t, edges[0], max(c.lo, 1), fmt.Sprintf("%+v: from %%g", c))
		check.Equal(t, edges[len(edges)-1], c.last, fmt.Sprintf("%+v: to %%g", c))
		if slices.Sort(edges); len(slices.Compact(edges)) != c.n {
			t.Errorf("%+v: %v", c, edges)
		}
	}
}

// A line is interrupted where its value is unknown, and a single point is as wide as can be seen.
func TestPaths(t *testing.T) {
	x, nan := func(v float64) float64 { return 10 * v }, math.NaN()
	y := func(v float64) float64 { return 100 - v }
	for what, c := range map[string]struct {
		c             curve
		gaps          bool
		want, outline string
	}{
		"nothing":  {c: curve{}},
		"a point":  {c: curve{x: []float64{1}, y: []float64{5}}, want: "M10 95L12 95", outline: "M10 93L10 96Z"},
		"a line":   {c: curve{x: []float64{1, 2, 3}, y: []float64{5, 6, 0}}, want: "M10 95L20 94L30 100", outline: "M10 93L20 92L30 98L30 101L20 95L10 96Z"},
		"unknown":  {c: curve{x: []float64{1, 2, 3, 4}, y: []float64{nan, 6, nan, 7}}, want: "M20 94L22 94M40 93L42 93", outline: "M20 92L20 95ZM40 91L40 94Z"},
		"at end":   {c: curve{x: []float64{1, 2, 3}, y: []float64{5, 6, nan}}, want: "M10 95L20 94", outline: "M10 93L20 92L20 95L10 96Z"},
		"steps":    {c: curve{x: []float64{1, 2, 3}, y: []float64{5, 0, 6}, steps: true}, want: "M10 95L20 95L20 100L30 100L30 94", outline: "M10 93L20 98L30 92L30 95L20 101L10 96Z"},
		"no empty": {c: curve{x: []float64{1, 2, 3}, y: []float64{5, 0, 6}, steps: true}, gaps: true, want: "M10 95L20 95L20 100M30 100L30 94", outline: "M10 93L20 98L30 92L30 95L20 101L10 96Z"},
	} {
		short := strings.NewReplacer(".00", "", ".0", "")
		check.Equal(t, short.Replace(pathOf(c.c, x, y, c.gaps)), c.want, what+": %s")
		for _, v := range c.c.y {
			c.c.lo, c.c.hi = append(c.c.lo, v-1), append(c.c.hi, v+2)
		}
		check.Equal(t, short.Replace(bandOf(c.c, x, y)), c.outline, what+", band: %s")
	}
	for _, c := range []struct{ lo, hi, v, want float64 }{{10, 20, 15, 0.5}, {10, 20, 9, 0}, {10, 20, 21, 1}} {
		check.Equal(t, (&axis{lo: c.lo, hi: c.hi}).share(c.v), c.want, fmt.Sprintf("%+v: %%g", c))
	}
	for v, want := range map[float64]float64{0: 0, 1: 0, 10: 0.5, 100: 1, 1000: 1} {
		check.Equal(t, (&axis{lo: 1, hi: 100, log: true}).share(v), want, fmt.Sprint(v, ": %g"))
	}
}

// A single value is drawn in the middle of an axis that is wider than it, with all its samples.
func TestDistributionOfFewValues(t *testing.T) {
	for _, c := range []struct {
		values []int64
		axis   string
	}{
		{[]int64{100, 100, 100}, "95 105 "},
		{[]int64{100, 107}, "95 112.35"},
		{[]int64{100, 120}, "100 121 "},
	} {
		svg := string(distributionFigure([]drawn{{name: "a", h: latency.FromValues(c.values)},
			{name: "b", h: &latency.Histogram{}}}, "u"))
		check.Contains(t, svg, ` data-x="`+c.axis)
		_, table, _ := strings.Cut(svg, `class="data">`)
		sum := 0
		for _, line := range strings.Split(strings.TrimSuffix(table, "</template>"), "\n")[1:] {
			var at, n int
			if _, err := fmt.Sscanf(line, "a %d %d", &at, &n); err == nil {
				sum += n
			}
		}
		check.Equal(t, sum, len(c.values), "%d samples")
	}
	check.Equal(t, distributionFigure([]drawn{{h: &latency.Histogram{}}}, ""), "", "of nothing: %s")
	check.Equal(t, percentileFigure([]drawn{{h: &latency.Histogram{}}}, ""), "", "of nothing: %s")
}

// The rate without loss and the knee, at their limits.
func TestLosslessAndKnee(t *testing.T) {
	of := func(rate float64, lost int64, p99 int64) *report.Report {
		r := &report.Report{Metric: report.RoundTrip, Counts: report.Counts{Sent: 10, Received: 10 - lost, Lost: lost},
			Series: []*latency.Series{{Name: latency.MainSeries, Total: latency.FromValues([]int64{p99, p99})}}}
		r.Traffic.Rate = rate
		for _, s := range r.Series {
			s.Summary = s.Total.Summary()
		}
		return r
	}
	late := of(3000, 1, 100)
	late.Counts.Late, late.Counts.Lost = 1, 0
	for what, c := range map[string]struct {
		all      []*report.Report
		lossless float64
		knee     float64
		over     bool
	}{
		"all":       {[]*report.Report{of(2000, 0, 200), of(1000, 0, 100)}, 2000, 2000, false},
		"twice":     {[]*report.Report{of(1000, 0, 100), of(2000, 0, 201), of(3000, 0, 100)}, 3000, 1000, true},
		"lost":      {[]*report.Report{of(1000, 0, 100), of(2000, 1, 100), of(3000, 0, 100)}, 1000, 3000, false},
		"late":      {[]*report.Report{of(1000, 0, 100), late}, 3000, 3000, false},
		"the first": {[]*report.Report{of(1000, 1, 100)}, 0, 1000, false},
	} {
		check.Equal(t, lossless(c.all), c.lossless, what+": no loss up to %g")
		rate, over := knee(c.all)
		check.Equal(t, fmt.Sprint(rate, over), fmt.Sprint(c.knee, c.over), what+": %s")
	}
}

// A comparison has the facts that differ, and the most important ones.
func TestFactRows(t *testing.T) {
	a, b := targets(2)[0].R, targets(2)[1].R
	names := func(all ...*report.Report) (out []string) {
		for _, row := range factRows(all) {
			out = append(out, row.Name)
			check.Equal(t, len(row.Values), len(all), row.Name+" has %d values")
		}
		return out
	}
	same := names(a, a)
	for _, name := range same {
		check.Equal(t, slices.Contains([]string{"Host", "CPU", "Kernel", "Driver", "Backend"}, name), true, name+": %t")
	}
	a.Device.Model = "X"
	more := names(a, b)
	check.Equal(t, len(more) > len(same), true, fmt.Sprint(more, ": a fact that differs: %t"))
}

// Below a table is why a row has no verdict, once, unless the reports cannot be compared at all.
func TestFootOfATable(t *testing.T) {
	a, b := session()
	for _, comparable := range []bool{true, false} {
		if !comparable {
			b.Metric = report.HalfTrip
		}
		c := compare.Reports(a, b)
		table := tableOf(&c.Pairs[0], legend{}, legend{})
		check.Equal(t, table.Not, !comparable, "not comparable: %t")
		whys := 0
		for i, row := range table.Rows {
			if row.Why != "" {
				whys++
				explained := slices.Contains(table.Foot, upperFirst(row.Why)+".")
				check.Equal(t, explained, comparable, fmt.Sprint(i, " is explained: %t"))
			}
		}
		seen := slices.Clone(table.Foot)
		slices.Sort(seen)
		check.Equal(t, len(slices.Compact(seen)), len(table.Foot), "%d different")
	}
}

// The axes of a sweep leave room on both sides, also if the sizes are nearly the same.
func TestAxesOfASweep(t *testing.T) {
	for want, c := range map[string]struct {
		x     []float64
		rates bool
	}{`"59 62 0 62 906 bytes"`: {x: []float64{60, 61}}, `"59 61 0 62 906 bytes"`: {x: []float64{60, 60}},
		`"57 163 0 62 906 bytes"`: {x: []float64{160, 60}}, `"10 2200 1 62 906 rate"`: {[]float64{11, 2000}, true}} {
		svg := string(sweepFigure("t", "", "u", []curve{{x: c.x, y: []float64{7, 9}}}, c.rates, nil).SVG)
		check.Contains(t, svg, " data-x="+want, ` from 7 ns to 9 ns.`)
	}
}

// The axis of a shift function has room for the band in the body: half as much again as half of its median width.
func TestRoomOfAShiftFunction(t *testing.T) {
	a, b := session()
	pair := compare.Reports(a, b).Pairs[0]
	lo, hi := 0.0, 0.0
	var widths []float64
	for _, r := range pair.ShiftFunction() {
		if shift := r.Percent(); r.Tested() && !math.IsNaN(shift) {
			lo, hi = min(lo, shift), max(hi, shift)
			if width := 50 * (r.Hi - r.Lo) / r.Base; !math.IsInf(width, 0) {
				widths = append(widths, width)
			}
		}
	}
	slices.Sort(widths)
	room := max(0.1*max(hi-lo, 1), 1.5*widths[len(widths)/2])
	svg := string(shiftFunction(&pair, legend{})[0].SVG)
	_, axis, _ := strings.Cut(svg, `data-y="`)
	var from, to float64
	fmt.Sscan(axis, &from, &to)
	if math.Abs(from-(lo-room)) > 1e-6 || math.Abs(to-(hi+room)) > 1e-6 {
		t.Errorf("from %g to %g, want %g and %g", from, to, lo-room, hi+room)
	}
	b.Metric = report.HalfTrip
	pair = compare.Reports(a, b).Pairs[0]
	check.Equal(t, len(shiftFunction(&pair, legend{})), 0, "%d of what cannot be compared")
}

// Over time are the reports that have stretches, with p99 if there are at most three, since the start of the session or
// of each.
func TestOverTime(t *testing.T) {
	of := func(runs int, session string, later time.Duration) *report.Report {
		r, s := cut()
		r.Metric, r.Session, r.Start = report.RoundTrip, session, time.Unix(1000, 0).Add(later)
		r.Label = fmt.Sprint(later)
		if r.Runs = r.Runs[:runs]; runs == 0 {
			s.Intervals = s.Intervals[:1]
		}
		s.Sum()
		return r
	}
	for what, c := range map[string]struct {
		all    []*report.Report
		curves int
		says   string
	}{
		"one":            {[]*report.Report{of(2, "", 0)}, 2, "since the start of each report"},
		"three":          {[]*report.Report{of(2, "", 0), of(2, "", time.Second), of(2, "", 0)}, 6, `data-x="0 12.01 `},
		"four":           {[]*report.Report{of(2, "", 0), of(2, "", 0), of(2, "", 0), of(2, "", 0)}, 4, "Latency of 4 reports"},
		"one is short":   {[]*report.Report{of(2, "", 0), of(0, "", 0)}, 2, "Latency of 1 report over"},
		"a session":      {[]*report.Report{of(2, "s", 0), of(2, "s", time.Second)}, 4, `data-x="0 13.01 `},
		"since it began": {[]*report.Report{of(2, "s", 0), of(2, "s", 0)}, 4, "since the start of the session"},
		"two sessions":   {[]*report.Report{of(2, "s", 0), of(2, "q", time.Second)}, 4, `data-x="0 12.01 `},
	} {
		figure := timesFigure(c.all, make([]legend, len(c.all)), "u")[0]
		check.Equal(t, strings.Count(string(figure.SVG), `<path class="curve`), 2*c.curves, what+": %d curves")
		check.Equal(t, strings.Contains(figure.Caption, "p99"), len(c.all) <= 3, what+": p99 in the caption: %t")
		check.Contains(t, string(figure.SVG), c.says)
	}
	none := timesFigure([]*report.Report{of(0, "", 0)}, make([]legend, 1), "u")
	check.Equal(t, len(none), 0, "%d figures of one stretch")
}

// A table of states has their column only if its rows have states.
func TestStates(t *testing.T) {
	for want, rows := range map[bool][][]StatusRow{false: {nil, {{Name: "a"}}}, true: {{{Name: "a", State: "up"}}}} {
		for _, r := range rows {
			check.Equal(t, (&Status{Rows: r}).States(), want, fmt.Sprint(r, ": %t"))
		}
	}
}
