package osnoise

import (
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

func TestField(t *testing.T) {
	line := []byte("         12  0\t 345   IO-APIC   4-edge      ttyS0")
	for i, want := range []uint64{12, 0, 345, 0, 0} {
		check.Equal(t, field(line, i), want, fmt.Sprintf("field %d", i)+" is %d")
	}
}

// Files of /proc, as in Linux 6.18 on two CPUs.
const (
	interrupts = "           CPU0       CPU1       \n 24:          1          0  IO-APIC   5-edge      ACPI:Ged\n" +
		" 36:          7    2541618 PCI-MSIX-0000:00:02.0   1-edge      virtio1-req.0\n 37:          3          9 IR-IO-APIC   16-fasteoi   ehci_hcd:usb1, eth0 \n" +
		"NMI:          0          5   Non-maskable interrupts\nLOC:   62750352   55169415   Local timer interrupts\nERR:          0\n"
	softirqCounts = "                    CPU0       CPU1       \n          HI:          1          2\n      NET_RX:        100        200\n         RCU:       3000       4000\n"
	stat          = "cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 11 0 0 0 0 0 0 18 0 0\ncpu1 21 0 0 0 0 0 0 28 0 0\nintr 1 2 3\n"
	status        = "Name:\tresponder\nvoluntary_ctxt_switches:\t4\nnonvoluntary_ctxt_switches:\t77\n"
	schedstat     = "123456 7890 12\n"
	task          = "42 (a) b (c)) R 1 42 42 0 -1 4194304 1234 0 56 0 1 2 0 0 20 0 5 0 100\n"
)

// counters reads the texts as if they were the files of /proc. An empty one is not there.
func counters(t testing.TB, column int, texts [6]string) *Counters {
	c := &Counters{buf: make([]byte, 1<<16), cpu: fmt.Appendf(nil, "cpu%d ", column), column: column, column2: column}
	t.Cleanup(c.Close)
	for i, f := range []**os.File{&c.interrupts, &c.softirqs, &c.stat, &c.status, &c.schedstat, &c.task} {
		if texts[i] != "" {
			*f = os.NewFile(uintptr(must.Get(unix.MemfdCreate("proc", unix.MFD_CLOEXEC))(t)), "proc")
			must.Get((*f).WriteString(texts[i]))(t)
		}
	}
	return c
}

func TestReadCounters(t *testing.T) {
	want := Counts{Timer: 55169415, Interrupts: 2541618 + 9 + 5, Preempted: 77, Waited: 7890, Faults: 1234 + 56,
		Steal: 28}
	want.Softirqs[0], want.Softirqs[3], want.Softirqs[9] = 2, 200, 4000
	all := [6]string{interrupts, softirqCounts, stat, status, schedstat, task}
	check.Equal(t, counters(t, 1, all).Read(), want, "%+v")
	// A kernel without schedstats has no time of waiting, and one whose /proc hides the thread has no counters of it.
	all[4], want.Waited = "", 0
	check.Equal(t, counters(t, 1, all).Read(), want, "%+v")
	all[3], all[5], want.Preempted, want.Faults = "", "", 0, 0
	check.Equal(t, counters(t, 1, all).Read(), want, "%+v")
}

// What the counters say of a period: all of it without tracepoints, and with them what they do not show. A thread that
// waited and was not preempted was stopped or asleep.
func TestCounted(t *testing.T) {
	for _, c := range []struct {
		grown  Counts
		traced bool
		want   []string
	}{
		{Counts{}, false, nil},
		{Counts{Steal: 2, Faults: 3, Timer: 4, Interrupts: 5, Softirqs: [10]uint64{3: 6, 9: 7}}, false,
			[]string{fmt.Sprint(Steal, "  2 20ms"), fmt.Sprint(PageFault, "  3 0s"), fmt.Sprint(Timer, "  4 0s"),
				fmt.Sprint(Interrupt, "  5 0s"), fmt.Sprint(Softirq, " NET_RX 6 0s"),
				fmt.Sprint(Softirq, " RCU 7 0s")}},
		{Counts{Steal: 1, Faults: 2, Timer: 4, Preempted: 1, Waited: 7000}, true,
			[]string{fmt.Sprint(Steal, "  1 10ms"), fmt.Sprint(PageFault, "  2 0s")}},
		{Counts{Preempted: 2, Waited: 7000}, false, []string{fmt.Sprint(Descheduled, "  2 7µs")}},
		{Counts{Preempted: 1}, false, []string{fmt.Sprint(Descheduled, "  1 0s")}},
		// as if it was another thread's
		{Counts{Preempted: 1, Waited: 1<<64 - 9}, false, []string{fmt.Sprint(Descheduled, "  1 0s")}},
		{Counts{Waited: 5000}, false, []string{fmt.Sprint(Descheduled, "  1 5µs")}},
		{Counts{Waited: 4999}, false, nil},
		{Counts{Waited: 1<<64 - 9}, false, nil},
	} {
		var got []string
		w := newWatcher(5*time.Microsecond, func(e Event) {
			got = append(got, fmt.Sprint(e.Cause, " ", e.Name, " ", e.Count, " ", e.Took))
			if e.CPU != 1 || e.Start != 100 || e.End != 200 || !e.Weak {
				t.Errorf("%+v", e)
			}
		})
		w.clocks.pairs = []pair{{0, 0}, {1 << 40, 1 << 41}}
		if c.traced {
			w.kernel = &kernel{}
		}
		files := [6]string{interrupts, softirqCounts, stat, status, schedstat, task}
		x := &core{cpu: 1, counters: counters(t, 1, files)}
		all := x.counters.Read()
		x.before = all
		for _, v := range []struct{ was, grown *uint64 }{{&x.before.Steal, &c.grown.Steal},
			{&x.before.Faults, &c.grown.Faults}, {&x.before.Timer, &c.grown.Timer},
			{&x.before.Interrupts, &c.grown.Interrupts}, {&x.before.Softirqs[3], &c.grown.Softirqs[3]},
			{&x.before.Softirqs[9], &c.grown.Softirqs[9]}, {&x.before.Preempted, &c.grown.Preempted},
			{&x.before.Waited, &c.grown.Waited}} {
			*v.was -= *v.grown
		}
		w.counted(x, 100, 200)
		check.Same(t, got, c.want, fmt.Sprintf("%+v: ", c.grown)+"%q")
		check.Equal(t, c.traced || x.before == all, true, "the counters are kept: %t")
	}
}

func TestIRQNames(t *testing.T) {
	irqs := map[uint32]string{}
	parseIRQs(interrupts, irqs)
	check.Equal(t, fmt.Sprint(irqs), "map[24:ACPI:Ged 36:virtio1-req.0 37:ehci_hcd:usb1, eth0]", "%s")
}

// Whatever /proc has, reading ends, counts the same twice, and leaves no CPU's column out.
func FuzzProc(f *testing.F) {
	f.Add(uint8(1), interrupts, softirqCounts, stat, status, schedstat, task)
	f.Add(uint8(0), "CPU0", ":\n:", "cpu0", "nonvoluntary_ctxt_switches:", "1", ") ")
	f.Add(uint8(200), "\n36: 7\n", "\nRCU:\n", "\n\ncpu200 ", "nonvoluntary_ctxt_switches:\t18446744073709551616", " 7",
		"1 2 3")
	f.Fuzz(func(t *testing.T, column uint8, interrupts, softirqs, stat, status, schedstat, task string) {
		c := counters(t, int(column), [6]string{interrupts, softirqs, stat, status, schedstat, task})
		if a, b := c.Read(), c.Read(); a != b {
			t.Errorf("%+v, then %+v", a, b)
		}
		irqs := map[uint32]string{}
		parseIRQs(interrupts, irqs)
		for n, name := range irqs {
			if !strings.Contains(interrupts, fmt.Sprint(n)) || strings.Contains(name, "\n") {
				t.Errorf("interrupt %d is %q", n, name)
			}
		}
	})
}

// Whatever the ring has, each event that it leads to is inside the times of a record, of a watched core, and takes no
// longer than that.
func FuzzRing(f *testing.F) {
	record := func(start, end, runnable, nested uint64, kind, cpu, detail, pid uint32, comm string) []byte {
		b := make([]byte, 0, 64)
		for _, v := range []uint64{start, end, runnable, nested} {
			b = binary.NativeEndian.AppendUint64(b, v)
		}
		for _, v := range []uint32{kind, cpu, detail, pid} {
			b = binary.NativeEndian.AppendUint32(b, v)
		}
		return append(b, append([]byte(comm), make([]byte, 16-len(comm))...)...)
	}
	f.Add(append(record(100, 90_000, 0, 0, kindRun, 0, 0, 7, "hog"),
		record(50, 100_000, 60, 0, kindOff, 0, 0, 0, "")...))
	f.Add(append(record(100, 90_000, 0, 0, kindRun, 0, 0, 0, ""),
		record(50, 100_000, 70_000, 0, kindOff, 0, stateStopped, 0, "")...))
	f.Add(record(100, 90_000, 0, 80_000, kindSoftirq, 0, 3, 0, ""))
	f.Add(record(100, 90_000, 0, 0, kindIRQ, 0, 36, 0, ""))
	f.Add(record(100, 90_000, 0, 0, kindNMI, 9, 1<<31, 0, ""))
	f.Fuzz(func(t *testing.T, ring []byte) {
		var got []Event
		w := newWatcher(5*time.Microsecond, func(e Event) { got = append(got, e) })
		w.cores = []*core{{cpu: 0}}
		w.clocks.pairs = []pair{{0, 0}, {1 << 40, 1 << 41}}
		var first, last int64
		for len(ring) > 0 {
			var p programEvent
			n := min(len(ring), 64)
			if p.decode(ring[:n]) {
				// The programs report only what has an end after its start, in the order of ends.
				p.Start, p.End = p.Start%(1<<40), p.End%(1<<40)
				if p.Start <= p.End && int64(p.End) >= last && p.Nested <= p.End-p.Start &&
					(p.Runnable == 0 || p.Start <= p.Runnable && p.Runnable <= p.End) {
					first, last = min(first, int64(p.Start)), int64(p.End)
					w.traced(&p)
				}
			}
			ring = ring[n:]
		}
		for _, e := range got {
			if e.CPU != 0 || e.Start < first || e.End > last || e.End < e.Start || e.Took < 0 ||
				e.Took > time.Duration(e.End-e.Start) || e.To < e.From {
				t.Errorf("%+v", e)
			}
			if e.String() == "" {
				t.Errorf("no text for %+v", e)
			}
		}
		if len(w.totals) > keptTotals+1 {
			t.Errorf("%d totals", len(w.totals))
		}
	})
}
