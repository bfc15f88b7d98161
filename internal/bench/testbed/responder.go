package testbed

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/host/process"
)

// Responder is the responder's process in the namespace Far.
type Responder struct {
	Bed          *Testbed
	Program      string
	Driver       string
	Core         int
	Unprivileged bool     // inside a user namespace of an ordinary user
	Report       string   // a folder for the responder's report, "" for none
	Set          []string // further settings, KEY=VALUE
	Ready        string   // the line that it prints when ready

	process *exec.Cmd
	ended   chan struct{}
	failure error
	said    process.Tail
}

// Time limits for the responder to become ready, and to end.
const (
	startWithin = 15 * time.Second
	stopWithin  = 20 * time.Second // allows for a busy machine
)

// Start starts the responder unless it is running, and returns when it is ready.
func (r *Responder) Start() error {
	if r.process != nil {
		select {
		case <-r.ended:
			return r.explain("ended by itself")
		default:
			return nil
		}
	}
	args := []string{"-config", "/dev/null", "-set", "nic.device=" + FarIface, "-set", "nic.driver=" + r.Driver,
		"-set", fmt.Sprintf("respond.addresses=[%q]", ResponderPrefix), "-set", fmt.Sprintf("cpu.cores=[%d]", r.Core)}
	if r.Unprivileged {
		args = append(args, "-set", "cpu.lock_memory=false") // RLIMIT_MEMLOCK is still the user's
	}
	for _, s := range r.Set {
		args = append(args, "-set", s)
	}
	if r.Report != "" {
		args = append(args, "-set", "stats.report="+r.Report)
	}
	c := exec.Command(r.Program, args...)
	r.said = process.Tail{}
	c.Stderr = &r.said
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL, Setpgid: true} // the bench handles Ctrl-C
	out, err := c.StdoutPipe()
	if err != nil {
		return err
	}
	if err := r.Bed.Far.Do(func() error { // the child inherits this thread's namespace
		allCPUs() // and its CPUs, which the bench may have narrowed
		return c.Start()
	}); err != nil {
		return fmt.Errorf("responder %s: %w", r.Program, err)
	}
	r.process, r.ended = c, make(chan struct{})
	ready := make(chan string, 1)
	go func() {
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if strings.HasPrefix(lines.Text(), "ready ") {
				ready <- lines.Text()
				break
			}
		}
		_, _ = io.Copy(io.Discard, out)
		r.failure = c.Wait()
		close(r.ended)
	}()
	ctx, cancel := context.WithTimeout(context.Background(), startWithin)
	defer cancel()
	select {
	case r.Ready = <-ready:
		return nil
	case <-r.ended:
		return r.explain("did not start")
	case <-ctx.Done():
		err := r.explain(fmt.Sprintf("was not ready within %v", startWithin))
		return errors.Join(err, r.Stop())
	}
}

// PID returns the process's ID. The responder must be running.
func (r *Responder) PID() int { return r.process.Process.Pid }

func (r *Responder) explain(what string) error {
	return fmt.Errorf("the responder %s: %v: %s", what, r.failure, strings.TrimSpace(r.said.String()))
}

// Stop ends the responder if it is running, and returns when it has ended.
func (r *Responder) Stop() error {
	if r.process == nil {
		return nil
	}
	_ = r.process.Process.Signal(unix.SIGTERM)
	select {
	case <-r.ended:
	case <-time.After(stopWithin):
		_ = r.process.Process.Kill()
		<-r.ended
		r.failure = errors.New("it did not end within 20 s of SIGTERM")
	}
	r.process = nil
	if r.failure != nil {
		return r.explain("failed")
	}
	return nil
}

// FindResponder looks for the responder's program next to this one, then in PATH, by its installed name and by that of
// its folder in cmd.
func FindResponder() (string, error) {
	names := []string{"rebound-responder", "responder"}
	if self, err := os.Executable(); err == nil {
		for _, name := range names {
			beside := filepath.Join(filepath.Dir(self), name)
			if _, err := os.Stat(beside); err == nil {
				return beside, nil
			}
		}
	}
	for _, name := range names {
		if p, err := exec.LookPath(name); err == nil {
			return p, nil
		}
	}
	return "", errors.New("rebound-responder is neither beside this program nor in PATH (in a clone: make build)")
}
