package page

import (
	"bytes"
	"errors"
	"html"
	"regexp"
	"testing"

	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/latency/synthetic"
)

// A place that no counter covers is unknown, not 0. What another tool does not count is not 0 either.
func TestUncountedPlaces(t *testing.T) {
	a, b := synthetic.Link{Seed: 1, Median: 4000, Seconds: 1, Rate: 100}.Report(), synthetic.Link{Seed: 2, Median: 4000, Seconds: 1, Rate: 100}.Report()
	a.Counts = report.Counts{Sent: 100, Received: 95, DroppedHere: 5, DroppedHereCounted: true, DroppedThereCounted: true}
	b.Counts = report.Counts{Sent: 100, Received: 95, Lost: 5, LostUncertain: 5}
	tool := synthetic.Link{Seed: 3, Median: 4000, Seconds: 1, Rate: 100}.Report()
	tool.Foreign, tool.Counts = &report.Foreign{}, report.Counts{Sent: 100, Received: 99, Lost: 1}
	var text, page, one, other bytes.Buffer
	if err := errors.Join(PrintComparison(&text, compare.Reports(a, b, tool)), Comparison(&page, compare.Reports(a, b, tool)), Report(&one, b), Report(&other, tool)); err != nil {
		t.Fatal(err)
	}
	cells := regexp.MustCompile(`<[^>]*>`)
	for _, c := range []struct {
		name, text string
		want       []string
	}{
		{"compare", text.String(), []string{`dropped here +5 +unknown +–`}},
		{"its page", page.String(), []string{`Dropped here 5 unknown –`, `Dropped there 0 unknown –`, `Refused there unknown unknown –`, `Late 0 0 –`}},
		{"a report's page", one.String(), []string{`Dropped here unknown`, `Refused there unknown`, `Dropped there unknown`, `Not sent 0`}},
		{"another tool's page", other.String(), []string{`Lost 1 `, `Dropped here –`, `Duplicates –`}},
	} {
		plain := html.UnescapeString(regexp.MustCompile(`[ ]+`).ReplaceAllString(cells.ReplaceAllString(c.text, " "), " "))
		for _, want := range c.want {
			if !regexp.MustCompile("(?i)" + want).MatchString(plain) {
				t.Errorf("%s: no %q in\n%.3000s", c.name, want, plain)
			}
		}
	}
}
