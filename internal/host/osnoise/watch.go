package osnoise

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime/metrics"
	"slices"
	"sync"
	"time"
)

const (
	// period is how often the ring and the counters are read. On a machine with many CPUs /proc/interrupts is long, so
	// share bounds the part of another CPU's time that reading all counters takes.
	period = 50 * time.Millisecond
	share  = 20
	// pieces: a cause is reported if it is longer than this part of the threshold.
	pieces = 4
	// smiEvery is how often the counter of system management interrupts is read, which interrupts the core.
	smiEvery = time.Second
	// msrSMI is MSR_SMI_COUNT of Intel's processors (SDM volume 4, table 2-2).
	msrSMI = 0x34
)

// Watcher watches the polling threads of some cores.
type Watcher struct {
	threshold time.Duration
	each      func(Event)
	kernel    *kernel // nil: counters only
	why       string  // kernel is nil
	stop      chan struct{}
	over      sync.WaitGroup

	mu      sync.Mutex // for all below
	closed  bool
	cores   []*core
	clocks  clocks
	totals  []Total
	comms   map[[16]byte]string
	irqs    map[uint32]string
	pauses  []metrics.Sample
	stops   uint64 // pauses of the runtime so far
	nextSMI time.Time
}

// core is a watched core.
type core struct {
	cpu, tid int
	runs     []run // of other threads, in the present interval; of many, the last ones
	counters *Counters
	before   Counts
	msr      *os.File // nil if there is none
	smi      uint64
}

// Threshold is the shortest interval that is usually of interest: a polling loop has such a gap only if something else
// ran.
const Threshold = 5 * time.Microsecond

// Watch starts to watch the cores cpus. It reports intervals of at least threshold in which the thread set by Thread
// did not run, to each, which is called by another goroutine and may be nil. Without rights for the kernel's
// tracepoints it uses counters; How tells.
func Watch(cpus []int, threshold time.Duration, each func(Event)) (*Watcher, error) {
	w := newWatcher(threshold, each)
	k, err := attach(threshold)
	if err != nil {
		return w.without(err).start(cpus)
	}
	w.kernel = k
	return w.start(cpus)
}

func newWatcher(threshold time.Duration, each func(Event)) *Watcher {
	return &Watcher{threshold: threshold, each: each, stop: make(chan struct{}), comms: map[[16]byte]string{},
		irqs:   map[uint32]string{},
		pauses: []metrics.Sample{{Name: "/sched/pauses/total/gc:seconds"}, {Name: "/sched/pauses/total/other:seconds"}}}
}

// without has w use counters, because of err.
func (w *Watcher) without(err error) *Watcher {
	w.why = explain(err)
	return w
}

// start begins to read.
func (w *Watcher) start(cpus []int) (*Watcher, error) {
	w.clocks.read()
	w.stops = w.countPauses()
	took := time.Duration(0)
	for _, cpu := range cpus {
		c := &core{cpu: cpu, runs: make([]run, 0, keptRuns)}
		w.cores = append(w.cores, c)
		var err error
		if c.counters, err = OpenCounters(cpu, 0); err != nil {
			w.Close()
			return nil, err
		}
		if c.msr, err = os.Open(fmt.Sprintf("/dev/cpu/%d/msr", cpu)); err == nil {
			var ok bool
			if c.smi, ok = c.readSMI(); !ok { // another vendor's, or a virtual machine
				c.msr.Close()
				c.msr = nil
			}
		}
		began := time.Now()
		w.count(c)
		took += time.Since(began)
	}
	w.readIRQs()
	every := max(period, share*took)
	w.over.Go(func() {
		t := time.NewTicker(every)
		defer t.Stop()
		for {
			select {
			case <-w.stop:
				return
			case <-t.C:
				w.readEvents()
			}
		}
	})
	return w, nil
}

// How says in words how causes are known.
func (w *Watcher) How() string {
	if w.kernel == nil {
		return "counters only: " + w.why
	}
	s := fmt.Sprintf("the kernel's tracepoints (BPF), intervals from %v", w.threshold)
	if !w.kernel.states {
		s += "; a stopped thread looks preempted"
	}
	return s
}

// Traced reports whether causes are known from the kernel's tracepoints.
func (w *Watcher) Traced() bool { return w.kernel != nil }

