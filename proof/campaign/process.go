package campaign

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/bench/testbed"
)

// restartAfter is the pause before the responder is started again, as in its unit.
const restartAfter = 100 * time.Millisecond

// supervisor keeps the responder running, as a service manager does.
type supervisor struct {
	program string
	args    func() []string
	space   *testbed.Namespace // the responder's namespace
	log     io.Writer

	mu      sync.Mutex
	cond    *sync.Cond
	wanted  bool                           // the responder should be running
	prepare func(start func() error) error // calls start; nil for no preparation
	began   func(pid int)                  // called right after a start; nil for nothing
	cmd     *exec.Cmd                      // the running process, or nil
	ready   string                         // its ready line, "" until it is ready
	scrape  string                         // HOST:PORT of its metrics page
	starts  int
	ended   []ending // all, oldest first
	held    []held   // kernel objects that the running process holds, and those that earlier ones held
	closing bool
	done    chan struct{}
}

// ending describes how a process ended.
type ending struct {
	how  string // "exit 1", "killed"
	said string // the end of its log
	ours bool   // by a signal from the campaign
}

func supervise(program string, space *testbed.Namespace, log io.Writer, args func() []string) *supervisor {
	s := &supervisor{program: program, args: args, space: space, log: log, wanted: true, done: make(chan struct{})}
	s.cond = sync.NewCond(&s.mu)
	go s.run()
	return s
}

func (s *supervisor) run() {
	defer close(s.done)
	for {
		s.mu.Lock()
		for !s.wanted && !s.closing {
			s.cond.Wait()
		}
		closing := s.closing
		s.mu.Unlock()
		if closing {
			return
		}
		s.once()
		time.Sleep(restartAfter)
	}
}

var metricsAt = regexp.MustCompile(`url=http://(\S+?)/metrics`)

// once runs the responder until it ends.
func (s *supervisor) once() {
	c := exec.Command(s.program, s.args()...)
	said := &said{to: s.log, supervisor: s}
	c.Stderr = said
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL, Setpgid: true}
	out, err := c.StdoutPipe()
	if err != nil {
		return
	}
	s.mu.Lock()
	prepare, began := s.prepare, s.began
	s.mu.Unlock()
	start := func() error { return s.space.Do(c.Start) }
	if prepare != nil {
		err = prepare(func() error { return c.Start() })
	} else {
		err = start()
	}
	if err != nil {
		s.mu.Lock()
		s.ended = append(s.ended, ending{how: "no start", said: err.Error()})
		s.cond.Broadcast()
		s.mu.Unlock()
		return
	}
	if began != nil {
		began(c.Process.Pid)
	}
	s.mu.Lock()
	s.cmd = c // it may already have logged its metrics address
	s.starts++
	if !s.wanted { // stopped in the meantime
		_ = c.Process.Kill()
	}
	s.mu.Unlock()
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if line := lines.Text(); strings.HasPrefix(line, "ready ") {
			h := holds(c.Process.Pid)
			s.mu.Lock()
			s.ready = line
			s.held = append(s.held, h...)
			s.cond.Broadcast()
			s.mu.Unlock()
		}
	}
	err = c.Wait()
	how := "exit 0"
	var status *exec.ExitError
	if errors.As(err, &status) {
		how = fmt.Sprintf("exit %d", status.ExitCode())
		if w, ok := status.Sys().(syscall.WaitStatus); ok && w.Signaled() {
			how = "signal: " + w.Signal().String()
		}
	}
	s.mu.Lock()
	s.ended = append(s.ended, ending{how: how, said: said.end()})
	s.cmd, s.ready, s.scrape = nil, "", ""
	s.cond.Broadcast()
	s.mu.Unlock()
}

// said collects the log of one process: all of it is written to a file, and the end is kept in memory.
type said struct {
	to         io.Writer
	supervisor *supervisor
	mu         sync.Mutex
	kept       []byte
}

func (s *said) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = s.to.Write(b)
	if m := metricsAt.FindSubmatch(b); m != nil {
		s.supervisor.mu.Lock()
		s.supervisor.scrape = string(m[1])
		s.supervisor.mu.Unlock()
	}
	s.kept = append(s.kept, b...)
	if n := len(s.kept) - 8<<10; n > 0 {
		s.kept = bytes.Clone(s.kept[n:])
	}
	return len(b), nil
}

func (s *said) end() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.kept)
}

// pid of the running process, 0 for none.
func (s *supervisor) pid() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return 0
	}
	return s.cmd.Process.Pid
}

func (s *supervisor) metricsAt() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ready == "" {
		return ""
	}
	return s.scrape
}

// endings returns how often the process has ended.
func (s *supervisor) endings() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.ended)
}

// since returns the endings after the first n.
func (s *supervisor) since(n int) []ending {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]ending(nil), s.ended[n:]...)
}

// await waits until ok returns true, which is called with the lock held and after each change.
func (s *supervisor) await(limit time.Duration, ok func() bool) bool {
	late := false
	t := time.AfterFunc(limit, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		late = true
		s.cond.Broadcast()
	})
	defer t.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for !ok() {
		if late {
			return false
		}
		s.cond.Wait()
	}
	return true
}

// signal sends a signal to the running process and waits for its end. It returns how it ended, with the end of its log.
func (s *supervisor) signal(sig syscall.Signal, limit time.Duration) (ending, error) {
	s.mu.Lock()
	n, c := len(s.ended), s.cmd
	s.mu.Unlock()
	if c == nil {
		return ending{}, nil
	}
	_ = c.Process.Signal(sig)
	if !s.await(limit, func() bool { return len(s.ended) > n }) {
		_ = c.Process.Kill()
		return ending{}, fmt.Errorf("it did not end within %v of %v", limit, sig)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended[n].ours = true
	return s.ended[n], nil
}

// hold prevents the process from being started again.
func (s *supervisor) hold() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wanted = false
}

// up waits until the process reports that it is ready.
func (s *supervisor) up(limit time.Duration) error {
	if !s.await(limit, func() bool { return s.ready != "" }) {
		return fmt.Errorf("not ready within %v: %s", limit, s.lastWords())
	}
	return nil
}

// lastWords describes how the process ended last, with the last line of its log.
func (s *supervisor) lastWords() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.ended) == 0 {
		return "it has not ended yet"
	}
	e := s.ended[len(s.ended)-1]
	lines := strings.Split(strings.TrimSpace(e.said), "\n")
	return e.how + ": " + lines[len(lines)-1]
}

// close ends the supervisor. The process must have been ended before.
func (s *supervisor) close() {
	s.mu.Lock()
	s.closing = true
	s.cond.Broadcast()
	s.mu.Unlock()
	<-s.done
}

// panicked returns the first line of a panic or fault of the Go runtime.
func (e ending) panicked() string {
	for l := range strings.SplitSeq(e.said, "\n") {
		if strings.HasPrefix(l, "panic:") || strings.HasPrefix(l, "fatal error:") || strings.HasPrefix(l, "SIGSEGV") ||
			strings.HasPrefix(l, "unexpected fault") {
			return l
		}
	}
	if e.how == "exit 2" || strings.HasPrefix(e.how, "signal:") && !e.ours && e.how != "signal: killed" {
		return e.how
	}
	return ""
}

// everyThread calls f for each thread of a process.
func everyThread(pid int, f func(tid int)) {
	all, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	for _, e := range all {
		var tid int
		if _, err := fmt.Sscan(e.Name(), &tid); err == nil {
			f(tid)
		}
	}
}
