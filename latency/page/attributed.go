package page

import (
	"cmp"
	"fmt"
	"html"
	"html/template"
	"strings"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/attribution"
	"github.com/rebound-nic/rebound/latency/report"
)

// bar is a row of a figure of stacked bars.
type bar struct {
	name, value string // left and right of it
	parts       []barPart
	marks       []mark // vertical lines
}

// barPart is a part of a bar, up to the start of the next one.
type barPart struct {
	colour   int
	from, to float64
	text     string
}

// barHeight is the height of a row in pixels, with its gap.
const barHeight = 30

// bars draws rows over a common axis, in each of figureSizes.
func bars(alt string, x axis, rows []bar, data string) template.HTML {
	const right = 78
	var b strings.Builder
	for _, s := range figureSizes {
		left, top := float64(marginLeft), float64(marginTop)
		bottom := top + float64(barHeight*len(rows))
		px := func(v float64) float64 { return left + x.share(v)*(s.w-right-left) }
		fmt.Fprintf(&b, `<svg class="chart %s" viewBox="0 0 %g %g" role="img" aria-label="%s">`, s.class, s.w,
			bottom+marginBottom, html.EscapeString(alt))
		last := -1.0
		for _, t := range x.ticks {
			at := px(t.at)
			fmt.Fprintf(&b, `<line class="grid" x1="%.1f" y1="%g" x2="%.1f" y2="%g"/>`, at, top, at, bottom)
			if half := 3.7 * float64(len([]rune(t.label))); at-half > last+6 {
				fmt.Fprintf(&b, `<text class="tick" x="%.1f" y="%g" text-anchor="middle">%s</text>`, at, bottom+18,
					html.EscapeString(t.label))
				last = at + half
			}
		}
		for i, r := range rows {
			y := top + float64(barHeight*i) + 4
			fmt.Fprintf(&b, `<text class="tick" x="%g" y="%g" text-anchor="end">%s</text>`, left-6, y+16,
				html.EscapeString(r.name))
			fmt.Fprintf(&b, `<text class="tick" x="%g" y="%g">%s</text>`, s.w-right+6, y+16, html.EscapeString(r.value))
			for _, p := range r.parts {
				if from, to := px(p.from), px(p.to); to > from {
					fmt.Fprintf(&b, `<rect class="part c%d" x="%.2f" y="%g" width="%.2f" height="%d"><title>%s</title></rect>`, p.colour, from, y, to-from, barHeight-8, html.EscapeString(p.text))
				}
			}
			for _, m := range r.marks {
				fmt.Fprintf(&b, `<line class="moment" x1="%.2f" y1="%g" x2="%.2f" y2="%g"><title>%s</title></line>`,
					px(m.x), y-2, px(m.x), y+barHeight-6, html.EscapeString(m.text))
			}
		}
		fmt.Fprintf(&b, `<line class="axis" x1="%g" y1="%g" x2="%g" y2="%g"/>`, left, bottom, s.w-right, bottom)
		fmt.Fprintf(&b, `<text class="title" x="%.1f" y="%g" text-anchor="middle">%s</text></svg>`, (left+s.w-right)/2,
			bottom+38, html.EscapeString(x.title))
	}
	fmt.Fprintf(&b, `<template class="data">%s</template>`, html.EscapeString(data))
	return template.HTML(b.String())
}

// attributionText is the printed block as one text, without its full stop.
func attributionText(a *attribution.Result) string {
	all := a.Lines()
	for i, line := range all {
		if side, rest, ok := strings.Cut(strings.TrimSpace(line), "  "); ok && i > 0 {
			all[i] = upperFirst(side) + ": " + strings.TrimSpace(rest) + "."
		}
	}
	return strings.TrimSuffix(strings.Join(all, " "), ".")
}

// usualColour is that of the time which a usual round trip takes, too.
const usualColour = 6

// section is parts of the same kind in a bar.
type section struct {
	name   string
	colour int
	of     func(*attribution.Parts) int64
}

// sideSections are the sides, after the usual path.
func sideSections() []section {
	all := []section{{"usual path", usualColour, func(p *attribution.Parts) int64 { return p.Path }}}
	for i, s := range attribution.Sides {
		all = append(all, section{s.String(), i, func(p *attribution.Parts) int64 { return p.Of(s) }})
	}
	return all
}

