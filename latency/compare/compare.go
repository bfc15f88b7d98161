// Package compare compares reports: which numbers differ, and which differences exceed chance.
package compare

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/host"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/latency/sanitize"
)

// ErrNotComparable is returned for limits on reports that must not be compared.
var ErrNotComparable = errors.New("reports are not comparable")

// Comparison compares several reports with the first of them.
type Comparison struct {
	Reports []*report.Report
	// Obstacles are the reasons, for all pairs, why the numbers must not be compared. They are printed before any
	// number.
	Obstacles []string
	// Notes are what a reader should know about a comparison although it does not prevent it.
	Notes []string
	// Pairs has one element for each report after the first.
	Pairs []Pair

	limits []Limit
}

// Pair is one report, B, compared with the base, A.
type Pair struct {
	A, B      *report.Report
	Obstacles []string // why these two must not be compared; if there are any, Rows carry no verdict
	Rows      []Row
	OneWay    []Way // STAMP only

	clocks       float64 // ns; a smaller shift may be clock error
	runsA, runsB []part
	random       bool // the two were measured alternately, in random order
}

// Spread returns how far the values of a statistic differ between the runs of one side, in ns: the middle half of them,
// of the side where that is wider; 0 if it is not known.
func (p *Pair) Spread(st Stat) (widest float64) {
	for _, runs := range [][]part{p.runsA, p.runsB} {
		v := values(st, measured(runs))
		if len(v) < 4 {
			continue
		}
		slices.Sort(v)
		widest = max(widest, v[len(v)*3/4]-v[len(v)/4])
	}
	return widest
}

// Reports compares others with base.
func Reports(base *report.Report, others ...*report.Report) *Comparison {
	return Against(nil, base, others...)
}

// Against compares others with base, and has a row for each statistic that a limit names.
func Against(limits []Limit, base *report.Report, others ...*report.Report) *Comparison {
	c := &Comparison{Reports: distinct(append([]*report.Report{base}, others...)), limits: limits}
	base, others = c.Reports[0], c.Reports[1:]
	for _, r := range c.Reports {
		c.inspect(r)
	}
	for _, r := range others {
		p := Pair{A: base, B: r, Obstacles: obstacles(base, r)}
		c.Obstacles = append(c.Obstacles, p.Obstacles...)
		c.Notes = append(c.Notes, differences(base, r)...)
		if base.Measured() && r.Measured() {
			p.judge(limits)
		}
		c.Pairs = append(c.Pairs, p)
	}
	slices.Sort(c.Notes)
	c.Notes = slices.Compact(c.Notes)
	tables := 0
	for _, p := range c.Pairs {
		if len(p.Obstacles) == 0 && slices.ContainsFunc(p.Rows, Row.Tested) {
			tables++
		}
	}
	if tables > 1 {
		c.Notes = append(c.Notes, severalTables(tables))
	}
	return c
}

// severalTables states how many false marks to expect from n tables in total, because each has its own rate.
func severalTables(n int) string {
	return fmt.Sprintf("%d tables have verdicts, each with its own rate of false marks: where nothing changed, up to %s of such groups show a + or - somewhere; "+
		"measure again what only one table shows", n, latency.FormatShare(min(1, tableLevel*float64(n))))
}

// Among compares some statistics of b with those of a, as one of several tables: if nothing changed in any of them, at
// most 5 % of such groups of tables have a verdict anywhere.
func Among(tables int, stats []Stat, a, b *report.Report) Pair {
	p := Pair{A: a, B: b, Obstacles: obstacles(a, b)}
	if !a.Measured() || !b.Measured() {
		return p
	}
	p.see()
	for _, st := range stats {
		p.Rows = append(p.Rows, p.row(st, tableLevel/float64(max(tables, 1)*len(stats))))
	}
	return p
}

// RunsAmong returns how many runs of each side a verdict needs when Among compares the given number of tables.
func RunsAmong(tables int, stats []Stat) int {
	n := MinRuns
	for leastP(n, n) > tableLevel/float64(max(tables, 1)*len(stats)) {
		n++
	}
	return n
}

