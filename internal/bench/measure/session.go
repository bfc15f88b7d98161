package measure

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/bench/engine"
	"github.com/rebound-nic/rebound/internal/bench/observe"
	"github.com/rebound-nic/rebound/internal/host/isolate"
	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/attribution"
	"github.com/rebound-nic/rebound/latency/host"
	"github.com/rebound-nic/rebound/latency/page"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/latency/schedule"
	"github.com/rebound-nic/rebound/nic"
)

// Plan describes a session.
type Plan struct {
	Options
	Variants []Settings // each with one rate and one size
	Paired   bool       // the variants are compared: their slices alternate

	Interval  time.Duration // length of a report's intervals, 0 for a twentieth of a run
	Duration  time.Duration // of each run, 0 for no limit
	Count     int64         // probes of each run, 0 for no limit
	Warmup    time.Duration // before each run
	Slice     time.Duration // Paired: length of the slices that a run is divided into, 0 for no division
	Runs      int
	Core      int  // CPU to measure on, -1 for the last
	Isolate   bool // move everything possible off the Core
	SelfTest  time.Duration
	Watch     bool // watch the core from other CPUs; not if the peer runs on one of them
	Raw       bool
	Anonymous bool
	Replace   bool   // replace existing reports in Out
	Out       string // folder for the report, or for one folder of each
	// not Paired: a command that runs while the second of three variants is measured; the first is measured before it,
	// the third after it
	Under      string
	Before     func(*Series) error // called before each slice; may be nil
	HookWithin time.Duration       // time limit for the command of a variant (Settings.Do)
	// Paired: Enough is called after these numbers of slices of each variant, but not at the end
	Looks      []int
	Enough     func([]*report.Report) bool // reports whether the measurement so far is sufficient; may be nil
	Stop       *atomic.Bool                // ends the session early when set
	Log        *slog.Logger
	Live       bool         // show each second of the last minute in ProgressTo
	LiveAt     string       // HOST:PORT to show it at, too
	livePaused *atomic.Bool // while set, the display does not read; only set by tests
	ProgressTo io.Writer    // a terminal gets a bar, other output gets lines in Log
}

// Result is the result of a session: reports in the order of the variants, each written to its Dir. The Dir of a report
// that could not be written is empty, and the session's error says why.
type Result struct{ Reports []*report.Report }

type session struct {
	Plan
	core   *Core
	clock  *latency.Clock
	series []*Series
	seed   string  // Paired: of the schedule
	places [][]int // Paired: for each series, its position in each block so far
	saved  []survivor
	around Circumstances
	noisy  bool           // what has the core is to be watched
	noise  *observe.Noise // while it is watched
	silent []bool         // for each series: its last run got no reply
	load   *Load
	view   *live  // nil for none
	loaded bool   // the load was started
	state  string // the variant whose command ran last and succeeded
	// collect enables the garbage collector again, when polling has ended.
	collect func()
}

// errNoResult means that a signal came before there was a result.
var errNoResult = errors.New("interrupted before there was a result: no report is written")

// errStopped means that a target no longer answered at the end. Its report is written.
var errStopped = errors.New("the target stopped answering")

// Run measures all variants and writes their reports. It runs on a dedicated thread, in the caller's network namespace.
// A Result returned with an error has what could be saved.
func Run(o Plan) (*Result, error) {
	s := &session{Plan: o}
	var out *Result
	err := s.with(func() error {
		for _, each := range s.series {
			if err := each.Prepare(s.clock, s.recording(), each.Rates[0]); err != nil {
				return err
			}
		}
		s.prepareNoise()
		watch, err := s.watch()
		if err != nil {
			s.Log.Warn("interruptions of the measuring core cannot be observed", "reason", err)
		}
		if s.Live {
			if rest := s.core.Rest(); rest.Count() == 0 {
				return process.Usagef("%w", errNoOtherCPU)
			}
			if s.view, err = startLive(s.series, s.ProgressTo, s.LiveAt, s.livePaused, s.Log); err != nil {
				return err
			}
			s.ProgressTo = nil
			defer s.view.end()
		}
		err = s.rounds()
		if watch != nil {
			s.around.Watched = watch.Stop()
		}
		s.watchNoise(false)
		if s.state != "" {
			s.Log.Log(context.Background(), nic.Notice, "the setting of the last do= command remains in force",
				"variant", s.state)
		}
		s.collect() // polling has ended, and a report with many intervals allocates hundreds of megabytes
		var failed error
		out, failed = s.finish()
		return errors.Join(err, failed)
	})
	return out, err
}

