package page

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/synthetic"
)

// A summary has twelve lines and starts with the answer, however many notes there are; a limit's row and each report
// after the fifth add one.
func TestSummary(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 9))
	var all []*report.Report
	for i := range 6 {
		m := synthetic.Machine{Rnd: rnd, Samples: 2000, Level: synthetic.Quiet}
		a, b := m.Both(4000, 3000, synthetic.Slices(uint64(i), 10, 1, 0.1), 1)
		if i == 0 {
			a.Label = "base"
			all = append(all, a)
		}
		b.Label = fmt.Sprint("new", i)
		b.Warnings = []string{"interrupted by a signal", "another warning"}
		all = append(all, b)
	}
	all[1].Session, all[1].Schedule = all[0].Session, all[0].Schedule
	all[1].Schedule = &report.Schedule{Seed: all[0].Schedule.Seed}
	for _, place := range all[0].Schedule.Places {
		all[1].Schedule.Places = append(all[1].Schedule.Places, 1-place)
	}
	summary := func(c *compare.Comparison) string { return show(t, PrintSummary, c) }
	text := summary(compare.Reports(all[0], all[1]))
	if lines := strings.Count(text, "\n"); lines > 12 || !strings.HasPrefix(text, "new0 is ") ||
		!strings.Contains(text, "note: new0: interrupted by a signal\n") {
		t.Errorf("%d lines:\n%s", lines, text)
	}
	if !regexp.MustCompile(`^[^\n]*; no verdict at p99\.9 \(needs about \d+ more (second|minute|hour)s?\)\n`).MatchString(text) {
		t.Errorf("the answer names no time:\n%s", text)
	}
	limits := must.Get(compare.ParseLimits("p95>+5%"))(t)
	if text := summary(compare.Against(limits, all[0], all[1])); strings.Count(text, "\n") > 13 ||
		!strings.Contains(text, "\n         p95  ") {
		t.Errorf("with a limit:\n%s", text)
	}
	text = summary(compare.Reports(all[0], all[1:5]...))
	if lines := strings.Count(text, "\n"); lines > 12 || !strings.Contains(text, "-v prints everything (") ||
		!regexp.MustCompile(`\n +new3 .*-2\d\.\d %  [-?] `).MatchString(text) {
		t.Errorf("%d lines:\n%s", lines, text)
	}
	all[1].Traffic.Protocol, all[1].Session, all[1].Schedule = "udp", "", nil
	if text := summary(compare.Reports(all[0], all[1])); !strings.HasPrefix(text, "NOT COMPARABLE:\n  - protocol: ") ||
		strings.Count(text, "\n") > 12 {
		t.Error(text)
	}
}

// The row of lost probes names what this host or the target dropped, with two reports and with more.
func TestSummaryShowsDropsOfThisHost(t *testing.T) {
	var all []*report.Report
	for i := range 3 {
		r := synthetic.Link{Seed: uint64(i), Median: 4000, Spread: 0.1, Runs: 9, Seconds: 1, Rate: 2000,
			Open: true}.Report()
		r.Label = fmt.Sprint("r", i)
		all = append(all, r)
	}
	c := &all[1].Counts
	c.Received, c.Lost, c.DroppedHere = c.Sent-5003, 3, 5000
	for _, reports := range [][]*report.Report{all[:2], all} {
		text := show(t, PrintSummary, compare.Reports(reports[0], reports[1:]...))
		check.Equal(t, strings.Count(text, "dropped here"), 1, "%d rows name drops")
		check.Contains(t, text, "3 of 17,991, 5,000 dropped here")
	}
}

func TestMoreText(t *testing.T) {
	for d, want := range map[time.Duration]string{time.Millisecond: "1 more second",
		90 * time.Second: "90 more seconds", 11*time.Minute + time.Second: "12 more minutes",
		26 * time.Hour: "26 more hours", 49 * time.Hour: "3 more days"} {
		if got := moreText(d); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
}
