package foreign

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rebound-nic/rebound/internal/bench/answer"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/latency/sanitize"
)

// object reports whether the file is a JSON object, and stores its keys.
func (f *file) object() (bool, error) {
	if f.first() == "" || f.first()[0] != '{' || vegetaLine.MatchString(f.head) || k6Line.MatchString(f.head) ||
		fpingJSON.MatchString(f.head) {
		return false, nil
	}
	f.format = "JSON"
	if len(f.text) > maxJSON {
		return true, f.bad(0, "larger than %d MiB", maxJSON>>20)
	}
	if bytes.Count(f.text, []byte(",")) > maxValues {
		return true, f.bad(0, "more than %d values", maxValues)
	}
	return true, f.decode(&f.keys)
}

// has matches JSON objects that have all of some keys.
func has(keys ...string) func(*file) bool {
	return func(f *file) bool {
		return !slices.ContainsFunc(keys, func(k string) bool { return f.keys[k] == nil })
	}
}

// decode decodes the file, which is a JSON value; an error includes the line.
func (f *file) decode(v any) error {
	err := json.Unmarshal(f.text, v)
	if err == nil {
		return nil
	}
	offset := int64(0)
	var syntax *json.SyntaxError
	var typ *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		offset = syntax.Offset
	case errors.As(err, &typ):
		offset = typ.Offset
	}
	return f.bad(1+bytes.Count(f.text[:min(max(offset, 0), int64(len(f.text)))], []byte("\n")), "%v", err)
}

// readFortio reads the output of fortio -json.
func readFortio(f *file) (*measurement, error) {
	var in struct {
		RunType, Labels   string
		StartTime         time.Time
		DurationHistogram struct {
			Count         int64
			Min, Max, Avg *float64
			Percentiles   []struct{ Percentile, Value float64 }
		}
		RetCodes map[string]int64
	}
	if err := f.decode(&in); err != nil {
		return nil, err
	}
	h := &in.DurationHistogram
	m := &measurement{tool: "fortio", metric: report.Response, unit: "s (fixed by fortio)", start: in.StartTime,
		count:  h.Count,
		limits: []string{"fortio interpolates percentiles within the buckets of its histogram (set by its -r)"}}
	m.traffic.Target = in.Labels
	if err := m.extremes(f, 1e9, h.Min, h.Max, h.Avg); err != nil {
		return nil, err
	}
	for _, code := range slices.Sorted(maps.Keys(in.RetCodes)) {
		if code != "200" && code != "OK" && code != "SERVING" {
			m.warnings = append(m.warnings, fmt.Sprintf("%s ended with %q, and are in the percentiles",
				sanitize.Count(in.RetCodes[code], "request"), code))
		}
	}
	for _, p := range h.Percentiles {
		ns, err := scaled(p.Value, 1e9)
		if err != nil {
			return nil, f.bad(0, "percentile %v: %v", p.Percentile, err)
		}
		if err := m.point(f, 0, p.Percentile, ns); err != nil {
			return nil, err
		}
	}
	if h.Count < 0 || h.Count > maxCount {
		return nil, f.bad(0, "a count of %d", h.Count)
	}
	return m, m.order(f)
}

// readOha reads the output of oha --output-format json (formerly -j).
func readOha(f *file) (*measurement, error) {
	var in struct {
		Summary struct {
			SuccessRate, Slowest, Fastest, Average *float64
		} `json:"summary"`
		LatencyPercentiles     map[string]*float64 `json:"latencyPercentiles"`
		StatusCodeDistribution map[string]int64    `json:"statusCodeDistribution"`
		ErrorDistribution      map[string]int64    `json:"errorDistribution"`
	}
	if err := f.decode(&in); err != nil {
		return nil, err
	}
	m := &measurement{tool: "oha", metric: report.Response, unit: "s (fixed by oha)"}
	if err := m.extremes(f, 1e9, in.Summary.Fastest, in.Summary.Slowest, in.Summary.Average); err != nil {
		return nil, err
	}
	for name, v := range in.LatencyPercentiles {
		if v == nil { // no request was completed
			continue
		}
		percent, err := strconv.ParseFloat(strings.TrimPrefix(name, "p"), 64)
		if err != nil {
			return nil, f.bad(0, "latencyPercentiles: %q is no percentile", name)
		}
		ns, err := scaled(*v, 1e9)
		if err != nil {
			return nil, f.bad(0, "latencyPercentiles: %s: %v", name, err)
		}
		if err := m.point(f, 0, percent, ns); err != nil {
			return nil, err
		}
	}
	for code, n := range in.StatusCodeDistribution {
		if n < 0 || n > maxCount/1000 {
			return nil, f.bad(0, "statusCodeDistribution: %s: a count of %d", code, n)
		}
		m.count = min(m.count+n, maxCount)
	}
	for _, name := range slices.Sorted(maps.Keys(in.ErrorDistribution)) {
		m.warnings = append(m.warnings, sanitize.Count(in.ErrorDistribution[name], "request")+" failed: "+name)
	}
	return m, m.order(f)
}

