package report_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/synthetic"
)

// spread returns n values: one of every is slow, starting with the first, the others are usual. every 0 is none.
func spread(n, every int, usual, slow int64) []int64 {
	all := slices.Repeat([]int64{usual}, n)
	for i := 0; i < n && every > 0; i += every {
		all[i] = slow
	}
	return all
}

// ended is a report of a run that ended after so many ns, with the given round trips and one more series.
func ended(mode string, ns int64, rtt []int64, series string, h *latency.Histogram) *report.Report {
	rep := report.New("bench", report.RoundTrip)
	rep.Traffic.Mode, rep.Runs = mode, []latency.Run{{End: ns}}
	rep.Add(latency.MainSeries, latency.FromValues(rtt))
	rep.Add(series, h)
	return rep
}

// says checks that text contains each of wants, or is empty if there are none.
func says(t *testing.T, what, text string, wants ...string) {
	t.Helper()
	if check.Contains(t, text, wants...); len(wants) == 0 {
		check.Equal(t, text, "", what+": %q")
	}
}

func TestOwnTail(t *testing.T) {
	rep := synthetic.Link{Seed: 11, Median: 4000, Spread: 0.1, Seconds: 30, Rate: 3000}.Report()
	says(t, "without a self-test", rep.OwnTail())
	rare := latency.FromValues(spread(1001, 1001, 20, 1_000_000))
	rare.Sum = 60e9 // one such gap in a minute is too rare to show at p99.99
	for what, c := range map[string]struct {
		gaps *latency.Histogram
		want []string
	}{
		"a gap of 1 ms": {latency.FromValues([]int64{20, 20, 1_000_000}),
			[]string{"at most 1.000 ms, in the self-test, without traffic: these pauses alone"}},
		"a gap of 1 ms a minute": {rare, nil},
		"a gap of 900 ns":        {latency.FromValues([]int64{20, 20, 900}), nil},
	} {
		rep.Series = rep.Series[:1]
		rep.Add(latency.JitterSeries, c.gaps)
		says(t, what, rep.OwnTail(), c.want...)
	}
}

// rare returns n values of usual and then some of slow.
func rare(n int, usual, slow int64, times int) []int64 {
	return append(spread(n, 0, usual, 0), spread(times, 0, slow, 0)...)
}