// waySections are the parts in the order of the way.
func waySections() []section {
	const responder, here, network, elsewhere, unknown = 0, 1, 2, 3, 4
	return []section{
		{"this host, sending", here, func(p *attribution.Parts) int64 { return p.HereSend }},
		{"usual path", usualColour, func(p *attribution.Parts) int64 { return p.Path }},
		{"network, on the way there", network, func(p *attribution.Parts) int64 { return p.There }},
		{"responder's host, before its loop saw the probe", responder, func(p *attribution.Parts) int64 { return p.FarWait }},
		{"responder's host, answering", responder, func(p *attribution.Parts) int64 { return p.FarAnswer }},
		{"network, on the way back", network, func(p *attribution.Parts) int64 { return p.Back }},
		{"network", network, func(p *attribution.Parts) int64 { return p.Network }},
		{"elsewhere", elsewhere, func(p *attribution.Parts) int64 { return p.Elsewhere }},
		{"unknown", unknown, func(p *attribution.Parts) int64 { return p.Unknown }},
		{"this host, from the NIC to where its loop sees the reply", here,
			func(p *attribution.Parts) int64 { return p.HereNIC }},
		{"this host, before its loop saw the reply", here, func(p *attribution.Parts) int64 { return p.HereSeen }},
	}
}

// partsOf returns the parts of a bar with their sum, divided by unit.
func partsOf(p *attribution.Parts, all []section, unit float64) (out []barPart, sum float64) {
	for _, s := range all {
		if v := float64(s.of(p)); v > 0 {
			out = append(out, barPart{s.colour, sum / unit, (sum + v) / unit, s.name + " " + Duration(v)})
			sum += v
		}
	}
	return out, sum
}

// sideLegend names the colours that occur.
func sideLegend(rows []bar) (all []legend) {
	used := map[int]bool{}
	for _, r := range rows {
		for _, p := range r.parts {
			used[p.colour] = true
		}
	}
	for _, s := range sideSections() {
		if used[s.colour] {
			all = append(all, legend{s.colour, "", s.name})
		}
	}
	return all
}

// bandPlot shows what round trips around some percentiles consist of; empty if nothing is attributed.
func bandPlot(a *attribution.Result) []plot {
	if a == nil || len(a.Bands) == 0 {
		return nil
	}
	var rows []bar
	data := "percentile\tpart\tns\n"
	var alt []string
	for i := range a.Bands {
		band := &a.Bands[i]
		all := sideSections()
		_, sum := partsOf(&band.Parts, all, 1)
		parts, _ := partsOf(&band.Parts, all, max(sum, 1)/100)
		rows = append(rows, bar{name: band.Name, value: Duration(sum), parts: parts})
		var texts []string
		for _, s := range all {
			if v := s.of(&band.Parts); v > 0 {
				data += fmt.Sprintf("%s\t%s\t%d\n", Field(band.Name), Field(s.name), v)
				texts = append(texts, s.name+" "+latency.FormatShare(float64(v)/max(sum, 1)))
			}
		}
		alt = append(alt, band.Name+": "+strings.Join(texts, ", "))
	}
	x := axis{hi: 100, title: "share of the round trip", ticks: linearTicks(0, 100, 5,
		func(v float64) string { return fmt.Sprintf("%g\u00a0%%", v) })}
	return []plot{{"What is " + a.Bands[len(a.Bands)-1].Name + " made of?",
		"Means of round trips around each percentile, and how long they took.",
		sideLegend(rows), bars("Parts of the round trip by percentile: "+strings.Join(alt, "; ")+".", x, rows, data)}}
}

// fineMark: a time whose error exceeds this part of the round trip is in the table only.
const fineMark = 8

// shownRows is how many of the slowest round trips are drawn.
const shownRows = 10

// slowest are the slowest round trips of an attribution, without any that a damaged file has no times of.
func slowest(a *attribution.Result) (all []*attribution.Row) {
	if a == nil {
		return nil
	}
	for i := range a.Rows[:min(len(a.Rows), shownRows)] {
		if r := &a.Rows[i]; r.RTT > 0 && len(r.Times) == len(a.Points) && len(r.Errors) == len(a.Points) {
			all = append(all, r)
		}
	}
	return all
}

// waterfallPlot shows the slowest round trips with their parts and times; empty if nothing is attributed.
func waterfallPlot(a *attribution.Result) []plot {
	all := slowest(a)
	if len(all) == 0 {
		return nil
	}
	var rows []bar
	data := "probe\tpart\tns\n"
	end := 0.0
	for i, r := range all {
		row := bar{name: fmt.Sprint(i + 1), value: Duration(float64(r.RTT))}
		row.parts, _ = partsOf(&r.Parts, waySections(), 1)
		for _, s := range waySections() {
			if v := s.of(&r.Parts); v > 0 {
				data += fmt.Sprintf("%d\t%s\t%d\n", i+1, Field(s.name), v)
			}
		}
		for k, t := range r.Times {
			if t != attribution.NotKnown && r.Errors[k] <= r.RTT/fineMark {
				row.marks = append(row.marks, mark{x: float64(t), text: a.Points[k].Name + " " + timeText(r, k)})
			}
		}
		rows = append(rows, row)
		end = max(end, float64(r.RTT))
	}
	x := axis{hi: end, title: "time since the intended send", ticks: linearTicks(0, end, 5, tickNS)}
	return []plot{{"The slowest round trips",
		"Colours are parts in the order of the way, whose lengths add up to the round trip; lines are times whose error is " +
			"at most an eighth of it. The table below has all times and errors.", sideLegend(rows),
		bars(fmt.Sprintf("Parts of the %d slowest round trips, the slowest of %s.", len(rows), latency.FormatNS(end)),
			x, rows, data)}}
}

