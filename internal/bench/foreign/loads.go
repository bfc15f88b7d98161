package foreign

import (
	"encoding/json"
	"fmt"
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

var k6Point = regexp.MustCompile(`^p\((\d+(?:\.\d+)?)\)$`)

// readK6 reads the output of k6 run --summary-export, or the data of handleSummary. Options.Series selects a trend;
// without it http_req_duration is read.
func readK6(f *file) (*measurement, error) {
	var in struct {
		Metrics map[string]json.RawMessage `json:"metrics"`
	}
	if err := f.decode(&in); err != nil {
		return nil, err
	}
	trends, counts := map[string]map[string]float64{}, map[string]map[string]float64{}
	for name, raw := range in.Metrics {
		var nested struct {
			Type, Contains string
			Values         map[string]float64
		}
		var flat map[string]json.RawMessage
		if err := json.Unmarshal(raw, &nested); err != nil || nested.Values == nil {
			if err := json.Unmarshal(raw, &flat); err != nil {
				return nil, f.bad(0, "metrics: %s: %v", name, err)
			}
			nested.Values = map[string]float64{}
			for key, text := range flat { // a threshold is no number
				var v float64
				if json.Unmarshal(text, &v) == nil {
					nested.Values[key] = v
				}
			}
		}
		counts[name] = nested.Values
		_, trend := nested.Values["med"]
		if trend && (nested.Contains == "" || nested.Contains == "time") {
			trends[name] = nested.Values
		}
	}
	name := f.Series
	if trends["http_req_duration"] != nil && name == "" {
		name = "http_req_duration"
	} else {
		var err error
		if name, err = f.choose("trend", slices.Sorted(maps.Keys(trends))); err != nil {
			return nil, err
		}
	}
	m := &measurement{tool: "k6", metric: report.Unlabeled, unit: "ms (fixed by k6)"}
	if strings.HasPrefix(name, "http_req") || strings.HasPrefix(name, "grpc_req") {
		m.metric = report.Response
		m.count = int64(counts["http_reqs"]["count"])
	}
	known := func(key string) *float64 {
		if v, ok := trends[name][key]; ok {
			return &v
		}
		return nil
	}
	if err := m.extremes(f, 1e6, known("min"), known("max"), known("avg")); err != nil {
		return nil, err
	}
	for key, v := range trends[name] {
		percent := 50.0
		if p := k6Point.FindStringSubmatch(key); p != nil {
			percent, _ = strconv.ParseFloat(p[1], 64)
		} else if key != "med" {
			continue
		}
		ns, err := scaled(v, 1e6)
		if err != nil {
			return nil, f.bad(0, "metrics: %s: %s: %v", name, key, err)
		}
		if key == "med" && trends[name]["p(50)"] == v && known("p(50)") != nil {
			continue
		}
		if err := m.point(f, 0, percent, ns); err != nil {
			return nil, err
		}
	}
	if failed := counts["http_req_failed"]; failed != nil && m.metric == report.Response {
		share, ok := failed["rate"]
		if !ok {
			share = failed["value"]
		}
		if share > 0 {
			m.warnings = append(m.warnings, latency.FormatShare(share)+
				" of the requests failed, and are in the percentiles")
		}
	}
	return m, m.order(f)
}

// readGhz reads the output of ghz -O json: every call if it has them, or its percentiles.
func readGhz(f *file) (*measurement, error) {
	var in struct {
		Count                     int64
		Average, Fastest, Slowest float64
		Date                      time.Time
		Details                   []struct {
			Timestamp     time.Time
			Latency       int64
			Error, Status string
		}
		Latencies []struct {
			Percentage float64
			Latency    float64
		} `json:"latencyDistribution"`
		Errors map[string]int64 `json:"errorDistribution"`
	}
	if err := f.decode(&in); err != nil {
		return nil, err
	}
	m := &measurement{tool: "ghz", metric: report.Response, unit: "ns (fixed by ghz)"}
	for i, d := range in.Details {
		code := 200
		if d.Status != "OK" {
			code = 500
		}
		if err := m.request(f, 0, d.Timestamp, d.Latency, code, d.Error); err != nil {
			return nil, fmt.Errorf("%w (details[%d])", err, i)
		}
	}
	if len(in.Details) > 0 {
		m.differs(1, "calls", in.Count, int64(len(in.Details)))
		m.finish()
		return m, nil
	}
	for _, what := range slices.Sorted(maps.Keys(in.Errors)) {
		m.warnings = append(m.warnings, sanitize.Count(in.Errors[what], "call")+" failed: "+what)
	}
	if m.count = in.Count; in.Count < 0 || in.Count > maxCount {
		return nil, f.bad(0, "a count of %d", in.Count)
	}
	if err := m.extremes(f, 1, &in.Fastest, &in.Slowest, &in.Average); err != nil {
		return nil, err
	}
	for _, p := range in.Latencies {
		ns, err := scaled(p.Latency, 1)
		if err != nil {
			return nil, f.bad(0, "latencyDistribution: %v", err)
		}
		if err := m.point(f, 0, p.Percentage, ns); err != nil {
			return nil, err
		}
	}
	return m, m.order(f)
}

// readHyperfine reads the output of hyperfine --export-json. Options.Series selects a command.
func readHyperfine(f *file) (*measurement, error) {
	var in struct {
		Results []struct {
			Command string
			Times   []float64
			Codes   []*int `json:"exit_codes"`
		}
	}
	if err := f.decode(&in); err != nil {
		return nil, err
	}
	var names []string
	for _, r := range in.Results {
		names = append(names, r.Command)
	}
	name, err := f.choose("command", names)
	if err != nil {
		return nil, err
	}
	m := &measurement{tool: "hyperfine", metric: report.RunTime, unit: "s (fixed by hyperfine)"}
	r := in.Results[slices.Index(names, name)]
	for i, v := range r.Times {
		ns, err := scaled(v, 1e9)
		if err != nil {
			return nil, f.bad(0, "times[%d]: %v", i, err)
		}
		if err := m.add(f, 0, 0, ns); err != nil {
			return nil, err
		}
	}
	failed := 0
	for _, code := range r.Codes {
		if code == nil || *code != 0 {
			failed++
		}
	}
	if failed > 0 {
		m.warnings = append(m.warnings, fmt.Sprintf("%d of %s ended with an error; the percentiles include them",
			failed, sanitize.Count(len(r.Times), "run")))
	}
	return m, nil
}

var (
	twpingHead = regexp.MustCompile(`(?m)^seq_no=\d+ +(?:fwd_delay=|delay=|\*LOST\*)`)
	twpingLine = regexp.MustCompile(
		`^seq_no=(\d+) +(?:fwd_delay=\S+ \S+ bck_delay=\S+ \S+ )?delay=(-?[\d.e+-]+) (\S+)`)
	twpingLost = regexp.MustCompile(`^seq_no=(\d+) +\*LOST\*$`)
	twpingSum  = regexp.MustCompile(
		`^(\d+) sent, (\d+) lost \([^)]*\), (?:(\d+) duplicates|(\d+) send duplicates, (\d+) reflect duplicates)$`)
	twpingNoise = regexp.MustCompile(
		`^(?:--- .* ---|SID:|first:|last:|.* (?:min/median/max|time min|jitter|hops|delay|reordering|TTL)\b.*|Hops .*|no reordering|\d+-reordering = .*|.* timestamp.*|Approximately .*|twping: .*|owping: .*)$`)
)

// readTwping reads the output of twping -v (round trips) and owping -v (one way).
func readTwping(f *file) (*measurement, error) {
	m := &measurement{tool: "twping", metric: report.RoundTrip, unit: printed,
		traffic: report.Traffic{Protocol: "twamp"}}
	if !strings.Contains(f.head, "fwd_delay=") {
		m.tool, m.metric, m.traffic.Protocol = "owping", report.Delay, "owamp"
		m.limits = []string{"one-way delays include the error of both clocks"}
	}
	ended := false
	var lost int64
	for n, line := range f.lines() {
		if s := twpingLine.FindStringSubmatch(line); s != nil {
			if ended {
				return nil, f.bad(n, "a second measurement (owping prints both directions): put each into its own file")
			}
			v, err := strconv.ParseFloat(s[2], 64)
			if err != nil || units[s[3]] == 0 || math.IsNaN(v) {
				return nil, f.bad(n, "%q is no delay", s[2]+" "+s[3])
			}
			if m.counts.Sent++; v < 0 {
				m.noTime(n, "a negative delay: the clocks' error is larger than the delay")
				continue
			}
			ns, err := scaled(v, units[s[3]])
			if err != nil {
				return nil, f.bad(n, "%v", err)
			}
			if err := m.add(f, n, 0, ns); err != nil {
				return nil, err
			}
			continue
		}
		switch s := twpingSum.FindStringSubmatch(line); {
		case twpingLost.MatchString(line):
			m.counts.Sent++
			lost++
		case s != nil:
			if ended {
				return nil, f.bad(n, "a second summary: put each measurement into its own file")
			}
			ended = true
			var v [5]int64
			for i := range v {
				v[i], _ = strconv.ParseInt(s[i+1], 10, 64) // those that are not printed are empty
			}
			if slices.Max(v[:]) > maxCount {
				return nil, f.bad(n, "counts above %g", maxCount)
			}
			m.counts.Duplicates = v[2] + v[3] + v[4]
			m.differs(n, "probes", v[0]+m.counts.Duplicates, m.counts.Sent)
			m.differs(n, "lost", v[1], lost)
		case line == "", twpingNoise.MatchString(line):
		default:
			if err := m.unparsed(f, n, line); err != nil {
				return nil, err
			}
		}
	}
	m.counts.Received, m.counts.Lost = int64(len(m.samples))+m.untimed, lost
	return m, nil
}
