package tables

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/atomicfile"
	"github.com/rebound-nic/rebound/latency/report"
)

// Table has everything that was measured, and reasons for what was not.
type Table struct {
	Closed     []*report.Report // one per peer, with a run for each round
	Saturation []*report.Report // one per peer at its highest lossless rate, with the search in its notes
	Open       []*report.Report // one per peer at each of the Fractions of that rate
	Versus     [][2]string      // ours, other
	Skipped    []string         // peer and reason
}

func find(all []*report.Report, label string) *report.Report {
	if i := slices.IndexFunc(all, func(r *report.Report) bool { return r.Label == label }); i >= 0 {
		return all[i]
	}
	return nil
}

// Markdown writes the tables.
func (t *Table) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Round trips in µs, one probe at a time: the median of the rounds (the least to the greatest).\n\n")
	fmt.Fprintf(&b, "| Who answers | p50 | p99 | p99.9 | round trips | lost | corrupt |\n|---|---|---|---|--:|--:|--:|\n")
	for _, r := range t.Closed {
		fmt.Fprintf(&b, "| %s |", r.Label)
		for _, q := range quantiles {
			fmt.Fprintf(&b, " %s |", spreadOf(rounds(r, q.Q)).micros())
		}
		fmt.Fprintf(&b, " %d | %d | %d |\n", r.Counts.Received, r.Counts.Lost, r.Counts.Corrupt)
	}
	fmt.Fprintf(&b, "\nRatios, round by round, median (least to greatest); below 1 the first is faster:\n\n")
	fmt.Fprintf(&b, "| | p50 | p99 | p99.9 |\n|---|---|---|---|\n")
	for _, v := range t.Versus {
		x, y := find(t.Closed, v[0]), find(t.Closed, v[1])
		if x == nil || y == nil {
			continue
		}
		fmt.Fprintf(&b, "| %s / %s |", v[0], v[1])
		for _, q := range quantiles {
			fmt.Fprintf(&b, " %s |", Ratio(rounds(x, q.Q), rounds(y, q.Q)).ratio())
		}
		fmt.Fprintln(&b)
	}
	t.goals(&b)
	t.saturation(&b)
	t.rates(&b)
	for _, s := range t.Skipped {
		fmt.Fprintf(&b, "\nNot measured: %s\n", s)
	}
	return b.String()
}

// saturation writes the results of the searches, and who set the limit: the peer, which lost probes, or the bench,
// which could not send faster.
func (t *Table) saturation(b *strings.Builder) {
	if len(t.Saturation) == 0 {
		return
	}
	fmt.Fprintf(b, "\nThe highest rate without loss, by bisection (RFC 2544 §26.1, but trials of %v; one that fails has two more tries):\n\n",
		trial(t.Saturation[0]))
	fmt.Fprintf(b, "| Who answers | probes/s without loss | p50, µs | the next rate failed by |\n|---|--:|--:|---|\n")
	for _, r := range t.Saturation {
		limit := "nothing: no higher rate was tried"
		if rate, why := Ceiling(r); rate > 0 {
			why, bench := strings.CutPrefix(why, "not offered: this host ")
			limit = fmt.Sprintf("%s at %.0f/s", why, rate)
			if drops, own := strings.CutPrefix(why, "not measured by this host: "); own {
				limit = fmt.Sprintf("the bench, with %s at %.0f/s", drops, rate)
			}
			if bench {
				limit = "the bench, which " + limit
			}
		}
		fmt.Fprintf(b, "| %s | %.0f | %.2f | %s |\n", r.Label, r.Traffic.Rate, float64(r.Main().Summary.P50)/1e3, limit)
	}
}

// trial returns the duration of a report's last run.
func trial(r *report.Report) time.Duration {
	if len(r.Runs) == 0 {
		return 0
	}
	last := r.Runs[len(r.Runs)-1]
	return time.Duration(last.End - last.Start).Round(100 * time.Millisecond)
}

