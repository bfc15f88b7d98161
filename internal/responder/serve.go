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
	"github.com/rebound-nic/rebound/internal/cards"
	"github.com/rebound-nic/rebound/internal/host/isolate"
	"github.com/rebound-nic/rebound/internal/host/metrics"
	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/host"
	"github.com/rebound-nic/rebound/latency/page"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/kit/netif"
)

func serveCommand(args []string, stdout, stderr io.Writer) error {
	debug.SetGCPercent(50) // memory for the start is not needed later, and the heap would keep its largest size
	var c configured
	var verbose bool
	if err := parseConfigured(servingFlags(&c, &verbose), args); err != nil {
		return err
	}
	online, err := onlineCPUs()
	if err != nil {
		return err
	}
	s, err := loadConfig(c.file, c.sets, online)
	if err != nil {
		return err
	}
	if err := permitted(&s.nic); err != nil {
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
	s.log.Verbose = verbose
	log := s.log.New(stderr)
	log.Debug("start", "stage", "process and settings", "took", sinceStart())
	return serve(ctx, s, online, ask, stdout, log)
}

// serve answers until ctx is done. Each element of ask requests a summary. Its steps:
//
//  1. choose what answers: polling loops of this process, or a program in the kernel (openProgram)
//  2. open the device, and lend it addresses or clock, which a second process takes back (openLoops, openProgram)
//  3. arm: open the metrics page, complete the loops, read the host's settings, then drop the rights that were needed
//     for that
//  4. run: answer, and print the ready line at the first pass; meanwhile print summaries and notify the service manager
//  5. print the last summary and save the report
//  6. close, in reverse order of opening
func serve(ctx context.Context, s *settings, online []int, ask <-chan os.Signal, stdout io.Writer,
	log *slog.Logger) (err error) {
	a := &answering{settings: s, stages: newStages(log), log: log}
	clock, err := latency.StartClock()
	if err != nil {
		return err
	}
	manager, err := process.OpenManager()
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
	defer func() { err = errors.Join(err, a.close()) }()
	if err := a.openProgram(); err != nil {
		return err
	}
	if a.answerer == nil {
		if err := a.openLoops(online, clock); err != nil {
			return err
		}
	}
	if err := a.arm(); err != nil {
		return err
	}
	return a.run(ctx, manager, ask, stdout)
}

// answering is the life of a responder, with whatever answers.
type answering struct {
	settings *settings
	stages   *stages
	log      *slog.Logger
	answerer answerer
	port     nic.Port
	info     nic.Info
	core     int // whose settings are in the report
	start    time.Time
	since    time.Time // the zero of the counters: a pinned program is older than the process
	end      time.Time // zero while running
	host     host.Facts
	undo     []func() error // for close, run in reverse order
}

// answerer is what answers: polling loops of this process (pollingLoops), or a program in the kernel (kernelProgram).
// Its counters and histograms can be read at any time.
type answerer interface {
	arm() error                                  // completes it, with the rights that the process still has
	run(ctx context.Context, ready func()) error // answers until ctx is done; calls ready once, when it does
	readyLine() string                           // for stdout
	healthy() error                              // for the metrics page
	turned() bool                                // for the service manager: false if it is stalled
	page() (page *metrics.Page, collect func())  // its metrics, and what updates them
	stats() fastpath.Stats                       // frames by kind and reason
	timings() []latency.Series                   // for the summary's table
	latest() []any                               // attributes of the periodic log line, read without garbage
	details(w io.Writer)                         // lines of the summary after the device's counters
	explain() string                             // what the table's values are
	fill(r *report.Report)                       // its part of the report
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

// opened records and logs the open device.
func (a *answering) opened(p nic.Port, more ...any) {
	a.port, a.info = p, p.Info()
	a.undo = append(a.undo, p.Close)
	logDevice(a.log, a.info, more...)
	a.settings.table.WarnUnused(a.info.Driver, a.log)
}

// logDevice logs the description of the open device.
func logDevice(log *slog.Logger, info nic.Info, more ...any) {
	log.Info("device open", slices.Concat([]any{"driver", info.Driver, "device", info.Device, "model", info.Model,
		"backend", info.Backend}, more,
		[]any{"mtu", info.MTU, "push", info.Push})...)
	for _, n := range info.Notes {
		log.Info("device", "note", n)
	}
}

// arm creates everything that users and other programs see, and last drops the rights that are not needed while
// answering.
func (a *answering) arm() error {
	s := a.settings
	if a.start = time.Now(); a.since.IsZero() {
		a.since = a.start
	}
	page, collect := a.answerer.page()
	hide, err := metrics.ListenPage(s.stats.listen, s.stats.hosts, page, collect, a.answerer.healthy, a.log)
	if err != nil {
		return err
	}
	a.later(hide)
	a.stages.done("metrics")
	if err := a.answerer.arm(); err != nil {
		return err
	}
	a.host = host.Collect(os.DirFS("/"), a.core) // some of it is readable by root only
	a.stages.done("host settings")
	err = s.confine(a.log)
	a.stages.done("confinement")
	return err
}

// run answers until ctx is done, then prints and saves the counters.
func (a *answering) run(ctx context.Context, manager *process.Manager, ask <-chan os.Signal, stdout io.Writer) error {
	s := a.settings
	reporting, stopReporting := context.WithCancel(context.Background())
	reported := make(chan struct{})
	go func() {
		defer close(reported)
		a.printSummaries(reporting, ask, s.stats.interval, stdout)
	}()
	failed := advise(a.answerer.run(ctx, func() {
		line := a.answerer.readyLine()
		fmt.Fprintln(stdout, line)
		a.stages.done("first pass, memory")
		logNotifyError(a.log, manager.Ready(line))
		go watchdogLoop(reporting, manager, a.answerer.turned, a.log)
	}))
	stopReporting()
	logNotifyError(a.log, manager.Stopping())
	<-reported
	a.end = time.Now()
	a.print(stdout)
	if s.stats.report != "" {
		failed = errors.Join(failed, s.save(a.report(), a.log))
	}
	return failed
}

// ready returns the line that says that the responder answers.
func (s *settings) ready(info nic.Info) string {
	return fmt.Sprintf("ready driver=%s device=%s%s mac=%s addresses=%s", info.Driver, info.Device, via(info), info.MAC,
		s.addressList())
}

// via is the field of the ready line for a device that the kernel's driver keeps.
func via(info nic.Info) string {
	if info.Via == "" {
		return ""
	}
	return " via=" + info.Via
}

// watchdogLoop notifies the service manager at the interval that it requests, while alive returns true.
func watchdogLoop(ctx context.Context, m *process.Manager, alive func() bool, log *slog.Logger) {
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

// permitted returns an error if this process may not use an interface of the kernel with any driver, or no driver can.
func permitted(c *cards.Config) error {
	if cards.IsPCIDevice(c.Device) {
		return nil
	}
	if i, err := net.InterfaceByName(c.Device); err == nil && len(i.HardwareAddr) == 0 && c.MAC == [6]byte{} {
		return netif.NoEthernet(c.Device)
	}
	if lacks := netif.Missing(unix.CAP_NET_RAW); lacks == "" {
		return nil
	}
	if lacks := netif.MissingForXDP(); lacks == "" && (c.Driver == "xdp" || c.Driver == "auto") {
		return nil
	}
	return fmt.Errorf("interface %s: %w: run as root (sudo), or give the program CAP_NET_RAW for driver afpacket, and CAP_NET_ADMIN, CAP_BPF and CAP_PERFMON for xdp and afxdp", c.Device, nic.ErrRights)
}

// mac sets the interface's own MAC in the configuration.
func mac(c *fastpath.Config, info nic.Info) error {
	m, err := net.ParseMAC(info.MAC)
	if err != nil || len(m) != len(c.MAC) || [6]byte(m) == [6]byte{} {
		return netif.NoEthernet(info.Device)
	}
	copy(c.MAC[:], m)
	return nil
}

// warn logs host settings that add latency, which the command check reports, and as a warning those that contradict a
// setting.
func warn(s *settings, cores []int, log *slog.Logger) {
	for _, f := range hostFindings(cores, s.nic.Device) {
		level := slog.LevelInfo
		if f.ID == "rt_throttling" && s.cpu.priority > 0 {
			level = slog.LevelWarn
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
	return []remark{{"every core that this process can have polls: everything else takes time from them",
		[]any{"cores", all}}}, nil
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
