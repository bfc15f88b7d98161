package responder

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/metrics"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/polling"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

// idle is a device that only polls. The test defines Serve.
type idle struct {
	nic.Device
	serve func(queue int, stop *atomic.Bool, r *fastpath.Responder) error
}

func (d *idle) Serve(queue int, stop *atomic.Bool, r *fastpath.Responder) error {
	return d.serve(queue, stop, r)
}

func spin(_ int, stop *atomic.Bool, r *fastpath.Responder) error {
	for t := polling.TSC(); !stop.Load(); {
		t = r.Loop.Pass(t, 0)
	}
	return nil
}

func newEngine(t *testing.T, serve func(int, *atomic.Bool, *fastpath.Responder) error, loops int) *engine {
	t.Helper()
	online := must.Get(onlineCPUs())(t)
	e := &engine{dev: &idle{serve: serve}, bound: heapBound, log: slog.New(slog.DiscardHandler)}
	for i := range loops {
		e.loops = append(e.loops, &loop{core: online[len(online)-1], queue: i, responder: &fastpath.Responder{}})
	}
	return e
}

var garbage []byte

// When the heap has grown past its bound, the loops are stopped for one collection and started again.
func TestCollectionBetweenLoops(t *testing.T) {
	needs.Long(t)
	ctx, cancel := context.WithCancel(context.Background())
	var starts atomic.Int64
	cycles := func() uint64 { // as the runtime counts them
		s := []metrics.Sample{{Name: "/gc/cycles/total:gc-cycles"}}
		metrics.Read(s)
		return s[0].Value.Uint64()
	}
	var first, full, second uint64
	e := newEngine(t, func(q int, stop *atomic.Bool, r *fastpath.Responder) error {
		if starts.Add(1) == 1 {
			first = cycles()
			for range 64 {
				garbage = make([]byte, 1<<20) // as control goroutines would leave
			}
			garbage = nil
			full = cycles()
		} else {
			second = cycles()
			cancel()
		}
		return spin(q, stop, r)
	}, 1)
	e.bound = 32 << 20
	readies := 0
	must.OK(t, e.run(ctx, func() { readies++ }))
	if n := e.collections.Load(); n != 1 || starts.Load() != 2 || readies != 1 {
		t.Errorf("%d collections, %d starts, %d times ready; want 1, 2, 1", n, starts.Load(), readies)
	}
	if heap := heapMeter()(); heap > e.bound {
		t.Errorf("%d bytes of heap are left: nothing was collected", heap)
	}
	if full != first || second != full+1 {
		t.Errorf("%d collections while polling, %d between the loops; want 0, 1", full-first, second-full)
	}
}

// A failure of one loop stops all and is returned; so is a Serve that returns without being stopped.
func TestLoopFails(t *testing.T) {
	broken := errors.New("broken")
	for returned, want := range map[error]error{broken: broken, nil: errEnded} {
		e := newEngine(t, func(q int, stop *atomic.Bool, r *fastpath.Responder) error {
			if q == 1 {
				return returned
			}
			return spin(q, stop, r)
		}, 2)
		err := e.run(context.Background(), nil)
		if !errors.Is(err, want) || !strings.Contains(err.Error(), "queue 1") ||
			strings.Contains(err.Error(), "queue 0") {
			t.Errorf("got %v, want %v of queue 1 alone", err, want)
		}
	}
}

// Each loop has a thread, which joins the core's cgroup and ends with the loop. A round ends with its last loop.
func TestLoopThreads(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	var threads [2]int
	var joined, ended atomic.Int64
	e := newEngine(t, func(q int, stop *atomic.Bool, r *fastpath.Responder) error {
		threads[q] = unix.Gettid()
		err := spin(q, stop, r)
		for start := polling.TSC(); q == 1 && polling.TSC()-start < 1e8; {
		}
		ended.Add(1)
		return err
	}, 2)
	e.join = func() error { joined.Add(1); return nil }
	must.OK(t, e.run(ctx, cancel))
	check.Equal(t, ended.Load(), 2, "%d loops have ended")
	check.Equal(t, joined.Load(), 2, "%d threads have joined")
	for _, id := range threads {
		await.Until(t, "the loop's thread has ended", func() bool {
			_, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", id))
			return err != nil || id == os.Getpid()
		})
	}
	broken := errors.New("broken")
	e.join = func() error { return broken }
	check.Fails(t, "a cgroup", e.run(context.Background(), nil), broken)
}

// follower is an interface whose MAC changes.
type follower struct {
	changes chan [6]byte
	seen    [][6]byte
}

func (f *follower) MACChanged() <-chan [6]byte { return f.changes }

func (f *follower) FollowMAC(mac [6]byte) error {
	f.seen = append(f.seen, mac)
	return errors.New("no such interface")
}

// When the interface's MAC changes, the loops are stopped for the change alone, and started again.
func TestLoopsFollowMAC(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	starts, readies := 0, 0
	e := newEngine(t, func(q int, stop *atomic.Bool, r *fastpath.Responder) error {
		if starts++; starts == 2 {
			cancel()
		}
		return spin(q, stop, r)
	}, 1)
	f, log := &follower{changes: make(chan [6]byte, 1)}, new(strings.Builder)
	e.followed, e.log = f, slog.New(slog.NewTextHandler(log, nil))
	must.OK(t, e.run(ctx, func() { readies++; f.changes <- plantMAC }))
	check.Same(t, f.seen, [][6]byte{plantMAC}, "followed %x")
	check.Equal(t, fmt.Sprint(starts, readies, e.collections.Load()), "2 1 0", "starts, times ready, collections: %s")
	check.Contains(t, log.String(), "cannot follow the interface's MAC", "no such interface")
}

func TestAdvise(t *testing.T) {
	for err, want := range map[error]string{
		nic.ErrGone: "starting again does not help until it is back", nic.ErrDown: "start again",
		nic.ErrHardware: "start again", nic.ErrTimeout: "start again",
	} {
		check.Fails(t, err.Error(), advise(fmt.Errorf("core 1: %w", err)), err, want)
	}
	check.OK(t, advise(nil))
}
