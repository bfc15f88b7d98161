package page

import (
	"slices"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/report"
)

// countRows has a row for each outcome of probes, and a value for each report; with brief only those that any report
// counted.
func countRows(rs []*report.Report, brief bool) (all []Row) {
	for _, row := range CountRows {
		some := func(r *report.Report) bool { return row.Number(&r.Counts) != 0 }
		if !brief || row.always || slices.ContainsFunc(rs, some) {
			all = append(all, rowOf(row.Name, rs, row.frames))
		}
	}
	return all
}

// counted reports whether the probes' outcomes are known. Some other tools' output does not include them.
func counted(r *report.Report) bool { return r.Foreign == nil || r.Counts.Sent > 0 }

// frames formats a row's number for a report.
func (row *CountRow) frames(r *report.Report) string {
	switch {
	case !counted(r), r.Foreign != nil && !row.always && row.Number(&r.Counts) == 0: // few tools state a zero
		return "–"
	case answers(r) && row.Name != "sent" && row.Name != "received":
		return "–"
	}
	return row.Text(&r.Counts)
}

// answers reports whether a report is a responder's. A responder cannot observe whether its replies arrive.
func answers(r *report.Report) bool { return r.Tool == "responder" }

// Number is the row's number; for lost probes, the upper bound.
func (row *CountRow) Number(c *report.Counts) int64 {
	if row.of == nil {
		return c.At(row.place)
	}
	return row.of(c)
}

// Text formats a row's number; for lost probes, the range if they cannot be told from others.
func (row *CountRow) Text(c *report.Counts) string {
	switch {
	case row.of == nil:
		return c.AtText(row.place)
	case row.least == nil:
		return latency.FormatCount(row.of(c))
	}
	return report.Range(row.least(c), row.of(c), latency.FormatCount[int64])
}

// CountRow is a row of the tables of probes by outcome.
type CountRow struct {
	Name  string
	of    func(*report.Counts) int64 // nil for the number of a place
	least func(*report.Counts) int64 // nil if the number is exact
	place report.Place

	always     bool // shown even if it is 0
	Unanswered bool // of probes without a timely reply that were not lost between the hosts
}

// CountRows are all rows, in the order of tables.
var CountRows = slices.Concat([]*CountRow{
	{Name: "sent", of: func(c *report.Counts) int64 { return c.Sent }, always: true},
	{Name: "received", of: func(c *report.Counts) int64 { return c.Received }, always: true},
	{Name: "lost", of: func(c *report.Counts) int64 { return c.Lost }, least: (*report.Counts).LostLeast, always: true},
}, placeRows(), []*CountRow{
	{Name: "rejected only", of: func(c *report.Counts) int64 { return c.CorruptOnly }, Unanswered: true},
	{Name: "late", of: func(c *report.Counts) int64 { return c.Late }, Unanswered: true},
	{Name: "not awaited", of: func(c *report.Counts) int64 { return c.NotAwaited }},
	{Name: "duplicates", of: func(c *report.Counts) int64 { return c.Duplicates }},
	{Name: "reordered", of: func(c *report.Counts) int64 { return c.Reordered }},
	{Name: "rejected", of: func(c *report.Counts) int64 { return c.Corrupt }},
	{Name: "unparsed", of: func(c *report.Counts) int64 { return c.Unparsed }},
	{Name: "CE marks", of: func(c *report.Counts) int64 { return c.CE }},
})

// Elsewhere lists the probes that had no timely reply and were not lost between the hosts, by place.
func Elsewhere(c *report.Counts) (all []string) {
	for _, row := range CountRows {
		if row.Unanswered && row.Number(c) > 0 {
			all = append(all, row.Text(c)+" "+row.Name)
		}
	}
	return all
}

func placeRows() (all []*CountRow) {
	for _, p := range report.Places {
		all = append(all, &CountRow{Name: string(p), place: p, Unanswered: true})
	}
	return all
}
