package compare

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/host"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/synthetic"
)

// Values missing from an anonymous report are unknown, not different.
func TestCompareAnonymous(t *testing.T) {
	facts := func(name, kernel, cmdline string) host.Facts {
		return host.Facts{Hostname: name, Kernel: kernel, Cmdline: cmdline}
	}
	for _, c := range []struct {
		name string
		a, b host.Facts
		hide int // how many of the two are anonymous; -1: the first one, but it names its machine
		want string
		not  string
	}{
		{"the same", facts("x", "6.1.0-a", "quiet"), facts("x", "6.1.0-a", "quiet"), 0, "", "kernel"},
		{"two machines", facts("x", "6.1.0-a", ""), facts("y", "6.1.0-a", ""), 0, "measured on x (6.1.0-a), b on y (6.1.0-a)", ""},
		{"two machines of known names", facts("x", "6.1.0", ""), facts("y", "6.1.0", ""), -1, "measured on x (6.1.0), b on y (6.1.0)", "unnamed"},
		{"another suffix", facts("x", "6.1.0-a", ""), facts("x", "6.1.0-b", ""), 0, "measured on x (6.1.0-a), b on x (6.1.0-b)", ""},
		{"other settings", facts("x", "6.1.0", "quiet isolcpus=3"), facts("x", "6.1.0", "quiet nosmt"), 0, "only a has isolcpus=3, only b has nosmt", ""},
		{"the order of settings", facts("x", "6.1.0", "quiet nosmt"), facts("x", "6.1.0", "nosmt quiet"), 0, "", "kernel"},
		{"an unknown host", facts("x", "6.1.0", ""), facts("", "6.1.0", ""), 0, "a was measured on x (6.1.0), b on none (6.1.0)", ""},
		{"an unknown command line", facts("x", "6.1.0", "quiet"), facts("x", "6.1.0", ""), 0, "", "kernel"},
		{"one anonymous", facts("x", "6.1.0-a", "quiet"), facts("x", "6.1.0-a", "quiet"), 1, "leaves its machine unnamed", "was measured on"},
		{"both anonymous", facts("x", "6.1.0-a", "quiet"), facts("y", "6.1.0-b", "nosmt"), 2, "leaves its machine unnamed", "kernel command line"},
		{"anonymous, other kernels", facts("x", "6.1.0-a", ""), facts("x", "6.12.1-a", ""), 2, "on a machine left unnamed (6.1.0), b on a machine left unnamed (6.12.1)", "both may come"},
	} {
		a, b := synthetic.Link{Median: 10_000, Rate: 1000, Seconds: 1}.Report(),
			synthetic.Link{Median: 10_000, Rate: 1000, Seconds: 1}.Report()
		a.Label, b.Label, a.Host, b.Host = "a", "b", c.a, c.b
		for _, r := range []*report.Report{b, a}[:max(c.hide, 0)] {
			r.Anonymize()
		}
		a.Anonymous = a.Anonymous || c.hide < 0
		notes := strings.Join(Reports(a, b).Notes, "\n")
		if !strings.Contains(notes, c.want) || c.not != "" && strings.Contains(notes, c.not) {
			t.Errorf("%s: want %q and not %q:\n%s", c.name, c.want, c.not, notes)
		}
	}
}

// A report of a run that did not end says so in the notes, by its name.
func TestUnfinishedNote(t *testing.T) {
	a, b := machines(3, 10, true, steady, 0)
	check.Equal(t, strings.Contains(strings.Join(Reports(a, b).Notes, "\n"), "unfinished"), false,
		"of complete reports: %v")
	b.Unfinished = &report.Unfinished{Runs: 20, Run: 1e9}
	for _, c := range []*Comparison{Reports(a, b), Reports(a, b, b)} {
		check.Equal(t, strings.Count(strings.Join(c.Notes, "\n"), b.Name()+" is "+b.UnfinishedText()), 1, "said %d times")
	}
}

