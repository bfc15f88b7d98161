package measure

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/rebound-nic/rebound/internal/bench/engine"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/page"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/latency/sanitize"
)

// Trial is one rate tried by a search.
type Trial struct {
	Size    int             `json:"size"` // bytes of the frame without FCS
	Rate    float64         `json:"rate"` // offered, probes per second
	Counts  report.Counts   `json:"counts"`
	Summary latency.Summary `json:"rtt"` // of the round trips from the intended send
	Passed  bool            `json:"passed"`
	Why     string          `json:"why"`
	Limit   Limit           `json:"limit,omitempty"` // for a trial that did not pass
}

// Limit is the component that could not sustain a rate.
type Limit string

const (
	Network   Limit = "the network" // everything between the hosts
	Target    Limit = "the target"
	ThisHost  Limit = "this host" // the bench: its thread was late, or its rings, NIC or kernel dropped frames
	Ambiguous Limit = "this host or the network"
	Unclear   Limit = "the network or one of the hosts"
)

// SearchResult is the result of Search: the report of the highest rate without loss for each variant.
type SearchResult struct {
	Result
	Trials []Trial
}

// LimitNote starts the note that names the limit above the rate of a report.
const LimitNote = "the limit above this rate: "

// CutShort is the warning of a search that a signal ended.
const CutShort = "interrupted by a signal before the search finished: a higher rate may be without loss, too"

const resolution = 0.01

// Unended is the warning in a report that a search has saved before its end.
const Unended = "the search is still running, or the bench was stopped before it finished: a higher rate may be without loss, too"

// Search finds the highest rate without loss up to most probes per second for each variant (RFC 2544 §26.1): trials of
// equal length, halving the interval between the highest rate that passed and the lowest that failed until they are 1 %
// apart. A rate that failed is tried again up to verify times before it counts (ETSI GS NFV-TST 009: loss
// verification).
func Search(o Plan, most float64, verify int) (*SearchResult, error) {
	s := &session{Plan: o}
	out := &SearchResult{}
	err := s.with(func() (unwritten error) {
		for i, each := range s.series {
			rep, err := s.search(each, most, verify, s.folder(i), out)
			if rep != nil {
				unwritten = errors.Join(unwritten, out.write(rep, s.folder(i)))
			}
			if err != nil {
				return errors.Join(err, unwritten)
			}
			if s.Stop.Load() {
				break
			}
		}
		return unwritten
	})
	return out, err
}

// search bisects the rate of one series between 0 and most probes a second. A rate that fails is tried up to verify
// more times, because one descheduling can fail it. The report of the best rate is written to dir; it is nil if no
// rate passed. Every trial is appended to out.
func (s *session) search(each *Series, most float64, verify int, dir string, out *SearchResult) (best *report.Report,
	err error) {
	low, high, rate := 0.0, most, most
	var history []string
	var limit Limit
	for rate >= 1 && !s.Stop.Load() {
		t, err := s.try(each, rate)
		if err != nil {
			return best, err
		}
		trials := 1
		for ; trials <= verify && !t.Passed && !s.Stop.Load(); trials++ {
			if t, err = s.try(each, rate); err != nil {
				return best, err
			}
		}
		if s.Stop.Load() {
			break // an interrupted trial proves nothing
		}
		if trials > 1 {
			t.Why += fmt.Sprintf(" (trial %d)", trials)
		}
		// a bench that cannot send at this rate cannot receive either
		if low == 0 && t.Limit != ThisHost && each.Silent() {
			return nil, each.NoReply()
		}
		rep := s.report(each)
		t.Size, t.Summary = rep.Traffic.FrameSize, rep.Main().Summary
		out.Trials = append(out.Trials, t)
		history = append(history, fmt.Sprintf("%s/s: %s", latency.FormatRate(rate), t.Why))
		if s.ProgressTo != nil {
			fmt.Fprintf(s.ProgressTo, "%d bytes at %s/s: %s\n", t.Size, latency.FormatRate(rate), sanitize.Text(t.Why))
		}
		if t.Passed {
			best, low = rep, rate
			s.saveBest(rep, dir)
		} else {
			high, limit = rate, t.Limit
		}
		if low == most || high-low <= resolution*high {
			break
		}
		rate = (low + high) / 2
	}
	if best == nil {
		if s.Stop.Load() {
			return nil, errNoResult
		}
		return nil, fmt.Errorf("%s, %d bytes: every rate down to 1 per second lost probes; the limit was %s",
			each.Label(), out.lastSize(), limit)
	}
	if low < most {
		best.Notes = append(best.Notes, LimitNote+string(limit))
	}
	best.Notes = append(best.Notes,
		fmt.Sprintf("the highest of the rates tried that lost nothing in %s (RFC 2544 §26.1 requires 60 s), to %s",
			latency.FormatDuration(s.Duration), latency.FormatShare(resolution)))
	best.Notes = append(best.Notes, history...)
	if s.Stop.Load() {
		best.Warnings = append(best.Warnings, CutShort)
	}
	return best, nil
}