// judge fills in the rows of all statistics, and of those named by limits.
func (p *Pair) judge(limits []Limit) {
	all, asked := Stats(latency.FullTable), map[Stat]bool{}
	for _, l := range limits {
		if asked[l.Stat] = true; !slices.Contains(all, l.Stat) {
			all = append(all, l.Stat)
		}
	}
	ways := p.compareOneWay()
	named, other := levels(len(asked), len(all)+len(ways)*len(Stats(latency.NarrowTable)))
	named, other = named/float64(p.tests()), other/float64(p.tests())
	p.see()
	for _, st := range all {
		level := other
		if asked[st] {
			level = named
		}
		r := p.row(st, level)
		r.Asked = asked[st]
		p.Rows = append(p.Rows, r)
	}
	for _, w := range ways {
		w.judge(other)
		p.OneWay = append(p.OneWay, w.Way)
	}
}

// tests returns how many tests share the chance of a false verdict.
func (p *Pair) tests() int {
	n := 1
	for _, r := range []*report.Report{p.A, p.B} {
		if r.Schedule != nil {
			n = max(n, r.Schedule.Looks)
		}
	}
	return n
}

// see reads the runs of both sides.
func (p *Pair) see() {
	p.runsA, p.runsB = runs(p.A), runs(p.B)
	p.random = random(p.A, p.B, p.runsA, p.runsB)
}

// distinct appends folder names to reports that have the same name, such as reports of one target before and after a
// change.
func distinct(all []*report.Report) []*report.Report {
	count := map[string]int{}
	for _, r := range all {
		count[r.Name()]++
	}
	out := slices.Clone(all)
	for i, r := range all {
		if count[r.Name()] > 1 && r.Dir != "" && r.Label != "" {
			named := *r
			named.Label = fmt.Sprintf("%s (%s)", r.Name(), sanitize.Text(filepath.Clean(r.Dir)))
			out[i] = &named
		}
	}
	return out
}

// inspect adds the notes about one report.
func (c *Comparison) inspect(r *report.Report) {
	if text := r.UnfinishedText(); text != "" {
		c.Notes = append(c.Notes, r.Name()+" is "+text)
	}
	if r.Device.Sim() {
		c.Notes = append(c.Notes,
			fmt.Sprintf("%s ran on a device model: its nanoseconds are the model's, not a card's; compare its bus transactions", r.Name()))
	}
	if !r.Clock.Steady && r.Clock.Source != "" {
		c.Notes = append(c.Notes, fmt.Sprintf("%s was timed by a clock of no constant rate", r.Name()))
	}
	for _, f := range r.Host.Findings {
		if f.Severity == "serious" {
			c.Notes = append(c.Notes, fmt.Sprintf("%s: %s", r.Name(), f.What))
		}
	}
	if r.Foreign != nil {
		for _, line := range r.Foreign.Lines() {
			c.Notes = append(c.Notes, fmt.Sprintf("%s: %s", r.Name(), line))
		}
	}
	if own := r.OwnTail(); own != "" {
		c.Notes = append(c.Notes, fmt.Sprintf("%s: %s", r.Name(), own))
	}
}

// varied returns the differences in traffic settings that -ab may vary within one session. Between sessions they are
// obstacles.
func varied(a, b *report.Report) (out []string) {
	x, y := a.Traffic, b.Traffic
	return slices.Concat(differ("protocol", a, b, x.Protocol, y.Protocol),
		differ("IP version", a, b, x.IPVersion, y.IPVersion),
		differ("frame size", a, b, x.FrameSize, y.FrameSize), differ("rate", a, b, x.Rate, y.Rate),
		differ("transport", a, b, x.Transport, y.Transport),
		differ("arrivals that are not periodic", a, b, x.Arrivals, y.Arrivals))
}

// differ describes two values that are not equal.
func differ(what string, a, b *report.Report, x, y any) []string {
	if x == y {
		return nil
	}
	known := func(v any) bool { return v != report.Unlabeled && orNone(v) != "none" }
	if (a.Foreign != nil || b.Foreign != nil) && !(known(x) && known(y)) { // another tool's output does not state it
		return nil
	}
	return []string{fmt.Sprintf("%s: %s has %v, %s has %v", what, a.Name(), orNone(x), b.Name(), orNone(y))}
}

// inOneSession reports whether two reports were measured alternately, in one session.
func inOneSession(a, b *report.Report) bool { return a.Session != "" && a.Session == b.Session }

