package page

import (
	"slices"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/synthetic"
)

// Where this host sent late, the headline is the round trip from the actual send and names the other, and every
// percentile that the lag accounts for is marked wherever it is shown.
func TestOwnLagIsMarked(t *testing.T) {
	good := synthetic.Link{Seed: 1, Median: 4000, Seconds: 1, Rate: 1000}.Report()
	r := synthetic.Link{Seed: 1, Median: 4000, Seconds: 1, Rate: 1000}.Report()
	r.Series, r.Label, good.Label = nil, "late", "good"
	r.Add(latency.MainSeries, latency.FromValues(slices.Repeat([]int64{2_000_000_000}, 1000)))
	r.Add(latency.UncorrectedSeries, latency.FromValues(slices.Repeat([]int64{10_000}, 1000)))
	const slow = "2.000 s*"
	text := show(t, PrintReport, r)
	check.Contains(t, text, "round trip from the actual send p50 10.00 µs, p99 10.00 µs, p99.9 10.00 µs; from the intended send p50 "+slow+", p99 "+slow,
		"this host sent late; ", "p90 "+slow, "accounts for p50, p90, p99, p99.9, p99.99 (marked *)")
	c := compare.Reports(good, r)
	for where, shown := range map[string]string{"page": show(t, Report, r), "comparison": show(t, PrintComparison, c),
		"summary": show(t, PrintSummary, c), "its page": show(t, comparisonPage, c)} {
		if shown = strings.ReplaceAll(shown, "\u00a0", " "); strings.Count(shown, slow) < 4 ||
			!strings.Contains(shown, "(marked *)") {
			t.Errorf("%s: %d marks\n%.2000s", where, strings.Count(shown, slow), shown)
		}
	}
	if strings.Contains(show(t, PrintReport, good), "*") {
		t.Error("a good report has marks")
	}
}

// A run that lost everything is a run: of a sweep, and in an overview.
func TestLostRunIsShown(t *testing.T) {
	r := synthetic.Link{Seed: 1, Median: 4000, Seconds: 1, Rate: 100}.Report()
	nothing := synthetic.Link{Seed: 2, Median: 4000, Seconds: 1, Rate: 200}.Report()
	nothing.Series, nothing.Counts, nothing.Traffic.Rate, nothing.Label = nil, report.Counts{Sent: 4321, Lost: 4321},
		200, "dead"
	nothing.Add(latency.MainSeries, latency.Merge())
	all := []*report.Report{r, nothing}
	links := []Link{{"a", "a"}, {"dead", "dead"}}
	var sweep, over strings.Builder
	check.OK(t, Sweep(&sweep, all, links))
	check.OK(t, Overview(&over, "two", []Item{{links[0], r}, {links[1], nothing}}, nil))
	for where, text := range map[string]string{"sweep": sweep.String(), "overview": over.String(),
		"summary": show(t, PrintSummary, compare.Reports(r, nothing)), "report": show(t, PrintReport, nothing)} {
		if plain := strings.NewReplacer("\u202f", "", ",", "").Replace(text); !strings.Contains(plain, "4321") ||
			strings.Contains(plain, "NaN") {
			t.Errorf("%s lacks the lost run: %.3000s", where, text)
		}
	}
	check.Contains(t, SweepAnswer(all), "1 of 2 points lost probes")
	check.Contains(t, SweepAnswer(all[1:]), "no reply at any point")
}