// readVegeta reads the output of vegeta report -type=json.
func readVegeta(f *file) (*measurement, error) {
	var in struct {
		Latencies map[string]float64 `json:"latencies"`
		Earliest  time.Time          `json:"earliest"`
		Requests  int64              `json:"requests"`
		Success   float64            `json:"success"`
	}
	if err := f.decode(&in); err != nil {
		return nil, err
	}
	m := &measurement{tool: "vegeta", metric: report.Response, unit: "ns (fixed by vegeta)", start: in.Earliest,
		count:  in.Requests,
		limits: []string{"vegeta estimates percentiles (t-digest)"}}
	if in.Requests < 0 || in.Requests > maxCount {
		return nil, f.bad(0, "%d requests", in.Requests)
	}
	known := func(name string) *float64 {
		if v, ok := in.Latencies[name]; ok {
			return &v
		}
		return nil
	}
	if err := m.extremes(f, 1, known("min"), known("max"), known("mean")); err != nil {
		return nil, err
	}
	for name, v := range in.Latencies {
		digits, ok := strings.CutSuffix(name, "th")
		if !ok {
			continue
		}
		percent, err := strconv.ParseFloat(digits, 64)
		ns, err2 := scaled(v, 1)
		if err := errors.Join(err, err2); err != nil {
			return nil, f.bad(0, "latencies: %s: %v", name, err)
		}
		if err := m.point(f, 0, percent, ns); err != nil {
			return nil, err
		}
	}
	if in.Success < 1 {
		m.warnings = append(m.warnings, latency.FormatShare(1-in.Success)+
			" of the requests failed, and are in the percentiles")
	}
	return m, m.order(f)
}

var (
	vegetaLine = regexp.MustCompile(`^\s*\{"attack":.*"timestamp":.*"latency":`)
	vegetaRow  = regexp.MustCompile(`^\d{15,19},\d+,\d+,\d+,\d+,`)
)

// request is one request of an HTTP load generator.
func (m *measurement) request(f *file, line int, at time.Time, ns int64, code int, failure string) error {
	if at.Unix() < 0 || at.Unix() > maxDate {
		return f.bad(line, "a request at %v", at)
	}
	if m.start.IsZero() {
		m.start, m.timed = at, true
	}
	if ns < 0 || ns > maxLatency {
		return f.bad(line, "a latency of %d ns", ns)
	}
	m.counts.Sent++
	m.counts.Received++
	if failure != "" || code < 200 || code >= 400 {
		m.counts.Corrupt++
	}
	return m.add(f, line, at.Sub(m.start).Nanoseconds(), ns)
}

// finish adds the warning about failed requests.
func (m *measurement) finish() {
	if n := m.counts.Corrupt; n > 0 {
		m.warnings = append(m.warnings, fmt.Sprintf("%s of %s failed, and are in the percentiles",
			latency.FormatCount(n), sanitize.Count(m.counts.Sent, "request")))
		m.counts.Corrupt = 0
	}
	if len(m.samples) > 0 { // results are in the order of completion
		first := slices.MinFunc(m.samples, func(a, b sample) int { return int(min(max(a.at-b.at, -1), 1)) }).at
		for i := range m.samples {
			m.samples[i].at -= first
		}
		m.start = m.start.Add(time.Duration(first))
	}
}

// readVegetaLines reads the output of vegeta encode -to json: a JSON object on each line.
func readVegetaLines(f *file) (*measurement, error) {
	m := &measurement{tool: "vegeta", metric: report.Response, unit: "ns (fixed by vegeta)"}
	starts := map[string]bool{} // attacks whose first request was seen
	for n, line := range f.lines() {
		if line == "" {
			continue
		}
		var in struct {
			Code      int       `json:"code"`
			Timestamp time.Time `json:"timestamp"`
			Latency   int64     `json:"latency"`
			Error     string    `json:"error"`
			Attack    string    `json:"attack"`
			Seq       *int64    `json:"seq"`
		}
		if err := json.Unmarshal([]byte(line), &in); err != nil {
			return nil, f.bad(n, "%v", err)
		}
		if in.Seq != nil && *in.Seq == 0 {
			if starts[in.Attack] {
				return nil, f.bad(n, "a second attack: put each measurement into its own file")
			}
			starts[in.Attack] = true
		}
		if err := m.request(f, n, in.Timestamp, in.Latency, in.Code, in.Error); err != nil {
			return nil, err
		}
	}
	m.finish()
	return m, nil
}

