package page

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// data returns the data of a figure as lines of tab-separated values with a header, for readers who want to plot it
// themselves. Times are in ns and s, percentiles in per cent.
func (f *figure) data() string {
	if f.table != "" {
		return f.table
	}
	banded := false
	for _, c := range f.curves {
		banded = banded || c.lo != nil
	}
	var b strings.Builder
	fmt.Fprintf(&b, "series\t%s\t%s", f.x.column(), f.y.column())
	if banded {
		b.WriteString("\tlow\thigh")
	}
	b.WriteByte('\n')
	for _, c := range f.curves {
		for i, y := range c.y {
			if math.IsNaN(y) {
				continue
			}
			fmt.Fprintf(&b, "%s\t%s\t%s", Field(cmp.Or(c.name, f.y.title)), f.x.number(c.x[i]), f.y.number(y))
			if c.lo != nil {
				fmt.Fprintf(&b, "\t%s\t%s", f.y.number(c.lo[i]), f.y.number(c.hi[i]))
			}
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// column is the name of an axis with the unit of its numbers.
func (a *axis) column() string {
	switch a.unit {
	case "nines":
		return "percentile"
	case "ns", "shift":
		return Field(a.title) + " (ns)"
	}
	return Field(a.title)
}

// number formats a value of the axis; it is empty if the value is not finite.
func (a *axis) number(v float64) string {
	if a.unit == "nines" {
		v = 100 * (1 - math.Pow(10, -v))
	}
	if math.IsInf(v, 0) || math.IsNaN(v) {
		return ""
	}
	return strconv.FormatFloat(math.Round(v*1e6)/1e6, 'f', -1, 64)
}

// Field is text as one field of a table, escaped so that a spreadsheet does not interpret the name of a report as a
// formula.
func Field(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if text != "" && strings.ContainsAny(text[:1], "=+-@") {
		return "'" + text
	}
	return text
}
