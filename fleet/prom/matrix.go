package prom

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rebound-nic/rebound/fleet/matrix"
	"github.com/rebound-nic/rebound/fleet/suspects"
	"github.com/rebound-nic/rebound/internal/bench/answer"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/latency/sanitize"
)

// MatrixOptions select the data of a matrix.
type MatrixOptions struct {
	At       time.Time     // its end
	Range    time.Duration // up to At
	Before   time.Duration // distance of the baseline, which has the same length
	Windows  int           // number of windows that each is divided into
	FromName string        // label with the measuring host; "" for the node that the watch reports, or its instance
	ToName   string        // label with the measured target; "" for its node, or the target
	Labels   []Label       // that all series must have
}

const (
	lostMetric      = "rebound_lost_total"
	uncertainMetric = "rebound_lost_uncertain_total"
)

// falseMarks states how often the verdicts of a whole matrix are wrong.
const falseMarks = "If nothing changed, at most 5 % of matrices of this size show any + or -. A level that differs by more than 10 % between the two times " +
	"anyway, as under a load that changes from day to day, counts as a change."

// Matrix queries what each host measured of each target, one host at a time, and compares it with the baseline.
func (s *Server) Matrix(ctx context.Context, o MatrixOptions) (*matrix.Matrix, error) {
	sel := &Source{Labels: o.Labels}
	by := cmp.Or(o.FromName, "instance")
	hosts, err := s.instant(ctx, fmt.Sprintf("count by (%s) (count_over_time(%s[%ds]))", by,
		sel.selector("rebound_probes_total"), int(o.Range.Seconds())), o.At)
	if err != nil {
		return nil, err
	}
	grouped := []string{by, "node", "zone"}
	slices.Sort(grouped)
	self, err := s.instant(ctx, fmt.Sprintf("count by (%s) (last_over_time(%s[%ds]))",
		strings.Join(slices.Compact(grouped), ", "), sel.selector(selfMetric), int(o.Range.Seconds())), o.At)
	if err != nil {
		return nil, err
	}
	members := map[string]suspects.Member{}
	for _, x := range self {
		members[x.Metric[by]] = suspects.Member{Name: x.Metric["node"], Zone: x.Metric["zone"]}
	}
	tested := 0 // all series, because only the worst of a cell's series is shown
	for _, h := range hosts {
		for _, v := range h.Values {
			tested += int(v.V)
		}
	}
	m := &matrix.Matrix{Cells: map[matrix.Pair]*matrix.Cell{}, Zones: map[string]string{},
		Title:   "Mesh, " + o.At.UTC().Format("2 January 2006 15:04 UTC"),
		Summary: fmt.Sprintf("Round trips and loss during %s, compared with the same time %s earlier. Each is split into %s; a window counts as one run. ", timeText(o.Range), timeText(o.Before), sanitize.Count(o.Windows, "window")) + falseMarks}
	rows, columns := map[string]bool{}, map[string]bool{}
	partial, unfit, width, unknown, several := 0, 0, 0.0, map[string]int{}, map[matrix.Pair]bool{}
	found, err := s.pathsOfAll(ctx, hosts, by, o, tested)
	if err != nil {
		return nil, err
	}
	for i, h := range hosts {
		from := h.Metric[by]
		member := members[from]
		if o.FromName == "" {
			from = cmp.Or(member.Name, from)
		}
		for _, p := range found[i] {
			if p.to == "" {
				return nil, fmt.Errorf("series of %s without the label %s: set -to to the label of the target",
					sanitize.Text(from), cmp.Or(o.ToName, "target"))
			}
			key := matrix.Pair{From: sanitize.Text(from), To: sanitize.Text(p.to)}
			rows[key.From], columns[key.To] = true, true
			for name, zone := range map[string]string{key.To: p.zone, key.From: member.Zone} {
				if zone != "" {
					m.Zones[name] = sanitize.Text(zone)
				}
			}
			width = max(width, p.width)
			if p.part {
				partial++
			}
			if p.uncounted != "" {
				unknown[p.uncounted]++
			}
			if p.unfit {
				unfit++
			}
			if was := m.Cells[key]; was != nil {
				several[key] = true
				sum := was.Counts
				sum.Add(&p.cell.Counts)
				if was.P99 >= p.cell.P99 {
					p.cell = was
				}
				p.cell.Counts = sum
			}
			m.Cells[key] = p.cell
		}
	}
	if len(m.Cells) == 0 {
		return nil, fmt.Errorf("%w: no %s in the %s before %s", answer.ErrNothing, sel.selector("rebound_probes_total"),
			timeText(o.Range), o.At.UTC().Format(time.RFC3339))
	}
	m.From, m.To = slices.Sorted(maps.Keys(rows)), slices.Sorted(maps.Keys(columns))
	some := func(n int) string { return latency.FormatCount(n) + " of " + sanitize.Count(len(m.Cells), "path") }
	if partial > 0 {
		m.Notes = append(m.Notes,
			fmt.Sprintf("less than %s of data for %s: the cell covers the latest half, quarter or less",
				timeText(o.Range), some(partial)))
	}
	for _, metric := range slices.Sorted(maps.Keys(unknown)) {
		m.Notes = append(m.Notes, fmt.Sprintf("no %s for %s: the loss is a range", metric, some(unknown[metric])))
	}
	if unfit > 0 {
		m.Notes = append(m.Notes, fmt.Sprintf("the counters of %s %s: the loss is a range", some(unfit), disagree))
	}
	if len(several) > 0 {
		m.Notes = append(m.Notes,
			fmt.Sprintf("several series in %s: loss is of all of them, the rest is of the one with the longest p99",
				sanitize.Count(len(several), "cell")))
	}
	if least := compare.RunsAmong(tested, compare.Stats(latency.CellTable)); o.Windows < least {
		m.Notes = append(m.Notes,
			fmt.Sprintf("no path can have a verdict: a test of %s needs %d windows, set -windows %[2]d",
				sanitize.Count(tested, "path"), least))
	}
	if width > 0 {
		m.Notes = append(m.Notes,
			fmt.Sprintf("percentiles are accurate to %s, the width of the buckets that Prometheus keeps",
				latency.FormatShare(width)))
	}
	return m, nil
}

