package page

import (
	"fmt"
	"html"
	"html/template"
	"math"
	"strconv"
	"strings"
)

// A figure is drawn twice, for desktop and phone: scaling one drawing would make its text unreadable on the other.
var figureSizes = []struct {
	class string
	w, h  float64
}{{"wide", 920, 380}, {"narrow", 360, 300}}

const (
	marginLeft, marginRight, marginTop, marginBottom = 62, 14, 14, 44
)

// curve is one line of a figure, in nanoseconds or counts; colour is an index of the page's palette. The line is
// interrupted where y is NaN.
type curve struct {
	name   string // shown in the tooltip with a value
	colour int
	class  string // "", "dashed", "thin", "dots" (marks only)
	x, y   []float64
	marks  []mark
	area   bool      // filled to the axis
	steps  bool      // each y is constant until the next x
	lo, hi []float64 // a band around the line, nil for none; infinite where unbounded
}

// mark is a dot on a curve, with a tooltip.
type mark struct {
	x, y float64
	text string
}

// axis maps values to a length in pixels, logarithmically if log is set.
type axis struct {
	lo, hi float64
	log    bool
	unit   string // how page.js formats a value: ns, shift, percent, s, run, rank, rate, bytes, count, pairs, nines
	title  string
	ticks  []tick
}

type tick struct {
	at    float64
	label string // "" for a minor tick
}

func (a *axis) share(v float64) float64 {
	lo, hi := a.lo, a.hi
	if a.log {
		v, lo, hi = math.Log(max(v, lo)), math.Log(lo), math.Log(hi)
	}
	return min(max((v-lo)/(hi-lo), 0), 1)
}

// figure draws curves over two axes as inline SVG, in each of figureSizes. alt is the text alternative for screen
// readers.
type figure struct {
	alt     string
	x, y    axis
	curves  []curve
	cells   []cell
	shades  []shade
	outages []shade   // parts without replies
	rules   []mark    // vertical lines at x
	level   []float64 // horizontal lines at y
	strips  []strip   // below the x axis
	table   string    // the data as copied, if different from the curves' points
}

// strip is a row of marks below the x axis, in its unit.
type strip struct {
	name   string // left of it
	colour int
	marks  []shade
}

// stripHeight is the height of a strip in pixels, with its gap.
const stripHeight = 16

// shade is a grey area between two values of x.
type shade struct {
	from, to float64
	note     string
}

// cell is a rectangle of a heat map. Level is from 1 to heatLevels.
type cell struct {
	x0, x1, y0, y1 float64
	level          int
}

const heatLevels = 6

func (f *figure) svg() template.HTML {
	var b strings.Builder
	for _, s := range figureSizes {
		f.draw(&b, s.class, s.w, s.h)
	}
	fmt.Fprintf(&b, `<template class="data">%s</template>`, html.EscapeString(f.data()))
	return template.HTML(b.String())
}

