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
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/internal/host/handover"
	"github.com/rebound-nic/rebound/internal/host/isolate"
	"github.com/rebound-nic/rebound/internal/host/metrics"
	"github.com/rebound-nic/rebound/internal/host/notify"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/host"
	"github.com/rebound-nic/rebound/latency/page"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/nic"
)

func serveCommand(args []string, stdout, stderr io.Writer) error {
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
	// From here on no signal ends the process before it has cleaned up; a second SIGINT or SIGTERM does, but not one that
	// comes along with the first: timeout(1) sends its signal to the process and to its group.
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	context.AfterFunc(ctx, func() { time.AfterFunc(time.Second, stop) })
	defer stop()
	ask := make(chan os.Signal, 1)
	signal.Notify(ask, unix.SIGUSR1)
	defer signal.Stop(ask)
	return serve(ctx, s, online, ask, stdout, s.log.New(stderr))
}

// serve answers until ctx is done. ask has an element for each summary that is wanted meanwhile.
func serve(ctx context.Context, s *settings, online []int, ask <-chan os.Signal, stdout io.Writer, log *slog.Logger) (err error) {
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
	if in, err := inKernel(s, log); err != nil {
		return err
	} else if in != nil {
		return in.serve(ctx, manager, ask, stdout)
	}
	cores := s.cpu.cores
	if len(cores) == 0 {
		cores = []int{chooseCore(online)}
		log.Info("core chosen", "core", cores[0])
	}
	if err := s.guarded(cores, log); err != nil {
		return err
	}
	remarks, err := prepare(s, cores, online)
	if err != nil {
		return err
	}
	clock, err := latency.NewClock()
	if err != nil {
		return err
	}

	match := s.match()
	s.respond.stamp.timed(match, clock)
	if s.stampAsked() {
		time := newStampClock(clock, s.respond.stamp.clockError)
		match.Clock = &time.now
		keeping, stop := context.WithCancel(context.Background())
		defer stop()
		go time.keep(keeping)
	}
	s.nic.Queues, s.nic.Match, s.nic.Log = len(cores), match, log
	s.nic.Services = s.services()
	dev, err := s.nic.OpenAnswerer()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	info := dev.Info()
	log.Info("device open", "driver", info.Driver, "device", info.Device, "model", info.Model, "backend", info.Backend,
		"queues", info.Queues, "mtu", info.MTU, "push", info.Push)
	for _, n := range info.Notes {
		log.Info("device", "note", n)
	}
	s.table.WarnUnused(info.Driver, log)
	if link, err := dev.Link(); err == nil && !link.Up {
		log.Warn("link is down; answering begins when it comes up", "device", info.Device)
	}

	m, messages := dev.(nic.Messenger)
	if err := s.fits(info, messages); err != nil {
		return err
	}
	newResponder := fastpath.NewMessages
	if !messages {
		newResponder = fastpath.New
		if err := mac(match, info); err != nil {
			return err
		}
	}
	match.PartialChecksums = info.PartialChecksums
	e := &engine{dev: dev, priority: s.cpu.priority, bound: heapBound, log: log}
	for i, core := range cores {
		r, err := newResponder(*match)
		if err != nil {
			return err
		}
		e.loops = append(e.loops, &loop{core: core, queue: i, responder: r})
	}

	view := &view{engine: e, info: info, clock: clock, start: time.Now()}
	view.before, _ = view.transactions()
	answer, shown := newPage(view)
	hide, err := metrics.ListenPage(s.stats.listen, s.stats.hosts, answer, shown.collect, log)
	if err != nil {
		return err
	}
	defer hide()
	var hand *handover.Server
	if s.respond.handover.IsValid() {
		if hand, err = handover.Listen(s.respond.handover, m, log); err != nil {
			return fmt.Errorf("respond.handover: %w", err)
		}
		defer func() { err = errors.Join(err, hand.Close()) }()
	}
	lease, release, err := s.lease(cores, log)
	if err != nil {
		return err
	}
	defer release()
	e.join = lease.Join
	// Only now: an error until here stands alone, not behind remarks.
	for _, r := range remarks {
		log.Warn(r.what, r.attrs...)
	}
	warn(s, cores, log)
	view.host = host.Collect(os.DirFS("/"), cores[0]) // some of it only root can read
	if err := s.confine(log); err != nil {
		return err
	}
	reporting, stopReporting := context.WithCancel(context.Background())
	reported := make(chan struct{})
	go func() {
		defer close(reported)
		view.printSummaries(reporting, ask, s.stats.interval, stdout, log)
	}()

	failed := advise(e.run(ctx, func() {
		line := s.ready(info)
		if messages {
			line = readyMessages(info, m, hand)
		}
		fmt.Fprintln(stdout, line)
		logNotifyError(log, manager.Ready(line))
		go watchdogLoop(reporting, manager, e.turned, log)
	}))
	stopReporting()
	logNotifyError(log, manager.Stopping())
	<-reported
	view.end = time.Now()
	view.print(stdout)
	if s.stats.report != "" {
		failed = errors.Join(failed, s.save(view.report(), log))
	}
	return failed
}

// ready is the line that says that answering has begun.
func (s *settings) ready(info nic.Info) string {
	return fmt.Sprintf("ready driver=%s device=%s mac=%s addresses=%s", info.Driver, info.Device, info.MAC, s.addressList())
}

// watchdogLoop tells the service manager that the program is alive, as often as it wants to hear it and only while alive says so.
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
			log.Warn("a polling loop stalls: the watchdog is not told that it is alive")
		}
	}
}

// logNotifyError logs what kept the service manager from hearing.
func logNotifyError(log *slog.Logger, err error) {
	if err != nil {
		log.Warn("the service manager was not told", "error", err)
	}
}

// save writes a report where the settings want it.
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

// mac gives the configuration the interface's own MAC.
func mac(c *fastpath.Config, info nic.Info) error {
	m, err := net.ParseMAC(info.MAC)
	if err != nil || len(m) != len(c.MAC) || [6]byte(m) == [6]byte{} {
		return fmt.Errorf("%s has no Ethernet address, but %q: loopback and tunnels carry no frames that could be answered", info.Device, info.MAC)
	}
	copy(c.MAC[:], m)
	return nil
}

// warn logs what about the host and the settings costs latency.
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

// prepare gives the cores to the loops and locks the memory. What rights do not allow is a remark: the answers are right
// all the same, only slower.
func prepare(s *settings, cores, online []int) (remarks []remark, err error) {
	rest, err := keepOff(cores, online)
	if err != nil {
		return nil, err
	}
	if len(rest) == 0 {
		remarks = append(remarks, remark{"the polling cores are all there are: everything else on this machine takes time from them", []any{"cores", isolate.FormatCPUs(cores)}})
	}
	if s.cpu.lockMemory {
		if err := unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE); err != nil {
			remarks = append(remarks, remark{"memory is not locked: a page that is missing costs microseconds or more", []any{"error", err,
				"fix", "run as root, with CAP_IPC_LOCK, or with `ulimit -l unlimited`; cpu.lock_memory=false hides this"}})
		}
	}
	return remarks, nil
}

// reportable finds out at once whether a report could be saved in dir, not after hours of answering.
func reportable(dir string) error {
	parent := filepath.Dir(filepath.Clean(dir))
	err := os.MkdirAll(parent, 0o755)
	if err == nil {
		err = unix.Access(parent, unix.W_OK|unix.X_OK)
	}
	if err != nil {
		return fmt.Errorf("stats.report: no folder can be made in %s: %w", parent, err)
	}
	return nil
}