func (r *SearchResult) lastSize() int {
	if len(r.Trials) == 0 {
		return 0
	}
	return r.Trials[len(r.Trials)-1].Size
}

// saveBest saves the report of the highest rate so far, in case the bench is killed. The complete report replaces it at
// the end.
func (s *session) saveBest(rep *report.Report, dir string) {
	saved := *rep
	saved.Warnings = append(slices.Clone(rep.Warnings), Unended)
	if err := report.Write(dir, &saved, page.Report); err != nil {
		s.Log.Warn("the results so far cannot be saved: they are lost if the bench is killed", "reason", err)
	}
}

// try measures one rate, in probes a second. A trial fails without an error if probes were lost, or if this host fell
// behind the schedule.
func (s *session) try(each *Series, rate float64) (t Trial, err error) {
	if err := each.Prepare(s.clock, s.recording(), rate); err != nil {
		return t, err
	}
	runtime.GC()
	show := newProgress(s.ProgressTo, s.Log, 1, engine.Limit{Warmup: s.Warmup, Duration: s.Duration})
	show.next(each)
	s.prepareNoise()
	s.watchNoise(each.Explain)
	err = each.Run(engine.Limit{Warmup: s.Warmup, Duration: s.Duration,
		Behind: max(s.Duration/10, 100*time.Millisecond)}, s.Stop)
	s.watchNoise(false)
	show.end()
	t = Trial{Rate: rate}
	t.Counts, _ = each.Counts()
	behind := time.Duration(s.clock.Nanoseconds(each.stream.Behind))
	switch {
	case errors.Is(err, engine.ErrSend), behind > slack(s.Duration):
		t.Limit = ThisHost
		t.Why = fmt.Sprintf("not offered: this host fell %s behind", latency.FormatDuration(behind))
	case err != nil:
		return t, err
	default:
		t.judge()
	}
	return t, nil
}

// judge determines whether the trial passed, and otherwise the limit. Drops on this host say nothing about the network.
func (t *Trial) judge() {
	c := &t.Counts
	missing := c.Sent - c.Received - c.Late // including corrupt ones
	percent := report.Range(c.LostLeast(), c.Lost, func(n int64) string {
		return latency.FormatShare(float64(n) / float64(c.Sent))
	})
	elsewhere := c.Elsewhere()
	switch {
	case missing == 0:
		t.Passed, t.Why = true, "no loss"
		return
	case c.LostLeast() > 0:
		t.Limit, t.Why = Network, fmt.Sprintf("loss of %s", percent)
	case c.Lost > 0 && c.RefusedThere+c.DroppedThere == 0:
		t.Limit, t.Why = Ambiguous, fmt.Sprintf("loss of %s", percent)
	case c.Lost > 0:
		t.Limit, t.Why = Unclear, fmt.Sprintf("loss of %s", percent)
	case elsewhere == "":
		t.Limit, t.Why = Network, latency.FormatCount(missing)+" answered by corrupt replies only"
	case c.RefusedThere+c.DroppedThere > 0 && c.DroppedHere+c.SendFailed == 0:
		t.Limit, t.Why = Target, "not answered by the target: "+elsewhere
		return
	default:
		t.Limit, t.Why = ThisHost, "not measured by this host: "+elsewhere
		return
	}
	if elsewhere != "" {
		t.Why += ", " + elsewhere
	}
}

// slack is how late a sender may end that still counts as having offered its rate for the time d.
func slack(d time.Duration) time.Duration { return max(d/1000, 100*time.Microsecond) }
