package page

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/plain"
	"github.com/rebound-nic/rebound/latency/report"
)

// formatPercent formats a percentage; it is empty if there is no base.
func formatPercent(v float64) string {
	if math.IsNaN(v) {
		return ""
	}
	return fmt.Sprintf("%+.1f%%", v)
}

func formatP(p float64) string {
	if p < 0.001 {
		return "<0.001"
	}
	return fmt.Sprintf("%.3f", p)
}

// PrintComparison writes the comparison as text: first the obstacles, then the tables.
func PrintComparison(w io.Writer, c *compare.Comparison) error {
	b := bufio.NewWriter(w)
	if len(c.Obstacles) > 0 {
		fmt.Fprintln(b, "NOT COMPARABLE:")
		for _, o := range c.Obstacles {
			fmt.Fprintf(b, "  - %s\n", o)
		}
		fmt.Fprintln(b)
	} else if text := Answer(c); text != "" {
		fmt.Fprintf(b, "%s\n\n", text)
	}
	notes := slices.Clone(c.Notes)
	for i := len(c.Reports) - 1; i >= 0; i-- {
		for _, text := range c.Reports[i].Warnings {
			notes = slices.Insert(notes, 0, warned(c.Reports[i], text))
		}
	}
	for _, n := range notes {
		fmt.Fprintf(b, "note: %s\n", n)
	}
	if len(notes) > 0 {
		fmt.Fprintln(b)
	}
	for _, p := range c.Pairs {
		printPair(b, p)
	}
	printTransfers(b, c)
	printCounts(b, c)
	return b.Flush()
}

// answeredStats are the statistics that Answer names.
var answeredStats = []string{"p50", "p99", "p99.9"}

// Answer summarises the comparison in one sentence: by how much each report is slower or faster than the first, and
// which statistics are undecided. It is empty if the reports cannot be compared.
func Answer(c *compare.Comparison) string {
	var all []string
	for _, p := range c.Pairs {
		if len(p.Obstacles) > 0 {
			continue
		}
		var changed, same, unknown []string
		for _, r := range p.Rows {
			name := r.Stat.String()
			switch {
			case !slices.Contains(answeredStats, name):
			case r.Verdict > compare.Noise:
				shift := latency.FormatNS(math.Abs(r.Shift))
				if share := math.Abs(r.Percent()); !math.IsNaN(share) {
					shift += " (" + latency.FormatShare(share/100) + ")"
				}
				changed = append(changed, fmt.Sprintf("%s %s at %s", shift, r.Verdict, name))
			case r.Verdict == compare.Noise:
				same = append(same, name)
			default:
				if more := p.More(r); more > 0 {
					name += " (needs about " + moreText(more) + ")"
				}
				unknown = append(unknown, name)
			}
		}
		var parts []string
		if len(changed) > 0 {
			parts = append(parts, p.B.Name()+" is "+strings.Join(changed, ", "))
		}
		for _, x := range []struct {
			text string
			at   []string
		}{{"no change seen at ", same}, {"no verdict at ", unknown}} {
			if len(x.at) > 0 {
				parts = append(parts, x.text+strings.Join(x.at, ", "))
			}
		}
		if len(parts) == 0 {
			continue
		}
		if len(changed) == 0 {
			parts[0] = p.B.Name() + ": " + parts[0]
		}
		all = append(all, strings.Join(parts, "; "))
	}
	return strings.Join(all, ". ")
}

// moreText formats an additional duration, rounded up, as "12 more minutes".
func moreText(d time.Duration) string {
	for _, u := range []struct {
		size time.Duration
		name string
	}{{24 * time.Hour, "day"}, {time.Hour, "hour"}, {time.Minute, "minute"}} {
		if d > 2*u.size {
			return plain.Count(int((d+u.size-1)/u.size), "more "+u.name)
		}
	}
	return plain.Count(int((d+time.Second-1)/time.Second), "more second")
}

