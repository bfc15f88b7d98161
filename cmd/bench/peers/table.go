package peers

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"rebound/latency"
)

// Goal is a ratio to reach: the responder's figure at most Most times the other's, at one quantile.
type Goal struct {
	Ours, Other, Quantile string
	Most                  float64
}

// Goals are what the project promises.
var Goals = []Goal{
	{"responder-afxdp", "testpmd-afxdp", "p50", 0.8}, {"responder-afxdp", "testpmd-afxdp", "p99", 1},
	{"responder-afpacket", "testpmd-afpacket", "p50", 0.7}, {"responder-afpacket", "testpmd-afpacket", "p99", 0.5},
}

// Table is everything that was measured, or why not. Closed has one report for each peer, with a run for each round; Open
// one for each peer and rate.
type Table struct {
	Closed, Open []*latency.Report
	Versus       [][2]string // ours, other
	Skipped      []string    // peer and reason
}

func find(all []*latency.Report, label string) *latency.Report {
	if i := slices.IndexFunc(all, func(r *latency.Report) bool { return r.Label == label }); i >= 0 {
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
		for _, q := range Quantiles {
			fmt.Fprintf(&b, " %s |", SpreadOf(Rounds(r, q.Q)).micros())
		}
		fmt.Fprintf(&b, " %d | %d | %d |\n", r.Counts.Received, r.Counts.Lost, r.Counts.Corrupt)
	}
	fmt.Fprintf(&b, "\nRatios, round by round, median (least to greatest); below 1 the responder is faster:\n\n")
	fmt.Fprintf(&b, "| | p50 | p99 | p99.9 |\n|---|---|---|---|\n")
	for _, v := range t.Versus {
		x, y := find(t.Closed, v[0]), find(t.Closed, v[1])
		if x == nil || y == nil {
			continue
		}
		fmt.Fprintf(&b, "| %s / %s |", v[0], v[1])
		for _, q := range Quantiles {
			fmt.Fprintf(&b, " %s%s |", Ratio(Rounds(x, q.Q), Rounds(y, q.Q)).ratio(), t.goal(v, q.Name))
		}
		fmt.Fprintln(&b)
	}
	if len(t.Open) > 0 {
		fmt.Fprintf(&b, "\nAt a rate, timed from the intended send, in µs:\n\n")
		fmt.Fprintf(&b, "| Who answers | probes/s | sent | lost | corrupt | p50 | p99 | p99.9 |\n|---|--:|--:|--:|--:|--:|--:|--:|\n")
		for _, r := range t.Open {
			who, _, _ := strings.Cut(r.Label, " ")
			s := r.Main().Summary
			fmt.Fprintf(&b, "| %s | %.0f | %d | %d | %d | %.2f | %.2f | %.2f |\n", who, r.Traffic.Rate, r.Counts.Sent, r.Counts.Lost,
				r.Counts.Corrupt, float64(s.P50)/1e3, float64(s.P99)/1e3, float64(s.P999)/1e3)
		}
	}
	for _, s := range t.Skipped {
		fmt.Fprintf(&b, "\nNot measured: %s\n", s)
	}
	return b.String()
}

func (t *Table) goal(v [2]string, quantile string) string {
	for _, g := range Goals {
		if g.Ours == v[0] && g.Other == v[1] && g.Quantile == quantile {
			return fmt.Sprintf(", goal %.1f", g.Most)
		}
	}
	return ""
}

// Missed returns the goals that were not reached, and frames lost or corrupt, one sentence each.
func (t *Table) Missed() []string {
	var out []string
	for _, g := range Goals {
		x, y := find(t.Closed, g.Ours), find(t.Closed, g.Other)
		if x == nil || y == nil {
			continue
		}
		for _, q := range Quantiles {
			if r := Ratio(Rounds(x, q.Q), Rounds(y, q.Q)); q.Name == g.Quantile && r.Median > g.Most {
				out = append(out, fmt.Sprintf("%s of %s is %.2f of %s's, the goal is %.1f", g.Quantile, g.Ours, r.Median, g.Other, g.Most))
			}
		}
	}
	for _, r := range slices.Concat(t.Closed, t.Open) {
		if n := r.Counts; strings.HasPrefix(r.Label, "responder") && n.Lost+n.Corrupt+n.Duplicates > 0 {
			out = append(out, fmt.Sprintf("%s: of %d probes %d lost, %d answered twice; %d replies corrupt", r.Label, n.Sent, n.Lost, n.Duplicates, n.Corrupt))
		}
	}
	return out
}

// Insert replaces what stands between the lines <!-- name:begin --> and <!-- name:end --> of a file.
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
	return os.WriteFile(file, slices.Concat(b[:from+len(begin)], []byte(text), b[to:]), 0o644)
}

// ErrNoPlace is returned where a file has no place for what should go into it.
var ErrNoPlace = errors.New("no place for the text")
