package foreign

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rebound-nic/rebound/latency/report"
)

var k6Line = regexp.MustCompile(`^\s*\{\s*(?:"metric"\s*:\s*"[^"]*"\s*,\s*)?"type"\s*:\s*"(?:Metric|Point)"`)

// k6Duration is the metric that is read unless Options.Series names another.
const k6Duration = "http_req_duration"

// k6Value is one value of a metric.
type k6Value struct {
	at                        time.Time
	value                     float64
	status, failure, expected string
}

// k6s reads the points of k6. Values are in ms, unless a metric does not contain times.
type k6s struct {
	*measurement
	f      *file
	name   string
	factor float64
}

// k6 starts a reader for the metric that Options.Series names, or for one of those that the file has.
func (f *file) k6(names []string, contains map[string]string) (*k6s, error) {
	r := &k6s{f: f, factor: 1e6, measurement: &measurement{tool: "k6", metric: report.Unlabeled,
		unit: "ms (fixed by k6)"}}
	var err error
	if r.name = k6Duration; f.Series != "" || !slices.Contains(names, k6Duration) {
		if r.name, err = f.choose("metric", names); err != nil {
			return nil, err
		}
	}
	if strings.HasPrefix(r.name, "http_req") || strings.HasPrefix(r.name, "grpc_req") {
		r.metric = report.Response
	}
	if kind, known := contains[r.name]; known && kind != "time" {
		if r.factor, r.unit, err = f.statedUnit(); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// point records a value of the chosen metric. A request with status 0 got no response: its value is 0, or the timeout.
func (r *k6s) point(n int, p k6Value) error {
	if p.at.Unix() < 0 || p.at.Unix() > maxDate {
		return r.f.bad(n, "a value at %v", p.at)
	}
	if p.status == "0" {
		r.counts.Sent++
		r.counts.Lost++
		what := "a request without a response"
		if p.failure != "" {
			what += ", error " + p.failure
		}
		r.remark(n, what)
		return nil
	}
	ns, err := scaled(p.value, r.factor)
	if err != nil {
		return r.f.bad(n, "%v", err)
	}
	code := 200
	if p.expected == "false" || p.failure != "" {
		code = 500
	} else if c, err := strconv.Atoi(p.status); err == nil && p.expected == "" {
		code = c
	}
	return r.request(r.f, n, p.at, ns, code, "")
}

// readK6Lines reads the output of k6 run --out json=FILE: a point of a metric on each line, or the metric's declaration
// before its first point.
func readK6Lines(f *file) (*measurement, error) {
	type line struct {
		Type, Metric string
		Data         struct {
			Type, Contains string
			Time           time.Time
			Value          float64
			Tags           map[string]string
		}
	}
	all, declared := map[string]string{}, map[string]bool{} // what a trend contains
	for _, text := range f.lines() {
		var in line
		if strings.Contains(text, `"Metric"`) && json.Unmarshal([]byte(text), &in) == nil && in.Type == "Metric" {
			declared[in.Metric] = true
			if in.Data.Type == "trend" {
				all[in.Metric] = in.Data.Contains
			}
		}
	}
	r, err := f.k6(slices.Sorted(maps.Keys(all)), all)
	if err != nil {
		return nil, err
	}
	for n, text := range f.lines() {
		if text == "" {
			continue
		}
		var in line
		if err := json.Unmarshal([]byte(text), &in); err != nil || in.Type != "Point" && in.Type != "Metric" ||
			!declared[in.Metric] {
			if err := r.unparsed(f, n, text); err != nil {
				return nil, err
			}
			continue
		}
		if in.Type != "Point" || in.Metric != r.name {
			continue
		}
		if err := r.point(n, k6Value{at: in.Data.Time, value: in.Data.Value, status: in.Data.Tags["status"],
			failure: in.Data.Tags["error_code"], expected: in.Data.Tags["expected_response"]}); err != nil {
			return nil, err
		}
	}
	r.finish()
	return r.measurement, nil
}

// k6Times are the units of timestamps in CSV by their number of digits (option timeFormat).
var k6Times = map[int]func(int64) time.Time{
	10: func(v int64) time.Time { return time.Unix(v, 0) },
	13: time.UnixMilli,
	16: time.UnixMicro,
	19: func(v int64) time.Time { return time.Unix(0, v) },
}

// readK6CSV reads the output of k6 run --out csv=FILE: a value of a metric on each line.
func readK6CSV(f *file) (*measurement, error) {
	t, err := f.table()
	if err != nil {
		return nil, err
	}
	var names []string
	seen := map[string]bool{}
	for _, text := range f.lines() {
		if name, _, _ := strings.Cut(text, ","); strings.HasSuffix(name, "_duration") && !seen[name] {
			seen[name] = true
			names = append(names, name)
		}
	}
	if f.Series != "" && !seen[f.Series] { // a trend of the script's, or a part of a request
		names = append(names, f.Series)
	}
	r, err := f.k6(names, nil)
	if err != nil {
		return nil, err
	}
	at := func(row []string, name string) string {
		if i := slices.Index(t.names, name); i >= 0 {
			return row[i]
		}
		return ""
	}
	for {
		row, line, err := t.next()
		if err != nil {
			return nil, err
		}
		if row == nil {
			break
		}
		if at(row, "metric_name") != r.name {
			continue
		}
		stamp := at(row, "timestamp")
		when, err := time.Parse(time.RFC3339Nano, stamp)
		if v, err2 := strconv.ParseInt(stamp, 10, 64); err2 == nil && k6Times[len(stamp)] != nil {
			when, err = k6Times[len(stamp)](v), nil
		}
		value, err2 := strconv.ParseFloat(at(row, "metric_value"), 64)
		if err != nil || err2 != nil {
			return nil, f.bad(line, "%q at %q is no value with a time", at(row, "metric_value"), stamp)
		}
		if err := r.point(line, k6Value{at: when, value: value, status: at(row, "status"),
			failure: at(row, "error_code"), expected: at(row, "expected_response")}); err != nil {
			return nil, err
		}
	}
	if len(r.samples) == 0 && r.counts.Sent == 0 {
		return nil, f.bad(0, "no values of %s: set -series to the name of a metric", r.name)
	}
	r.limits = append(r.limits, fmt.Sprintf("the times of %s are whole seconds, unless timeFormat was set", r.name))
	r.finish()
	return r.measurement, nil
}