// Values that are only known to a part of themselves widen what an interval allows by that part. A shift that is
// smaller has no verdict, and says why.
func TestCoarseValues(t *testing.T) {
	median := func(resolution float64) Row {
		a, b := machines(3, 10, true, steady, 0.03)
		a.Resolution = resolution
		rows := Reports(a, b).Pairs[0].Rows
		return rows[slices.IndexFunc(rows, func(r Row) bool { return r.Stat.String() == "p50" })]
	}
	exact, coarse := median(0), median(0.05)
	check.Equal(t, exact.Verdict, Slower, "3 %% slower, with exact values: %s")
	check.Equal(t, coarse.Verdict, Unknown, "3 %% slower, with values known to 5 %%: %s")
	check.Contains(t, coarse.Why, "its values are only known to 20")
	if grain := 0.05 * coarse.Base; math.Abs(coarse.Allowed-exact.Allowed-grain) > 1e-6 ||
		math.Abs(coarse.Lo-exact.Lo) < grain/2 {
		t.Errorf("allowed %.1f, %.1f with exact values; from %.1f and %.1f", coarse.Allowed, exact.Allowed, coarse.Lo,
			exact.Lo)
	}
}

// However little what is allowed exceeds the end of an interval, or misses it, verdict, interval and p agree.
func TestIntervalAllows(t *testing.T) {
	const level, resolution = 0.02, 0.01
	for _, alternating := range []bool{true, false} {
		a, b := machines(3, 10, alternating, steady, 0.05)
		if !alternating {
			b.Start = a.Start // at the same time
		}
		a.Resolution = resolution
		p := Pair{A: a, B: b}
		p.see()
		narrow := p.row(p50, level)
		grain, verdicts := resolution*narrow.Base, map[Verdict]int{}
		for k := range 17 {
			p.clocks = narrow.Lo + float64(k-8)*accuracy*narrow.Base/8
			row := p.row(p50, level)
			check.Equal(t, row.Allowed, p.clocks+grain, "allowed %v")
			check.Equal(t, row.Verdict == Slower, row.Lo > 0, fmt.Sprintf("%d: slower from %v on: %%t", k, row.Lo))
			check.Equal(t, row.Verdict == Slower, row.P <= tableLevel, fmt.Sprintf("%d: with p=%v: %%t", k, row.P))
			check.Equal(t, row.Least, max(row.Hi-row.Shift, row.Shift-row.Lo), "the smallest that could be seen %v")
			verdicts[row.Verdict]++
		}
		check.Equal(t, len(verdicts), 2, "%d verdicts")
	}
}

// Three reports make two tables, whose expected false marks add up. The output says so.
func TestSeveralTables(t *testing.T) {
	a, b := machines(3, 10, true, steady, 0)
	want := "2 tables have verdicts"
	if notes := strings.Join(Reports(a, b).Notes, "\n"); strings.Contains(notes, "tables have verdicts") {
		t.Errorf("of one table: %s", notes)
	}
	if notes := strings.Join(Reports(a, b, b).Notes, "\n"); !strings.Contains(notes, want) ||
		!strings.Contains(notes, "up to 10 %") {
		t.Errorf("want %q: %s", want, notes)
	}
	few, _ := machines(3, 2, false, steady, 0) // not tested
	if notes := strings.Join(Reports(a, few, few).Notes, "\n"); strings.Contains(notes, "tables have verdicts") {
		t.Errorf("of no table: %s", notes)
	}
	check.Contains(t, severalTables(30), "up to 100 %")
	for r := range 4 {
		few.Host.Findings = append(few.Host.Findings, host.Finding{Severity: "serious", What: fmt.Sprint((3 * r) % 4)})
	}
	notes := Reports(few, a).Notes
	check.Equal(t, slices.IsSorted(notes) && len(notes) >= 4, true, "sorted: %t")
}

