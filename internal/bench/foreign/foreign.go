// Package foreign reads the output of other latency tools as reports, so that they can be printed, plotted and
// compared.
//
// A file's format is detected from its content. The limits of a format (no chronological order, percentiles only, whole
// microseconds) are in the report's Foreign, and limit what compare says about it.
package foreign

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/latency/sanitize"
)

// Options supply what a file does not state.
type Options struct {
	Unit   string // of values whose unit the file does not state: "ns", "us", "ms" or "s"
	Series string // the column, target or tag to read, if a file has several
}

var (
	// errFormat is returned for a file whose format is unknown.
	errFormat = errors.New("format unknown")
	// ErrUnit is returned if neither the file nor Options state the unit of the values.
	ErrUnit = errors.New("the file does not state the unit of its values (set -unit ns, us, ms or s)")
)

// errNothing marks the error of a file that has none of the requested data.
var errNothing = errors.New("")

const (
	maxFile    = 256 << 20
	maxJSON    = 128 << 20 // decoding takes several times the memory
	maxValues  = 4 << 20   // of a JSON file, counted by its commas
	maxSamples = 1 << 24
	maxRuns    = 1000 // files of a folder
)

// Read reads a file, or a folder with one file for each run.
func Read(path string, o Options) (*report.Report, error) {
	if o.Unit != "" && units[o.Unit] == 0 {
		return nil, fmt.Errorf("unit %q: want ns, us, ms or s", o.Unit)
	}
	var m *measurement
	info, err := os.Stat(path)
	switch {
	case path == "-":
		m, err = readFile(path, o)
	case err != nil:
		return nil, err
	case info.IsDir():
		m, err = readFolder(path, o)
	default:
		m, err = readFile(path, o)
	}
	if err != nil {
		return nil, err
	}
	rep := m.report()
	if rep.Label = m.label; m.label == "" {
		rep.Label = filepath.Base(filepath.Clean(path))
	}
	rep.Escape()
	return rep, nil
}

func readFile(path string, o Options) (*measurement, error) {
	f, err := open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if path == "-" {
		path = "standard input"
	}
	text, err := readText(path, f)
	if err != nil {
		return nil, err
	}
	return parse(path, text, o)
}

// parse reads the text of a file; the name is for errors.
func parse(name string, text []byte, o Options) (*measurement, error) {
	if len(text) == 0 {
		return nil, fmt.Errorf("%w%s: %w: the file is empty", errNothing, name, errFormat)
	}
	f := &file{name: name, text: text, head: string(text[:min(len(text), 1<<16)]), Options: o}
	object, err := f.object()
	if err != nil {
		return nil, err
	}
	format := f.detect(object)
	if format == nil {
		return nil, fmt.Errorf("%s: %w (docs/use/other-tools.md lists the formats)", name, errFormat)
	}
	f.format = format.name
	m, err := format.read(f)
	if err != nil {
		return nil, err
	}
	m.format = format.name
	if err := m.check(f); err != nil {
		return nil, err
	}
	if m.size() == 0 && len(m.points) == 0 && (m.counts.Sent == 0 || m.untimed > 0) {
		return nil, fmt.Errorf("%w%w", errNothing, m.nothing(f))
	}
	m.conclude()
	return m, nil
}

// check rejects numbers that no tool measures, so that sums cannot overflow.
func (m *measurement) check(f *file) error {
	c := &m.counts
	for _, n := range []int64{c.Sent, c.Received, c.Lost, c.LostUncertain, c.Late, c.Duplicates, c.Reordered, c.Corrupt,
		c.CorruptOnly, c.SendFailed, c.DroppedHere, c.Unparsed,
		c.RefusedThere, c.DroppedThere, m.count, m.beyond} {
		if n < 0 || n > maxCount {
			return f.bad(0, "a count of %d: want 0 to %g", n, maxCount)
		}
	}
	// NaN, which is unknown, passes these checks; tools round the mean
	if m.least < 0 || m.least > m.most || m.middle < m.least*(1-1e-3) || m.middle > m.most*(1+1e-3) {
		return f.bad(0, "minimum, mean and maximum of %v, %v and %v ns do not belong together", m.least, m.middle,
			m.most)
	}
	return nil
}

