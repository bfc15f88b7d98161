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

// A headline does not blame the target for what this host did: its first sentence says that this host was the limit.
func TestHeadlineNamesThisHost(t *testing.T) {
	all := rateSweep()
	if text := SweepAnswer(all); !strings.Contains(text, "p99 more than doubles above 10,000/s") {
		t.Errorf("without a limit: %s", text)
	}
	late := all[2]
	late.Warnings = append(late.Warnings, report.NotOffered+": a run ended 1.2 s behind its schedule")
	if text := SweepAnswer(all); !strings.HasPrefix(text,
		"this host limited 1 of 4 points (100000/s, 60), which is left out here; p50 from ") ||
		strings.Contains(text, "doubles") || !strings.Contains(text, "no loss up to 10,000/s") {
		t.Errorf("one point limited: %s", text)
	}
	if text := answer(late); !strings.HasPrefix(text,
		"this host could not keep 100,000/s; at what it sent: round trip p50 ") {
		t.Errorf("a report: %s", text)
	}
	if page := show(t, Report, late); !strings.Contains(page, "<title>this host could not keep 100,000/s") ||
		!strings.Contains(page, "<h1>This host could not keep 100,000/s") {
		t.Errorf("the page's title: %.600s", page)
	}
	for _, r := range all {
		r.Warnings = []string{report.NotOffered}
	}
	if text := SweepAnswer(all); !strings.HasPrefix(text,
		"this host limited all 4 points, so the result says nothing about the target: ") ||
		strings.Contains(text, "p50") {
		t.Errorf("all points limited: %s", text)
	}
	if text := SweepAnswer(all[:2]); !strings.HasPrefix(text, "this host limited both points, so ") {
		t.Errorf("both points limited: %s", text)
	}
	silent := &report.Report{Label: "silent"}
	if text := SweepAnswer([]*report.Report{all[0], silent}); !strings.HasPrefix(text,
		"this host limited the only point with replies, so ") {
		t.Errorf("one point limited, one without replies: %s", text)
	}
	if text := SweepAnswer([]*report.Report{silent, silent}); text != "no reply at any point" {
		t.Errorf("no replies: %s", text)
	}
	a, b := synthetic.Link{Seed: 1, Median: 4000, Seconds: 20, Rate: 500, Runs: 10}.Report(),
		synthetic.Link{Seed: 2, Median: 9000, Seconds: 20, Rate: 500, Runs: 10}.Report()
	a.Label, b.Label = "a", "b"
	b.Warnings = []string{report.NotOffered}
	if text := Answer(compare.Reports(a, b)); !strings.HasPrefix(text,
		"this host limited b, so that a difference may be its own") {
		t.Errorf("a comparison: %s", text)
	}
}

// A tail that this host's pauses account for is no knee of the target, and leaves the rest of a sweep.
func TestOwnTailIsNoKnee(t *testing.T) {
	all := rateSweep()
	all[2].Series = nil
	all[2].Add(latency.MainSeries, latency.FromValues(slices.Repeat([]int64{90_000}, 1000)))
	all[2].Add(latency.UncorrectedSeries, latency.FromValues(slices.Repeat([]int64{4000}, 1000)))
	if r := all[2]; !r.OwnAt(0.99) || !hostLimited(r) {
		t.Fatalf("own lag at p50 %v, p99 %v", r.OwnAt(0.5), r.OwnAt(0.99))
	}
	check.Equal(t, Quantile(all[1], 0.99)+" "+Quantile(all[2], 0.99), latency.FormatNS(all[1].Quantile(0.99))+" 90.00 µs"+
		OwnMark, "p99: %s")
	if text := SweepAnswer(all); !strings.HasPrefix(text, "this host limited 1 of 4 points") ||
		strings.Contains(text, "doubles") {
		t.Errorf("late at p50: %s", text)
	}
	values := slices.Repeat([]int64{4000}, 980)
	all[2].Series = nil
	all[2].Add(latency.MainSeries, latency.FromValues(append(slices.Clone(values),
		slices.Repeat([]int64{90_000}, 20)...)))
	all[2].Add(latency.UncorrectedSeries, latency.FromValues(append(values, slices.Repeat([]int64{4000}, 20)...)))
	if text := SweepAnswer(all); strings.HasPrefix(text, "this host limited") || strings.Contains(text, "doubles") ||
		!strings.HasSuffix(text, "; this host's own lag accounts for p99 of 1 point") {
		t.Errorf("late at p99: %s", text)
	}
}