// with calls f when all devices are open and the thread is bound to its core.
func (s *session) with(f func() error) (err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	s.collect = sync.OnceFunc(Quiet())
	defer s.collect()
	if s.core, err = Choose(s.Core); err != nil {
		return err
	}
	s.Plan.Options.Log = s.Log
	set, err := Open(s.Plan.Options, s.Variants)
	defer func() { err = errors.Join(err, set.Close()) }()
	if err != nil {
		return err
	}
	s.series = set.Series
	if s.Under != "" {
		for _, each := range s.series {
			each.Notes = append(each.Notes, underNote(each.Label(), s.Under, s.Anonymous))
		}
	}
	s.saved = make([]survivor, len(s.series))
	defer func() {
		for i := range s.saved {
			s.saved[i].close()
		}
	}()
	if s.clock, err = latency.NewClock(); err != nil {
		return err
	}
	for _, note := range s.clock.Info().Notes {
		s.Log.Warn("clock", "note", note)
	}
	if s.Isolate {
		release, failed := s.isolate()
		if failed != nil {
			return failed
		}
		defer func() { err = errors.Join(err, release()) }()
	}
	if err := s.core.Take(); err != nil {
		return err
	}
	defer s.core.Leave()
	s.around = Circumstances{Clock: s.clock, Slack: slack(s.Duration), Anonymous: s.Anonymous}
	if s.Paired {
		s.around.Session = fmt.Sprintf("%016x", rand.Uint64())
		s.places = make([][]int, len(s.series))
	}
	if s.SelfTest > 0 {
		s.around.SelfTest = latency.SelfTest(s.clock, s.SelfTest)
	}
	s.around.Host = host.Collect(os.DirFS("/"), s.core.CPU)
	return f()
}

// isolate isolates the core for the calling thread, which is locked. release restores everything.
func (s *session) isolate() (release func() error, err error) {
	if rest := s.core.Rest(); rest.Count() == 0 || !s.Watch {
		return nil, process.Usagef("-isolate: this process may use only CPU %d", s.core.CPU)
	}
	isolate.PutBack(s.Log)
	lease, err := (&isolate.Host{}).Begin([]int{s.core.CPU})
	if err != nil {
		return nil, fmt.Errorf("-isolate: %w", err)
	}
	isolate.Log(s.Log, lease.Isolate()...)
	if err := lease.Join(); err != nil {
		return nil, errors.Join(err, lease.Release())
	}
	return func() error { return errors.Join(lease.Leave(), lease.Release()) }, nil
}

func (s *session) recording() Recording {
	return Recording{Duration: s.Duration, Interval: s.Interval, Raw: s.Raw}
}

// watch counts events on the measuring core, if there is another core to do that from. If the slowest round trips of a
// series are attributed, watchNoise reads the counters as far as they are needed.
func (s *session) watch() (*observe.Watch, error) {
	if rest := s.core.Rest(); rest.Count() == 0 || !s.Watch || s.explains(true) {
		return nil, nil
	}
	return observe.Start(s.core.CPU, unix.Gettid())
}

// explains reports whether there is a series whose slowest round trips are attributed, or one whose are not.
func (s *session) explains(yes bool) bool {
	return slices.ContainsFunc(s.series, func(each *Series) bool { return each.Explain == yes })
}

// prepareNoise says how causes will be known, and what watching for them costs.
func (s *session) prepareNoise() {
	s.around.Noise = Noise{By: attribution.NotWatched}
	n := &s.around.Noise
	rest := s.core.Rest()
	switch {
	case !s.explains(true):
	case rest.Count() == 0:
		n.How = "not watched: this process may use only one CPU"
	case !s.Watch:
		n.How = "not watched: the responder has the other CPUs"
	default:
		s.noisy = true
		n.Cost = "not measured in this run: a run with -ab explain=true -ab explain=false compares percentiles with and without"
		if s.explains(false) {
			n.Cost = "measured in this session: the difference from the variant with explain=false (rebound-bench compare)"
		}
	}
}

