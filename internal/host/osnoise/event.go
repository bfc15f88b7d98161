package osnoise

import (
	"fmt"
	"time"
)

// Cause is the kind of thing that kept a polling thread from running.
type Cause uint8

// Causes.
const (
	Descheduled Cause = iota // another thread had the core
	// the thread could run and the core was idle: CPU quota, or throttling of real-time threads
	Throttled
	Stopped // by SIGSTOP or a debugger
	Slept   // the thread waited in the kernel: a lock, a page read from disk
	Woken   // the thread could run, and the core took its time to leave the idle state
	Interrupt
	Softirq
	Timer // the kernel's timer interrupt
	IPI   // an interrupt from another core
	NMI
	Steal     // the hypervisor ran something else
	SMI       // the firmware did (system management interrupt)
	PageFault // of this process
	Runtime   // Go's runtime stopped the process
	causes
)

// names are labels of metrics.
var names = [causes]string{"descheduled", "throttled", "stopped", "slept", "woken", "interrupt", "softirq", "timer",
	"ipi", "nmi", "steal", "smi",
	"page_fault", "go_runtime"}

func (c Cause) String() string { return names[c] }

// Event is an interval in which a polling thread did not run, or a part of one, with its cause.
type Event struct {
	CPU        int
	Start, End int64  // CLOCK_MONOTONIC, ns
	From, To   uint64 // the same in ticks of polling.TSC
	Cause      Cause
	Name       string // of the thread (its comm), the interrupt or the softirq; "" if unknown
	PID        int    // of the thread, in the machine's namespace; 0 if unknown
	IRQ        int    // number of an Interrupt

	// Took is how much of the interval is lost: all of it, less interrupts that have an event of their own. Of a weak
	// event it may be unknown, which is 0.
	Took time.Duration
	// Weak marks an event that comes from a counter: it happened Count times somewhere between Start and End.
	Weak  bool
	Count uint64
}

// String describes the cause in words.
func (e Event) String() string {
	s := e.what()
	if e.Weak {
		s = fmt.Sprintf("%d × %s (by counters)", e.Count, s)
	}
	return s
}

// Phrase describes the kind of cause for a list: a text, and the name of one of several of its kind, such as a thread;
// "" for none.
func (e Event) Phrase() (text, name string) {
	switch {
	case e.Cause == Descheduled:
		text, name = "polling thread descheduled", e.Name
		if name == "" {
			name = "other threads"
		}
	case e.Cause == Interrupt && e.Name != "":
		text = "interrupts of " + e.Name
	case e.Cause == Interrupt && e.Weak:
		text = "interrupts"
	case e.Cause == Throttled, e.Cause == Stopped, e.Cause == Slept:
		text = "polling thread " + e.what()
	case e.Cause == Woken:
		text = "core leaving the idle state"
	default:
		text = e.what()
	}
	if e.CPU >= 0 {
		text += fmt.Sprintf(" on cpu %d", e.CPU)
	}
	return text, name
}

// what describes the cause of an event in a few words, with the name of the thread or interrupt if it is known.
func (e Event) what() string {
	switch e.Cause {
	case Descheduled:
		switch {
		case e.Name == "":
			return "descheduled for other threads"
		case e.PID == 0:
			return "descheduled for " + e.Name
		}
		return fmt.Sprintf("descheduled for %s (pid %d)", e.Name, e.PID)
	case Throttled:
		return "throttled (CPU quota or real-time throttling)"
	case Stopped:
		return "stopped (SIGSTOP or a debugger)"
	case Slept:
		return "waiting in the kernel"
	case Woken:
		return "leaving the idle state"
	case Interrupt:
		switch {
		case e.Weak:
			return "interrupt"
		case e.Name == "":
			return fmt.Sprintf("interrupt %d", e.IRQ)
		}
		return fmt.Sprintf("interrupt %d (%s)", e.IRQ, e.Name)
	case Softirq:
		if e.Name == "" {
			return "softirq"
		}
		return "softirq " + e.Name
	case Timer:
		return "timer tick"
	case IPI:
		if e.Name == "" {
			return "inter-processor interrupt"
		}
		return "inter-processor interrupt: " + e.Name
	case NMI:
		return "NMI"
	case Steal:
		return "stolen by the hypervisor"
	case SMI:
		return "system management interrupt"
	case PageFault:
		return "page fault"
	case Runtime:
		return "pause of Go's runtime"
	}
	return e.Cause.String()
}