// readVegetaRows reads the output of vegeta encode -to csv.
func readVegetaRows(f *file) (*measurement, error) {
	m := &measurement{tool: "vegeta", metric: report.Response, unit: "ns (fixed by vegeta)"}
	rows := csv.NewReader(bytes.NewReader(f.text))
	rows.ReuseRecord, rows.FieldsPerRecord = true, -1
	starts := map[string]bool{} // attacks whose first request was seen
	for {
		row, err := rows.Read()
		if err == io.EOF {
			m.finish()
			return m, nil
		}
		if err != nil {
			return nil, f.bad(0, "%v", err)
		}
		line, _ := rows.FieldPos(0)
		if len(row) < 6 {
			return nil, f.bad(line, "%d columns, expected at least 6", len(row))
		}
		if len(row) > 8 && row[8] == "0" {
			if starts[row[7]] {
				return nil, f.bad(line, "a second attack: put each measurement into its own file")
			}
			starts[row[7]] = true
		}
		at, err := strconv.ParseInt(row[0], 10, 64)
		code, err2 := strconv.Atoi(row[1])
		ns, err3 := strconv.ParseInt(row[2], 10, 64)
		if err := errors.Join(err, err2, err3); err != nil {
			return nil, f.bad(line, "%s", strings.ReplaceAll(err.Error(), "\n", "; "))
		}
		if err := m.request(f, line, time.Unix(0, at), ns, code, row[5]); err != nil {
			return nil, err
		}
	}
}

// readIrtt reads the output of irtt client -o FILE.json.
func readIrtt(f *file) (*measurement, error) {
	var in struct {
		RoundTrips []struct {
			Lost       string `json:"lost"`
			Timestamps struct {
				Client struct {
					Send struct {
						Wall int64 `json:"wall"`
					} `json:"send"`
				} `json:"client"`
			} `json:"timestamps"`
			Delay struct {
				RTT *int64 `json:"rtt"`
			} `json:"delay"`
		} `json:"round_trips"`
		Stats struct {
			Duplicates int64 `json:"duplicates"`
		} `json:"stats"`
	}
	if err := f.decode(&in); err != nil {
		return nil, err
	}
	m := &measurement{tool: "irtt", metric: report.RoundTrip, unit: "ns (fixed by irtt)",
		traffic: report.Traffic{Protocol: "udp"}}
	m.counts.Duplicates = max(in.Stats.Duplicates, 0)
	for i, r := range in.RoundTrips {
		m.counts.Sent++
		if r.Lost != "false" || r.Delay.RTT == nil {
			m.counts.Lost++
			continue
		}
		at := time.Unix(0, r.Timestamps.Client.Send.Wall)
		if m.start.IsZero() {
			m.start, m.timed = at, true
		}
		if *r.Delay.RTT < 0 || *r.Delay.RTT > maxLatency || r.Timestamps.Client.Send.Wall <= 0 ||
			r.Timestamps.Client.Send.Wall > maxDate*1e9 {
			return nil, f.bad(0, "round_trips[%d]: %d ns, sent at %d", i, *r.Delay.RTT, r.Timestamps.Client.Send.Wall)
		}
		if err := m.add(f, 0, at.Sub(m.start).Nanoseconds(), *r.Delay.RTT); err != nil {
			return nil, err
		}
	}
	m.counts.Received = int64(len(m.samples))
	m.finish()
	return m, nil
}

// readIperf reads the output of iperf3 -J: the sender's smoothed round trip at the end of each interval.
func readIperf(f *file) (*measurement, error) {
	var in struct {
		Start struct {
			Timestamp struct {
				Timesecs int64 `json:"timesecs"`
			} `json:"timestamp"`
		} `json:"start"`
		Intervals []struct {
			Streams []struct {
				End     float64 `json:"end"`
				RTT     *int64  `json:"rtt"`
				Omitted bool    `json:"omitted"`
			} `json:"streams"`
		} `json:"intervals"`
	}
	if err := f.decode(&in); err != nil {
		return nil, err
	}
	m := &measurement{tool: "iperf3", metric: report.Smoothed, unit: "µs (fixed by iperf3)",
		traffic: report.Traffic{Protocol: "tcp"}, timed: true,
		limits: []string{"TCP's smoothed round trip, once per interval and stream: single round trips are unknown, and percentiles are of averages"}}
	if s := in.Start.Timestamp.Timesecs; s > 0 && s < maxDate {
		m.start = time.Unix(s, 0)
	}
	for i, iv := range in.Intervals {
		for _, s := range iv.Streams {
			if s.RTT == nil || s.Omitted {
				continue
			}
			ns, err := scaled(float64(*s.RTT), 1e3)
			if err != nil || !(s.End >= 0 && s.End < 1e8) {
				return nil, f.bad(0, "intervals[%d]: a round trip of %d µs at %v s", i, *s.RTT, s.End)
			}
			if err := m.add(f, 0, int64(s.End*1e9), ns); err != nil {
				return nil, err
			}
		}
	}
	if len(m.samples) == 0 {
		return nil, f.bad(0, "no round trips: iperf3 reports them for the sender of TCP")
	}
	m.timed = !m.start.IsZero()
	return m, nil
}

