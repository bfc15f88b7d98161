package page

import (
	"bufio"
	"fmt"
	"slices"
	"strconv"
	"text/tabwriter"

	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/report"
)

func printCounts(b *bufio.Writer, c *compare.Comparison) {
	if !slices.ContainsFunc(c.Reports, counted) {
		return
	}
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "frames\t")
	for _, r := range c.Reports {
		fmt.Fprintf(t, "%s\t", r.Name())
	}
	fmt.Fprintln(t)
	for _, row := range countRows {
		if !row.always && !slices.ContainsFunc(c.Reports, func(r *report.Report) bool { return row.number(&r.Counts) != 0 }) {
			continue
		}
		fmt.Fprintf(t, "%s\t", row.name)
		for _, r := range c.Reports {
			fmt.Fprintf(t, "%s\t", row.frames(r, decimal))
		}
		fmt.Fprintln(t)
	}
	t.Flush()
}

// counted reports whether the probes' outcomes are known. Some other tools' output does not include them.
func counted(r *report.Report) bool { return r.Foreign == nil || r.Counts.Sent > 0 }

// frames formats a row's number for a report.
func (row *countRow) frames(r *report.Report, write func(int64) string) string {
	switch {
	case !counted(r), r.Foreign != nil && !row.always && row.number(&r.Counts) == 0: // few tools state a zero
		return "–"
	case answers(r) && row.name != "sent" && row.name != "received":
		return "–"
	}
	return row.text(&r.Counts, write)
}

// answers reports whether a report is a responder's. A responder cannot observe whether its replies arrive.
func answers(r *report.Report) bool { return r.Tool == "responder" }

func decimal(n int64) string { return strconv.FormatInt(n, 10) }

// number is the row's number; for lost probes, the upper bound.
func (row *countRow) number(c *report.Counts) int64 {
	if row.of == nil {
		return c.At(row.place)
	}
	return row.of(c)
}

// text formats a row's number; for lost probes, the range if they cannot be told from others.
func (row *countRow) text(c *report.Counts, write func(int64) string) string {
	switch {
	case row.of == nil:
		return c.AtText(row.place, write)
	case row.least == nil:
		return write(row.of(c))
	}
	return report.Range(row.least(c), row.of(c), write)
}

type countRow struct {
	name  string
	of    func(*report.Counts) int64 // nil for the number of a place
	least func(*report.Counts) int64 // nil if the number is exact
	place report.Place

	always     bool // shown even if it is 0
	unanswered bool // of probes without a timely reply that were not lost between the hosts
}

var countRows = slices.Concat([]*countRow{
	{name: "sent", of: func(c *report.Counts) int64 { return c.Sent }, always: true},
	{name: "received", of: func(c *report.Counts) int64 { return c.Received }, always: true},
	{name: "lost", of: func(c *report.Counts) int64 { return c.Lost }, least: (*report.Counts).LostLeast, always: true},
}, placeRows(), []*countRow{
	{name: "corrupt only", of: func(c *report.Counts) int64 { return c.CorruptOnly }, unanswered: true},
	{name: "late", of: func(c *report.Counts) int64 { return c.Late }, unanswered: true},
	{name: "not awaited", of: func(c *report.Counts) int64 { return c.NotAwaited }},
	{name: "duplicates", of: func(c *report.Counts) int64 { return c.Duplicates }},
	{name: "reordered", of: func(c *report.Counts) int64 { return c.Reordered }},
	{name: "corrupt", of: func(c *report.Counts) int64 { return c.Corrupt }},
	{name: "CE marks", of: func(c *report.Counts) int64 { return c.CE }},
})

// elsewhere lists the probes that had no timely reply and were not lost between the hosts, by place.
func elsewhere(c *report.Counts, write func(int64) string) (all []string) {
	for _, row := range countRows {
		if row.unanswered && row.number(c) > 0 {
			all = append(all, row.text(c, write)+" "+row.name)
		}
	}
	return all
}

func placeRows() (all []*countRow) {
	for _, p := range report.Places {
		all = append(all, &countRow{name: string(p), place: p, unanswered: true})
	}
	return all
}