// Several tables share the rate of false marks: each row of many is tested at its share of the level, and a row that no
// number of runs could decide at that level is unknown, not unchanged.
func TestAmong(t *testing.T) {
	a, b := machines(3, 10, false, steady, 3)
	for tables, want := range map[int]Verdict{1: Slower, 200: Slower, 100_000: Unknown} {
		r := Among(tables, Stats(latency.FullTable)[1:3], a, b).Rows
		if len(r) != 2 || r[0].Verdict != want || r[0].Level != tableLevel/float64(2*tables) ||
			(want == Unknown) != strings.Contains(r[0].Why, "no verdict is possible") {
			t.Errorf("%d tables: %+v", tables, r)
		}
	}
	none := *b
	none.Series = nil
	for _, p := range []Pair{Among(1, []Stat{p50}, a, &none), Among(1, []Stat{p50}, &none, b),
		Reports(a, &none).Pairs[0]} {
		check.Equal(t, len(p.Rows), 0, "%d rows without samples")
	}
}

// machines returns two reports of n runs each that were measured alternately, or one after the other, the second
// slower by shift.
func machines(seed uint64, n int, alternating bool, m synthetic.Machine, shift float64) (a, b *report.Report) {
	m.Rnd = rand.New(rand.NewPCG(seed, 4))
	if m.Level == nil {
		m.Level = synthetic.Quiet
	}
	if alternating {
		a, b = m.Both(4000, 4000*(1+shift), synthetic.Slices(seed, n, 0.9, 0.1), 2)
	} else {
		a, b = m.Both(4000, 4000*(1+shift), consecutive(n, 0.9, 1), 2)
	}
	a.Label, b.Label = "old", "new"
	return a, b
}

// consecutive are n runs of each side, one side after the other, that begin every so many seconds.
func consecutive(n int, length, every float64) (s synthetic.Session) {
	for i := range 2 * n {
		at := float64(i) * every
		s.A = append(s.A, synthetic.Slot{Start: at, End: at + length})
	}
	s.A, s.B = s.A[:n], s.A[n:]
	return s
}

var steady = synthetic.Machine{Samples: 20_000, Noise: 0.004, Tail: 0.02}

func find(c *Comparison, stat string) Row {
	for _, r := range c.Pairs[0].Rows {
		if r.Stat.String() == stat {
			return r
		}
	}
	panic(stat)
}

// inverse reports whether two shifts, as shares of their bases, are those of inverse ratios.
func inverse(x, y float64) bool { return math.Abs((1+x)*(1+y)-1) < 3*accuracy }

// A real difference between alternating runs is found, with its sign, and the interval contains it. With the sides
// swapped the result is the same.
func TestDifferencesAreFound(t *testing.T) {
	for seed := range uint64(20) {
		a, b := machines(seed, 10, true, steady, 0.02)
		row := find(Reports(a, b), "p50")
		if row.Verdict != Slower || row.How != "10 pairs of runs" || row.Least < own || row.Lo > 80 || row.Hi < 80 || row.Lo <= 0 ||
			row.P > tableLevel {
			t.Errorf("seed %d: %+v; want slower by about 80 ns", seed, row)
		}
		if back := find(Reports(b, a), "p50"); back.Verdict != Faster || !inverse(back.Lo/back.Base, row.Hi/row.Base) ||
			!inverse(back.Hi/back.Base, row.Lo/row.Base) || !inverse(back.Shift/back.Base, row.Shift/row.Base) ||
			back.P != row.P {
			t.Errorf("seed %d: backwards %v of %v, %v to %v, p=%v", seed, back.Shift, back.Base, back.Lo, back.Hi,
				back.P)
		}
	}
}

// In an alternating session, a shift that may come from the bench's own two series has no verdict, however significant
// the test; the interval says so. The same shift of a longer round trip is found.
func TestBenchsOwnShift(t *testing.T) {
	m := steady
	m.Noise = 0.0005
	a, b := machines(1, 10, true, m, 0.006)
	row := find(Reports(a, b), "p50")
	if row.Verdict != Unknown || row.Shift < 15 || row.Shift > own || row.Lo > 0 || row.Hi < 0 || row.P <= tableLevel ||
		!strings.Contains(row.Why, "50.00 ns") && !strings.Contains(row.Why, "50 ns") {
		t.Errorf("24 ns: %+v", row)
	}
	if row := find(Reports(b, a), "p50"); row.Verdict != Unknown || row.Lo > 0 || row.Hi < 0 {
		t.Errorf("backwards: %+v", row)
	}
	same, too := machines(1, 10, true, m, 0)
	check.Equal(t, find(Reports(same, too), "p50").Verdict, Noise, "no shift: %s")
	a.Resolution = 0.02
	p := Pair{A: a, B: b, clocks: 7}
	p.see()
	row = p.row(p50, 0.005)
	check.Equal(t, row.Allowed, 7+0.02*row.Base, "%v ns are allowed for clocks and coarse values, which is more")
	a, b = machines(1, 10, true, m, 0.015)
	if row := find(Reports(a, b), "p50"); row.Verdict != Slower || row.Lo <= 0 {
		t.Errorf("60 ns: %+v", row)
	}
}

