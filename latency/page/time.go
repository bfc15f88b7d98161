package page

import (
	"cmp"
	"fmt"
	"html/template"
	"math"
	"slices"
	"sort"
	"strconv"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/attribution"
	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/latency/sanitize"
)

// maxColumns bounds the points of a figure over time, and maxHeat the columns of a heat map, to keep the page small.
const maxColumns, maxHeat, heatRows = 400, 140, 40

// stretch is a part of a recording that figures over time show as one point. It never extends beyond the end of a run.
type stretch struct {
	start, end float64 // s
	run        int
	*latency.Histogram
}

// timeline cuts a series into at most about the given number of stretches. A remainder at the end of a run with less
// than half of the samples of the previous stretch is merged into it, because the percentiles of a few samples are
// meaningless.
func timeline(r *report.Report, s *latency.Series, most int) []stretch {
	each := (len(s.Intervals) + most - 1) / most
	var out []stretch
	var hs []*latency.Histogram
	flush := func() {
		if len(hs) == 0 {
			return
		}
		last := &out[len(out)-1]
		last.Histogram = latency.Merge(hs...)
		if k := len(out) - 2; k >= 0 && !silence(out[k], *last) && out[k].run == last.run &&
			2*last.Count < out[k].Count {
			out[k].Histogram, out[k].end = latency.Merge(out[k].Histogram, last.Histogram), last.end
			out = out[:k+1]
		}
		hs = nil
	}
	for _, iv := range s.Intervals {
		run := runAt(r, iv)
		if iv.Count == 0 {
			flush()
			continue
		}
		if len(hs) == each || len(hs) > 0 && (out[len(out)-1].run != run ||
			float64(iv.Start)/1e9 > out[len(out)-1].end) {
			flush()
		}
		if len(hs) == 0 {
			out = append(out, stretch{start: float64(iv.Start) / 1e9, run: run})
		}
		out[len(out)-1].end = float64(iv.End) / 1e9
		hs = append(hs, iv.Histogram)
	}
	flush()
	return out
}

// silence reports whether there were no replies for a while between two consecutive stretches.
func silence(a, b stretch) bool { return a.run != b.run || b.start > a.end }

// outages returns the parts of the runs, in s, in which no reply came although at least five probes were sent at the
// average rate. They are whole intervals of the recording. A responder's own report has none: it sends no probes.
func outages(r *report.Report, s *latency.Series) (out [][2]float64) {
	var length int64
	for _, run := range r.Runs {
		length += run.End - run.Start
	}
	if answers(r) || r.Foreign != nil && !r.Foreign.Timed { // without times, intervals only have an order
		return nil
	}
	add := func(from, to int64) {
		if expected := float64(r.Counts.Sent) * float64(to-from) / float64(max(length, 1)); from < to && expected >= 5 {
			out = append(out, [2]float64{float64(from) / 1e9, float64(to) / 1e9})
		}
	}
	next := 0
	for _, run := range r.Runs {
		at, typical := run.Start, int64(0)
		for ; next < len(s.Intervals) && s.Intervals[next].Start/2+s.Intervals[next].End/2 < run.End; next++ {
			iv := s.Intervals[next]
			if iv.Count == 0 {
				continue
			}
			typical = max(typical, iv.End-iv.Start)
			add(at, iv.Start)
			at = max(at, iv.End)
		}
		if typical == 0 || run.End-at >= typical { // the last interval may end slightly before its run
			add(at, run.End)
		}
	}
	return out
}

// stoppedAt returns when the last reply came, in s, if the target stopped answering before the end.
func stoppedAt(r *report.Report) (at float64, ok bool) {
	all := outages(r, r.Main())
	if len(all) == 0 {
		return 0, false
	}
	last := all[len(all)-1]
	return last[0], last[1] == float64(r.Runs[len(r.Runs)-1].End)/1e9
}

