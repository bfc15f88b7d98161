package foreign

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/report"
)

var (
	logHead = regexp.MustCompile(
		`(?m)^#\[Histogram log format version |^(?:Tag=[^, \n]+[, ]+)?[-+0-9.eE]+[, ]+[-+0-9.eE]+[, ]+[-+0-9.eE]+[, ]+HIST[A-Za-z0-9+/]`)
	spectrumHead  = regexp.MustCompile(`(?m)^\s*Value(?:\((\w+)\))?\s+Percentile\s+TotalCount\s+1/\(1-Percentile\)`)
	spectrumMean  = regexp.MustCompile(`^#\[Mean\s*=\s*(\d+(?:\.\d+)?)`)
	spectrumTotal = regexp.MustCompile(`^#\[Max\s*=.*\bTotal count\s*=\s*(\d+)\]`)
	spectrumNoise = regexp.MustCompile(`^(?:#.*)?$`)
	unitComment   = regexp.MustCompile(
		`(?mi)^#\[(?:Values are in |Unit\s*=\s*)?(nanoseconds|microseconds|milliseconds|seconds)\b`)
)

// stated returns the unit stated in a comment of an HdrHistogram file, or the one in Options.
func (f *file) stated() (factor float64, text string, err error) {
	if u := unitComment.FindSubmatch(f.text); u != nil {
		return units[strings.ToLower(string(u[1]))], strings.ToLower(string(u[1])) + " (by a comment in the file)", nil
	}
	return f.statedUnit()
}

// readLog reads an HdrHistogram log. Options.Series selects a tag.
func readLog(f *file) (*measurement, error) {
	for n, line := range f.lines() {
		if strings.HasPrefix(line, watchCounts) {
			return nil, f.bad(n, "counts of rebound-watch, and no line says what the target is")
		}
	}
	log, err := report.ReadForeignHlog(bytes.NewReader(f.text), f.name)
	if err != nil {
		return nil, err
	}
	start, series := log.Start, log.Series
	var tags []string
	for _, s := range series {
		tags = append(tags, cmp.Or(s.Name, latency.MainSeries)) // the name that -series has for lines without a tag
	}
	var chosen *latency.Series
	for i, s := range series {
		if chosen == nil && (tags[i] == f.Series || f.Series == "" && (s.Name == "" || len(series) == 1)) {
			chosen = s
		}
	}
	switch {
	case len(series) == 0:
		return nil, fmt.Errorf("%w%w", errNothing, f.bad(0, "no intervals"))
	case chosen == nil && f.Series != "":
		return nil, f.bad(0, "no tag %q: it has %s", f.Series, strings.Join(tags, ", "))
	case chosen == nil:
		return nil, f.bad(0, "which tag? Set -series to one of: %s", strings.Join(tags, ", "))
	}
	factor, unit, err := f.stated()
	if err != nil && f.maximumInMilliseconds(chosen) {
		factor, unit, err = 1, "ns (assumed: the log's writer divides its maxima by 1,000,000; -unit overrides it)", nil
	}
	if err != nil {
		return nil, err
	}
	m := &measurement{tool: "HdrHistogram", metric: report.Unlabeled, unit: unit, timed: start.Unix() > 0}
	if m.timed {
		m.start = start
	}
	if log.Cut != "" {
		m.warnings = append(m.warnings, log.Cut)
	}
	for _, r := range log.Restarts {
		m.restarts = append(m.restarts, r.At)
		m.warnings = append(m.warnings,
			fmt.Sprintf("line %d: the log restarts: no part of it continues after a restart", r.Line))
	}
	if f.Series == "" && len(series) > 1 {
		m.warnings = append(m.warnings,
			fmt.Sprintf("only the intervals without a tag are read (-series chooses one of: %s)",
				strings.Join(tags, ", ")))
	}
	for _, iv := range chosen.Intervals {
		if iv.Histogram, err = rescale(iv.Histogram, factor); err != nil {
			return nil, f.bad(0, "%v", err)
		}
		m.intervals = append(m.intervals, iv)
	}
	return m, nil
}