// A drift that both sides share does not mask a difference between pairs, in either direction.
func TestPairsCancelDrift(t *testing.T) {
	m := steady
	m.Level = func(t float64) float64 { return 0.3 * math.Sin(t/5) }
	a, b := machines(1, 12, true, m, 0.1)
	if row := find(Reports(a, b), "p50"); row.Verdict != Slower {
		t.Errorf("paired: %+v", row)
	}
	a.Session, b.Session = "", ""
	if row := find(Reports(a, b), "p50"); row.Verdict == Slower || row.Verdict == Faster {
		t.Errorf("unpaired: %+v: the drift is too small for this test", row)
	}
}

// Sides measured one after the other get a verdict only beyond what drift may explain, and the output says so.
func TestApart(t *testing.T) {
	a, b := machines(1, 8, false, steady, 0.03)
	row := find(Reports(a, b), "p50")
	if row.Verdict != Unknown || !row.Tested() || row.Lo > 0 || row.P <= tableLevel ||
		!strings.Contains(row.Why, "-ab") {
		t.Errorf("3 %%: %+v", row)
	}
	if row.Shift < 100 || row.Shift > 140 {
		t.Errorf("the estimate is %v, want about 120", row.Shift)
	}
	noisy := steady
	noisy.Noise = 0.02
	a, b = machines(1, 8, false, noisy, 0.3)
	if row = find(Reports(a, b), "p50"); row.Verdict != Slower || row.Lo < 300 || row.Hi > 2100 {
		t.Errorf("30 %%: %+v", row)
	}
	b.Start = b.Start.Add(24 * time.Hour) // the drift seen in a series may have continued for longer
	if far := find(Reports(a, b), "p50"); far.Lo >= row.Lo {
		t.Errorf("a day later the interval is narrower: %v, then %v", row.Lo, far.Lo)
	}
	// Sides measured at the same time have no drift between them.
	a, b = machines(1, 8, false, steady, 0.03)
	b.Start = a.Start
	if row := find(Reports(a, b), "p50"); row.Verdict != Slower || row.How != "8+8 runs" {
		t.Errorf("at the same time: %+v", row)
	}
	m := steady
	m.Noise = 0.0005
	a, b = machines(1, 8, false, m, 0.03)
	b.Start = a.Start
	if row := find(Reports(a, b), "p50"); row.Least <= 0 || row.Least > own/2 {
		t.Errorf("steady runs of two benches: %+v", row)
	}
	a, b = machines(1, 8, false, m, 0.006)
	b.Start = a.Start
	if row := find(Reports(a, b), "p50"); row.Verdict != Slower || row.Shift > own {
		t.Errorf("a shift that two series of one bench may have, of two benches: %+v", row)
	}
}

// Single runs do not show the variation between runs: they have no verdict, and the output says what to do.
func TestSingleRuns(t *testing.T) {
	for _, n := range []int{1, 7} {
		a, b := machines(1, n, false, steady, 1)
		for _, row := range Reports(a, b).Pairs[0].Rows {
			if row.Verdict != Unknown || row.Tested() || row.Stat == p50 &&
				!strings.Contains(row.Why, fmt.Sprintf("old has %d run", n)) {
				t.Errorf("%d runs: %+v", n, row)
			}
		}
	}
}

var p50, _ = ParseStat("p50")

