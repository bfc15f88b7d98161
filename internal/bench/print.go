package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rebound-nic/rebound/internal/bench/measure"
	"github.com/rebound-nic/rebound/internal/host/command"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/page"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/latency/sanitize"
)

// printResult prints the reports of a session: each report, and their comparison if they are paired, or one table for a
// sweep.
func printResult(e *command.Env, r *measure.Result, paired, asJSON, verbose bool) (failed error) {
	if r == nil {
		return nil
	}
	if asJSON {
		var table *page.Table
		if !paired && len(r.Reports) > 1 {
			table = sweepOf(r.Reports)
		}
		return errors.Join(writeJSON(e.Stdout, r.Reports, nil, table),
			writeIndex(&command.Env{Stdout: io.Discard}, r.Reports, paired))
	}
	if paired && len(r.Reports) > 1 {
		c := compare.Reports(r.Reports[0], r.Reports[1:]...)
		if !verbose {
			failed = errors.Join(failed, page.PrintSummary(e.Stdout, c))
			printFolders(e.Stdout, r.Reports)
			return errors.Join(failed, writeIndex(e, r.Reports, paired))
		}
		failed = errors.Join(failed, page.PrintComparison(e.Stdout, c))
		fmt.Fprintln(e.Stdout)
	}
	if paired || len(r.Reports) == 1 {
		for _, rep := range r.Reports {
			failed = errors.Join(failed, printReport(e.Stdout, rep, verbose))
		}
	}
	if paired || len(r.Reports) < 2 {
		if paired {
			failed = errors.Join(failed, writeIndex(e, r.Reports, paired))
		}
		return failed
	}
	return errors.Join(failed, printSweep(e.Stdout, r.Reports), writeIndex(e, r.Reports, paired))
}

// writeIndex writes the page for several reports, index.html in their folder: their comparison, a ranking if there are
// too many for that, or the curves of a sweep.
func writeIndex(e *command.Env, all []*report.Report, paired bool) error {
	// a report that is not written cannot be linked to
	if len(all) < 2 || slices.ContainsFunc(all, func(r *report.Report) bool { return r.Dir == "" }) {
		return nil
	}
	path := filepath.Join(filepath.Dir(all[0].Dir), "index.html")
	var links []page.Link
	for _, rep := range all {
		links = append(links, page.Link{Name: rep.Name(), Href: url.PathEscape(filepath.Base(rep.Dir)) + "/" +
			report.HTMLFile})
	}
	return e.WritePage(path, func(w io.Writer) error {
		switch {
		case paired && len(all) > mostCompared:
			c := compare.Reports(all[0], all[1:]...)
			items := make([]page.Item, len(all))
			for i, rep := range c.Reports {
				items[i] = page.Item{Link: links[i], R: rep}
			}
			return page.Overview(w, sanitize.Count(len(all), "target"), items, c)
		case paired:
			return page.Comparison(w, compare.Reports(all[0], all[1:]...), links...)
		}
		return page.Sweep(w, all, links)
	})
}

// mostCompared is how many reports a comparison page shows, because their curves must be distinguishable.
const mostCompared = 6

// writeJSON prints reports for programs: each with its folder, which is empty if it could not be written. table is nil
// if there is none.
func writeJSON(w io.Writer, reports []*report.Report, trials []measure.Trial, table *page.Table) error {
	type located struct {
		Dir    string         `json:"dir"`
		Report *report.Report `json:"report"`
	}
	out := struct {
		Reports []located        `json:"reports"`
		Trials  []measure.Trial  `json:"trials,omitempty"`
		Table   []map[string]any `json:"table,omitempty"`
	}{Reports: []located{}, Trials: trials}
	if table != nil {
		out.Table = table.JSON()
	}
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
			fmt.Fprintf(w, "report %s\n", sanitize.Text(rep.Dir))
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
			page.PrintSeries(w, s.Name+" (time-weighted)", s.Wait)
			page.PrintSeries(w, s.Name+" (per loop iteration)", &s.Summary)
			continue
		}
		page.PrintSeries(w, s.Name, &s.Summary)
	}
	for _, line := range rep.TailLines() {
		fmt.Fprintln(w, line)
	}
	if o := rep.Order; o != nil && o.LossPeriods > 0 {
		fmt.Fprintf(w, "probes without a reply in a row: %s, the longest %s (RFC 3357)\n",
			sanitize.Count(o.LossPeriods, "time"), latency.FormatCount(o.LongestLoss))
	}
	if o := rep.Order; o != nil && o.Extent > 0 {
		fmt.Fprintf(w, "reordered: %s of the replies, by up to %s (RFC 4737)\n", latency.FormatShare(o.ReorderedRatio),
			sanitize.Count(o.Extent, "place"))
	}
	for _, n := range rep.Notes {
		fmt.Fprintf(w, "note: %s\n", n)
	}
}

