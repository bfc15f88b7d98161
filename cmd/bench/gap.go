package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"rebound/cmd/bench/peers"
	"rebound/latency"
	"rebound/latency/report"
)

const gapHelp = `usage: bench gap [flags]

Lets the responder poll an idle interface, and a loop in C do the same work, on the same core in alternating slices, and
compares the time between passes: what Go takes from the core shows there. It takes root and gcc.

`

func gapCommand(e *env, args []string) error {
	fs := flag.NewFlagSet("gap", flag.ContinueOnError)
	driver := fs.String("driver", "afxdp", "the responder's `DRIVER`: afxdp or afpacket")
	total := fs.Duration("duration", time.Minute, "`TIME` for each of the two")
	out := fs.String("out", "", "also write the table to this `FILE`")
	if err := e.parse(fs, args, gapHelp); err != nil {
		return err
	}
	const slice = 5 * time.Second
	if fs.NArg() > 0 || *total < slice {
		return usage("want a duration of %v or more, and nothing else", slice)
	}
	program, err := findResponder()
	if err != nil {
		return err
	}
	g := &gaps{demo: &demo{env: e, program: program, driver: *driver}, slice: slice, slices: int(*total / slice)}
	defer onSignal(&g.interrupted)()
	failed := make(chan error)
	go func() { // on a thread that ends with it, since it cannot come back from its namespace
		runtime.LockOSThread()
		failed <- g.run()
	}()
	if err := <-failed; err != nil {
		return err
	}
	table, missed := peers.GapTable(g.ours, g.c, g.step)
	fmt.Fprint(e.stdout, table)
	if *out != "" {
		if err := os.WriteFile(*out, []byte(table), 0o644); err != nil {
			return err
		}
	}
	if len(missed) > 0 {
		return fmt.Errorf("%w: %s", errWorse, strings.Join(missed, "; "))
	}
	return nil
}

// gaps is bench gap.
type gaps struct {
	*demo
	slice       time.Duration
	slices      int
	interrupted atomic.Bool
	ours, c     []*latency.Histogram
	step        float64 // of the counter, ns
}

func (g *gaps) run() (err error) {
	p, leave, err := g.enter()
	if err != nil {
		return err
	}
	defer leave()
	core := p.other()
	dir, err := os.MkdirTemp("", "bench-gap-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	loop := filepath.Join(dir, "gap")
	if err := peers.BuildGap(loop); err != nil {
		return err
	}
	clock, err := latency.NewClock()
	if err != nil {
		return err
	}
	g.step = peers.Resolution(clock)
	r := &responder{demo: g.demo, core: core, report: filepath.Join(dir, "report")}
	defer func() { err = errors.Join(err, r.stop()) }()
	for range g.slices {
		if err := r.start(); err != nil {
			return err
		}
		for end := time.Now().Add(g.slice); time.Now().Before(end); {
			if g.interrupted.Load() {
				return errInterrupted
			}
			time.Sleep(100 * time.Millisecond)
		}
		if err := r.stop(); err != nil {
			return err
		}
		rep, err := report.Read(r.report)
		if err != nil {
			return err
		}
		g.ours = append(g.ours, rep.Find(latency.GapSeries).Total)
		h, err := peers.RunGap(loop, core, g.slice, clock)
		if err != nil {
			return err
		}
		g.c = append(g.c, h)
	}
	return nil
}
