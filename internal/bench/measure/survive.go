package measure

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/rebound-nic/rebound/latency/report"
)

// survivor is the unfinished report of a series, which remains if the process is killed.
type survivor struct {
	journal *report.Journal
	runs    int // saved or pending
	pending []report.Part
	next    time.Time // earliest time of the next write
	failed  error
}

// share is the inverse of the share of the time that writing parts may take: if runs are short, several are written
// together.
const sessionShare = 20

// save adds the run that just ended to the unfinished report of the k-th series. The measuring thread calls it between
// two runs, and it returns when the disk is done, so that it affects no measured interval.
func (s *session) save(k int, planned report.Unfinished) {
	each, v := s.series[k], &s.saved[k]
	if v.failed != nil || each.Runs() == v.runs || each.Silent() {
		return
	}
	v.runs = each.Runs()
	part := each.Part(s.around)
	if s.Paired {
		part.Place = &s.places[k][len(s.places[k])-1]
	}
	v.pending = append(v.pending, part)
	start := time.Now()
	if start.Before(v.next) {
		return
	}
	v.failed = s.flush(k, planned)
	if v.failed != nil && !errors.Is(v.failed, report.ErrExists) { // the same error is returned at the end
		s.Log.Warn("the results so far cannot be saved: they are lost if the bench is killed", "reason", v.failed)
	}
	v.next = time.Now().Add(sessionShare * time.Since(start))
}

// flush appends the pending parts of series k to the journal in its folder, which it creates first, so that a killed
// bench leaves a report.
func (s *session) flush(k int, planned report.Unfinished) error {
	each, v, dir := s.series[k], &s.saved[k], s.folder(k)
	if v.journal == nil {
		head := s.report(each)
		head.Unfinished = &planned
		if s.Paired {
			head.Schedule = s.schedule(k)
		}
		var err error
		if v.journal, err = report.NewJournal(dir, head); err != nil {
			return err
		}
	}
	for parts := range slices.Chunk(v.pending, 8) {
		if err := v.journal.Add(parts...); err != nil {
			return err
		}
		runtime.GC() // the garbage collector is off while the bench measures, and encoding a part allocates megabytes
	}
	v.pending = v.pending[:0]
	return nil
}

// kept adds to an error where the runs saved so far can be found.
func (v *survivor) kept(dir string, err error) error {
	if err == nil || v.journal == nil {
		return err
	}
	return fmt.Errorf("%w; %s keeps the runs that were saved while measuring (free some space, then see them with rebound-bench report %s)", err, dir, dir)
}

func (v *survivor) close() {
	if v.journal != nil {
		v.journal.Close()
	}
}
