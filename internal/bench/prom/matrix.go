package prom

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/page"
	"github.com/rebound-nic/rebound/latency/plain"
)

// MatrixOptions say what a matrix is drawn of.
type MatrixOptions struct {
	At       time.Time     // its end
	Range    time.Duration // up to At
	Before   time.Duration // by how much the baseline, of the same length, lies before it
	Windows  int           // that each is cut into
	FromName string        // label of who measured
	ToName   string        // label of what was measured
	Labels   []Label       // that all series have to have
}

const (
	lostMetric      = "rebound_lost_total"
	uncertainMetric = "rebound_lost_uncertain_total"
)

// matrixStats are what the verdict of a path looks at; the first one that is slower or faster is shown.
var matrixStats = []string{"p50", "p90", "p99"}

// Matrix requests what each host measured of each target, one host at a time, and compares it with the baseline.
func (s *Server) Matrix(ctx context.Context, o MatrixOptions) (*page.Matrix, error) {
	sel := &Source{Labels: o.Labels}
	hosts, err := s.Instant(ctx, fmt.Sprintf("count by (%s) (count_over_time(%s[%ds]))", o.FromName, sel.Selector("rebound_probes_total"), int(o.Range.Seconds())), o.At)
	if err != nil {
		return nil, err
	}
	m := &page.Matrix{Cells: map[page.Pair]*page.Cell{}, Title: "Mesh, " + o.At.UTC().Format("2 January 2006 15:04 UTC"),
		Summary: fmt.Sprintf("Round trips and loss during %s, compared with the same time %s earlier. Each is split into %d windows; a window counts as one run.", timeText(o.Range), timeText(o.Before), o.Windows)}
	rows, columns := map[string]bool{}, map[string]bool{}
	several, partial, width, unknown := 0, 0, 0.0, map[string]int{}
	for _, h := range hosts {
		from := h.Metric[o.FromName]
		if from == "" {
			return nil, fmt.Errorf("series without the label %s: name the label of who measured by -from", o.FromName)
		}
		of := &Source{Labels: append(slices.Clone(o.Labels), Label{o.FromName, from})}
		all, err := s.paths(ctx, of, o)
		if err != nil {
			return nil, err
		}
		for _, p := range all {
			if p.to == "" {
				return nil, fmt.Errorf("series of %s without the label %s: name the label of what was measured by -to", plain.Text(from), o.ToName)
			}
			key := page.Pair{From: plain.Text(from), To: plain.Text(p.to)}
			rows[key.From], columns[key.To] = true, true
			width = max(width, p.width)
			if p.part {
				partial++
			}
			if p.uncounted != "" {
				unknown[p.uncounted]++
			}
			if was := m.Cells[key]; was != nil {
				if several++; was.P99 >= p.cell.P99 {
					continue
				}
			}
			m.Cells[key] = p.cell
		}
	}
	if len(m.Cells) == 0 {
		return nil, fmt.Errorf("%w: no %s in the %v before %s", ErrNothing, sel.Selector("rebound_probes_total"), o.Range, o.At.UTC().Format(time.RFC3339))
	}
	m.From, m.To = slices.Sorted(maps.Keys(rows)), slices.Sorted(maps.Keys(columns))
	if partial > 0 {
		m.Notes = append(m.Notes, fmt.Sprintf("%d of %d paths have data for only part of the %s: their cells cover the latest half, quarter or less", partial, len(m.Cells), timeText(o.Range)))
	}
	for _, metric := range slices.Sorted(maps.Keys(unknown)) {
		m.Notes = append(m.Notes, fmt.Sprintf("%d of %d paths have no %s: their loss is a range", unknown[metric], len(m.Cells), metric))
	}
	if several > 0 {
		m.Notes = append(m.Notes, fmt.Sprintf("%d cells have several series: the one with the longest p99 is shown", several))
	}
	if width > 0 {
		m.Notes = append(m.Notes, fmt.Sprintf("percentiles are accurate to %s, the width of the buckets that Prometheus keeps", latency.FormatShare(width)))
	}
	return m, nil
}

type path struct {
	to    string
	cell  *page.Cell
	width float64
	part  bool // there are data of only a part of the range

	uncounted string // the metric of loss that there is none of
}

