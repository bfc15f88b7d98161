// Package isolation measures the effect of each core isolation step on a polling loop on a busy machine.
package isolation

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/host/isolate"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/polling"
)

// Explanation is the text above the tables.
const Explanation = "A loop polls a word in memory and answers what it finds there, pinned like a driver's; a real-time thread on another CPU " +
	"asks it, a question each interval, and takes its time from the moment that was meant for the question. Busy processes want all CPUs meanwhile. " +
	"*Wait* is what a frame that arrives at a random moment waits for the loop, from the time between its passes; *round trip* is what the questions " +
	"took, without those during which the asking thread was itself off its CPU; a percentile for which some round had too few is left out. Each row is measured for some seconds in turn, in several rounds: " +
	"the median of the rounds (least to greatest). What the scheduler and /proc/interrupts say of the loop's CPU " +
	"in that time does not depend on how fast it is."

// Options say what to measure.
type Options struct {
	Core, Prober int           // CPUs of the loop and of the prober thread
	Load         int           // busy processes
	Rounds       int           // of all rows, alternating
	Each         time.Duration // duration of a row in a round
	Interval     time.Duration // from one request to the next
	Rows         []Row
	Stop         *atomic.Bool
}

// Row is one configuration of the loop.
type Row struct {
	Key, Name string
	Free      bool     // neither pinned nor with locked memory
	Priority  int      // SCHED_FIFO, 0 for the fair scheduler
	Lift      bool     // lift the kernel's protection against real-time loops
	Steps     []string // of package isolate
	Others    bool     // other processes are moved off the core, so nothing else important may run on the machine
}

// Rows are all configurations. A name that starts with a plus means the previous configuration with an addition.
func Rows() []Row {
	kernel := []string{isolate.Workqueues, isolate.Interrupts, isolate.Housekeeping}
	return []Row{
		{Key: "free", Name: "no step: any CPU, memory not locked", Free: true},
		{Key: "pin", Name: "pinned to its CPU, memory locked"},
		{Key: "priority", Name: "pinned, `cpu.priority = 50`, guard in force", Priority: priority},
		{Key: "lift", Name: "pinned, `cpu.priority = 50`, guard lifted", Priority: priority, Lift: true},
		{Key: "idle", Name: "pinned, 0 µs in /dev/cpu_dma_latency", Steps: []string{isolate.Idle}},
		{Key: "kernel", Name: "pinned; unbound work, interrupts, watchdog, statistics elsewhere", Steps: kernel, Others: true},
		{Key: "threads", Name: "pinned, others' threads moved off the CPU", Steps: []string{isolate.Threads}, Others: true},
		{Key: "partition", Name: "pinned, isolated cpuset partition", Steps: []string{isolate.Partition}, Others: true},
		{Key: "isolate", Name: "`cpu.isolate = true`: all of these but the priority", Steps: []string{
			isolate.Timers, isolate.Partition, isolate.Threads, isolate.Workqueues, isolate.Interrupts,
			isolate.Housekeeping, isolate.Idle}, Others: true},
		{Key: "all", Name: "`cpu.isolate = true`, `cpu.priority = 50`, guard lifted", Priority: priority, Lift: true,
			Steps: []string{
				isolate.Timers, isolate.Partition, isolate.Threads, isolate.Workqueues, isolate.Interrupts,
				isolate.Housekeeping, isolate.Idle}, Others: true},
	}
}

// Result is the measurement of a row, with one value per round.
type Result struct {
	Row
	Wait, Trip []latency.Summary
	Off, Away  []float64 // how often per second another thread ran on the loop's CPU, and for which share of the time
	// per second, on the loop's CPU: device interrupts, timer interrupts, and those from other CPUs
	Interrupts []float64
	Left       int64  // requests left out, in all rounds
	Why        string // why the row could not be measured
	Notes      []string
}

// mailbox has a request and its reply on separate cache lines, like a card's ring and doorbell.
type mailbox struct {
	_      [64]byte
	ask    atomic.Uint64
	_      [120]byte
	answer atomic.Uint64
	_      [120]byte
}