// readCyclictestJSON reads the output of cyclictest --json, with all threads combined.
func readCyclictestJSON(f *file) (*measurement, error) {
	var in struct {
		StartTime  string `json:"start_time"`
		Resolution int    `json:"resolution_in_ns"`
		Thread     map[string]struct {
			Histogram     map[string]int64 `json:"histogram"`
			Cycles        int64            `json:"cycles"`
			Min, Max, Avg float64
		} `json:"thread"`
	}
	if err := f.decode(&in); err != nil {
		return nil, err
	}
	m := newCyclictest(f)
	m.unit = "µs (by resolution_in_ns)"
	if in.Resolution != 0 {
		f.Unit, m.unit, m.limits = "ns", "ns (by resolution_in_ns)", nil
	}
	m.start, _ = time.Parse(time.RFC1123Z, in.StartTime)
	var values, counts []int64
	least, most, mean, samples := math.Inf(1), 0.0, 0.0, 0.0
	for _, name := range slices.Sorted(maps.Keys(in.Thread)) {
		t := in.Thread[name]
		known := int64(0)
		for key, n := range t.Histogram {
			v, err := nanoseconds(key, f.factor())
			if err != nil || n < 0 || n > 1e12 {
				return nil, f.bad(0, "thread %s: %q has the count %d", name, key, n)
			}
			values, counts = append(values, v), append(counts, n)
			known += n
		}
		if t.Cycles < 0 || t.Cycles > 1e12 {
			return nil, f.bad(0, "thread %s: %d cycles", name, t.Cycles)
		}
		m.beyond += max(t.Cycles-known, 0)
		least, most = min(least, t.Min), max(most, t.Max)
		mean, samples = mean+t.Avg*float64(t.Cycles), samples+float64(t.Cycles)
	}
	if samples == 0 {
		return nil, f.bad(0, "no cycles")
	}
	return m, m.overflow(f, values, counts, least, most, mean/samples)
}

// readPrometheus reads a response of Prometheus' HTTP API with native histograms: a range of a counter, or a single
// moment. Options.Series selects a series by its labels.
func readPrometheus(f *file) (*measurement, error) {
	all, err := answer.Parse(f.text)
	if err != nil {
		return nil, f.bad(0, "%v", err)
	}
	named := map[string]*answer.Series{}
	var names []string
	for i := range all {
		var labels []string
		for _, k := range slices.Sorted(maps.Keys(all[i].Metric)) {
			labels = append(labels, k+"="+all[i].Metric[k])
		}
		name := strings.Join(labels, ",")
		named[name] = &all[i]
		names = append(names, name)
	}
	name, err := f.choose("series", names)
	if err != nil {
		return nil, err
	}
	moments := named[name].Histograms
	m := &measurement{tool: "Prometheus", metric: report.Unlabeled, unit: "s (Prometheus' base unit)"}
	switch len(moments) {
	case 0:
		return nil, f.bad(0, "no native histograms in series %s", name)
	case 1:
		moments = append([]answer.Moment{{At: moments[0].At.Add(-time.Second)}}, moments...)
		m.single = "it has a single moment (query a range)"
	}
	step := moments[1].At.Sub(moments[0].At)
	if step <= 0 {
		return nil, f.bad(0, "its moments are not in order")
	}
	l, err := answer.Report(moments, moments[0].At, step, len(moments)-1)
	if err != nil {
		return nil, f.bad(0, "%v", err)
	}
	m.intervals, m.start, m.timed = l.Main().Intervals, moments[0].At, m.single == ""
	if m.single == "" {
		m.runs = fmt.Sprintf("%d windows, each of which counts as a run", len(m.intervals))
	}
	m.warnings = l.Notes
	m.limits = append(m.limits, "percentiles are accurate to "+latency.FormatShare(l.Resolution/2)+
		", by the width of the histogram's buckets")
	m.resolution = l.Resolution
	return m, nil
}
