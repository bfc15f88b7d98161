package responder

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/internal/cards"
	"github.com/rebound-nic/rebound/internal/host/isolate"
	"github.com/rebound-nic/rebound/internal/host/metrics"
	"github.com/rebound-nic/rebound/internal/host/notify"
	"github.com/rebound-nic/rebound/internal/host/resident"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/host"
	"github.com/rebound-nic/rebound/latency/plain"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/drivers/xdp"
)

// inTheKernel is a responder that answers in the kernel: it needs no core, and this process only maintains the clock
// and shows the kernel's counters.
type inTheKernel struct {
	settings *settings
	stages   *stages
	device   *xdp.Device
	start    time.Time
	host     host.Facts
	log      *slog.Logger
}

// inKernel opens the device if its driver answers in the kernel; it returns nil if a loop of this process should
// answer. With driver "auto" it decides, and logs the reason.
func inKernel(s *settings, stages *stages, log *slog.Logger) (*inTheKernel, error) {
	chosen := false
	if cannot := s.kernelCannot(); cannot != "" {
		if s.nic.Pin != "" {
			return nil, s.table.Fail("nic.pin", "is for driver xdp, and %s", cannot)
		}
		log.Info("driver chosen", "driver", "afxdp", "device", s.nic.Device, "why", cannot)
	} else if name, why := s.nic.Choose(coreGiven(s)); name != "" {
		log.Info("driver chosen", "driver", name, "device", s.nic.Device, "why", why)
		if name == "xdp" {
			s.nic.Driver, chosen = name, true
		} else if cards.OnBus(name) {
			s.nic.Driver = name
		}
	}
	if !s.nic.InKernel() {
		return nil, nil
	}
	k := &inTheKernel{settings: s, stages: stages, log: log}
	stages.done("driver chosen")
	match := s.match()
	if s.stampAsked() { // checked by fastpath; the program uses the kernel's clock
		match.Clock = new(atomic.Pointer[fastpath.Clock])
		match.Clock.Store(&fastpath.Clock{})
	}
	s.nic.Match, s.nic.Log = match, log
	var err error
	k.device, err = s.nic.OpenKernel()
	switch {
	case err == nil:
		s.table.WarnUnused("xdp", log)
		k.start = time.Now()
		return k, nil
	case !chosen, s.nic.Pin != "", errors.Is(err, nic.ErrNoDevice), errors.Is(err, nic.ErrDown), errors.Is(err, fastpath.ErrConfig):
		return nil, err
	}
	log.Warn("XDP is not available here: falling back to AF_XDP", "device", s.nic.Device, "reason", err)
	s.nic.Driver = "auto"
	return nil, nil
}

// coreGiven reports whether a core is there for a loop: named, or isolated.
func coreGiven(s *settings) bool {
	if len(s.cpu.cores) > 0 {
		return true
	}
	b, err := os.ReadFile("/sys/devices/system/cpu/isolated")
	if err != nil {
		return false
	}
	cpus, err := isolate.ParseCPUs(strings.TrimSpace(string(b)))
	return err == nil && len(cpus) > 0
}

// serve reports what the program does until ctx is done.
func (k *inTheKernel) serve(ctx context.Context, manager *notify.Manager, ask <-chan os.Signal, stdout io.Writer) (err error) {
	s, d, log := k.settings, k.device, k.log
	restore, err := lendStamping(d, s.nic.Device, s.nic.Pin != "")
	if err != nil {
		return errors.Join(err, d.Close())
	}
	defer func() { err = errors.Join(err, d.Close(), restore()) }()
	info := d.Info()
	logDevice(log, info)
	k.stages.done("program")
	answer, shown := newKernelPage(k)
	hide, err := metrics.ListenPage(s.stats.listen, s.stats.hosts, answer, shown.collect, k.healthy, log)
	if err != nil {
		return err
	}
	defer hide()
	k.stages.done("metrics")
	k.host = host.Collect(os.DirFS("/"), 0) // some of it is readable by root only
	k.stages.done("host settings")
	if err := s.confine(log); err != nil {
		return err
	}
	k.stages.done("confinement")
	line := s.ready(info)
	fmt.Fprintln(stdout, line)
	logNotifyError(log, manager.Ready(line))
	resident.Release()
	defer func() { logNotifyError(log, manager.Stopping()) }()
	go watchdogLoop(ctx, manager, d.OK, log)
	return errors.Join(k.talk(ctx, ask, stdout), k.print(stdout), k.save())
}

