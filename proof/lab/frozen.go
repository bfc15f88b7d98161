package lab

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"
)

// limit is a time limit for a busy machine: elapsed time counts in proportion to the share of a core that a thread
// could get, but at least a tenth.
type limit struct {
	mu   sync.Mutex
	left time.Duration
	over bool
	done chan struct{}
	once sync.Once
}

const tick = 200 * time.Millisecond

// newLimit calls expire, once, when the time is up, unless the limit is stopped first.
func newLimit(d time.Duration, expire func()) *limit {
	l := &limit{left: d, done: make(chan struct{})}
	go func() {
		t := time.NewTicker(tick)
		defer t.Stop()
		for {
			select {
			case <-l.done:
				return
			case <-t.C: // late if this process did not run either: missed ticks do not count
			}
			if l.spend(time.Duration(float64(tick) / crowd())) {
				expire()
				return
			}
		}
	}()
	return l
}

// spend subtracts d from the remaining time, and reports whether it is used up.
func (l *limit) spend(d time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.left -= d
	l.over = l.left <= 0
	return l.over
}

// extend sets the remaining time, unless it is used up.
func (l *limit) extend(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.over {
		l.left = d
	}
}

func (l *limit) expired() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.over
}

func (l *limit) stop() { l.once.Do(func() { close(l.done) }) }

// crowd is the number of runnable threads per core, from 1 to 10.
func crowd() float64 {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 1
	}
	return crowdOf(string(b), runtime.NumCPU())
}

func crowdOf(loadavg string, cores int) float64 {
	var a, b, c, runnable float64
	if _, err := fmt.Sscanf(loadavg, "%f %f %f %f/", &a, &b, &c, &runnable); err != nil {
		return 1
	}
	return min(max(runnable/float64(cores), a/float64(cores), 1), 10)
}

const (
	saveTime  = 5 * time.Minute  // a guest's memory to a file
	askTime   = 10 * time.Second // QEMU's monitor replies immediately unless QEMU itself stalls
	stackTime = 2 * time.Minute  // a guest's kernel prints its stacks over a slow serial line
)

// diagnose writes files into the machine's folder that show why a guest stalls, and then makes its kernel panic:
//
//	threads.log     what each of QEMU's threads does
//	goroutines.log  what the models and their servers do, which are in this process
//	monitor.log     the virtual processors' registers, interrupts, PCI functions; or that QEMU's main loop does not reply
//	console.log     the stack of every task in the guest, printed because of an NMI
func diagnose(q *qemu) {
	dir := q.m.Dir
	threads(q.cmd.Process.Pid, filepath.Join(dir, "threads.log"))
	stacks := make([]byte, 16<<20)
	_ = os.WriteFile(filepath.Join(dir, "goroutines.log"), stacks[:runtime.Stack(stacks, true)], 0o644)
	said, err := monitor(q.m.monitor(), askTime, "info status", "info cpus", "info registers -a", "info pic",
		"info pci", "nmi")
	_ = os.WriteFile(filepath.Join(dir, "monitor.log"), fmt.Appendf(nil, "%s\nerror: %v\n", said, err), 0o644)
	if err != nil {
		return
	}
	panicked := time.NewTimer(stackTime)
	defer panicked.Stop()
	select {
	case <-q.waited:
	case <-panicked.C:
	}
}

// monitor executes commands in QEMU's monitor, one after the other, and returns the output.
func monitor(socket string, patience time.Duration, commands ...string) (string, error) {
	c, err := net.DialTimeout("unix", socket, patience)
	if err != nil {
		return "", fmt.Errorf("lab: QEMU's monitor: %w", err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	var said bytes.Buffer
	prompt := func() error {
		for b := make([]byte, 4096); !bytes.HasSuffix(said.Bytes(), []byte("(qemu) ")); {
			n, err := c.Read(b)
			said.Write(b[:n])
			if err != nil {
				return fmt.Errorf("lab: QEMU's monitor: %w", err)
			}
		}
		return nil
	}
	err = prompt()
	for _, cmd := range commands {
		if err != nil {
			break
		}
		fmt.Fprintf(&said, "\n")
		if _, err = fmt.Fprintln(c, cmd); err == nil {
			err = prompt()
		}
	}
	return strings.ReplaceAll(said.String(), "\r", ""), err
}

// threads writes what each thread of a process does. It shows whether QEMU or its guest stalls.
func threads(pid int, file string) {
	var b strings.Builder
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	for _, task := range tasks {
		fmt.Fprintln(&b, filepath.Base(task))
		for _, what := range []string{"comm", "stat", "wchan", "syscall", "stack"} { // reading stack requires root
			text, err := os.ReadFile(filepath.Join(task, what))
			if err == nil && len(text) > 0 {
				fmt.Fprintf(&b, "%s: %s\n", what, strings.TrimSpace(string(text)))
			}
		}
	}
	_ = os.WriteFile(file, []byte(b.String()), 0o644)
}
