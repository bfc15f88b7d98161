package page

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/latency/sanitize"
)

// PrintSummary writes the comparison of two reports in at most twelve lines, plus one for each row that a limit names:
// the answer, the most important notes, and a table. If there are more reports, each takes a line. PrintComparison
// writes everything.
func PrintSummary(w io.Writer, c *compare.Comparison) error {
	b := bufio.NewWriter(w)
	hidden := 0
	if len(c.Obstacles) > 0 {
		shown := c.Obstacles[:min(len(c.Obstacles), mostWarnings)]
		hidden = len(c.Obstacles) - len(shown) + len(c.Notes)
		fmt.Fprintln(b, "NOT COMPARABLE:")
		for _, o := range shown {
			fmt.Fprintf(b, "  - %s\n", o)
		}
	} else {
		if text := Answer(c); text != "" {
			fmt.Fprintln(b, text)
		}
		all := remarks(c)
		shown := all[:min(len(all), mostWarnings)]
		hidden = len(all) - len(shown)
		for _, n := range shown {
			fmt.Fprintf(b, "note: %s\n", n)
		}
	}
	fmt.Fprintln(b)
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	if len(c.Pairs) == 1 {
		summarizePair(t, c)
	} else {
		summarizeAll(t, c)
	}
	t.Flush()
	more := "-v prints everything"
	if hidden > 0 {
		more = fmt.Sprintf("-v prints everything (%s)", sanitize.Count(hidden, "more note"))
	}
	fmt.Fprintf(b, "+ slower, - faster, ~ no change seen, ? cannot tell; %s\n", more)
	return b.Flush()
}

// remarks are what a reader should know about a comparison, most important first: unfinished reports, warnings of the
// reports, why a row has no verdict, the rest.
func remarks(c *compare.Comparison) (all []string) {
	for _, r := range c.Reports {
		if text := r.UnfinishedText(); text != "" {
			all = append(all, r.Name()+" is "+text) // same text as in c.Notes
		}
	}
	for _, r := range c.Reports {
		for _, text := range r.Warnings {
			all = append(all, warned(r, text))
		}
	}
	for _, r := range c.Reports {
		if text := OwnText(r); text != "" {
			all = append(all, warned(r, text))
		}
	}
	for _, p := range c.Pairs {
		if text := p.Untested(); text != "" {
			all = append(all, text)
		}
		for _, r := range p.Rows {
			if r.Why != "" && summarized(r) && p.More(r) == 0 {
				all = append(all, r.Why)
			}
		}
	}
	all = append(all, c.Notes...)
	seen := map[string]bool{}
	return slices.DeleteFunc(all, func(text string) bool {
		again := seen[text]
		seen[text] = true
		return again
	})
}

// summarized reports whether a row is part of a summary.
func summarized(r compare.Row) bool {
	return r.Asked || slices.Contains(compare.Stats(latency.BriefTable), r.Stat)
}

// metric names the measured quantity of a comparison.
func metric(a, b *report.Report) string {
	if a.Device.Sim() && b.Device.Sim() {
		return string(a.Metric) + " in the model"
	}
	return string(a.Metric)
}

// summarizePair writes a row for each statistic of two reports.
func summarizePair(w io.Writer, c *compare.Comparison) {
	p := c.Pairs[0]
	fmt.Fprintf(w, "%s\tA: %s\tB: %s\tshift of runs\t\t\tinterval\t\n", metric(p.A, p.B), sanitize.Text(p.A.Name()),
		sanitize.Text(p.B.Name()))
	for _, r := range pairRows(&p, true, "[%s, %s]") {
		fmt.Fprint(w, r.text(true))
	}
	fmt.Fprintf(w, "lost\t%s\t%s\t\n", lostText(p.A), lostText(p.B))
}

// summarizeAll writes a row for each report, with its shift from the first.
func summarizeAll(w io.Writer, c *compare.Comparison) {
	base := c.Reports[0]
	fmt.Fprintf(w, "%s\t", metric(base, c.Reports[len(c.Reports)-1]))
	stats := compare.Stats(latency.BriefTable)
	for _, st := range stats {
		fmt.Fprintf(w, "%s\t\t\t", st)
	}
	fmt.Fprint(w, "lost\t\n")
	for i, r := range c.Reports {
		fmt.Fprintf(w, "%s\t", sanitize.Text(r.Name()))
		for _, st := range stats {
			value, shift, mark := "", "", ""
			if r.Measured() {
				value = seriesText(r, r.Main(), st)
			}
			if i > 0 {
				for _, row := range c.Pairs[i-1].Rows {
					if row.Stat != st {
						continue
					}
					if mark = row.Verdict.Mark(); row.Tested() {
						_, shift = formatShift(row)
					}
				}
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t", value, shift, mark)
		}
		fmt.Fprintf(w, "%s\t\n", lostText(r))
	}
}

// lostText says how many probes of a report were lost, out of how many, and how many went unanswered elsewhere.
func lostText(r *report.Report) string {
	if !counted(r) || answers(r) {
		return "–"
	}
	lost := fmt.Sprintf("%s of %s", report.Range(r.Counts.LostLeast(), r.Counts.Lost, latency.FormatCount[int64]),
		latency.FormatCount(r.Counts.Sent))
	return strings.Join(append([]string{lost}, Elsewhere(&r.Counts)...), ", ")
}

// warned prefixes a report's warning with its name.
func warned(r *report.Report, text string) string { return r.Name() + ": " + text }