// rescale returns h with all values multiplied by factor, each bucket as its middle. It fails if a value is out of
// range.
func rescale(h *latency.Histogram, factor float64) (*latency.Histogram, error) {
	if factor == 1 {
		return h, nil
	}
	var values, counts []int64
	for b := range h.Buckets {
		v, err := scaled(float64(b.Low+b.High)/2, factor)
		if err != nil {
			return nil, err
		}
		values, counts = append(values, v), append(counts, b.Count)
	}
	return latency.FromCounts(values, counts), nil
}

// maximumInMilliseconds reports whether the column Interval_Max has the greatest value of a series divided by a
// million, as writers for nanoseconds do.
func (f *file) maximumInMilliseconds(s *latency.Series) bool {
	greatest := 0.0
	for _, line := range f.lines() {
		if line == "" || line[0] == '#' || line[0] == '"' {
			continue
		}
		c := strings.Split(line, ",")
		if v, err := strconv.ParseFloat(c[max(len(c)-2, 0)], 64); err == nil {
			greatest = max(greatest, v)
		}
	}
	return greatest > 0 && math.Abs(float64(s.Total.Max)/(greatest*1e6)-1) < 0.05
}

// readSpectrum reads the percentiles that HdrHistogram libraries print, from the header on. The counts of its lines
// give a histogram with the resolution of the lines.
func readSpectrum(f *file) (*measurement, error) {
	head := spectrumHead.FindStringSubmatch(f.head)
	m := &measurement{tool: "HdrHistogram", metric: report.Unlabeled, single: "samples have no order in time"}
	factor := units[head[1]]
	m.unit = head[1] + " (by the table's header)"
	var err error
	if factor == 0 {
		if factor, m.unit, err = f.stated(); err != nil {
			return nil, err
		}
	}
	return m, f.spectrum(m, factor)
}

// spectrum reads the table of percentiles into m.
func (f *file) spectrum(m *measurement, factor float64) error {
	var values, counts []int64
	var q, seen, last = -1.0, int64(0), int64(0)
	inside, ended, mean := false, false, -1.0
	for n, line := range f.lines() {
		switch {
		case !inside:
			if inside = spectrumHead.MatchString(line); !inside && m.tool == "HdrHistogram" &&
				!spectrumNoise.MatchString(line) {
				if err := m.unparsed(f, n, line); err != nil {
					return err
				}
			}
			continue
		case line == "":
			continue
		case ended:
			if spectrumHead.MatchString(line) {
				return f.bad(n, "a second table: put each measurement into its own file")
			}
			if s := spectrumMean.FindStringSubmatch(line); s != nil {
				mean, _ = strconv.ParseFloat(s[1], 64)
			} else if s := spectrumTotal.FindStringSubmatch(line); s != nil {
				total, _ := strconv.ParseInt(s[1], 10, 64)
				m.differs(n, "samples", total, seen)
			} else if m.tool == "HdrHistogram" && !spectrumNoise.MatchString(line) {
				if err := m.unparsed(f, n, line); err != nil {
					return err
				}
			}
			continue
		case line[0] == '#':
			continue
		}
		c := strings.Fields(line)
		if len(c) != 3 && len(c) != 4 {
			return f.bad(n, "%d columns, expected 3 or 4", len(c))
		}
		v, err := nanoseconds(c[0], factor)
		if err != nil {
			return f.bad(n, "%v", err)
		}
		at, err := strconv.ParseFloat(c[1], 64)
		count, err2 := strconv.ParseInt(c[2], 10, 64)
		if err != nil || err2 != nil || !(at >= 0 && at <= 1) || count < 0 || count > 1<<53 {
			return f.bad(n, "%q is no percentile with a count", line)
		}
		if at == 0 && len(values) == 0 {
			count = max(count, 1) // the minimum is a sample, which vegeta does not count
		}
		if at < q || count < seen || v < last {
			return f.bad(n, "smaller than the line before")
		}
		values, counts = append(values, v), append(counts, count-seen)
		q, seen, last = at, count, v
		ended = at == 1
	}
	if !ended {
		return f.bad(0, "it ends before percentile 1: it is cut off")
	}
	m.whole = latency.FromCounts(values, counts)
	if mean*factor >= float64(m.whole.Min) && mean*factor <= float64(m.whole.Max) {
		m.whole.Sum = mean * factor * float64(m.whole.Count)
	}
	m.limits = append(m.limits, fmt.Sprintf("a percentile between two of the %d lines is that of the next line",
		len(values)))
	return nil
}
