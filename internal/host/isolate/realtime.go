package isolate

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Guard is a mechanism by which the kernel throttles a real-time thread that never sleeps, to protect other threads.
// Until Linux
// 6.11 it is the throttle (/proc/sys/kernel/sched_rt_runtime_us); from 6.12 on, each CPU's fair server (debugfs,
// sched/fair_server).
type Guard struct {
	Name  string        // "sched_rt_runtime_us", "fair server of CPU 3"
	Away  time.Duration // how long it may deschedule a thread, in each Period
	Per   time.Duration
	Known bool   // false if it could not be read and the kernel's default is assumed
	Why   error  // why it could not be read
	Lift  string // the command that lifts it

	path, lifted string // the file, and the value that lifts the guard
}

func (g Guard) String() string {
	s := fmt.Sprintf("%s: %v of each %v", g.Name, g.Away, g.Per)
	if !g.Known {
		s += fmt.Sprintf(" (the kernel's default; it cannot be read: %v)", g.Why)
	}
	return s
}

const (
	throttle   = "/proc/sys/kernel/sched_rt_runtime_us"
	fairServer = debugfsPath + "sched/fair_server"
)

// Guards returns the guards that apply to real-time threads on the CPUs.
func (h *Host) Guards(want []int) ([]Guard, error) {
	release, err := h.read("/proc/sys/kernel/osrelease")
	if err != nil {
		return nil, err
	}
	if !atLeast(release, 6, 12) {
		return h.throttle()
	}
	why := h.mountDebugfs()
	var out []Guard
	for _, c := range want {
		g := Guard{Name: fmt.Sprintf("fair server of CPU %d", c), Away: 50 * time.Millisecond, Per: time.Second,
			path: fmt.Sprintf("%s/cpu%d/runtime", fairServer, c), lifted: "0"}
		g.Lift = "echo 0 > " + g.path
		runtime, err := h.nanoseconds(g.path)
		period, err2 := h.nanoseconds(fmt.Sprintf("%s/cpu%d/period", fairServer, c))
		if g.Why = cmp.Or(why, err, err2); g.Why == nil {
			g.Away, g.Per, g.Known = runtime, period, true
		}
		if g.Away > 0 {
			out = append(out, g)
		}
	}
	return out, nil
}

// throttle returns the limit on the CPU time of real-time threads, nothing if there is none.
func (h *Host) throttle() ([]Guard, error) {
	text, err := h.read(throttle)
	runtime, err2 := strconv.Atoi(text)
	text, err3 := h.read("/proc/sys/kernel/sched_rt_period_us")
	period, err4 := strconv.Atoi(text)
	if err := errors.Join(err, err2, err3, err4); err != nil {
		return nil, err
	}
	if runtime < 0 || runtime >= period {
		return nil, nil
	}
	return []Guard{{Name: "sched_rt_runtime_us", Away: time.Duration(period-runtime) * time.Microsecond,
		Per:   time.Duration(period) * time.Microsecond,
		Known: true, Lift: "echo -1 > " + throttle, path: throttle, lifted: "-1"}}, nil
}

func (h *Host) nanoseconds(file string) (time.Duration, error) {
	text, err := h.read(file)
	var p *fs.PathError
	if errors.As(err, &p) {
		return 0, fmt.Errorf("%s: %w", file, p.Err)
	} else if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(text, 10, 64)
	return time.Duration(n), err
}

// atLeast compares a kernel release such as "6.12.5-amd64".
func atLeast(release string, major, minor int) bool {
	var a, b int
	if n, _ := fmt.Sscanf(release, "%d.%d", &a, &b); n != 2 {
		return false
	}
	return a > major || a == major && b >= minor
}

// ErrGuarded means that the kernel would deschedule a real-time loop.
var ErrGuarded = errors.New("the kernel throttles real-time threads that never sleep")

// LiftGuards lifts the guards for the lease's CPUs until Release. The throttle of kernels before 6.12 covers all CPUs.
func (l *Lease) LiftGuards() Step {
	step := Step{Name: "real-time guard"}
	guards, err := l.Guards(l.CPUs)
	if err != nil {
		step.Err = err
		return step
	}
	var done []string
	for _, g := range guards {
		err := l.hold(g.path)
		if err == nil {
			err = l.set(g.path, g.lifted)
		}
		if err != nil {
			step.Err = errors.Join(step.Err, fmt.Errorf("%w: %s: %w%s", ErrGuarded, g, err, l.lockdown(err)))
			continue
		}
		done = append(done, g.Name)
	}
	if left, err := l.Guards(l.CPUs); step.Err == nil && len(left) > 0 {
		step.Err = fmt.Errorf("%w: %v is still active after it was disabled", ErrGuarded, left)
	} else if err != nil {
		step.Err = errors.Join(step.Err, err)
	}
	step.Done = "none is active"
	if len(done) > 0 {
		step.Done = "disabled: " + strings.Join(done, ", ")
	}
	return step
}

// lockdown explains a permission error (kernel_lockdown(7)).
func (h *Host) lockdown(err error) string {
	state, _ := h.read("/sys/kernel/security/lockdown")
	if errors.Is(err, os.ErrPermission) && state != "" && !strings.Contains(state, "[none]") {
		return " (the kernel is locked down: " + state + ")"
	}
	return ""
}

// Probe spins in a real-time thread on a CPU, next to a thread of the fair scheduler, and returns the longest and the
// total time for which it was descheduled. Gaps of milliseconds in each second come from the guard.
func Probe(cpu, priority int, long time.Duration) (longest, total time.Duration, err error) {
	var stop atomic.Bool
	var competitor sync.WaitGroup
	defer competitor.Wait()
	defer stop.Store(true)
	ready := make(chan error, 1)
	competitor.Go(func() {
		runtime.LockOSThread() // never unlocked: the thread exits with the goroutine
		err := bind(cpu)
		ready <- err
		for err == nil && !stop.Load() {
		}
	})
	if err := <-ready; err != nil {
		return 0, 0, err
	}
	type result struct {
		longest, total time.Duration
		err            error
	}
	found := make(chan result, 1)
	go func() {
		runtime.LockOSThread()
		var r result
		defer func() { found <- r }()
		if r.err = bind(cpu); r.err != nil {
			return
		}
		attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: uint32(priority)}
		if err := unix.SchedSetAttr(0, &attr, 0); err != nil {
			r.err = fmt.Errorf("SCHED_FIFO %d on CPU %d: %w", priority, cpu, err)
			return
		}
		const away = time.Millisecond // shorter gaps come from interrupts or the hypervisor
		start := time.Now()
		for last, now := start, start; now.Sub(start) < long; last = now {
			now = time.Now()
			if gap := now.Sub(last); gap >= away {
				r.longest, r.total = max(r.longest, gap), r.total+gap
			}
		}
	}()
	r := <-found
	return r.longest, r.total, r.err
}

func bind(cpu int) error {
	var mask unix.CPUSet
	mask.Set(cpu)
	if err := unix.SchedSetaffinity(0, &mask); err != nil {
		return fmt.Errorf("run on CPU %d: %w", cpu, err)
	}
	return nil
}
