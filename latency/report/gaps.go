package report

import (
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
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
	// Kept is how many gaps the file has, and Causes what had the cores, from that in most of these gaps. Older
	// versions wrote neither.
	Kept   int        `json:"kept,omitempty"`
	Causes []GapCause `json:"causes,omitempty"`

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

// GapCause is one kind of cause of gaps.
type GapCause struct {
	Text string `json:"text"`
	Name string `json:"name,omitempty"` // of one of several of its kind, such as a thread
	Weak bool   `json:"weak,omitempty"` // by a counter: it happened near the gaps, not certainly in them
	// Gaps is the number of gaps of which it had the core for a tenth or more, of weak causes of those around which it
	// was counted.
	Gaps    int   `json:"gaps"`
	Times   int   `json:"times"`
	Took    int64 `json:"took_ns"`    // all times together; 0 for weak causes
	Longest int64 `json:"longest_ns"` // the same for one
}

// mostGapCauses bounds Gaps.Causes.
const mostGapCauses = 20

// Sum computes Kept and Causes from All.
func (g *Gaps) Sum() {
	type kind struct {
		text, name string
		weak       bool
	}
	places := map[kind]int{}
	g.Kept, g.Causes = 0, nil
	gaps := map[int][]Gap{} // by core, in the order of time; those of one core do not overlap
	for _, gap := range g.All {
		if gap.Text == "" {
			g.Kept++
			gaps[gap.Core] = append(gaps[gap.Core], gap)
		}
	}
	last := map[kind]map[int]int{} // by core, the place of the latest gap that was counted, plus one
	for _, c := range g.All {
		if c.Text == "" {
			continue
		}
		k := kind{c.Text, c.Name, c.Weak}
		i, ok := places[k]
		if !ok {
			i, places[k], last[k] = len(g.Causes), len(g.Causes), map[int]int{}
			g.Causes = append(g.Causes, GapCause{Text: c.Text, Name: c.Name, Weak: c.Weak})
		}
		s := &g.Causes[i]
		s.Times++
		if !c.Weak {
			s.Took, s.Longest = s.Took+c.Duration, max(s.Longest, c.Duration)
		}
		for core, all := range gaps {
			if c.Core >= 0 && c.Core != core {
				continue
			}
			from, _ := slices.BinarySearchFunc(all, c.Start,
				func(gap Gap, at int64) int { return cmp.Compare(gap.Start+gap.Duration, at) })
			for n := max(from, last[k][core]); n < len(all) && all[n].Start < c.Start+c.Duration; n++ {
				gap := &all[n]
				during := min(gap.Start+gap.Duration, c.Start+c.Duration) - max(gap.Start, c.Start)
				if 10*during >= gap.Duration || c.Weak {
					s.Gaps++
					last[k][core] = n + 1
				}
			}
		}
	}
	slices.SortStableFunc(g.Causes, func(a, b GapCause) int {
		return cmp.Or(cmp.Compare(b.Gaps, a.Gaps), cmp.Compare(b.Took, a.Took), cmp.Compare(b.Times, a.Times))
	})
	g.Causes = g.Causes[:min(len(g.Causes), mostGapCauses)]
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