// noReplies describes an outage by its start and end, in s since the start of the figure or report.
func noReplies(from, to float64) string {
	length := latency.FormatNS(1e9 * (to - from))
	if from <= 0 {
		return "no replies for the first " + length
	}
	return fmt.Sprintf("no replies for %s, %s after the start", length, latency.FormatNS(1e9*from))
}

// outageAlerts describes the longest outages, in chronological order.
func outageAlerts(all [][2]float64) (out []string) {
	const most = 3
	longest := slices.Clone(all)
	slices.SortStableFunc(longest, func(a, b [2]float64) int { return -cmp.Compare(a[1]-a[0], b[1]-b[0]) })
	longest = longest[:min(len(longest), most)]
	slices.SortFunc(longest, func(a, b [2]float64) int { return cmp.Compare(a[0], b[0]) })
	for _, o := range longest {
		out = append(out, upperFirst(noReplies(o[0], o[1]))+".")
	}
	if n := len(all) - len(longest); n > 0 {
		out = append(out, sanitize.Count(n, "shorter outage")+".")
	}
	return out
}

// runAt returns the index of the run that contains an interval's middle, or of the run before it.
func runAt(r *report.Report, iv latency.Interval) int {
	after := sort.Search(len(r.Runs), func(i int) bool { return r.Runs[i].Start > iv.Start/2+iv.End/2 })
	return max(after-1, 0)
}

// secondsAxis spans all runs, including parts without replies, with a mark at the start of each run after the first.
func secondsAxis(r *report.Report, all []stretch) axis {
	a := axis{lo: all[0].start, hi: all[len(all)-1].end, unit: "s", title: "seconds since the start"}
	if n := len(r.Runs); n > 0 {
		a.lo, a.hi = min(a.lo, float64(r.Runs[0].Start)/1e9), max(a.hi, float64(r.Runs[n-1].End)/1e9)
	}
	a.ticks = linearTicks(a.lo, a.hi, 10, decimal)
	if len(r.Runs) <= 40 {
		for _, run := range r.Runs[min(1, len(r.Runs)):] {
			a.ticks = append(a.ticks, tick{at: float64(run.Start) / 1e9})
		}
	}
	return a
}

// decimal formats a number with at most six digits after the point.
func decimal(v float64) string { return strconv.FormatFloat(math.Round(v*1e6)/1e6, 'f', -1, 64) }

// timeFigure plots p50, p99 and the maximum of each stretch. Lines are interrupted between runs and in outages, which
// are shaded.
func timeFigure(r *report.Report, s *latency.Series, unit string) template.HTML {
	all := timeline(r, s, maxColumns)
	if len(all) < 2 {
		return ""
	}
	p50, p99, top := curve{name: "p50", colour: 0}, curve{name: "p99", colour: 1},
		curve{name: "max", colour: 2, class: "thin"}
	lo, hi := math.Inf(1), 0.0
	for i, st := range all {
		for _, x := range []struct {
			c *curve
			v int64
		}{{&p50, st.Quantile(0.5)}, {&p99, st.Quantile(0.99)}, {&top, st.Max}} {
			if i > 0 && silence(all[i-1], st) {
				x.c.x, x.c.y = append(x.c.x, st.start), append(x.c.y, math.NaN())
			}
			x.c.x, x.c.y = append(x.c.x, (st.start+st.end)/2), append(x.c.y, float64(x.v))
			lo, hi = min(lo, float64(x.v)), max(hi, float64(x.v))
		}
		if len(all) <= 80 {
			at := (st.start + st.end) / 2
			top.marks = append(top.marks, mark{at, float64(st.Max),
				fmt.Sprintf("max %s at %s", latency.FormatNS(float64(st.Max)), latency.FormatNS(1e9*at))})
		}
	}
	f := figure{y: valueAxis(unit, lo, hi), x: secondsAxis(r, all), curves: []curve{top, p99, p50}}
	f.alt = fmt.Sprintf("Latency over time: median, p99 and maximum of %d stretches, between %s and %s.", len(all),
		latency.FormatNS(lo), latency.FormatNS(hi))
	for _, o := range outages(r, s) {
		f.outages = append(f.outages, shade{o[0], o[1], noReplies(o[0], o[1])})
		f.alt += " " + upperFirst(noReplies(o[0], o[1])) + "."
	}
	strips, _ := causeStrips(r)
	for _, s := range strips {
		f.strips = append(f.strips, s.strip)
		f.alt += " Row " + s.text + "."
	}
	return f.svg()
}