func printPair(b *bufio.Writer, p compare.Pair) {
	fmt.Fprintf(b, "A  %s\nB  %s\n\n", describe(p.A), describe(p.B))
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	if len(p.Rows) == 0 {
		return
	}
	fmt.Fprintf(t, "%s\tA pooled\tB pooled\tshift of runs\t\t\tinterval\tsmallest visible\tp\t\n", metric(p.A, p.B))
	why := map[string]bool{}
	for _, r := range namedRows(p) {
		shift, percent, ci, least, prob := "", "", "", "", ""
		if r.Tested() {
			shift, percent = formatShift(r.Row)
			ci, least, prob = formatInterval(r.Row, "[%s, %s]"), r.Visible(), formatP(r.P)
		}
		if r.Why != "" {
			why[r.Why] = true
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", r.name, latency.FormatNS(r.PooledA), latency.FormatNS(r.PooledB), shift, percent, r.Verdict.Mark(), ci, least, prob)
	}
	t.Flush()
	for _, w := range p.OneWay {
		fmt.Fprintf(b, "%s: ± %s of A, ± %s of B by their clocks; a shift within the sum has no verdict\n", wayName(w.Series), latency.FormatNS(w.ErrorA), latency.FormatNS(w.ErrorB))
	}
	how := map[string]bool{}
	for _, r := range p.Rows {
		if r.Tested() {
			how[r.How] = true
		}
	}
	fmt.Fprintf(b, "\n+ slower, - faster, ~ no change seen, ? cannot tell")
	if len(how) > 0 {
		fmt.Fprintf(b, "; tested over %s", strings.Join(slices.Sorted(maps.Keys(how)), ", "))
	}
	fmt.Fprintln(b)
	for _, line := range caveats(p) {
		fmt.Fprintln(b, line)
	}
	if len(p.Obstacles) == 0 {
		for _, s := range slices.Sorted(maps.Keys(why)) {
			fmt.Fprintf(b, "? %s\n", s)
		}
	}
	fmt.Fprintln(b)
}

// caveats are the sentences below a table: the smallest change that would have been visible, and the confidence of its
// marks.
func caveats(p compare.Pair) (all []string) {
	if len(p.Obstacles) > 0 {
		return nil
	}
	if text := p.Untested(); text != "" {
		all = append(all, text)
	}
	if visible := p.Visible(); visible != "" {
		all = append(all, visible)
	}
	if slices.ContainsFunc(p.Rows, compare.Row.Tested) {
		all = append(all, p.Confidence())
	}
	return all
}

// formatInterval formats the interval of a tested row; it is empty if the samples exclude no shift.
func formatInterval(r compare.Row, format string) string {
	if math.IsInf(r.Lo, 0) || math.IsInf(r.Hi, 0) {
		return "none"
	}
	return fmt.Sprintf(format, latency.FormatSigned(r.Lo), latency.FormatSigned(r.Hi))
}

// formatShift formats the shift of a tested row, in time and as a share. A shift below the resolution of the values is
// shown as "less than" the resolution.
func formatShift(r compare.Row) (shift, percent string) {
	if grain := r.Resolution * r.Base; math.Abs(r.Shift) < grain {
		return "<" + latency.FormatNS(grain), "<" + strings.ReplaceAll(latency.FormatShare(r.Resolution), " ", "")
	}
	return latency.FormatSigned(r.Shift), formatPercent(r.Percent())
}

// namedRow is a row of a comparison with its name in a table.
type namedRow struct {
	name string
	compare.Row
}

// namedRows are all rows of a pair, with one-way delays at the end.
func namedRows(p compare.Pair) (all []namedRow) {
	for _, r := range p.Rows {
		all = append(all, namedRow{r.Stat.String(), r})
	}
	for _, w := range p.OneWay {
		for _, r := range w.Rows {
			all = append(all, namedRow{wayName(w.Series) + " " + r.Stat.String(), r})
		}
	}
	return all
}

// wayName is the display name of a series of one-way delays.
func wayName(series string) string { return strings.ReplaceAll(series, "_", " ") }

func printTransfers(b *bufio.Writer, c *compare.Comparison) {
	kinds := transferKinds(c.Reports...)
	if len(kinds) == 0 {
		return
	}
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "bus transactions a reply\t")
	for _, r := range c.Reports {
		fmt.Fprintf(t, "%s\t", r.Name())
	}
	fmt.Fprintln(t)
	for _, k := range kinds {
		fmt.Fprintf(t, "%s\t", k)
		for _, r := range c.Reports {
			if r.Transfers == nil {
				fmt.Fprint(t, "\t")
				continue
			}
			fmt.Fprintf(t, "%.3f\t", r.PerReply(k))
		}
		fmt.Fprintln(t)
	}
	t.Flush()
	fmt.Fprintln(b)
}

