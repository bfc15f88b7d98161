// Package corewatch records, from other CPUs, events on the measuring core: interrupts, softirqs, and scheduling of the
// measuring thread. It reads the kernel's counters some hundred times per second, without any cost to the measuring
// core: the core's counters are read from memory.
package corewatch

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

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
	interrupts, softirqs, status, schedstat *os.File

	column  int // of the core, in /proc/interrupts and /proc/softirqs
	column2 int
	buf     []byte
	samples []Sample
	every   time.Duration

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
	w := &Watch{buf: make([]byte, 1<<20), samples: make([]Sample, 0, most), every: period, stop: make(chan struct{})}
	for _, f := range []struct {
		to   **os.File
		name string
	}{{&w.interrupts, "/proc/interrupts"}, {&w.softirqs, "/proc/softirqs"},
		{&w.status, fmt.Sprintf("/proc/self/task/%d/status", tid)}, {&w.schedstat, fmt.Sprintf("/proc/self/task/%d/schedstat", tid)}} {
		var err error
		if *f.to, err = os.Open(f.name); err != nil {
			w.close()
			return nil, err
		}
	}
	name := fmt.Appendf(nil, "CPU%d", core)
	for _, f := range []struct {
		file *os.File
		to   *int
	}{{w.interrupts, &w.column}, {w.softirqs, &w.column2}} {
		head, _, _ := bytes.Cut(w.read(f.file), []byte("\n"))
		if *f.to = slices.IndexFunc(bytes.Fields(head), func(b []byte) bool { return bytes.Equal(b, name) }); *f.to < 0 {
			w.close()
			return nil, fmt.Errorf("%s has no column %s", f.file.Name(), name)
		}
	}
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
	w.close()
	return w.samples
}

func (w *Watch) close() {
	for _, f := range []*os.File{w.interrupts, w.softirqs, w.status, w.schedstat} {
		if f != nil {
			f.Close()
		}
	}
}

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

func (w *Watch) read(f *os.File) []byte {
	n, _ := f.ReadAt(w.buf, 0)
	return w.buf[:n]
}

func (w *Watch) sample() {
	var s Sample
	for line := range lines(w.read(w.interrupts)) {
		name, rest, _ := bytes.Cut(line, []byte(":"))
		n := field(rest, w.column)
		if name = bytes.TrimSpace(name); string(name) == "LOC" || bytes.Contains(rest, []byte("arch_timer")) {
			s.Timer += n
		} else {
			s.Interrupts += n
		}
	}
	for line := range lines(w.read(w.softirqs)) {
		_, rest, _ := bytes.Cut(line, []byte(":"))
		s.Softirqs += field(rest, w.column2)
	}
	if _, rest, ok := bytes.Cut(w.read(w.status), []byte("nonvoluntary_ctxt_switches:")); ok {
		s.Preempted = field(rest, 0)
	}
	s.Waited = field(w.read(w.schedstat), 1)
	s.At = polling.TSC()
	w.samples = append(w.samples, s)
}

// lines yields the lines after the header.
func lines(b []byte) func(func([]byte) bool) {
	return func(yield func([]byte) bool) {
		_, b, _ = bytes.Cut(b, []byte("\n"))
		for len(b) > 0 {
			var line []byte
			if line, b, _ = bytes.Cut(b, []byte("\n")); !yield(line) {
				return
			}
		}
	}
}

// field returns the i-th number of a line, 0 if there is none.
func field(b []byte, i int) (n uint64) {
	for ; ; i-- {
		b = bytes.TrimLeft(b, " \t")
		end := 0
		n = 0
		for end < len(b) && b[end] >= '0' && b[end] <= '9' {
			n = n*10 + uint64(b[end]-'0')
			end++
		}
		if end == 0 {
			return 0
		}
		if i == 0 {
			return n
		}
		b = b[end:]
	}
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
	return Sample{At: b.At - a.At, Timer: b.Timer - a.Timer, Interrupts: b.Interrupts - a.Interrupts, Softirqs: b.Softirqs - a.Softirqs,
		Preempted: b.Preempted - a.Preempted, Waited: b.Waited - a.Waited}, j - i
}
