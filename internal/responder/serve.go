package responder

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/internal/host/handover"
	"github.com/rebound-nic/rebound/internal/host/isolate"
	"github.com/rebound-nic/rebound/internal/host/metrics"
	"github.com/rebound-nic/rebound/internal/host/notify"
	"github.com/rebound-nic/rebound/internal/host/succession"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/host"
	"github.com/rebound-nic/rebound/latency/page"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/nic"
)

func serveCommand(args []string, stdout, stderr io.Writer) error {
	debug.SetGCPercent(50) // memory for the start is not needed later, and the heap would keep its largest size
	file, sets, err := configFlags(args)
	if err != nil {
		return err
	}
	online, err := onlineCPUs()
	if err != nil {
		return err
	}
	s, err := loadConfig(file, sets, online)
	if err != nil {
		return err
	}
	// From here on no signal ends the process before it has cleaned up, except for a second SIGINT or SIGTERM that does
	// not arrive together with the first one: timeout(1) sends its signal to the process and to its group.
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	context.AfterFunc(ctx, func() { time.AfterFunc(time.Second, stop) })
	defer stop()
	ask := make(chan os.Signal, 1)
	signal.Notify(ask, unix.SIGUSR1)
	defer signal.Stop(ask)
	log := s.log.New(stderr)
	log.Debug("start", "stage", "process and settings", "took", sinceStart())
	return serve(ctx, s, online, ask, stdout, log)
}

// serve answers until ctx is done. Each element of ask requests a summary.
func serve(ctx context.Context, s *settings, online []int, ask <-chan os.Signal, stdout io.Writer, log *slog.Logger) (err error) {
	stages := newStages(log)
	clock, err := latency.StartClock()
	if err != nil {
		return err
	}
	manager, err := notify.Open()
	if err != nil {
		return err
	}
	defer manager.Close()
	isolate.PutBack(log)
	if s.stats.report != "" {
		if err := reportable(s.stats.report); err != nil {
			return err
		}
	}
	if in, err := inKernel(s, stages, log); err != nil {
		return err
	} else if in != nil {
		return in.serve(ctx, manager, ask, stdout)
	}
	a := &answering{settings: s, user: os.Geteuid(), claim: -1, clock: clock, stages: stages, log: log}
	defer func() { err = errors.Join(err, a.close()) }()
	if err := a.open(online); err != nil {
		return err
	}
	if err := a.arm(); err != nil {
		return err
	}
	return a.run(ctx, manager, ask, stdout)
}

// answering is a responder with polling loops in this process.
type answering struct {
	settings *settings
	clock    func() (*latency.Clock, error) // completes its calibration
	stages   *stages
	before   *succession.Predecessor // whose place is taken, nil if none
	user     int                     // whose process this was when it started
	offer    *succession.Offer       // to take this one's place, nil if the driver cannot
	claim    int                     // of a PCI function: a socket that other responders find, -1 if there is none
	cores    []int
	remarks  []remark // about the host, logged once start-up has succeeded
	match    *fastpath.Config
	dev      nic.Answerer
	info     nic.Info
	messages nic.Messenger // dev, if it carries messages; otherwise nil
	view     *view
	hand     *handover.Server // nil where nothing is handed over
	undo     []func() error   // for close, run in reverse order
	log      *slog.Logger
}

func (a *answering) close() (err error) {
	for _, f := range slices.Backward(a.undo) {
		err = errors.Join(err, f())
	}
	return err
}

// later has close call f.
func (a *answering) later(f func()) {
	a.undo = append(a.undo, func() error { f(); return nil })
}

