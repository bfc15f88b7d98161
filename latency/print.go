package latency

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
)

// FormatNS writes nanoseconds with four significant digits in the unit that fits: "812 ns", "3.412 µs", "1.208 s".
func FormatNS(ns float64) string {
	v, unit := ns, "ns"
	for _, u := range []struct {
		ns   float64
		name string
	}{{1e9, "s"}, {1e6, "ms"}, {1e3, "µs"}} {
		if math.Abs(ns) >= u.ns {
			v, unit = ns/u.ns, u.name
			break
		}
	}
	switch a := math.Abs(v); {
	case unit == "ns" && (a >= 100 || v == math.Trunc(v)):
		return fmt.Sprintf("%.0f %s", v, unit)
	case a >= 100:
		return fmt.Sprintf("%.1f %s", v, unit)
	case a >= 10:
		return fmt.Sprintf("%.2f %s", v, unit)
	case unit == "ns":
		return fmt.Sprintf("%.1f %s", v, unit)
	}
	return fmt.Sprintf("%.3f %s", v, unit)
}

func signed(ns float64) string {
	if ns < 0 {
		return "-" + FormatNS(-ns)
	}
	return "+" + FormatNS(ns)
}

func formatP(p float64) string {
	if p < 0.001 {
		return "<0.001"
	}
	return fmt.Sprintf("%.3f", p)
}

// Mark is the sign of a verdict in a table: "~" noise, "?" unknown, "-" faster, "+" slower.
func (v Verdict) Mark() string { return [...]string{"?", "~", "-", "+"}[v] }

func (v Verdict) String() string { return [...]string{"unknown", "noise", "faster", "slower"}[v] }

// Print writes the comparison as text: first what stands in the way of comparing, then the tables.
func (c *Comparison) Print(w io.Writer) error {
	b := bufio.NewWriter(w)
	if len(c.Obstacles) > 0 {
		fmt.Fprintln(b, "NOT COMPARABLE:")
		for _, o := range c.Obstacles {
			fmt.Fprintf(b, "  - %s\n", o)
		}
		fmt.Fprintln(b)
	}
	for _, n := range c.Notes {
		fmt.Fprintf(b, "note: %s\n", n)
	}
	if len(c.Notes) > 0 {
		fmt.Fprintln(b)
	}
	for _, p := range c.Pairs {
		c.printPair(b, p)
	}
	c.printTransfers(b)
	c.printCounts(b)
	return b.Flush()
}

func (c *Comparison) printPair(b *bufio.Writer, p Pair) {
	fmt.Fprintf(b, "A  %s\nB  %s\n\n", p.A.describe(), p.B.describe())
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	if len(p.Rows) == 0 {
		return
	}
	unit := string(p.A.Metric)
	if p.A.Device.Sim() && p.B.Device.Sim() {
		unit += " in the model"
	}
	fmt.Fprintf(t, "%s\tA\tB\tB-A\t\t\t99%% confidence\tp\t\n", unit)
	why := map[string]bool{}
	for _, r := range p.Rows {
		ci, prob := "", ""
		if r.Verdict != Unknown {
			prob = formatP(r.P)
			if !math.IsNaN(r.Lo) {
				ci = fmt.Sprintf("[%s, %s]", signed(r.Lo), signed(r.Hi))
			}
		} else {
			why[r.Why] = true
		}
		percent := fmt.Sprintf("%+.1f%%", r.Percent())
		if math.IsNaN(r.Percent()) {
			percent = ""
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", r.Stat, FormatNS(r.A), FormatNS(r.B), signed(r.Diff()), percent, r.Verdict.Mark(), ci, prob)
	}
	t.Flush()
	how := map[string]bool{}
	for _, r := range p.Rows {
		if r.How != "" && r.Verdict != Unknown {
			how[r.How] = true
		}
	}
	fmt.Fprintf(b, "\n~ noise, + slower, - faster, ? too little to tell")
	if len(how) > 0 {
		fmt.Fprintf(b, "; tested over %s", strings.Join(sortedKeys(how), ", "))
	}
	fmt.Fprintln(b)
	if len(p.Obstacles) == 0 {
		for _, s := range sortedKeys(why) {
			fmt.Fprintf(b, "? %s\n", s)
		}
	}
	fmt.Fprintln(b)
}

func (c *Comparison) printTransfers(b *bufio.Writer) {
	kinds := c.transferKinds()
	if len(kinds) == 0 {
		return
	}
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "bus transactions a reply\t")
	for _, r := range c.Reports {
		fmt.Fprintf(t, "%s\t", r.Name())
	}
	fmt.Fprintln(t)
	for _, k := range kinds {
		fmt.Fprintf(t, "%s\t", k)
		for _, r := range c.Reports {
			if r.Transfers == nil {
				fmt.Fprint(t, "\t")
				continue
			}
			fmt.Fprintf(t, "%.3f\t", r.perReply(k))
		}
		fmt.Fprintln(t)
	}
	t.Flush()
	fmt.Fprintln(b)
}