// timeText is the k-th time of a row with its error.
func timeText(r *attribution.Row, k int) string {
	if r.Times[k] == attribution.NotKnown {
		return "unknown"
	}
	text := Duration(float64(r.Times[k]))
	if r.Errors[k] > 0 {
		text += " ±\u00a0" + Duration(float64(r.Errors[k]))
	}
	return text
}

// reached is the place of "reached the NIC" among the times of a row, and the last one is "seen".
const reached = 7

// insideText is how long a reply was in this host before the thread saw it, with its error.
func insideText(r *attribution.Row) string {
	last := len(r.Times) - 1
	if r.Times[reached] == attribution.NotKnown || r.Times[last] == attribution.NotKnown {
		return "unknown"
	}
	return Duration(float64(r.Times[last]-r.Times[reached])) + " ±\u00a0" + Duration(float64(r.Errors[reached]))
}

// attributed is the tables about the attribution.
type attributed struct {
	Columns []string // the slowest, by number
	Rows    []Row    // of each point, and of the unknown part: the times
	Known   []Row    // what is known: how
	Limits  []Row    // what cannot be told
}

// attributedOf returns nil if nothing is attributed.
func attributedOf(r *report.Report) *attributed {
	a := r.Attribution
	all := slowest(a)
	if len(all) == 0 {
		return nil
	}
	out := &attributed{}
	inside := Row{Name: "this host: NIC to seen"}
	unknown, whose := Row{Name: "unknown part"}, Row{Name: "more than half by"}
	stamped := len(a.Points) > reached && a.Points[reached].Clock != ""
	for i, row := range all {
		out.Columns = append(out.Columns, fmt.Sprint(i+1))
		if stamped {
			inside.Values = append(inside.Values, insideText(row))
		}
		unknown.Values = append(unknown.Values, Duration(float64(row.Parts.Unknown)))
		whose.Values = append(whose.Values, row.Side)
	}
	for k, p := range a.Points {
		times := Row{Name: p.Name}
		for _, row := range all {
			times.Values = append(times.Values, timeText(row, k))
		}
		out.Rows = append(out.Rows, times)
		out.Known = append(out.Known, Row{p.Name, []string{cmp.Or(p.Clock, "unknown")}})
	}
	if stamped {
		out.Rows = append(out.Rows, inside)
	}
	out.Rows = append(out.Rows, unknown, whose)
	how := cmp.Or(a.How, "not watched")
	if a.MissedCauses > 0 {
		how += fmt.Sprintf("; %s more were not kept", latency.FormatCount(a.MissedCauses))
	}
	out.Known = append(out.Known, Row{"causes on this host", []string{how}},
		Row{"causes on the responder's host", []string{cmp.Or(a.FarCauses,
			"not known: see its own metrics, or add its report (rebound-bench explain)")}})
	if a.Cost != "" {
		out.Known = append(out.Known, Row{"cost of watching", []string{a.Cost}})
	}
	for _, how := range []string{a.Related, a.Aligned} {
		if how != "" {
			out.Known = append(out.Known, Row{"the hosts' clocks", []string{how}})
		}
	}
	const no = "does not apply"
	nicUnknown := "applies"
	if stamped {
		nicUnknown = "only to the responder's host"
	}
	rights := no
	if a.Source() != attribution.Tracepoints {
		rights = how
	}
	farUnknown := cmp.Or(a.FarLoop, no)
	if a.Aligned != "" && a.FarLoop != "" {
		farUnknown = no + ": its own report was added"
	}
	out.Limits = []Row{
		{"the responder is not Rebound, or does not report when its loop ran", []string{farUnknown, "The responder's host and the network are one part: elsewhere."}},
		{"no rights for the kernel's tracepoints on this host", []string{rights, "Causes have no names and no exact times. Counters are a weak hint."}},
		{"clocks are not synchronised", []string{cmp.Or(a.Direction, no), "The network's part has no direction. If the loops of both hosts were interrupted, the part is unknown."}},
		{"no timestamps of kernel or NIC", []string{nicUnknown, "Time in a host's kernel before the polling thread can see a frame, such as an interrupt flood, counts as network."}},
	}
	return out
}
