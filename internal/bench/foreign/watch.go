package foreign

import (
	"bytes"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/report"
)

var watchTarget = regexp.MustCompile(`(?m)^#\[Target: ([A-Za-z0-9_-]+) is (\S+?)(?: .*)?\]$`)

// readWatch reads an hour of rebound-bench watch. Options.Series chooses a target, by its name or its tag.
func readWatch(f *file) (*measurement, error) {
	var names []string
	tag, name := "", ""
	found := watchTarget.FindAllSubmatch(f.text, -1)
	for _, t := range found {
		if names = append(names, string(t[2])); f.Series == string(t[1]) || f.Series == string(t[2]) || f.Series == "" && len(found) == 1 {
			tag, name = string(t[1]), string(t[2])
		}
	}
	slices.Sort(names)
	switch list := strings.Join(names, ", "); {
	case tag == "" && f.Series == "":
		return nil, f.bad(0, "it has several targets: set -series to one of: %s", list)
	case tag == "":
		return nil, f.bad(0, "no target %q: it has %s", f.Series, list)
	}
	start, series, err := report.ReadHlog(bytes.NewReader(f.text), f.name)
	if err != nil {
		return nil, err
	}
	m := &measurement{tool: "rebound-bench watch", metric: report.RoundTrip, unit: "ns (by a comment in the file)", start: start, timed: true,
		label: name + " " + start.Format("2006-01-02T15")}
	m.traffic.Protocol, m.traffic.Target, _ = strings.Cut(name, ":")
	if i := slices.IndexFunc(series, func(s *latency.Series) bool { return s.Name == tag }); i >= 0 {
		m.intervals = series[i].Intervals
	}
	if m.runs = "each interval of the log counts as one run"; len(m.intervals) < 2 {
		m.runs, m.single = "", "it has a single interval"
	}
	c := &m.counts
	fields := map[string]*int64{"sent": &c.Sent, "received": &c.Received, "lost": &c.Lost, "lost_uncertain": &c.LostUncertain, "late": &c.Late,
		"duplicates": &c.Duplicates, "reordered": &c.Reordered, "corrupt": &c.Corrupt, "send_failed": &c.SendFailed,
		"dropped_here": &c.DroppedHere, "refused_there": &c.RefusedThere, "corrupt_only": &c.CorruptOnly}
	for n, line := range f.lines() {
		rest, ok := strings.CutPrefix(line, "#[Counts: "+tag+" ")
		if !ok {
			continue
		}
		for field := range strings.FieldsSeq(strings.TrimSuffix(rest, "]")) {
			key, text, _ := strings.Cut(field, "=")
			to := fields[key]
			if to == nil {
				continue
			}
			v, err := strconv.ParseInt(text, 10, 64)
			if err != nil || v < 0 || v > 1<<50 {
				return nil, f.bad(n, "%q is no count", field)
			}
			*to += v
		}
	}
	c.DroppedHereUncertain, c.RefusedThereUncertain = c.DroppedHere, c.RefusedThere
	return m, nil
}
