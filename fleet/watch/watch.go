// Package watch continuously measures many targets at a low rate: a loop on a dedicated core sends and receives; a
// keeper counts, writes a log for each hour and evaluates changes; a manager follows the sources of targets and the
// paths to them.
package watch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rebound-nic/rebound/fleet/push"
	"github.com/rebound-nic/rebound/fleet/registry"
	"github.com/rebound-nic/rebound/fleet/targets"
	"github.com/rebound-nic/rebound/internal/bench/measure"
	"github.com/rebound-nic/rebound/internal/cards"
	"github.com/rebound-nic/rebound/internal/host/metrics"
	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/sanitize"
)

// Options are the user's settings for a watch.
type Options struct {
	Sources targets.Sources

	Peers int    // how many members of the fleet to probe, if the targets are a fleet; 0 probes all targets
	Self  string // this host's name in the fleet; empty for the host's name or its addresses

	Timeout   time.Duration
	ECN, TTL  uint8
	Source    []netip.Addr // at most one of each family; the kernel need not have them
	Gateway   []netip.Addr // at most one of each family
	Transport string       // "raw" or "socket"
	Timing    bool         // ask STAMP targets when their loop ran
	NIC       cards.Config

	Core int    // -1 for the last CPU available to this process
	Idle string // "sleep" or "poll"

	Dir      string // of the logs; empty for none
	Bound    int64  // bytes of all logs
	Interval time.Duration
	Days     int

	Listen string
	Hosts  []string // names in URLs of the metrics page, in addition to IP addresses
	Schema int32    // of the native histograms of round trips
	Push   *push.To // nil to push nothing

	Log *slog.Logger
}

type watch struct {
	options Options
	start   time.Time
	loop    *loop
	archive *archive
	fleet   *fleet
	pusher  *push.Pusher // nil if nothing is pushed

	probeDesc      *prometheus.Desc
	sourceFailures atomic.Int64
	reopened       atomic.Int64
}

const (
	drainEvery        = 50 * time.Millisecond
	lookEvery         = 2 * time.Second // checks for changed files, and for neighbours that are not known yet
	sampleEvery       = time.Second     // reads the counters of dropped frames
	soonEvery         = 200 * time.Millisecond
	neighbourPatience = 3 * time.Second  // before an unknown MAC address is a warning
	routeEvery        = 30 * time.Second // resolves names and paths again
	// GOGC: memory stays small; most scrapes include a collection, which stops the loop for some microseconds
	garbage      = 25
	stopPatience = 30 * time.Second
	fewReplies   = 1000 // a second
	smallRing    = 512  // an AF_XDP ring for them: nothing but replies to the watch gets into it
)

// Run watches until ctx is done. A value from hup means that all sources must be read again. It returns the error that
// prevented the start, or the first fatal error.
//
//  1. firstTargets reads the sources and picks this host's peers.
//  2. The loop, the archive of logs and the manager of targets are made, and the metrics page listens.
//  3. The manager opens the targets, and startLoop runs the loop on its core.
//  4. serve follows the sources, moves counts from the loop to the archive, and judges them, until ctx is done.
//  5. The loop ends, and what it has counted is saved.
func Run(ctx context.Context, o Options, hup <-chan struct{}, stdout io.Writer) (err error) {
	manager, err := process.OpenManager()
	if err != nil {
		return err
	}
	defer manager.Close()
	w := &watch{options: o, start: time.Now(), probeDesc: o.probeInfo()}
	first, err := w.firstTargets(ctx)
	if err != nil {
		return err
	}
	var dir *hours
	if o.Dir != "" {
		if dir, err = openHours(o.Dir, o.Bound); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, dir.close()) }()
	}
	core, err := measure.Choose(o.Core)
	if err != nil {
		return err
	}
	clock, err := latency.NewClock()
	if err != nil {
		return err
	}
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), 4)) // the loop occupies one
	defer debug.SetGCPercent(debug.SetGCPercent(garbage))

	var stop atomic.Bool
	rate := 0.0
	for _, t := range first {
		rate += 1 / t.Interval.Seconds()
	}
	w.loop = newLoop(clock, ringSize(rate), o.Timeout, o.Idle == "sleep", &stop)
	w.archive = newArchive(o.Interval, dir, o.Days, time.Now(), o.Log)
	w.archive.timeout = o.Timeout
	m := newManager(w, first)
	defer func() { err = errors.Join(err, m.close()) }()
	all := registry.New(collector{w})
	if o.Push != nil {
		w.pusher = push.New(push.Options{To: o.Push, Job: "rebound-watch", Instance: w.fleet.host(), Start: w.start,
			Gather: all.Gather, Log: o.Log})
	}
	var pulse metrics.Pulse
	healthy := func() error { return pulse.Check(time.Now(), w.loop.passes.Load()) }
	hide, err := registry.Listen(o.Listen, o.Hosts, all, w, healthy, o.Log)
	if err != nil {
		return err
	}
	defer hide()
	m.update(ctx, true)
	if m.denied != nil {
		return fmt.Errorf("no target can be probed: %w", m.denied)
	}

	ended, err := w.startLoop(core)
	defer func() { stop.Store(true); <-ended }()
	if err != nil {
		return err
	}
	line := fmt.Sprintf("watching %s on core %d, %s probes a second to each", sanitize.Count(len(first), "target"),
		core.CPU, latency.FormatRate(1/o.Sources.Interval.Seconds()))
	fmt.Fprintln(stdout, line)
	if err := manager.Ready(line); err != nil {
		o.Log.Warn("cannot notify the service manager", "error", err)
	}
	process.ReleaseMemory()
	if w.pusher != nil {
		w.pusher.Start()
		defer w.pusher.Stop()
	}
	w.serve(ctx, m, manager, hup)
	stop.Store(true)
	select {
	case <-ended:
	case <-time.After(stopPatience):
		return errors.New("the measuring loop did not stop")
	}
	w.archive.drain(w.loop.events, time.Now())
	w.archive.turn(time.Now(), true)
	return w.archive.unsaved()
}

