package watch

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rebound-nic/rebound/fleet/targets"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/outcome"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/latency/sanitize"
	"github.com/rebound-nic/rebound/nic"
)

// tally counts a target's probes by outcome.
type tally struct {
	report.Counts
	refused, untimed, tooLate int64
	rejected                  [outcome.Reasons]int64 // of Corrupt
}

// state is the keeper's state of a target. The keeper's lock guards it.
type state struct {
	targets.Target
	id     int32
	closed bool // the target reported that nothing listens at the port, and has not answered since
	since  time.Time
	ready  bool
	why    string // why it is not ready
	gone   bool   // no source contains it any more

	all, part tally         // since the start, and in the current interval
	rtt       latency.Tally // since the start
	now       latency.Tally // in the current interval
	direction direction
	health    health
	paths     *paths // nil if there is one source port
	recent    recent
	slow      slow

	judged   time.Time // the hour of the verdicts
	verdicts map[string]judgement
}

// archive collects the loop's events: for the metrics page, and by interval for the log of the hour.
type archive struct {
	mu     sync.Mutex
	byName map[string]*state
	byID   []*state

	dir      *hours // nil if nothing is stored on disk
	interval time.Duration
	began    time.Time // start of the interval
	log      *slog.Logger
	days     int

	timeout time.Duration // of probes
	news    []change      // state changes of targets, to be logged
	changes []noted       // the latest ones, for the status page
	minute  time.Time     // start of the current minute
	now     time.Time     // time of the events being counted

	missing   []overdueProbe // in the order of their timeouts
	undecided map[probeKey]bool
	wanted    []wantedTrace    // oldest first
	dropped   map[string]int64 // frames that this host dropped, by wire

	unwritten int64 // lines that could not be written
	failures  int64 // times that writing failed
	removed   int64 // number of files
	bytes     int64 // of all files
	failing   error // error of the last write
}

// pathDirection is the direction of loss of the probes from a source port.
func (s *state) pathDirection(path uint8) *direction {
	if s.paths == nil {
		return &s.direction
	}
	return &s.paths.path(path).direction
}

func newArchive(interval time.Duration, dir *hours, days int, now time.Time, log *slog.Logger) *archive {
	return &archive{byName: map[string]*state{}, undecided: map[probeKey]bool{}, dropped: map[string]int64{},
		interval: interval, dir: dir, days: days, began: now, log: log}
}

// target returns the state of a target, a new one if there is none.
func (k *archive) target(t targets.Target, now time.Time) *state {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.byName[t.Name()]
	if s == nil {
		s = &state{id: int32(len(k.byID)), since: now, why: "it has not been looked up yet",
			verdicts: map[string]judgement{}}
		k.byName[t.Name()] = s
		k.byID = append(k.byID, s)
	}
	s.Target, s.gone = t, false
	return s
}

// leave records that a target is no longer watched. Its current interval is still written.
func (k *archive) leave(s *state) {
	k.mu.Lock()
	defer k.mu.Unlock()
	s.gone = true
}

// found records whether a target can be probed, and returns whether that is a change.
func (k *archive) found(s *state, why string) (news bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	news = s.why != why
	s.ready, s.why = why == "", why
	return news
}