// watchNoise begins to record what has the measuring core while the thread does not run, or ends that. Variants that
// differ in it are measured with and without, which shows what it costs.
func (s *session) watchNoise(on bool) {
	if !s.noisy || on == (s.noise != nil) {
		return
	}
	n := &s.around.Noise
	if !on {
		events, missed := s.noise.Stop()
		n.Events, n.Missed, s.noise = append(n.Events, events...), n.Missed+missed, nil
		return
	}
	noise, err := observe.StartNoise(s.core.CPU, unix.Gettid())
	if err != nil {
		s.noisy = false
		n.How, n.Cost = "not watched: "+err.Error(), ""
		s.Log.Warn("what has the measuring core cannot be observed", "reason", err)
		return
	}
	s.noise = noise
	if n.How, n.By = noise.How(), attribution.Counters; noise.Traced() {
		n.By = attribution.Tracepoints
	}
}

// rounds measures all series, one slice of each per round: a sweep forwards and backwards, so that slow drift affects
// all alike; paired variants in random order and with slices of random length (see package schedule).
func (s *session) rounds() error {
	limit := engine.Limit{Warmup: s.Warmup, Duration: s.Duration, Count: s.Count}
	slicesPerRun := 1
	if s.Paired && s.Slice > 0 {
		if limit.Warmup = min(s.Warmup, s.Slice/10); s.Variants[0].Do != "" {
			limit.Warmup = s.Warmup // changes need time to settle
		}
		if s.Duration > 0 {
			slicesPerRun = int((s.Duration + s.Slice - 1) / s.Slice)
			limit.Duration = s.Slice
		} else {
			slicesPerRun = 20
		}
		limit.Count = (s.Count + int64(slicesPerRun) - 1) / int64(slicesPerRun)
	}
	total := s.Runs * slicesPerRun
	planned := report.Unfinished{Runs: total, Run: limit.Duration.Nanoseconds()}
	s.silent = make([]bool, len(s.series))
	show := newProgress(s.ProgressTo, s.Log, total*len(s.series), limit)
	defer show.end()
	seed := rand.Uint64()
	blocks := schedule.Draw(seed, len(s.series), total)
	s.seed = schedule.Text(seed)
	if s.Under != "" {
		blocks = phases(len(s.series), total)
		defer s.endLoad()
	}
	for i, block := range blocks {
		limit := limit
		if s.Paired {
			limit.Duration += time.Duration(block.Stretch * float64(limit.Duration))
			limit.Count += int64(block.Stretch * float64(limit.Count))
		} else if slices.Sort(block.Order); i%2 == 1 {
			slices.Reverse(block.Order)
		}
		for place, k := range block.Order {
			each := s.series[k]
			if err := s.phase(k); err != nil {
				return err
			}
			if s.Before != nil {
				if err := s.Before(each); err != nil {
					return err
				}
			}
			if s.Stop.Load() {
				return nil
			}
			if err := s.hook(each); err != nil {
				return err
			}
			s.watchNoise(each.Explain)
			runtime.GC() // no garbage collection while measuring
			show.next(each)
			if s.Paired {
				s.places[k] = append(s.places[k], place)
			}
			before := each.Replies()
			if err := each.Run(limit, s.Stop); err != nil {
				return err
			}
			s.silent[k] = each.Replies() == before && !s.Stop.Load()
			s.watchLoad(each)
			s.save(k, planned)
		}
		if i == 0 && !slices.ContainsFunc(s.series, func(each *Series) bool {
			return each.Sent() > 0 &&
				!each.Silent()
		}) {
			return nil // finish says why
		}
		if i+1 < total && slices.Contains(s.Looks, i+1) && !s.Stop.Load() {
			var soFar []*report.Report
			for k, each := range s.series {
				rep := s.report(each)
				rep.Schedule = s.schedule(k)
				soFar = append(soFar, rep)
			}
			if s.Enough(soFar) {
				return nil
			}
		}
	}
	return nil
}