// Run measures all rows alternately.
func Run(o Options) ([]Result, error) {
	if o.Core == o.Prober {
		return nil, fmt.Errorf("loop and asking thread are both on CPU %d, expected two CPUs", o.Core)
	}
	clock, err := latency.NewClock()
	if err != nil {
		return nil, err
	}
	// Two threads never yield, and garbage collection would wait for them: see polling.Pin.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	runtime.GC()
	// Pdeathsig fires when this thread exits; if a loop could end the thread, the load would be killed with it
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for range o.Load {
		stop, err := busy()
		if err != nil {
			return nil, err
		}
		defer stop()
	}
	results := make([]Result, len(o.Rows))
	for i, r := range o.Rows {
		results[i].Row = r
	}
	for range o.Rounds {
		for i := range results {
			if r := &results[i]; r.Why == "" {
				if err := o.slice(r, clock); err != nil {
					return nil, err
				}
			}
			if o.Stop.Load() {
				return nil, errors.New("interrupted")
			}
		}
	}
	return results, nil
}

// busy starts a process that competes for a CPU, and ends with this one.
func busy() (stop func(), err error) {
	c := exec.Command("/bin/sh", "-c", "while :; do :; done")
	c.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if err := c.Start(); err != nil {
		return nil, err
	}
	return func() { c.Process.Kill(); c.Wait() }, nil
}

// slice measures a row once. It restores the machine's settings before it returns.
func (o *Options) slice(r *Result, clock *latency.Clock) (err error) {
	var h isolate.Host
	lease, err := h.Begin([]int{o.Core})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lease.Release()) }()
	taken := lease.Take(r.Steps...)
	if r.Lift {
		taken = append(taken, lease.LiftGuards())
	}
	for _, s := range taken {
		if len(r.Wait) == 0 {
			r.Notes = append(r.Notes, s.String())
		}
		if s.Err != nil && (len(taken) == 1 || r.Lift && s.Name == "real-time guard") {
			r.Why = s.Err.Error()
			return nil
		}
	}
	if !r.Free {
		if err := unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE); err != nil {
			return fmt.Errorf("mlockall: %w", err)
		}
		defer unix.Munlockall()
	}
	if err := o.others(!r.Free); err != nil {
		return err
	}
	var m mailbox
	var stop atomic.Bool
	var loop polling.Loop
	var trips polling.Histogram
	var left int64
	before, err := interrupts(o.Core)
	if err != nil {
		return err
	}
	began := time.Now()
	var off scheduled
	ended := make(chan error, 2)
	ready := make(chan bool)
	go func() { ended <- o.loop(r.Row, lease, &m, &loop, &off, &stop, ready) }()
	if <-ready {
		go func() { ended <- o.ask(&m, &trips, &left, clock, &stop) }()
		time.Sleep(o.Each)
	} else {
		ended <- nil
	}
	stop.Store(true)
	if err := errors.Join(<-ended, <-ended); err != nil {
		return err
	}
	r.Wait = append(r.Wait, latency.FromHot(&loop.Gap, clock).Wait())
	r.Trip = append(r.Trip, latency.FromHot(&trips, clock).Summary())
	r.Left += left
	after, err := interrupts(o.Core)
	if err != nil {
		return err
	}
	seconds := time.Since(began).Seconds()
	r.Interrupts = append(r.Interrupts, float64(after-before)/seconds)
	r.Off, r.Away = append(r.Off, float64(off.times)/seconds), append(r.Away, off.waited.Seconds()/seconds)
	return nil
}

// loop polls the mailbox as a driver's Serve polls its rings.
func (o *Options) loop(r Row, lease *isolate.Lease, m *mailbox, l *polling.Loop, off *scheduled, stop *atomic.Bool,
	ready chan<- bool) error {
	runtime.LockOSThread() // and never unlocked: the thread and its settings end together
	if !r.Free {
		if err := errors.Join(lease.Join(), pin(o.Core)); err != nil {
			ready <- false
			return err
		}
	}
	if r.Priority > 0 {
		if err := realTime(r.Priority); err != nil {
			ready <- false
			return err
		}
	}
	first, err := schedule()
	if err != nil {
		ready <- false
		return err
	}
	ready <- true
	polling.Pin()
	var done uint64
	for t := polling.TSC(); !stop.Load(); {
		n := 0
		if q := m.ask.Load(); q != done {
			m.answer.Store(q)
			done, n = q, 1
		}
		t = l.Pass(t, n)
	}
	polling.Unpin()
	last, err := schedule()
	off.times, off.waited = last.times-first.times, last.waited-first.waited
	return errors.Join(err, lease.Leave())
}