// obstacles finds the reasons why a and b must not be compared.
func obstacles(a, b *report.Report) (out []string) {
	for _, r := range []*report.Report{a, b} {
		if !r.Measured() {
			text := fmt.Sprintf("%s has no samples", r.Name())
			if n := r.Counts.Sent; n > 0 {
				text += fmt.Sprintf(": %s of %s lost", r.Counts.LostText(), sanitize.Count(n, "probe"))
			}
			out = append(out, text)
		}
	}
	out = slices.Concat(out, differ("metric", a, b, a.Metric, b.Metric),
		differ("mode", a, b, a.Traffic.Mode, b.Traffic.Mode),
		differ("outstanding requests", a, b, a.Traffic.Outstanding, b.Traffic.Outstanding))
	if !inOneSession(a, b) {
		out = append(out, varied(a, b)...)
	}
	if a.Device.Sim() != b.Device.Sim() {
		out = append(out, differ("backend", a, b, a.Device.Backend, b.Device.Backend)...)
	}
	return out
}

// differences returns notes about differences that complicate a comparison without preventing it. Values missing from
// an anonymous report are unknown, which does not count as a difference.
func differences(a, b *report.Report) (out []string) {
	if a.Foreign != nil || b.Foreign != nil {
		if a.Tool != b.Tool {
			out = append(out, fmt.Sprintf(
				"%s was measured by %s, %s by %s: tools take their timestamps in different places", a.Name(),
				orNone(a.Tool), b.Name(), orNone(b.Tool)))
		}
		return out
	}
	if inOneSession(a, b) {
		out = append(out, varied(a, b)...)
	}
	x, y := a.Host, b.Host
	hidden := a.Anonymous || b.Anonymous
	if hidden {
		x.Kernel, y.Kernel = report.KernelVersion(x.Kernel), report.KernelVersion(y.Kernel)
	}
	known := x.Hostname != "" && y.Hostname != ""
	switch {
	case x.Hostname != y.Hostname && (known || !hidden) || x.Kernel != y.Kernel:
		out = append(out, fmt.Sprintf("%s was measured on %s (%s), %s on %s (%s)", a.Name(), machine(a),
			orNone(x.Kernel), b.Name(), machine(b), orNone(y.Kernel)))
	case hidden && !known:
		out = append(out, fmt.Sprintf("%s or %s leaves its machine unnamed: both may come from one, or from two",
			a.Name(), b.Name()))
	}
	if x.Cmdline != "" && y.Cmdline != "" {
		if onlyA, onlyB := apart(x.Cmdline, y.Cmdline); onlyA+onlyB != "" {
			out = append(out, fmt.Sprintf("kernel command line: only %s has %s, only %s has %s", a.Name(),
				orNone(onlyA), b.Name(), orNone(onlyB)))
		}
	}
	return out
}

// Differences lists the differences between two reports of the same kind other than their results: machine, kernel,
// driver, version of the tool, and findings that only one of the hosts has.
func Differences(a, b *report.Report) []string {
	out := slices.Concat(differences(a, b), differ("driver", a, b, a.Device.Driver, b.Device.Driver),
		differ("version", a, b, a.Version, b.Version))
	only := func(r, other *report.Report) {
		for _, f := range r.Host.Findings {
			if !slices.ContainsFunc(other.Host.Findings, func(g host.Finding) bool { return g.What == f.What }) {
				out = append(out, fmt.Sprintf("only %s: %s", r.Name(), f.What))
			}
		}
	}
	only(a, b)
	only(b, a)
	return out
}

// machine is the host name as a note shows it.
func machine(r *report.Report) any {
	if r.Anonymous && r.Host.Hostname == "" {
		return "a machine left unnamed"
	}
	return orNone(r.Host.Hostname)
}

// apart returns the words that only one of two texts has.
func apart(a, b string) (onlyA, onlyB string) {
	x, y := strings.Fields(a), strings.Fields(b)
	less := func(from, by []string) string {
		return strings.Join(slices.DeleteFunc(slices.Clone(from),
			func(w string) bool { return slices.Contains(by, w) }), " ")
	}
	return less(x, y), less(y, x)
}

func orNone(v any) any {
	if s := fmt.Sprint(v); s == "" || s == "0" {
		return "none"
	}
	return v
}
