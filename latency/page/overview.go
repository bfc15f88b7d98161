package page

import (
	"cmp"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/latency/sanitize"
)

// Item is a report of an overview, with the link to its page.
type Item struct {
	Link
	R *report.Report
}

type overviewPage struct {
	Title, Answer string
	Alerts, Notes []string
	Plots         []plot
	Groups        []overviewGroup
	Facts         []Row
	Names         []legend
}

type overviewGroup struct {
	Title, Foot string
	Columns     []string
	Points      []sweepPoint
	CSV         template.URL // empty if there is none
}

// backendText names what was behind the driver of a report.
func backendText(r *report.Report) string {
	switch b := r.Device.Backend; {
	case r.Device.Sim():
		return "device model"
	case b == "silicon":
		return "card"
	case b == "socket":
		return "kernel's driver"
	case b != "":
		return b
	case r.Foreign != nil:
		return "another tool"
	}
	return "unknown"
}

// Overview writes many reports as one page, ranked by p50. c compares them with the first report; if it is nil, there
// are no verdicts. Reports of device models are in a separate table, with their bus transactions and without their
// times.
func Overview(w io.Writer, title string, all []Item, c *compare.Comparison) error {
	var measured, models, nothing []Item
	for _, i := range all {
		if i.R.Device.Sim() {
			models = append(models, i)
		} else if i.R.Measured() {
			measured = append(measured, i)
		} else if counted(i.R) {
			nothing = append(nothing, i)
		}
	}
	slices.SortStableFunc(measured, func(a, b Item) int { return cmp.Compare(a.R.Quantile(0.5), b.R.Quantile(0.5)) })
	p := overviewPage{Title: title, Answer: OverviewAnswer(all)}
	verdicts := verdictsOf(c)
	if len(measured)+len(nothing) > 0 {
		p.Groups = append(p.Groups, measuredGroup(append(slices.Clone(measured), nothing...), c, verdicts))
		p.Plots = rankFigure(measured)
	}
	if len(models) > 0 {
		p.Groups = append(p.Groups, modelGroup(models))
	}
	for _, i := range all {
		for _, text := range i.R.Warnings {
			p.Alerts = append(p.Alerts, i.Name+": "+text+".")
		}
	}
	if c != nil {
		rs := c.Reports
		for _, n := range slices.Concat(c.Obstacles, c.Notes) {
			p.Notes = append(p.Notes, sentence(n, rs)+".")
		}
	}
	p.Names = []legend{{Name: "all reports"}}
	for _, f := range facts(all[0].R) {
		if !slices.ContainsFunc(all, func(i Item) bool { return !slices.Contains(facts(i.R), f) }) {
			p.Facts = append(p.Facts, Row{f.Name, []string{f.Value}})
		}
	}
	return page.ExecuteTemplate(w, "overview", p)
}

// OverviewAnswer summarises many reports in one sentence: the lowest and the highest p50, and how many lost probes.
func OverviewAnswer(all []Item) string {
	var least, most *Item
	models, lossy := 0, 0
	for k := range all {
		i := &all[k]
		switch {
		case i.R.Device.Sim():
			models++
			continue
		case !i.R.Measured():
			if i.R.Counts.LostLeast() > 0 {
				lossy++
			}
			continue
		}
		if least == nil || i.R.Quantile(0.5) < least.R.Quantile(0.5) {
			least = i
		}
		if most == nil || i.R.Quantile(0.5) > most.R.Quantile(0.5) {
			most = i
		}
		if i.R.Counts.LostLeast() > 0 {
			lossy++
		}
	}
	var parts []string
	if least != nil {
		what := fmt.Sprintf("of %s, %s has the lowest p50 (%s) and %s the highest (%s); %d lost probes",
			sanitize.Count(len(all)-models, "measurement"),
			sanitize.Text(least.Name), latency.FormatNS(least.R.Quantile(0.5)), sanitize.Text(most.Name),
			latency.FormatNS(most.R.Quantile(0.5)), lossy)
		if least == most {
			what = fmt.Sprintf("%s has a p50 of %s; %d of %s lost probes", sanitize.Text(least.Name),
				latency.FormatNS(least.R.Quantile(0.5)), lossy, sanitize.Count(len(all)-models, "measurement"))
		}
		parts = append(parts, what)
	}
	if models > 0 {
		parts = append(parts, sanitize.Count(models, "report")+
			" of device models, which say what a reply costs on the bus and nothing about a card's latency")
	}
	return strings.Join(parts, "; ")
}

