package bench

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/rebound-nic/rebound/internal/bench/session"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/page"
	"github.com/rebound-nic/rebound/latency/plain"
	"github.com/rebound-nic/rebound/latency/report"
)

// printResult prints the reports of a session: each report, and their comparison if they are paired, or one table for a
// sweep.
func (e *env) printResult(r *session.Result, paired, asJSON, verbose bool) (failed error) {
	if r == nil {
		return nil
	}
	if asJSON {
		return errors.Join(writeJSON(e.stdout, r.Reports, nil), (&env{stdout: io.Discard}).writeIndex(r.Reports, paired))
	}
	if paired && len(r.Reports) > 1 {
		c := compare.Reports(r.Reports[0], r.Reports[1:]...)
		if !verbose {
			failed = errors.Join(failed, page.PrintSummary(e.stdout, c))
			printFolders(e.stdout, r.Reports)
			return errors.Join(failed, e.writeIndex(r.Reports, paired))
		}
		failed = errors.Join(failed, page.PrintComparison(e.stdout, c))
		fmt.Fprintln(e.stdout)
	}
	if paired || len(r.Reports) == 1 {
		for _, rep := range r.Reports {
			failed = errors.Join(failed, printReport(e.stdout, rep, verbose))
		}
	}
	if paired || len(r.Reports) < 2 {
		if paired {
			failed = errors.Join(failed, e.writeIndex(r.Reports, paired))
		}
		return failed
	}
	return errors.Join(failed, sweepTable(e.stdout, r.Reports), e.writeIndex(r.Reports, paired))
}

// writeIndex writes the page for several reports, index.html in their folder: their comparison, a ranking if there are
// too many for that, or the curves of a sweep.
func (e *env) writeIndex(all []*report.Report, paired bool) error {
	if len(all) < 2 || slices.ContainsFunc(all, func(r *report.Report) bool { return r.Dir == "" }) { // a report that is not written cannot be linked to
		return nil
	}
	path := filepath.Join(filepath.Dir(all[0].Dir), "index.html")
	var links []page.Link
	for _, rep := range all {
		links = append(links, page.Link{Name: rep.Name(), Href: url.PathEscape(filepath.Base(rep.Dir)) + "/" + report.HTMLFile})
	}
	return e.writePage(path, func(w io.Writer) error {
		switch {
		case paired && len(all) > mostCompared:
			c := compare.Reports(all[0], all[1:]...)
			items := make([]page.Item, len(all))
			for i, rep := range c.Reports {
				items[i] = page.Item{Link: links[i], R: rep}
			}
			return page.Overview(w, plain.Count(len(all), "target"), items, c)
		case paired:
			return page.Comparison(w, compare.Reports(all[0], all[1:]...), links...)
		}
		return page.Sweep(w, all, links)
	})
}

// mostCompared is how many reports a comparison page shows, because their curves must be distinguishable.
const mostCompared = 6