// pathsOfAll returns the cells of each host. It asks for a few hosts at a time.
func (s *Server) pathsOfAll(ctx context.Context, hosts []answer.Series, by string, o MatrixOptions,
	tested int) ([][]path, error) {
	found, errs := make([][]path, len(hosts)), make([]error, len(hosts))
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	next := make(chan int)
	var done sync.WaitGroup
	for range 4 {
		done.Go(func() {
			for i := range next {
				from := hosts[i].Metric[by]
				if from == "" {
					errs[i] = fmt.Errorf("series without the label %s: set -from to the label of the measuring host",
						by)
				} else {
					found[i], errs[i] = s.paths(ctx, &Source{Labels: append(slices.Clone(o.Labels), Label{by, from})},
						o, tested)
				}
				if errs[i] != nil {
					stop()
				}
			}
		})
	}
	for i := range hosts {
		next <- i
	}
	close(next)
	done.Wait()
	for _, err := range errs { // the first that is not due to another
		if err != nil && !errors.Is(err, context.Canceled) {
			return nil, err
		}
	}
	return found, ctx.Err()
}

type path struct {
	to    string
	zone  string // the target's zone
	cell  *matrix.Cell
	width float64
	part  bool // only a part of the range has data

	uncounted string // the loss metric that is missing
	unfit     bool   // the counters add up to more than was sent
}

