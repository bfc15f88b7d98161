package isolate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic"
)

// Lease is a reservation of CPUs.
type Lease struct {
	CPUs []int

	*journal
	group   *group
	latency *os.File // /dev/cpu_dma_latency, while it is open
}

// Begin returns a lease on CPUs without changing anything yet.
func (h *Host) Begin(want []int) (*Lease, error) {
	want = slices.Clone(want)
	slices.Sort(want)
	j, err := h.open(want)
	if err != nil {
		return nil, fmt.Errorf("journal of changes to this machine: %w", err)
	}
	return &Lease{CPUs: want, journal: j}, nil
}

// Names of the steps, in the order of Isolate.
const (
	Timers       = "timers"
	Partition    = "partition"
	Threads      = "threads"
	Workqueues   = "workqueues"
	Interrupts   = "interrupts"
	Housekeeping = "housekeeping"
	Tick         = "tick"
	Idle         = "idle states"
)

// Isolate frees the CPUs of everything that it can, and returns one Step for each part. It never fails as a whole: if
// one step fails, the others still help.
func (l *Lease) Isolate() []Step {
	return l.Take(Timers, Partition, Threads, Workqueues, Interrupts, Housekeeping, Tick, Idle)
}

// Take runs some of Isolate's steps, by name.
func (l *Lease) Take(steps ...string) []Step {
	var all []Step
	for _, name := range steps {
		var s Step
		switch name {
		case Timers:
			s = l.replug()
		case Partition:
			l.group, s = l.partition(l.CPUs)
		case Threads:
			s = l.moveTasks(l.CPUs)
		case Workqueues:
			s = l.workqueues()
		case Interrupts:
			s = l.interrupts()
		case Housekeeping:
			s = l.housekeeping()
		case Tick:
			s = l.tick()
		case Idle:
			s = l.idle()
		default:
			s = Step{Name: name, Err: errors.New("no such step")}
		}
		all = append(all, s)
	}
	return all
}

// Log logs steps. Those that were not completed are warnings.
func Log(log *slog.Logger, steps ...Step) {
	logAt(log, slog.LevelInfo, steps)
}

func logAt(log *slog.Logger, level slog.Level, steps []Step) {
	for _, s := range steps {
		at := level
		if s.Err != nil {
			at = slog.LevelWarn
		}
		log.Log(context.Background(), at, "isolation", "step", s.String())
	}
}

// PutBack undoes what killed processes left behind, and logs it.
func PutBack(log *slog.Logger) {
	for _, s := range (&Host{}).Abandoned() {
		if s.Done != "" || s.Err != nil {
			logAt(log, nic.Notice, []Step{s})
		}
	}
}

// Join moves the calling thread, which must be locked, into the partition. Without one it does nothing.
func (l *Lease) Join() error { return l.thread(func(g *group) string { return g.path }) }

// Leave undoes Join. A thread that exits need not call it.
func (l *Lease) Leave() error { return l.thread(func(g *group) string { return g.parent }) }

func (l *Lease) thread(where func(*group) string) error {
	if l == nil || l.group == nil {
		return nil
	}
	file := where(l.group) + "/cgroup.threads"
	if err := l.write(file, strconv.Itoa(unix.Gettid())); err != nil {
		return fmt.Errorf("move a thread into %s: %w", file, err)
	}
	return nil
}

// Release undoes all changes. No thread may be in the partition any more.
func (l *Lease) Release() error {
	var err error
	if l.latency != nil {
		err = l.latency.Close()
	}
	return errors.Join(err, l.close())
}

// replug takes the CPUs offline and online again, which moves queued timers and callbacks to other CPUs. It is skipped
// if a thread is bound to these CPUs only, because it would lose its affinity.
func (l *Lease) replug() Step {
	step := Step{Name: Timers}
	if _, err := l.unified(); err != nil {
		step.Err = fmt.Errorf("the CPUs are not briefly taken offline: cpusets of cgroup v1 would lose them permanently: %w", err)
		return step
	}
	all := l.threads()
	for _, tid := range slices.Sorted(maps.Keys(all)) {
		s := all[tid]
		if has, err := l.cpusOf(tid); err == nil && s.pid != os.Getpid() && s.flags&pfNoSetAffinity == 0 &&
			len(has) > 0 && len(without(has, l.CPUs)) == 0 {
			step.Err = fmt.Errorf("CPU %s is not briefly taken offline, because thread %d of process %d is bound to it",
				FormatCPUs(has), tid, s.pid)
			return step
		}
	}
	var done []int
	for _, c := range l.CPUs {
		file := fmt.Sprintf("/sys/devices/system/cpu/cpu%d/online", c)
		if _, err := l.read(file); err != nil {
			step.Err = fmt.Errorf("CPU %d cannot be taken offline: %w", c, err)
			continue
		}
		err := l.apply(change{Kind: offline, Path: file}, func() error {
			return errors.Join(l.write(file, "0"), l.write(file, "1"))
		})
		if err != nil {
			step.Err = err
			continue
		}
		done = append(done, c)
	}
	if len(done) > 0 {
		step.Done = fmt.Sprintf("CPUs %s were briefly offline: work queued there now runs elsewhere", FormatCPUs(done))
	}
	return step
}

