package foreign

import (
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/latency/sanitize"
)

var (
	cloudproberHead  = regexp.MustCompile(`(?m)^(?:\S+ \d+ )?\d{9,10} labels=ptype=\w+,probe=`)
	cloudproberLine  = regexp.MustCompile(`^(?:\S+ \d+ )?(\d{9,10}) labels=(\S+) (.*)$`)
	cloudproberNoise = regexp.MustCompile(`^(?:[IWEF]\d{4} |time=|\{"time":)`) // its log
)

// cloudprobe is what cloudprober has counted for one probe and target since it started.
type cloudprobe struct {
	at             int64 // s since 1970
	total, success int64
	sum            float64 // of latencies, in the probe's unit
	upper          []float64
	counts         []int64
}

// readCloudprober reads the lines of cloudprober's file surfacer, which count from its start. Options.Series selects a
// probe. The unit is µs, unless the probe's configuration sets latency_unit and Options has it.
func readCloudprober(f *file) (*measurement, error) {
	factor, unit := 1e3, "µs (cloudprober's default; set -unit where latency_unit is set)"
	if f.Unit != "" {
		factor, unit = units[f.Unit], f.Unit+" (set by -unit)"
	}
	all, names := map[string][]cloudprobe{}, map[string][]int{}
	var odd measurement
	for n, line := range f.lines() {
		s := cloudproberLine.FindStringSubmatch(line)
		if s == nil {
			if line != "" && !cloudproberNoise.MatchString(line) {
				if err := odd.unparsed(f, n, line); err != nil {
					return nil, err
				}
			}
			continue
		}
		labels, metrics := fields(s[2], ","), fields(s[3], " ")
		// its own state, other metrics of a probe
		if labels["ptype"] == "sysvars" || metrics["total"] == "" && metrics["latency"] == "" {
			continue
		}
		name := strings.TrimSuffix(labels["probe"]+"/"+labels["dst"], "/")
		p, err := f.cloudprobe(n, s[1], metrics)
		if err != nil {
			return nil, err
		}
		if len(all) == maxRuns && all[name] == nil {
			return nil, f.bad(n, "more than %d probes", maxRuns)
		}
		all[name], names[name] = append(all[name], p), append(names[name], n)
	}
	name, err := f.choose("probe", slices.Sorted(maps.Keys(all)))
	if err != nil {
		return nil, err
	}
	m := &measurement{tool: "cloudprober", metric: report.Unlabeled, unit: unit, timed: true,
		start: time.Unix(all[name][0].at, 0)}
	m.counts.Unparsed, m.odd, m.oddLine = odd.counts.Unparsed, odd.odd, odd.oddLine
	_, m.traffic.Target, _ = strings.Cut(name, "/")
	var before cloudprobe
	means := all[name][0].counts == nil
	for i, p := range all[name] {
		line := names[name][i]
		switch {
		case i > 0 && p.at < before.at:
			return nil, f.bad(line, "earlier than the line before: put each measurement into its own file")
		case (p.counts == nil) != means:
			return nil, f.bad(line, "a latency of another kind than the lines before: put each configuration into its own file")
		case i > 0 && (p.total < before.total || p.success < before.success):
			m.restarts = append(m.restarts, (p.at-all[name][0].at)*second)
			m.remark(line, "the counts restart: no part continues after a restart")
			before = cloudprobe{at: before.at}
		case i > 0 && p.total == before.total:
			m.remark(line, "no probe since the line before (or export_as_gauge is set, whose values cannot be read)")
		}
		if err := m.cloudprobe(f, line, before, p, factor, all[name][0].at); err != nil {
			return nil, err
		}
		before = p
	}
	m.counts.Lost = m.counts.Sent - m.counts.Received
	if m.beyond > 0 { // their values are unknown
		m.unknown()
	}
	if means {
		m.limits = append(m.limits,
			"the mean of each interval: single latencies are unknown, and percentiles are of means (set latency_distribution in the probe's configuration)")
	} else {
		m.limits = append(m.limits, "values are the upper ends of the "+sanitize.Count(len(before.counts), "bucket")+
			" of latency_distribution")
	}
	return m, nil
}

