package page

import (
	"bufio"
	"fmt"
	"html/template"
	"io"
	"math"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/sanitize"
)

// History is the development of results over many reports.
type History struct {
	Lines []compare.Line
	Lost  []compare.Lost // reports without a reply
	Notes []string
}

type historyPage struct {
	Title, Answer string
	Notes         []string
	Plots         []plot
	Rows          []Row
	Lost          []Row
	Differ        []fact
}

// steps counts the changes, and returns the last of them with its line, or nil if there is none.
func (h *History) steps() (n int, line *compare.Line, last *compare.Step) {
	var at time.Time
	for i := range h.Lines {
		l := &h.Lines[i]
		for k := range l.Steps {
			n++
			if start := l.Points[l.Steps[k].At].Start; last == nil || start.After(at) {
				at, line, last = start, l, &l.Steps[k]
			}
		}
	}
	return n, line, last
}

// reports is the greatest number of reports in a line.
func (h *History) reports() (most int) {
	for _, l := range h.Lines {
		most = max(most, len(l.Points))
	}
	return most
}

func (h *History) answer() string {
	n, l, s := h.steps()
	switch {
	case n == 0 && len(h.Lines) == 0 && len(h.Lost) > 0:
		return "no probe of " + sanitize.All(len(h.Lost), "report") + " was answered"
	case n == 0 && len(h.Lines) == 0:
		return "no report has samples"
	case n == 0 && h.reports() < 2*compare.FewestValues:
		return h.Lines[0].Why
	case n == 0:
		return fmt.Sprintf("no change of level found in %s", sanitize.Count(h.reports(), "report"))
	}
	word := "rose"
	if s.After < s.Before {
		word = "fell"
	}
	text := fmt.Sprintf("%s %s by %s (%s to %s) with %s", l.Stat, word, latency.FormatShare(math.Abs(s.Percent())/100),
		latency.FormatNS(s.Before), latency.FormatNS(s.After), formatReport(l, s.At))
	if n > 1 {
		text += fmt.Sprintf(", the last of %d changes", n)
	}
	return text
}

// PrintHistory writes the changes of level as text.
func PrintHistory(w io.Writer, h *History) error {
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, "%s\n", sanitize.Text(h.answer()))
	if n, _, _ := h.steps(); n > 0 {
		t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "\nstat\tof\tfrom\tto\tchange\tp\tfirst report\twhat differs from the one before")
		for i := range h.Lines {
			l := &h.Lines[i]
			for _, s := range l.Steps {
				differ := append([]string{"nothing that the reports say"}, s.Differ...)
				differ = differ[min(len(s.Differ), 1):]
				for k, d := range differ {
					if k > 0 {
						fmt.Fprintf(t, "\t\t\t\t\t\t\t%s\n", sanitize.Text(d))
						continue
					}
					fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", l.Stat, sanitize.Text(l.What),
						latency.FormatNS(s.Before), latency.FormatNS(s.After),
						latency.FormatChange(s.Percent()/100), formatP(s.P), sanitize.Text(formatReport(l, s.At)),
						sanitize.Text(d))
				}
			}
		}
		t.Flush()
	}
	if len(h.Lost) > 0 {
		t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "\nreport without a reply\tof\tsent\tlost")
		for i := range h.Lost {
			l := &h.Lost[i]
			fmt.Fprintf(t, "%s\t%s\t%d\t%s\n", sanitize.Text(dated(l.Name, l.Start)), sanitize.Text(l.What), l.Sent,
				l.Text)
		}
		t.Flush()
	}
	for _, n := range h.Notes {
		fmt.Fprintf(b, "note: %s\n", sanitize.Text(n))
	}
	return b.Flush()
}

// formatReport formats the i-th report of a line with its date.
func formatReport(l *compare.Line, i int) string {
	return dated(l.Points[i].Name, l.Points[i].Start)
}

// dated is a report's name with its date, if that is known.
func dated(name string, start time.Time) string {
	if start.IsZero() {
		return name
	}
	return name + " of " + start.Format(time.DateOnly)
}

// WriteHistory writes the history as one self-contained page.
func WriteHistory(w io.Writer, h *History) error {
	p := historyPage{Title: sanitize.Count(h.reports(), "report"), Answer: h.answer(), Notes: h.Notes}
	for i := range h.Lines {
		l := &h.Lines[i]
		if len(l.Points) == 0 {
			continue
		}
		caption := "A dot for each report, in their order. A line marks a change of level, a flat one the median of a level."
		if l.Why != "" {
			caption = upperFirst(l.Why) + "."
		}
		p.Plots = append(p.Plots, plot{Title: l.Stat.String() + " of " + l.What, Caption: caption,
			SVG: historyFigure(l)})
		for _, s := range l.Steps {
			p.Rows = append(p.Rows, Row{l.Stat.String() + " of " + l.What,
				[]string{formatReport(l, s.At), Duration(s.Before), Duration(s.After),
					latency.FormatChange(s.Percent() / 100), formatP(s.P)}})
			differ := strings.Join(s.Differ, "; ")
			if differ == "" {
				differ = "nothing that the reports say"
			}
			p.Differ = append(p.Differ, fact{fmt.Sprintf("%s at %s", l.Stat, formatReport(l, s.At)),
				upperFirst(differ) + "."})
		}
	}
	for i := range h.Lost {
		l := &h.Lost[i]
		p.Lost = append(p.Lost, Row{dated(l.Name, l.Start), []string{l.What, fmt.Sprint(l.Sent), l.Text}})
	}
	return page.ExecuteTemplate(w, "history", p)
}

// historyFigure draws the values of a line by number, their levels, and the changes between them.
func historyFigure(l *compare.Line) template.HTML {
	lo, hi := math.Inf(1), 0.0
	n := len(l.Points)
	dots := curve{name: l.Stat.String(), class: "dots"}
	for i, p := range l.Points {
		lo, hi = min(lo, p.Value), max(hi, p.Value)
		dots.marks = append(dots.marks, mark{float64(i + 1), p.Value,
			fmt.Sprintf("%s: %s", formatReport(l, i), latency.FormatNS(p.Value))})
	}
	f := figure{y: valueAxis(l.Stat.String(), lo, hi), x: axis{lo: 0.5, hi: float64(n) + 0.5, unit: "report",
		title: "report"}}
	f.x.ticks = linearTicks(1, max(float64(n), 2), 8, func(v float64) string { return fmt.Sprint(math.Round(v)) })
	from, level := 0, 0.0
	levels := curve{name: "level", class: "thin", colour: 1}
	add := func(to int, v float64) {
		levels.x, levels.y = append(levels.x, float64(from)+0.5, float64(to)+0.5, float64(to)+0.5),
			append(levels.y, v, v, math.NaN())
		from = to
	}
	var alts []string
	for _, s := range l.Steps {
		add(s.At, s.Before)
		level = s.After
		f.rules = append(f.rules, mark{x: float64(s.At) + 0.5,
			text: fmt.Sprintf("%s, p %s", latency.FormatChange(s.Percent()/100), formatP(s.P))})
		alts = append(alts, fmt.Sprintf("it changes by %s with %s", latency.FormatChange(s.Percent()/100),
			formatReport(l, s.At)))
	}
	if level > 0 {
		add(n, level)
	}
	if alts == nil {
		alts = []string{"no change of level was found"}
	}
	f.curves = []curve{levels, dots}
	f.alt = fmt.Sprintf("%s of %s between %s and %s; %s.", l.Stat, sanitize.Count(n, "report"), latency.FormatNS(lo),
		latency.FormatNS(hi), strings.Join(alts, ", "))
	return f.svg()
}