// shownCauses is how many kinds of causes are drawn below the timeline.
const shownCauses = 5

// causeStrip is a kind of cause below the timeline, and what the legend and the text alternative say of it.
type causeStrip struct {
	strip
	text string
}

// causeStrips are the kinds of causes that had a polling core for the longest, with the marks of when. more is how many
// others there are.
func causeStrips(r *report.Report) (out []causeStrip, more int) {
	if r.Attribution == nil {
		return nil, 0
	}
	all := slices.Clone(r.Attribution.Timeline)
	slices.SortStableFunc(all, func(a, b attribution.Track) int { return cmp.Compare(b.Took, a.Took) })
	began := r.Start.UnixMicro()
	for i, t := range all[:min(len(all), shownCauses)] {
		s := causeStrip{strip{name: strconv.Itoa(i + 1), colour: 3}, fmt.Sprintf("%d: %s, %s", i+1, t.Side, t.Text)}
		if t.Side == attribution.Responder.String() {
			s.colour = 4
		}
		if t.Name != "" {
			s.text += ": " + t.Name
		}
		s.text += ", " + latency.FormatNS(float64(t.Took))
		for _, m := range t.Spans {
			from := float64(m.At-began) / 1e6
			note := fmt.Sprintf("%s: %s from %.3f s", s.text, latency.FormatNS(float64(m.Took)), from)
			s.marks = append(s.marks, shade{from, from + float64(m.Length)/1e6, note})
		}
		out = append(out, s)
	}
	return out, len(all) - len(out)
}

// heatFigure plots how many samples of each stretch had which duration. It shows steps and parallel levels that a
// median hides.
func heatFigure(r *report.Report, s *latency.Series, unit string) template.HTML {
	all := timeline(r, s, maxHeat)
	if len(all) < 4 {
		return ""
	}
	lo, hi := math.Inf(1), 1.0
	for _, st := range all {
		lo, hi = min(lo, max(float64(st.Min), 1)), max(hi, float64(st.Max))
	}
	f := figure{y: valueAxis(unit, lo, hi), x: secondsAxis(r, all)}
	for _, o := range outages(r, s) {
		f.outages = append(f.outages, shade{o[0], o[1], noReplies(o[0], o[1])})
	}
	row := func(v float64) int { return int(f.y.share(v) * (heatRows - 1e-9)) }
	edge := func(k int) float64 { return f.y.lo * math.Pow(f.y.hi/f.y.lo, float64(k)/heatRows) }
	f.table = "from s\tto s"
	for k := range heatRows {
		f.table += "\t" + f.y.number(math.Round(edge(k))) + " ns"
	}
	f.table += "\n"
	for _, st := range all {
		var counts [heatRows]int64
		for b := range st.Buckets {
			counts[row(min(float64(b.Low+b.High)/2, float64(st.Max)))] += b.Count
		}
		f.table += f.x.number(st.start) + "\t" + f.x.number(st.end)
		for k, n := range counts {
			f.table += "\t"
			if n > 0 {
				f.table += strconv.FormatInt(n, 10)
				// One level for each decade below the total of the stretch, so that one sample of a hundred thousand is
				// visible.
				level := max(1, heatLevels-int(math.Log10(float64(st.Count)/float64(n))))
				f.cells = append(f.cells, cell{st.start, st.end, edge(k), edge(k + 1), level})
			}
		}
		f.table += "\n"
	}
	f.alt = fmt.Sprintf("Heat map: how often each duration between %s and %s was seen over time.", latency.FormatNS(lo),
		latency.FormatNS(hi))
	return f.svg()
}