// fields returns the pairs of a list key=value.
func fields(text, separator string) map[string]string {
	out := map[string]string{}
	for pair := range strings.SplitSeq(text, separator) {
		if key, value, ok := strings.Cut(pair, "="); ok {
			out[key] = value
		}
	}
	return out
}

// cloudprobe parses the counts of a line.
func (f *file) cloudprobe(n int, at string, metrics map[string]string) (p cloudprobe, err error) {
	p.at, _ = strconv.ParseInt(at, 10, 64)
	for _, x := range []struct {
		key string
		to  *int64
	}{{"total", &p.total}, {"success", &p.success}} {
		v, err := strconv.ParseFloat(metrics[x.key], 64)
		if err != nil || !(v >= 0 && v <= maxCount) {
			return p, f.bad(n, "%s is %q, want a count", x.key, metrics[x.key])
		}
		*x.to = int64(v)
	}
	text, dist := strings.CutPrefix(metrics["latency"], "dist:")
	if !dist {
		if p.sum, err = strconv.ParseFloat(text, 64); err != nil || !(p.sum >= 0) {
			return p, f.bad(n, "latency is %q, want a sum or a distribution", text)
		}
		return p, nil
	}
	parts := map[string]string{}
	for part := range strings.SplitSeq(text, "|") {
		key, value, _ := strings.Cut(part, ":")
		parts[key] = value
	}
	if parts["schema"] != "" {
		return p, f.bad(n, "native buckets are not read: set explicit_buckets or exponential_buckets")
	}
	lower, counts := strings.Split(parts["lb"], ","), strings.Split(parts["bc"], ",")
	if len(lower) != len(counts) {
		return p, f.bad(n, "%d buckets with %d counts", len(lower), len(counts))
	}
	p.counts = make([]int64, 0, len(counts))
	for i, text := range counts {
		count, err := strconv.ParseInt(text, 10, 64)
		bound, err2 := strconv.ParseFloat(lower[i], 64)
		if err != nil || err2 != nil || count < 0 || count > maxCount || math.IsNaN(bound) || i > 0 &&
			bound <= p.upper[i-1] {
			return p, f.bad(n, "bucket %d, from %q with the count %q", i+1, lower[i], text)
		}
		p.upper, p.counts = append(p.upper, bound), append(p.counts, count)
	}
	if p.sum, err = strconv.ParseFloat(parts["sum"], 64); err != nil || !(p.sum >= 0) {
		return p, f.bad(n, "the sum of latencies is %q", parts["sum"])
	}
	p.upper = append(p.upper[1:], math.Inf(1))
	return p, nil
}

// cloudprobe adds what was counted from before to now.
func (m *measurement) cloudprobe(f *file, n int, before, now cloudprobe, factor float64, start int64) error {
	m.counts.Sent += now.total - before.total
	answered := now.success - before.success
	m.counts.Received += answered
	if max(m.counts.Sent, m.counts.Received) > maxCount {
		return f.bad(n, "counts above %g", maxCount)
	}
	if now.counts == nil {
		if answered == 0 {
			return nil
		}
		ns, err := scaled((now.sum-before.sum)/float64(answered), factor)
		if err != nil {
			return f.bad(n, "the mean latency: %v", err)
		}
		return m.add(f, n, (now.at-start)*second, ns)
	}
	if before.counts != nil && !slices.Equal(before.upper, now.upper) {
		return f.bad(n, "other buckets than the line before: put each configuration into its own file")
	}
	var values, counts []int64
	for i, count := range now.counts {
		if before.counts != nil {
			count -= before.counts[i]
		}
		upper := now.upper[i]
		if i == len(now.counts)-1 && i > 0 { // it has no end
			upper = now.upper[i-1]
			m.beyond += count
		}
		if count == 0 {
			continue
		}
		ns, err := scaled(upper, factor)
		if err != nil || count < 0 {
			return f.bad(n, "bucket %d up to %v: %d values", i+1, upper, count)
		}
		values, counts = append(values, ns), append(counts, count)
	}
	h, err := histogram(values, counts)
	if err != nil {
		return f.bad(n, "%v", err)
	}
	m.intervals = append(m.intervals, latency.Interval{Start: (max(before.at, start) - start) * second,
		End: (now.at - start) * second, Histogram: h})
	return nil
}
