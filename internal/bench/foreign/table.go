package foreign

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rebound-nic/rebound/latency/report"
)

var (
	columnName = regexp.MustCompile(`^[\pL_%#][\pL\pN_ ./%()\[\]+:#-]*$`)
	columnUnit = regexp.MustCompile(
		`(?i)(?:^|[_ (\[.-])(ns|nsec|nanoseconds?|us|µs|usec|microseconds?|ms|msec|milliseconds?|s|sec|seconds?)[)\]]?$`)
	latencies  = regexp.MustCompile(`(?i)rtt|round.?trip|latency|delay|duration|elapsed|response`)
	percentage = regexp.MustCompile(`^(\d+(?:\.\d+)?)%$`)
	lostCell   = regexp.MustCompile(`(?i)^(?:|-|\*|timeout|timed out|lost|nan|null|none|n/?a)$`)
)

// table is a file with a line of column names, by RFC 4180, with commas, semicolons or tabs.
type table struct {
	f     *file
	rows  *csv.Reader
	comma string
	names []string
	head  int // line of the names
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

func (f *file) table() (*table, error) {
	t := &table{f: f, comma: separator(f.first())}
	t.rows = csv.NewReader(bytes.NewReader(f.text))
	t.rows.Comment, t.rows.FieldsPerRecord, t.rows.TrimLeadingSpace = '#', -1, t.comma != "\t"
	t.rows.Comma = ';'
	if t.comma != "" {
		t.rows.Comma = rune(t.comma[0])
	}
	row, line, err := t.next()
	if err != nil {
		return nil, err
	}
	t.names, t.head = row, line
	return t, nil
}

// next returns a row, which is nil at the end, and its line.
func (t *table) next() ([]string, int, error) {
	for {
		row, err := t.rows.Read()
		if errors.Is(err, io.EOF) {
			return nil, 0, nil
		}
		var wrong *csv.ParseError
		if errors.As(err, &wrong) {
			return nil, 0, t.f.bad(wrong.Line, "%v", wrong.Err)
		} else if err != nil {
			return nil, 0, t.f.bad(0, "%v", err)
		}
		line, _ := t.rows.FieldPos(0)
		for i := range row {
			row[i] = strings.TrimSpace(row[i])
		}
		if len(row) == 1 && row[0] == "" {
			continue
		}
		if t.names != nil && slices.Equal(row, t.names) {
			return nil, 0, t.f.bad(line, "the column names again: put each measurement into its own file")
		}
		if t.names != nil && len(row) != len(t.names) {
			return nil, 0, t.f.bad(line, "%d columns, expected %d", len(row), len(t.names))
		}
		return row, line, nil
	}
}

// names returns the column names of the first line, nil if it is no table.
func (f *file) names() []string {
	line := f.first()
	r := csv.NewReader(strings.NewReader(line))
	if c := separator(line); c != "" {
		r.Comma, r.TrimLeadingSpace = rune(c[0]), c != "\t"
	}
	row, err := r.Read()
	if err != nil {
		return nil
	}
	for i := range row {
		row[i] = strings.TrimSpace(row[i])
	}
	return row
}

// hasColumns matches tables with certain columns, unless -series names a column.
func hasColumns(names ...string) func(*file) bool {
	return func(f *file) bool {
		all := f.names()
		return !slices.Contains(all, f.Series) && !slices.ContainsFunc(names,
			func(n string) bool { return !slices.Contains(all, n) })
	}
}

func isTable(f *file) bool {
	line, names := f.first(), f.names()
	if f.Series != "" && slices.Contains(names, f.Series) {
		return true
	}
	if len(names) == 0 || slices.ContainsFunc(names, func(n string) bool { return !columnName.MatchString(n) }) {
		return false
	}
	return separator(line) != "" || latencies.MatchString(line) || columnUnit.MatchString(line)
}

// readTable reads a table with a line of column names. Options.Series selects a column.
func readTable(f *file) (*measurement, error) {
	m := &measurement{tool: "unknown tool", metric: report.Unlabeled}
	t, err := f.table()
	if err != nil {
		return nil, err
	}
	column, err := f.column(t.head, t.names)
	if err != nil {
		return nil, err
	}
	factor := 0.0
	if u := columnUnit.FindStringSubmatch(t.names[column]); u != nil && f.Unit == "" {
		factor, m.unit = units[strings.ToLower(u[1])], fmt.Sprintf("%s (by the column's name, %s)", u[1],
			t.names[column])
	} else if factor, m.unit, err = f.statedUnit(); err != nil {
		return nil, err
	}
	for {
		row, line, err := t.next()
		if err != nil {
			return nil, err
		}
		if row == nil {
			break
		}
		if lostCell.MatchString(row[column]) {
			m.counts.Lost++
			continue
		}
		ns, err := nanoseconds(t.decimal(row[column]), factor)
		if err != nil {
			return nil, f.bad(line, "%v", err)
		}
		if err := m.add(f, line, 0, ns); err != nil {
			return nil, err
		}
	}
	if m.counts.Lost > 0 {
		m.counts.Received = int64(len(m.samples))
		m.counts.Sent = m.counts.Received + m.counts.Lost
	}
	return m, nil
}

// decimal returns a number with a decimal point: a table whose cells are not separated by commas may have decimal
// commas.
func (t *table) decimal(text string) string {
	if t.comma == "," {
		return text
	}
	return strings.Replace(text, ",", ".", 1)
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

// readHey reads the output of hey -o csv.
func readHey(f *file) (*measurement, error) {
	m := &measurement{tool: "hey", metric: report.Response, unit: "s (fixed by hey)",
		limits: []string{"whole tenths of a millisecond", "failed requests without a response are not in the file"}}
	t, err := f.table()
	if err != nil {
		return nil, err
	}
	took, code, offset := slices.Index(t.names, "response-time"), slices.Index(t.names, "status-code"),
		slices.Index(t.names, "offset")
	for {
		row, line, err := t.next()
		if err != nil {
			return nil, err
		}
		if row == nil {
			break
		}
		ns, err := nanoseconds(row[took], 1e9)
		at, err2 := nanoseconds(row[offset], 1e9)
		status, err3 := strconv.Atoi(row[code])
		if err := errors.Join(err, err2, err3); err != nil {
			return nil, f.bad(line, "%s", strings.ReplaceAll(err.Error(), "\n", "; "))
		}
		if err := m.request(f, line, time.Unix(0, at), ns, status, ""); err != nil {
			return nil, err
		}
	}
	m.finish()
	m.start = time.Time{} // offsets from an unknown start
	slices.SortStableFunc(m.samples, func(a, b sample) int { return int(min(max(a.at-b.at, -1), 1)) })
	m.timed = false
	return m, nil
}

// readJMeter reads the log of JMeter in CSV. Options.Series selects a label.
func readJMeter(f *file) (*measurement, error) {
	t, err := f.table()
	if err != nil {
		return nil, err
	}
	at, took, label, good, code := slices.Index(t.names, "timeStamp"), slices.Index(t.names, "elapsed"),
		slices.Index(t.names, "label"), slices.Index(t.names, "success"), slices.Index(t.names, "responseCode")
	all := map[string]*measurement{}
	for {
		row, line, err := t.next()
		if err != nil {
			return nil, err
		}
		if row == nil {
			break
		}
		m := all[row[label]]
		if m == nil {
			if len(all) == maxRuns {
				return nil, f.bad(line, "more than %d labels", maxRuns)
			}
			m = &measurement{tool: "JMeter", metric: report.Response, unit: "ms (fixed by JMeter)",
				limits: []string{"whole milliseconds"}}
			all[row[label]] = m
		}
		ms, err := strconv.ParseInt(row[at], 10, 64)
		if err != nil || ms < 0 || ms > maxDate*1e3 {
			return nil, f.bad(line, "timeStamp %q: want milliseconds since 1970", row[at])
		}
		ns, err := nanoseconds(row[took], 1e6)
		if err != nil {
			return nil, f.bad(line, "elapsed: %v", err)
		}
		status, failure := 200, ""
		if row[good] != "true" {
			failure = row[code]
			if failure == "" {
				failure = "failed"
			}
		}
		if err := m.request(f, line, time.UnixMilli(ms), ns, status, failure); err != nil {
			return nil, err
		}
	}
	name, err := f.choose("label", slices.Sorted(maps.Keys(all)))
	if err != nil {
		return nil, err
	}
	all[name].finish()
	return all[name], nil
}

// locustOthers are Locust's columns that have no response time.
var locustOthers = []string{"Type", "Name", "Median Response Time", "Average Content Size", "Requests/s", "Failures/s"}

// readLocust reads the statistics of Locust (NAME_stats.csv). Options.Series selects a name.
func readLocust(f *file) (*measurement, error) {
	t, err := f.table()
	if err != nil {
		return nil, err
	}
	rows, lines := map[string][]string{}, map[string]int{}
	for {
		row, line, err := t.next()
		if err != nil {
			return nil, err
		}
		if row == nil {
			break
		}
		name := row[slices.Index(t.names, "Name")]
		if rows[name] != nil {
			name = row[slices.Index(t.names, "Type")] + " " + name
		}
		if len(rows) == maxRuns || rows[name] != nil {
			return nil, f.bad(line, "%q again, or more than %d names", name, maxRuns)
		}
		rows[name], lines[name] = slices.Clone(row), line
	}
	names := slices.Sorted(maps.Keys(rows))
	if f.Series == "" && len(names) == 2 && rows["Aggregated"] != nil { // one name, and the sum of all
		names = slices.DeleteFunc(names, func(n string) bool { return n == "Aggregated" })
	}
	name, err := f.choose("name", names)
	if err != nil {
		return nil, err
	}
	row, line := rows[name], lines[name]
	m := &measurement{tool: "Locust", metric: report.Response, unit: "ms (fixed by Locust)",
		limits: []string{"Locust rounds response times to two digits"}}
	m.unknown()
	for i, column := range t.names {
		var to *float64
		switch column {
		case "Min Response Time":
			to = &m.least
		case "Max Response Time":
			to = &m.most
		case "Average Response Time":
			to = &m.middle
		case "Request Count":
			if m.count, err = strconv.ParseInt(row[i], 10, 64); err != nil || m.count < 0 || m.count > maxCount {
				return nil, f.bad(line, "Request Count: %q is no count", row[i])
			}
			continue
		case "Failure Count":
			if row[i] != "0" {
				m.remark(line, "failed requests, which are in the percentiles: "+row[i])
			}
			continue
		}
		p := percentage.FindStringSubmatch(column)
		if to == nil && p == nil && !slices.Contains(locustOthers, column) {
			if err := m.unparsed(f, t.head, "column "+column); err != nil {
				return nil, err
			}
		}
		if to == nil && p == nil || lostCell.MatchString(row[i]) {
			continue
		}
		ns, err := nanoseconds(row[i], 1e6)
		if err != nil {
			return nil, f.bad(line, "%s: %v", column, err)
		}
		if to != nil {
			*to = float64(ns)
			continue
		}
		percent, _ := strconv.ParseFloat(p[1], 64)
		if err := m.point(f, line, percent, ns); err != nil {
			return nil, err
		}
	}
	if err := m.order(f); err != nil {
		return nil, err
	}
	if len(m.points) > 0 && m.count == 0 {
		m.remark(line, "percentiles of no requests")
	}
	if n := len(m.points); n > 0 { // percentiles are rounded, the maximum is not
		m.most = max(m.most, float64(m.points[n-1].Value))
	}
	return m, nil
}
