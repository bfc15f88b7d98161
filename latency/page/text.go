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
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/latency/sanitize"
)

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
	for _, r := range c.Reports {
		if text := OwnText(r); text != "" {
			notes = append(notes, warned(r, text))
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
	if rows := transferRows(c.Reports); rows != nil {
		printRows(b, "bus transactions a reply", c.Reports, rows)
		fmt.Fprintln(b)
	}
	if slices.ContainsFunc(c.Reports, counted) {
		printRows(b, "frames", c.Reports, countRows(c.Reports, true))
	}
	return b.Flush()
}

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
			own := ownMark(p.A, r.Stat)+ownMark(p.B, r.Stat) != ""
			switch {
			case !slices.Contains(compare.Stats(latency.AnswerText), r.Stat):
			case r.Verdict > compare.Noise:
				shift := latency.FormatNS(math.Abs(r.Shift))
				switch share := r.Percent() / 100; {
				case math.IsNaN(share):
				case share > latency.MostPercent:
					shift += " (" + latency.FormatChange(share) + ")"
				default:
					shift += " (" + latency.FormatShare(math.Abs(share)) + ")"
				}
				if own {
					name += " (this host's own lag)"
				}
				changed = append(changed, fmt.Sprintf("%s %s at %s", shift, r.Verdict, name))
			case r.Verdict == compare.Noise:
				if name += " (within ±" + r.Visible(); own {
					name += ", this host's own lag"
				}
				same = append(same, name+")")
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
	if at := limited(c.Reports); len(at) > 0 && len(all) > 0 {
		return fmt.Sprintf("this host limited %s, so that a difference may be its own and not the target's: %s",
			strings.Join(at, " and "), strings.Join(all, ". "))
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
			return sanitize.Count(int((d+u.size-1)/u.size), "more "+u.name)
		}
	}
	return sanitize.Count(int((d+time.Second-1)/time.Second), "more second")
}

