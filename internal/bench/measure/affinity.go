package measure

import (
	"fmt"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/host/process"
)

// Core is the CPU that the measuring thread runs on, with the other CPUs available to the process.
type Core struct {
	CPU     int
	allowed unix.CPUSet
}

// Choose checks that the process may use cpu; -1 selects the last available CPU.
func Choose(cpu int) (*Core, error) {
	c := &Core{CPU: cpu}
	if err := unix.SchedGetaffinity(0, &c.allowed); err != nil {
		return nil, fmt.Errorf("sched_getaffinity: %w", err)
	}
	if cpu < -1 || cpu >= len(c.allowed)*64 || cpu >= 0 && !c.allowed.IsSet(cpu) {
		return nil, process.Usagef("-core %d: this process may use only CPU %s", cpu, list(&c.allowed))
	}
	for i := 0; cpu == -1 && i < len(c.allowed)*64; i++ {
		if c.allowed.IsSet(i) {
			c.CPU = i
		}
	}
	return c, nil
}

// Other returns a CPU other than the Core that the process may use, or the Core if there is only one.
func (c *Core) Other() int {
	for i := c.CPU - 1; i >= 0; i-- {
		if c.allowed.IsSet(i) {
			return i
		}
	}
	return c.CPU
}

// list formats a set of CPUs as "0,1,5".
func list(s *unix.CPUSet) string {
	out := ""
	for i := range len(s) * 64 {
		if !s.IsSet(i) {
			continue
		}
		if out != "" {
			out += ","
		}
		out += strconv.Itoa(i)
	}
	return out
}

// Take binds the calling thread, which must be locked, to the core and moves the process's other threads off it.
func (c *Core) Take() error {
	var one unix.CPUSet
	one.Set(c.CPU)
	if rest := c.Rest(); rest.Count() > 0 {
		others(&rest)
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return fmt.Errorf("bind to CPU %d: %w", c.CPU, err)
	}
	return nil
}

// Rest returns the CPUs other than the Core that the process may use; none if there is only one.
func (c *Core) Rest() unix.CPUSet {
	rest := c.allowed
	rest.Clear(c.CPU)
	return rest
}

// Leave undoes Take.
func (c *Core) Leave() {
	others(&c.allowed)
	_ = unix.SchedSetaffinity(0, &c.allowed)
}

// others binds all threads of the process except the calling one. A thread that ends meanwhile is not an error.
func others(s *unix.CPUSet) {
	tasks, _ := os.ReadDir("/proc/self/task")
	for _, t := range tasks {
		if id, err := strconv.Atoi(t.Name()); err == nil && id != unix.Gettid() {
			_ = unix.SchedSetaffinity(id, s)
		}
	}
}

// Quiet prevents the runtime from stopping the world while a thread polls: that would wait for the thread, and so would
// everything else, including the progress line and the handler of Ctrl-C. The garbage collector is off, whatever the
// environment says, and GOMAXPROCS is fixed, because the runtime would otherwise adapt it to the CPUs that Take leaves
// to the other threads.
func Quiet() (restore func()) {
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), 4))
	limit := debug.SetMemoryLimit(math.MaxInt64)
	percent := debug.SetGCPercent(-1)
	return func() {
		debug.SetGCPercent(percent)
		debug.SetMemoryLimit(limit)
	}
}