// A percentile with too few samples above it has no verdict, and the output says how many are needed. Slices that are
// too short are joined if there are enough of them.
func TestTooFewSamples(t *testing.T) {
	m := steady
	m.Samples = 100 // in each of two intervals
	a, b := machines(1, 20, true, m, 1)
	for _, c := range []struct {
		stat    string
		verdict Verdict
		how     string
		why     string
	}{
		{"p50", Slower, "20 pairs of runs", ""},
		{"p90", Slower, "20 pairs of runs", ""},
		{"p99", Unknown, "", "p99 needs 1,000 samples in each of 9 runs"},
		{"p99.9", Unknown, "", "p99.9 needs 10,000 samples, old has"},
	} {
		row := find(Reports(a, b), c.stat)
		if row.Verdict != c.verdict || row.How != c.how || !strings.Contains(row.Why, c.why) ||
			row.Tested() != (c.how != "") {
			t.Errorf("%s: %+v", c.stat, row)
		}
	}
	a, b = machines(1, 60, true, m, 1)
	if row := find(Reports(a, b), "p99"); row.How != "10 pairs of runs, each joined from 6" || row.Verdict != Slower {
		t.Errorf("60 slices of 200 samples: %+v", row)
	}
	a, b = machines(1, 300, true, m, 1)
	if row := find(Reports(a, b), "p50"); row.How != "60 pairs of runs, each joined from 5" {
		t.Errorf("300 slices: %+v", row)
	}
}

// At most 64 samples of each side are tested: neighbours are joined, or runs left out if the other side has few. A
// percentile needs enough samples in each run of both sides.
func TestManyRuns(t *testing.T) {
	for _, c := range []struct {
		a, b        int   // runs
		each, eachB int64 // samples in each
		stat, how   string
	}{
		{10, 200, 200, 200, "p50", "10+64 runs, one after the other"},
		{10, 65, 200, 200, "p50", "10+64 runs, one after the other"},
		{40, 100, 200, 200, "p50", "20+50 runs, each joined from 2, one after the other"},
		{64, 64, 200, 200, "p50", "64+64 runs, one after the other"},
		{65, 65, 200, 200, "p50", "32+32 runs, each joined from 2, one after the other"},
		{16, 128, 200, 200, "p50", "8+64 runs, each joined from 2, one after the other"},
		{15, 128, 200, 200, "p50", "15+64 runs, one after the other"},
		{128, 15, 200, 200, "p50", "64+15 runs, one after the other"},
		{16, 16, 100, 50, "p90", "8+8 runs, each joined from 2, one after the other"},
		{16, 16, 50, 100, "p90", "8+8 runs, each joined from 2, one after the other"},
		{16, 16, 100, 100, "p90", "16+16 runs, one after the other"},
	} {
		side := func(runs int, samples int64) *report.Report {
			r := &report.Report{Label: "r", Series: []*latency.Series{{Name: latency.MainSeries}}}
			for i := range int64(runs) {
				r.Runs = append(r.Runs, latency.Run{Start: i * 1e9, End: (i + 1) * 1e9})
				h := latency.FromCounts([]int64{1000 + i%7}, []int64{samples})
				r.Series[0].Intervals = append(r.Series[0].Intervals,
					latency.Interval{Start: i * 1e9, End: (i + 1) * 1e9, Histogram: h})
			}
			r.Series[0].Sum()
			return r
		}
		a, b := side(c.a, c.each), side(c.b, c.eachB)
		b.Start = b.Start.Add(1000 * time.Second)
		check.Equal(t, find(Reports(a, b), c.stat).How, c.how, fmt.Sprintf("%d and %d runs: %%q", c.a, c.b))
	}
}

