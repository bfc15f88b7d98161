// Package page shows reports and comparisons: as text, and as one self-contained HTML page.
package page

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/latency/sanitize"
)

//go:embed page.css
var pageCSS string

//go:embed page.html
var pageHTML string

//go:embed page.js
var pageJS string

// beforeUnit is a number with its unit, between which a headline is not broken.
var beforeUnit = regexp.MustCompile(`(\d) (%|(?:ns|µs|ms|s|min|h)\b)`)

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"ns":       Duration,
	"count":    latency.FormatCount[int],
	"unbroken": unbroken,
	"css":      func() template.CSS { return template.CSS(pageCSS) },
	"js":       func() template.JS { return template.JS(pageJS) },
	"upper":    upperFirst,
	"joined":   func(text string) string { return beforeUnit.ReplaceAllString(text, "${1}\u00a0${2}") },
	"dict": func(kv ...any) map[string]any {
		m := map[string]any{}
		for i := 0; i+1 < len(kv); i += 2 {
			m[kv[i].(string)] = kv[i+1]
		}
		return m
	},
}).Parse(pageHTML))

// Extend returns the templates "head", "plots" and "table" of this package's pages together with those of another
// package, whose styles and script follow the common ones. It panics if html is malformed.
func Extend(html, css, js string) *template.Template {
	return template.Must(template.Must(page.Clone()).Funcs(template.FuncMap{
		"css": func() template.CSS { return template.CSS(pageCSS + css) },
		"js":  func() template.JS { return template.JS(pageJS + js) },
	}).Parse(html))
}

// Duration formats a time in ns; number and unit stay on one line.
func Duration(ns float64) string { return unbroken(latency.FormatNS(ns)) }

// unbroken is text on one line.
func unbroken(text string) string { return strings.ReplaceAll(text, " ", "\u00a0") }

// plot is a figure with its caption and legend.
type plot struct {
	Title, Caption string
	Legend         []legend
	SVG            template.HTML
}

type legend struct {
	Colour int
	Class  string
	Name   string
}

type fact struct{ Name, Value string }

type reportPage struct {
	R        *report.Report
	Title    string
	Answer   string
	Summary  string
	Alerts   []string // the first mostWarnings
	More     []string // the other ones, and the notes
	Headline []Headline
	Plots    []plot
	Columns  []string
	Rows     []Row
	Frames   []Row
	Facts    []fact
	Transfer []Row
	Sim      bool
	Tail     *attributed // nil if nothing is attributed
	Gaps     *gapTable   // nil unless it is of a responder that recorded its gaps
}

// Headline is a figure in large print.
type Headline struct{ Name, Value, Note string }

// Row is a row of a table.
type Row struct {
	Name   string
	Values []string
}

// Report writes the report as one self-contained page.
func Report(w io.Writer, rep *report.Report) error {
	p := reportPage{R: rep, Sim: rep.Device.Sim(), Title: rep.Title(), Answer: answer(rep), Summary: lede(rep),
		Alerts: alerts(rep), Facts: facts(rep)}
	if rep.Measured() {
		p.Alerts = append(p.Alerts, outageAlerts(outages(rep, rep.Main()))...)
		p.Headline, p.Plots, p.Tail = headlines(rep), plots(rep), attributedOf(rep)
		p.Plots = append(append(p.Plots, bandPlot(rep.Attribution)...), waterfallPlot(rep.Attribution)...)
	}
	p.Gaps = gapTableOf(rep)
	p.Columns, p.Rows = statTable(rep)
	p.Frames, p.Transfer = countRows([]*report.Report{rep}, false), transferRows([]*report.Report{rep})
	way := func(name string, n *int64, always bool) {
		if n != nil && (always || *n > 0) {
			p.Frames = append(p.Frames, Row{name, []string{latency.FormatCount(*n)}})
		}
	}
	way("lost there", rep.Counts.LostForward, true)
	way("lost back", rep.Counts.LostBackward, true)
	way("lost on a way unknown", rep.Counts.LostEither, false)
	p.Alerts, p.More = above(p.Alerts)
	for _, n := range rep.Notes {
		p.More = append(p.More, upperFirst(n)+".")
	}
	return page.ExecuteTemplate(w, "report", p)
}