// nothing is the error for a file without a latency and without a lost probe. It names the first line that was not
// understood.
func (m *measurement) nothing(f *file) error {
	switch {
	case m.odd != "" && m.hint != "":
		return f.bad(m.oddLine, "no latencies in it; %s not understood, the first is %s (%s)",
			sanitize.Count(m.counts.Unparsed, "line"), m.odd, m.hint)
	case m.odd != "":
		return f.bad(m.oddLine, "no latencies in it; %s not understood, the first is %s",
			sanitize.Count(m.counts.Unparsed, "line"), m.odd)
	case len(m.remarks) > 0:
		return f.bad(m.remarks[0].first, "no latencies in it: %s", m.remarks[0].what)
	}
	return f.bad(0, "no latencies in it")
}

type format struct {
	name string
	is   func(*file) bool
	read func(*file) (*measurement, error)
}

// formats are all formats, in the order of detection.
func formats() []format {
	return []format{
		{"oha JSON", has("summary", "latencyPercentiles"), readOha},
		{"fortio JSON", has("DurationHistogram"), readFortio},
		{"vegeta report in JSON", has("latencies", "requests"), readVegeta},
		{"irtt JSON", has("round_trips"), readIrtt},
		{"iperf3 JSON", has("start", "intervals"), readIperf},
		{"cyclictest JSON", has("thread", "num_threads"), readCyclictestJSON},
		{"pScheduler result", has("histogram-latency"), readPscheduler},
		{"pScheduler result", has("roundtrips"), readPscheduler},
		{"pScheduler result", has("result", "test"), readPscheduler},
		{"Prometheus answer", has("status", "data"), readPrometheus},
		{"k6 summary", has("metrics"), readK6},
		{"ghz JSON", has("fastest", "slowest", "rps"), readGhz},
		{"hyperfine JSON", has("results"), readHyperfine},
		{"vegeta results in JSON", matches(vegetaLine), readVegetaLines},
		{"k6 points in JSON", matches(k6Line), readK6Lines},
		{"fping JSON", matches(fpingJSON), readFpingJSON},
		{"vegeta results in CSV", matches(vegetaRow), readVegetaRows},
		{"log of rebound-watch", matches(watchTarget), readWatch},
		{"HdrHistogram log", matches(logHead), readLog},
		{"wrk output", matches(wrkHead), readWrk},
		{"HdrHistogram percentiles", matches(spectrumHead), readSpectrum},
		{"ping output", matches(pingHead), readPing},
		{"fping output", matches(fpingHead), readFping},
		{"twping output", matches(twpingHead), readTwping},
		{"sockperf output", matches(sockperfOutput), readSockperf},
		{"cyclictest histogram", matches(cyclictestHead), readCyclictest},
		{"netperf output", matches(netperfHead), readNetperf},
		{"Windows ping output", matches(windowsHead), readWindows},
		{"cloudprober output", matches(cloudproberHead), readCloudprober},
		{"k6 points in CSV", hasColumns("metric_name", "timestamp", "metric_value"), readK6CSV},
		{"hey CSV", hasColumns("response-time", "status-code", "offset"), readHey},
		{"JMeter CSV", hasColumns("timeStamp", "elapsed", "label", "responseCode", "success"), readJMeter},
		{"Locust statistics", hasColumns("Type", "Name", "Request Count", "Failure Count", "50%"), readLocust},
		{"list of numbers", isNumbers, readNumbers},
		{"CSV table", isTable, readTable},
	}
}

// objects is the number of formats that are JSON objects, at the start of the list.
const objects = 13

