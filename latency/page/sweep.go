package page

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/plain"
	"github.com/rebound-nic/rebound/latency/report"
)

// Link is a link of a page to the page of a report.
type Link struct{ Name, Href string }

type sweepPage struct {
	Title, Answer string
	Alerts        []string
	Plots         []plot
	Columns       []string
	Points        []sweepPoint
	Rows          []statRow // environment
	Names         []legend
}

type sweepPoint struct {
	Link
	Values []string
}

// byRate reports whether a sweep is over rates, and bySize whether it is over frame sizes.
func byRate(all []*report.Report) bool { return different(all, rateOf) && all[0].Traffic.Rate > 0 }
func bySize(all []*report.Report) bool { return different(all, sizeOf) }

func rateOf(r *report.Report) float64 { return r.Traffic.Rate }
func sizeOf(r *report.Report) float64 { return float64(r.Traffic.FrameSize) }

func different(all []*report.Report, of func(*report.Report) float64) bool {
	return slices.ContainsFunc(all, func(r *report.Report) bool { return of(r) != of(all[0]) })
}

// SweepAnswer summarises a sweep in one sentence: p50 of the lowest and the highest point, how many points lost probes,
// and how the results depend on the rate or the size.
func SweepAnswer(all []*report.Report) string {
	least, most, lossy, perhaps := all[0], all[0], 0, 0
	for _, r := range all {
		if p50 := r.Main().Summary.P50; p50 < least.Main().Summary.P50 {
			least = r
		} else if p50 > most.Main().Summary.P50 {
			most = r
		}
		if r.Counts.LostLeast() > 0 {
			lossy++
		} else if r.Counts.Lost > 0 {
			perhaps++
		}
	}
	text := fmt.Sprintf("p50 from %s (%s) to %s (%s); %d of %s lost probes", latency.FormatNS(least.Quantile(0.5)), plain.Text(least.Label),
		latency.FormatNS(most.Quantile(0.5)), plain.Text(most.Label), lossy, plain.Count(len(all), "point"))
	if perhaps > 0 {
		text += fmt.Sprintf(", %d more may have", perhaps)
	}
	switch rates, sizes := byRate(all), bySize(all); {
	case rates && !sizes:
		if rate := lossless(all); rate > 0 {
			text += "; no loss up to " + FormatRate(rate) + "/s"
		}
		if rate, over := knee(all); over {
			text += "; p99 more than doubles above " + FormatRate(rate) + "/s"
		}
	case sizes && !rates:
		text += "; p50 grows by " + perByte(all)
	}
	return text
}

// sorted returns the points in ascending order of the varied parameter.
func sorted(all []*report.Report, of func(*report.Report) float64) []*report.Report {
	return slices.SortedStableFunc(slices.Values(all), func(a, b *report.Report) int { return cmp.Compare(of(a), of(b)) })
}

// lossless returns the rate up to which no point lost a probe, 0 if the lowest rate lost one. A point that did not
// reach its rate does not count.
func lossless(all []*report.Report) (rate float64) {
	for _, r := range sorted(all, rateOf) {
		if r.Counts.Received+r.Counts.Late < r.Counts.Sent || len(r.Warnings) > 0 {
			break
		}
		rate = r.Traffic.Rate
	}
	return rate
}

// knee returns the highest rate up to which p99 is at most twice that of the lowest rate, and whether there is a higher
// one.
func knee(all []*report.Report) (rate float64, over bool) {
	points := sorted(all, rateOf)
	for _, r := range points {
		if r.Quantile(0.99) > 2*points[0].Quantile(0.99) {
			return rate, true
		}
		rate = r.Traffic.Rate
	}
	return rate, false
}

// perByte is the increase of p50 per byte of frame size: the median of the slopes between all pairs of sizes (Theil-Sen
// estimator).
func perByte(all []*report.Report) string {
	var slopes []float64
	for i, a := range all {
		for _, b := range all[i+1:] {
			if bytes := sizeOf(b) - sizeOf(a); bytes != 0 {
				slopes = append(slopes, (b.Quantile(0.5)-a.Quantile(0.5))/bytes)
			}
		}
	}
	slices.Sort(slopes)
	n := len(slopes)
	return strconv.FormatFloat((slopes[(n-1)/2]+slopes[n/2])/2, 'g', 3, 64) + " ns per byte"
}