// above divides the warnings and notes of a page: those above its first graph, and those below it.
func above(all []string) (first, more []string) {
	n := min(len(all), mostWarnings)
	return all[:n:n], slices.Clone(all[n:])
}

// alerts are the sentences at the top of a page: what limits the use of the report.
func alerts(rep *report.Report) []string {
	var lines []string
	if text := rep.UnfinishedText(); text != "" {
		lines = append(lines, text)
	}
	if rep.Device.Sim() {
		lines = append(lines, "A device model answered. These nanoseconds are the model's and say nothing about a card's latency; the bus transactions do")
	}
	if c := rep.Counts; c.Lost > 0 || c.Corrupt > 0 {
		where := c.LostWhere()
		if where != "" {
			where += " "
		}
		rejected := sanitize.Count(c.Corrupt, "rejected reply")
		if text := rep.RejectedText(); text != "" {
			rejected += ": " + text
		}
		lines = append(lines, fmt.Sprintf("Of %s, %s were lost %s(%s); %s. The percentiles are those of what came back",
			sanitize.Count(c.Sent, "request"),
			c.LostText(), where, report.Range(c.LostLeast(), c.Lost,
				func(n int64) string { return latency.FormatShare(float64(n) / float64(max(c.Sent, 1))) }), rejected))
	}
	if text := rep.Counts.UnknownText(); text != "" {
		lines = append(lines, text)
	}
	lines = append(lines, rep.ByCounter()...)
	if own := ownLag(rep); own != "" {
		lines = append(lines, own)
	}
	if text := attributionText(rep.Attribution); text != "" {
		lines = append(lines, text)
	}
	lines = append(append(lines, rep.TailLines()...), rep.Warnings...)
	for i, text := range lines {
		lines[i] = upperFirst(text) + "."
	}
	return lines
}

// headlines are the percentiles and the maximum in large print.
func headlines(rep *report.Report) []Headline {
	var all []Headline
	for _, st := range compare.Stats(latency.HeadlineTable) {
		note := ""
		if !st.Single() && rep.Main().Total.Count < st.Needs() {
			note = "few samples"
		}
		all = append(all, Headline{st.String(), unbroken(seriesText(rep, rep.Main(), st)), note})
	}
	return all
}

// plots are the figures of a report with samples.
func plots(rep *report.Report) []plot {
	main, unit := rep.Main(), string(rep.Metric)
	if rep.Device.Sim() {
		unit += " in the model, not of a card"
	}
	ds := []drawn{{0, "", string(rep.Metric), main.Total}}
	var legends []legend
	if u := rep.Find(latency.UncorrectedSeries); u != nil && !empty(rep, u) {
		ds[0].name = "from the intended send"
		ds = append(ds, drawn{1, "dashed", "from the actual send", u.Total})
		for _, d := range ds {
			legends = append(legends, legend{d.colour, d.class, d.name})
		}
	}
	if rep.Foreign.Partial() {
		ds = nil
	}
	all := curves(ds, legends, unit)
	if svg := timeFigure(rep, main, unit); svg != "" && rep.Foreign.Dated() {
		caption := fmt.Sprintf("Intervals of %s.", latency.FormatNS(float64(rep.Interval)))
		if len(rep.Runs) > 1 {
			caption += " Each run is a separate line."
		}
		if len(outages(rep, main)) > 0 {
			caption += " No replies came in the shaded parts."
		}
		legends := []legend{{0, "", "p50"}, {1, "", "p99"}, {2, "thin", "max"}}
		causes, more := causeStrips(rep)
		for _, c := range causes {
			legends = append(legends, legend{c.colour, "", c.text})
		}
		if len(causes) > 0 {
			caption += " The rows below the axis show when something else had a polling core for 5 µs or more, and the legend for how long in all."
		}
		if more > 0 {
			caption += fmt.Sprintf(" %s that took less are in report.json.", sanitize.Count(more, "more kind"))
		}
		all = append(all, plot{"Over time", caption, legends, svg})
	}
	if svg := heatFigure(rep, main, unit); svg != "" && rep.Foreign.Dated() {
		all = append(all, plot{"Samples over time",
			"The darkest cells have the most samples of their moment; each lighter level has a tenth of the one before.", nil, svg})
	}
	var strips []template.HTML
	for _, st := range stripStats(rep) {
		strips = append(strips, stripFigure(st, []side{{legend{0, "", string(rep.Metric)}, rep}}, unit))
	}
	return append(all, joined("Runs", "A dot for each run. A comparison has to exceed their spread.", nil, strips)...)
}

