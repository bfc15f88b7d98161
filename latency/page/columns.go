package page

import (
	"cmp"
	"encoding/base64"
	"encoding/csv"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/latency/sanitize"
)

// Point is a row of a table of measurements: a point of a sweep, a trial of a search for a rate, or a target of a
// ranking.
type Point struct {
	Link
	Size    int
	Rate    float64 // 0 for a closed loop
	Counts  *report.Counts
	Summary *latency.Summary
	Report  *report.Report // nil for a trial
	Verdict string         // on a trial

	rank int
	rows map[string]compare.Row // the comparison with the first report of a ranking, by statistic
}

// PointOf is the row of a report.
func PointOf(r *report.Report, to Link) Point {
	return Point{Link: to, Size: r.Traffic.FrameSize, Rate: r.Traffic.Rate, Counts: &r.Counts, Report: r}
}

// TableKind is what the rows of a table are. The kinds of a column are or-ed.
type TableKind uint

const (
	SweepTable TableKind = 1 << iota
	SearchTable
	RankingTable
)

// Column is a column of tables of measurements. Text, HTML, JSON and CSV have it.
type Column struct {
	Name string // in text and HTML
	Key  string // in JSON and CSV, with the unit
	In   TableKind

	Text  func(*Point) string // for people, "–" if unknown
	Value func(*Point) any    // for programs, nil if unknown

	seldom bool // only shown to people if a row has a count
	linked bool // a page has a link instead
}

// leading are the columns before those of statistics and of counts, in their order.
var leading = []Column{
	{Name: "report", Key: "name", In: SweepTable | RankingTable, linked: true,
		Text: func(p *Point) string { return sanitize.Text(p.Name) }, Value: func(p *Point) any { return p.Name }},
	{Name: "rank", Key: "rank", In: RankingTable,
		Text: func(p *Point) string { return strconv.Itoa(p.rank) }, Value: func(p *Point) any { return p.rank }},
	{Name: "backend", Key: "backend", In: RankingTable, Text: driverText, Value: func(p *Point) any { return driverText(p) }},
	{Name: "frame bytes", Key: "frame_bytes", In: SweepTable | SearchTable,
		Text:  func(p *Point) string { return latency.FormatCount(p.Size) },
		Value: func(p *Point) any { return p.Size }},
	{Name: "rate/s", Key: "rate_per_s", In: SweepTable | SearchTable, Text: rateText, Value: func(p *Point) any { return number(cmp.Or(p.Rate, math.NaN())) }},
}

// trailing are the columns after them.
var trailing = []Column{
	{Name: "probes", Key: "probes", In: RankingTable,
		Text:  func(p *Point) string { return cmp.Or(trafficText(p.Report), "–") },
		Value: func(p *Point) any { return trafficText(p.Report) }},
	{Name: "verdict", Key: "verdict", In: SearchTable,
		Text: func(p *Point) string { return p.Verdict }, Value: func(p *Point) any { return p.Verdict }},
	{Name: "folder", Key: "dir", In: SweepTable, linked: true,
		Text:  func(p *Point) string { return cmp.Or(sanitize.Text(p.Report.Dir), "(not written)") },
		Value: func(p *Point) any { return p.Report.Dir }},
}

func driverText(p *Point) string {
	return strings.TrimSuffix(backendText(p.Report)+", "+cmp.Or(p.Report.Device.Driver, p.Report.Tool), ", ")
}

func rateText(p *Point) string {
	if p.Rate == 0 {
		return "closed loop"
	}
	return latency.FormatRate(p.Rate)
}

// statColumns has a column for each statistic of sweeps and rankings. A search shows fewer.
func statColumns() (all []Column) {
	narrow := compare.Stats(latency.NarrowTable)
	for _, st := range compare.Stats(latency.PointColumns) {
		in := SweepTable | RankingTable
		if slices.Contains(narrow, st) {
			in |= SearchTable
		}
		all = append(all, statColumn(st, in))
	}
	return all
}

// statColumn is the column of a statistic of the round trips, with the mark of this host's own lag and that of its
// verdict.
func statColumn(st compare.Stat, in TableKind) Column {
	name := st.String()
	at := func(p *Point) float64 {
		switch {
		case p.Report != nil && p.Report.Measured():
			return st.OfReport(p.Report)
		case p.Report == nil && p.Summary.Count > 0:
			return st.OfSummary(p.Summary)
		}
		return math.NaN()
	}
	text := func(p *Point) string {
		text := latency.FormatNS(at(p))
		if p.Report != nil {
			text = seriesText(p.Report, p.Report.Main(), st)
		}
		if row, ok := p.rows[name]; ok {
			text += " " + row.Verdict.Mark()
		}
		return text
	}
	return Column{Name: name, Key: strings.ReplaceAll(name, ".", "_") + "_ns", In: in, Text: text,
		Value: func(p *Point) any { return number(at(p)) }}
}

