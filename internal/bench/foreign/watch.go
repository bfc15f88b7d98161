package foreign

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/report"
)

var watchTarget = regexp.MustCompile(`(?m)^#\[Target: ([A-Za-z0-9_-]+) is (\S+?)(?: .*)?\]$`)

// watchComment matches the comments of a log other than targets and counts.
var (
	watchComment = regexp.MustCompile(`^#\[(?:Histogram log format version |StartTime: |BaseTime: |Values are in )`)
	watchOthers  = regexp.MustCompile(`^#\[Counts: (\S+) from=\S+ to=\S+ .*\]$`)
	// watchUnread are the counts of an interval that other counts contain, and its times.
	watchUnread = []string{"from", "to", "refused", "untimed", "too_late"}
)

// watchCounts starts the line with the counts of an interval. The line of its histogram follows, if there is one.
const watchCounts = "#[Counts: "

// WholeWatch returns how many bytes of the log of an hour are complete: a watch that was killed while it wrote an
// interval leaves a truncated line, or counts without their histogram. last is the last line with its newline, and end
// the number of bytes up to its end.
func WholeWatch(last string, end int64) int64 {
	if !strings.HasSuffix(last, "\n") || strings.HasPrefix(last, watchCounts) && recorded(last) {
		return end - int64(len(last))
	}
	return end
}

// recorded reports whether a line of counts has round trips, which are in a histogram.
func recorded(line string) bool {
	n := map[string]int64{}
	for field := range strings.FieldsSeq(strings.TrimSuffix(strings.TrimSpace(line), "]")) {
		key, text, _ := strings.Cut(field, "=")
		n[key], _ = strconv.ParseInt(text, 10, 64)
	}
	return n["received"]+n["late"]+n["too_late"] > n["untimed"]
}

// readWatch reads an hour of rebound-watch, up to its last complete interval. Options.Series selects a target, by
// its name or its tag.
func readWatch(f *file) (*measurement, error) {
	whole := f.text
	for range 2 { // a truncated line, and the counts before it
		last := whole[bytes.LastIndexByte(bytes.TrimSuffix(whole, []byte("\n")), '\n')+1:]
		whole = whole[:WholeWatch(string(last), int64(len(whole)))]
	}
	f.text = whole
	var names []string
	tag, name := "", ""
	found, tags := watchTarget.FindAllSubmatch(f.text, -1), map[string]bool{}
	for _, t := range found {
		tags[string(t[1])] = true
		if names = append(names, string(t[2])); f.Series == string(t[1]) || f.Series == string(t[2]) ||
			f.Series == "" && len(found) == 1 {
			tag, name = string(t[1]), string(t[2])
		}
	}
	slices.Sort(names)
	switch list := strings.Join(names, ", "); {
	case tag == "" && f.Series == "":
		return nil, f.bad(0, "it has several targets: set -series to one of: %s", list)
	case tag == "":
		return nil, fmt.Errorf("%w%w", errNothing, f.bad(0, "no target %q: it has %s", f.Series, list))
	}
	start, series, err := report.ReadHlog(bytes.NewReader(f.text), f.name)
	if err != nil {
		return nil, err
	}
	m := &measurement{tool: "rebound-watch", metric: report.RoundTrip, unit: "ns (by a comment in the file)",
		start: start, timed: true,
		label: name + " " + start.Format("2006-01-02T15")}
	m.traffic.Protocol, m.traffic.Target, _ = strings.Cut(name, ":")
	for _, s := range series {
		if !tags[s.Name] {
			m.warnings = append(m.warnings,
				fmt.Sprintf("intervals with the tag %q, of which no line says what the target is", s.Name))
		}
	}
	if i := slices.IndexFunc(series, func(s *latency.Series) bool { return s.Name == tag }); i >= 0 {
		m.intervals = series[i].Intervals
	}
	if m.runs = "each interval of the log counts as one run"; len(m.intervals) < 2 {
		m.runs, m.single = "", "it has a single interval"
	}
	c := &m.counts
	fields := map[string]*int64{"sent": &c.Sent, "received": &c.Received, "lost": &c.Lost,
		"lost_uncertain": &c.LostUncertain, "late": &c.Late,
		"duplicates": &c.Duplicates, "reordered": &c.Reordered, "corrupt": &c.Corrupt, "send_failed": &c.SendFailed,
		"dropped_here": &c.DroppedHere, "refused_there": &c.RefusedThere, "corrupt_only": &c.CorruptOnly}
	for n, line := range f.lines() {
		rest, ok := strings.CutPrefix(line, watchCounts+tag+" ")
		if !ok {
			other := watchOthers.FindStringSubmatch(line)
			if strings.HasPrefix(line, "#") && !watchComment.MatchString(line) && !watchTarget.MatchString(line) &&
				(other == nil || !tags[other[1]]) {
				if err := m.unparsed(f, n, line); err != nil {
					return nil, err
				}
			}
			continue
		}
		for field := range strings.FieldsSeq(strings.TrimSuffix(rest, "]")) {
			key, text, _ := strings.Cut(field, "=")
			to := fields[key]
			if to == nil && slices.Contains(watchUnread, key) {
				continue
			} else if to == nil {
				if err := m.unparsed(f, n, field); err != nil {
					return nil, err
				}
				continue
			}
			v, err := strconv.ParseInt(text, 10, 64)
			if err != nil || v < 0 || v > 1<<50 {
				return nil, f.bad(n, "%q is no count", field)
			}
			if *to += v; *to > maxCount {
				return nil, f.bad(n, "counts of %s add up to more than %g", key, maxCount)
			}
		}
	}
	c.DroppedHereUncertain, c.RefusedThereUncertain = c.DroppedHere, c.RefusedThere
	return m, nil
}