// FormatRate formats probes per second: as an integer, or with four digits for a slow rate.
func FormatRate(r float64) string {
	if r >= 100 {
		return fmt.Sprintf("%.0f", r)
	}
	return fmt.Sprintf("%.4g", r)
}

// mostWarnings is how many warnings PrintReport writes, because readers skip longer lists. The report's page has all.
const mostWarnings = 3

// PrintReport writes a report as text: the headline, at most three warnings with their remedy, then what was measured
// with its percentiles and the frame counts.
func PrintReport(w io.Writer, r *report.Report) error {
	b := bufio.NewWriter(w)
	fmt.Fprintln(b, answer(r))
	warnings := warnings(r)
	for _, text := range warnings[:min(len(warnings), mostWarnings)] {
		fmt.Fprintf(b, "warning: %s\n", text)
	}
	fmt.Fprintf(b, "\n%s\n", describe(r))
	for _, line := range r.Foreign.Lines() {
		fmt.Fprintln(b, line)
	}
	for _, s := range r.Series {
		if s.Name != latency.MainSeries && s.Name != latency.UncorrectedSeries && !latency.OneWay(s.Name) || empty(r, s) {
			continue
		}
		title := string(r.Metric)
		switch {
		case latency.OneWay(s.Name):
			title = wayName(s.Name) + oneWayError(r, s.Name)
		case s.Name == latency.UncorrectedSeries:
			title += ", from the actual send"
		case r.Find(latency.UncorrectedSeries) != nil:
			title += ", from the intended send"
		}
		fmt.Fprintf(b, "%s:", title)
		for _, st := range compare.Stats {
			v := st.Of(s.Total)
			if s.Name == latency.MainSeries {
				v = st.OfReport(r)
			}
			fmt.Fprintf(b, "  %s %s", st, latency.FormatNS(v))
		}
		fmt.Fprintln(b)
	}
	if few := fewSamples(r); few != "" {
		fmt.Fprintln(b, few)
	}
	for _, row := range countRows {
		if text := row.frames(r, decimal); text != "–" && (row.number(&r.Counts) != 0 || row.always) {
			fmt.Fprintf(b, "%s %s  ", row.name, text)
		}
	}
	if counted(r) {
		fmt.Fprintln(b)
	}
	for _, line := range r.ByCounter() {
		fmt.Fprintln(b, line)
	}
	if c := &r.Counts; c.LostForward != nil && c.LostBackward != nil && c.LostEither != nil && c.Lost > 0 {
		fmt.Fprintf(b, "lost on the way there %d, on the way back %d, on a way unknown %d\n", *c.LostForward, *c.LostBackward, *c.LostEither)
	}
	return b.Flush()
}

// empty reports whether a series has no samples, and so no percentiles.
func empty(r *report.Report, s *latency.Series) bool {
	return s.Total.Count == 0 && (s != r.Main() || !r.Measured())
}

// fewSamples names the percentiles with fewer than ten samples above them, "" if there are none.
func fewSamples(r *report.Report) string {
	if !r.Measured() || r.Main().Total.Count == 0 || r.Foreign.Partial() {
		return ""
	}
	var few []string
	for _, st := range compare.Stats {
		if _, ok := st.Quantile(); ok && r.Main().Total.Count < st.Needs() {
			few = append(few, st.String())
		}
	}
	if few == nil {
		return ""
	}
	return fmt.Sprintf("too few samples for %s: fewer than %d lie beyond (measure longer)", strings.Join(few, ", "), compare.MinTail)
}

