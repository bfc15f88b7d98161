package prom

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rebound-nic/rebound/internal/bench/answer"
	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/latency/sanitize"
)

// Load queries a Prometheus for a source. It requests the series itself at the ends of the windows, not its rate: the
// counts of a window are then differences of integers, whereas rate() and increase() extrapolate to the ends of a
// window.
func Load(ctx context.Context, server *Server, s *Source) (*report.Report, error) {
	all, err := server.Range(ctx, s.selector(s.Metric), s.From, s.To, s.Step())
	if err != nil {
		return nil, err
	}
	switch {
	case len(all) == 0:
		return nil, fmt.Errorf("%w: no series %s from %s to %s", answer.ErrNothing, s.selector(s.Metric),
			s.From.UTC().Format(time.RFC3339), s.To.UTC().Format(time.RFC3339))
	case len(all) > 1:
		return nil, fmt.Errorf("%s matches %d series: add a label that only one of them has: %s", s.selector(s.Metric),
			len(all), apart(all))
	case len(all[0].Histograms) == 0:
		return nil, fmt.Errorf("%s has no native histograms: Prometheus stores them with --enable-feature=native-histograms (from version 3 on with scrape_native_histograms)", s.selector(s.Metric))
	}
	out, err := answer.Report(all[0].Histograms, s.From, s.Step(), s.Windows)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.selector(s.Metric), err)
	}
	out.Label = s.Name()
	labels := all[0].Metric
	out.Traffic = report.Traffic{Target: strings.TrimPrefix(labels["target"], labels["proto"]+":"),
		Protocol: labels["proto"], IPVersion: 4, Mode: "open"}
	if strings.Count(out.Traffic.Target, ":") > 1 {
		out.Traffic.IPVersion = 6
	}
	of := *s
	of.Labels = nil
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		if name != "__name__" {
			of.Labels = append(of.Labels, Label{name, labels[name]})
		}
	}
	elsewhere, err := server.elsewhere(ctx, &of, s.From, s.To, s.Step())
	if err != nil {
		return nil, err
	}
	out.Counts = elsewhere[identity(labels)]
	found := map[string]bool{}
	for metric, to := range map[string]*int64{"rebound_probes_total": &out.Counts.Sent, lostMetric: &out.Counts.Lost,
		uncertainMetric: &out.Counts.LostUncertain} {
		n, err := server.Range(ctx, of.selector(metric), s.From, s.To, s.Step())
		if err != nil {
			return nil, err
		}
		if found[metric] = len(n) == 1; found[metric] {
			*to = grown(n[0].Values)
		}
	}
	out.Counts.Lost += out.Counts.LostUncertain
	switch {
	case !found[lostMetric]:
		out.Counts.Lost = max(out.Counts.Sent-out.Main().Total.Count-out.Counts.SendFailed-out.Counts.CorruptOnly, 0)
		out.Counts.LostUncertain = out.Counts.Lost
		out.Notes = append(out.Notes, "there is no "+lostMetric+": lost is a range")
	case !found[uncertainMetric]:
		out.Counts.LostUncertain = out.Counts.Lost
		out.Notes = append(out.Notes, "there is no "+uncertainMetric+": lost is a range")
	}
	if !agree(&out.Counts) {
		out.Notes = append(out.Notes, "the counters "+disagree+": lost is a range")
	}
	out.Counts.Received = out.Counts.Sent - out.Counts.Lost - out.Counts.Late - out.Counts.SendFailed -
		out.Counts.CorruptOnly
	circumstances(ctx, server, s, labels, out)
	return out, nil
}

const disagree = "add up to more probes than were sent (a restart between two scrapes, or a series that begins later)"

// agree limits the parts to the number of probes sent, and reports whether they fitted. Each counter is scraped at a
// different time, and all miss what a watch counted between its last scrape and a restart. If the parts do not fit,
// lost is a range from 0.
func agree(c *report.Counts) bool {
	left, fits := c.Sent, true
	for _, n := range []*int64{&c.SendFailed, &c.CorruptOnly, &c.Late, &c.Lost} {
		if *n > left {
			*n, fits = left, false
		}
		left -= *n
	}
	for _, n := range []*int64{&c.DroppedHere, &c.DroppedHereUncertain, &c.RefusedThere, &c.RefusedThereUncertain} {
		*n = min(*n, c.Sent)
	}
	if !fits {
		c.LostUncertain = c.Lost
	}
	return fits
}

// circumstances fills in the common properties of all probes of the watch.
func circumstances(ctx context.Context, server *Server, s *Source, labels map[string]string, l *report.Report) {
	is := Source{Labels: []Label{{"instance", labels["instance"]}, {"job", labels["job"]}}}
	info, err := server.instant(ctx, is.selector("rebound_watch_info"), s.To)
	if err != nil || len(info) != 1 {
		l.Notes = append(l.Notes,
			"the settings of the probes are unknown: there is no rebound_watch_info from that time")
		return
	}
	m := info[0].Metric
	l.Traffic.Rate, _ = strconv.ParseFloat(m["rate"], 64)
	if l.Traffic.FrameSize, _ = strconv.Atoi(m["size"]); l.Traffic.FrameSize == 0 {
		if p, err := probe.ParseProto(l.Traffic.Protocol); err == nil {
			l.Traffic.FrameSize = probe.MinSize(p, l.Traffic.IPVersion == 6)
		}
	}
	l.Traffic.Transport = m["transport"]
	l.Device.Driver = m["driver"]
}

// grown returns the increase of a counter, including across restarts.
func grown(v []answer.Value) (n int64) {
	for i := 1; i < len(v); i++ {
		if d := v[i].V - v[i-1].V; d >= 0 {
			n += int64(d)
		} else {
			n += int64(v[i].V)
		}
	}
	return n
}

// apart lists the labels by which series differ, with their values.
func apart(all []answer.Series) string {
	values := map[string]map[string]bool{}
	for _, s := range all {
		for k, v := range s.Metric {
			if values[k] == nil {
				values[k] = map[string]bool{}
			}
			values[k][v] = true
		}
	}
	var out []string
	for _, k := range slices.Sorted(maps.Keys(values)) {
		if len(values[k]) > 1 {
			out = append(out, sanitize.Text(k+"="+strings.Join(slices.Sorted(maps.Keys(values[k])), "|")))
		}
	}
	return strings.Join(out, ", ")
}
