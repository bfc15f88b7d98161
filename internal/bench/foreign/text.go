package foreign

import (
	"fmt"
	"math"
	"regexp"
	"slices"
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

// given returns the unit of Options, for a file that does not state one.
func (f *file) given() (factor float64, text string, err error) {
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

func contains(s string) func(*file) bool {
	return func(f *file) bool { return strings.Contains(f.head, s) }
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

func isNumbers(f *file) bool { return isNumber(f.first()) }

// readNumbers reads a file with one number per line, in chronological order.
func readNumbers(f *file) (*measurement, error) {
	factor, unit, err := f.given()
	if err != nil {
		return nil, err
	}
	m := &measurement{tool: "unknown tool", metric: report.Unlabeled, unit: unit}
	for n, line := range f.lines() {
		if line == "" || line[0] == '#' {
			continue
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

// separator returns the separator of the cells in a table's first line, empty if it has one cell.
func separator(line string) string {
	for _, c := range []string{",", ";", "\t"} {
		if strings.Contains(line, c) {
			return c
		}
	}
	return ""
}

var (
	columnName = regexp.MustCompile(`^[\pL_][\pL\pN_ ./%()\[\]-]*$`)
	columnUnit = regexp.MustCompile(`(?i)(?:^|[_ (\[.-])(ns|nsec|nanoseconds?|us|µs|usec|microseconds?|ms|msec|milliseconds?|s|sec|seconds?)[)\]]?$`)
	latencies  = regexp.MustCompile(`(?i)rtt|round.?trip|latency|delay|duration|elapsed|response`)
)

func isTable(f *file) bool {
	line := f.first()
	for _, c := range cells(line, separator(line)) {
		if !columnName.MatchString(c) {
			return false
		}
	}
	return separator(line) != "" || latencies.MatchString(line) || columnUnit.MatchString(line)
}

// readTable reads a table with a line of column names. Options.Series selects a column.
func readTable(f *file) (*measurement, error) {
	m := &measurement{tool: "unknown tool", metric: report.Unlabeled}
	comma, column, width, factor := "", -1, 0, 0.0
	for n, line := range f.lines() {
		if line == "" || line[0] == '#' {
			continue
		}
		if column < 0 {
			comma = separator(line)
			names := cells(line, comma)
			if comma == "" {
				names = []string{line}
			}
			var err error
			if column, err = f.column(n, names); err != nil {
				return nil, err
			}
			width = len(names)
			if u := columnUnit.FindStringSubmatch(names[column]); u != nil {
				factor, m.unit = units[strings.ToLower(u[1])], fmt.Sprintf("%s (by the column's name, %s)", u[1], names[column])
			} else if factor, m.unit, err = f.given(); err != nil {
				return nil, err
			}
			continue
		}
		c := []string{line}
		if comma != "" {
			c = cells(line, comma)
		}
		if len(c) != width {
			return nil, f.bad(n, "%d columns, expected %d", len(c), width)
		}
		if c[column] == "" { // lost
			m.counts.Lost++
			continue
		}
		ns, err := nanoseconds(c[column], factor)
		if err != nil {
			return nil, f.bad(n, "%v", err)
		}
		if err := m.add(f, n, 0, ns); err != nil {
			return nil, err
		}
	}
	if m.counts.Lost > 0 {
		m.counts.Received = int64(len(m.samples))
		m.counts.Sent = m.counts.Received + m.counts.Lost
	}
	return m, nil
}

// column returns the index of the column with the latencies.
func (f *file) column(line int, names []string) (int, error) {
	if f.Series != "" {
		if i := slices.Index(names, f.Series); i >= 0 {
			return i, nil
		}
		return 0, f.bad(line, "no column %q: it has %s", f.Series, strings.Join(names, ", "))
	}
	var found []int
	for i, name := range names {
		if latencies.MatchString(name) || len(names) == 1 {
			found = append(found, i)
		}
	}
	if len(found) != 1 {
		return 0, f.bad(line, "which column has the latencies? Set -series to one of: %s", strings.Join(names, ", "))
	}
	return found[0], nil
}