func printPair(b *bufio.Writer, p compare.Pair) {
	fmt.Fprintf(b, "A  %s\nB  %s\n\n", describe(p.A), describe(p.B))
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	if len(p.Rows) == 0 {
		return
	}
	fmt.Fprintf(t, "%s\tA pooled\tB pooled\tshift of runs\t\t\tinterval\tsmallest visible\tp\t\n", metric(p.A, p.B))
	why := map[string]bool{}
	for _, r := range pairRows(&p, false, "[%s, %s]") {
		if r.Why != "" {
			why[r.Why] = true
		}
		fmt.Fprint(t, r.text(false))
	}
	t.Flush()
	for _, w := range p.OneWay {
		fmt.Fprintf(b, "%s: ± %s of A, ± %s of B by their clocks; a shift within the sum has no verdict\n",
			wayName(w.Series), latency.FormatNS(w.ErrorA), latency.FormatNS(w.ErrorB))
	}
	fmt.Fprintf(b, "\n+ slower, - faster, ~ no change seen, ? cannot tell")
	if text := tested(p); text != "" {
		fmt.Fprintf(b, "; %s", text)
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

// tested says in one sentence over what the rows of a table were tested: "tested over 32 pairs of runs; p99.9 over 16
// pairs, each of two runs joined". It is empty if none was.
func tested(p compare.Pair) string {
	var ways []string
	rows := map[string][]string{}
	for _, r := range p.Rows {
		if r.Tested() {
			if rows[r.How] == nil {
				ways = append(ways, r.How)
			}
			rows[r.How] = append(rows[r.How], r.Stat.String())
		}
	}
	if ways == nil {
		return ""
	}
	text := "tested over " + ways[0]
	for _, how := range ways[1:] {
		text += "; " + strings.Join(rows[how], ", ") + " over " + how
	}
	return text
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
		return "<" + latency.FormatNS(grain), "<" + latency.FormatShare(r.Resolution)
	}
	return latency.FormatSigned(r.Shift), latency.FormatChange(r.Percent() / 100)
}

// wayName is the display name of a series of one-way delays.
func wayName(series string) string { return strings.ReplaceAll(series, "_", " ") }

// mostWarnings is how many warnings PrintReport writes, because readers skip longer lists. The report's page has all.
const mostWarnings = 3

// PrintReport writes a report as text: the headline, at most three warnings with their remedy, then what was measured
// with its percentiles and the frame counts.
func PrintReport(w io.Writer, r *report.Report) error {
	b := bufio.NewWriter(w)
	fmt.Fprintln(b, answer(r))
	for _, line := range r.Attribution.Lines() {
		fmt.Fprintln(b, sanitize.Text(line))
	}
	warnings := warnings(r)
	for _, text := range warnings[:min(len(warnings), mostWarnings)] {
		fmt.Fprintf(b, "warning: %s\n", text)
	}
	fmt.Fprintf(b, "\n%s\n", describe(r))
	for _, line := range r.Foreign.Lines() {
		fmt.Fprintln(b, line)
	}
	for _, s := range r.Series {
		if s.Name != latency.MainSeries && s.Name != latency.UncorrectedSeries && !latency.OneWay(s.Name) ||
			empty(r, s) {
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
		values := figures(latency.FullTable, "  ", func(st compare.Stat) string { return seriesText(r, s, st) })
		fmt.Fprintf(b, "%s:  %s\n", title, values)
	}
	if few := fewSamples(r); few != "" {
		fmt.Fprintln(b, few)
	}
	for _, row := range CountRows {
		if text := row.frames(r); text != "–" && (row.Number(&r.Counts) != 0 || row.always) {
			fmt.Fprintf(b, "%s %s  ", row.Name, text)
		}
	}
	if counted(r) {
		fmt.Fprintln(b)
	}
	if text := r.RejectedText(); text != "" {
		fmt.Fprintf(b, "rejected replies: %s\n", text)
	}
	for _, line := range r.ByCounter() {
		fmt.Fprintln(b, line)
	}
	if c := &r.Counts; c.LostForward != nil && c.LostBackward != nil && c.LostEither != nil && c.Lost > 0 {
		fmt.Fprintf(b, "lost on the way there %s, on the way back %s, on a way unknown %s\n",
			latency.FormatCount(*c.LostForward), latency.FormatCount(*c.LostBackward),
			latency.FormatCount(*c.LostEither))
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
	for _, st := range compare.Stats(latency.FullTable) {
		if _, ok := st.Quantile(); ok && r.Main().Total.Count < st.Needs() {
			few = append(few, st.String())
		}
	}
	if few == nil {
		return ""
	}
	return fmt.Sprintf("too few samples for %s: fewer than %d lie beyond (measure longer)", strings.Join(few, ", "),
		compare.MinTail)
}

// answer summarises the result in one sentence: three percentiles and the loss.
func answer(r *report.Report) string {
	if !r.Measured() {
		text := fmt.Sprintf("no %s was measured", r.Metric)
		if r.Counts.Sent == 0 || answers(r) {
			return text
		}
		return text + repliesText(r)
	}
	text := fmt.Sprintf("%s %s", r.Metric, Figures(r, latency.AnswerText))
	if late := lateText(r); late != "" {
		sent := r.Find(latency.UncorrectedSeries)
		values := figures(latency.AnswerText, ", ", func(st compare.Stat) string { return seriesText(r, sent, st) })
		text = fmt.Sprintf("this host sent late; %s from the actual send %s", r.Metric, values) + late
	} else if notOffered(r) {
		text = fmt.Sprintf("this host could not keep %s/s; at what it sent: %s", latency.FormatRate(r.Traffic.Rate),
			text)
	} else if own := ownNamed(r); own != "" {
		text += ", where this host's own lag accounts for " + own
	}
	if r.Counts.Sent == 0 || answers(r) {
		return text
	}
	if at, ok := stoppedAt(r); ok {
		text = fmt.Sprintf("the target stopped answering %s after the start; until then %s", latency.FormatNS(1e9*at),
			text)
	}
	return text + repliesText(r)
}

// repliesText is the headline's part about probes without a timely reply.
func repliesText(r *report.Report) string {
	text := fmt.Sprintf("; %s of %s lost", report.Range(r.Counts.LostLeast(), r.Counts.Lost,
		latency.FormatCount[int64]), latency.FormatCount(r.Counts.Sent))
	if where := r.Counts.LostWhere(); r.Counts.Lost > 0 && where != "" {
		text += " " + where
	}
	for _, row := range CountRows {
		if row.Unanswered && row.Number(&r.Counts) > 0 {
			text += fmt.Sprintf(", %s %s", row.Text(&r.Counts), row.Name)
		}
	}
	return text
}

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
	if text := r.Counts.UnknownText(); text != "" {
		all = append(all, text)
	}
	if r.Device.Sim() {
		all = append(all, "a device model answered: these nanoseconds are the model's, not a card's")
	}
	if own := ownLag(r); own != "" {
		all = append(all, own+" (measure on an isolated CPU: -core, -isolate)")
	}
	if s := r.STAMP; s != nil && !s.OneWay.Known() {
		all = append(all, "no one-way delays: "+s.OneWay.Why)
	}
	return all
}

// ownLag says for which percentiles this host accounts, and why.
func ownLag(r *report.Report) string {
	return strings.Join(slices.DeleteFunc([]string{OwnText(r), r.OwnTail()}, func(s string) bool { return s == "" }),
		": ")
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
			add("open loop at %s/s", latency.FormatRate(t.Rate))
			add("%s", t.Spread())
		case t.Mode != "":
			add("%s loop", t.Mode)
		}
	}
	if r.Measured() && r.Main().Total.Count > 0 {
		add("%s", sanitize.Count(r.Main().Total.Count, "sample"))
	}
	if n := len(r.Runs); n > 1 {
		add("%s", sanitize.Count(n, "run"))
	}
	return strings.Join(slices.DeleteFunc(s, func(x string) bool { return x == "" }), ", ")
}

// printRows writes a table with a column for each report.
func printRows(b *bufio.Writer, head string, rs []*report.Report, rows []Row) {
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, row := range append([]Row{rowOf(head, rs, (*report.Report).Name)}, rows...) {
		fmt.Fprintf(t, "%s\t%s\t\n", row.Name, strings.Join(row.Values, "\t"))
	}
	t.Flush()
}

// rowOf is the row of a table with a column for each report.
func rowOf(name string, rs []*report.Report, value func(*report.Report) string) Row {
	row := Row{Name: name}
	for _, r := range rs {
		row.Values = append(row.Values, value(r))
	}
	return row
}

// transferRows has a row for each kind of bus transaction that any of the reports counted, with their number for a
// reply.
func transferRows(rs []*report.Report) (all []Row) {
	for _, k := range transferKinds(rs...) {
		all = append(all, rowOf(k, rs, func(r *report.Report) string {
			if r.Transfers == nil {
				return "–"
			}
			return fmt.Sprintf("%.3f", r.PerReply(k))
		}))
	}
	return all
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
