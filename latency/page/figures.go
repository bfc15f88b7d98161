package page

import (
	"fmt"
	"html/template"
	"math"
	"strings"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/compare"
)

// drawn is a distribution with its colour and name on a page.
type drawn struct {
	colour int
	class  string
	name   string
	h      *latency.Histogram
}

func span(ds []drawn) (lo, hi float64, most int64) {
	lo = math.Inf(1)
	for _, d := range ds {
		if d.h.Count > 0 {
			lo, hi, most = min(lo, float64(d.h.Min)), max(hi, float64(d.h.Max)), max(most, d.h.Count)
		}
	}
	return lo, hi, most
}

// percentileFigure plots value over percentile, with the percentile scaled by the logarithm of 1/(1-q), so that each
// nine takes the same width and the tail is visible.
func percentileFigure(ds []drawn, unit string) template.HTML {
	lo, hi, most := span(ds)
	if most == 0 {
		return ""
	}
	end := max(math.Log10(float64(most)), 1)
	f := figure{y: valueAxis(unit, lo, hi), x: ninesAxis(end)}
	f.shades = []shade{{math.Log10(float64(most) / compare.MinTail), end,
		fmt.Sprintf("fewer than %d samples lie above a percentile here", compare.MinTail)}}
	var alts []string
	for _, d := range ds {
		if d.h.Count == 0 {
			continue
		}
		c := curve{name: d.name, colour: d.colour, class: d.class}
		last := math.Log10(float64(d.h.Count))
		for p := range d.h.Percentiles(24) {
			c.x = append(c.x, min(nines(p.Quantile), last))
			c.y = append(c.y, float64(p.Value))
		}
		for _, st := range compare.Stats(latency.FullTable) {
			if q, ok := st.Quantile(); ok && nines(q) <= last {
				v := st.Of(d.h)
				c.marks = append(c.marks, mark{nines(q), v, fmt.Sprintf("%s %s %s", d.name, st, latency.FormatNS(v))})
			}
		}
		f.curves = append(f.curves, c)
		alts = append(alts, fmt.Sprintf(
			"%s rises from %s at the minimum over %s at p50 and %s at p99 to %s at the maximum", d.name,
			latency.FormatNS(float64(d.h.Min)), latency.FormatNS(float64(d.h.Quantile(0.5))),
			latency.FormatNS(float64(d.h.Quantile(0.99))), latency.FormatNS(float64(d.h.Max))))
	}
	f.alt = "Percentile curve: " + strings.Join(alts, "; ") + "."
	return f.svg()
}

// nines is the position of a quantile on an axis where each nine takes the same width.
func nines(q float64) float64 { return -math.Log10(max(1-q, 1e-15)) }

// ninesAxis is an axis of percentiles from 0 to end.
func ninesAxis(end float64) axis {
	a := axis{lo: 0, hi: end, unit: "nines", title: "percentile (each nine takes the same width)"}
	a.ticks = []tick{{0, "0%"}, {nines(0.5), "50%"}}
	for k := 1; float64(k) <= end; k++ {
		label := "90%"
		if k > 1 {
			label = "99"
			if k > 2 {
				label += "." + strings.Repeat("9", k-2)
			}
			label += "%"
		}
		a.ticks = append(a.ticks, tick{float64(k), label})
	}
	return a
}

// distributionFigure plots the count of each value on two logarithmic axes, so that a single outlier is visible.
func distributionFigure(ds []drawn, unit string) template.HTML {
	lo, hi, most := span(ds)
	if most == 0 {
		return ""
	}
	edges := binEdges(lo, hi)
	f := figure{x: valueAxis(unit, lo, hi)}
	f.x.lo, f.x.hi = edges[0], edges[len(edges)-1]
	if f.x.hi/f.x.lo < 1.1 {
		f.x.lo, f.x.hi = lo*0.95, hi*1.05
	}
	f.x.ticks = logTicks(f.x.lo, f.x.hi, tickNS)
	top := 1.0
	for _, d := range ds {
		if d.h.Count == 0 {
			continue
		}
		counts := make([]float64, len(edges)-1)
		k := 0
		for b := range d.h.Buckets {
			middle := min(float64(b.Low+b.High)/2, float64(d.h.Max))
			for k < len(counts)-1 && middle >= edges[k+1] {
				k++
			}
			counts[k] += float64(b.Count)
		}
		c := curve{name: d.name, colour: d.colour, class: d.class, area: d.class == "", steps: true}
		for i, n := range counts {
			c.x = append(c.x, edges[i])
			c.y = append(c.y, n)
			top = max(top, n)
		}
		c.x, c.y = append(c.x, edges[len(edges)-1]), append(c.y, 0)
		f.curves = append(f.curves, c)
	}
	// The axis starts below one sample, so that one sample has a visible height.
	f.y = axis{lo: 0.5, hi: top * 1.5, log: true, unit: "count", title: "samples (logarithmic)"}
	f.y.ticks = logTicks(0.9, f.y.hi, tickCount)
	f.alt = fmt.Sprintf("Distribution: how many samples there were of each duration between %s and %s.",
		latency.FormatNS(lo), latency.FormatNS(hi))
	return f.svg()
}

// binEdges cuts lo to hi into at most 140 bins of equal ratio, none narrower than the resolution of the recording.
func binEdges(lo, hi float64) []float64 {
	lo, hi = max(lo, 1), max(hi, lo+1)+1
	n := int(min(max(math.Log(hi/lo)/math.Log(1.015), 1), 140))
	edges := []float64{math.Floor(lo)}
	for i := 1; i <= n; i++ {
		if e := math.Round(lo * math.Pow(hi/lo, float64(i)/float64(n))); e > edges[len(edges)-1] {
			edges = append(edges, e)
		}
	}
	return edges
}

func tickCount(v float64) string {
	switch {
	case v >= 1e9:
		return decimal(v/1e9) + "G"
	case v >= 1e6:
		return decimal(v/1e6) + "M"
	case v >= 1e3:
		return decimal(v/1e3) + "k"
	}
	return decimal(v)
}
