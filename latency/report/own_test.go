package report_test

import (
	"slices"
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

// The sentence about the tail does not claim more than the tail contains: in a closed loop a gap, however long, affects
// one round trip.
func TestOwnTailShare(t *testing.T) {
	const share = "(0.02 % of round trips)" // 20 of 100000
	for _, c := range []struct {
		mode, series string
		length       int64 // of the run, ns
		want         []string
	}{
		{"closed", latency.GapSeries, 1e9, []string{"the measuring thread was descheduled 20 times for 190.", share}},
		{"closed", latency.JitterSeries, 1e9, []string{"without traffic", share}},
		{"open", latency.GapSeries, 1e9, []string{"(0.03 % of round trips)"}},
		{"closed", latency.GapSeries, 100e9, nil}, // 20 gaps in a hundred seconds do not affect p99.99 of round trips of 10 us
	} {
		h := latency.FromValues(spread(20, 0, 195_000, 0))
		if c.series == latency.JitterSeries {
			h.Sum = float64(c.length)
		}
		says(t, c.mode+", "+c.series, ended(c.mode, c.length, spread(100_000, 5000, 10_000, 200_000), c.series,
			h).OwnTail(), c.want...)
	}
}

func TestOwnTailByLag(t *testing.T) {
	lag := spread(100_000, 2000, 50, 500_000)
	for _, c := range []struct {
		lag  []int64
		want []string
	}{{lag, []string{"sent 0.05 % of the probes"}}, {lag[1:2000], nil},
		{[]int64{500_000}, []string{"sent 100 % of the probes"}}} {
		rep := ended("open", 1e9, spread(100_000, 2000, 10_000, 510_000), latency.LagSeries, latency.FromValues(c.lag))
		says(t, "sent late", rep.OwnTail(), c.want...)
	}
}

// A responder that was descheduled for 50 ms in every second explains 1 % of round trips of 40 ms and more.
func TestFarGaps(t *testing.T) {
	rep := report.New("bench", report.RoundTrip)
	// twice as many as the gaps can explain
	rep.Add(latency.MainSeries, latency.FromValues(spread(10_000, 50, 10_000, 40_010_000)))
	far := report.New("responder", report.Turnaround)
	says(t, "without gaps", rep.FarGaps(far))
	far.Add(latency.GapSeries, latency.FromValues(append(spread(950_000, 0, 1000, 0), 50_000_000)))
	check.Contains(t, rep.FarGaps(far), "made 1 % of all frames wait 40.0", "50 % of these may be")
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
