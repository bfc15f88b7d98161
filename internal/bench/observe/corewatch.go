package observe

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/rebound-nic/rebound/internal/host/osnoise"
	"github.com/rebound-nic/rebound/polling"
)

// Sample has the counts at a moment. All except the moment are counts since the machine, or the thread, was started.
type Sample struct {
	At         uint64 // tick of polling.TSC, read after the counters
	Timer      uint64 // local timer interrupts of the core
	Interrupts uint64 // all other interrupts of the core
	Softirqs   uint64
	Preempted  uint64 // times that the thread was preempted
	Waited     uint64 // ns that the thread was runnable but not running
}

// Watch reads the counters until Stop.
type Watch struct {
	counters *osnoise.Counters
	samples  []Sample
	every    time.Duration

	stop chan struct{}
	over sync.WaitGroup
}

const (
	period = 10 * time.Millisecond
	// share bounds the CPU time of another CPU spent on reading: on a machine with many CPUs /proc/interrupts is long.
	share = 20
	most  = 1 << 15 // samples; when more are needed, every other one is dropped, repeatedly
)

// Start watches the thread tid of this process on a core.
func Start(core, tid int) (*Watch, error) {
	if _, err := os.Stat(fmt.Sprintf("/proc/self/task/%d/schedstat", tid)); err != nil {
		return nil, err
	}
	counters, err := osnoise.OpenCounters(core, tid)
	if err != nil {
		return nil, err
	}
	w := &Watch{counters: counters, samples: make([]Sample, 0, most), every: period, stop: make(chan struct{})}
	took := time.Hour
	for range 3 { // use the minimum: another program may have run in the meantime
		began := time.Now()
		w.sample()
		took = min(took, time.Since(began))
	}
	w.every = max(w.every, share*took)
	w.over.Go(w.run)
	return w, nil
}

// Stop ends the watch and returns its samples in order.
func (w *Watch) Stop() []Sample {
	close(w.stop)
	w.over.Wait()
	w.sample()
	w.counters.Close()
	return w.samples
}

// run takes samples until it is stopped. When the memory for samples is full it drops every other one and halves the
// rate.
func (w *Watch) run() {
	tick := time.NewTicker(w.every)
	defer tick.Stop()
	for {
		select {
		case <-w.stop:
			return
		case <-tick.C:
		}
		w.sample()
		if len(w.samples) >= most-1 {
			for i := range len(w.samples) / 2 {
				w.samples[i] = w.samples[2*i]
			}
			w.samples = w.samples[:len(w.samples)/2]
			w.every *= 2
			tick.Reset(w.every)
		}
	}
}

func (w *Watch) sample() {
	n := w.counters.ReadScheduling()
	w.samples = append(w.samples, Sample{At: polling.TSC(), Timer: n.Timer, Interrupts: n.Interrupts,
		Softirqs:  n.AllSoftirqs(),
		Preempted: n.Preempted, Waited: n.Waited})
}

// Around returns the events in the sampling intervals that contain the ticks from and to, and the number of these
// intervals; 0 if the samples do not cover them.
func Around(all []Sample, from, to uint64) (d Sample, stretches int) {
	after := func(s Sample, at uint64) int {
		switch {
		case s.At < at:
			return -1
		case s.At > at:
			return 1
		}
		return 0
	}
	i, exact := slices.BinarySearchFunc(all, from, after)
	if !exact {
		i--
	}
	j, _ := slices.BinarySearchFunc(all, to, after)
	if i < 0 || j >= len(all) || i >= j {
		return d, 0
	}
	a, b := all[i], all[j]
	return Sample{At: b.At - a.At, Timer: b.Timer - a.Timer, Interrupts: b.Interrupts - a.Interrupts,
		Softirqs:  b.Softirqs - a.Softirqs,
		Preempted: b.Preempted - a.Preempted, Waited: b.Waited - a.Waited}, j - i
}

// mostNoise bounds the events that a Noise keeps. When there are more, the shorter half of them is dropped: a long one
// is what makes a round trip slow.
const mostNoise = 1 << 17

// Noise records what had the measuring core while the measuring thread did not run. Unlike Watch it has a start, an end
// and a name for each event, if the kernel's tracepoints may be used.
type Noise struct {
	watcher *osnoise.Watcher
	core    int

	mu     sync.Mutex
	events []osnoise.Event
	missed int64
}

// StartNoise watches the thread tid of this process, which is bound to the core.
func StartNoise(core, tid int) (n *Noise, err error) {
	n = &Noise{core: core}
	if n.watcher, err = osnoise.Watch([]int{core}, osnoise.Threshold, n.add); err != nil {
		return nil, err
	}
	if err := n.watcher.Thread(core, tid); err != nil {
		n.watcher.Close()
		return nil, err
	}
	return n, nil
}

func (n *Noise) add(e osnoise.Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.events) == mostNoise {
		slices.SortStableFunc(n.events, func(a, b osnoise.Event) int { return cmp.Compare(b.Took, a.Took) })
		n.events = n.events[:mostNoise/2]
		n.missed += mostNoise / 2
	}
	n.events = append(n.events, e)
}

// How says in words how causes are known.
func (n *Noise) How() string { return n.watcher.How() }

// Traced reports whether they are known from the kernel's tracepoints.
func (n *Noise) Traced() bool { return n.watcher.Traced() }

// Stop ends the watch. It returns the events, which overlap and have no order, and how many more there were. From and
// To of an event are ticks, as engine.Slow has them.
func (n *Noise) Stop() (events []osnoise.Event, missed int64) {
	lost := n.watcher.Lost()
	n.watcher.Close()
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.events, n.missed + int64(lost)
}
