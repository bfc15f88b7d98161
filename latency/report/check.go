package report

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/attribution"
	"github.com/rebound-nic/rebound/latency/sanitize"
)

// Limits for reports from other machines. Numbers within these bounds can be added and converted without overflow.
const (
	maxFile   = 64 << 20 // bytes of report.json
	maxRest   = 2 << 20  // without the runs: a byte of JSON can become a hundred bytes of memory
	maxSeries = 256
	maxCount  = 1 << 53 // float64 represents it exactly
	maxTime   = 1 << 60 // ns, 36 years
	maxFloat  = 1e18
)

// check rejects values that no measurement can have, so that users of a report need not. It also escapes texts: a label
// with a newline could pass for another line of a program's output.
func (r *Report) check() error {
	if err := checkAll(reflect.ValueOf(r).Elem()); err != nil {
		return err
	}
	for i, run := range r.Runs {
		if run.End < run.Start || i > 0 && run.Start < r.Runs[i-1].End {
			return fmt.Errorf("runs[%d]: from %d to %d ns: want a start, an end after it, and the runs in their order",
				i, run.Start, run.End)
		}
	}
	if len(r.Series) > maxSeries {
		return fmt.Errorf("series: %d of them: want at most %d", len(r.Series), maxSeries)
	}
	seen := map[string]bool{}
	for i, s := range r.Series {
		if s == nil {
			return fmt.Errorf("series[%d] is null: want an object", i)
		}
		if seen[s.Name] || !tagPattern.MatchString(s.Name) {
			return fmt.Errorf("series[%d].name: %q: want letters, digits, '_' and '-', and each name once", i, s.Name)
		}
		seen[s.Name] = true
		if err := ordered(&s.Summary); err != nil {
			return fmt.Errorf("series[%d].summary: %w", i, err)
		}
		if s.Wait != nil {
			if err := ordered(s.Wait); err != nil {
				return fmt.Errorf("series[%d].wait: %w", i, err)
			}
		}
	}
	return nil
}

// Escape makes the texts of a report that was made from another tool's file safe to print, as Read does for reports.
func (r *Report) Escape() { escape(reflect.ValueOf(r).Elem()) }

func escape(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(sanitize.Text(v.String()))
	case reflect.Pointer:
		if !v.IsNil() {
			escape(v.Elem())
		}
	case reflect.Slice:
		if k := v.Type().Elem().Kind(); k == reflect.String || k == reflect.Struct || k == reflect.Pointer {
			for i := range v.Len() {
				escape(v.Index(i))
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				escape(v.Field(i))
			}
		}
	}
}

// ordered checks that the numbers of a summary are consistent.
func ordered(m *latency.Summary) error {
	type number struct {
		name  string
		value int64
	}
	all := []number{{"min_ns", m.Min}, {"p50_ns", m.P50}, {"p90_ns", m.P90}, {"p99_ns", m.P99}, {"p99.9_ns", m.P999},
		{"p99.99_ns", m.P9999}, {"max_ns", m.Max}}
	for i, n := range all[1:] {
		if before := all[i]; n.value < before.value {
			return fmt.Errorf("%s %d is above %s %d: want min <= p50 <= p90 <= ... <= max", before.name, before.value,
				n.name, n.value)
		}
	}
	// tolerance for rounding
	if slack := 1e-9 * float64(m.Max); m.Mean < float64(m.Min)-slack || m.Mean > float64(m.Max)+slack {
		return fmt.Errorf("mean_ns %v is not between min_ns %d and max_ns %d", m.Mean, m.Min, m.Max)
	}
	return nil
}

// checkAll escapes the texts in v, and checks that its numbers are in range. An error starts with the path of the
// number.
func checkAll(v reflect.Value) error {
	switch v.Kind() {
	case reflect.String:
		v.SetString(sanitize.Text(v.String()))
	case reflect.Int, reflect.Int64:
		if v.Int() < 0 || v.Int() > maxTime {
			return fmt.Errorf(": %d: want 0 to %d", v.Int(), int64(maxTime))
		}
	case reflect.Float64:
		if f := v.Float(); !(f >= -maxFloat && f <= maxFloat) {
			return fmt.Errorf(": %v: want %g to %g", f, -maxFloat, maxFloat)
		}
	case reflect.Pointer:
		if !v.IsNil() {
			return checkAll(v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			if err := checkAll(v.Index(i)); err != nil {
				return within(fmt.Sprintf("[%d]", i), err)
			}
		}
	case reflect.Map:
		return checkMap(v)
	case reflect.Struct:
		if t, ok := v.Interface().(time.Time); ok {
			if y := t.Year(); !t.IsZero() && (y < 1970 || y > 2200) { // time.Time.UnixNano overflows in 2262
				return fmt.Errorf(": %s: want a year from 1970 to 2200", t.Format(time.RFC3339))
			}
			return nil
		}
		for i := range v.NumField() {
			name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			if name == "-" || name == "core" && v.Field(i).Int() == -1 {
				continue // not in the file; set if no core was chosen on the host
			}
			if t, ok := v.Field(i).Interface().(attribution.Times); ok {
				for k, n := range t {
					if n < attribution.NotKnown || n > maxTime {
						return fmt.Errorf("%s[%d]: %d: want 0 to %d, or %d for unknown", name, k, n, int64(maxTime),
							attribution.NotKnown)
					}
				}
				continue
			}
			if err := checkAll(v.Field(i)); err != nil {
				return within(name, err)
			}
		}
	}
	return nil
}

// within puts the name of a field, or an index, before the path at the start of an error.
func within(place string, err error) error {
	if text := err.Error(); text[0] == ':' || text[0] == '[' {
		return fmt.Errorf("%s%w", place, err)
	}
	return fmt.Errorf("%s.%w", place, err)
}

// checkMap is checkAll for a map from texts to numbers.
func checkMap(m reflect.Value) error {
	for _, k := range m.MapKeys() {
		name, v := reflect.New(k.Type()).Elem(), reflect.New(m.Type().Elem()).Elem()
		name.SetString(sanitize.Text(k.String()))
		v.Set(m.MapIndex(k))
		if err := checkAll(v); err != nil {
			return within(fmt.Sprintf("[%q]", k.String()), err)
		}
		m.SetMapIndex(k, reflect.Value{})
		m.SetMapIndex(name, v)
	}
	return nil
}
