package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/rebound-nic/rebound/internal/bench/session"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/page"
	"github.com/rebound-nic/rebound/latency/plain"
	"github.com/rebound-nic/rebound/latency/report"
)

// printResult prints the reports of a session: each, and their comparison if they are paired, or one table for a sweep.
func (e *env) printResult(r *session.Result, paired, asJSON, verbose bool) (failed error) {
	if r == nil {
		return nil
	}
	if asJSON {
		return writeJSON(e.stdout, slices.Concat(r.Reports, r.Unwritten), nil)
	}
	for _, rep := range r.Unwritten { // it cannot be measured again: it is at least to be read
		failed = errors.Join(failed, page.PrintReport(e.stdout, rep))
	}
	if paired && len(r.Reports) > 1 {
		failed = errors.Join(failed, page.PrintComparison(e.stdout, compare.Reports(r.Reports[0], r.Reports[1:]...)))
		fmt.Fprintln(e.stdout)
	}
	if paired || len(r.Reports) == 1 {
		for _, rep := range r.Reports {
			failed = errors.Join(failed, printReport(e.stdout, rep, verbose))
		}
	}
	if paired || len(r.Reports) < 2 {
		return failed
	}
	return errors.Join(failed, sweepTable(e.stdout, r.Reports))
}

// writeJSON prints reports for programs: each with its folder, which is empty where it could not be written.
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

// printReport prints a report and where it is; with verbose its diagnostics too, which the report's page has in any case.
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
	_, err := fmt.Fprintf(w, "report %s\n\n", plain.Text(rep.Dir))
	return err
}

// verboseHelp is the text of every -v.
const verboseHelp = "print diagnostics too: polling gaps, self-test, loss and reordering, notes (report.html has them all)"

// printDiagnostics prints a report's further series and its notes.
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
	fmt.Fprintf(w, "%s:  p50 %s  p99 %s  p99.9 %s  p99.99 %s  max %s  (%d)\n", name, ns(m.P50), ns(m.P99), ns(m.P999), ns(m.P9999), ns(m.Max), m.Count)
}

// sweepAnswer is a sweep in one sentence: p50 of the points that are least and most, and how many lost probes.
func sweepAnswer(all []*report.Report) string {
	least, most, lossy := all[0], all[0], 0
	for _, r := range all {
		if p50 := r.Main().Summary.P50; p50 < least.Main().Summary.P50 {
			least = r
		} else if p50 > most.Main().Summary.P50 {
			most = r
		}
		if r.Counts.Lost > 0 {
			lossy++
		}
	}
	return fmt.Sprintf("p50 from %s (%s) to %s (%s); %d of %s lost probes", ns(least.Main().Summary.P50), plain.Text(least.Label),
		ns(most.Main().Summary.P50), plain.Text(most.Label), lossy, plain.Count(len(all), "point"))
}

// sweepTable prints the answer, and one line for each point.
func sweepTable(w io.Writer, all []*report.Report) error {
	fmt.Fprintf(w, "%s\n\n", sweepAnswer(all))
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "point\tsize\trate/s\tsent\tlost\tdropped here\tnot sent\tp50\tp99\tp99.9\tmax\treport\t")
	for _, r := range all {
		m := r.Main().Summary
		rate := "closed"
		if r.Traffic.Rate > 0 {
			rate = fmt.Sprintf("%.0f", r.Traffic.Rate)
		}
		fmt.Fprintf(table, "%s\t%d\t%s\t%d\t%s\t%d\t%d\t%s\t%s\t%s\t%s\t%s\t\n", plain.Text(r.Label), r.Traffic.FrameSize, rate, r.Counts.Sent, r.Counts.LostText(), r.Counts.DroppedHere, r.Counts.SendFailed,
			ns(m.P50), ns(m.P99), ns(m.P999), ns(m.Max), plain.Text(r.Dir))
	}
	return table.Flush()
}

// printSearch prints every trial, and then what was found.
func (e *env) printSearch(r *session.SearchResult, asJSON bool) error {
	if r == nil {
		return nil
	}
	if asJSON {
		return writeJSON(e.stdout, slices.Concat(r.Reports, r.Unwritten), r.Trials)
	}
	table := tabwriter.NewWriter(e.stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "size\toffered/s\tsent\tlost\tdropped here\tlate\tp50\tp99\tverdict\t")
	for _, t := range r.Trials {
		fmt.Fprintf(table, "%d\t%.0f\t%d\t%s\t%d\t%d\t%s\t%s\t%s\t\n", t.Size, t.Rate, t.Counts.Sent, t.Counts.LostText(), t.Counts.DroppedHere, t.Counts.Late,
			ns(t.Summary.P50), ns(t.Summary.P99), t.Why)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, rep := range r.Reports {
		fmt.Fprintf(e.stdout, "\n%d bytes: %.0f probes per second without loss (%.1f Mbit/s on the wire with FCS, preamble and gap), report %s\n",
			rep.Traffic.FrameSize, rep.Traffic.Rate, rep.Traffic.Rate*float64(rep.Traffic.FrameSize+24)*8/1e6, plain.Text(rep.Dir))
		for _, text := range rep.Warnings {
			fmt.Fprintf(e.stdout, "warning: %s\n", text)
		}
		for _, note := range rep.Notes {
			if strings.HasPrefix(note, session.LimitNote) {
				fmt.Fprintf(e.stdout, "note: %s\n", note)
			}
		}
	}
	return nil
}

func ns(v int64) string { return latency.FormatNS(float64(v)) }