// draw appends the figure as an SVG element of w × h user units to b: first the shades, grid and axes, then the
// curves with the texts that the page shows at a point.
func (f *figure) draw(b *strings.Builder, class string, w, h float64) {
	left, right, top, bottom := float64(marginLeft), w-marginRight, float64(marginTop), h-marginBottom
	px := func(v float64) float64 { return left + f.x.share(v)*(right-left) }
	py := func(v float64) float64 { return bottom - f.y.share(v)*(bottom-top) }

	fmt.Fprintf(b, `<svg class="chart %s" viewBox="0 0 %g %g" role="img" aria-label="%s" data-x="%s" data-y="%s">`,
		class, w, h+stripHeight*float64(len(f.strips)), html.EscapeString(f.alt),
		f.x.pixels(left, right), f.y.pixels(bottom, top))
	for _, s := range f.shades {
		if from, to := px(s.from), px(s.to); to > from+1 {
			fmt.Fprintf(b, `<rect class="shade" x="%.1f" y="%g" width="%.1f" height="%g"><title>%s</title></rect>`,
				from, top, to-from, bottom-top, html.EscapeString(s.note))
		}
	}
	for _, s := range f.outages {
		fmt.Fprintf(b, `<rect class="outage" x="%.1f" y="%g" width="%.1f" height="%g"><title>%s</title></rect>`,
			px(s.from), top, max(px(s.to)-px(s.from), 1), bottom-top, html.EscapeString(s.note))
	}
	f.drawCells(b, px, py)
	last := math.Inf(1)
	for _, t := range f.y.ticks {
		y := py(t.at)
		fmt.Fprintf(b, `<line class="grid%s" x1="%g" y1="%.1f" x2="%g" y2="%.1f"/>`, minor(t), left, y, right, y)
		if t.label != "" && last-y > 16 {
			fmt.Fprintf(b, `<text class="tick" x="%g" y="%.1f" text-anchor="end">%s</text>`, left-5, y+4,
				html.EscapeString(t.label))
			last = y
		}
	}
	last = math.Inf(-1)
	for _, t := range f.x.ticks {
		x := px(t.at)
		fmt.Fprintf(b, `<line class="grid%s" x1="%.1f" y1="%g" x2="%.1f" y2="%g"/>`, minor(t), x, top, x, bottom)
		half := 3.7 * float64(len([]rune(t.label)))
		if t.label == "" || x-half < last+6 {
			continue
		}
		anchor, to := "middle", x+half
		if x+half > w-2 {
			if x-2*half < last+6 {
				continue
			}
			anchor, to = "end", x
			x = w - 2
		}
		last = to
		fmt.Fprintf(b, `<text class="tick" x="%.1f" y="%g" text-anchor="%s">%s</text>`, x, bottom+18, anchor,
			html.EscapeString(t.label))
	}
	fmt.Fprintf(b, `<line class="axis" x1="%g" y1="%g" x2="%g" y2="%g"/>`, left, bottom, right, bottom)
	fmt.Fprintf(b, `<text class="title" x="%.1f" y="%g" text-anchor="middle">%s</text>`, (left+right)/2, h-6,
		html.EscapeString(f.x.title))
	fmt.Fprintf(b, `<text class="title" transform="translate(11 %.1f) rotate(-90)" text-anchor="middle">%s</text>`,
		(top+bottom)/2, html.EscapeString(f.y.title))

	for i, s := range f.strips {
		y := h + stripHeight*float64(i)
		fmt.Fprintf(b, `<text class="tick" x="%g" y="%g" text-anchor="end">%s</text>`, left-5, y+11,
			html.EscapeString(s.name))
		fmt.Fprintf(b, `<line class="grid" x1="%g" y1="%g" x2="%g" y2="%g"/>`, left, y+7, right, y+7)
		for _, m := range s.marks {
			fmt.Fprintf(b, `<rect class="cause c%d" x="%.1f" y="%g" width="%.1f" height="%d"><title>%s</title></rect>`,
				s.colour, px(m.from), y+1, max(px(m.to)-px(m.from), 1.5), stripHeight-4, html.EscapeString(m.note))
		}
	}
	for _, y := range f.level {
		fmt.Fprintf(b, `<line class="rule" x1="%g" y1="%.1f" x2="%g" y2="%.1f"/>`, left, py(y), right, py(y))
	}
	for _, r := range f.rules {
		fmt.Fprintf(b, `<line class="rule" x1="%.1f" y1="%g" x2="%.1f" y2="%g"><title>%s</title></line>`, px(r.x), top,
			px(r.x), bottom, html.EscapeString(r.text))
	}
	for _, c := range f.curves {
		if len(c.x) == 0 {
			continue
		}
		if c.lo != nil {
			fmt.Fprintf(b, `<path class="band c%d" d="%s"/>`, c.colour, bandOf(c, px, py))
		}
		if c.area {
			fmt.Fprintf(b, `<path class="area c%d" d="%sL%.1f %.1fL%.1f %.1fZ"/>`, c.colour, pathOf(c, px, py, false),
				px(c.x[len(c.x)-1]), bottom, px(c.x[0]), bottom)
		}
		fmt.Fprintf(b, `<path class="curve c%d %s" data-name="%s" d="%s"/>`, c.colour, c.class,
			html.EscapeString(c.name), pathOf(c, px, py, c.steps))
	}
	for _, c := range f.curves {
		for _, m := range c.marks {
			fmt.Fprintf(b, `<circle class="mark c%d" cx="%.1f" cy="%.1f" r="3.5"><title>%s</title></circle>`, c.colour,
				px(m.x), py(m.y), html.EscapeString(m.text))
		}
	}
	b.WriteString("</svg>")
}

// pixels tells page.js how the axis maps values to pixels.
func (a *axis) pixels(lo, hi float64) string {
	log := 0
	if a.log {
		log = 1
	}
	return fmt.Sprintf("%g %g %d %g %g %s", a.lo, a.hi, log, lo, hi, a.unit)
}

// drawCells draws the cells, with one path for all cells of a level.
func (f *figure) drawCells(b *strings.Builder, px, py func(float64) float64) {
	for level := 1; level <= heatLevels; level++ {
		var path strings.Builder
		for _, c := range f.cells {
			if c.level == level {
				x, y := px(c.x0), py(c.y1)
				fmt.Fprintf(&path, "M%.1f %.1fh%.1fv%.1fh%.1fz", x, y, px(c.x1)-x, py(c.y0)-y, x-px(c.x1))
			}
		}
		if path.Len() > 0 {
			fmt.Fprintf(b, `<path class="heat h%d" d="%s"/>`, level, path.String())
		}
	}
}