// open chooses the cores, readies clock and memory, and opens the device.
func (a *answering) open(online []int) error {
	s := a.settings
	if a.cores = s.cpu.cores; len(a.cores) == 0 {
		a.cores = []int{chooseCore(online)}
		a.log.Info("core chosen", "core", a.cores[0])
	}
	err := s.guarded(a.cores, a.log)
	if err != nil {
		return err
	}
	if a.remarks, err = prepare(s, a.cores, online); err != nil {
		return err
	}
	a.match = s.match()
	s.nic.Queues, s.nic.Match, s.nic.Log = len(a.cores), a.match, a.log
	s.nic.Services = s.services()
	if iface := s.nic.BesideInterface(); iface != "" {
		lent, giveBack, err := lendAddresses(iface, s.respond.addresses, a.log)
		if err != nil {
			return err
		}
		a.later(func() {
			if err := giveBack(); err != nil {
				a.log.Warn("addresses could not be removed from the interface", "interface", iface, "error", err)
			}
		})
		s.nic.Dedicated = lent
	}
	a.stages.done("cores")
	if err := a.inherit(); err != nil {
		return err
	}
	if a.dev, err = s.nic.OpenAnswerer(); err != nil {
		return err
	}
	a.stages.done("device")
	a.undo = append(a.undo, a.dev.Close)
	a.claimDevice()
	a.info = a.dev.Info()
	a.messages, _ = a.dev.(nic.Messenger)
	logDevice(a.log, a.info, "queues", a.info.Queues)
	s.table.WarnUnused(a.info.Driver, a.log)
	if link, err := a.dev.Link(); err == nil && !link.Up {
		a.log.Warn("link is down; answering starts when it comes up", "device", a.info.Device)
	}
	clock, err := a.clock()
	if err != nil {
		return err
	}
	s.respond.stamp.timed(a.match, clock)
	if s.stampAsked() {
		stamps := newStampClock(clock, s.respond.stamp.clockError)
		a.match.Clock = &stamps.now
		keeping, stop := context.WithCancel(context.Background())
		a.later(stop)
		go stamps.keep(keeping)
	}
	a.stages.done("clock")
	a.view = &view{engine: &engine{dev: a.dev, priority: s.cpu.priority, bound: heapBound, log: a.log}, info: a.info, clock: clock}
	a.view.engine.before = a.takeOver
	a.view.engine.locks = s.cpu.lockMemory
	return s.fits(a.info, a.messages != nil)
}

// logDevice logs the description of the open device.
func logDevice(log *slog.Logger, info nic.Info, more ...any) {
	log.Info("device open", slices.Concat([]any{"driver", info.Driver, "device", info.Device, "model", info.Model, "backend", info.Backend}, more,
		[]any{"mtu", info.MTU, "push", info.Push})...)
	for _, n := range info.Notes {
		log.Info("device", "note", n)
	}
}

// arm creates a loop for each core, and everything that users and other programs see of them. Last it drops what is no
// longer needed.
func (a *answering) arm() error {
	s, e := a.settings, a.view.engine
	newResponder := fastpath.NewMessages
	if a.messages == nil {
		newResponder = fastpath.New
		if err := mac(a.match, a.info); err != nil {
			return err
		}
	}
	a.match.PartialChecksums = a.info.PartialChecksums
	for i, core := range a.cores {
		r, err := newResponder(*a.match)
		if err != nil {
			return err
		}
		e.loops = append(e.loops, &loop{core: core, queue: i, responder: r})
	}
	a.stages.done("loops")
	a.view.start = time.Now()
	a.view.before, _ = a.view.transactions()
	answer, shown := newPage(a.view)
	hide, err := metrics.ListenPage(s.stats.listen, s.stats.hosts, answer, shown.collect, e.healthy, a.log)
	if err != nil {
		return err
	}
	a.later(hide)
	a.stages.done("metrics")
	if s.respond.handover.IsValid() {
		if a.hand, err = handover.Listen(s.respond.handover, a.messages, a.log); err != nil {
			return fmt.Errorf("respond.handover: %w", err)
		}
		a.undo = append(a.undo, a.hand.Close)
	}
	lease, release, err := s.lease(a.cores, a.log)
	if err != nil {
		return err
	}
	a.later(release)
	e.join = lease.Join
	// Not earlier, so that an error is not hidden among remarks.
	for _, r := range a.remarks {
		a.log.Warn(r.what, r.attrs...)
	}
	warn(s, a.cores, a.log)
	a.view.host = host.Collect(os.DirFS("/"), a.cores[0]) // some of it is readable by root only
	a.stages.done("host settings")
	err = s.confine(a.log)
	a.stages.done("confinement")
	return err
}

