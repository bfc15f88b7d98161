// Package matrix shows what many hosts measured of each other: as a page, and as text.
package matrix

import (
	"cmp"
	_ "embed"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/page"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/latency/sanitize"
)

//go:embed matrix.html
var matrixHTML string

//go:embed matrix.css
var matrixCSS string

//go:embed matrix.js
var matrixJS string

var templates = page.Extend(matrixHTML, matrixCSS, matrixJS)

// Matrix is the result of many hosts measuring many targets.
type Matrix struct {
	Title   string
	Summary string
	Notes   []string
	From    []string // rows
	To      []string // columns
	Cells   map[Pair]*Cell
	Zones   map[string]string // of rows and columns; those without one are not in it
}

// Pair identifies a cell.
type Pair struct{ From, To string }

// Cell is the result of one host measuring one target.
type Cell struct {
	P50, P99 float64 // ns; 0 if there were no replies
	Samples  int64
	report.Counts
	Silent  bool            // no probe had a reply
	Verdict compare.Verdict // on the change from the baseline
	Stat    string          // statistic of the verdict
	Shift   float64         // ns
	Now     float64         // ns, current value of Stat
	Why     string          // why the verdict is Unknown
}

// elsewhere reports whether probes without a timely reply are accounted for somewhere other than between the hosts.
func (c *Cell) elsewhere() bool { return c.Late > 0 || c.CorruptOnly > 0 || c.Elsewhere() != "" }

// loss returns the share of probes lost, NaN if none was sent.
func (c *Cell) loss() float64 {
	if c.Sent == 0 {
		return math.NaN()
	}
	return float64(c.Lost) / float64(c.Sent)
}

type matrixPage struct {
	Title, Summary string
	Answer         string
	Alerts         []string
	Notes          []string
	Headline       []page.Headline
	To             []string
	Rows           []matrixRow
	Zones          []string // columns of a page by zone
	ZoneRows       []zoneRow
	Pairs          []*zonePair
	Changed        []page.Row
	Data           string // the table as tab-separated values
	LossColumns    []string
	Lossy          []page.Row
}

type matrixRow struct {
	Name  string
	Cells []matrixCell
}

type matrixCell struct {
	Empty               bool
	Heat                int // 0 to 4, according to p50
	P50, P99, Loss      string
	Mark, Verdict, Hint string
	Lossy               bool
}

// heats is the number of shades of cells.
const heats = 5