// countColumns has a column for each outcome of probes but "received", which follows from the others.
func countColumns() (all []Column) {
	for _, row := range CountRows {
		if row.Name == "received" {
			continue
		}
		text := func(p *Point) string {
			if p.Report != nil {
				return row.frames(p.Report)
			}
			return row.Text(p.Counts)
		}
		value := func(p *Point) any {
			if text := text(p); text == "–" || text == "unknown" {
				return nil
			}
			return row.Number(p.Counts)
		}
		all = append(all, Column{Name: row.Name, Key: strings.ReplaceAll(row.Name, " ", "_"),
			In:   SweepTable | SearchTable | RankingTable,
			Text: text, Value: value, seldom: !row.always})
	}
	return all
}

// number is v, nil if it is unknown.
func number(v float64) any {
	if p := known(v); p != nil {
		return *p
	}
	return nil
}

// Table is a table of measurements.
type Table struct {
	Kind   TableKind
	Points []Point
}

// columns are those of the table for programs, and of these the ones shown to people.
func (t *Table) columns() (all, shown []Column) {
	for _, c := range slices.Concat(leading, statColumns(), countColumns(), trailing) {
		if c.In&t.Kind == 0 {
			continue
		}
		all = append(all, c)
		counted := func(p Point) bool { v, ok := c.Value(&p).(int64); return ok && v != 0 }
		if !c.seldom || slices.ContainsFunc(t.Points, counted) {
			shown = append(shown, c)
		}
	}
	return all, shown
}

// Print writes the table as text.
func (t *Table) Print(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, shown := t.columns()
	for _, c := range shown {
		fmt.Fprintf(table, "%s\t", c.Name)
	}
	fmt.Fprintln(table)
	for i := range t.Points {
		for _, c := range shown {
			fmt.Fprintf(table, "%s\t", c.Text(&t.Points[i]))
		}
		fmt.Fprintln(table)
	}
	return table.Flush()
}

// htmlRows are the columns and rows of a page, where a link is the first column.
func (t *Table) htmlRows() (names []string, rows []sweepPoint) {
	_, shown := t.columns()
	shown = slices.DeleteFunc(shown, func(c Column) bool { return c.linked })
	for _, c := range shown {
		names = append(names, c.Name)
	}
	for i := range t.Points {
		row := sweepPoint{Link: t.Points[i].Link}
		for _, c := range shown {
			row.Values = append(row.Values, beforeUnit.ReplaceAllString(c.Text(&t.Points[i]), "${1}\u00a0${2}"))
		}
		rows = append(rows, row)
	}
	return names, rows
}

// JSON returns the table for programs: its rows by the keys of the columns, without what is unknown.
func (t *Table) JSON() []map[string]any {
	all, _ := t.columns()
	rows := make([]map[string]any, len(t.Points))
	for i := range t.Points {
		rows[i] = map[string]any{}
		for _, c := range all {
			if v := c.Value(&t.Points[i]); v != nil {
				rows[i][c.Key] = v
			}
		}
	}
	return rows
}

// CSV returns the table for spreadsheets. A field is empty if it is unknown.
func (t *Table) CSV() string {
	var b strings.Builder
	w := csv.NewWriter(&b)
	all, _ := t.columns()
	record := make([]string, len(all))
	for i, c := range all {
		record[i] = c.Key
	}
	w.Write(record)
	for i := range t.Points {
		for k, c := range all {
			switch v := c.Value(&t.Points[i]).(type) {
			case nil:
				record[k] = ""
			case float64:
				record[k] = strconv.FormatFloat(v, 'f', -1, 64)
			default:
				record[k] = Field(fmt.Sprint(v))
			}
		}
		w.Write(record)
	}
	w.Flush()
	return b.String()
}

// csvLink is the address of a page's CSV, which the page itself holds.
func (t *Table) csvLink() template.URL {
	return template.URL("data:text/csv;charset=utf-8;base64," + base64.StdEncoding.EncodeToString([]byte(t.CSV())))
}