// paths are all cells of one host. A path whose data begin within the range is drawn from its latest half, quarter, and so on.
func (s *Server) paths(ctx context.Context, of *Source, o MatrixOptions) ([]path, error) {
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
		found, err := s.pathsOver(ctx, of, part, fine, lengths[length])
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

// covered returns the part of the range before o.At that data from a moment on fill: the whole, or a half, a quarter, and so on, down to
// windows of a second.
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
func (s *Server) series(ctx context.Context, of *Source, metric string, from, to time.Time, step time.Duration) (map[string]Series, error) {
	all, err := s.Range(ctx, of.Selector(metric), from, to, step)
	out := map[string]Series{}
	for _, each := range all {
		out[identity(each.Metric)] = each
	}
	return out, err
}

// pathsOver are the cells of the series with these labels, which are those of all.
func (s *Server) pathsOver(ctx context.Context, of *Source, o MatrixOptions, all map[string]Series, ids []string) ([]path, error) {
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
	var out []path
	slices.Sort(ids)
	for _, id := range ids {
		p := path{to: all[id].Metric[o.ToName], cell: &page.Cell{Sent: grown(sent[id].Values), LostUncertain: grown(uncertain[id].Values)}}
		c := p.cell
		c.Lost = grown(lost[id].Values) + c.LostUncertain
		b, err := FromMoments(now[id].Histograms, start, step, o.Windows)
		if err == nil {
			c.Samples = b.Main().Total.Count
		}
		p.uncounted = uncounted(lost, uncertain, id)
		switch p.uncounted {
		case lostMetric:
			c.Lost = max(c.Sent-c.Samples, 0)
			c.LostUncertain = c.Lost
		case uncertainMetric:
			c.LostUncertain = c.Lost
		}
		out = append(out, p)
		if err != nil {
			switch {
			case c.Sent == 0:
				c.Why = "no probes in this time, or fewer than two scrapes"
			case len(now[id].Histograms) == 0 && (p.uncounted == lostMetric || c.Sent > c.Lost):
				c.Why = "no native histogram"
			default:
				c.Why = "no replies"
			}
			continue
		}
		out[len(out)-1].width = b.Resolution
		total := b.Main().Total
		c.P50, c.P99 = float64(total.Quantile(0.5)), float64(total.Quantile(0.99))
		a, err := FromMoments(before[id].Histograms, start.Add(-o.Before), step, o.Windows)
		if err != nil {
			c.Why = "no baseline: no data from that time"
			continue
		}
		a.Label, b.Label = "baseline", "now"
		judge(c, compare.Reports(a.Report, b.Report))
	}
	return out, nil
}

// uncounted returns the metric of loss that a series lacks, "" for none.
func uncounted(lost, uncertain map[string]Series, id string) string {
	if _, ok := lost[id]; !ok {
		return lostMetric
	}
	if _, ok := uncertain[id]; !ok {
		return uncertainMetric
	}
	return ""
}

// judge gives a cell the first verdict that is slower, otherwise the first that is faster, otherwise noise, where any
// was tested.
func judge(c *page.Cell, cmp *compare.Comparison) {
	for _, want := range []compare.Verdict{compare.Slower, compare.Faster, compare.Noise} {
		for _, row := range cmp.Pairs[0].Rows {
			if slices.Contains(matrixStats, row.Stat.String()) && row.Verdict == want {
				c.Verdict, c.Stat, c.Shift = want, row.Stat.String(), row.Shift
				return
			}
		}
	}
	for _, row := range cmp.Pairs[0].Rows {
		if row.Stat.String() == matrixStats[0] {
			c.Why = row.Why
		}
	}
}

// timeText writes a length of time: 7d, 1h, 1h30m.
func timeText(d time.Duration) string {
	if days := d / (24 * time.Hour); days > 0 && d%(24*time.Hour) == 0 {
		return fmt.Sprintf("%dd", days)
	}
	text := d.String()
	if t, ok := strings.CutSuffix(text, "m0s"); ok {
		text = t + "m"
	}
	if t, ok := strings.CutSuffix(text, "h0m"); ok {
		text = t + "h"
	}
	return text
}

// identity is a series without the metric's name.
func identity(labels map[string]string) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		if k != "__name__" {
			fmt.Fprintf(&b, "%s=%q,", k, labels[k])
		}
	}
	return b.String()
}
