package foreign

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"

	"github.com/rebound-nic/rebound/latency/report"
)

// units are the factors to nanoseconds.
var units = map[string]float64{
	"ns": 1, "nsec": 1, "nanosecond": 1, "nanoseconds": 1,
	"us": 1e3, "µs": 1e3, "μs": 1e3, "usec": 1e3, "microsecond": 1e3, "microseconds": 1e3,
	"ms": 1e6, "msec": 1e6, "millisecond": 1e6, "milliseconds": 1e6,
	"s": 1e9, "sec": 1e9, "second": 1e9, "seconds": 1e9,
}

// statedUnit returns the unit of Options, for a file that does not state one.
func (f *file) statedUnit() (factor float64, text string, err error) {
	if f.Unit == "" {
		return 0, "", fmt.Errorf("%s: %w", f.name, ErrUnit)
	}
	return units[f.Unit], f.Unit + " (set by -unit)", nil
}

// maxLatency bounds a single value: larger ones are a wrong unit or a wrong column.
const maxLatency = 1e15 // ns, eleven days

// nanoseconds parses a value in a unit of factor nanoseconds.
func nanoseconds(text string, factor float64) (int64, error) {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is not a number", text)
	}
	return scaled(v, factor)
}

func scaled(v, factor float64) (int64, error) {
	if !(v >= 0 && v*factor <= maxLatency) {
		return 0, fmt.Errorf("%v is out of range: want 0 to %g ns", v, maxLatency)
	}
	return int64(math.Round(v * factor)), nil
}

func matches(r *regexp.Regexp) func(*file) bool {
	return func(f *file) bool { return r.MatchString(f.head) }
}

// first returns the first line that is neither empty nor a comment.
func (f *file) first() string {
	for line := range strings.Lines(f.head) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			return line
		}
	}
	return ""
}

func isNumber(s string) bool {
	_, err := strconv.ParseFloat(s, 64)
	return err == nil
}

// decimalComma matches a number as some languages write it.
var decimalComma = regexp.MustCompile(`^-?\d+,\d+$`)

func isNumbers(f *file) bool { return isNumber(f.first()) || decimalComma.MatchString(f.first()) }

// readNumbers reads a file with one number per line, in chronological order.
func readNumbers(f *file) (*measurement, error) {
	factor, unit, err := f.statedUnit()
	if err != nil {
		return nil, err
	}
	m := &measurement{tool: "unknown tool", metric: report.Unlabeled, unit: unit}
	for n, line := range f.lines() {
		if line == "" || line[0] == '#' {
			continue
		}
		if decimalComma.MatchString(line) { // it may be a row of two columns, too
			return nil, f.bad(n, "%q has a comma: want numbers with a decimal point, or a table with column names",
				line)
		}
		ns, err := nanoseconds(line, factor)
		if err != nil {
			return nil, f.bad(n, "%v", err)
		}
		if err := m.add(f, n, 0, ns); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// cells splits a line of a table at commas, semicolons or tabs.
func cells(line, comma string) []string {
	all := strings.Split(line, comma)
	for i := range all {
		all[i] = strings.Trim(strings.TrimSpace(all[i]), `"`)
	}
	return all
}