// What another tool's output says of its runs decides whether they can be tested, and how far apart they count.
func TestForeignRuns(t *testing.T) {
	for _, c := range []struct {
		f     *report.Foreign
		why   string
		apart float64 // if the runs are at the same time, and 5 lengths apart
		later float64
	}{
		{nil, "", 0, 5},
		{&report.Foreign{Points: []latency.Percentile{}}, "r has percentiles only", 3, 3},
		{&report.Foreign{Single: "sorted"},
			"r counts as one run (sorted), and a verdict needs 8 of each side: put one file for each", 3, 3},
		{&report.Foreign{Timed: true}, "", 1, 5},
	} {
		r := of(1)
		r.Foreign = c.f
		for _, p := range []Pair{{A: r, B: of(1)}, {A: of(1), B: r}} {
			check.Equal(t, p.distance(parts(1), parts(1)), c.apart, "%v lengths")
			check.Equal(t, p.distance(parts(1), []part{{5e9, 6e9, nil}}), c.later, "%v lengths")
		}
		if got := untestable(r); !strings.HasPrefix(got, c.why) || c.why == "" && got != "" {
			t.Errorf("%q, want %q", got, c.why)
		}
	}
	check.Equal(t, moreRuns(of(1)), "use rebound-bench run -runs, or -ab", "%q")
	r := of(make([]int64, 19)...)
	for n, want := range map[int]string{19: "p50 needs 20 samples, r has 19",
		20: "r has 1 run, and a verdict needs 8 of each side"} {
		r.Series[0].Total = latency.FromValues(make([]int64, n))
		_, why := (&Pair{A: r, B: r, runsA: parts(n), runsB: parts(n)}).collect(p50, 0.01)
		check.Contains(t, why, want)
	}
}

// A log has the ends of intervals in microseconds, report.json the ends of runs in nanoseconds: this causes no interval
// to be lost.
func TestIntervalsOfRuns(t *testing.T) {
	a, _ := machines(1, 8, false, steady, 0)
	for i := range a.Runs {
		a.Runs[i].Start += 400
		a.Runs[i].End -= 400
	}
	got := int64(0)
	parts := runs(a)
	for _, p := range parts {
		got += p.Count // a run whose interval was lost has no histogram
	}
	if len(parts) != 8 || got != a.Main().Total.Count {
		t.Errorf("%d runs with %d samples, want 8 with %d", len(parts), got, a.Main().Total.Count)
	}
}

func TestMissingRun(t *testing.T) {
	m := steady
	m.Level = synthetic.Line(0.05)
	a, b := machines(1, 12, true, m, 0)
	s := a.Main()
	s.Intervals = append(s.Intervals[:4], s.Intervals[6:]...) // the third run's
	s.Sum()
	if row := find(Reports(a, b), "p50"); row.How != "11 pairs of runs" || row.Verdict != Noise || row.P > 1 ||
		math.Abs(row.Percent()) > 5 {
		t.Errorf("%+v", row)
	}
	b.Session = ""
	b.Start = b.Start.Add(time.Minute)
	if row := find(Reports(a, b), "p50"); row.How != "11+12 runs, one after the other" {
		t.Errorf("%+v", row)
	}
}

func TestExtremes(t *testing.T) {
	a, b := machines(1, 10, true, steady, 0)
	if row := find(Reports(a, b), "max"); row.Verdict == Unknown {
		t.Errorf("as many samples: %+v", row)
	}
	m := steady
	m.Samples *= 2
	_, b = machines(1, 10, true, m, 0)
	if row := find(Reports(a, b), "max"); row.Verdict != Unknown || !strings.Contains(row.Why, "fixed rate") {
		t.Errorf("twice as many: %+v", row)
	}
}

// One very slow run changes the pooled numbers, but not the estimate, the verdict or the exit status.
func TestOneSlowRun(t *testing.T) {
	a, b := machines(3, 10, true, steady, -0.001)
	slow, _ := machines(3, 1, true, steady, 0)
	for i, iv := range b.Main().Intervals[18:] {
		h := slow.Main().Intervals[i].Histogram
		var values []int64
		for range iv.Count {
			values = append(values, 20*h.Quantile(0.5))
		}
		b.Main().Intervals[18+i].Histogram = latency.FromValues(values)
	}
	b.Main().Sum()
	c := Reports(a, b)
	row := find(c, "p99")
	if row.PooledB < 9*row.PooledA || math.Abs(row.Percent()) > 10 || row.Verdict != Noise {
		t.Errorf("%+v", row)
	}
	limits, _ := ParseLimits("p99>+5%+200ns")
	if worse, err := Against(limits, a, b).Exceeded(); err != nil || len(worse) > 0 {
		t.Errorf("%q, %v", worse, err)
	}
}