// paths are all cells of one host. A path whose data start within the range is evaluated from its latest half, quarter,
// and so on.
func (s *Server) paths(ctx context.Context, of *Source, o MatrixOptions, tested int) ([]path, error) {
	fine, err := s.series(ctx, of, "rebound_probes_total", o.At.Add(-o.Range), o.At, max(o.Range/240, time.Second))
	if err != nil {
		return nil, err
	}
	lengths := map[time.Duration][]string{}
	for id, each := range fine {
		if len(each.Values) > 0 {
			length := o.covered(each.Values[0].At)
			lengths[length] = append(lengths[length], id)
		}
	}
	var out []path
	for _, length := range slices.Sorted(maps.Keys(lengths)) {
		part := o
		part.Range = length
		found, err := s.pathsOver(ctx, of, part, fine, lengths[length], tested)
		if err != nil {
			return nil, err
		}
		for i := range found {
			found[i].part = length < o.Range
		}
		out = append(out, found...)
	}
	return out, nil
}

// covered returns the part of the range before o.At that data from a given time on cover: the whole, or a half, a
// quarter, and so on, down to windows of a second.
func (o *MatrixOptions) covered(from time.Time) time.Duration {
	length := o.Range
	if from.Sub(o.At.Add(-o.Range)) <= o.Range/time.Duration(o.Windows) {
		return length
	}
	for length > o.At.Sub(from) && length/2/time.Duration(o.Windows) >= time.Second {
		length /= 2
	}
	return length
}

// series returns the series of a metric by their labels.
func (s *Server) series(ctx context.Context, of *Source, metric string, from, to time.Time,
	step time.Duration) (map[string]answer.Series, error) {
	all, err := s.Range(ctx, of.selector(metric), from, to, step)
	out := map[string]answer.Series{}
	for _, each := range all {
		out[identity(each.Metric)] = each
	}
	return out, err
}

// pathsOver are the cells of the series with these labels, out of all. The matrix has tested series in total.
func (s *Server) pathsOver(ctx context.Context, of *Source, o MatrixOptions, all map[string]answer.Series, ids []string,
	tested int) ([]path, error) {
	start, step := o.At.Add(-o.Range), o.Range/time.Duration(o.Windows)
	sent, err := s.series(ctx, of, "rebound_probes_total", start, o.At, step)
	if err != nil {
		return nil, err
	}
	now, err := s.series(ctx, of, DefaultMetric, start, o.At, step)
	if err != nil {
		return nil, err
	}
	before, err := s.series(ctx, of, DefaultMetric, start.Add(-o.Before), o.At.Add(-o.Before), step)
	if err != nil {
		return nil, err
	}
	lost, err := s.series(ctx, of, lostMetric, start, o.At, step)
	if err != nil {
		return nil, err
	}
	uncertain, err := s.series(ctx, of, uncertainMetric, start, o.At, step)
	if err != nil {
		return nil, err
	}
	elsewhere, err := s.elsewhere(ctx, of, start, o.At, step)
	if err != nil {
		return nil, err
	}
	var out []path
	slices.Sort(ids)
	for _, id := range ids {
		labels := all[id].Metric
		to := labels[o.ToName]
		if o.ToName == "" {
			to = cmp.Or(labels["node"], labels["target"])
		}
		p := path{to: to, zone: labels["zone"], cell: &matrix.Cell{Counts: elsewhere[id]}}
		c := p.cell
		c.Sent, c.LostUncertain = grown(sent[id].Values), grown(uncertain[id].Values)
		c.Lost = grown(lost[id].Values) + c.LostUncertain
		b, err := answer.Report(now[id].Histograms, start, step, o.Windows)
		if err == nil {
			c.Samples = b.Main().Total.Count
		}
		p.uncounted = uncounted(lost, uncertain, id)
		switch p.uncounted {
		case lostMetric:
			c.Lost = max(c.Sent-c.Samples-c.SendFailed-c.CorruptOnly, 0)
			c.LostUncertain = c.Lost
		case uncertainMetric:
			c.LostUncertain = c.Lost
		}
		p.unfit = !agree(&c.Counts)
		out = append(out, p)
		if err != nil {
			switch {
			case c.Sent == 0:
				c.Why = "no probes in this time, or fewer than two scrapes"
			case len(now[id].Histograms) == 0 && (p.uncounted == lostMetric || c.Sent > c.Lost):
				c.Why = "no native histogram"
			default:
				c.Why, c.Silent = "no replies", true
			}
			continue
		}
		out[len(out)-1].width = b.Resolution
		total := b.Main().Total
		c.P50, c.P99 = float64(total.Quantile(0.5)), float64(total.Quantile(0.99))
		a, err := answer.Report(before[id].Histograms, start.Add(-o.Before), step, o.Windows)
		if err != nil {
			c.Why = "no baseline: no data from that time"
			continue
		}
		a.Label, b.Label = "baseline", "now"
		judge(c, tested, a, b)
	}
	return out, nil
}

