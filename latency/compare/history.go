package compare

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/latency/sanitize"
)

// History collects some statistics of many reports.
type History struct {
	stats   []Stat
	kinds   []*kind
	skipped []string
	lost    []Lost
}

// Lost is a report without a reply: its loss is a result, and it has no statistics.
type Lost struct {
	Name  string
	Start time.Time // zero if unknown
	What  string    // what was measured
	Sent  int64
	Text  string // how many were lost
}

// Lost returns the reports without a reply, in the order of their start times.
func (h *History) Lost() []Lost {
	return slices.SortedStableFunc(slices.Values(h.lost), func(a, b Lost) int { return a.Start.Compare(b.Start) })
}

// kind is a group of reports that measured the same thing.
type kind struct {
	name   string
	points []point
}

type point struct {
	values []float64      // ns, for each statistic; NaN if the report has too few samples
	about  *report.Report // without its series
}

// Line is one statistic of the reports of one kind, in chronological order.
type Line struct {
	What   string // what was measured
	Stat   Stat
	Points []Point
	Steps  []Step
	Why    string // why changes were not looked for; empty if they were
}

// Point is a statistic of one report.
type Point struct {
	Name  string
	Start time.Time // zero if unknown
	Value float64   // ns
}

// Step is a change of level.
type Step struct {
	Change
	Before, After float64  // ns: medians of the values between this change and its neighbours
	Differ        []string // differences between the last report before and the first after it
}

// Percent returns the change in per cent of the level before.
func (s Step) Percent() float64 { return 100 * (s.After/s.Before - 1) }

// New starts a history of statistics.
func NewHistory(stats ...Stat) *History { return &History{stats: stats} }

// Add adds a report without keeping its series. The history refers to it by name.
func (h *History) Add(name string, r *report.Report) {
	if !r.Measured() {
		if r.Counts.Sent > 0 {
			h.lost = append(h.lost, Lost{name, r.Start, what(r), r.Counts.Sent, r.Counts.LostText()})
		} else {
			h.skipped = append(h.skipped, name+" has no samples")
		}
		return
	}
	if text := r.UnfinishedText(); text != "" {
		h.skipped = append(h.skipped, name+" is "+text)
		return
	}
	about := *r
	about.Series, about.Raw, about.Runs, about.Tail, about.Label = nil, nil, nil, nil, name
	p := point{about: &about}
	for _, st := range h.stats {
		v := st.OfReport(r)
		if v <= 0 || r.Foreign == nil && r.Main().Total.Count < st.Needs() {
			v = math.NaN()
		}
		p.values = append(p.values, v)
	}
	what := what(r)
	i := slices.IndexFunc(h.kinds, func(k *kind) bool { return k.name == what })
	if i < 0 {
		i, h.kinds = len(h.kinds), append(h.kinds, &kind{name: what})
	}
	h.kinds[i].points = append(h.kinds[i].points, p)
}

// what describes what a report measured, without the target and the host, which may change within a history.
func what(r *report.Report) string {
	t := &r.Traffic
	parts := []string{string(r.Metric)}
	add := func(known bool, format string, a ...any) {
		if known {
			parts = append(parts, fmt.Sprintf(format, a...))
		}
	}
	add(t.Protocol != "", "%s", t.Protocol)
	add(t.IPVersion == 6, "IPv6")
	add(t.FrameSize > 0, "%d bytes", t.FrameSize)
	add(t.Rate > 0, "%g/s", t.Rate)
	add(t.Transport != "", "%s", t.Transport)
	add(r.Device.Sim(), "on a device model")
	add(r.Session != "" && r.Label != "", "%s", r.Label) // a variant of -ab
	add(r.Foreign != nil && r.Tool != "", "by %s", r.Tool)
	return strings.Join(parts, ", ")
}

// Lines returns all statistics of all kinds, with the changes of level in them, and notes. All tests for changes share
// level: if nothing changed, and the order of the values is random, at most that share of histories has any change.
func (h *History) Lines(level float64) (lines []Line, notes []string) {
	notes = slices.Clone(h.skipped)
	untimed := slices.ContainsFunc(h.kinds, func(k *kind) bool {
		return slices.ContainsFunc(k.points, func(p point) bool { return p.about.Start.IsZero() })
	})
	if untimed {
		notes = append(notes, "some reports do not say when they were measured: all are in the order in which they were named")
	}
	var abouts [][]*report.Report
	tested := 0
	for _, k := range h.kinds {
		if !untimed {
			slices.SortStableFunc(k.points, func(a, b point) int { return a.about.Start.Compare(b.about.Start) })
		}
		for i, st := range h.stats {
			l := Line{What: k.name, Stat: st}
			var about []*report.Report
			for _, p := range k.points {
				if !math.IsNaN(p.values[i]) {
					l.Points, about = append(l.Points, Point{p.about.Label, p.about.Start, p.values[i]}),
						append(about, p.about)
				}
			}
			if few := len(k.points) - len(l.Points); few > 0 {
				notes = append(notes, fmt.Sprintf("%s (%s): %d of %d reports have too few samples for it", st, k.name,
					few, len(k.points)))
			}
			if left := len(l.Points) - MostValues; left > 0 {
				notes = append(notes, fmt.Sprintf(
					"%s (%s): the oldest %d reports are left out, the newest %d are shown", st, k.name, left,
					MostValues))
				l.Points, about = l.Points[left:], about[left:]
			}
			if n := len(l.Points); n < 2*FewestValues {
				l.Why = fmt.Sprintf("no change can be found in %s: there must be %d on each side of it",
					sanitize.Count(n, "report"), FewestValues)
			} else {
				tested++
			}
			lines, abouts = append(lines, l), append(abouts, about)
		}
	}
	for i := range lines {
		if lines[i].Why == "" {
			lines[i].find(level/float64(tested), abouts[i])
		}
	}
	return lines, notes
}

// find finds the changes in a line. Changes of level are relative, so it uses logarithms.
func (l *Line) find(level float64, about []*report.Report) {
	var logs []float64
	for _, p := range l.Points {
		logs = append(logs, math.Log(p.Value))
	}
	changes := changes(logs, level, 1)
	middle := func(from, to int) float64 {
		var v []float64
		for _, p := range l.Points[from:to] {
			v = append(v, p.Value)
		}
		slices.Sort(v)
		return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
	}
	for i, c := range changes {
		from, to := 0, len(l.Points)
		if i > 0 {
			from = changes[i-1].At
		}
		if i+1 < len(changes) {
			to = changes[i+1].At
		}
		l.Steps = append(l.Steps, Step{Change: c, Before: middle(from, c.At), After: middle(c.At, to),
			Differ: Differences(about[c.At-1], about[c.At])})
	}
}