// record counts one event of the measuring loop for its target: in its minute, its path, its interval and its state.
// A target that goes down, or a path that does, is traced.
func (k *archive) record(e *event) {
	s := k.byID[e.flow]
	if s == nil {
		return
	}
	s.recent.count(e)
	now := k.now
	if e.kind == missed { // when its timeout was over, not when this watch noticed
		now = now.Add(-time.Duration(e.ns))
	}
	if s.paths != nil {
		c, failed := s.paths.count(e, now, k.timeout)
		if k.report(s, c); failed {
			k.wantTrace(s, e.path)
		}
	}
	switch e.kind {
	case missed:
		k.miss(e)
		c := s.health.missed(now, k.timeout)
		if k.report(s, c); c != nil {
			k.wantTrace(s, e.path)
		}
		return
	case unsent:
		k.report(s, s.health.notSent(k.now, e.why))
	case refused:
		s.closed = s.closed || e.closed
	case answered, late:
		s.closed = s.closed && e.kind == late
		k.report(s, s.health.answered(k.now))
	}
	after := e.kind == late && k.tooLate(e)
	for _, t := range []*tally{&s.all, &s.part} {
		switch e.kind {
		case sent:
			t.Sent++
		case unsent:
			t.SendFailed++
		case answered:
			t.Received++
		case late:
			if after {
				t.tooLate++
			} else {
				t.Late++
			}
		case duplicate:
			t.Duplicates++
		case corrupt:
			t.Corrupt++
			t.rejected[e.wrong]++
		case refused:
			t.refused++
		}
		if e.reordered {
			t.Reordered++
		}
		if e.untimed && (e.kind == answered || e.kind == late) {
			t.untimed++
		}
	}
	if e.kind == duplicate && e.stamped {
		s.pathDirection(e.path).duplicate(e.number)
	}
	if e.kind != answered && e.kind != late {
		return
	}
	if !e.untimed {
		s.rtt.Record(e.ns)
		s.now.Record(e.ns)
		s.slow.count(e, k.now)
	}
	if e.stamped {
		s.pathDirection(e.path).reply(e.seq, e.number, e.copied)
	}
}

// drain processes the loop's events up to now, and logs the state changes among them.
func (k *archive) drain(r *ring, now time.Time) {
	k.mu.Lock()
	k.now = now
	k.turnMinutes(now)
	r.drain(k.record)
	k.decide(false)
	news := k.news
	k.news = nil
	k.mu.Unlock()
	for _, c := range news {
		k.log.Log(context.Background(), c.level, c.text, c.args...)
	}
}

// turn ends the interval if its time is over, writes it, and evaluates the hour. end means that the program ends: the
// incomplete interval is written.
func (k *archive) turn(now time.Time, end bool) {
	k.mu.Lock()
	k.decide(end)
	over := !now.Truncate(k.interval).Equal(k.began.Truncate(k.interval))
	if !over && !end {
		k.mu.Unlock()
		return
	}
	until := now
	if next := k.began.Truncate(k.interval).Add(k.interval); over && next.After(k.began) && next.Before(now) {
		until = next
	}
	var parts []part
	for _, s := range k.byID {
		if s != nil && s.part != (tally{}) {
			parts = append(parts, part{Target: s.Target, from: k.began, to: until, tally: s.part,
				Histogram: s.now.Histogram()})
			s.part = tally{}
			s.now.Reset()
		}
		if s != nil && s.gone {
			k.byID[s.id] = nil
			delete(k.byName, s.Name())
		}
	}
	k.began = until
	states := make([]*state, 0, len(k.byName))
	for _, s := range k.byName {
		states = append(states, s)
	}
	k.mu.Unlock()
	if k.dir == nil {
		return
	}
	slices.SortFunc(parts, func(a, b part) int { return strings.Compare(a.Name(), b.Name()) })
	k.write(parts)
	if !end {
		k.judge(states, parts)
	}
}

// write saves an interval. A write error is reported once and counted, and the data is lost; measuring continues.
func (k *archive) write(parts []part) {
	removed, size, err := k.dir.write(parts)
	for _, f := range removed {
		k.log.Info("removed the oldest log: the folder would exceed its maximum size", "file", f, "bound", k.dir.bound)
	}
	k.mu.Lock()
	k.removed += int64(len(removed))
	k.bytes = size
	news := (err != nil) != (k.failing != nil)
	k.failing = err
	if err != nil {
		k.failures++
		k.unwritten += int64(len(parts))
	}
	k.mu.Unlock()
	switch {
	case news && err != nil:
		k.log.Error("the log of the hour cannot be written: until it can, results are only in the metrics", "error",
			err)
	case news:
		k.log.Log(context.Background(), nic.Notice, "the log of the hour is written again", "intervals_lost",
			k.unwritten)
	}
}

// unsaved returns why the last interval is not on the disk; nil if it is.
func (k *archive) unsaved() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.failing == nil {
		return nil
	}
	return fmt.Errorf("%s could not be written to the logs; the last error: %w",
		sanitize.Count(k.unwritten, "interval"), k.failing)
}
