package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"text/tabwriter"
	"time"

	"rebound/latency"
	"rebound/nic"
	"rebound/nic/xdp"
)

// serveKernel is serve for a driver that answers by itself: no core is given away, and this process only keeps the clock and
// prints what the kernel counted.
func serveKernel(ctx context.Context, s *settings, ask <-chan os.Signal, stdout io.Writer, log *slog.Logger) (err error) {
	switch {
	case s.stats.listen != "":
		return fmt.Errorf("stats.listen: driver %s has no metrics page yet: its counts are in the summary (SIGUSR1, stats.interval)", s.nic.Driver)
	case s.stats.report != "":
		return fmt.Errorf("stats.report: driver %s has no report yet: its counts are in the summary (SIGUSR1, stats.interval)", s.nic.Driver)
	}
	match := s.match()
	if len(s.respond.stamp) > 0 {
		clock, err := latency.NewClock()
		if err != nil {
			return err
		}
		time := newStampClock(clock)
		match.Clock = &time.now
		keeping, stop := context.WithCancel(context.Background())
		defer stop()
		go time.keep(keeping)
	}
	s.nic.Match, s.nic.Log = match, log
	d, err := s.nic.OpenKernel()
	if err != nil {
		return err
	}
	start := time.Now()
	defer func() { err = errors.Join(err, d.Close()) }()
	info := d.Info()
	log.Info("device open", "driver", info.Driver, "device", info.Device, "model", info.Model, "backend", info.Backend, "mtu", info.MTU,
		"push", info.Push)
	for _, n := range info.Notes {
		log.Info("device", "note", n)
	}
	fmt.Fprintf(stdout, "ready driver=%s device=%s mac=%s addresses=%s\n", info.Driver, info.Device, info.MAC, s.addressList())

	var interval <-chan time.Time
	if s.stats.interval > 0 {
		t := time.NewTicker(s.stats.interval)
		defer t.Stop()
		interval = t.C
	}
	look := time.NewTicker(time.Second / 10)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return printKernel(stdout, d, time.Since(start))
		case <-ask:
			if err := printKernel(stdout, d, time.Since(start)); err != nil {
				return err
			}
		case <-interval:
			n, t := d.Verdicts(), turnaroundOf(d)
			log.Info("so far", "answered", n.Answered(), "refused", n.Refused(), "turnaround_p50_ns", t.quantile(0.5),
				"turnaround_p99_ns", t.quantile(0.99), "turnaround_max_ns", t.greatest)
		case <-look.C:
			if !d.OK() {
				return errors.Join(advise(d.Err()), printKernel(stdout, d, time.Since(start)))
			}
		}
	}
}

// turnaroundOf is the program's own time for each reply, in nanoseconds.
func turnaroundOf(d *xdp.Device) (t ticks) {
	counts, greatest := d.Turnaround()
	t.merge(&counts, greatest)
	return t
}

// printKernel writes the summary.
func printKernel(out io.Writer, d *xdp.Device, ran time.Duration) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	info, counts, t := d.Info(), d.Verdicts(), turnaroundOf(d)
	fmt.Fprintf(w, "summary\t%s on %s, %v\n", info.Driver, info.Device, ran.Round(time.Millisecond))
	printCounts(w, &counts)
	var s nic.Stats
	if err := d.ReadStats(&s); err != nil {
		return err
	}
	fmt.Fprintf(w, "device\treceived %d (%d bytes), sent %d (%d bytes)\n", s.RxFrames, s.RxBytes, s.TxFrames, s.TxBytes)
	fmt.Fprintln(w, "turnaround: of each reply, from the program's start to its end. The driver's own time is not in it")
	fmt.Fprintln(w, "ns\tcount\tp50\tp90\tp99\tp99.9\tp99.99\tmax")
	fmt.Fprintf(w, "turnaround\t%d\t%d\t%d\t%d\t%d\t%d\t%d\n", t.n, t.quantile(0.5), t.quantile(0.9), t.quantile(0.99), t.quantile(0.999),
		t.quantile(0.9999), t.greatest)
	return w.Flush()
}
