package page

import (
	"html"
	"regexp"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/synthetic"
)

// A place without a counter is unknown, not 0. The same applies to numbers that another tool does not count.
func TestUncountedPlaces(t *testing.T) {
	a, b := synthetic.Link{Seed: 1, Median: 4000, Seconds: 1, Rate: 100}.Report(),
		synthetic.Link{Seed: 2, Median: 4000, Seconds: 1, Rate: 100}.Report()
	a.Counts = report.Counts{Sent: 100, Received: 95, DroppedHere: 5, DroppedHereCounted: true,
		DroppedThereCounted: true}
	b.Counts = report.Counts{Sent: 100, Received: 95, Lost: 5, LostUncertain: 5}
	tool := synthetic.Link{Seed: 3, Median: 4000, Seconds: 1, Rate: 100}.Report()
	tool.Foreign, tool.Counts = &report.Foreign{}, report.Counts{Sent: 100, Received: 99, Lost: 1}
	c := compare.Reports(a, b, tool)
	cells := regexp.MustCompile(`<[^>]*>`)
	for _, c := range []struct {
		name, text string
		want       []string
	}{
		{"compare", show(t, PrintComparison, c), []string{`dropped here +5 +unknown +–`}},
		{"its page", show(t, comparisonPage, c), []string{`Dropped here 5 unknown –`, `Dropped there 0 unknown –`, `Refused there unknown unknown –`, `Late 0 0 –`}},
		{"a report's page", show(t, Report, b), []string{`Dropped here unknown`, `Refused there unknown`, `Dropped there unknown`, `Not sent 0`}},
		{"another tool's page", show(t, Report, tool), []string{`Lost 1 `, `Dropped here –`, `Duplicates –`}},
	} {
		plain := html.UnescapeString(regexp.MustCompile(`[ ]+`).ReplaceAllString(cells.ReplaceAllString(c.text, " "),
			" "))
		for _, want := range c.want {
			if !regexp.MustCompile("(?i)" + want).MatchString(plain) {
				t.Errorf("%s: no %q in\n%.3000s", c.name, want, plain)
			}
		}
	}
}

// The headline says "between the hosts" only if the target's counters were read.
func TestHeadlineSaysWhereProbesWereLost(t *testing.T) {
	r := synthetic.Link{Seed: 1, Median: 4000, Seconds: 1, Rate: 100}.Report()
	for where, c := range map[string]report.Counts{
		"; 5 of 100 lost on the way or in the target": {Sent: 100, Received: 95, Lost: 5, DroppedHereCounted: true},
		"; 5 of 100 lost between the hosts":           {Sent: 100, Received: 95, Lost: 5, DroppedThereCounted: true, RefusedThereCounted: true},
		"; 0 of 100 lost\n":                           {Sent: 100, Received: 100},
	} {
		r.Counts = c
		if first, _, _ := strings.Cut(show(t, PrintReport, r), "\n"); !strings.HasSuffix(first+"\n",
			strings.TrimSuffix(where, "\n")+"\n") {
			t.Errorf("headline %q, want %q", first, where)
		}
		if alert := "5 were lost " + c.LostWhere(); c.Lost > 0 && !strings.Contains(show(t, Report, r), alert) {
			t.Errorf("the page does not say %q", alert)
		}
	}
}

// A responder cannot observe whether its replies arrive: its report does not mention loss, and has no outages when no
// requests came.
func TestResponderLosesNothing(t *testing.T) {
	rep := synthetic.Link{Seed: 1, Median: 90, Seconds: 1, Rate: 100}.Report()
	rep.Tool, rep.Metric, rep.Counts = "responder", report.Turnaround, report.Counts{Sent: 5001, Received: 5003}
	rep.Runs[0].End += 60e9
	text, page, both := show(t, PrintReport, rep), show(t, Report, rep),
		show(t, PrintComparison, compare.Reports(rep, rep))
	if !strings.Contains(text, "sent 5,001  received 5,003  \n") ||
		!regexp.MustCompile(`lost +– +–`).MatchString(both) {
		t.Errorf("%s\n%s", text, both)
	}
	for _, bad := range []string{"lost", "No replies", "no replies", "stopped answering"} {
		if strings.Contains(text, bad) || strings.Contains(strings.ReplaceAll(page, "<dt>lost</dt><dd>–</dd>", ""),
			bad) {
			t.Errorf("%q in the report of a responder:\n%s", bad, text)
		}
	}
}

// A percentile with fewer than ten samples above it is named.
func TestFewSamples(t *testing.T) {
	for seconds, want := range map[int]string{
		1:  "too few samples for p99.9, p99.99: fewer than 10 lie beyond (measure longer)\n",
		11: "too few samples for p99.99: ", 110: ""} {
		text := show(t, PrintReport, synthetic.Link{Seed: 1, Median: 4000, Seconds: seconds, Rate: 1001}.Report())
		if got := strings.Contains(text, "too few samples"); got != (want != "") || !strings.Contains(text, want) {
			t.Errorf("%d seconds: want %q in\n%s", seconds, want, text)
		}
	}
}

// An unfinished report is mentioned among the first notes of a comparison, however many other notes there are.
func TestSummaryBeginsWithUnfinished(t *testing.T) {
	a := synthetic.Link{Seed: 1, Median: 4000, Seconds: 1, Rate: 100}.Report()
	a.Unfinished, a.Warnings = &report.Unfinished{Runs: 100, Run: 1e9}, []string{"one", "two", "three", "four"}
	check.Equal(t, strings.Count(show(t, PrintSummary, compare.Reports(a, a)), "unfinished: "), 1, "%d notes")
}
