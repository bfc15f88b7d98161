package measure

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/host/process"
)

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
