package page

import (
	"fmt"
	"io"
	"strings"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/report"
)

// Figures returns the statistics of a report that a kind of text shows: "p50 2.95 µs, p99 3.87 µs". Those that the
// bench's own host accounts for have OwnMark.
func Figures(r *report.Report, in latency.Tables) string {
	return figures(in, ", ", func(st compare.Stat) string { return seriesText(r, r.Main(), st) })
}

// figures joins the names and values of statistics.
func figures(in latency.Tables, between string, value func(compare.Stat) string) string {
	var all []string
	for _, st := range compare.Stats(in) {
		all = append(all, st.String()+" "+value(st))
	}
	return strings.Join(all, between)
}

// seriesText formats a statistic of a report's series, "–" if the series has no samples.
func seriesText(r *report.Report, s *latency.Series, st compare.Stat) string {
	switch {
	case s == nil || empty(r, s):
		return "–"
	case s == r.Main():
		return latency.FormatNS(st.OfReport(r)) + ownMark(r, st)
	}
	return latency.FormatNS(st.Of(s.Total))
}

// PrintSeries writes the line of an additional series of a report.
func PrintSeries(w io.Writer, name string, m *latency.Summary) {
	if m.Count == 0 {
		fmt.Fprintf(w, "%s:  no samples\n", name)
		return
	}
	values := figures(latency.SeriesLine, "  ", func(st compare.Stat) string {
		return latency.FormatNS(st.OfSummary(m))
	})
	fmt.Fprintf(w, "%s:  %s  (%s)\n", name, values, latency.FormatCount(m.Count))
}

// PrintTimings writes the table of a responder's summary, with a tab between two cells.
func PrintTimings(w io.Writer, rows []latency.Series) {
	stats := compare.Stats(latency.HeadlineTable)
	fmt.Fprint(w, "\tcount")
	for _, st := range stats {
		fmt.Fprintf(w, "\t%s", st)
	}
	fmt.Fprintln(w)
	for _, row := range rows {
		fmt.Fprintf(w, "%s\t%s", row.Name, latency.FormatCount(row.Summary.Count))
		for _, st := range stats {
			text := "-"
			if row.Summary.Count > 0 {
				text = latency.FormatNS(st.OfSummary(&row.Summary))
			}
			fmt.Fprintf(w, "\t%s", text)
		}
		fmt.Fprintln(w)
	}
}

// pairRow is a row of the table of two reports. What was not tested is empty.
type pairRow struct {
	compare.Row
	Name, A, B, Diff, Percent, Mark, CI, Least, P string // the columns of text, in their order
	Within                                        string // smallest change that would have been seen, if none was
}

// pairRows are the rows of a pair's table: all, with one-way delays at the end, or those of a summary. interval is the
// format of an interval's ends.
func pairRows(p *compare.Pair, brief bool, interval string) (all []pairRow) {
	add := func(way string, r compare.Row) {
		row := pairRow{Row: r, Name: way + r.Stat.String(), A: latency.FormatNS(r.PooledA),
			B: latency.FormatNS(r.PooledB), Mark: r.Verdict.Mark()}
		if way == "" {
			row.A += ownMark(p.A, r.Stat)
			row.B += ownMark(p.B, r.Stat)
		}
		if r.Tested() {
			row.Diff, row.Percent = formatShift(r)
			row.CI, row.Least, row.P = formatInterval(r, interval), r.Visible(), formatP(r.P)
			if r.Verdict == compare.Noise {
				row.Within = "within ±" + row.Least
			}
		}
		all = append(all, row)
	}
	for _, r := range p.Rows {
		if !brief || summarized(r) {
			add("", r)
		}
	}
	for _, w := range p.OneWay {
		for _, r := range w.Rows {
			if !brief {
				add(wayName(w.Series)+" ", r)
			}
		}
	}
	return all
}

// text are the cells of a table as text, a summary's without the last two.
func (r *pairRow) text(brief bool) string {
	cells := []string{r.Name, r.A, r.B, r.Diff, r.Percent, r.Mark, r.CI, r.Least, r.P}
	if brief {
		cells = cells[:7]
	}
	return strings.Join(cells, "\t") + "\t\n"
}
