package observe

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/host/osnoise"
	"github.com/rebound-nic/rebound/polling"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// kernel returns the kernel's counts for the calling thread: preemptions, and ns that it was runnable but not running.
func kernel(t *testing.T) (preempted, waited uint64) {
	t.Helper()
	read := func(file, before string) (n uint64) {
		t.Helper()
		b := must.Get(os.ReadFile("/proc/thread-self/" + file))(t)
		_, rest, _ := strings.Cut(string(b), before)
		must.Get(fmt.Sscan(rest, &n))(t)
		return n
	}
	return read("status", "nonvoluntary_ctxt_switches:"), read("schedstat", " ")
}

// A thread that shares its core with another one is recorded as preempted and waiting; the core's timer is recorded,
// too.
func TestWatch(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, one unix.CPUSet
	must.OK(t, unix.SchedGetaffinity(0, &all))
	core := 0
	for !all.IsSet(core) {
		core++
	}
	one.Set(core)
	must.OK(t, unix.SchedSetaffinity(0, &one))
	defer func() { _ = unix.SchedSetaffinity(0, &all) }()
	w := must.Get(Start(core, unix.Gettid()))(t)
	running, done := make(chan struct{}), make(chan struct{})
	var enough atomic.Bool
	defer enough.Store(true)
	go func() { // the other thread
		defer close(done)
		runtime.LockOSThread()
		_ = unix.SchedSetaffinity(0, &one)
		close(running)
		for !enough.Load() {
		}
	}()
	<-running
	from := polling.TSC()
	lost, idle := kernel(t)
	for end := time.Now().Add(time.Minute); ; { // the time until the two are switched depends on the machine
		for next := time.Now().Add(5 * time.Millisecond); time.Now().Before(next); {
		}
		if p, w := kernel(t); p > lost && w >= idle+20e6 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("two threads on one core for a minute, and this one has hardly waited")
		}
	}
	enough.Store(true)
	<-done
	samples := w.Stop()
	// a sample's counters are read before its timestamp: the last one has everything
	d, n := Around(samples, from, samples[len(samples)-1].At)
	if n < 1 || d.Waited < 20e6 || d.Preempted == 0 || d.Timer+d.Interrupts == 0 {
		t.Errorf("%d stretches: %+v", n, d)
	}
	if _, now := kernel(t); samples[len(samples)-1].Waited > now {
		t.Errorf("waited %d ns, the kernel says %d", samples[len(samples)-1].Waited, now)
	}
}

func TestAround(t *testing.T) {
	all := []Sample{{At: 100, Softirqs: 1}, {At: 200, Softirqs: 2}, {At: 300, Softirqs: 4}, {At: 400, Softirqs: 8}}
	for _, c := range []struct {
		from, to, softirqs uint64
		n                  int
	}{{150, 160, 1, 1}, {150, 250, 3, 2}, {200, 300, 2, 1}, {100, 400, 7, 3}, {50, 150, 0, 0}, {350, 450, 0, 0}} {
		if d, n := Around(all, c.from, c.to); d.Softirqs != c.softirqs || n != c.n {
			t.Errorf("%d to %d: %d softirqs in %d stretches, want %d in %d", c.from, c.to, d.Softirqs, n, c.softirqs,
				c.n)
		}
	}
}

// When the memory for samples is full, every other one is dropped, and they are taken half as often.
func TestWatchHalves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &Watch{counters: must.Get(osnoise.OpenCounters(0, unix.Gettid()))(t), every: period,
			samples: make([]Sample, most-2, most), stop: make(chan struct{})}
		for i := range w.samples {
			w.samples[i].At = uint64(i)
		}
		w.over.Go(w.run)
		time.Sleep(5*period + period/2) // after one tick, and two of the longer ones
		all := w.Stop()
		check.Equal(t, len(all), (most-1)/2+3, "%d samples")
		for i := range (most - 1) / 2 {
			if all[i].At != uint64(2*i) {
				t.Fatalf("sample %d was number %d", i, all[i].At)
			}
		}
	})
}
