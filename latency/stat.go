package latency

import "slices"

// Stat is a statistic of a distribution, in ns. A new row of Stats appears in all tables that its In names.
type Stat struct {
	Name     string
	Quantile float64 // of a percentile, 0 to 1; 0 for other statistics
	Of       func(*Summary) float64
	In       Tables
}

// Tables are kinds of tables and texts that show statistics. They are or-ed.
type Tables uint

const (
	FullTable     Tables = 1 << iota // a report, and a comparison with all details, as text, HTML and JSON
	HeadlineTable                    // figures in large print, and the responder's summary
	SeriesLine                       // a line for an additional series
	PointColumns                     // a line for each report: a sweep, a ranking
	BriefTable                       // a short comparison as text and Markdown, and the verdicts of rebound-watch
	AnswerText                       // a sentence, and curves of several statistics
	NarrowTable                      // a search's trials, dots of runs, one-way delays
	CellTable                        // a path of a matrix: the first one that is slower or faster is shown
)

// The sets that statistics with several tables have.
const (
	extremeTables = FullTable | HeadlineTable | SeriesLine | PointColumns
	tailTables    = extremeTables | BriefTable | AnswerText
	everyTable    = tailTables | NarrowTable | CellTable
)

// Stats are all statistics in the order of tables. The mean is last because it describes latency poorly.
var Stats = []Stat{
	{"min", 0, func(m *Summary) float64 { return float64(m.Min) }, FullTable},
	{"p50", 0.5, func(m *Summary) float64 { return float64(m.P50) }, everyTable},
	{"p90", 0.9, func(m *Summary) float64 { return float64(m.P90) }, FullTable | HeadlineTable | BriefTable | CellTable},
	{"p99", 0.99, func(m *Summary) float64 { return float64(m.P99) }, everyTable},
	{"p99.9", 0.999, func(m *Summary) float64 { return float64(m.P999) }, tailTables},
	{"p99.99", 0.9999, func(m *Summary) float64 { return float64(m.P9999) }, FullTable | HeadlineTable | SeriesLine},
	{"max", 0, func(m *Summary) float64 { return float64(m.Max) }, extremeTables},
	{"mean", 0, func(m *Summary) float64 { return m.Mean }, FullTable},
}

// FindStat returns the row of Stats with that name, nil if there is none.
func FindStat(name string) *Stat {
	if i := slices.IndexFunc(Stats, func(s Stat) bool { return s.Name == name }); i >= 0 {
		return &Stats[i]
	}
	return nil
}
