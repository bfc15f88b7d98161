package report

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/atomicfile"
)

// Unfinished marks a report whose measurement has not ended yet, or whose program ended before it could write the
// complete report. Read takes its runs, counts and series from the log, as far as they were written.
type Unfinished struct {
	Runs int   `json:"runs"`             // planned
	Run  int64 `json:"run_ns,omitempty"` // planned length of each run; 0 if runs end after a number of samples
}

// UnfinishedText says how much of a report was written; it is empty for a finished report.
func (r *Report) UnfinishedText() string {
	u := r.Unfinished
	if u == nil {
		return ""
	}
	text := fmt.Sprintf("unfinished: %s of %s planned runs were measured", latency.FormatCount(len(r.Runs)),
		latency.FormatCount(u.Runs))
	if u.Run > 0 {
		measured := int64(0)
		for _, run := range r.Runs {
			measured += run.End - run.Start
		}
		text += fmt.Sprintf(" (%s of %s)", latency.FormatNS(float64(measured)),
			latency.FormatNS(float64(u.Runs)*float64(u.Run)))
	}
	return text + "; the " + r.Tool + " is still measuring, or was ended before it wrote the whole report"
}

// Part is what one run adds to an unfinished report.
type Part struct {
	Run      latency.Run       `json:"run"`
	Counts   Counts            `json:"counts"`          // of all runs so far
	Drops    []Drop            `json:"drops,omitempty"` // of all runs so far, like the following fields
	Rejected []Rejection       `json:"rejected,omitempty"`
	Counters map[string]uint64 `json:"counters,omitempty"`
	Order    *Order            `json:"order,omitempty"`
	STAMP    *STAMP            `json:"stamp,omitempty"`
	Warnings []string          `json:"warnings,omitempty"`
	Notes    []string          `json:"notes,omitempty"`
	Place    *int              `json:"place,omitempty"` // in a session that alternates: see Schedule
	Series   []*latency.Series `json:"-"`               // of this run only
}

// partComment starts the line of a log that ends a part. Lines after the last such line were truncated and are ignored.
const partComment = "#[Part: "

// Journal is an unfinished report that is being written: its folder has report.json with Unfinished set, and a log that
// parts are appended to. Write replaces it with the complete report.
type Journal struct {
	log  *os.File
	size int64 // bytes of complete parts
}

// NewJournal writes the folder dir as Write does, with the fields of head and no part yet. head.Start is the start of
// the first run.
func NewJournal(dir string, head *Report) (*Journal, error) {
	h := *head
	h.Runs, h.Series, h.Counts, h.Drops, h.Rejected, h.Order, h.Tail = nil, nil, Counts{}, nil, nil, nil, nil
	var log bytes.Buffer
	if err := WriteHlogHead(&log, h.Start); err != nil {
		return nil, err
	}
	err := writeFolder(dir, []file{
		{ReportFile, func(w io.Writer) error { return WriteJSON(w, &h) }},
		{HlogFile, func(w io.Writer) error { _, err := w.Write(log.Bytes()); return err }},
	})
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, HlogFile), os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	return &Journal{f, int64(log.Len())}, nil
}

// Add appends parts and waits until they are on the disk. On an error the log is unchanged.
func (j *Journal) Add(parts ...Part) error {
	var b bytes.Buffer
	for _, p := range parts {
		for _, s := range p.Series {
			for _, iv := range s.Intervals {
				if iv.Count == 0 {
					continue
				}
				if err := WriteHlogLine(&b, s.Name, iv); err != nil {
					return err
				}
			}
		}
		text, err := json.Marshal(p)
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%s%s]\n", partComment, text)
	}
	n, err := j.log.WriteAt(b.Bytes(), j.size)
	if err == nil {
		err = j.log.Sync()
	}
	if err != nil {
		return errors.Join(err, j.log.Truncate(j.size))
	}
	j.size += int64(n)
	return nil
}

// Close closes the log. The folder stays.
func (j *Journal) Close() error { return j.log.Close() }

// loadParts fills an unfinished report with the parts in its log.
func (r *Report) loadParts(path string) error {
	f, err := atomicfile.Open(path)
	if err != nil {
		return fmt.Errorf("report %s is incomplete: %w", r.Dir, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	r.Runs, r.Series, r.Counts, r.Drops, r.Rejected = nil, nil, Counts{}, nil, nil
	if r.Schedule != nil {
		r.Schedule.Places = nil
	}
	lines := bufio.NewScanner(f)
	lines.Buffer(make([]byte, 1<<16), maxLine)
	at, whole := int64(0), int64(0)
	for line := 1; lines.Scan(); line++ {
		at += int64(len(lines.Bytes())) + 1
		text, ok := bytes.CutPrefix(lines.Bytes(), []byte(partComment))
		if !ok || at > info.Size() { // truncated before its newline
			continue
		}
		var p Part
		if err := json.Unmarshal(bytes.TrimSuffix(text, []byte("]")), &p); err != nil {
			return fmt.Errorf("%s:%d: %w part: %w", path, line, ErrFormat, err)
		}
		r.Runs, r.Counts, r.Drops, whole = append(r.Runs, p.Run), p.Counts, p.Drops, at
		r.Rejected, r.Order = p.Rejected, p.Order
		if p.Counters != nil {
			r.Device.Counters = p.Counters
		}
		if p.STAMP != nil {
			r.STAMP = p.STAMP
		}
		if p.Warnings != nil {
			r.Warnings = p.Warnings
		}
		if p.Notes != nil {
			r.Notes = p.Notes
		}
		if p.Place != nil && r.Schedule != nil {
			r.Schedule.Places = append(r.Schedule.Places, *p.Place)
		}
	}
	// a line that is too long is not part of a complete part
	if err := lines.Err(); err != nil && !errors.Is(err, bufio.ErrTooLong) {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := r.check(); err != nil {
		return fmt.Errorf("%s: %w part: %w", path, ErrFormat, err)
	}
	if len(r.Runs) == 0 {
		return nil
	}
	r.End = r.Start.Add(time.Duration(r.Runs[len(r.Runs)-1].End))
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	_, r.Series, err = ReadHlog(io.LimitReader(f, whole), path)
	return err
}