// workqueues keeps unbound work off the CPUs (Linux's core-api/workqueue.rst).
func (l *Lease) workqueues() Step {
	step := Step{Name: Workqueues}
	moved := 0
	for _, file := range append(l.glob("/sys/devices/virtual/workqueue/*/cpumask"),
		"/sys/devices/virtual/workqueue/cpumask") {
		has, err := l.readCPUs(file, true)
		if err == nil && overlap(has, l.CPUs) {
			if err = l.setCPUs(file, true, without(has, l.CPUs)); err == nil {
				moved++
			}
		}
		step.Err = errors.Join(step.Err, err)
	}
	step.Done = fmt.Sprintf("CPUs %s removed from %d masks of unbound work", FormatCPUs(l.CPUs), moved)
	return step
}

// interrupts removes the CPUs from every interrupt whose affinity can be set. Managed ones, such as per-CPU queues',
// cannot.
func (l *Lease) interrupts() Step {
	step := Step{Name: Interrupts}
	var moved int
	var fixed []string
	online, err := l.readCPUs("/sys/devices/system/cpu/online", false)
	if err != nil {
		step.Err = err
		return step
	}
	for _, file := range l.glob("/proc/irq/[0-9]*/smp_affinity_list") {
		irq := path.Base(path.Dir(file))
		has, err := l.readCPUs(file, false)
		if err != nil || !overlap(has, l.CPUs) {
			continue
		}
		rest := without(has, l.CPUs)
		if len(rest) == 0 {
			rest = without(online, l.CPUs)
		}
		if err := l.setCPUs(file, false, rest); err != nil {
			fixed = append(fixed, irq)
			continue
		}
		moved++
	}
	if has, err := l.readCPUs("/proc/irq/default_smp_affinity", true); err == nil && overlap(has, l.CPUs) &&
		len(without(has, l.CPUs)) > 0 {
		step.Err = l.setCPUs("/proc/irq/default_smp_affinity", true, without(has, l.CPUs))
	}
	step.Done = fmt.Sprintf("%d moved, and new ones go elsewhere", moved)
	if len(fixed) > 0 {
		step.Done += "; the kernel keeps " + strings.Join(fixed, ", ") + " where they are"
	}
	return step
}

// housekeeping keeps the kernel's watchdog and statistics off the CPUs.
func (l *Lease) housekeeping() Step {
	step := Step{Name: Housekeeping}
	var done []string
	const dogs, interval = "/proc/sys/kernel/watchdog_cpumask", "/proc/sys/vm/stat_interval"
	if has, err := l.readCPUs(dogs, false); err == nil && overlap(has, l.CPUs) {
		if err := l.setCPUs(dogs, false, without(has, l.CPUs)); err != nil {
			step.Err = err
		} else {
			done = append(done, "watchdog off on CPUs "+FormatCPUs(l.CPUs))
		}
	}
	if _, err := l.read(interval); err == nil {
		if err := l.set(interval, "3600"); err != nil {
			step.Err = errors.Join(step.Err, err)
		} else {
			done = append(done, "memory statistics are gathered once an hour")
		}
	}
	step.Done = strings.Join(done, ", ")
	return step
}

// tick only reports: nohz_full must be set at boot.
func (l *Lease) tick() Step {
	step := Step{Name: Tick}
	text, _ := l.read("/sys/devices/system/cpu/nohz_full")
	has, _ := ParseCPUs(text)
	if rest := without(l.CPUs, has); len(rest) > 0 {
		step.Err = fmt.Errorf("CPUs %s keep the timer tick: boot with nohz_full=%s rcu_nocbs=%s", FormatCPUs(rest),
			FormatCPUs(rest), FormatCPUs(rest))
		return step
	}
	step.Done = "stopped while only one thread runs there (nohz_full)"
	return step
}

// idle prevents idle states with a long exit latency on all CPUs while the file is open (Linux's
// power/pm_qos_interface.rst).
func (l *Lease) idle() Step {
	step := Step{Name: Idle}
	f, err := os.OpenFile(l.path("/dev/cpu_dma_latency"), os.O_WRONLY, 0)
	if err == nil {
		if _, err = f.Write(make([]byte, 4)); err != nil {
			f.Close()
		}
	}
	if err != nil {
		step.Err = err
		return step
	}
	l.latency = f
	step.Done = "none with a long exit latency, on any CPU"
	return step
}