// Thread makes tid, a thread of this process, the polling thread of a watched core; 0 is none. The thread must be bound
// to the core.
func (w *Watcher) Thread(cpu, tid int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := slices.IndexFunc(w.cores, func(c *core) bool { return c.cpu == cpu })
	if i < 0 || w.closed {
		return fmt.Errorf("CPU %d is not watched", cpu)
	}
	c := w.cores[i]
	w.drain() // the end of an interval whose threads are in c.runs may be in the ring
	c.tid, c.runs = tid, c.runs[:0]
	c.counters.follow(tid)
	w.count(c)
	if w.kernel != nil {
		return w.kernel.assign(cpu, tid)
	}
	return nil
}

// Close ends the watch, after the last events.
func (w *Watcher) Close() {
	w.mu.Lock()
	closed := w.closed
	w.closed = true
	w.mu.Unlock()
	if closed {
		return
	}
	close(w.stop)
	w.over.Wait()
	w.readEvents()
	for _, c := range w.cores {
		if c.counters != nil {
			c.counters.Close()
		}
		if c.msr != nil {
			c.msr.Close()
		}
	}
	if w.kernel != nil {
		w.kernel.close()
	}
}

// Lost returns the number of events for which the ring had no space.
func (w *Watcher) Lost() (n uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.kernel != nil && !w.closed {
		for _, c := range w.cores {
			n += w.kernel.lost(c.cpu)
		}
	}
	return n
}

// readEvents reads the ring and the counters.
func (w *Watcher) readEvents() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.drain()
}

// drain emits the events since the call before: those of the kernel program, and those that counters show, which have
// a period and no time.
func (w *Watcher) drain() {
	last := w.clocks.pairs[len(w.clocks.pairs)-1].ns
	now := w.clocks.read().ns
	if w.kernel != nil {
		w.kernel.each(w.traced)
	}
	for _, c := range w.cores {
		if c.tid != 0 {
			w.counted(c, last, now)
		}
	}
	if stops := w.countPauses(); stops > w.stops {
		w.emit(Event{CPU: -1, Start: last, End: now, Cause: Runtime, Weak: true, Count: stops - w.stops})
		w.stops = stops
	}
	if w.kernel != nil && !time.Now().Before(w.nextSMI) {
		w.nextSMI = time.Now().Add(smiEvery)
		w.interrupted(now)
	}
}

// interrupted emits the system management interrupts since the last reading.
func (w *Watcher) interrupted(now int64) {
	for _, c := range w.cores {
		if n, ok := c.readSMI(); ok && n > c.smi {
			w.emit(Event{CPU: c.cpu, Start: now - int64(smiEvery+period), End: now, Cause: SMI, Weak: true,
				Count: n - c.smi})
			c.smi = n
		}
	}
}

func (c *core) readSMI() (uint64, bool) {
	if c.msr == nil {
		return 0, false
	}
	var b [8]byte
	n, err := c.msr.ReadAt(b[:], msrSMI)
	return binary.LittleEndian.Uint64(b[:]), err == nil && n == len(b)
}

// countPauses returns how often Go's runtime has stopped the process.
func (w *Watcher) countPauses() (n uint64) {
	metrics.Read(w.pauses)
	for _, s := range w.pauses {
		if s.Value.Kind() != metrics.KindFloat64Histogram {
			continue
		}
		for _, c := range s.Value.Float64Histogram().Counts {
			n += c
		}
	}
	return n
}

// count reads the counters of a core: if there are tracepoints, only what they do not show.
func (w *Watcher) count(c *core) Counts {
	if w.kernel == nil {
		c.before = c.counters.Read()
	} else {
		c.counters.readRest(&c.before)
	}
	return c.before
}

// counted emits what the counters of a core say about the time since the last reading.
func (w *Watcher) counted(c *core, from, to int64) {
	a := c.before
	b := w.count(c)
	weak := func(cause Cause, name string, n, before uint64, took time.Duration) {
		if n > before {
			w.emit(Event{CPU: c.cpu, Start: from, End: to, Cause: cause, Name: name, Weak: true, Count: n - before,
				Took: took})
		}
	}
	weak(Steal, "", b.Steal, a.Steal, time.Duration(b.Steal-a.Steal)*10*time.Millisecond)
	weak(PageFault, "", b.Faults, a.Faults, 0)
	if w.kernel != nil {
		return
	}
	waited := time.Duration(b.Waited - a.Waited)
	if b.Preempted == a.Preempted && waited >= w.threshold {
		b.Preempted++ // it was stopped or asleep, and then waited
	}
	weak(Descheduled, "", b.Preempted, a.Preempted, max(waited, 0))
	weak(Timer, "", b.Timer, a.Timer, 0)
	weak(Interrupt, "", b.Interrupts, a.Interrupts, 0)
	for i, name := range softirqs {
		weak(Softirq, name, b.Softirqs[i], a.Softirqs[i], 0)
	}
}