// statTable has a column for each series, two for one that was also met at random moments, and a row for each
// statistic.
func statTable(rep *report.Report) (columns []string, rows []Row) {
	for _, s := range rep.Series {
		name := s.Name
		if name == latency.MainSeries {
			name = string(rep.Metric)
		}
		if s.Wait != nil {
			columns = append(columns, name+" (time-weighted)", name+" (per loop iteration)")
			continue
		}
		columns = append(columns, name+oneWayError(rep, name))
	}
	for _, st := range compare.Stats(latency.FullTable) {
		row := Row{Name: st.String()}
		for _, s := range rep.Series {
			value := unbroken(seriesText(rep, s, st))
			if s.Wait != nil && !empty(rep, s) {
				row.Values = append(row.Values, Duration(st.OfSummary(s.Wait)))
			} else if s.Wait != nil {
				row.Values = append(row.Values, value)
			}
			row.Values = append(row.Values, value)
		}
		rows = append(rows, row)
	}
	samples := Row{Name: "samples"}
	for _, s := range rep.Series {
		if s.Wait != nil {
			samples.Values = append(samples.Values, "")
		}
		samples.Values = append(samples.Values, latency.FormatCount(s.Total.Count))
	}
	return columns, append(rows, samples)
}

// curves are the plots of whole distributions, none if there are no distributions.
func curves(ds []drawn, legends []legend, unit string) []plot {
	if len(ds) == 0 {
		return nil
	}
	return []plot{
		{"Percentiles", "Grey: fewer than ten samples lie above the percentile. Do not rely on its value.", legends, percentileFigure(ds, unit)},
		{"Distribution", "Both axes are logarithmic, so that a single outlier shows.", legends, distributionFigure(ds, unit)},
	}
}

// lede says in one sentence what was measured.
func lede(r *report.Report) string {
	t, d := r.Traffic, r.Device
	var s []string
	switch {
	case t.Protocol != "" && r.Foreign != nil:
		s = append(s, strings.TrimSuffix(fmt.Sprintf("%s by %s to %s", upperFirst(string(r.Metric)), t.Protocol,
			t.Target), " to "))
	case t.Protocol != "":
		unit := "frames"
		if t.Transport == "message" {
			unit = "messages"
		}
		s = append(s, fmt.Sprintf("%s of %d-byte %s %s to %s", upperFirst(string(r.Metric)), t.FrameSize, t.Protocol,
			unit, t.Target))
		s = append(s, t.Marks()...)
	case r.Metric != "":
		s = append(s, upperFirst(string(r.Metric)))
	}
	switch t.Mode {
	case "open":
		s = append(s, fmt.Sprintf("open loop at %s a second, timed from the intended send", latency.FormatRate(t.Rate)))
		if t.Arrivals != "" {
			s = append(s, t.Spread())
		}
	case "closed":
		s = append(s, fmt.Sprintf("closed loop, %d outstanding", max(t.Outstanding, 1)))
	}
	if d.Driver != "" {
		s = append(s, fmt.Sprintf("%s on %s", d.Driver, d.Device))
	}
	if len(r.Runs) > 1 {
		s = append(s, sanitize.Count(len(r.Runs), "run"))
	}
	if !r.End.IsZero() {
		s = append(s, fmt.Sprintf("%s, %s", r.Start.UTC().Format("2 January 2006 15:04 UTC"),
			latency.FormatDuration(r.End.Sub(r.Start))))
	}
	return strings.Join(s, "; ") + "."
}

