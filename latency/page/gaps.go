package page

import (
	"cmp"
	"fmt"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/report"
)

// gapTable is the table of what had a responder's cores.
type gapTable struct {
	Text    string
	Columns []string
	Rows    []Row
}

// gapTableOf returns nil if the report has no gaps.
func gapTableOf(r *report.Report) *gapTable {
	g := r.Gaps
	if g == nil {
		return nil
	}
	if g.Kept == 0 && r.Dir != "" { // an older version did not sum them
		own, read := *g, *r
		if read.Gaps = &own; read.ReadGaps() == nil {
			own.Sum()
			g = &own
		}
	}
	count := latency.FormatCount(g.Kept)
	if g.Kept == 0 {
		count = "No"
	}
	t := &gapTable{Text: fmt.Sprintf("%s polling gaps of %s and more are recorded", count,
		latency.FormatNS(float64(g.From)))}
	if g.Missed > 0 {
		t.Text += fmt.Sprintf("; %s more were not kept", latency.FormatCount(g.Missed))
	}
	t.Text += ". Causes are known by " + cmp.Or(g.How, "nothing: they were not watched (stats.offcore)")
	if g.MissedCauses > 0 {
		t.Text += fmt.Sprintf("; %s more were not kept", latency.FormatCount(g.MissedCauses))
	}
	t.Text += "."
	if len(g.Causes) > 0 {
		t.Columns = []string{"gaps", "times", "together", "longest"}
	}
	for i := range g.Causes {
		c := &g.Causes[i]
		name := c.Text
		if c.Name != "" {
			name += ": " + c.Name
		}
		together, longest := Duration(float64(c.Took)), Duration(float64(c.Longest))
		if c.Weak {
			name += " (weak hint, by counters)"
			together, longest = "–", "–"
		}
		t.Rows = append(t.Rows, Row{name, []string{latency.FormatCount(c.Gaps), latency.FormatCount(c.Times), together,
			longest}})
	}
	return t
}