// The median is 100 ns, and p99.99 is 100 ns above it: pauses count from 100 ns on, late probes above 50. Half of the
// share above p99.99 is enough.
func TestOwnTailAtItsLimits(t *testing.T) {
	usual := rare(9998, 100, 200, 2)
	away := func(times, at, when, share string) string {
		return "the measuring thread was descheduled " + times + " for 100 ns or longer, at most " + at + " ns, " +
			when + ": these pauses alone account for p99.99 (" + share + " % of round trips)"
	}
	const late = "this host sent 0.005 % of the probes 50 ns or more late, at most 51 ns: " +
		"that alone accounts for p99.99 from the intended send, 100 ns above the median"
	const loop, test = "while measuring", "in the self-test, without traffic"
	for _, c := range []struct {
		mode          string
		length        int64 // of both runs
		rtt, lag, gap []int64
		series        string
		sum           float64 // of the gaps, if not their own
		want          string
	}{
		{mode: "open", lag: rare(19_999, 0, 51, 1), want: late},
		{mode: "open", lag: rare(20_000, 0, 51, 1)},
		{mode: "open", lag: rare(19_999, 0, 50, 1)},
		{mode: "open", lag: []int64{}},
		{mode: "open", rtt: []int64{100, 100}, lag: []int64{1000}, series: latency.GapSeries, gap: []int64{1000}},
		{mode: "open", rtt: []int64{100, 101}, lag: []int64{1}, want: "this host sent 100 % of the probes 0 ns or more late, " +
			"at most 1 ns: that alone accounts for p99.99 from the intended send, 1 ns above the median"},
		{mode: "open", rtt: rare(998, 100, 200, 2), lag: rare(1999, 0, 51, 1), want: strings.Replace(late, "0.005", "0.05", 1)},
		{mode: "open", rtt: rare(998, 100, 200, 2), lag: rare(2000, 0, 51, 1)},
		{mode: "closed", length: 2_000_400, series: latency.GapSeries, gap: []int64{99, 100}, want: away("1 time", "100", loop, "0.005")},
		{mode: "closed", length: 2_000_402, series: latency.GapSeries, gap: []int64{100}},
		{mode: "closed", length: 2, series: latency.GapSeries, gap: []int64{300}, sum: 1e9, want: away("1 time", "300", loop, "0.01")},
		{mode: "closed", series: latency.JitterSeries, gap: []int64{300}, sum: 2e6, want: away("1 time", "300", test, "0.005")},
		{mode: "closed", series: latency.JitterSeries, gap: []int64{300}, sum: 2e6 + 1},
		{mode: "closed", series: latency.JitterSeries, gap: []int64{99}},
		{mode: "open", length: 6e6, series: latency.GapSeries, gap: []int64{300}, want: away("1 time", "300", loop, "0.005")},
		{mode: "open", length: 6e6, series: latency.GapSeries, gap: []int64{300}, sum: 6e6 + 1},
		{mode: "open", length: 4e6, series: latency.GapSeries, gap: []int64{100, 100}, want: away("2 times", "100", loop, "0.005")},
		{mode: "open", rtt: rare(9998, 300, 400, 2), series: latency.GapSeries, gap: []int64{400}, want: away("1 time", "400", loop, "100")},
		{mode: "open", length: 6e6, lag: rare(19_999, 0, 51, 1), series: latency.GapSeries, gap: []int64{300},
			want: late + "; " + away("1 time", "300", loop, "0.005")},
	} {
		if c.rtt == nil {
			c.rtt = usual
		}
		rep := ended(c.mode, 0, c.rtt, c.series, latency.FromValues(c.gap))
		rep.Runs = []latency.Run{{Start: 5, End: 5 + c.length/2}, {Start: 1e12, End: 1e12 + c.length/2}}
		if c.sum > 0 {
			rep.Find(c.series).Total.Sum = c.sum
		}
		if c.lag != nil {
			rep.Add(latency.LagSeries, latency.FromValues(c.lag))
		}
		check.Equal(t, rep.OwnTail(), c.want, "%q")
		rep.Metric = report.Turnaround
		check.Equal(t, rep.OwnTail(), "", "of a turnaround: %q")
	}
	says(t, "without round trips", report.New("bench", report.RoundTrip).OwnTail())
}

// A lag accounts for a percentile from half of what it is above the median on, and from a twentieth of its value on.
func TestOwnAtItsLimits(t *testing.T) {
	for _, c := range []struct {
		typical, sent, rtt int64 // the median from the actual send, and p90
		late               bool  // by the lag, which is the difference of the latter two
		away               bool  // if pauses delay so many
	}{
		{900, 950, 1000, true, true}, {898, 950, 1000, false, true},
		{920, 970, 1020, false, true}, {970, 1020, 1020, false, false}, {950, 1000, 1000, false, true},
		{10, 10, 10, false, false}, {5, 5, 6, true, true}, {100, 100, 100, false, false},
	} {
		rep := ended("closed", 0, rare(50, c.typical, c.rtt, 50), latency.UncorrectedSeries,
			latency.FromValues(rare(50, c.typical, c.sent, 50)))
		check.Equal(t, rep.OwnAt(0.9), c.late, fmt.Sprintf("%v: late: %%t", c))
		check.Equal(t, rep.OwnAt(0.9), rep.LateAt(0.9), "late: %t")
		pauses := latency.FromValues([]int64{1000})
		pauses.Sum = 19 * float64(c.typical) // a frame of 19 meets one: more than half of a tenth
		rep.Add(latency.JitterSeries, pauses)
		check.Equal(t, rep.OwnAt(0.9), c.late || c.away, fmt.Sprintf("%v: late or away: %%t", c))
		rep.Find(latency.JitterSeries).Total.Sum = 21 * float64(c.typical)
		check.Equal(t, rep.OwnAt(0.9), c.late, fmt.Sprintf("%v: fewer are delayed: %%t", c))
		rep.Foreign = &report.Foreign{}
		check.Equal(t, rep.OwnAt(0.9), false, "of another tool: %t")
		rep.Foreign, rep.Metric = nil, report.Turnaround
		check.Equal(t, rep.OwnAt(0.9), false, "of a turnaround: %t")
	}
	for share, want := range map[float64]bool{0.004: false, 0.006: true} { // one of a hundred is above p99.99
		pauses := latency.FromValues([]int64{1000})
		pauses.Sum = 100 / share
		rep := ended("closed", 0, rare(99, 100, 900, 1), latency.JitterSeries, pauses)
		check.Equal(t, rep.OwnAt(0.9999), want, fmt.Sprintf("%v: %%t", share))
	}
	one := ended("open", 0, []int64{500}, latency.UncorrectedSeries, latency.FromValues([]int64{10}))
	check.Equal(t, one.LateAt(0.5), true, "a single late probe: %t")
	none := ended("open", 0, []int64{500}, latency.UncorrectedSeries, latency.FromValues(nil))
	check.Equal(t, none.LateAt(0.5), false, "without times of sending: %t")
	check.Equal(t, report.New("bench", report.RoundTrip).OwnAt(0.9), false, "without round trips: %t")
}