// run answers until ctx is done, then prints and saves the counters.
func (a *answering) run(ctx context.Context, manager *notify.Manager, ask <-chan os.Signal, stdout io.Writer) error {
	s, e := a.settings, a.view.engine
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if err := a.offerSockets(stop); err != nil {
		return err
	}
	reporting, stopReporting := context.WithCancel(context.Background())
	reported := make(chan struct{})
	go func() {
		defer close(reported)
		a.view.printSummaries(reporting, ask, s.stats.interval, stdout, a.log)
	}()
	failed := advise(e.run(ctx, func() {
		line := s.ready(a.info)
		if a.messages != nil {
			line = readyMessages(a.info, a.messages, a.hand)
		}
		fmt.Fprintln(stdout, line)
		a.stages.done("first pass, memory")
		logNotifyError(a.log, manager.Ready(line))
		go watchdogLoop(reporting, manager, e.turned, a.log)
	}))
	if a.offer != nil {
		failed = errors.Join(failed, a.offer.Finish())
	}
	stopReporting()
	logNotifyError(a.log, manager.Stopping())
	<-reported
	a.view.end = time.Now()
	a.view.print(stdout)
	if s.stats.report != "" {
		failed = errors.Join(failed, s.save(a.view.report(), a.log))
	}
	return failed
}

// ready returns the line that says that the responder answers.
func (s *settings) ready(info nic.Info) string {
	return fmt.Sprintf("ready driver=%s device=%s%s mac=%s addresses=%s", info.Driver, info.Device, via(info), info.MAC, s.addressList())
}

// via is the field of the ready line for a device that the kernel's driver keeps.
func via(info nic.Info) string {
	if info.Via == "" {
		return ""
	}
	return " via=" + info.Via
}

// watchdogLoop notifies the service manager at the interval that it requests, while alive returns true.
func watchdogLoop(ctx context.Context, m *notify.Manager, alive func() bool, log *slog.Logger) {
	if m.Every() == 0 {
		return
	}
	t := time.NewTicker(m.Every())
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if alive() {
			logNotifyError(log, m.Alive())
		} else {
			log.Warn("a polling loop is stalled: the service manager's watchdog is not notified")
		}
	}
}

// logNotifyError logs a failed notification of the service manager.
func logNotifyError(log *slog.Logger, err error) {
	if err != nil {
		log.Warn("cannot notify the service manager", "error", err)
	}
}

// save writes a report if the settings request one.
func (s *settings) save(r *report.Report, log *slog.Logger) error {
	if s.stats.anonymous {
		r.Anonymize()
	}
	write := func() error { return report.Write(s.stats.report, r, page.Report) }
	if f := s.stats.folder; f != nil {
		write = func() error { return f.Write(r, page.Report) }
	}
	if err := write(); err != nil {
		return err
	}
	log.Info("report saved", "folder", s.stats.report)
	return nil
}

func join(s []string) string { return strings.Join(s, ",") }

// mac sets the interface's own MAC in the configuration.
func mac(c *fastpath.Config, info nic.Info) error {
	m, err := net.ParseMAC(info.MAC)
	if err != nil || len(m) != len(c.MAC) || [6]byte(m) == [6]byte{} {
		return fmt.Errorf("%s has no Ethernet address (%q): loopback interfaces and tunnels carry no Ethernet frames", info.Device, info.MAC)
	}
	copy(c.MAC[:], m)
	return nil
}

// warn logs host settings and responder settings that add latency.
func warn(s *settings, cores []int, log *slog.Logger) {
	for _, f := range hostFindings(cores, s.nic.Device) {
		level := slog.LevelWarn
		if f.Severity == host.Note && (f.ID != "rt_throttling" || s.cpu.priority == 0) {
			level = slog.LevelInfo
		}
		log.Log(context.Background(), level, f.What, "finding", f.ID, "severity", f.Severity, "fix", f.Fix)
	}
}

// remark is a warning for the log.
type remark struct {
	what  string
	attrs []any
}

// prepare reserves the cores for the loops. What is missing becomes a remark: the responder still works, only slower.
func prepare(s *settings, cores, online []int) (remarks []remark, err error) {
	rest, err := keepOff(cores, online)
	if err != nil || len(rest) > 0 {
		return nil, err
	}
	all := isolate.FormatCPUs(cores)
	if s.cpu.priority > 0 {
		return nil, fmt.Errorf("cpu.priority: SCHED_FIFO on every core that this process can have (%s): give it another one, or set 0", all)
	}
	return []remark{{"every core that this process can have polls: everything else takes time from them", []any{"cores", all}}}, nil
}

// reportable checks at start that a report can be saved in dir, not after hours of answering.
func reportable(dir string) error {
	parent := filepath.Dir(filepath.Clean(dir))
	err := os.MkdirAll(parent, 0o755)
	if err == nil {
		err = unix.Access(parent, unix.W_OK|unix.X_OK)
	}
	if err != nil {
		return fmt.Errorf("stats.report: cannot create a folder in %s: %w", parent, err)
	}
	return nil
}
