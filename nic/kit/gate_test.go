package kit

import (
	"errors"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rebound-nic/rebound/polling"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// loops starts n goroutines that poll like a driver's Serve, and returns a function that waits for their results.
func loops(g *Gate, n int, stop *atomic.Bool, passes *atomic.Int64) func() []error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			if errs[i] = g.Enter(); errs[i] != nil {
				return
			}
			defer g.Leave()
			for !stop.Load() {
				passes.Add(1)
				if g.Closed() {
					if errs[i] = g.Park(); errs[i] != nil {
						return
					}
				}
			}
		})
	}
	return func() []error { wg.Wait(); return errs }
}

// alone fails the test if n changes during g.alone.
func alone(t *testing.T, g *Gate, n *atomic.Int64) {
	t.Helper()
	must.OK(t, g.alone(nil, func() error {
		before := n.Load()
		for range 10000 {
			if n.Load() != before {
				return errors.New("a loop ran while another was to be alone")
			}
		}
		return nil
	}))
	check.Equal(t, g.parked.Load(), 0, "%d loops are still parked")
}

func TestGateRunsAlone(t *testing.T) {
	var g Gate
	var stop atomic.Bool
	var passes atomic.Int64
	wait := loops(&g, 2, &stop, &passes)
	for range 20 {
		alone(t, &g, &passes)
	}
	stop.Store(true)
	check.OK(t, errors.Join(wait()...))
}

// A pinned loop must not block: the runtime would end the process.
func TestPinnedLoopParks(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(max(2, runtime.GOMAXPROCS(0)))) // one for the test
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	runtime.GC() // see polling.Pin
	var g Gate
	var over sync.WaitGroup
	over.Go(func() {
		polling.Pin()
		defer polling.Unpin()
		check.OK(t, g.Enter())
		defer g.Leave()
		for !g.Closed() {
		}
		check.OK(t, g.Park())
	})
	for !g.Active() {
		runtime.Gosched()
	}
	must.OK(t, g.alone(nil, func() error {
		for range 10000 {
			runtime.Gosched()
		}
		return nil
	}))
	over.Wait()
}

// A loop that is not pinned sleeps while it is parked: virtual time would not advance otherwise.
func TestUnpinnedLoopParks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Gate
		var over sync.WaitGroup
		over.Go(func() {
			check.OK(t, g.Enter())
			defer g.Leave()
			for !g.Closed() {
				time.Sleep(nap)
			}
			check.OK(t, g.Park())
		})
		synctest.Wait()
		must.OK(t, g.alone(nil, func() error { time.Sleep(time.Second + nap/2); return nil }))
		check.Equal(t, g.parked.Load(), 0, "%d loops are still parked")
		over.Wait()
	})
}

func TestGateFailureEndsEveryLoop(t *testing.T) {
	var g Gate
	var stop atomic.Bool
	var passes atomic.Int64
	broken := errors.New("broken")
	wait := loops(&g, 2, &stop, &passes)
	g.alone(nil, func() error { return broken })
	for _, err := range wait() {
		check.Fails(t, "a loop", err, broken)
	}
	check.Equal(t, g.Active(), false, "a loop is active: %v")
	check.Fails(t, "entering a broken gate", g.Enter(), broken)
	check.Equal(t, g.Active(), false, "a loop that did not enter is active: %v")
	check.Fails(t, "a call of a broken gate", g.Call(), broken)
}

func TestGateHoldsACaller(t *testing.T) {
	var g Gate
	var stop atomic.Bool
	var calls atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		for !stop.Load() {
			if g.Call() != nil {
				return
			}
			calls.Add(1)
		}
	})
	for calls.Load() == 0 {
		runtime.Gosched()
	}
	for range 10 {
		alone(t, &g, &calls)
	}
	stop.Store(true)
	wg.Wait()
	// A caller that makes no more calls delays a restart, but not Close.
	end := make(chan struct{})
	close(end)
	check.Fails(t, "a stopped alone", g.alone(end, func() error {
		t.Error("ran with a caller that may be inside")
		return nil
	}), errStopped)
	check.Equal(t, g.Closed(), false, "the gate stays closed: %v")
	for range 2 { // Loops take the queues over.
		must.OK(t, g.Enter())
		check.Equal(t, g.Active(), true, "a loop is active: %v")
		g.Leave()
		check.Equal(t, g.Active(), false, "a loop that left is active: %v")
	}
	ran := false
	if err := g.alone(nil, func() error { ran = true; return nil }); err != nil || !ran {
		t.Errorf("alone with nobody: ran %v, %v", ran, err)
	}
}