// A percentage is relative to the same base as the shift, however widely A's runs scatter: it is never below -100 %,
// and it has the sign of the shift.
func TestPercent(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 5))
	low := 0.0
	for range 2000 {
		n := 8 + rnd.IntN(12)
		a, b := make([]float64, n), make([]float64, n)
		for i := range n { // half of A's runs had a stall
			a[i], b[i] = 10+rnd.Float64(), 10+rnd.Float64()
			if rnd.IntN(2) == 0 {
				a[i] += 30 * rnd.ExpFloat64()
			}
		}
		for name, test := range map[string]func(a, b []float64) test{"paired": paired, "unpaired": unpaired} {
			var r Row
			r.Shift, r.Base = test(a, b).estimate()
			if p := r.Percent(); p < -100 || p*r.Shift < 0 || r.Base+r.Shift < 10 {
				t.Fatalf("%s: %+.1f %%, %+v of %v\n%v\n%v", name, p, r.Shift, r.Base, a, b)
			}
			low = min(low, r.Shift/median(a)*100)
		}
	}
	// The signed rank test of pairs reached less than -100 %. The shifts of both tests now reach -86 %.
	if low > -80 {
		t.Errorf("the median of A as a base gives no less than %v %%: the test tests too little", low)
	}
}

// Slices measured in a fixed order, as by old versions, prove nothing: a disturbance can have the same period. The same
// applies to slices whose schedule does not match the runs.
func TestFixedOrder(t *testing.T) {
	for name, change := range map[string]func(a, b *report.Report){
		"no schedule":          func(a, b *report.Report) { a.Schedule, b.Schedule = nil, nil },
		"one schedule":         func(a, b *report.Report) { a.Schedule = nil },
		"no seed":              func(a, b *report.Report) { a.Schedule.Seed, b.Schedule.Seed = "", "" },
		"another seed":         func(a, b *report.Report) { a.Schedule.Seed = "2" },
		"a schedule too short": func(a, b *report.Report) { a.Schedule.Places = a.Schedule.Places[:9] },
		"not that of the runs": func(a, b *report.Report) { a.Schedule, b.Schedule = b.Schedule, a.Schedule },
		"the same place":       func(a, b *report.Report) { b.Schedule.Places[3] = a.Schedule.Places[3] },
	} {
		a, b := machines(1, 10, true, steady, 0.5)
		if row := find(Reports(a, b), "p50"); row.Verdict != Slower {
			t.Fatalf("%+v", row)
		}
		change(a, b)
		c := Reports(a, b)
		row := find(c, "p50")
		if row.Verdict != Unknown || row.How != "10 pairs of runs, in a fixed order" || row.Lo > 0 ||
			!strings.Contains(row.Why, "fixed order") ||
			!strings.Contains(c.Pairs[0].Visible(), "bench run -ab") {
			t.Errorf("%s: %+v, %q", name, row, c.Pairs[0].Visible())
		}
		limits, _ := ParseLimits("p50>+5%")
		if worse, err := Against(limits, a, b).Exceeded(); len(worse) > 0 || !errors.Is(err, errUndecided) {
			t.Errorf("%s: %q, %v", name, worse, err)
		}
	}
}