// verdictsOf returns the rows of a comparison by report and statistic.
func verdictsOf(c *compare.Comparison) map[*report.Report]map[string]compare.Row {
	out := map[*report.Report]map[string]compare.Row{}
	if c == nil {
		return out
	}
	for _, p := range c.Pairs {
		out[p.B] = map[string]compare.Row{}
		for _, r := range p.Rows {
			out[p.B][r.Stat.String()] = r
		}
	}
	return out
}

// trafficText describes in a few words what a report measured.
func trafficText(r *report.Report) string {
	t := r.Traffic
	parts := []string{t.Protocol}
	if t.FrameSize > 0 {
		parts = append(parts, fmt.Sprintf("%d bytes", t.FrameSize))
	}
	switch t.Mode {
	case "open":
		parts = append(parts, latency.FormatRate(t.Rate)+"/s")
	case "closed":
		parts = append(parts, "closed loop")
	}
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), ", ")
}

func measuredGroup(all []Item, c *compare.Comparison,
	verdicts map[*report.Report]map[string]compare.Row) overviewGroup {
	g := overviewGroup{Title: "Ranking by p50"}
	if c != nil {
		g.Foot = fmt.Sprintf("Marks compare with %s: + slower, - faster, ~ no change seen, ? cannot tell. The order of two neighbours means nothing by itself.", c.Reports[0].Name())
	}
	t := Table{Kind: RankingTable}
	for k, i := range all {
		p := PointOf(i.R, i.Link)
		p.rank, p.rows = k+1, verdicts[i.R]
		t.Points = append(t.Points, p)
	}
	g.Columns, g.Points = t.htmlRows()
	g.CSV = t.csvLink()
	return g
}

func modelGroup(all []Item) overviewGroup {
	var rs []*report.Report
	for _, i := range all {
		rs = append(rs, i.R)
	}
	kinds := transferKinds(rs...)
	g := overviewGroup{Title: "Device models: bus transactions a reply",
		Columns: append([]string{"backend", "driver", "push", "replies"}, kinds...),
		Foot:    "A model's time says nothing about a card's latency and is not shown. How often a reply crosses the bus is what the driver does on any card of that kind."}
	for _, i := range all {
		d := i.R.Device
		values := []string{backendText(i.R), cmp.Or(d.Driver, "–"), cmp.Or(d.Push, "–"),
			latency.FormatCount(max(i.R.Counts.Received, i.R.Counts.Sent))}
		for _, k := range kinds {
			if i.R.Transfers == nil {
				values = append(values, "–")
			} else {
				values = append(values, fmt.Sprintf("%.3f", i.R.PerReply(k)))
			}
		}
		g.Points = append(g.Points, sweepPoint{i.Link, values})
	}
	return g
}

// rankFigure draws percentiles of each report, by its rank.
func rankFigure(all []Item) []plot {
	if len(all) < 2 {
		return nil
	}
	lo, hi := math.Inf(1), 0.0
	f := figure{x: axis{lo: 0.5, hi: float64(len(all)) + 0.5, unit: "rank", title: "rank in the table"}}
	var legends []legend
	for k, st := range compare.Stats(latency.AnswerText) {
		name := st.String()
		c := curve{name: name, colour: k, class: "dots"}
		for n, i := range all {
			v := st.OfReport(i.R)
			if math.IsNaN(v) || v <= 0 {
				continue
			}
			c.x, c.y = append(c.x, float64(n+1)), append(c.y, v)
			c.marks = append(c.marks, mark{float64(n + 1), v,
				fmt.Sprintf("%s: %s %s", i.Name, name, latency.FormatNS(v))})
			lo, hi = min(lo, v), max(hi, v)
		}
		if len(c.x) > 0 {
			f.curves, legends = append(f.curves, c), append(legends, legend{k, "", name})
		}
	}
	f.y = valueAxis(string(all[0].R.Metric), lo, hi)
	f.x.ticks = linearTicks(1, float64(len(all)), 12, func(v float64) string {
		if v != math.Trunc(v) {
			return ""
		}
		return fmt.Sprint(v)
	})
	f.alt = fmt.Sprintf("Percentiles of %s by rank, between %s and %s.", sanitize.Count(len(all), "report"),
		latency.FormatNS(lo), latency.FormatNS(hi))
	return []plot{{"Percentiles by rank", "Each column is a report, in the order of the table.", legends, f.svg()}}
}