func minor(t tick) string {
	if t.label == "" {
		return " minor"
	}
	return ""
}

// pathOf returns the path of a curve. If gaps is set, ranges without samples are not drawn as a line along the axis.
func pathOf(c curve, px, py func(float64) float64, gaps bool) string {
	b := make([]byte, 0, 16*len(c.x))
	point := func(op byte, x, y float64) {
		b = append(b, op)
		b = strconv.AppendFloat(b, x, 'f', 2, 64)
		b = append(b, ' ')
		b = strconv.AppendFloat(b, y, 'f', 2, 64)
	}
	for i := range c.x {
		if math.IsNaN(c.y[i]) {
			continue
		}
		x, y := px(c.x[i]), py(c.y[i])
		begins, ends := i == 0 || math.IsNaN(c.y[i-1]), i+1 == len(c.x) || math.IsNaN(c.y[i+1])
		if c.steps && !begins {
			to := byte('L')
			if gaps && c.y[i-1] == 0 {
				to = 'M'
			}
			point(to, x, py(c.y[i-1]))
		}
		if begins {
			point('M', x, y)
		} else {
			point('L', x, y)
		}
		if begins && ends {
			point('L', x+2, y) // a single point would be invisible
		}
	}
	return string(b)
}

// bandOf returns the outline of a curve's band, one part for each uninterrupted section.
func bandOf(c curve, px, py func(float64) float64) string {
	var b strings.Builder
	for from := 0; from < len(c.x); from++ {
		to := from
		for to < len(c.x) && !math.IsNaN(c.y[to]) {
			to++
		}
		for i, op := from, "M"; i < to; i, op = i+1, "L" {
			fmt.Fprintf(&b, "%s%.1f %.1f", op, px(c.x[i]), py(c.hi[i]))
		}
		for i := to - 1; i >= from; i-- {
			fmt.Fprintf(&b, "L%.1f %.1f", px(c.x[i]), py(c.lo[i]))
		}
		if from < to {
			b.WriteByte('Z')
		}
		from = to
	}
	return b.String()
}

// valueAxis is a logarithmic axis of nanoseconds from lo to hi with a small margin.
func valueAxis(title string, lo, hi float64) axis {
	lo, hi = max(lo, 1), max(hi, 2)
	a := axis{lo: lo * math.Pow(lo/hi, 0.04), hi: hi * math.Pow(hi/lo, 0.04), log: true, unit: "ns", title: title}
	if hi/lo < 1.1 {
		a.lo, a.hi = lo*0.95, hi*1.05
	}
	a.ticks = logTicks(a.lo, a.hi, func(v float64) string { return tickNS(v) })
	return a
}

// logTicks labels decades if there are many, and finer steps if there are few.
func logTicks(lo, hi float64, label func(float64) string) []tick {
	var out []tick
	decades := math.Log10(hi / lo)
	labelled := "1"
	switch {
	case decades < 0.35:
		return linearTicks(lo, hi, 6, label)
	case decades < 1.2:
		labelled = "123457"
	case decades < 3.2:
		labelled = "125"
	}
	for e := math.Floor(math.Log10(lo)); e <= math.Ceil(math.Log10(hi)); e++ {
		for m := 1; m <= 9; m++ {
			v := float64(m) * math.Pow(10, e)
			if v < lo || v > hi {
				continue
			}
			t := tick{at: v}
			if strings.Contains(labelled, strconv.Itoa(m)) {
				t.label = label(v)
			} else if decades > 5 {
				continue
			}
			out = append(out, t)
		}
	}
	return out
}

// linearTicks returns about n labelled steps of 1, 2 or 5 times a power of ten.
func linearTicks(lo, hi float64, n int, label func(float64) string) []tick {
	step := math.Pow(10, math.Floor(math.Log10((hi-lo)/float64(n))))
	for _, m := range []float64{1, 2, 5, 10} {
		if (hi-lo)/(step*m) <= float64(n) {
			step *= m
			break
		}
	}
	var out []tick
	for k := math.Ceil(lo/step-1e-9) + 0; k*step <= hi*(1+1e-12); k++ {
		out = append(out, tick{k * step, label(k * step)})
	}
	return out
}

// tickNS formats a round number of nanoseconds.
func tickNS(ns float64) string {
	for _, u := range []struct {
		ns   float64
		name string
	}{{1e9, "s"}, {1e6, "ms"}, {1e3, "µs"}, {1, "ns"}} {
		if ns >= u.ns*0.9999 || u.ns == 1 {
			return strconv.FormatFloat(math.Round(ns/u.ns*1e4)/1e4, 'f', -1, 64) + "\u00a0" + u.name
		}
	}
	return ""
}