// sweepOf is the table of a sweep.
func sweepOf(all []*report.Report) *page.Table {
	t := &page.Table{Kind: page.SweepTable}
	for _, r := range all {
		t.Points = append(t.Points, page.PointOf(r, page.Link{Name: r.Name()}))
	}
	return t
}

// searchOf is the table of a search's trials.
func searchOf(trials []measure.Trial) *page.Table {
	t := &page.Table{Kind: page.SearchTable}
	for i := range trials {
		trial := &trials[i]
		t.Points = append(t.Points, page.Point{Size: trial.Size, Rate: trial.Rate, Counts: &trial.Counts,
			Summary: &trial.Summary, Verdict: trial.Why})
	}
	return t
}

// printSweep prints the answer, a line for each point, and the points' warnings.
func printSweep(w io.Writer, all []*report.Report) error {
	fmt.Fprintf(w, "%s\n\n", page.SweepAnswer(all))
	if err := sweepOf(all).Print(w); err != nil {
		return err
	}
	for _, r := range all {
		warnings := r.Warnings
		if text := page.OwnText(r); text != "" {
			warnings = append(slices.Clone(warnings), text)
		}
		for _, text := range warnings {
			fmt.Fprintf(w, "warning: %s: %s\n", sanitize.Text(r.Name()), text)
		}
	}
	return nil
}

// searchAnswer summarises a search in one sentence: the highest rate without loss of each variant, with its round trips
// and its limiting factor.
func searchAnswer(r *measure.SearchResult) string {
	var all []string
	for _, rep := range r.Reports {
		text := fmt.Sprintf("%s probes per second without loss at %d bytes%s: %s", latency.FormatRate(rep.Traffic.Rate),
			rep.Traffic.FrameSize, onTheWire(&rep.Traffic), page.Figures(rep, latency.NarrowTable))
		for _, note := range rep.Notes {
			if limit, ok := strings.CutPrefix(note, measure.LimitNote); ok {
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
func printSearch(e *command.Env, r *measure.SearchResult, asJSON bool) error {
	if r == nil {
		return nil
	}
	if asJSON {
		return writeJSON(e.Stdout, r.Reports, r.Trials, searchOf(r.Trials))
	}
	fmt.Fprintln(e.Stdout, searchAnswer(r))
	for _, rep := range r.Reports {
		for _, text := range rep.Warnings {
			fmt.Fprintf(e.Stdout, "warning: %s\n", text)
		}
	}
	fmt.Fprintln(e.Stdout)
	if err := searchOf(r.Trials).Print(e.Stdout); err != nil {
		return err
	}
	printFolders(e.Stdout, r.Reports)
	return writeIndex(e, r.Reports, false)
}

// onTheWire formats a frame rate in bits per second; it is empty for messages, whose framing is up to the card.
func onTheWire(t *report.Traffic) string {
	if t.Transport == "message" {
		return ""
	}
	bytes := t.FrameSize + 24 // FCS, preamble and gap
	if t.VLAN > 0 {
		bytes += 4
	}
	return fmt.Sprintf(" (%s on the wire with FCS, preamble and gap)", latency.FormatBits(t.Rate*float64(bytes)*8))
}