func (c *Comparison) printCounts(b *bufio.Writer) {
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "frames\t")
	for _, r := range c.Reports {
		fmt.Fprintf(t, "%s\t", r.Name())
	}
	fmt.Fprintln(t)
	for _, row := range countRows {
		fmt.Fprintf(t, "%s\t", row.name)
		for _, r := range c.Reports {
			fmt.Fprintf(t, "%d\t", row.of(&r.Counts))
		}
		fmt.Fprintln(t)
	}
	t.Flush()
}

var countRows = []struct {
	name string
	of   func(*Counts) int64
}{
	{"sent", func(c *Counts) int64 { return c.Sent }},
	{"received", func(c *Counts) int64 { return c.Received }},
	{"lost", func(c *Counts) int64 { return c.Lost }},
	{"late", func(c *Counts) int64 { return c.Late }},
	{"duplicates", func(c *Counts) int64 { return c.Duplicates }},
	{"reordered", func(c *Counts) int64 { return c.Reordered }},
	{"corrupt", func(c *Counts) int64 { return c.Corrupt }},
}

// Print writes the report's headline as text: what was measured, its percentiles, and what became of the frames.
func (r *Report) Print(w io.Writer) error {
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, "%s\n", r.describe())
	if r.Device.Sim() {
		fmt.Fprintln(b, "a device model answered: these nanoseconds are the model's, not a card's")
	}
	for _, s := range r.Series {
		if s.Name != MainSeries && s.Name != UncorrectedSeries {
			continue
		}
		title := string(r.Metric)
		switch {
		case s.Name == UncorrectedSeries:
			title += ", from the actual send"
		case r.Find(UncorrectedSeries) != nil:
			title += ", from the intended send"
		}
		fmt.Fprintf(b, "%s:", title)
		for _, st := range Stats {
			fmt.Fprintf(b, "  %s %s", st, FormatNS(st.of(s.Total)))
		}
		fmt.Fprintln(b)
	}
	for i, row := range countRows {
		if n := row.of(&r.Counts); n != 0 || i < 3 {
			fmt.Fprintf(b, "%s %d  ", row.name, n)
		}
	}
	fmt.Fprintln(b)
	if own := r.ownTail(); own != "" {
		fmt.Fprintf(b, "note: %s\n", own)
	}
	return b.Flush()
}

// describe is the line that tells a report from another.
func (r *Report) describe() string {
	s := []string{r.Name()}
	add := func(format string, args ...any) { s = append(s, fmt.Sprintf(format, args...)) }
	if d := r.Device; d.Driver != "" {
		add("%s %s (%s)", d.Driver, d.Device, d.Backend)
	}
	if t := r.Traffic; t.Protocol != "" {
		if t.Target != "" {
			add("%s to %s", t.Protocol, t.Target)
		} else {
			add("%s", t.Protocol)
		}
		add("%d bytes", t.FrameSize)
		if t.Mode == "open" {
			add("open loop at %.0f/s", t.Rate)
		} else if t.Mode != "" {
			add("%s loop", t.Mode)
		}
	}
	if r.measured() {
		add("%d samples", r.Main().Total.Count)
	}
	if n := len(r.Runs); n > 1 {
		add("%d runs", n)
	}
	return strings.Join(slices.DeleteFunc(s, func(x string) bool { return x == "" }), ", ")
}

func sortedKeys(m map[string]bool) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
