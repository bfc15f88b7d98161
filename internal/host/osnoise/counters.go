package osnoise

import (
	"bytes"
	"fmt"
	"os"
	"slices"
)

// Counts are counters of a core and of a thread. They start with the machine, or with the thread.
type Counts struct {
	Timer      uint64 // local timer interrupts of the core
	Interrupts uint64 // all other interrupts of the core
	Softirqs   [len(softirqs)]uint64
	Preempted  uint64 // times that the thread was preempted
	Waited     uint64 // ns that the thread was runnable but not running
	Faults     uint64 // page faults of the thread
	Steal      uint64 // time that the hypervisor took from the core, in units of 10 ms
}

// AllSoftirqs is the sum over all kinds.
func (c *Counts) AllSoftirqs() (n uint64) {
	for _, s := range c.Softirqs {
		n += s
	}
	return n
}

// softirqs are the kinds by number, as /proc/softirqs and the kernel's tracepoints name them.
var softirqs = [...]string{"HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU"}

// Counters reads Counts from /proc. Reading makes no garbage, and does not interrupt the core.
type Counters struct {
	interrupts, softirqs, stat *os.File
	status, schedstat, task    *os.File // of the thread; nil if unavailable

	column, column2 int // of the core, in /proc/interrupts and /proc/softirqs
	cpu             []byte
	buf             []byte
}

// OpenCounters opens the counters of a core, and those of a thread of this process unless tid is 0.
func OpenCounters(cpu, tid int) (*Counters, error) {
	c := &Counters{buf: make([]byte, 1<<20), cpu: fmt.Appendf(nil, "cpu%d ", cpu)}
	name := fmt.Appendf(nil, "CPU%d", cpu)
	for _, f := range []struct {
		file   **os.File
		name   string
		column *int
	}{{&c.interrupts, "/proc/interrupts", &c.column}, {&c.softirqs, "/proc/softirqs", &c.column2},
		{&c.stat, "/proc/stat", nil}} {
		var err error
		if *f.file, err = os.Open(f.name); err != nil {
			c.Close()
			return nil, err
		}
		if f.column == nil {
			continue
		}
		head, _, _ := bytes.Cut(c.read(*f.file), []byte("\n"))
		if *f.column = slices.IndexFunc(bytes.Fields(head), func(b []byte) bool {
			return bytes.Equal(b, name)
		}); *f.column < 0 {
			c.Close()
			return nil, fmt.Errorf("%s has no column %s", f.name, name)
		}
	}
	c.follow(tid)
	return c, nil
}

// follow changes the thread.
func (c *Counters) follow(tid int) {
	for _, f := range []struct {
		file **os.File
		name string
	}{{&c.status, "status"}, {&c.schedstat, "schedstat"}, {&c.task, "stat"}} {
		if *f.file != nil {
			(*f.file).Close()
			*f.file = nil
		}
		if tid != 0 {
			*f.file, _ = os.Open(fmt.Sprintf("/proc/self/task/%d/%s", tid, f.name)) // not all kernels have schedstat
		}
	}
}

// Close closes the files.
func (c *Counters) Close() {
	for _, f := range []*os.File{c.interrupts, c.softirqs, c.stat, c.status, c.schedstat, c.task} {
		if f != nil {
			f.Close()
		}
	}
}

func (c *Counters) read(f *os.File) []byte {
	if f == nil {
		return nil
	}
	n, _ := f.ReadAt(c.buf, 0)
	return c.buf[:n]
}

// Read returns the present values of all counters.
func (c *Counters) Read() Counts {
	n := c.ReadScheduling()
	c.readRest(&n)
	return n
}

// ReadScheduling is Read without page faults and steal, for which it reads two files less.
func (c *Counters) ReadScheduling() (n Counts) {
	for line := range lines(c.read(c.interrupts)) {
		name, rest, _ := bytes.Cut(line, []byte(":"))
		v := field(rest, c.column)
		if name = bytes.TrimSpace(name); string(name) == "LOC" || bytes.Contains(rest, []byte("arch_timer")) {
			n.Timer += v
		} else {
			n.Interrupts += v
		}
	}
	for line := range lines(c.read(c.softirqs)) {
		name, rest, _ := bytes.Cut(line, []byte(":"))
		name = bytes.TrimSpace(name)
		for i := range softirqs {
			if string(name) == softirqs[i] {
				n.Softirqs[i] = field(rest, c.column2)
			}
		}
	}
	if _, rest, ok := bytes.Cut(c.read(c.status), []byte("nonvoluntary_ctxt_switches:")); ok {
		n.Preempted = field(rest, 0)
	}
	n.Waited = field(c.read(c.schedstat), 1)
	return n
}

// readRest reads page faults and steal, which tracepoints do not show.
func (c *Counters) readRest(n *Counts) {
	const minor, major = 7, 9 // fields after the state (proc_pid_stat(5): 10 and 12)
	if b := c.read(c.task); len(b) > 0 {
		b = b[bytes.LastIndexByte(b, ')')+1:]
		n.Faults = word(b, minor) + word(b, major)
	}
	const steal = 7
	for line := range lines(c.read(c.stat)) {
		if rest, ok := bytes.CutPrefix(line, c.cpu); ok {
			n.Steal = field(rest, steal)
			break
		}
	}
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

// word returns the i-th field of a line, which may have fields that are not numbers, as a number.
func word(b []byte, i int) uint64 {
	for ; ; i-- {
		b = bytes.TrimLeft(b, " ")
		if i == 0 || len(b) == 0 {
			return field(b, 0)
		}
		if _, rest, ok := bytes.Cut(b, []byte(" ")); ok {
			b = rest
		} else {
			return 0
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