// answer summarises the result in one sentence: three percentiles and the loss.
func answer(r *report.Report) string {
	if !r.Measured() {
		return fmt.Sprintf("no %s was measured", r.Metric)
	}
	text := fmt.Sprintf("%s p50 %s, p99 %s, p99.9 %s", r.Metric, latency.FormatNS(r.Quantile(0.5)), latency.FormatNS(r.Quantile(0.99)),
		latency.FormatNS(r.Quantile(0.999)))
	if r.Counts.Sent == 0 || answers(r) {
		return text
	}
	if at, ok := stoppedAt(r); ok {
		text = fmt.Sprintf("the target stopped answering %.1f s after the start; until then %s", at, text)
	}
	text += fmt.Sprintf("; %s of %s lost", report.Range(r.Counts.LostLeast(), r.Counts.Lost, commas), commas(r.Counts.Sent))
	if r.Counts.Lost > 0 {
		text += " " + r.Counts.LostWhere()
	}
	for _, row := range countRows {
		if row.unanswered && row.number(&r.Counts) > 0 {
			text += fmt.Sprintf(", %s %s", row.text(&r.Counts, commas), row.name)
		}
	}
	return text
}

// commas is grouped with commas, for a terminal.
func commas(n int64) string { return strings.ReplaceAll(grouped(n), "\u202f", ",") }

// warnings are what a reader should know before using the numbers, most important first.
func warnings(r *report.Report) (all []string) {
	if text := r.UnfinishedText(); text != "" {
		all = append(all, text)
	}
	all = append(all, r.Warnings...)
	if r.Measured() {
		if _, ended := stoppedAt(r); !ended {
			for _, text := range outageAlerts(outages(r, r.Main())) {
				all = append(all, strings.ToLower(text[:1])+strings.TrimSuffix(text[1:], "."))
			}
		}
	}
	if r.Device.Sim() {
		all = append(all, "a device model answered: these nanoseconds are the model's, not a card's")
	}
	if own := r.OwnTail(); own != "" {
		all = append(all, own+" (measure on an isolated CPU: -core, -isolate)")
	}
	if s := r.STAMP; s != nil && !s.OneWay.Known() {
		all = append(all, "no one-way delays: "+s.OneWay.Why)
	}
	return all
}

// oneWayError describes the error bound of the named series if its values are one-way delays.
func oneWayError(r *report.Report, name string) string {
	if !latency.OneWay(name) || r.STAMP == nil {
		return ""
	}
	return " ± " + latency.FormatNS(float64(r.STAMP.OneWay.ErrorNS))
}

// describe is the line that distinguishes a report from others.
func describe(r *report.Report) string {
	s := []string{r.Name()}
	add := func(format string, args ...any) { s = append(s, fmt.Sprintf(format, args...)) }
	if d := r.Device; d.Driver != "" {
		name := strings.TrimSpace(d.Driver + " " + d.Device)
		if d.Backend != "" {
			name += " (" + d.Backend + ")"
		}
		add("%s", name)
	}
	if t := r.Traffic; t.Protocol != "" {
		if t.Target != "" {
			add("%s to %s", t.Protocol, t.Target)
		} else {
			add("%s", t.Protocol)
		}
		if t.FrameSize > 0 {
			add("%d bytes", t.FrameSize)
		}
		s = append(s, t.Marks()...)
		switch {
		case t.Mode == "open" && t.Rate > 0:
			add("open loop at %s/s", FormatRate(t.Rate))
			add("%s", t.Spread())
		case t.Mode != "":
			add("%s loop", t.Mode)
		}
	}
	if r.Measured() && r.Main().Total.Count > 0 {
		add("%s", plain.Count(r.Main().Total.Count, "sample"))
	}
	if n := len(r.Runs); n > 1 {
		add("%d runs", n)
	}
	return strings.Join(slices.DeleteFunc(s, func(x string) bool { return x == "" }), ", ")
}

// transferKinds returns the kinds of bus transactions that any of the reports counted, sorted.
func transferKinds(rs ...*report.Report) []string {
	kinds := map[string]bool{}
	for _, r := range rs {
		for k := range r.Transfers {
			kinds[k] = true
		}
	}
	return slices.Sorted(maps.Keys(kinds))
}
