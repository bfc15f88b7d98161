package report_test

import (
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/synthetic"
)

func TestOwnTail(t *testing.T) {
	rep := synthetic.Link{Seed: 11, Median: 4000, Spread: 0.1, Seconds: 30, Rate: 3000}.Report()
	check.Equal(t, rep.OwnTail(), "", "without a self-test: %q")
	rep.Add(latency.JitterSeries, latency.FromValues([]int64{20, 20, 1_000_000}))
	if own := rep.OwnTail(); !strings.Contains(own, "at most 1.000 ms, in the self-test, without traffic: these pauses alone") {
		t.Errorf("with a gap of 1 ms: %q", own)
	}
	// One such gap in a minute is too rare to show at p99.99.
	quiet := make([]int64, 1001)
	for i := range quiet {
		quiet[i] = 20
	}
	quiet[0] = 1_000_000
	rep.Series = rep.Series[:1]
	rare := latency.FromValues(quiet)
	rare.Sum = 60e9
	rep.Add(latency.JitterSeries, rare)
	check.Equal(t, rep.OwnTail(), "", "with a gap of 1 ms a minute: %q")
	rep.Series = rep.Series[:1]
	rep.Add(latency.JitterSeries, latency.FromValues([]int64{20, 20, 900}))
	check.Equal(t, rep.OwnTail(), "", "with a gap of 900 ns: %q")
}

// The sentence about the tail does not claim more than the tail contains: in a closed loop a gap, however long, affects
// one round trip.
func TestOwnTailShare(t *testing.T) {
	rtt := make([]int64, 0, 100_000)
	for i := range cap(rtt) {
		rtt = append(rtt, 10_000)
		if i%5000 == 0 {
			rtt[i] = 200_000
		}
	}
	gaps := make([]int64, 20)
	for i := range gaps {
		gaps[i] = 195_000
	}
	for _, c := range []struct {
		mode, series, says string
		length             int64 // of the runs, ns
	}{
		{"closed", latency.GapSeries, "the measuring thread was descheduled 20 times for 190.", 1e9},
		{"closed", latency.JitterSeries, "without traffic", 1e9},
		{"open", latency.GapSeries, "(0.03 % of round trips)", 1e9},
		{"closed", latency.GapSeries, "", 100e9}, // 20 gaps in a hundred seconds do not affect p99.99 of round trips of 10 us
	} {
		rep := report.New("bench", report.RoundTrip)
		rep.Traffic.Mode = c.mode
		rep.Runs = []latency.Run{{End: c.length}}
		rep.Add(latency.MainSeries, latency.FromValues(rtt))
		h := latency.FromValues(gaps)
		if c.series == latency.JitterSeries {
			h.Sum = float64(c.length)
		}
		rep.Add(c.series, h)
		own := rep.OwnTail()
		if !strings.Contains(own, c.says) || c.says == "" && own != "" {
			t.Errorf("%s, %s: %q, want %q", c.mode, c.series, own, c.says)
		}
		if c.says != "" && c.mode == "closed" && !strings.Contains(own, "(0.02 % of round trips)") {
			t.Errorf("%q: 20 of 100000 are 0.02 %%", own)
		}
	}
}

func TestOwnTailByLag(t *testing.T) {
	rtt, lag, always := make([]int64, 100_000), make([]int64, 100_000), []int64{500_000}
	for i := range rtt {
		rtt[i], lag[i] = 10_000, 50
		if i%2000 == 0 {
			rtt[i], lag[i] = 510_000, 500_000
		}
	}
	for _, c := range []struct {
		lag  []int64
		says string
	}{{lag, "sent 0.05 % of the probes"}, {lag[1:2000], ""}, {always, "sent 100 % of the probes"}} {
		rep := report.New("bench", report.RoundTrip)
		rep.Traffic.Mode = "open"
		rep.Runs = []latency.Run{{End: 1e9}}
		rep.Add(latency.MainSeries, latency.FromValues(rtt))
		rep.Add(latency.LagSeries, latency.FromValues(c.lag))
		if own := rep.OwnTail(); !strings.Contains(own, c.says) || c.says == "" && own != "" {
			t.Errorf("%q, want %q", own, c.says)
		}
	}
}

// A responder that was descheduled for 50 ms in every second explains 1 % of round trips of 40 ms and more.
func TestFarGaps(t *testing.T) {
	rtt := make([]int64, 10_000)
	for i := range rtt {
		rtt[i] = 10_000
		if i%50 == 0 { // twice as many as the gaps can explain
			rtt[i] = 40_010_000
		}
	}
	rep := report.New("bench", report.RoundTrip)
	rep.Add(latency.MainSeries, latency.FromValues(rtt))
	gaps := make([]int64, 0, 950_001)
	for range cap(gaps) - 1 {
		gaps = append(gaps, 1000)
	}
	far := report.New("responder", report.Turnaround)
	check.Equal(t, rep.FarGaps(far), "", "without gaps: %q")
	far.Add(latency.GapSeries, latency.FromValues(append(gaps, 50_000_000)))
	if said := rep.FarGaps(far); !strings.Contains(said, "made 1 % of all frames wait 40.0") || !strings.Contains(said, "50 % of these may be") {
		t.Errorf("%q", said)
	}
}

// If the core was descheduled most of the time, there were few round trips: each gap is compared with these, not with
// the number that would have fit into the time.
func TestOwnTailOfABusyMachine(t *testing.T) {
	rtt := make([]int64, 20_000)
	for i := range rtt {
		rtt[i] = 5000
		if i%5000 == 0 {
			rtt[i] = 400_005_000
		}
	}
	rep := report.New("bench", report.RoundTrip)
	rep.Traffic.Mode = "closed"
	rep.Runs = []latency.Run{{End: 1_700_000_000}}
	rep.Add(latency.MainSeries, latency.FromValues(rtt))
	rep.Add(latency.GapSeries, latency.FromValues([]int64{400_100_000, 400_100_000, 400_100_000, 400_100_000}))
	if own := rep.OwnTail(); !strings.Contains(own, "descheduled 4 times") {
		t.Errorf("%q", own)
	}
}