// healthy returns an error while the program is not attached.
func (k *inTheKernel) healthy() error {
	if !k.device.OK() {
		return errors.New("the program is not attached")
	}
	return nil
}

// talk prints a summary for each element of ask and logs one line per interval, until ctx is done or the interface
// fails.
func (k *inTheKernel) talk(ctx context.Context, ask <-chan os.Signal, stdout io.Writer) error {
	var interval <-chan time.Time
	if k.settings.stats.interval > 0 {
		t := time.NewTicker(k.settings.stats.interval)
		defer t.Stop()
		interval = t.C
	}
	look := time.NewTicker(time.Second / 10)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ask:
			if err := k.print(stdout); err != nil {
				return err
			}
		case <-interval:
			n, t := k.device.Verdicts(), ticksOf(k.device.Turnaround())
			k.log.Info("so far", "answered", n.Answered(), "refused", n.Refused(), "turnaround_p50_ns", t.quantile(0.5),
				"turnaround_p99_ns", t.quantile(0.99), "turnaround_max_ns", t.greatest)
		case <-look.C:
			if !k.device.OK() {
				return advise(k.device.Err())
			}
		}
	}
}

// ticksOf converts a histogram of nanoseconds.
func ticksOf(h xdp.Histogram) (t ticks) {
	t.merge(&h.Counts, h.Greatest)
	return t
}

// print writes the summary.
func (k *inTheKernel) print(out io.Writer) error { return printTable(out, k.rows) }

func (k *inTheKernel) rows(w io.Writer) error {
	d, info, counts := k.device, k.device.Info(), k.device.Verdicts()
	fmt.Fprintf(w, "summary\t%s on %s, %v\n", info.Driver, plain.Text(info.Device), time.Since(k.start).Round(time.Millisecond))
	if k.settings.nic.Pin != "" {
		fmt.Fprintf(w, "pin\t%s; all counts are since %v\n", plain.Text(k.settings.nic.Pin), d.Since().Format(time.DateTime))
	}
	printCounts(w, &counts)
	var s nic.Stats
	if err := d.ReadStats(&s); err != nil {
		return err
	}
	printFrames(w, info, &s)
	printProgram(w, d.Turnaround(), d.Delivery())
	return nil
}

// printProgram prints the program's histograms.
func printProgram(w io.Writer, turnaround, delivery xdp.Histogram) {
	fmt.Fprintln(w, "turnaround: one reply in sixteen, chosen at random, from the start of the program to its end, without the driver's time")
	fmt.Fprintln(w, "ns\tcount\tp50\tp90\tp99\tp99.9\tp99.99\tmax")
	for _, h := range []struct {
		name string
		ticks
	}{{"turnaround", ticksOf(turnaround)}, {"delivery", ticksOf(delivery)}} {
		if h.name == "delivery" && h.n == 0 {
			continue
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\n", h.name, h.n, h.quantile(0.5), h.quantile(0.9), h.quantile(0.99), h.quantile(0.999),
			h.quantile(0.9999), h.greatest)
	}
}

// save writes the report, where one is wanted.
func (k *inTheKernel) save() error {
	if k.settings.stats.report == "" {
		return nil
	}
	r := report.New("responder", report.Turnaround)
	r.Start, r.End = k.device.Since(), time.Now()
	r.Runs = []latency.Run{{End: r.End.Sub(r.Start).Nanoseconds()}}
	r.Clock = latency.ClockInfo{Source: "the kernel's monotonic clock", Frequency: 1e9}
	r.Host = k.host
	describe(r, k.device.Info(), k.device)
	h := k.device.Turnaround()
	r.Add(latency.MainSeries, latency.FromNanoseconds(&h.Counts, h.Greatest))
	n := k.device.Verdicts()
	r.Counts.Sent, r.Counts.Received = int64(n.Answered()), int64(n.Answered()+n.Refused())
	r.Notes = append(r.Notes, "turnaround is measured for one reply in sixteen, chosen at random, from the start of the program in the kernel to its end")
	return k.settings.save(r, k.log)
}