// Without a verdict, the output states the smallest change that would have been seen. It is correct: twice that change
// is seen, half of it is not.
func TestVisible(t *testing.T) {
	for _, alternating := range []bool{true, false} {
		a, b := machines(4, 10, alternating, steady, 0)
		c := Reports(a, b)
		row := find(c, "p50")
		said := c.Pairs[0].Visible()
		if row.Verdict == Slower || row.Verdict == Faster || strings.Contains(said, "-ab") == alternating ||
			!strings.Contains(said, "p50 "+row.Visible()) {
			t.Errorf("alternating %t: %+v, %q", alternating, row, said)
		}
		v := row.percent(row.Least)
		if alternating && (v > 2 || v < 0.1) || !alternating && (v < 10 || v > 14) {
			t.Errorf("alternating %t: a change above %v %% could be seen", alternating, v)
		}
		for factor, want := range map[float64]bool{2: true, 0.5: false} {
			a, b := machines(4, 10, alternating, steady, factor*v/100)
			if row := find(Reports(a, b), "p50"); (row.Verdict == Slower) != want {
				t.Errorf("alternating %t, %v of that: %+v", alternating, factor, row)
			}
		}
	}
	one := Pair{Rows: []Row{{Stat: p50, How: "8 runs", Base: 100, Least: 5}}}
	check.Contains(t, one.Visible(), "could have been seen: p50 5 %; to see")
	if c := Reports(machines(4, 10, true, steady, 0.5)); strings.Contains(c.Pairs[0].Visible(), "p50") {
		t.Errorf("p50 has a verdict: %q", c.Pairs[0].Visible())
	}
}

// The levels of a table's rows add up to that of the table, however many rows were requested.
func TestLevels(t *testing.T) {
	for all := 1; all <= 14; all++ {
		for asked := range all + 1 {
			named, other := levels(asked, all)
			if sum := float64(asked)*named + float64(all-asked)*other; asked < all && !near9(sum, tableLevel) ||
				named > askedLevel || asked == 0 && named != 0 || sum > tableLevel+1e-12 || asked < all && other <= 0 {
				t.Errorf("%d of %d asked for: %v each, %v each other, %v in all", asked, all, named, other, sum)
			}
		}
	}
	a, b := machines(2, 8, true, steady, 0.1) // eight pairs are enough only for the requested statistics
	limits, _ := ParseLimits("p50>+1%,p95>+1%")
	c := Against(limits, a, b)
	if p50, p95, p90 := find(c, "p50"), find(c, "p95"), find(c, "p90"); p50.Verdict != Slower ||
		p95.Verdict != Slower || !p95.Asked || p90.Tested() || !strings.Contains(p90.Why, "needs 9") {
		t.Errorf("%+v\n%+v\n%+v", p50, p95, p90)
	}
	a.Schedule.Looks = 4 // share the levels
	shared := Against(limits, a, b)
	for _, stat := range []string{"p50", "p90"} {
		check.Equal(t, find(shared, stat).Level, find(c, stat).Level/4, stat+" is tested at %v")
	}
	a.Schedule.Looks = 0
	if said := c.Pairs[0].Confidence(); !strings.Contains(said,
		"99.0 % for each row that -fail-if names, 99.6 % for each other") || !strings.Contains(said, "5 %") {
		t.Error(said)
	}
}

// A setting that -ab varies within one session is not an obstacle. The same difference between two sessions is one.
func TestVariedOnPurpose(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 8))
	for _, c := range []struct {
		what   string
		change func(*report.Report)
	}{
		{"frame size", func(r *report.Report) { r.Traffic.FrameSize = 1514 }},
		{"protocol", func(r *report.Report) { r.Traffic.Protocol = "udp" }},
		{"IP version", func(r *report.Report) { r.Traffic.IPVersion = 6 }},
		{"rate", func(r *report.Report) { r.Traffic.Rate = 1000 }},
		{"transport", func(r *report.Report) { r.Traffic.Transport = "socket" }},
	} {
		a, b := synthetic.Sampled(rnd, 4000, 10, 1, 1000, synthetic.NoDrift),
			synthetic.Sampled(rnd, 8000, 10, 1, 1000, synthetic.NoDrift)
		c.change(b)
		if apart := Reports(a, b); len(apart.Obstacles) != 1 || !strings.HasPrefix(apart.Obstacles[0], c.what+": ") {
			t.Errorf("%s between sessions: obstacles %q", c.what, apart.Obstacles)
		}
		a.Session, b.Session = "s", "s"
		together := Reports(a, b)
		if len(together.Obstacles) != 0 || !slices.ContainsFunc(together.Notes,
			func(n string) bool { return strings.HasPrefix(n, c.what+": ") }) {
			t.Errorf("%s within a session: obstacles %q, notes %q", c.what, together.Obstacles, together.Notes)
		}
	}
}