// Write writes the matrix as one self-contained page.
func Write(w io.Writer, m *Matrix) error {
	p := matrixPage{Title: m.Title, Answer: m.answer(), Summary: m.Summary, Notes: m.Notes, To: m.To}
	whole := !m.byZone()
	if !whole {
		p.Zones, p.ZoneRows, p.Pairs = m.zones()
	}
	p.Data = m.data(p.Pairs)
	low, high := math.Inf(1), 0.0
	var p50, p99 []float64
	var all Cell
	for _, c := range m.Cells {
		all.Add(&c.Counts)
		if c.P50 > 0 {
			low, high = min(low, c.P50), max(high, c.P50)
			p50, p99 = append(p50, c.P50), append(p99, c.P99)
		}
	}
	type listed struct {
		row  page.Row
		size float64
	}
	var changed, lossy []listed
	columns := m.lossColumns()
	p.LossColumns = []string{"loss"}
	for _, row := range columns {
		p.LossColumns = append(p.LossColumns, row.Name)
	}
	slower, silent := 0, 0
	for _, from := range m.From {
		row := matrixRow{Name: from}
		for _, to := range m.To {
			c := m.Cells[Pair{from, to}]
			if c == nil {
				if whole {
					row.Cells = append(row.Cells, matrixCell{Empty: true})
				}
				continue
			}
			cell := matrixCell{Heat: heatOf(c.P50, low, high), P50: "–", P99: "–", Loss: lossText(c),
				Mark: c.Verdict.Mark(), Verdict: c.Verdict.Class(), Lossy: c.Lost > 0}
			if c.P50 > 0 {
				cell.P50, cell.P99 = page.Duration(c.P50), page.Duration(c.P99)
			}
			if c.Silent {
				silent++
			}
			cell.Hint = fmt.Sprintf("%s to %s: %s round trips", from, to, latency.FormatCount(c.Samples))
			switch {
			case c.Verdict > compare.Noise:
				cell.Hint += fmt.Sprintf("; %s %s by %s", c.Stat, c.Verdict, latency.FormatSigned(c.Shift))
				changed = append(changed, listed{page.Row{Name: from + " → " + to,
					Values: []string{c.Stat, c.Verdict.String(), latency.FormatSigned(c.Shift), cell.P50, cell.P99}},
					math.Abs(c.Shift)})
				if c.Verdict == compare.Slower {
					slower++
				}
			case c.Why != "":
				cell.Hint += "; " + c.Why
			}
			if c.Lost > 0 || c.elsewhere() {
				row := page.Row{Name: from + " → " + to, Values: []string{cell.Loss}}
				for _, column := range columns {
					row.Values = append(row.Values, column.Text(&c.Counts))
				}
				lossy = append(lossy, listed{row, c.loss()})
			}
			if c.elsewhere() {
				cell.Hint += "; " + strings.Join(c.without(), ", ")
			}
			if whole {
				row.Cells = append(row.Cells, cell)
			}
		}
		p.Rows = append(p.Rows, row)
	}
	rows := func(all []listed) (out []page.Row) {
		slices.SortStableFunc(all, func(a, b listed) int { return cmp.Compare(b.size, a.size) })
		for _, l := range all[:min(len(all), 50)] {
			out = append(out, l.row)
		}
		return out
	}
	p.Changed, p.Lossy = rows(changed), rows(lossy)
	if slower > 0 {
		p.Alerts = append(p.Alerts, fmt.Sprintf("Slower than the baseline: %s of %s.", latency.FormatCount(slower),
			sanitize.Count(len(m.Cells), "path")))
	}
	if silent > 0 {
		p.Alerts = append(p.Alerts, fmt.Sprintf("Without replies: %s of %s.", latency.FormatCount(silent),
			sanitize.Count(len(m.Cells), "path")))
	}
	middle := func(v []float64) string {
		if len(v) == 0 {
			return "–"
		}
		slices.Sort(v)
		return page.Duration(v[len(v)/2])
	}
	p.Headline = []page.Headline{
		{Name: "paths", Value: latency.FormatCount(int64(len(m.Cells)))},
		{Name: "p50", Value: middle(p50), Note: "middle path"},
		{Name: "p99", Value: middle(p99), Note: "middle path"},
		{Name: "slower", Value: latency.FormatCount(int64(slower)), Note: "than the baseline"},
		{Name: "loss", Value: all.mostLoss(), Note: "all paths"},
		{Name: "silent", Value: latency.FormatCount(int64(silent)), Note: "paths"},
	}
	return templates.ExecuteTemplate(w, "matrix", p)
}

// data returns a line of tab-separated values for each path, on a page by zone in the order of its pairs, with their
// zones.
func (m *Matrix) data(pairs []*zonePair) string {
	var b strings.Builder
	b.WriteString("from\tto\tp50 (ns)\tp99 (ns)\tsent\tlost at least\tlost at most\tverdict\tof\tshift (ns)")
	if pairs != nil {
		b.WriteString("\tfrom zone\tto zone")
	}
	b.WriteByte('\n')
	number := func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
	line := func(of Pair, c *Cell, rest string) {
		shift, p50, p99 := "", "", ""
		if c.Verdict != compare.Unknown {
			shift = number(c.Shift)
		}
		if c.P50 > 0 {
			p50 = number(c.P50)
		}
		if c.P99 > 0 {
			p99 = number(c.P99)
		}
		fmt.Fprintf(&b, "%s\t%s\t%s\t%s\t%d\t%d\t%d\t%s\t%s\t%s%s\n", page.Field(of.From), page.Field(of.To), p50, p99,
			c.Sent, c.LostLeast(), c.Lost, c.Verdict, c.Stat, shift, rest)
	}
	for _, p := range pairs {
		for _, of := range p.paths {
			line(of, m.Cells[of], "\t"+p.FromField+"\t"+p.ToField)
		}
	}
	if pairs != nil {
		return b.String()
	}
	for _, from := range m.From {
		for _, to := range m.To {
			if c := m.Cells[Pair{from, to}]; c != nil {
				line(Pair{from, to}, c, "")
			}
		}
	}
	return b.String()
}

func lossText(c *Cell) string {
	switch {
	case c.Sent == 0:
		return "–"
	case c.Lost == 0:
		return "0 %"
	}
	return c.lost(func(n int64) string { return latency.FormatShare(float64(n) / float64(c.Sent)) })
}

