package measure

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/sanitize"
	"github.com/rebound-nic/rebound/latency/schedule"
)

// Hook is one command, for /bin/sh.
type Hook struct {
	Name    string // the variant's name: $REBOUND_VARIANT
	Command string
	CPUs    unix.CPUSet   // CPUs that it may use; an empty set means all
	Within  time.Duration // time limit
}

// errHook means that a hook failed, or took too long.
var errHook = errors.New("hook failed")

// grace is how long to wait for the output of background processes left by a hook.
var grace = time.Second

// hook runs the command of a series, and returns when the target answers.
func (s *session) hook(each *Series) error {
	if each.Do == "" {
		return nil
	}
	h := Hook{Name: each.Label(), Command: each.Do, CPUs: s.core.Rest(), Within: s.HookWithin}
	s.state = ""
	if err := h.Run(); err != nil {
		s.Log.Warn("unknown which setting is active: the hook failed", "variant", h.Name)
		return err
	}
	s.state = h.Name
	if err := each.Answered(); err != nil {
		return fmt.Errorf("after the hook %q: %w", each.Do, err)
	}
	return nil
}

// Answered waits until the target answers a probe that is sent now and not counted. A late reply to an earlier probe
// does not suffice.
func (s *Series) Answered() error {
	_, err := s.probeOnce(s.flow, 100)
	if errors.Is(err, errNoReply) {
		return fmt.Errorf("%s does not answer", s.Label())
	}
	return err
}

// Run runs the hook and returns when it has ended, or was killed with its process group. The error includes the end of
// its output.
func (h *Hook) Run() error {
	done := make(chan error)
	go func() { // the child inherits the CPUs of the thread that starts it
		runtime.LockOSThread() // and never unlocked: the thread ends with its narrowed set
		if h.CPUs.Count() > 0 {
			_ = unix.SchedSetaffinity(0, &h.CPUs)
		}
		done <- h.run()
	}()
	return <-done
}

// run executes the command by /bin/sh and waits for it, at most Within. The error has the end of the command's
// output.
func (h *Hook) run() error {
	var said process.Tail
	c := exec.Command("/bin/sh", "-c", h.Command)
	c.Env = append(os.Environ(), "REBOUND_VARIANT="+h.Name)
	c.Stdout, c.Stderr = &said, &said
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C ends the bench after the hook, not the hook
	c.WaitDelay = grace
	if err := c.Start(); err != nil {
		return fmt.Errorf("%w: %s: %s: %w", errHook, h.Name, h.Command, err)
	}
	late := time.AfterFunc(h.Within, func() { _ = unix.Kill(-c.Process.Pid, unix.SIGKILL) })
	ended(c.Process.Pid)
	inTime := late.Stop() // the time limit does not include the grace below
	err := c.Wait()
	switch {
	case !inTime:
		err = fmt.Errorf("it did not end within %s (-do-within)", latency.FormatDuration(h.Within))
	case errors.Is(err, exec.ErrWaitDelay): // it succeeded, but a background process still has its output open
		err = nil
	}
	if err != nil {
		return fmt.Errorf("%w: %s: %s: %w; it said: %s", errHook, h.Name, h.Command, err,
			strings.TrimSpace(said.String()))
	}
	return nil
}

// ended waits until a child process has ended, without reaping it.
func ended(pid int) {
	for unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
}

// Load is a command that runs during a measurement, such as a bulk transfer.
type Load struct {
	command string
	cmd     *exec.Cmd
	said    *process.Tail
	ended   chan struct{} // closed when the command has ended
	err     error         // result of the command, after ended is closed
}

// StartLoad starts a command for /bin/sh on the CPUs; an empty set means all. It runs in a separate process group.
func StartLoad(command string, cpus unix.CPUSet) (*Load, error) {
	l := &Load{command: command, said: &process.Tail{}, ended: make(chan struct{})}
	l.cmd = exec.Command("/bin/sh", "-c", command)
	l.cmd.Stdout, l.cmd.Stderr = l.said, l.said
	l.cmd.WaitDelay = grace
	l.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGTERM}
	started := make(chan error)
	go func() {
		// and never unlocked: the signal is sent when this thread exits, which waits for the command
		runtime.LockOSThread()
		if cpus.Count() > 0 {
			_ = unix.SchedSetaffinity(0, &cpus)
		}
		err := l.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		ended(l.cmd.Process.Pid)
		l.err = l.cmd.Wait()
		close(l.ended)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("%w: %s: %w", errHook, command, err)
	}
	return l, nil
}

// Ended reports whether the command has ended without being stopped, and how.
func (l *Load) Ended() (how string, ok bool) {
	select {
	case <-l.ended:
	default:
		return "", false
	}
	how = "it ended with status 0"
	if l.err != nil && !errors.Is(l.err, exec.ErrWaitDelay) {
		how = l.err.Error()
	}
	if said := strings.TrimSpace(l.said.String()); said != "" {
		how += "; it said: " + said
	}
	return how, true
}

// Stop ends the command and its whole process group: by SIGTERM, and after some seconds by SIGKILL.
func (l *Load) Stop() {
	_ = unix.Kill(-l.cmd.Process.Pid, unix.SIGTERM)
	select {
	case <-l.ended:
	case <-time.After(stopWithin):
	}
	_ = unix.Kill(-l.cmd.Process.Pid, unix.SIGKILL) // the remaining processes of the group
	<-l.ended
}

// stopWithin is how long a load may take to end after SIGTERM.
var stopWithin = 3 * time.Second

// Phases are the names of the variants of a session with a load.
var Phases = []string{"before", "during", "after"}

// phases is the order of a session with a load: all runs of a phase, followed by those of the next.
func phases(series, runs int) (blocks []schedule.Block) {
	for k := range series {
		for range runs {
			blocks = append(blocks, schedule.Block{Order: []int{k}})
		}
	}
	return blocks
}

// phase starts the load before the first run of the second phase, and stops it before the first of the third.
func (s *session) phase(k int) (err error) {
	switch {
	case s.Under == "":
	case k == 1 && s.load == nil && !s.loaded:
		s.loaded = true
		s.Log.Info("the load begins", "command", s.Under)
		s.load, err = StartLoad(s.Under, s.core.Rest())
	case k > 1:
		s.endLoad()
	}
	return err
}

// watchLoad notes a load that ended before its phase.
func (s *session) watchLoad(each *Series) {
	if s.load == nil {
		return
	}
	if how, ended := s.load.Ended(); ended {
		s.load = nil
		text := "the load ended before its phase did, so a part of this phase was measured without it: " +
			sanitize.Text(how)
		each.Warnings = append(each.Warnings, text)
		s.Log.Warn(text, "command", s.Under)
	}
}

func (s *session) endLoad() {
	if s.load != nil {
		s.load.Stop()
		s.load = nil
		s.Log.Info("the load has ended")
	}
}

func underNote(name, command string, anonymous bool) string {
	if anonymous {
		command = "a command, which an anonymous report leaves out"
	}
	return fmt.Sprintf("measured %s the load: %s", name, command)
}
