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

// matrixStats are what the verdict of a path looks at; the first one that is slower or faster is shown.
var matrixStats = []string{"p50", "p90", "p99"}

// Matrix requests what each host measured of each target, one host at a time, and holds it against the baseline.
func (s *Server) Matrix(ctx context.Context, o MatrixOptions) (*page.Matrix, error) {
	sel := &Source{Labels: o.Labels}
	hosts, err := s.Instant(ctx, fmt.Sprintf("count by (%s) (count_over_time(%s[%ds]))", o.FromName, sel.Selector("rebound_probes_total"), int(o.Range.Seconds())), o.At)
	if err != nil {
		return nil, err
	}
	m := &page.Matrix{Cells: map[page.Pair]*page.Cell{}, Title: "Mesh, " + o.At.UTC().Format("2 January 2006 15:04 UTC"),
		Summary: fmt.Sprintf("Round trips and loss of %v, compared with the same time %v before: each in %d windows, which stand for runs.", o.Range, o.Before, o.Windows)}
	rows, columns := map[string]bool{}, map[string]bool{}
	several, width := 0, 0.0
	for _, h := range hosts {
		from := h.Metric[o.FromName]
		if from == "" {
			return nil, fmt.Errorf("series without the label %s: name the label of who measured by -from", o.FromName)
		}
		of := &Source{Labels: append(slices.Clone(o.Labels), Label{o.FromName, from})}
		all, err := s.paths(ctx, of, o, from)
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
	if several > 0 {
		m.Notes = append(m.Notes, fmt.Sprintf("%d cells have several series: the one with the longest p99 is shown", several))
	}
	if width > 0 {
		m.Notes = append(m.Notes, fmt.Sprintf("Prometheus keeps buckets up to %s wide: no percentile is known finer", latency.FormatShare(width)))
	}
	return m, nil
}

type path struct {
	to    string
	cell  *page.Cell
	width float64
}

// paths are all cells of one host.
func (s *Server) paths(ctx context.Context, of *Source, o MatrixOptions, from string) ([]path, error) {
	start, step := o.At.Add(-o.Range), o.Range/time.Duration(o.Windows)
	series := func(metric string, begin time.Time) (map[string]Series, error) {
		all, err := s.Range(ctx, of.Selector(metric), begin, begin.Add(o.Range), step)
		out := map[string]Series{}
		for _, each := range all {
			out[identity(each.Metric)] = each
		}
		return out, err
	}
	now, err := series(DefaultMetric, start)
	if err != nil {
		return nil, err
	}
	before, err := series(DefaultMetric, start.Add(-o.Before))
	if err != nil {
		return nil, err
	}
	sent, err := series("rebound_probes_total", start)
	if err != nil {
		return nil, err
	}
	lost, err := series("rebound_lost_total", start)
	if err != nil {
		return nil, err
	}
	uncertain, err := series("rebound_lost_uncertain_total", start)
	if err != nil {
		return nil, err
	}
	var out []path
	for _, id := range slices.Sorted(maps.Keys(sent)) {
		p := path{to: sent[id].Metric[o.ToName], cell: &page.Cell{Sent: grown(sent[id].Values), LostUncertain: grown(uncertain[id].Values)}}
		c := p.cell
		c.Lost = grown(lost[id].Values) + c.LostUncertain
		out = append(out, p)
		b, err := FromMoments(now[id].Histograms, start, step, o.Windows)
		if err != nil {
			c.Why = "nothing came back"
			if c.Sent > c.Lost {
				c.Why = "there is no native histogram of it"
			}
			continue
		}
		out[len(out)-1].width = b.Width
		total := b.Main().Total
		c.P50, c.P99, c.Samples = float64(total.Quantile(0.5)), float64(total.Quantile(0.99)), total.Count
		a, err := FromMoments(before[id].Histograms, start.Add(-o.Before), step, o.Windows)
		if err != nil {
			c.Why = "there is nothing of the baseline"
			continue
		}
		a.Label, b.Label = "baseline", "now"
		judge(c, compare.Reports(a.Report, b.Report))
	}
	return out, nil
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
