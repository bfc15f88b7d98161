package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/atomicfile"
)

// ErrSchema is returned for a report that a newer version of this program wrote.
var ErrSchema = errors.New("newer report schema")

// Read loads a report from its folder. Every error names the file, and the line if known.
func Read(dir string) (*Report, error) {
	path := filepath.Join(dir, ReportFile)
	f, err := atomicfile.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%s is no report: %w", dir, err)
	}
	defer f.Close()
	rep, err := Parse(f, path)
	if err != nil {
		return nil, err
	}
	rep.Dir = dir
	if rep.Unfinished != nil {
		return rep, rep.loadParts(filepath.Join(dir, HlogFile))
	}
	if err := rep.loadLog(filepath.Join(dir, HlogFile)); err != nil {
		return nil, err
	}
	return rep, nil
}

// Parse reads a report.json; its series have only their summaries. path is for errors, which give the line.
func Parse(r io.Reader, path string) (*Report, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(b) > maxFile {
		return nil, fmt.Errorf("%s: %w report: larger than %d MiB", path, ErrFormat, maxFile>>20)
	}
	var version struct {
		Schema *int            `json:"schema"`
		Runs   json.RawMessage `json:"runs"`
	}
	rep := new(Report)
	err = json.Unmarshal(b, &version)
	if err == nil {
		switch {
		case len(b)-len(version.Runs) > maxRest:
			return nil, fmt.Errorf("%s: %w report: %d bytes besides runs: want at most %d", path, ErrFormat,
				len(b)-len(version.Runs), maxRest)
		case version.Schema == nil || *version.Schema < 1:
			return nil, fmt.Errorf("%s: %w report: no schema version", path, ErrFormat)
		case *version.Schema > Schema:
			return nil, fmt.Errorf("%s: %w: it has version %d, this program reads up to %d", path, ErrSchema,
				*version.Schema, Schema)
		}
		err = json.Unmarshal(b, rep)
	}
	if err != nil {
		line := 1
		var syntax *json.SyntaxError
		var typ *json.UnmarshalTypeError
		switch {
		case errors.As(err, &syntax):
			line += countLines(b, syntax.Offset)
		case errors.As(err, &typ):
			line += countLines(b, typ.Offset)
		}
		return nil, fmt.Errorf("%s:%d: %w report: %v", path, line, ErrFormat, err)
	}
	if err := rep.check(); err != nil {
		return nil, fmt.Errorf("%s: %w report: %w", path, ErrFormat, err)
	}
	rep.countedOld()
	if rep.Schema == 1 {
		rep.locateOld()
	}
	rep.Schema = Schema
	for _, s := range rep.Series {
		s.Total = &latency.Histogram{}
	}
	return rep, nil
}

func countLines(b []byte, to int64) int {
	n := 0
	for _, c := range b[:min(max(to, 0), int64(len(b)))] {
		if c == '\n' {
			n++
		}
	}
	return n
}

// loadLog fills the series with their intervals, and compares the log with the counts in report.json, to detect a log
// that was truncated at a line break.
func (r *Report) loadLog(path string) error {
	f, err := atomicfile.Open(path)
	if err != nil {
		return fmt.Errorf("report %s is incomplete: %w", r.Dir, err)
	}
	defer f.Close()
	_, series, err := ReadHlog(f, path)
	if err != nil {
		return err
	}
	logged := map[string]*latency.Series{}
	for _, s := range series {
		logged[s.Name] = s
	}
	for i, s := range r.Series {
		l := logged[s.Name]
		if l == nil {
			l = &latency.Series{Total: &latency.Histogram{}}
		}
		if l.Total.Count != s.Summary.Count {
			return fmt.Errorf("%s: %w log: %d values of series %s, %s says %d: the log is cut off or from another run",
				path, ErrFormat, l.Total.Count, s.Name, ReportFile, s.Summary.Count)
		}
		s.Intervals, s.Total = l.Intervals, l.Total
		if s.Wait == nil { // written by a version without this field
			s.Gaps()
		}
		if s.Total.Count > 0 { // the log has these with only three digits
			s.Total.Min, s.Total.Max, s.Total.Sum = s.Summary.Min, s.Summary.Max,
				s.Summary.Mean*float64(s.Summary.Count)
		}
		if logged := s.Total.Summary(); percentiles(&logged) != percentiles(&s.Summary) {
			return fmt.Errorf("%s: %w report: series[%d].summary: percentiles %v, by %s they are %v: the files are not of one run",
				filepath.Join(r.Dir, ReportFile), ErrFormat, i, percentiles(&s.Summary), HlogFile, percentiles(&logged))
		}
	}
	return nil
}

func percentiles(m *latency.Summary) [5]int64 { return [5]int64{m.P50, m.P90, m.P99, m.P999, m.P9999} }