// finish writes one report for each series that sent anything. One that got no reply is a result, and an error.
func (s *session) finish() (*Result, error) {
	out := &Result{}
	var failed error
	for i, each := range s.series {
		if each.Sent() == 0 || each.Silent() && s.Stop.Load() {
			continue
		}
		rep := s.report(each)
		if each.Silent() {
			none := each.NoReply()
			if s.Under != "" {
				none = fmt.Errorf("%s %q: %w", each.Label(), s.Under, none)
			}
			rep.Warnings = append(rep.Warnings, none.Error())
			failed = errors.Join(failed, none)
		} else if s.silent[i] {
			stopped := fmt.Errorf("%w: %s answered %d of %d probes, and none of the last run: check that it is up",
				errStopped, each.Label(), each.Replies(), each.Sent())
			rep.Warnings = append(rep.Warnings, stopped.Error())
			failed = errors.Join(failed, stopped)
		}
		if s.Paired {
			rep.Schedule = s.schedule(i)
		}
		failed = errors.Join(failed, s.saved[i].kept(s.folder(i), out.write(rep, s.folder(i))))
	}
	if len(out.Reports) == 0 && failed == nil && s.Stop.Load() {
		failed = errNoResult
	}
	return out, failed
}

// schedule is the schedule of the i-th series so far.
func (s *session) schedule(i int) *report.Schedule {
	return &report.Schedule{Seed: s.seed, Places: s.places[i], Looks: len(s.Looks)}
}

func (s *session) report(each *Series) *report.Report {
	around := s.around
	around.Interrupted = s.Stop.Load()
	return each.Report(around)
}

func (r *Result) write(rep *report.Report, dir string) error {
	r.Reports = append(r.Reports, rep)
	if err := report.Write(dir, rep, page.Report); err != nil {
		return err
	}
	rep.Dir = dir
	return nil
}

// folder returns the folder for the report of the i-th series.
func (s *session) folder(i int) string {
	if len(s.Variants) == 1 {
		return s.Out
	}
	return filepath.Join(s.Out, folder(i, s.Variants[i].Name, s.Anonymous))
}

// folder returns the folder name for the i-th of several reports, without the parts that an anonymous report leaves
// out.
func folder(i int, name string, anonymous bool) string {
	if anonymous {
		name = report.Scrub(name)
	}
	return strings.Map(func(r rune) rune {
		switch {
		case r >= '0' && r <= '9', r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r == '-', r == '.', r == '_':
			return r
		}
		return '-'
	}, fmt.Sprintf("%02d-%s", i+1, name))
}

// Writable checks that a report can be written to dir before time is spent on measuring, and, unless replace is set,
// that there is none: neither in dir nor in a series' folder in it.
func Writable(dir string, replace bool) error {
	if !replace {
		for _, p := range []string{report.ReportFile, "[0-9][0-9]-*/" + report.ReportFile} {
			if found, _ := filepath.Glob(filepath.Join(quoteGlob(dir), p)); len(found) > 0 {
				return process.Usagef("-out %s: a report is already in %s: use another folder, or -replace to overwrite it", dir, filepath.Dir(found[0]))
			}
		}
	}
	parent := dir
	for {
		info, err := os.Stat(parent)
		if err == nil && !info.IsDir() {
			return process.Usagef("-out %s: %s is not a folder", dir, parent)
		}
		if err == nil {
			break
		}
		if parent == filepath.Dir(parent) {
			return fmt.Errorf("-out %s: %w", dir, err)
		}
		parent = filepath.Dir(parent)
	}
	f, err := os.CreateTemp(parent, ".bench-*")
	if err != nil {
		return fmt.Errorf("-out %s: %w", dir, err)
	}
	f.Close()
	return os.Remove(f.Name())
}

// quoteGlob escapes a folder's name so that it is not interpreted as a pattern.
func quoteGlob(name string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(name)
}

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

// Part returns what the last run adds to an unfinished report. It is called once after each run.
func (s *Series) Part(c Circumstances) report.Part {
	run, recorded := s.rec.LastRun()
	rep := s.newReport(c, false)
	if c.Anonymous {
		rep.Anonymize()
	}
	return report.Part{Run: run, Series: recorded, Counts: rep.Counts, Drops: rep.Drops, Rejected: rep.Rejected,
		Counters: rep.Device.Counters, Order: rep.Order,
		STAMP: rep.STAMP, Warnings: rep.Warnings, Notes: rep.Notes}
}

// Runs returns how many runs were recorded.
func (s *Series) Runs() int { return s.rec.Runs() }
