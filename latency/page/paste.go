package page

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/sanitize"
)

// JSONComparison is a comparison for programs, as docs/compare.schema.json describes it. Times are in ns; a number that
// is unknown or infinite is absent.
type JSONComparison struct {
	// Schema is the version of this format.
	Schema int `json:"schema"`
	// Answer is a sentence; it is empty if the reports cannot be compared.
	Answer string `json:"answer"`
	// Obstacles are why the reports cannot be compared.
	Obstacles []string `json:"obstacles"`
	// Notes are those of the comparison and its reports, the most important first.
	Notes []string   `json:"notes"`
	Pairs []JSONPair `json:"pairs"`
}

// comparisonSchema is the present version of JSONComparison.
const comparisonSchema = 1

// JSONPair is a report, B, compared with the first one, A.
type JSONPair struct {
	A JSONSide `json:"a"`
	B JSONSide `json:"b"`
	// Tested says over which pairs of runs; it is empty if nothing was tested.
	Tested string    `json:"tested"`
	Rows   []JSONRow `json:"rows"`
}

// JSONSide is one report of a pair.
type JSONSide struct {
	Name string `json:"name"`
	Dir  string `json:"dir"`
	Sent int64  `json:"sent"`
	// Lost is how many probes were lost at most.
	Lost int64 `json:"lost"`
	// Own says that the bench's host could not keep the requested rate.
	Own bool `json:"limited_by_this_host"`
}

// JSONRow is one statistic of a pair.
type JSONRow struct {
	// Stat is the row's name: min, p50 to p99.99, max, mean.
	Stat string `json:"stat"`
	// Verdict is about B, compared with A.
	Verdict string `json:"verdict" jsonschema:"enum=slower,enum=faster,enum=no change seen,enum=cannot tell"`
	// Why says why a verdict cannot be told.
	Why string `json:"why,omitempty"`
	// A and B are the statistics of all round trips of a side.
	A *float64 `json:"a_ns,omitempty"`
	B *float64 `json:"b_ns,omitempty"`
	// Shift is how far B's runs are above A's, and ShiftShare the same as a share of A: 0.1 is 10 % slower.
	Shift      *float64 `json:"shift_ns,omitempty"`
	ShiftShare *float64 `json:"shift_share,omitempty"`
	// Low and High are the interval of the shift.
	Low  *float64 `json:"low_ns,omitempty"`
	High *float64 `json:"high_ns,omitempty"`
	// P is the probability that any row is as extreme as this one by chance.
	P *float64 `json:"p,omitempty"`
	// SmallestVisible is the smallest change that these runs could have shown.
	SmallestVisible *float64 `json:"smallest_visible_ns,omitempty"`
}

// known is a number, nil if it is none.
func known(v float64) *float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	return &v
}

// PrintJSON writes a comparison for programs.
func PrintJSON(w io.Writer, c *compare.Comparison) error {
	out := JSONComparison{Schema: comparisonSchema, Answer: Answer(c), Obstacles: append([]string{}, c.Obstacles...),
		Notes: append([]string{}, remarks(c)...), Pairs: []JSONPair{}}
	if len(c.Obstacles) > 0 {
		out.Answer = ""
	}
	for _, p := range c.Pairs {
		j := JSONPair{Tested: tested(p), Rows: []JSONRow{},
			A: JSONSide{p.A.Name(), p.A.Dir, p.A.Counts.Sent, p.A.Counts.Lost, hostLimited(p.A)},
			B: JSONSide{p.B.Name(), p.B.Dir, p.B.Counts.Sent, p.B.Counts.Lost, hostLimited(p.B)}}
		for _, pr := range pairRows(&p, false, "") {
			r := pr.Row
			j.Rows = append(j.Rows, JSONRow{Stat: pr.Name, Verdict: r.Verdict.String(), Why: r.Why, A: known(r.PooledA),
				B: known(r.PooledB), Shift: known(r.Shift),
				ShiftShare: known(r.Percent() / 100), Low: known(r.Lo), High: known(r.Hi), P: known(r.P),
				SmallestVisible: known(r.Least)})
		}
		out.Pairs = append(out.Pairs, j)
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(out)
}

// PrintMarkdown writes the answer and a table for each pair, to be pasted into a ticket.
func PrintMarkdown(w io.Writer, c *compare.Comparison) error {
	b := bufio.NewWriter(w)
	if len(c.Obstacles) > 0 {
		fmt.Fprintf(b, "**Not comparable:** %s.\n", escaped(strings.Join(c.Obstacles, "; ")))
		return b.Flush()
	}
	if text := Answer(c); text != "" {
		fmt.Fprintf(b, "**%s.**\n", escaped(text))
	}
	for _, p := range c.Pairs {
		fmt.Fprintf(b, "\n| %s | %s | %s | shift of runs | | interval | verdict |\n|---|--:|--:|--:|--:|---|---|\n",
			metric(p.A, p.B), escaped(p.A.Name()), escaped(p.B.Name()))
		for _, r := range pairRows(&p, true, "%s to %s") {
			verdict := r.Verdict.String()
			if r.Within != "" {
				verdict += " (" + r.Within + ")"
			}
			fmt.Fprintf(b, "| %s | %s | %s | %s | %s | %s | %s |\n", r.Name, escaped(r.A), escaped(r.B), r.Diff,
				escaped(r.Percent), r.CI, verdict)
		}
		fmt.Fprintf(b, "| lost | %s | %s | | | | |\n", lostText(p.A), lostText(p.B))
		if text := tested(p); text != "" {
			fmt.Fprintf(b, "\n%s.\n", upperFirst(text))
		}
	}
	all := remarks(c)
	if len(all) > 0 {
		fmt.Fprintln(b)
	}
	for _, n := range all[:min(len(all), mostWarnings)] {
		fmt.Fprintf(b, "- %s\n", escaped(n))
	}
	return b.Flush()
}

// escaped is a text on one line in which no character is Markdown.
func escaped(text string) string {
	var b strings.Builder
	for _, r := range sanitize.Text(text) {
		if strings.ContainsRune("\\`*_[]<>|#~", r) {
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
	return b.String()
}
