package page

import (
	"cmp"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/latency/sanitize"
)

// Link is a link of a page to the page of a report.
type Link struct{ Name, Href string }

type sweepPage struct {
	Title, Answer string
	Alerts, More  []string
	Plots         []plot
	Columns       []string
	Points        []sweepPoint
	CSV           template.URL
	Rows          []Row // environment
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
	own := limited(answered(all))
	measured := slices.DeleteFunc(answered(all), hostLimited)
	if len(own) > 0 && len(measured) == 0 {
		what := sanitize.All(len(own), "point")
		if len(own) < len(all) {
			what += " with replies"
		}
		return "this host limited " + what +
			", so the result says nothing about the target: measure at lower rates, or on an idle host (-core, -isolate)"
	}
	var least, most *report.Report
	lossy, perhaps := 0, 0
	for _, r := range all {
		if r.Measured() && !hostLimited(r) {
			if p50 := r.Main().Summary.P50; least == nil || p50 < least.Main().Summary.P50 {
				least = r
			}
			if most == nil || r.Main().Summary.P50 > most.Main().Summary.P50 {
				most = r
			}
		}
		if r.Counts.LostLeast() > 0 {
			lossy++
		} else if r.Counts.Lost > 0 {
			perhaps++
		}
	}
	if least == nil {
		return "no reply at any point"
	}
	before := ""
	if len(own) > 0 {
		left := "which is left out"
		if len(own) > 1 {
			left = "which are left out"
		}
		before = fmt.Sprintf("this host limited %s of %s (%s), "+left+" here; ", latency.FormatCount(len(own)),
			sanitize.Count(len(all), "point"), sanitize.Text(strings.Join(own, ", ")))
	}
	text := before + fmt.Sprintf("p50 from %s (%s) to %s (%s)", Quantile(least, 0.5), sanitize.Text(least.Label),
		Quantile(most, 0.5), sanitize.Text(most.Label))
	switch {
	case len(measured) == 1:
		text = before + fmt.Sprintf("p50 %s (%s)", Quantile(least, 0.5), sanitize.Text(least.Label))
	case least == most:
		text = before + fmt.Sprintf("p50 %s at %s", Quantile(least, 0.5), sanitize.All(len(measured), "point"))
	}
	text += fmt.Sprintf("; %d of %s lost probes", lossy, sanitize.Count(len(all), "point"))
	if perhaps > 0 {
		text += fmt.Sprintf(", %d more may have", perhaps)
	}
	switch rates, sizes := byRate(all), bySize(all); {
	case rates && !sizes:
		if rate := lossless(all); rate > 0 {
			text += "; no loss up to " + latency.FormatRate(rate) + "/s"
		}
		theirs := slices.DeleteFunc(slices.Clone(measured), func(r *report.Report) bool { return r.OwnAt(0.99) })
		if rate, over := knee(theirs); over {
			text += "; p99 more than doubles above " + latency.FormatRate(rate) + "/s"
		}
		if n := len(measured) - len(theirs); n > 0 {
			text += "; this host's own lag accounts for p99 of " + sanitize.Count(n, "point")
		}
	case sizes && !rates && bySize(measured):
		text += "; p50 grows by " + perByte(measured)
	}
	return text
}

// answered returns the points with samples.
func answered(all []*report.Report) []*report.Report {
	return slices.DeleteFunc(slices.Clone(all), func(r *report.Report) bool { return !r.Measured() })
}

// sorted returns the points in ascending order of the varied parameter.
func sorted(all []*report.Report, of func(*report.Report) float64) []*report.Report {
	return slices.SortedStableFunc(slices.Values(all), func(a,
		b *report.Report) int {
		return cmp.Compare(of(a), of(b))
	})
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

// Sweep writes the points of a sweep as one page. links lead to the pages of the
// points.
func Sweep(w io.Writer, all []*report.Report, links []Link) error {
	p := sweepPage{Title: sanitize.Count(len(all), "point") + " of a sweep", Answer: SweepAnswer(all)}
	over := sizeOf
	if byRate(all) {
		over = rateOf
	}
	t := Table{Kind: SweepTable}
	for i, r := range all {
		for _, text := range warnings(r) {
			p.Alerts = append(p.Alerts, r.Name()+": "+text)
		}
		t.Points = append(t.Points, PointOf(r, links[i]))
	}
	p.Columns, p.Points = t.htmlRows()
	p.CSV = t.csvLink()
	if points := answered(all); len(points) > 0 {
		p.Plots = sweepPlots(points, all, over)
	}
	p.Names = []legend{{Name: "all points"}}
	for _, f := range facts(all[0]) {
		if !slices.ContainsFunc(all, func(r *report.Report) bool { return !slices.Contains(facts(r), f) }) {
			p.Rows = append(p.Rows, Row{f.Name, []string{f.Value}})
		}
	}
	p.Alerts, p.More = above(p.Alerts)
	return page.ExecuteTemplate(w, "sweep", p)
}

// sweepPlots are the curves of a sweep: with one group of points, three percentiles in one figure; with several groups,
// a figure for each percentile. points has those without a reply, too. Points are Grouped by the parameters other than
// over.
func sweepPlots(all, points []*report.Report, over func(*report.Report) float64) (plots []plot) {
	rates := byRate(all)
	other, name, title := rateOf, func(v float64) string { return latency.FormatRate(v) + "/s" },
		"Latency by frame size"
	if rates {
		other, name, title = sizeOf, func(v float64) string { return latency.FormatRate(v) + " bytes" },
			"Latency by rate"
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
	stats := compare.Stats(latency.AnswerText)
	caption := "Each dot is a point of the sweep."
	if rates && len(order) == 1 && lossless(points) > 0 {
		caption += " The dashed line is the highest rate up to which no probe was lost."
	}
	if len(order) == 1 {
		var cs []curve
		for k, st := range stats {
			cs = append(cs, line(groups[order[0]], st, st.String(), k))
		}
		return append(plots, sweepFigure(title, caption, unit, cs, rates, points))
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
		ylo, yhi, xlo, xhi = min(ylo, slices.Min(c.y)), max(yhi, slices.Max(c.y)), min(xlo, slices.Min(c.x)),
			max(xhi, slices.Max(c.x))
	}
	f := figure{curves: cs, y: valueAxis(unit, ylo, yhi)}
	if rates {
		f.x = axis{lo: xlo / 1.1, hi: xhi * 1.1, log: true, unit: "rate", title: "probes per second"}
		f.x.ticks = logTicks(f.x.lo, f.x.hi, tickCount)
		if rate := lossless(points); rate > 0 {
			f.rules = []mark{{x: rate, text: "no loss up to " + latency.FormatRate(rate) + "/s"}}
		}
	} else {
		room := max((xhi-xlo)*0.03, 1)
		f.x = axis{lo: xlo - room, hi: xhi + room, unit: "bytes", title: "bytes of the frame, without FCS"}
		f.x.ticks = linearTicks(f.x.lo, f.x.hi, 8, tickCount)
	}
	var alts []string
	for _, c := range cs {
		alts = append(alts, fmt.Sprintf("%s from %s to %s", c.name, latency.FormatNS(c.y[0]),
			latency.FormatNS(c.y[len(c.y)-1])))
	}
	f.alt = title + ": " + strings.Join(alts, "; ") + "."
	return plot{title, caption, legends, f.svg()}
}