func upperFirst(s string) string {
	_, n := utf8.DecodeRuneInString(s)
	return strings.ToUpper(s[:n]) + s[n:]
}

// facts is the environment as a list.
func facts(r *report.Report) []fact {
	h, d, c := r.Host, r.Device, r.Clock
	fs := []fact{
		{"Host", h.Hostname}, {"CPU", h.CPU}, {"Logical CPUs", numberOf(h.Cores)}, {"Core used", coreOf(h.Core)}, {"Kernel", h.Kernel}, {"Kernel command line", h.Cmdline},
		{"Hypervisor", h.Hypervisor}, {"Governor", h.Governor}, {"Idle states", strings.Join(h.CStates, ", ")}, {"SMT", h.SMT}, {"Isolated", h.Isolated}, {"nohz_full", h.NoHzFull},
		{"Mitigations", strings.Join(h.Mitigations, "; ")},
		{"Clock", clockOf(c)}, {"Clock notes", strings.Join(c.Notes, "; ")},
		{"Driver", d.Driver}, {"Device", d.Device}, {"Model", d.Model}, {"Backend", d.Backend}, {"Push", d.Push}, {"MAC", d.MAC}, {"MTU", numberOf(d.MTU)},
		{"Link speed", speedOf(d.Speed)}, {"Driver notes", strings.Join(d.Notes, "; ")},
		{"Command line", strings.Join(r.Args, " ")}, {"Version", r.Tool + " " + r.Version}, {"Left out", leftOut(r.Anonymous)},
	}
	out := fs[:0]
	for _, f := range fs {
		if strings.TrimSpace(f.Value) != "" {
			out = append(out, f)
		}
	}
	return out
}

func leftOut(anonymous bool) string {
	if anonymous {
		return "host name, command lines, kernel release behind its version, names of threads, MAC addresses, public IP addresses"
	}
	return ""
}

func numberOf(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

func coreOf(n int) string {
	if n < 0 {
		return "not pinned"
	}
	return fmt.Sprint(n)
}

func speedOf(mbps int) string {
	if mbps == 0 {
		return ""
	}
	return latency.FormatBits(float64(mbps) * 1e6)
}

func clockOf(c latency.ClockInfo) string {
	if c.Source == "" {
		return ""
	}
	return fmt.Sprintf("%s at %.6f GHz ±%.2g ppm, %s; %.1f ns to read, steps of %.2g ns", c.Source, c.Frequency/1e9,
		c.ErrorPPM, c.Method, c.ReadNS, c.StepNS)
}

// stripStats are the statistics shown per run: the median, and the highest percentile up to p99 for which each run has
// enough samples.
func stripStats(rs ...*report.Report) []compare.Stat {
	var out []compare.Stat
	for _, st := range compare.Stats(latency.NarrowTable) {
		enough := true
		for _, r := range rs {
			for _, h := range r.ByRun() {
				enough = enough && (h == nil || h.Count >= st.Needs())
			}
		}
		if enough {
			out = append(out, st)
		}
	}
	return out
}

// joined combines several figures into one plot, none if all are empty.
func joined(title, caption string, legends []legend, figures []template.HTML) []plot {
	var all template.HTML
	for _, f := range figures {
		all += f
	}
	if all == "" {
		return nil
	}
	return []plot{{title, caption, legends, all}}
}