func (f *file) detect(object bool) *format {
	for i, x := range formats() {
		if (i < objects) == object && x.is(f) {
			return &x
		}
	}
	return nil
}

// file is the input of a reader.
type file struct {
	name   string
	text   []byte
	head   string // its start, which detection uses
	format string
	keys   map[string]json.RawMessage // of a JSON object
	Options
}

// bad returns an error that names the file and, unless it is 0, the line.
func (f *file) bad(line int, text string, args ...any) error {
	at := f.name
	if line > 0 {
		at = fmt.Sprintf("%s:%d", f.name, line)
	}
	return fmt.Errorf("%s: %w %s: %s", at, report.ErrFormat, f.format, fmt.Sprintf(text, args...))
}

// lines yields the lines with their numbers, from 1, without surrounding spaces.
func (f *file) lines() iter.Seq2[int, string] {
	return func(yield func(int, string) bool) {
		n := 0
		for line := range bytes.Lines(f.text) {
			if n++; !yield(n, string(bytes.TrimSpace(line))) {
				return
			}
		}
	}
}

// measurement is the content of a file.
type measurement struct {
	tool, format string
	label        string // empty for the file's name
	unit         string // "ms (printed on each line)"
	metric       report.Metric
	traffic      report.Traffic
	start        time.Time // zero if unknown
	length       int64     // ns, 0 if unknown
	counts       report.Counts
	limits       []string
	warnings     []string
	remarks      []remark // see conclude
	odd, hint    string   // the first line that was not understood, and what to do about such lines
	oddLine      int
	untimed      int64   // replies whose latency is unknown
	restarts     []int64 // ns since start, when a log restarted
	runs         string  // how runs were made, if the reader made them
	single       string  // why it cannot be divided into runs
	resolution   float64 // of the values, relative to them

	// A file has samples, or intervals in chronological order, or a whole histogram, or only points.
	samples   []sample
	timed     bool // samples and intervals have times
	intervals []latency.Interval
	whole     *latency.Histogram
	points    []latency.Percentile
	count     int64 // of all samples if there are only points, 0 if unknown

	beyond int64
	// minimum, maximum and mean if there are points or samples beyond the histogram; NaN if unknown
	least, most, middle float64
}

// sample is a latency, with its time in ns since the start of the measurement if that is known.
type sample struct{ at, ns int64 }

func (m *measurement) add(f *file, line int, at, ns int64) error {
	if len(m.samples) == maxSamples {
		return f.bad(line, "more than %d values", maxSamples)
	}
	m.samples = append(m.samples, sample{at, ns})
	return nil
}

// size returns the number of samples whose values are known.
func (m *measurement) size() int64 {
	n := int64(len(m.samples))
	for _, iv := range m.intervals {
		n += iv.Count
	}
	if m.whole != nil {
		n += m.whole.Count
	}
	return n
}

// parts is the number of runs that one measurement in chronological order is divided into, each with at least partSize
// samples.
const (
	parts    = 16
	partSize = 10
)

func (m *measurement) report() *report.Report {
	m.divide()
	f := &report.Foreign{Format: m.format, Unit: m.unit, Runs: m.runs, Single: m.single, Timed: m.timed,
		Limits: m.limits, Points: m.points,
		Min: m.least, Max: m.most, Mean: m.middle, Beyond: m.beyond}
	rep := &report.Report{Schema: report.Schema, Tool: m.tool, Metric: m.metric, Traffic: m.traffic, Counts: m.counts,
		Warnings: m.warnings, Foreign: f, Start: m.start, Resolution: m.resolution}
	rep.Host.Core = -1
	s := &latency.Series{Name: latency.MainSeries, Intervals: m.intervals}
	s.Sum()
	if m.points != nil {
		s.Total = listed(m.points, m.count, m.most)
		s.Summary = s.Total.Summary()
	}
	rep.Series = []*latency.Series{s}
	if m.single == "" && m.points == nil {
		for _, iv := range m.intervals {
			rep.Runs = append(rep.Runs, latency.Run{Start: iv.Start, End: iv.End})
		}
	} else if n := len(m.intervals); n > 0 {
		rep.Runs = []latency.Run{{Start: m.intervals[0].Start, End: m.intervals[n-1].End}}
	}
	if n := len(m.intervals); n > 0 && m.timed && !m.start.IsZero() {
		rep.Interval = m.intervals[0].End - m.intervals[0].Start
		rep.End = m.start.Add(time.Duration(m.intervals[n-1].End))
	}
	rep.Notes = f.Lines()
	return rep
}

