package page

import (
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/report"
)

type comparePage struct {
	C      *compare.Comparison
	Title  string
	Answer string
	Notes  []string // the first mostWarnings
	More   []string // the others
	Links  []Link
	Names  []legend
	Plots  []plot
	Pairs  []pairTable
	Frames []Row
	Buses  []Row
	Facts  []Row
}

type pairTable struct {
	A, B legend
	Rows []pairRow
	Foot []string
	Diff []plot
	Not  bool // not comparable
}

// Comparison writes the comparison as one self-contained page. links lead to the pages of the reports, if they are
// saved next to it.
func Comparison(w io.Writer, c *compare.Comparison, links ...Link) error {
	p := comparePage{C: c, Answer: Answer(c), Links: links}
	var ds []drawn
	unit, sim := string(c.Reports[0].Metric), false
	for i, r := range c.Reports {
		l := legend{i % palette, "", r.Name()}
		if i >= palette {
			l.Class = "dashed"
		}
		p.Names = append(p.Names, l)
		if i > 0 {
			p.Title += " against "
		}
		p.Title += l.Name
		if r.Measured() && !r.Foreign.Partial() {
			ds = append(ds, drawn{l.Colour, l.Class, l.Name, r.Main().Total})
		}
		sim = sim || r.Device.Sim()
	}
	for _, r := range c.Reports {
		if text := OwnText(r); text != "" {
			p.Notes = append(p.Notes, warned(r, text)+".")
		}
	}
	for _, n := range c.Notes {
		p.Notes = append(p.Notes, sentence(n, c.Reports)+".")
	}
	p.Notes, p.More = above(p.Notes)
	if len(c.Reports) > 3 {
		p.Title = fmt.Sprintf("%d reports", len(c.Reports))
	}
	if sim {
		unit += " (a model's, not a card's)"
	}
	p.Plots = curves(ds, p.Names, unit)
	p.Plots = append(p.Plots, timesFigure(c.Reports, p.Names, unit)...)
	var sides []side
	var measured []*report.Report
	for i, r := range c.Reports {
		if r.Measured() {
			sides, measured = append(sides, side{p.Names[i], r}), append(measured, r)
		}
	}
	var strips []template.HTML
	for _, st := range stripStats(measured...) {
		strips = append(strips, stripFigure(st, sides, unit))
	}
	p.Plots = append(p.Plots, joined("Runs", "A dot for each run, in the order in which they were made.", p.Names,
		strips)...)
	for i, pair := range c.Pairs {
		p.Pairs = append(p.Pairs, tableOf(&pair, p.Names[0], p.Names[i+1]))
	}
	p.Frames, p.Buses, p.Facts = countRows(c.Reports, false), transferRows(c.Reports), factRows(c.Reports)
	return page.ExecuteTemplate(w, "compare", p)
}

// tableOf returns the table of a pair, and the figures of its difference.
func tableOf(pair *compare.Pair, a, b legend) pairTable {
	t := pairTable{A: a, B: b, Not: len(pair.Obstacles) > 0}
	seen := map[string]bool{}
	foot := func(text string) {
		if !seen[text] {
			seen[text] = true
			t.Foot = append(t.Foot, text)
		}
	}
	var shifts []template.HTML
	if text := tested(*pair); text != "" {
		foot(upperFirst(text) + ".")
	}
	for _, r := range pairRows(pair, false, "%s … %s") {
		if r.Why != "" && !t.Not {
			foot(upperFirst(r.Why) + ".")
		}
		t.Rows = append(t.Rows, r)
		if slices.Contains(compare.Stats(latency.NarrowTable), r.Stat) && r.Name == r.Stat.String() {
			shifts = append(shifts, shiftFigure(r.Row))
		}
	}
	for _, line := range caveats(*pair) {
		foot(upperFirst(line) + ".")
	}
	for _, w := range pair.OneWay {
		foot(fmt.Sprintf("%s: ± %s of A and ± %s of B by their clocks; a shift within the sum has no verdict.",
			upperFirst(wayName(w.Series)), Duration(w.ErrorA), Duration(w.ErrorB)))
	}
	t.Diff = append(shiftFunction(pair, t.B), joined("Histogram of the difference",
		"The differences between runs: each of B compared with each of A. Their median is the shift. Grey: its interval. The line is at no difference.", nil, shifts)...)
	return t
}

// sentence capitalises the first letter of a text, unless it starts with the name of a report.
func sentence(text string, all []*report.Report) string {
	for _, r := range all {
		if strings.HasPrefix(text, r.Name()) {
			return text
		}
	}
	return upperFirst(text)
}

// palette is the number of colours in page.css.
const palette = 6

// factRows aligns the environments. It omits rows that are the same everywhere, except for the most important ones.
func factRows(rs []*report.Report) []Row {
	var order []string
	values := map[string][]string{}
	for i, r := range rs {
		for _, f := range facts(r) {
			if values[f.Name] == nil {
				values[f.Name] = make([]string, len(rs))
				order = append(order, f.Name)
			}
			values[f.Name][i] = f.Value
		}
	}
	var out []Row
	for _, name := range order {
		v := values[name]
		same := true
		for _, x := range v {
			same = same && x == v[0]
		}
		if same && name != "Host" && name != "CPU" && name != "Kernel" && name != "Driver" && name != "Backend" {
			continue
		}
		out = append(out, Row{name, v})
	}
	return out
}
