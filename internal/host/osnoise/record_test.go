package osnoise

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/golden"
	"github.com/rebound-nic/rebound/proof/must"
)

// recorder is a watcher of CPU 1 whose clock has two ticks per nanosecond, and which writes its events.
func recorder(text *strings.Builder) (*Watcher, *core) {
	w := newWatcher(5*time.Microsecond, func(e Event) {
		phrase, name := e.Phrase()
		fmt.Fprintf(text, "  cpu %d, %d to %d ns, tick %d to %d, %s %q pid %d irq %d, took %v, weak %t, %d times\n"+
			"    %v; %s; %q\n", e.CPU, e.Start, e.End, e.From, e.To, e.Cause, e.Name, e.PID, e.IRQ, e.Took, e.Weak,
			e.Count, e, phrase, name)
	})
	c := &core{cpu: 1}
	w.cores = []*core{c}
	w.clocks.pairs = []pair{{0, 0}, {1 << 40, 1 << 41}}
	w.irqs[36] = "virtio1-req.0"
	return w, c
}

// What the kernel's programs and the counters say becomes these events, in these words, and these totals.
func TestEvents(t *testing.T) {
	off := func(start, end, runnable uint64, state uint32) programEvent {
		return programEvent{Kind: kindOff, Cpu: 1, Start: start, End: end, Runnable: runnable, Detail: state}
	}
	run := func(start, end uint64, pid uint32, comm string) programEvent {
		e := programEvent{Kind: kindRun, Cpu: 1, Start: start, End: end, Pid: pid}
		copy(e.Comm[:], comm)
		return e
	}
	irq := func(kind, detail uint32) programEvent {
		return programEvent{Kind: kind, Cpu: 1, Start: 1000, End: 9000, Nested: 500, Detail: detail}
	}
	var text strings.Builder
	for _, c := range []struct {
		name string
		all  []programEvent
	}{
		{"another core", []programEvent{{Kind: kindNMI, Cpu: 2, Start: 1, End: 2}}},
		{"an unknown kind", []programEvent{irq(99, 0)}},
		{"interrupts", []programEvent{irq(kindIRQ, 36), irq(kindIRQ, 1<<31), irq(kindSoftirq, 3), irq(kindSoftirq, 9),
			irq(kindSoftirq, 10), irq(kindTimer, 0), irq(kindReschedule, 0), irq(kindCall, 0), irq(kindWork, 0),
			irq(kindIPI, 0), irq(kindNMI, 0)}},
		{"one thread all the time", []programEvent{run(1000, 9000, 7, "kworker/3:1H"), off(1000, 9000, 1000, 0)}},
		{"threads and gaps between them", []programEvent{run(1000, 3000, 7, "a12"), run(5000, 6000, 8, "12"),
			off(1000, 9000, 1000, 0)}},
		{"gaps that are too short", []programEvent{run(1000, 3000, 7, "a"), off(1000, 4249, 1000, 0)}},
		{"gaps that are long enough", []programEvent{run(1000, 3000, 7, "a"), off(1000, 4250, 1000, 0)}},
		{"threads of the interval before", []programEvent{run(10, 900, 7, "a"), run(1000, 9000, 8, "b"),
			off(1000, 9000, 1000, 0)}},
		{"none is left for the next one", []programEvent{run(1000, 9000, 8, "b"), off(1000, 9000, 1000, 0),
			off(1000, 9000, 1000, 0)}},
		{"sleep", []programEvent{run(1000, 6000, 7, "a"), run(6000, 9000, 8, "b"), off(1000, 9000, 5000, 1)}},
		{"sleep to the end", []programEvent{run(1000, 6000, 7, "a"), off(1000, 9000, 0, 1)}},
		{"woken at once", []programEvent{run(1000, 6000, 7, "a"), off(1000, 9000, 1000, 1)}},
		{"stopped", []programEvent{off(1000, 9000, 8999, 4)}},
		{"traced", []programEvent{off(1000, 9000, 8999, 8)}},
		{"idle after a sleep", []programEvent{run(1000, 9000, 0, "swapper/1"), off(1000, 9000, 2000, 1)}},
		{"idle although it could run", []programEvent{run(1000, 9000, 0, "swapper/1"), off(1000, 9000, 1000, 0)}},
	} {
		fmt.Fprintln(&text, c.name)
		w, _ := recorder(&text)
		for _, e := range c.all {
			w.traced(&e)
		}
		for _, total := range w.Sorted() {
			fmt.Fprintf(&text, "    in total %v, by %s: %.9f s, %d times\n", total, total.Source(), total.Seconds, total.Count)
		}
	}

	all := [6]string{interrupts, softirqCounts, stat, status, schedstat, task}
	for _, c := range []struct {
		name   string
		traced bool
		before Counts
	}{
		{"counters alone", false, Counts{Waited: 7000}},
		{"counters that have not changed", false, counters(t, 1, all).Read()},
		{"waited, but was not preempted", false, Counts{Preempted: 77, Waited: 7890 - 5000}},
		{"waited for less than the threshold", false, Counts{Preempted: 77, Waited: 7890 - 4999}},
		{"counters beside tracepoints", true, Counts{}},
	} {
		fmt.Fprintln(&text, c.name)
		w, core := recorder(&text)
		core.counters, core.before = counters(t, 1, all), c.before
		if c.traced {
			w.kernel = &kernel{}
		}
		w.counted(core, 100, 200)
		w.counted(core, 200, 300) // nothing has changed
		for _, total := range w.Sorted() {
			fmt.Fprintf(&text, "    in total %v, by %s: %.9f s, %d times\n", total, total.Source(), total.Seconds, total.Count)
		}
	}

	fmt.Fprintln(&text, "system management interrupts, and pauses of the runtime")
	w, core := recorder(&text)
	w.interrupted(1 << 31)
	core.msr = os.NewFile(uintptr(must.Get(unix.MemfdCreate("msr", unix.MFD_CLOEXEC))(t)), "msr")
	t.Cleanup(func() { core.msr.Close() })
	w.interrupted(1 << 31) // there is no such register
	must.Get(core.msr.WriteAt([]byte{5, 1, 0, 0, 0, 0, 0, 0}, msrSMI))(t)
	core.smi = 3
	w.interrupted(1 << 31)
	w.interrupted(1 << 31)
	w.emit(Event{CPU: -1, Start: 100, End: 200, Cause: Runtime, Weak: true, Count: 2})
	golden.Equal(t, "testdata/events.txt", text.String())
}