// second is the length of an interval without a time: only the order of such intervals is meaningful.
const second = int64(time.Second)

// divide turns samples and whole histograms into intervals, each of which counts as a run.
func (m *measurement) divide() {
	switch {
	case m.whole != nil:
		m.intervals = []latency.Interval{{End: max(m.length, second), Histogram: m.whole}}
		return
	case m.samples == nil && m.intervals == nil && m.points == nil:
		m.lostRun()
		return
	case m.samples == nil && m.runs == "" && m.single == "":
		m.join()
		return
	case m.samples == nil:
		return
	}
	if m.timed {
		slices.SortStableFunc(m.samples, func(a, b sample) int { return int(min(max(a.at-b.at, -1), 1)) })
	}
	k := min(parts, len(m.samples)/partSize)
	if m.single != "" || k < 2 {
		if k = 1; m.single == "" {
			m.single = fmt.Sprintf("%s: too few to divide", sanitize.Count(len(m.samples), "sample"))
		}
	}
	for i := range k {
		part := m.samples[i*len(m.samples)/k : (i+1)*len(m.samples)/k]
		values := make([]int64, len(part))
		for j, s := range part {
			values[j] = s.ns
		}
		iv := latency.Interval{Start: int64(i) * second, End: int64(i+1) * second,
			Histogram: latency.FromValues(values)}
		if m.timed {
			iv.Start, iv.End = part[0].at, part[len(part)-1].at
		}
		m.intervals = append(m.intervals, iv)
	}
	if m.single == "" {
		m.runs = fmt.Sprintf("one measurement in %d parts, each of which counts as a run", k)
	}
}

// lostRun makes a measurement without a reply a run without samples.
func (m *measurement) lostRun() {
	m.intervals = []latency.Interval{{End: max(m.length, second), Histogram: latency.FromValues(nil)}}
	m.single, m.runs = "no probe was answered", ""
}

// join divides a log's intervals into parts. No part continues after a restart.
func (m *measurement) join() {
	all := slices.DeleteFunc(m.intervals, func(iv latency.Interval) bool { return iv.Count == 0 })
	m.intervals = nil
	slices.SortStableFunc(all, func(a, b latency.Interval) int { return int(min(max(a.Start-b.Start, -1), 1)) })
	if len(all) == 0 {
		m.lostRun()
		return
	}
	k := min(parts, len(all))
	var cuts []int
	for i := range k {
		cuts = append(cuts, i*len(all)/k)
	}
	for _, at := range m.restarts {
		cuts = append(cuts, sort.Search(len(all), func(i int) bool { return all[i].Start >= at }))
	}
	slices.Sort(cuts)
	cuts = slices.Compact(append(cuts, len(all)))
	k = len(cuts) - 1
	for i := range k {
		part := all[cuts[i]:cuts[i+1]]
		var hs []*latency.Histogram
		for _, iv := range part {
			hs = append(hs, iv.Histogram)
		}
		m.intervals = append(m.intervals, latency.Interval{Start: part[0].Start, End: part[len(part)-1].End,
			Histogram: latency.Merge(hs...)})
	}
	if k < 2 {
		m.single = "it has a single interval"
		return
	}
	m.runs = fmt.Sprintf("one log in %d parts, each of which counts as a run", k)
}