// A responder that was descheduled for 50 ms in every second explains 1 % of round trips of 40 ms and more.
func TestFarGaps(t *testing.T) {
	rep := report.New("bench", report.RoundTrip)
	// twice as many as the gaps can explain
	rep.Add(latency.MainSeries, latency.FromValues(spread(10_000, 50, 10_000, 40_010_000)))
	far := report.New("responder", report.Turnaround)
	says(t, "without gaps", rep.FarGaps(far))
	far.Add(latency.GapSeries, latency.FromValues(append(spread(950_000, 0, 1000, 0), 50_000_000)))
	check.Contains(t, rep.FarGaps(far), "made 1 % of all frames wait 40.00 ms", "; 2 % of the round trips",
		"50 % of these may be")
	rep.Tail = &report.Tail{Probes: 1, From: 20_010_000}
	check.Contains(t, rep.FarGaps(far), "of all frames wait 20.00 ms")
	rep.Tail.Probes = 0
	far.Series = nil // a pause a hundred times as often
	far.Add(latency.GapSeries, latency.FromValues(append(spread(9_500, 0, 1000, 0), 50_000_000)))
	check.Contains(t, rep.FarGaps(far), ": 100 % of these may be")
}

// If the core was descheduled most of the time, there were few round trips: each gap is compared with these, not with
// the number that would have fit into the time.
func TestOwnTailOfABusyMachine(t *testing.T) {
	gaps := latency.FromValues(spread(4, 0, 400_100_000, 0))
	rep := ended("closed", 1_700_000_000, spread(20_000, 5000, 5000, 400_005_000), latency.GapSeries, gaps)
	check.Contains(t, rep.OwnTail(), "descheduled 4 times")
}

// Every percentile that this host's lag accounts for is named, not the highest only. A target that is slow explains
// itself.
func TestOwnPercentiles(t *testing.T) {
	for _, c := range []struct {
		name                string
		intended, sent, gap []int64
		want                []string
	}{
		{"a sender ever later", spread(1000, 2, 2_000_000_000, 1_900_000_000), spread(1000, 0, 10_000, 0), nil, []string{"p50", "p90", "p99", "p99.9", "p99.99"}},
		{"late in one of fifty", spread(100_000, 50, 10_000, 500_000), spread(100_000, 50, 10_000, 11_000), nil, []string{"p99", "p99.9", "p99.99"}},
		{"a slow target", spread(100_000, 50, 10_000, 500_000), spread(100_000, 50, 10_000, 500_000), nil, nil},
		{"pauses of the thread", spread(100_000, 50, 10_000, 500_000), spread(100_000, 50, 10_000, 500_000), spread(2000, 0, 600_000, 0), []string{"p99", "p99.9", "p99.99"}},
	} {
		rep := ended("open", 10e9, c.intended, latency.UncorrectedSeries, latency.FromValues(c.sent))
		if c.gap != nil {
			rep.Add(latency.GapSeries, latency.FromValues(c.gap))
		}
		if got := rep.OwnPercentiles(); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