// rates writes the measurements below saturation.
func (t *Table) rates(b *strings.Builder) {
	if len(t.Open) == 0 {
		return
	}
	var sent, lost, corrupt int64
	for _, r := range t.Open {
		if strings.HasPrefix(r.Label, "responder") {
			sent, lost, corrupt = sent+r.Counts.Sent, lost+r.Counts.Lost, corrupt+r.Counts.Corrupt
		}
	}
	fmt.Fprintf(b, "\nAt fractions of that rate, %d of %d probes to the responders were lost, and %d came back corrupt.\n\n", lost, sent, corrupt)
	fmt.Fprintf(b, "<details><summary>Each peer at each rate</summary>\n\n")
	fmt.Fprintf(b, "Timed from the intended send, in µs. Send lag is the bench's own: how late its probes left.\n\n")
	fmt.Fprintf(b, "| Who answers | probes/s | sent | lost | corrupt | p50 | p99 | p99.9 | send lag p99 | p99.9 |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n")
	for _, r := range t.Open {
		s, lag := r.Main().Summary, "–|–"
		if l := r.Find(latency.LagSeries); l != nil {
			lag = fmt.Sprintf("%.2f | %.2f", float64(l.Summary.P99)/1e3, float64(l.Summary.P999)/1e3)
		}
		fmt.Fprintf(b, "| %s | %.0f | %d | %d | %d | %.2f | %.2f | %.2f | %s |\n",
			strings.Replace(r.Label, " percent", " %", 1), r.Traffic.Rate,
			r.Counts.Sent, r.Counts.Lost, r.Counts.Corrupt, float64(s.P50)/1e3, float64(s.P99)/1e3, float64(s.P999)/1e3,
			lag)
	}
	b.WriteString("\n</details>\n")
}

// Insert replaces the text between the lines <!-- name:begin --> and <!-- name:end --> of a file.
func Insert(file, name, text string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	begin, end := []byte("<!-- "+name+":begin -->\n"), []byte("<!-- "+name+":end -->")
	from, to := bytes.Index(b, begin), bytes.Index(b, end)
	if from < 0 || to < from {
		return fmt.Errorf("%s has no lines %s and %s: %w", file, bytes.TrimSpace(begin), end, ErrNoPlace)
	}
	return atomicfile.WriteFile(file, slices.Concat(b[:from+len(begin)], []byte(text), b[to:]))
}

// ErrNoPlace is returned if a file has no such lines.
var ErrNoPlace = errors.New("no place for the text")

// Short is a short table: each peer in the closed loop, and its highest lossless rate.
func (t *Table) Short() string {
	var b strings.Builder
	fmt.Fprintf(&b, "| Who answers | p50, µs | p99, µs | p99.9, µs | probes/s without loss |\n|---|--:|--:|--:|--:|\n")
	for _, r := range t.Closed {
		fmt.Fprintf(&b, "| %s |", r.Label)
		for _, q := range quantiles {
			fmt.Fprintf(&b, " %.2f |", spreadOf(rounds(r, q.Q)).Median/1e3)
		}
		rate := "–"
		if s := find(t.Saturation, r.Label); s != nil {
			rate = fmt.Sprintf("%.0f", s.Traffic.Rate)
		}
		fmt.Fprintf(&b, " %s |\n", rate)
	}
	return b.String()
}

// figures is the report of a search, or of one rate, without its histograms.
type figures struct {
	Label    string           `json:"label"`
	Rate     float64          `json:"rate"` // probes per second
	Counts   report.Counts    `json:"counts"`
	RTT      latency.Summary  `json:"rtt"`                // from the intended send
	SendLag  *latency.Summary `json:"send_lag,omitempty"` // delay of the bench's own probes
	Notes    []string         `json:"notes,omitempty"`
	Duration int64            `json:"duration_ns"`
}

// WriteFigures writes the measurements at rates to a JSON file, as two lists of figures: "saturation" and "rates".
func (t *Table) WriteFigures(file string) error {
	list := func(all []*report.Report) []figures {
		out := []figures{}
		for _, r := range all {
			f := figures{Label: r.Label, Rate: r.Traffic.Rate, Counts: r.Counts, RTT: r.Main().Summary, Notes: r.Notes,
				Duration: r.End.Sub(r.Start).Nanoseconds()}
			if lag := r.Find(latency.LagSeries); lag != nil {
				f.SendLag = &lag.Summary
			}
			out = append(out, f)
		}
		return out
	}
	b, err := json.MarshalIndent(map[string][]figures{"saturation": list(t.Saturation), "rates": list(t.Open)}, "", " ")
	if err != nil {
		return err
	}
	return atomicfile.WriteFile(file, append(b, '\n'))
}
