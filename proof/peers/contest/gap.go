package contest

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/rebound-nic/rebound/internal/bench/testbed"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/peers/baseline"
)

// GapOptions describe a comparison of polling loops.
type GapOptions struct {
	Responder, Driver string // the responder's program and driver
	Slice             time.Duration
	Slices            int // of each loop
	Stop              *atomic.Bool
}

// Gaps has the durations of the loops' passes, slice by slice.
type Gaps struct {
	Responder, C []*latency.Histogram
	Step         float64 // the counter's step, ns
}

// RunGap measures the responder polling an idle interface, and the loop in C doing the same work, on one core in
// alternating slices.
func RunGap(o GapOptions) (*Gaps, error) {
	out := &Gaps{}
	failed := make(chan error)
	go func() { // on a thread that ends with it, because it cannot leave its namespace
		runtime.LockOSThread()
		failed <- o.run(out)
	}()
	return out, <-failed
}

func (o GapOptions) run(out *Gaps) (err error) {
	bed, err := testbed.Enter(false)
	if err != nil {
		return err
	}
	defer bed.Close()
	core := bed.Core.Other()
	dir, err := os.MkdirTemp("", "peers-gap-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	loop := filepath.Join(dir, "gap")
	if err := baseline.BuildGap(loop); err != nil {
		return err
	}
	clock, err := latency.NewClock()
	if err != nil {
		return err
	}
	out.Step = baseline.Resolution(clock)
	r := &testbed.Responder{Bed: bed, Program: o.Responder, Driver: o.Driver, Core: core,
		Report: filepath.Join(dir, "report")}
	defer func() { err = errors.Join(err, r.Stop()) }()
	for range o.Slices {
		if err := r.Start(); err != nil {
			return err
		}
		for end := time.Now().Add(o.Slice); time.Now().Before(end); {
			if o.Stop.Load() {
				return errInterrupted
			}
			time.Sleep(100 * time.Millisecond)
		}
		if err := r.Stop(); err != nil {
			return err
		}
		rep, err := report.Read(r.Report)
		if err != nil {
			return err
		}
		out.Responder = append(out.Responder, rep.Find(latency.GapSeries).Total)
		h, err := baseline.RunGap(loop, core, o.Slice, clock)
		if err != nil {
			return err
		}
		out.C = append(out.C, h)
	}
	return nil
}