// Sweep writes the points of a sweep, given as reports with samples, as one page. links lead to the pages of the
// points.
func Sweep(w io.Writer, all []*report.Report, links []Link) error {
	p := sweepPage{Title: plain.Count(len(all), "point") + " of a sweep", Answer: SweepAnswer(all)}
	over := sizeOf
	if byRate(all) {
		over = rateOf
	}
	p.Columns = []string{"rate/s", "frame bytes", "p50", "p99", "p99.9", "max", "sent", "lost"}
	var places []*countRow
	for _, row := range countRows {
		if row.unanswered && slices.ContainsFunc(all, func(r *report.Report) bool { return row.number(&r.Counts) != 0 }) {
			places, p.Columns = append(places, row), append(p.Columns, row.name)
		}
	}
	for i, r := range all {
		for _, text := range warnings(r) {
			p.Alerts = append(p.Alerts, upperFirst(r.Name()+": "+text))
		}
		rate := "closed loop"
		if r.Traffic.Rate > 0 {
			rate = FormatRate(r.Traffic.Rate)
		}
		values := []string{rate, strconv.Itoa(r.Traffic.FrameSize), nbsp(r.Quantile(0.5)), nbsp(r.Quantile(0.99)), nbsp(r.Quantile(0.999)),
			nbsp(float64(r.Main().Summary.Max)), grouped(r.Counts.Sent), report.Range(r.Counts.LostLeast(), r.Counts.Lost, grouped)}
		for _, row := range places {
			values = append(values, row.text(&r.Counts, grouped))
		}
		p.Points = append(p.Points, sweepPoint{links[i], values})
	}
	p.Plots = sweepPlots(all, over)
	p.Names = []legend{{Name: "all points"}}
	for _, f := range facts(all[0]) {
		if !slices.ContainsFunc(all, func(r *report.Report) bool { return !slices.Contains(facts(r), f) }) {
			p.Rows = append(p.Rows, statRow{f.Name, []string{f.Value}})
		}
	}
	return page.ExecuteTemplate(w, "sweep", p)
}

// sweepPlots are the curves of a sweep: with one group of points, three percentiles in one figure; with several groups,
// a figure for each percentile. Points are grouped by the parameters other than over.
func sweepPlots(all []*report.Report, over func(*report.Report) float64) (plots []plot) {
	rates := byRate(all)
	other, name, title := rateOf, func(v float64) string { return FormatRate(v) + "/s" }, "Latency by frame size"
	if rates {
		other, name, title = sizeOf, func(v float64) string { return FormatRate(v) + " bytes" }, "Latency by rate"
	}
	groups := map[float64][]*report.Report{}
	var order []float64
	for _, r := range sorted(all, over) {
		if groups[other(r)] == nil {
			order = append(order, other(r))
		}
		groups[other(r)] = append(groups[other(r)], r)
	}
	slices.Sort(order)
	unit := string(all[0].Metric)
	if all[0].Device.Sim() {
		unit += " in the model, not of a card"
	}
	line := func(points []*report.Report, st compare.Stat, name string, k int) curve {
		c := curve{name: name, colour: k % palette}
		if k >= palette {
			c.class = "dashed"
		}
		for _, r := range points {
			v := st.OfReport(r)
			c.x, c.y = append(c.x, over(r)), append(c.y, v)
			c.marks = append(c.marks, mark{over(r), v, fmt.Sprintf("%s: %s %s", r.Name(), st, latency.FormatNS(v))})
		}
		return c
	}
	var stats []compare.Stat
	for _, s := range []string{"p50", "p99", "p99.9"} {
		if st, err := compare.ParseStat(s); err == nil {
			stats = append(stats, st)
		}
	}
	caption := "Each dot is a point of the sweep."
	if rates && len(order) == 1 {
		caption += " The dashed line is the highest rate up to which no probe was lost."
	}
	if len(order) == 1 {
		var cs []curve
		for k, st := range stats {
			cs = append(cs, line(groups[order[0]], st, st.String(), k))
		}
		return append(plots, sweepFigure(title, caption, unit, cs, rates, all))
	}
	for _, st := range stats {
		var cs []curve
		for k, g := range order {
			cs = append(cs, line(groups[g], st, name(g), k))
		}
		plots = append(plots, sweepFigure(title+", "+st.String(), caption, unit, cs, rates, nil))
	}
	return plots
}

// sweepFigure plots curves over a rate or a size. If there is one group of points, it marks the highest rate without
// loss.
func sweepFigure(title, caption, unit string, cs []curve, rates bool, points []*report.Report) plot {
	var legends []legend
	ylo, yhi, xlo, xhi := math.Inf(1), 0.0, math.Inf(1), 0.0
	for _, c := range cs {
		legends = append(legends, legend{c.colour, c.class, c.name})
		ylo, yhi, xlo, xhi = min(ylo, slices.Min(c.y)), max(yhi, slices.Max(c.y)), min(xlo, slices.Min(c.x)), max(xhi, slices.Max(c.x))
	}
	f := figure{curves: cs, y: valueAxis(unit, ylo, yhi)}
	if rates {
		f.x = axis{lo: xlo / 1.1, hi: xhi * 1.1, log: true, unit: "rate", title: "probes per second"}
		f.x.ticks = logTicks(f.x.lo, f.x.hi, tickCount)
		if rate := lossless(points); rate > 0 {
			f.rules = []mark{{x: rate, text: "no loss up to " + FormatRate(rate) + "/s"}}
		}
	} else {
		room := max((xhi-xlo)*0.03, 1)
		f.x = axis{lo: xlo - room, hi: xhi + room, unit: "bytes", title: "bytes of the frame, without FCS"}
		f.x.ticks = linearTicks(f.x.lo, f.x.hi, 8, tickCount)
	}
	var alts []string
	for _, c := range cs {
		alts = append(alts, fmt.Sprintf("%s from %s to %s", c.name, latency.FormatNS(c.y[0]), latency.FormatNS(c.y[len(c.y)-1])))
	}
	f.alt = title + ": " + strings.Join(alts, "; ") + "."
	return plot{title, caption, legends, f.svg()}
}
