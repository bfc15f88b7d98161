package responder

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/internal/cards"
	"github.com/rebound-nic/rebound/internal/host/isolate"
	"github.com/rebound-nic/rebound/internal/host/metrics"
	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/drivers/xdp"
)

// kernelProgram answers in the kernel: it needs no core, and this process only maintains the clock and shows the
// kernel's counters.
type kernelProgram struct {
	*answering
	device *xdp.Device
	guard  loopGuard
}

// openProgram opens the device if its driver answers in the kernel; otherwise it leaves answerer nil: loops of this
// process should answer. With driver "auto" it decides, and logs the reason.
func (a *answering) openProgram() error {
	s, log := a.settings, a.log
	chosen := false
	if cannot := s.kernelCannot(); cannot != "" {
		if s.nic.Pin != "" {
			return s.table.Fail("nic.pin", "is for driver xdp, and %s", cannot)
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
		return nil
	}
	a.stages.done("driver chosen")
	match := s.match()
	if s.stampAsked() { // checked by fastpath; the program uses the kernel's clock
		match.Clock = new(atomic.Pointer[fastpath.Clock])
		match.Clock.Store(&fastpath.Clock{})
	}
	s.nic.Match, s.nic.Log = match, log
	d, err := s.nic.OpenKernel()
	switch {
	case err == nil:
	case !chosen, s.nic.Pin != "", errors.Is(err, nic.ErrNoDevice), errors.Is(err, nic.ErrDown),
		errors.Is(err, fastpath.ErrConfig):
		return err
	default:
		log.Warn("XDP is not available here: falling back to AF_XDP", "device", s.nic.Device, "reason", err)
		s.nic.Driver = "auto"
		return nil
	}
	k := &kernelProgram{answering: a, device: d, guard: loopGuard{limit: s.guard.loop}}
	if s.nic.Pin != "" {
		k.guard.since = k.stats()[fastpath.RefusedLoop]
	}
	restore, err := lendStamping(d, s.nic.Device, s.nic.Pin != "")
	if err != nil {
		return errors.Join(err, d.Close())
	}
	a.undo = append(a.undo, restore) // after the device is closed
	a.opened(d)
	a.stages.done("program")
	a.answerer, a.since = k, d.Since()
	return nil
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

func (k *kernelProgram) arm() error { return nil }

// run maintains the program until ctx is done or the interface fails.
func (k *kernelProgram) run(ctx context.Context, ready func()) error {
	ready()
	process.ReleaseMemory()
	tick := time.NewTicker(time.Second / 10)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case mac := <-k.device.MACChanged():
			if err := k.device.FollowMAC(mac); err != nil {
				k.log.Warn("cannot follow the interface's MAC", "error", err)
			}
		case <-tick.C:
			k.guard.check(k.stats(), k.log)
			if !k.turned() {
				return k.device.Err()
			}
		}
	}
}

func (k *kernelProgram) readyLine() string { return k.settings.ready(k.info) }

func (k *kernelProgram) turned() bool { return k.device.OK() }

// healthy returns an error while the program is not attached.
func (k *kernelProgram) healthy() error {
	if !k.device.OK() {
		return errors.New("the program is not attached")
	}
	return nil
}

func (k *kernelProgram) stats() fastpath.Stats { return k.device.Verdicts() }

func (k *kernelProgram) latest() []any {
	t := ticksOf(k.device.Turnaround())
	return t.attrs(func(ns uint64) int64 { return int64(ns) })
}

func (k *kernelProgram) details(io.Writer) {}

func (k *kernelProgram) explain() string { return explainProgram }

func (k *kernelProgram) timings() []latency.Series {
	return programTimings(k.device.Turnaround(), k.device.Delivery())
}

func (k *kernelProgram) page() (*metrics.Page, func()) {
	page, shown := newKernelPage(k)
	return page, shown.collect
}

// fill puts the program's turnaround into a report.
func (k *kernelProgram) fill(r *report.Report) {
	r.Clock = latency.ClockInfo{Source: "the kernel's monotonic clock", Frequency: 1e9}
	r.Add(latency.MainSeries, histogramOf(k.device.Turnaround()))
	r.Notes = append(r.Notes,
		"turnaround is measured for one reply in sixteen, chosen at random, from the start of the program in the kernel to its end")
}

// ticksOf converts a histogram of nanoseconds.
func ticksOf(h xdp.Histogram) (t ticks) {
	t.merge(&h.Counts, h.Greatest)
	return t
}

func histogramOf(h xdp.Histogram) *latency.Histogram {
	return latency.FromNanoseconds(&h.Counts, h.Greatest)
}

const explainProgram = "turnaround: one reply in sixteen, chosen at random, from the start of the program to its end, without the driver's time"

// programTimings are the rows of a program's table. Delivery has values only with a card that timestamps frames.
func programTimings(turnaround, delivery xdp.Histogram) []latency.Series {
	rows := []latency.Series{{Name: "turnaround", Summary: histogramOf(turnaround).Summary()}}
	if h := histogramOf(delivery); h.Count > 0 {
		rows = append(rows, latency.Series{Name: "delivery", Summary: h.Summary()})
	}
	return rows
}
