package page

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/proof/golden"
	"github.com/rebound-nic/rebound/proof/must"
)

// What a history says of changes, of lost reports, and where there are none, as text and as a page.
func TestHistory(t *testing.T) {
	line := func(stat int, values []float64, steps ...compare.Step) compare.Line {
		l := compare.Line{Stat: compare.Stats(latency.BriefTable)[stat], What: "<a> to b", Steps: steps}
		for i, v := range values {
			l.Points = append(l.Points, compare.Point{Name: fmt.Sprint("r", i), Value: v,
				Start: time.Date(2026, 11, 1+i*(1-stat), 0, 0, 0, 0, time.UTC)})
		}
		return l
	}
	undated := line(0, []float64{5000, 5100})
	undated.Points[1].Start, undated.Why = time.Time{}, "too few reports"
	rise := compare.Step{Change: compare.Change{At: 2, P: 0.01}, Before: 4000, After: 6000}
	fall := compare.Step{Change: compare.Change{At: 4, P: 0.0001}, Before: 6000, After: 3000,
		Differ: []string{"kernel\x1b 6.1", "core 3"}}
	lost := []compare.Lost{{Name: "gone", What: "x", Sent: 7, Text: "7 of 7"}}
	head := regexp.MustCompile(`(?s)<style>.*?</style>|<script>.*?</script>|(<meta|<link|<!doc)[^\n]*\n`)
	var b strings.Builder
	for _, h := range []*History{{}, {Lost: lost, Notes: []string{"a <note>"}}, {Lines: []compare.Line{undated}},
		{Lines: []compare.Line{line(0, make([]float64, 40)), {}}},
		{Lines: []compare.Line{line(0, []float64{4000, 4010, 6000, 6010, 3000, 3001}, rise, fall),
			line(1, []float64{7000, 7000, 9000}, rise)}, Lost: lost},
		{Lines: []compare.Line{line(1, []float64{4000, 4010, 6000}, rise)}},
	} {
		must.OK(t, PrintHistory(&b, h))
		var html strings.Builder
		must.OK(t, WriteHistory(&html, h))
		b.WriteString(head.ReplaceAllString(html.String(), "") + "\n")
	}
	golden.Equal(t, "testdata/history.txt", b.String())
}