// lost is the number of probes lost between the hosts, or its range.
func (c *Cell) lost(write func(int64) string) string {
	return report.Range(c.Lost-c.LostUncertain, c.Lost, write)
}

// lossColumns are the columns of the loss table: sent, lost, and each other place that any path has counted.
func (m *Matrix) lossColumns() (all []*page.CountRow) {
	for _, row := range page.CountRows {
		shown := row.Name == "sent" || row.Name == "lost"
		for _, c := range m.Cells {
			shown = shown || row.Unanswered && row.Number(&c.Counts) > 0
		}
		if shown {
			all = append(all, row)
		}
	}
	return all
}

// without lists the probes without a good, timely reply, by place.
func (c *Cell) without() (all []string) {
	if c.Lost > 0 {
		all = append(all, fmt.Sprintf("%s lost (%s of %s)", lossText(c), c.lost(latency.FormatCount[int64]),
			latency.FormatCount(c.Sent)))
	}
	all = append(all, page.Elsewhere(&c.Counts)...)
	if c.Lost == 0 {
		all[len(all)-1] += fmt.Sprintf(" (of %s)", latency.FormatCount(c.Sent))
	}
	return all
}

// answer summarises the matrix in one sentence: how many paths are slower, lose probes or are silent, and the slowest
// path.
func (m *Matrix) answer() string {
	slower, lossy, perhaps, silent, empty, slowest, at := 0, 0, 0, 0, 0, 0.0, Pair{}
	for _, from := range m.From {
		for _, to := range m.To {
			c := m.Cells[Pair{from, to}]
			switch {
			case c == nil:
				continue
			case c.Verdict == compare.Slower:
				slower++
			}
			switch {
			case c.Silent:
				silent++
			case c.Sent == 0:
				empty++
			case c.LostLeast() > 0:
				lossy++
			case c.Lost > 0:
				perhaps++
			}
			if c.P50 > slowest {
				slowest, at = c.P50, Pair{from, to}
			}
		}
	}
	n := latency.FormatCount[int]
	text := fmt.Sprintf("of %s, %s slower than the baseline, %s with loss, %s without replies",
		sanitize.Count(len(m.Cells), "path"), n(slower), n(lossy), n(silent))
	if perhaps > 0 {
		text += fmt.Sprintf(", %s perhaps with loss", n(perhaps))
	}
	if empty > 0 {
		text += fmt.Sprintf(", %s without data", n(empty))
	}
	if slowest > 0 {
		text += fmt.Sprintf("; the slowest is %s to %s, p50 %s", at.From, at.To, latency.FormatNS(slowest))
	}
	return text
}

// Print writes the notable paths as text: each path that changed or loses probes, and the total number of paths.
func Print(w io.Writer, m *Matrix) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n%s\n%s\n", m.answer(), m.Title, m.Summary)
	counts := map[compare.Verdict]int{}
	var lines []string
	for _, from := range m.From {
		for _, to := range m.To {
			c := m.Cells[Pair{from, to}]
			if c == nil {
				continue
			}
			counts[c.Verdict]++
			if c.Verdict > compare.Noise {
				lines = append(lines, fmt.Sprintf("%s %s -> %s: %s %s by %s, now %s", c.Verdict.Mark(), from, to,
					c.Stat, c.Verdict, latency.FormatSigned(c.Shift), latency.FormatNS(c.Now)))
			}
			switch {
			case c.Lost > 0 || c.elsewhere():
				lines = append(lines, fmt.Sprintf("! %s -> %s: %s", from, to, strings.Join(c.without(), ", ")))
			case c.Samples == 0:
				lines = append(lines, fmt.Sprintf("! %s -> %s: %s", from, to, c.Why))
			}
		}
	}
	for _, l := range lines {
		fmt.Fprintln(&b, l)
	}
	of := func(v compare.Verdict) string { return latency.FormatCount(counts[v]) }
	fmt.Fprintf(&b, "%s: %s slower, %s faster, %s with no change seen, %s without a verdict\n",
		sanitize.Count(len(m.Cells), "path"), of(compare.Slower), of(compare.Faster), of(compare.Noise),
		of(compare.Unknown))
	for _, n := range m.Notes {
		fmt.Fprintf(&b, "note: %s\n", n)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
