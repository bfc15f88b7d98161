package report

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/rebound-nic/rebound/latency/atomicfile"
	"github.com/rebound-nic/rebound/latency/sanitize"
)

// Gaps are the longest polling gaps of a responder's loops, with their times. The gaps themselves are in gaps.csv.zst.
type Gaps struct {
	From   int64 `json:"from_ns"`          // shorter ones are not kept
	Missed int64 `json:"missed,omitempty"` // gaps that are not in the file, and not shorter
	// How says how the causes are known; empty if they were not watched.
	How          string `json:"causes_known_by,omitempty"`
	MissedCauses int64  `json:"missed_causes,omitempty"`

	All []Gap `json:"-"` // in the order of time; ReadGaps reads them
}

// Gap is an iteration of a loop, or an interval in which something else had the loop's core.
type Gap struct {
	Core     int    // CPU; negative if a cause concerns all of them
	Start    int64  // ns since 1970 by the responder's clock
	Duration int64  // ns
	Text     string // what had the core; empty for an iteration
	Name     string // of one of several of its kind, such as a thread; may be empty
	Weak     bool   // by a counter: it happened at some time in the interval
}

var gapColumns = []string{"core", "start_ns", "duration_ns", "cause", "name", "weak"}

// writeGaps writes the gaps as CSV, compressed by zstd. An anonymous report does not name threads.
func (r *Report) writeGaps(w io.Writer) error {
	z, err := zstd.NewWriter(w)
	if err != nil {
		return err
	}
	c := csv.NewWriter(z)
	if err := c.Write(gapColumns); err != nil {
		return err
	}
	for _, g := range r.Gaps.All {
		text, name, weak := g.Text, g.Name, ""
		if g.Weak {
			weak = "1"
		}
		if r.Anonymous {
			if text = Scrub(text); name != "" {
				name = "another thread"
			}
		}
		if err := c.Write([]string{strconv.Itoa(g.Core), strconv.FormatInt(g.Start, 10),
			strconv.FormatInt(g.Duration, 10), text, name, weak}); err != nil {
			return err
		}
	}
	c.Flush()
	return errors.Join(c.Error(), z.Close())
}

// Limits for gaps.csv.zst from other machines.
const (
	maxGaps     = 1 << 20
	maxGapBytes = 256 << 20
)

// ReadGaps reads the gaps of a report that was read from its folder into Gaps.All.
func (r *Report) ReadGaps() error {
	path := filepath.Join(r.Dir, GapsFile)
	f, err := atomicfile.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	z, err := zstd.NewReader(f, zstd.WithDecoderMaxMemory(maxGapBytes), zstd.WithDecoderConcurrency(1))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	defer z.Close()
	c := csv.NewReader(io.LimitReader(z, maxGapBytes))
	c.FieldsPerRecord = len(gapColumns)
	r.Gaps.All = nil
	for {
		f, err := c.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("%s: %w gaps: %w", path, ErrFormat, err)
		}
		line, _ := c.FieldPos(0)
		if line == 1 {
			if strings.Join(f, ",") != strings.Join(gapColumns, ",") {
				return fmt.Errorf("%s:1: %w gaps: want the columns %s", path, ErrFormat, strings.Join(gapColumns, ","))
			}
			continue
		}
		core, errCore := strconv.Atoi(f[0])
		start, errStart := strconv.ParseInt(f[1], 10, 64)
		took, errTook := strconv.ParseInt(f[2], 10, 64)
		if err := errors.Join(errCore, errStart, errTook); err != nil {
			return fmt.Errorf("%s:%d: %w gaps: %w", path, line, ErrFormat, err)
		}
		if start < 0 || start > maxNanos || took < 0 || took > maxTime {
			return fmt.Errorf("%s:%d: %w gaps: a start of %d and a duration of %d ns", path, line, ErrFormat, start,
				took)
		}
		if len(r.Gaps.All) == maxGaps {
			return fmt.Errorf("%s:%d: %w gaps: more than %d", path, line, ErrFormat, maxGaps)
		}
		r.Gaps.All = append(r.Gaps.All, Gap{core, start, took, sanitize.Text(f[3]), sanitize.Text(f[4]), f[5] != ""})
	}
	return nil
}

// maxNanos is the year 2200, in ns since 1970.
const maxNanos = 7258118400 * 1e9