// listed returns a histogram with the given percentiles; greatest, if known, is its maximum.
func listed(points []latency.Percentile, count int64, greatest float64) *latency.Histogram {
	var values, counts []int64
	var seen int64
	for _, p := range points {
		n := min(int64(p.Quantile*float64(count)+1e-6), count)
		values, counts = append(values, p.Value), append(counts, max(n-seen, 0))
		seen = max(seen, n)
	}
	last := points[len(points)-1].Value
	if greatest > float64(last) {
		last = int64(greatest)
	}
	return latency.FromCounts(append(values, last), append(counts, count-seen))
}

// readFolder reads a folder with one file for each run.
func readFolder(dir string, o Options) (*measurement, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var all []*measurement
	var left []error
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		path := filepath.Join(dir, e.Name())
		if e.IsDir() {
			return nil, fmt.Errorf("%s: a folder in the place of a report has one file for each run, and no folders",
				path)
		}
		if len(all) == maxRuns {
			return nil, fmt.Errorf("%s has more than %d files", dir, maxRuns)
		}
		m, err := readFile(path, o)
		if errors.Is(err, errNothing) { // from a watch that was killed, or that only had the target later
			left = append(left, err)
			continue
		} else if err != nil {
			return nil, err
		}
		if m.points != nil {
			return nil, fmt.Errorf("%s: percentiles of several runs cannot be combined: a folder needs files with samples or histograms", path)
		}
		m.divide()
		m.samples = nil
		all = append(all, m)
	}
	switch {
	case len(all) == 0 && len(left) > 0:
		return nil, left[0]
	case len(all) == 0:
		return nil, fmt.Errorf("%s has no files", dir)
	}
	m, err := combine(dir, all)
	if err != nil {
		return nil, err
	}
	for _, why := range left {
		m.warnings = append(m.warnings, "left out: "+why.Error())
	}
	return m, nil
}

// combine combines several measurements into one, in which each is a run.
func combine(dir string, all []*measurement) (*measurement, error) {
	out := *all[0]
	dated := !slices.ContainsFunc(all, func(m *measurement) bool { return m.start.IsZero() })
	if dated {
		slices.SortStableFunc(all, func(a, b *measurement) int { return a.start.Compare(b.start) })
	}
	out.samples, out.whole, out.intervals, out.single, out.counts, out.beyond, out.warnings = nil, nil, nil, "",
		report.Counts{}, 0, nil
	out.start, out.timed = all[0].start, dated
	out.runs = sanitize.Count(len(all), "file") + ", each of which counts as a run"
	mean, samples := 0.0, 0.0
	for i, m := range all {
		if m.format != out.format || m.metric != out.metric || m.unit != out.unit {
			return nil, fmt.Errorf("%s: its files differ: %s in %s, %s in %s", dir, all[0].format, all[0].unit,
				m.format, m.unit)
		}
		hs := make([]*latency.Histogram, len(m.intervals))
		for j, iv := range m.intervals {
			hs[j] = iv.Histogram
		}
		whole := latency.Merge(hs...)
		iv := latency.Interval{Start: int64(i) * second, End: int64(i+1) * second, Histogram: whole}
		if dated {
			iv.Start = m.start.Sub(out.start).Nanoseconds()
			iv.End = iv.Start + max(m.length, m.intervals[len(m.intervals)-1].End)
		}
		if n := len(out.intervals); n > 0 && dated && out.intervals[n-1].End > iv.Start {
			out.intervals[n-1].End = iv.Start
		}
		out.intervals = append(out.intervals, iv)
		out.beyond += m.beyond
		out.least, out.most = min(out.least, m.least), max(out.most, m.most)
		if whole.Count > 0 {
			mean, samples = mean+m.middle*float64(whole.Count), samples+float64(whole.Count)
		}
		out.warnings = append(out.warnings, m.warnings...)
		out.counts.Add(&m.counts)
	}
	out.middle = mean / samples
	if len(all) == 1 {
		out.single, out.runs = "the folder has one file", ""
	}
	return &out, nil
}