// scheduled is the scheduler's statistics of a thread: how often it was given a CPU, and how long it waited for one.
type scheduled struct {
	times  uint64
	waited time.Duration
}

// schedule returns the statistics of the calling thread (Linux's scheduler/sched-stats.rst).
func schedule() (s scheduled, err error) {
	text, err := os.ReadFile("/proc/thread-self/schedstat")
	if err != nil {
		return s, err
	}
	var ran uint64
	if _, err := fmt.Sscan(string(text), &ran, &s.waited, &s.times); err != nil {
		return s, fmt.Errorf("/proc/thread-self/schedstat %q, expected three numbers: %w", text, err)
	}
	return s, nil
}

// interrupts returns the number of a CPU's interrupts since boot.
func interrupts(cpu int) (uint64, error) {
	text, err := os.ReadFile("/proc/interrupts")
	if err != nil {
		return 0, err
	}
	return interruptsOf(string(text), cpu)
}

// ask sends a request to the loop each interval. If its own thread was descheduled, the loop is not to blame: the
// request is left out, and the schedule restarts.
func (o *Options) ask(m *mailbox, trips *polling.Histogram, left *int64, clock *latency.Clock,
	stop *atomic.Bool) error {
	runtime.LockOSThread()
	if err := errors.Join(pin(o.Prober), realTime(priority)); err != nil {
		return err
	}
	polling.Pin()
	defer polling.Unpin()
	away, interval := clock.Ticks(2*time.Microsecond), clock.Ticks(o.Interval)
	last := polling.TSC()
	next := last + interval
	for q := uint64(1); !stop.Load(); q++ {
		var off uint64 // how long this thread was not running since its last reply
		look := func() {
			now := polling.TSC()
			if now-last >= away {
				off += now - last
			}
			last = now
		}
		for last < next {
			look()
		}
		m.ask.Store(q)
		for m.answer.Load() != q && !stop.Load() {
			look()
		}
		look()
		switch trip := last - next; {
		case stop.Load():
		case off > trip/20: // a timer tick during a long wait is negligible
			*left++
			next = last + interval
		default:
			trips.Record(trip)
			next += interval
		}
	}
	return nil
}

// priority is that of the rows with a priority, and of the prober thread in all rows: if the prober were descheduled
// often, long round trips would be left out more often than short ones.
const priority = 50

func realTime(priority int) error {
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: uint32(priority)}
	if err := unix.SchedSetAttr(0, &attr, 0); err != nil {
		return fmt.Errorf("SCHED_FIFO %d: %w", priority, err)
	}
	return nil
}

// others moves the threads of this process off the loop's CPU, as the responder does, or lets them run on all CPUs
// again. Threads that the runtime starts later inherit this.
func (o *Options) others(away bool) error {
	var mask unix.CPUSet
	for cpu := range runtime.NumCPU() + o.Core + o.Prober + 1 { // CPUs that do not exist are ignored
		mask.Set(cpu)
	}
	if away {
		mask.Clear(o.Core)
	}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, t := range tasks {
		tid, err := strconv.Atoi(t.Name())
		if err != nil {
			return err
		}
		if err := unix.SchedSetaffinity(tid, &mask); err != nil && err != unix.ESRCH {
			return fmt.Errorf("thread %d of this process: %w", tid, err)
		}
	}
	return nil
}

func pin(cpu int) error {
	var mask unix.CPUSet
	mask.Set(cpu)
	if err := unix.SchedSetaffinity(0, &mask); err != nil {
		return fmt.Errorf("run on CPU %d: %w", cpu, err)
	}
	return nil
}

// Boot is the part of the kernel's command line that affects isolation, "" if there is none.
func Boot() string {
	text, _ := os.ReadFile("/proc/cmdline")
	return bootOf(string(text))
}