// side is a report as shown in a strip.
type side struct {
	legend
	r *report.Report
}

// stripFigure plots a statistic of each run as a dot, with the runs of all sides in order.
func stripFigure(st compare.Stat, sides []side, unit string) template.HTML {
	lo, hi, most := math.Inf(1), 0.0, 0
	var f figure
	for k, s := range sides {
		c := curve{name: s.Name, colour: s.Colour, class: "dots"}
		for i, h := range s.r.ByRun() {
			if h == nil {
				continue
			}
			v, at := st.Of(h), float64(i+1)
			if len(sides) > 1 {
				at += 0.24 * (float64(k)/float64(len(sides)-1) - 0.5)
			}
			c.x, c.y = append(c.x, at), append(c.y, v)
			c.marks = append(c.marks, mark{at, v, fmt.Sprintf("%s, run %d: %s %s", s.Name, i+1, st,
				latency.FormatNS(v))})
			lo, hi, most = min(lo, v), max(hi, v), max(most, i+1)
		}
		f.curves = append(f.curves, c)
	}
	if most < 2 {
		return ""
	}
	f.y = valueAxis(st.String()+", "+unit, lo, hi)
	f.x = axis{lo: 0.5, hi: float64(most) + 0.5, unit: "run", title: "run"}
	f.x.ticks = linearTicks(1, float64(most), 12, func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) })
	for i := len(f.x.ticks) - 1; i >= 0; i-- {
		if f.x.ticks[i].at != math.Trunc(f.x.ticks[i].at) {
			f.x.ticks = append(f.x.ticks[:i], f.x.ticks[i+1:]...)
		}
	}
	f.alt = fmt.Sprintf("%s of each run, between %s and %s.", st, latency.FormatNS(lo), latency.FormatNS(hi))
	return f.svg()
}

// shiftFigure plots the elementary differences whose median is a row's shift, with the interval as a grey background.
func shiftFigure(r compare.Row) template.HTML {
	if !r.Tested() || len(r.Diffs) == 0 {
		return ""
	}
	const bins = 40
	lo, hi := min(r.Diffs[0], 0), max(r.Diffs[len(r.Diffs)-1], 0)
	bounded := !math.IsInf(r.Lo, 0) && !math.IsInf(r.Hi, 0)
	if bounded {
		lo, hi = min(lo, r.Lo), max(hi, r.Hi)
	}
	if lo == hi {
		lo, hi = lo-1, hi+1
	}
	room := (hi - lo) * 0.03
	lo, hi = lo-room, hi+room
	counts := make([]float64, bins)
	for _, d := range r.Diffs {
		counts[min(int((d-lo)/(hi-lo)*bins), bins-1)]++
	}
	c := curve{name: "", area: true, steps: true}
	top := 1.0
	for i, n := range counts {
		c.x, c.y = append(c.x, lo+float64(i)*(hi-lo)/bins), append(c.y, n)
		top = max(top, n)
	}
	c.x, c.y = append(c.x, hi), append(c.y, 0)
	f := figure{curves: []curve{c}, x: axis{lo: lo, hi: hi, unit: "shift", title: "shift of " + r.Stat.String()},
		y: axis{hi: top * 1.1, unit: "pairs", title: "differences"}}
	f.x.ticks = linearTicks(lo, hi, 6, latency.FormatSigned)
	f.y.ticks = linearTicks(0, f.y.hi, 5, tickCount)
	if bounded {
		f.shades = []shade{{r.Lo, r.Hi, "interval: " + formatInterval(r, "%s to %s")}}
	}
	f.rules = []mark{{x: 0, text: "no difference"}}
	f.alt = fmt.Sprintf("Histogram of %s of %s: the median, which is the shift, is %s.",
		sanitize.Count(len(r.Diffs), "difference"), r.Stat, latency.FormatSigned(r.Shift))
	return f.svg()
}