// uncounted returns the loss metric that a series lacks, "" for none.
func uncounted(lost, uncertain map[string]answer.Series, id string) string {
	if _, ok := lost[id]; !ok {
		return lostMetric
	}
	if _, ok := uncertain[id]; !ok {
		return uncertainMetric
	}
	return ""
}

// judge sets the verdict of a cell, which is one of a number of tested paths: the first that is slower, otherwise the
// first that is faster, otherwise noise if any was tested.
func judge(c *matrix.Cell, tested int, before, now *report.Report) {
	rows := compare.Among(tested, compare.Stats(latency.CellTable), before, now).Rows
	for _, want := range []compare.Verdict{compare.Slower, compare.Faster, compare.Noise} {
		for _, row := range rows {
			if row.Verdict == want {
				c.Verdict, c.Stat, c.Shift, c.Now = want, row.Stat.String(), row.Shift, row.PooledB
				return
			}
		}
	}
	if len(rows) > 0 {
		c.Why = rows[0].Why
	}
}

const (
	troubleMetric = "rebound_replies_trouble_total"
	placeMetric   = "rebound_lost_uncertain_place_total"
)

// elsewhere returns, for each series of a watch by its labels, the probes that were not certainly lost between the
// hosts.
func (s *Server) elsewhere(ctx context.Context, of *Source, from, to time.Time,
	step time.Duration) (map[string]report.Counts, error) {
	out := map[string]report.Counts{}
	for _, q := range []struct{ metric, label, only string }{
		{troubleMetric, "kind", "late|duplicate|reordered|corrupt|corrupt_only|send_failed"}, {placeMetric, "place", "here|there"},
	} {
		all, err := s.Range(ctx, fmt.Sprintf("%s,%s=~%q}", strings.TrimSuffix(of.selector(q.metric), "}"), q.label,
			q.only), from, to, step)
		if err != nil {
			return nil, err
		}
		for _, each := range all {
			value, n := each.Metric[q.label], grown(each.Values)
			delete(each.Metric, q.label)
			c := out[identity(each.Metric)]
			switch value {
			case "late":
				c.Late = n
			case "duplicate":
				c.Duplicates = n
			case "reordered":
				c.Reordered = n
			case "corrupt":
				c.Corrupt = n
			case "corrupt_only":
				c.CorruptOnly = n
			case "send_failed":
				c.SendFailed = n
			case "here":
				c.DroppedHere, c.DroppedHereUncertain, c.DroppedHereCounted = n, n, true
			case "there":
				c.RefusedThere, c.RefusedThereUncertain = n, n
			}
			out[identity(each.Metric)] = c
		}
	}
	return out, nil
}

// timeText formats a duration that was set: "7 days", "1 hour", "90 minutes".
func timeText(d time.Duration) string {
	for _, u := range []struct {
		of   time.Duration
		name string
	}{{24 * time.Hour, "day"}, {time.Hour, "hour"}, {time.Minute, "minute"}, {time.Second, "second"}} {
		if d >= u.of && d%u.of == 0 {
			return sanitize.Count(int64(d/u.of), u.name)
		}
	}
	return latency.FormatDuration(d)
}

// identity identifies a series without the metric's name.
func identity(labels map[string]string) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		if k != "__name__" {
			fmt.Fprintf(&b, "%s=%q,", k, labels[k])
		}
	}
	return b.String()
}
