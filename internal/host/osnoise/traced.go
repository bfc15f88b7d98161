package osnoise

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// keptRuns bounds the threads remembered of an interval that has not ended.
const keptRuns = 1024

// run is a time that another thread had the core.
type run struct {
	start, end int64
	pid        uint32
	comm       string
}

// Kinds of events, as in program.c.
const (
	kindRun = iota + 1
	kindOff
	kindIRQ
	kindSoftirq
	kindTimer
	kindReschedule
	kindCall
	kindWork
	kindIPI
	kindNMI
)

// States of a thread that does not run (include/linux/sched.h).
const stateStopped = 0x4 | 0x8 // __TASK_STOPPED, __TASK_TRACED

// traced handles an event of the kernel's programs.
func (w *Watcher) traced(p *programEvent) {
	i := slices.IndexFunc(w.cores, func(c *core) bool { return c.cpu == int(p.Cpu) })
	if i < 0 {
		return
	}
	c := w.cores[i]
	start, end := int64(p.Start), int64(p.End)
	e := Event{CPU: c.cpu, Start: start, End: end, Took: time.Duration(end - start - int64(p.Nested)), Count: 1}
	switch p.Kind {
	case kindRun:
		if len(c.runs) == keptRuns {
			c.runs = slices.Delete(c.runs, 0, keptRuns/2)
		}
		c.runs = append(c.runs, run{start, end, p.Pid, w.comm(p)})
		return
	case kindOff:
		w.interval(c, start, end, int64(p.Runnable), p.Detail)
		return
	case kindIRQ:
		e.Cause, e.IRQ, e.Name = Interrupt, int(p.Detail), w.irqName(p.Detail)
	case kindSoftirq:
		e.Cause = Softirq
		if int(p.Detail) < len(softirqs) {
			e.Name = softirqs[p.Detail]
		}
	case kindTimer:
		e.Cause = Timer
	case kindReschedule:
		e.Cause, e.Name = IPI, "reschedule"
	case kindCall:
		e.Cause, e.Name = IPI, "function call"
	case kindWork:
		e.Cause, e.Name = IPI, "irq_work"
	case kindIPI:
		e.Cause = IPI
	case kindNMI:
		e.Cause = NMI
	default:
		return
	}
	w.emit(e)
}

// interval divides an interval in which a thread did not have its core. The thread could run from runnable on, 0 for
// never; state is why it could not before.
func (w *Watcher) interval(c *core, start, end, runnable int64, state uint32) {
	runs := c.runs
	for len(runs) > 0 && runs[0].start < start { // of an interval that was too short to be reported
		runs = runs[1:]
	}
	c.runs = c.runs[:0]
	if runnable == 0 {
		runnable = end
	}
	if state != 0 && runnable > start {
		e := Event{CPU: c.cpu, Start: start, End: runnable, Cause: Slept, Took: time.Duration(runnable - start),
			Count: 1}
		if state&stateStopped != 0 {
			e.Cause = Stopped
		}
		w.emit(e)
	}
	known := runnable
	rest := int64(0)
	for _, r := range runs {
		from := max(r.start, runnable)
		if r.end <= from {
			continue
		}
		rest += from - known
		known = r.end
		e := Event{CPU: c.cpu, Start: from, End: r.end, Cause: Descheduled, Name: r.comm, PID: int(r.pid),
			Took: time.Duration(r.end - from), Count: 1}
		switch {
		case r.pid == 0 && state != 0:
			e.Cause, e.Name = Woken, ""
		case r.pid == 0:
			e.Cause, e.Name = Throttled, ""
		}
		w.emit(e)
	}
	if rest += end - known; time.Duration(rest) >= w.threshold/pieces { // many short runs
		w.emit(Event{CPU: c.cpu, Start: runnable, End: end, Cause: Descheduled, Took: time.Duration(rest), Count: 1})
	}
}

// comm returns the name of the thread, without garbage for one that is known.
func (w *Watcher) comm(p *programEvent) string {
	s, ok := w.comms[p.Comm]
	if !ok {
		if len(w.comms) >= 4096 {
			clear(w.comms)
		}
		s, _, _ = strings.Cut(string(p.Comm[:]), "\x00")
		w.comms[p.Comm] = s
	}
	return s
}

func (w *Watcher) irqName(n uint32) string {
	name, ok := w.irqs[n]
	if !ok {
		w.readIRQs()
		name = w.irqs[n]
		w.irqs[n] = name // do not look again
	}
	return name
}

// readIRQs reads the names of interrupts.
func (w *Watcher) readIRQs() {
	if b, err := os.ReadFile("/proc/interrupts"); err == nil {
		parseIRQs(string(b), w.irqs)
	}
}

// parseIRQs adds the names in /proc/interrupts.
func parseIRQs(text string, irqs map[uint32]string) {
	head, rest, _ := strings.Cut(text, "\n")
	cpus := len(strings.Fields(head))
	for line := range strings.Lines(rest) {
		number, counts, _ := strings.Cut(strings.TrimSpace(line), ":")
		n, err := strconv.ParseUint(number, 10, 32)
		if err != nil { // one of the architecture's own
			continue
		}
		// The name follows the counts, the chip, and the chip's own number and trigger, each of which may have spaces:
		// it is the last one, with commas between those that share the interrupt.
		f := strings.Fields(counts)
		if len(f) <= cpus {
			continue
		}
		i := len(f) - 1
		for i > cpus && strings.HasSuffix(f[i-1], ",") {
			i--
		}
		irqs[uint32(n)] = strings.Join(f[i:], " ")
	}
}