// firstTargets reads the sources and returns the targets that this host probes. A file that cannot be read, and no
// target at all, are errors of usage; a name that cannot be resolved is not, because it is tried again.
func (w *watch) firstTargets(ctx context.Context) ([]targets.Target, error) {
	o := &w.options
	first, failures := o.Sources.Read(ctx, true, time.Now())
	for _, f := range failures {
		if len(first) == 0 || isFile(f) {
			return nil, process.Usagef("%w", f.Err)
		}
		o.Log.Warn("a source of targets cannot be read", "source", f.Source, "error", f.Err)
		w.sourceFailures.Add(1)
	}
	if len(first) == 0 {
		return nil, process.Usagef("there is no target: name some with -target, -file, -file-sd or -dns")
	}
	w.fleet = newFleet(o.Peers, o.Self, o.Log)
	return w.fleet.pick(first), nil
}

// startLoop runs the measuring loop in a locked thread on a core, until the loop's stop is set, and returns when it
// has the core. ended is closed when the loop has ended, also after an error.
func (w *watch) startLoop(core *measure.Core) (ended <-chan struct{}, err error) {
	pinned, over := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(over)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := core.Take()
		pinned <- err
		if err == nil {
			defer core.Leave()
			w.loop.run()
		}
	}()
	return over, <-pinned
}

func isFile(f targets.Failure) bool { return f.File }

// serve does everything except measuring, until ctx is done.
func (w *watch) serve(ctx context.Context, m *manager, service *process.Manager, hup <-chan struct{}) {
	drain := time.NewTicker(drainEvery)
	defer drain.Stop()
	updates, done := make(chan bool, 1), make(chan struct{})
	go func() { // lookups may take long: counting does not wait for them
		defer close(done)
		m.follow(ctx, updates)
	}()
	traced := make(chan struct{})
	go func() {
		defer close(traced)
		w.archive.traceAll(ctx)
	}()
	judged := make(chan struct{}, 1)
	judged <- struct{}{}
	var alive time.Time
	var turned uint64
	for {
		select {
		case <-ctx.Done():
			<-done
			<-traced
			<-judged // a log being written is completed
			_ = service.Stopping()
			return
		case <-hup:
			w.options.Log.Info("SIGHUP: all sources are read again")
			select {
			case updates <- true:
			default:
			}
		case now := <-drain.C:
			w.archive.drain(w.loop.events, now)
			select {
			case <-judged:
				go func() {
					w.archive.turn(now, false)
					judged <- struct{}{}
				}()
			default: // the previous one is still writing
			}
			if every := service.Every(); every > 0 && now.Sub(alive) >= every {
				if passes := w.loop.passes.Load(); passes != turned {
					turned, alive = passes, now
					_ = service.Alive()
				}
			}
		}
	}
}
