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
