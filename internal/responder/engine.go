package responder

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/internal/host/osnoise"
	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/polling"
)

// heapBound is how many bytes of garbage the control goroutines (scrapes, summaries, STAMP's clock) may leave before
// the loops are stopped for a collection. With a scrape every fifteen seconds it is reached after a day or so.
const heapBound = 12 << 20

// engine runs one polling loop on each core.
//
// The Go runtime can disturb a polling loop in four ways, and each is prevented:
//   - Stopping the world waits for every goroutine: a loop that never yields blocks it, and a loop that yields is
//     stopped by it. While loops run the collector is off, GOMAXPROCS is fixed (otherwise the runtime adapts it, by
//     stopping the world), and nothing else that stops the world is called. When the heap has grown past bound, the
//     loops are stopped through their own flag, the collector runs, and they are started again.
//   - The runtime's monitor asks each goroutine that has run for 10 ms to yield: by a signal, which a polling thread
//     blocks (occupy), and at the next function call, which ignores it while pinned (polling.Pin).
//   - The process's other threads could run on the core: keepOff moved them.
//   - Runnable goroutines could need the loop's P: there are two more Ps than loops.
type engine struct {
	dev      nic.Answerer
	loops    []*loop
	join     func() error // moves the calling thread to the cgroup of its core; nil if there is none
	priority int          // SCHED_FIFO, 0 for off
	bound    uint64       // bytes of garbage
	locks    bool         // memory, as far as the loops touch it
	log      *slog.Logger
	guard    loopGuard
	followed nic.Followed     // dev, if it follows the kernel's interface
	noise    *osnoise.Watcher // nil unless stats.offcore
	gaps     *gapLog          // nil unless stats.report

	pulse       pulse
	collections atomic.Int64 // times that the loops were stopped for the collector

	_    [128]byte // stop has a cache line to itself, so that reading it costs the loops nothing
	stop atomic.Bool
	_    [128]byte
}

// loop is the polling loop of one core.
type loop struct {
	core, queue int
	responder   *fastpath.Responder

	passes uint64 // for turned: the last value it saw
}

// errEnded means that Serve returned although it was not stopped.
var errEnded = errors.New("polling stopped unexpectedly")

// run answers until ctx is done, and then returns nil. If a loop fails, it stops the others and returns the error. It
// calls ready once, when all loops poll.
func (e *engine) run(ctx context.Context, ready func()) error {
	runtime.GOMAXPROCS(len(e.loops) + 2)
	debug.SetMemoryLimit(math.MaxInt64)
	defer debug.SetGCPercent(debug.SetGCPercent(-1))

	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	heap := heapMeter()
	var moved <-chan [6]byte
	if e.followed != nil {
		moved = e.followed.MACChanged()
	}
	for {
		runtime.GC()
		kept := heap()
		e.stop.Store(false)
		running := e.start()
		again, mac := false, [6]byte{}
		for watching := true; watching; {
			select {
			case <-running.polling:
				running.polling = nil
				e.lockMemory()
				if ready != nil {
					ready()
					ready = nil
				}
			case <-running.failed:
				watching = false
			case <-ctx.Done():
				watching = false
			case mac = <-moved:
				again, watching = true, false
			case <-tick.C:
				for _, l := range e.loops {
					e.guard.check(l.responder.Stats(), e.log)
				}
				again = heap() > kept+e.bound
				watching = !again
			}
		}
		e.stop.Store(true)
		if err := running.wait(); err != nil || !again {
			return err
		}
		if mac != [6]byte{} {
			for _, l := range e.loops {
				l.responder.SetMAC(mac)
			}
			if err := e.followed.FollowMAC(mac); err != nil {
				e.log.Warn("cannot follow the interface's MAC", "error", err)
			}
			continue
		}
		e.log.Info("loops stopped for a garbage collection", "heap_bytes", heap(), "collections", e.collections.Add(1))
	}
}

// round is the time from starting the loops to the last one's end.
type round struct {
	polling chan struct{} // closed when all loops poll
	failed  chan struct{} // has an element for each loop that ended with an error
	wait    func() error
}

// start runs all loops. The round's channel polling is closed when each has entered its loop; failed receives a value
// for each loop that ends with an error.
func (e *engine) start() round {
	r := round{polling: make(chan struct{}), failed: make(chan struct{}, len(e.loops))}
	var all sync.WaitGroup
	var entered atomic.Int64
	errs := make([]error, len(e.loops))
	for i, l := range e.loops {
		all.Go(func() {
			errs[i] = e.poll(l, func() {
				if entered.Add(1) == int64(len(e.loops)) {
					close(r.polling)
				}
			})
			if errs[i] != nil {
				r.failed <- struct{}{}
			}
		})
	}
	r.wait = func() error {
		all.Wait()
		return errors.Join(errs...)
	}
	return r
}

// lockMemory locks what the loops touch. All of it exists when they poll.
func (e *engine) lockMemory() {
	if !e.locks {
		return
	}
	if err := process.LockMemory(); err != nil {
		e.log.Warn("memory is not locked: a page fault costs microseconds or more", "error", err,
			"fix", "run as root, with CAP_IPC_LOCK, or with `ulimit -l unlimited`; cpu.lock_memory=false hides this")
	}
}

// poll runs one loop, from occupying its core to releasing it.
func (e *engine) poll(l *loop, entering func()) error {
	runtime.LockOSThread() // never unlocked: the thread's settings are changed, so it ends with the goroutine
	if e.join != nil {
		if err := e.join(); err != nil {
			return err
		}
	}
	if err := occupy(l.core, e.priority); err != nil {
		return err
	}
	if e.noise != nil {
		if err := e.noise.Thread(l.core, unix.Gettid()); err != nil {
			e.log.Warn("the causes of polling gaps are unknown", "core", l.core, "error", err)
		}
		defer e.noise.Thread(l.core, 0)
	}
	growStack()
	entering()
	polling.Pin()
	err := e.dev.Serve(l.queue, &e.stop, l.responder)
	polling.Unpin()
	if err == nil && !e.stop.Load() {
		err = errEnded
	}
	if err != nil {
		return fmt.Errorf("core %d, queue %d: %w", l.core, l.queue, err)
	}
	return nil
}

// growStack gives the calling goroutine a stack that no frame makes larger: a new stack is memory that is not locked.
//
//go:noinline
func growStack() {
	var b [16 << 10]byte
	runtime.KeepAlive(&b)
}

// turned reports whether every loop has made a pass since the last call. Only one caller may use it.
func (e *engine) turned() bool {
	all := true
	for _, l := range e.loops {
		n := l.count()
		all = all && n != l.passes
		l.passes = n
	}
	return all
}

// advise adds advice on how to recover from a failure of an open device.
func advise(err error) error {
	switch {
	case nic.Lost(err):
		return fmt.Errorf("%w (the device is lost: starting again does not help until it is back)", err)
	case errors.Is(err, nic.ErrDown), errors.Is(err, nic.ErrHardware), errors.Is(err, nic.ErrTimeout):
		return fmt.Errorf("%w (the device is present: start again)", err)
	}
	return err
}

// heapMeter returns a function that reads the size in bytes of the heap's objects, including dead ones, without
// stopping the world or making garbage.
func heapMeter() func() uint64 {
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(s)
	return func() uint64 {
		metrics.Read(s)
		return s[0].Value.Uint64()
	}
}
