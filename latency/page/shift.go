package page

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/latency/sanitize"
)

// shiftFunction plots how far B's runs are above A's at percentiles across the whole distribution, with the band of
// their intervals. Shifts are in per cent of A, so that the body and the tail fit into one figure.
func shiftFunction(p *compare.Pair, b legend) []plot {
	c := curve{name: "shift", colour: b.Colour, class: b.Class, lo: []float64{}}
	lo, hi := 0.0, 0.0
	var widths []float64
	var apart []string
	end := 0.0
	for _, r := range p.ShiftFunction() {
		q, _ := r.Stat.Quantile()
		share := func(ns float64) float64 { return 100 * ns / r.Base }
		shift, at := r.Percent(), nines(q)
		if !r.Tested() || math.IsNaN(shift) {
			c.x, c.y, c.lo, c.hi = append(c.x, at), append(c.y, math.NaN()), append(c.lo, 0), append(c.hi, 0)
			continue
		}
		c.x, c.y, c.lo, c.hi = append(c.x, at), append(c.y, shift), append(c.lo, share(r.Lo)), append(c.hi, share(r.Hi))
		c.marks = append(c.marks, mark{at, shift, fmt.Sprintf("%s: %s (%s), interval %s: %s", r.Stat,
			latency.FormatSigned(r.Shift), latency.FormatChange(shift/100),
			formatInterval(r, "%s to %s"), r.Verdict.String())})
		lo, hi, end = min(lo, shift), max(hi, shift), at
		if width := share(r.Hi-r.Lo) / 2; !math.IsInf(width, 0) {
			widths = append(widths, width)
		}
		if r.Verdict > compare.Noise {
			apart = append(apart, r.Stat.String())
		}
	}
	if len(c.marks) == 0 {
		return nil
	}
	// The band of the tail can be many times as wide as the band of the body, which would then look like a line.
	room := max(hi-lo, 1) * 0.1
	if slices.Sort(widths); len(widths) > 0 {
		room = max(room, 1.5*widths[len(widths)/2])
	}
	f := figure{curves: []curve{c}, x: ninesAxis(end + 0.05),
		y: axis{lo: lo - room, hi: hi + room, unit: "percent", title: "B above A, %"}}
	f.y.ticks = linearTicks(f.y.lo, f.y.hi, 7, percentTick)
	f.level = []float64{0}
	f.alt = fmt.Sprintf("Shift function from %s to %s of A. ", latency.FormatChange(lo/100),
		latency.FormatChange(hi/100))
	if apart == nil {
		f.alt += "The band holds zero at all percentiles."
	} else {
		f.alt += "The band excludes zero at " + strings.Join(apart, ", ") + "."
	}
	return []plot{{"Difference at each percentile",
		"How far B's runs lie above A's, in per cent of A, at each percentile (shift function), with the band of the intervals. If nothing changed, the band excludes zero " +
			"anywhere in at most 5 % of comparisons. It is interrupted where a percentile has too few samples, and leaves the figure where little is known.",
		nil, f.svg()}}
}

func percentTick(v float64) string {
	if math.Abs(v) < 1e-9 {
		return "0 %"
	}
	return fmt.Sprintf("%+.4g %%", v)
}

// timesFigure plots p50 of all reports over time, and also p99 if there are few reports. The time is that of the
// session if they alternate, else relative to each report's start.
func timesFigure(all []*report.Report, names []legend, unit string) []plot {
	session := all[0].Session
	for _, r := range all {
		if r.Session != session {
			session = ""
		}
	}
	const most = 3 // greatest number of reports whose p99 is plotted, too
	f := figure{x: axis{unit: "s", title: "seconds since the start of each report"}}
	if session != "" {
		f.x.title = "seconds since the start of the session"
	}
	lo, hi := math.Inf(1), 0.0
	var legends []legend
	for k, r := range all {
		if !r.Measured() || !r.Foreign.Dated() || r.Foreign.Partial() {
			continue
		}
		stretches := timeline(r, r.Main(), maxColumns/2)
		if len(stretches) < 2 {
			continue
		}
		offset := 0.0
		if session != "" {
			offset = r.Start.Sub(all[0].Start).Seconds()
		}
		lines := []curve{{name: r.Name() + " p50", colour: names[k].Colour, class: names[k].Class},
			{name: r.Name() + " p99", colour: names[k].Colour, class: "thin"}}
		if len(all) > most {
			lines = lines[:1]
		}
		for i, st := range stretches {
			for n, v := range []int64{st.Quantile(0.5), st.Quantile(0.99)}[:len(lines)] {
				c := &lines[n]
				// Between two slices of a session, the other variants are measured.
				if i > 0 && silence(stretches[i-1], st) && (session == "" || st.run == stretches[i-1].run) {
					c.x, c.y = append(c.x, offset+st.start), append(c.y, math.NaN())
				}
				c.x, c.y = append(c.x, offset+(st.start+st.end)/2), append(c.y, float64(v))
				lo, hi = min(lo, float64(v)), max(hi, float64(v))
			}
			f.x.lo, f.x.hi = min(f.x.lo, offset+st.start), max(f.x.hi, offset+st.end)
		}
		for _, o := range outages(r, r.Main()) {
			f.outages = append(f.outages, shade{offset + o[0], offset + o[1],
				r.Name() + ": " + noReplies(offset+o[0], offset+o[1])})
			f.x.hi = max(f.x.hi, offset+o[1])
		}
		f.curves = append(f.curves, lines...)
		legends = append(legends, names[k])
	}
	if len(f.curves) == 0 {
		return nil
	}
	f.y = valueAxis(unit, lo, hi)
	f.x.ticks = linearTicks(f.x.lo, f.x.hi, 10, decimal)
	caption := "p50 of each report"
	if len(all) <= most {
		caption += ", and p99 as a thin line"
	}
	caption += "."
	if len(f.outages) > 0 {
		caption += " In the shaded parts one of them had no replies."
	}
	f.alt = fmt.Sprintf("Latency of %s over time, between %s and %s.", sanitize.Count(len(legends), "report"),
		latency.FormatNS(lo), latency.FormatNS(hi))
	return []plot{{"Over time", caption, legends, f.svg()}}
}