// writeJSON prints reports for programs: each with its folder, which is empty if it could not be written.
func writeJSON(w io.Writer, reports []*report.Report, trials []session.Trial) error {
	type located struct {
		Dir    string         `json:"dir"`
		Report *report.Report `json:"report"`
	}
	out := struct {
		Reports []located       `json:"reports"`
		Trials  []session.Trial `json:"trials,omitempty"`
	}{Reports: []located{}, Trials: trials}
	for _, rep := range reports {
		out.Reports = append(out.Reports, located{rep.Dir, rep})
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(out)
}

// printReport prints a report and its folder; with verbose also its diagnostics, which the report's page always has.
func printReport(w io.Writer, rep *report.Report, verbose bool) error {
	if err := page.PrintReport(w, rep); err != nil {
		return err
	}
	if verbose {
		printDiagnostics(w, rep)
	}
	if rep.Foreign != nil {
		_, err := fmt.Fprintln(w)
		return err
	}
	printFolders(w, []*report.Report{rep})
	_, err := fmt.Fprintln(w)
	return err
}

// printFolders prints the folders of reports, if they could be written.
func printFolders(w io.Writer, all []*report.Report) {
	for _, rep := range all {
		if rep.Dir != "" {
			fmt.Fprintf(w, "report %s\n", plain.Text(rep.Dir))
		}
	}
}

const verboseHelp = "print diagnostics too: polling gaps, self-test, loss and reordering, notes (report.html has them all)"

// printDiagnostics prints a report's additional series and its notes.
func printDiagnostics(w io.Writer, rep *report.Report) {
	for _, s := range rep.Series {
		if s.Name == latency.MainSeries || s.Name == latency.UncorrectedSeries {
			continue
		}
		if s.Wait != nil {
			printSummary(w, s.Name+" (time-weighted)", s.Wait)
			printSummary(w, s.Name+" (per loop iteration)", &s.Summary)
			continue
		}
		printSummary(w, s.Name, &s.Summary)
	}
	for _, line := range rep.Tail.Lines() {
		fmt.Fprintln(w, line)
	}
	if o := rep.Order; o != nil && o.LossPeriods > 0 {
		fmt.Fprintf(w, "probes without a reply in a row: %d times, the longest %d (RFC 3357)\n", o.LossPeriods, o.LongestLoss)
	}
	if o := rep.Order; o != nil && o.Extent > 0 {
		fmt.Fprintf(w, "reordered: %.3g %% of the replies, by up to %d places (RFC 4737)\n", 100*o.ReorderedRatio, o.Extent)
	}
	for _, n := range rep.Notes {
		fmt.Fprintf(w, "note: %s\n", n)
	}
}

func printSummary(w io.Writer, name string, m *latency.Summary) {
	if m.Count == 0 {
		fmt.Fprintf(w, "%s:  no samples\n", name)
		return
	}
	fmt.Fprintf(w, "%s:  p50 %s  p99 %s  p99.9 %s  p99.99 %s  max %s  (%d)\n", name, ns(m.P50), ns(m.P99), ns(m.P999), ns(m.P9999), ns(m.Max), m.Count)
}

// sweepTable prints the answer, and one line for each point.
func sweepTable(w io.Writer, all []*report.Report) error {
	fmt.Fprintf(w, "%s\n\n", page.SweepAnswer(all))
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	columns := countColumns(len(all), func(i int) *report.Counts { return &all[i].Counts })
	fmt.Fprintf(table, "point\tsize\trate/s\tsent\tlost\t%sp50\tp99\tp99.9\tmax\treport\t\n", columns.head())
	for _, r := range all {
		m := r.Main().Summary
		rate := "closed"
		if r.Traffic.Rate > 0 {
			rate = page.FormatRate(r.Traffic.Rate)
		}
		fmt.Fprintf(table, "%s\t%d\t%s\t%d\t%s\t%s%s\t%s\t%s\t%s\t%s\t\n", plain.Text(r.Label), r.Traffic.FrameSize, rate, r.Counts.Sent, r.Counts.LostText(), columns.cells(&r.Counts),
			ns(m.P50), ns(m.P99), ns(m.P999), ns(m.Max), cmp.Or(plain.Text(r.Dir), "(not written)"))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, r := range all {
		for _, text := range r.Warnings {
			fmt.Fprintf(w, "warning: %s: %s\n", plain.Text(r.Label), text)
		}
	}
	return nil
}

// countColumn is a column of a table that is shown only if any of its rows has a count.
type countColumn struct {
	name string
	of   func(*report.Counts) int64
	text func(*report.Counts) string
}

type columns []countColumn

// countColumns are the columns that a table of n rows needs, for late replies and for every place where probes can get
// lost other than between the hosts.
func countColumns(n int, of func(int) *report.Counts) (shown columns) {
	var all columns
	for _, p := range report.Places {
		all = append(all, countColumn{string(p), func(c *report.Counts) int64 { return c.At(p) },
			func(c *report.Counts) string { return c.AtText(p, decimal) }})
	}
	all = append(all, countColumn{"corrupt only", func(c *report.Counts) int64 { return c.CorruptOnly }, func(c *report.Counts) string { return decimal(c.CorruptOnly) }},
		countColumn{"late", func(c *report.Counts) int64 { return c.Late }, func(c *report.Counts) string { return decimal(c.Late) }},
		countColumn{"not awaited", func(c *report.Counts) int64 { return c.NotAwaited }, func(c *report.Counts) string { return decimal(c.NotAwaited) }})
	for _, column := range all {
		for i := range n {
			if column.of(of(i)) != 0 {
				shown = append(shown, column)
				break
			}
		}
	}
	return shown
}

func (all columns) head() (text string) {
	for _, c := range all {
		text += c.name + "\t"
	}
	return text
}

func (all columns) cells(of *report.Counts) (text string) {
	for _, c := range all {
		text += c.text(of) + "\t"
	}
	return text
}

func decimal(n int64) string { return strconv.FormatInt(n, 10) }

// searchAnswer summarises a search in one sentence: the highest rate without loss of each variant, with its round trips
// and its limiting factor.
func searchAnswer(r *session.SearchResult) string {
	var all []string
	for _, rep := range r.Reports {
		m := rep.Main().Summary
		text := fmt.Sprintf("%s probes per second without loss at %d bytes%s: p50 %s, p99 %s", page.FormatRate(rep.Traffic.Rate), rep.Traffic.FrameSize, onTheWire(&rep.Traffic), ns(m.P50), ns(m.P99))
		for _, note := range rep.Notes {
			if limit, ok := strings.CutPrefix(note, session.LimitNote); ok {
				text += "; above that the limit is " + limit
			}
		}
		all = append(all, text)
	}
	if len(all) == 0 {
		return "no rate without loss was found"
	}
	return strings.Join(all, "\n")
}

// printSearch prints the result, followed by every trial.
func (e *env) printSearch(r *session.SearchResult, asJSON bool) error {
	if r == nil {
		return nil
	}
	if asJSON {
		return writeJSON(e.stdout, r.Reports, r.Trials)
	}
	fmt.Fprintln(e.stdout, searchAnswer(r))
	for _, rep := range r.Reports {
		for _, text := range rep.Warnings {
			fmt.Fprintf(e.stdout, "warning: %s\n", text)
		}
	}
	fmt.Fprintln(e.stdout)
	table := tabwriter.NewWriter(e.stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	columns := countColumns(len(r.Trials), func(i int) *report.Counts { return &r.Trials[i].Counts })
	fmt.Fprintf(table, "size\toffered/s\tsent\tlost\t%sp50\tp99\tverdict\t\n", columns.head())
	for _, t := range r.Trials {
		fmt.Fprintf(table, "%d\t%s\t%d\t%s\t%s%s\t%s\t%s\t\n", t.Size, page.FormatRate(t.Rate), t.Counts.Sent, t.Counts.LostText(), columns.cells(&t.Counts),
			percentile(&t.Summary, t.Summary.P50), percentile(&t.Summary, t.Summary.P99), t.Why)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	printFolders(e.stdout, r.Reports)
	return e.writeIndex(r.Reports, false)
}

// onTheWire formats a frame rate in Mbit/s; it is empty for messages, whose framing is up to the card.
func onTheWire(t *report.Traffic) string {
	if t.Transport == "message" {
		return ""
	}
	bytes := t.FrameSize + 24 // FCS, preamble and gap
	if t.VLAN > 0 {
		bytes += 4
	}
	return fmt.Sprintf(" (%.1f Mbit/s on the wire with FCS, preamble and gap)", t.Rate*float64(bytes)*8/1e6)
}

// percentile is a value of a summary, which has none without samples.
func percentile(m *latency.Summary, v int64) string {
	if m.Count == 0 {
		return "–"
	}
	return ns(v)
}

func ns(v int64) string { return latency.FormatNS(float64(v)) }