// However many different threads there are, the watcher remembers a bounded number of names, and counts all.
func TestManyThreads(t *testing.T) {
	w, c := recorder(new(strings.Builder))
	const threads = 10_000
	for i := range threads {
		p := programEvent{Kind: kindRun, Cpu: 1, Start: uint64(i), End: uint64(i + 1), Pid: 1}
		copy(p.Comm[:], fmt.Sprintf("%dx", i))
		w.traced(&p)
		if len(c.runs) > keptRuns || len(w.comms) > 4096 {
			t.Fatalf("remembers %d runs and %d names", len(c.runs), len(w.comms))
		}
		if last := c.runs[len(c.runs)-1]; last.comm != fmt.Sprintf("%dx", i) || last.start != int64(i) {
			t.Fatalf("the last run is %+v", last)
		}
	}
	if n := len(c.runs); n < keptRuns/2 {
		t.Errorf("%d runs are left", n)
	}
	for i := range threads {
		w.emit(Event{Cause: Descheduled, Name: fmt.Sprintf("%dx", i), Took: time.Millisecond, Count: 1})
		w.emit(Event{Cause: Descheduled, Name: "0x", Weak: true, Took: time.Microsecond, Count: 2})
	}
	sum := uint64(0)
	for _, total := range w.totals {
		sum += total.Count
	}
	check.Equal(t, sum, 3*threads, "%d events in the totals")
	check.Equal(t, fmt.Sprint(len(w.totals), w.Sorted()[0]), "65 descheduled for other", "totals: %s")
}

// Times are converted by the pairs of readings around them, and beyond the last ones by the nearest two.
func TestTicks(t *testing.T) {
	c := clocks{pairs: []pair{{100, 1000}}}
	check.Equal(t, c.ticks(100), 0, "of one reading: %d")
	c.pairs = append(c.pairs, pair{200, 2000}, pair{300, 2500})
	for ns, want := range map[int64]uint64{90: 900, 100: 1000, 150: 1500, 200: 2000, 250: 2250, 300: 2500, 320: 2600} {
		check.Equal(t, c.ticks(ns), want, fmt.Sprintf("%d ns", ns)+" is tick %d")
	}
	c = clocks{}
	for range 3 * keptPairs {
		p := c.read()
		if n := len(c.pairs); n > keptPairs || c.pairs[n-1] != p || n > 1 &&
			(p.ns <= c.pairs[n-2].ns || p.ticks <= c.pairs[n-2].ticks) {
			t.Fatalf("%d pairs, the last of them %+v after %+v", n, p, c.pairs[max(n-2, 0)])
		}
	}
	if n := len(c.pairs); n < keptPairs/2 {
		t.Errorf("%d pairs are left", n)
	}
}

// The names of interrupts are read for one that is unknown, once.
func TestIRQNamesAreKept(t *testing.T) {
	w, _ := recorder(new(strings.Builder))
	check.Equal(t, w.irqName(36), "virtio1-req.0", "%q")
	check.Equal(t, len(w.irqs), 1, "%d names")
	check.Equal(t, w.irqName(1<<31), "", "%q")
	if _, kept := w.irqs[1<<31]; !kept {
		t.Error("an unknown interrupt is looked up each time")
	}
}

func TestPausesAreCounted(t *testing.T) {
	w, _ := recorder(new(strings.Builder))
	before := w.countPauses()
	runtime.GC()
	if n := w.countPauses(); n <= before {
		t.Errorf("%d pauses before a collection, %d after it", before, n)
	}
}

func TestExplain(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("load: %w", unix.EPERM), "no CAP_BPF and CAP_PERFMON"}, {unix.EACCES, "no CAP_BPF and CAP_PERFMON"},
		{fmt.Errorf("ring:\n  %w", ebpf.ErrNotSupported), "the kernel lacks tracepoints for BPF (Linux 5.8, " +
			"CONFIG_BPF_EVENTS): ring: not supported"},
		{os.ErrNotExist, "the kernel lacks tracepoints for BPF (Linux 5.8, CONFIG_BPF_EVENTS): file does not exist"},
		{unix.ENOMEM, "cannot allocate memory"},
	} {
		check.Equal(t, explain(c.err), c.want, "%s")
	}
}
