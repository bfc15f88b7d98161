package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// farSide is a thread in a network namespace of its own, which is nameless and ends with the thread and its children.
type farSide struct {
	ns  int // the namespace
	ask chan func()
}

func newFarSide() (*farSide, error) {
	f := &farSide{ask: make(chan func())}
	begun := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends here
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			f.ns, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}
		begun <- err
		if err != nil {
			return
		}
		for job := range f.ask {
			job()
		}
	}()
	return f, <-begun
}

// do runs job in the namespace.
func (f *farSide) do(job func() error) error {
	done := make(chan error)
	f.ask <- func() { done <- job() }
	return <-done
}

func (f *farSide) close() {
	close(f.ask)
	unix.Close(f.ns)
}

// other returns a CPU to use beside the bench's; the same if there is only one.
func (p *place) other() int {
	for i := p.core - 1; i >= 0; i-- {
		if p.allowed.IsSet(i) {
			return i
		}
	}
	return p.core
}

// responder is the responder's process in the far namespace.
type responder struct {
	*demo
	core    int
	report  string   // a folder for its own report, "" for none
	set     []string // further settings, KEY=VALUE
	ready   string   // the line that it prints once it answers
	process *exec.Cmd
	ended   chan struct{}
	failure error
	said    tail
}

// How long the responder may take until it is ready, and to end.
const (
	startWithin = 15 * time.Second
	stopWithin  = 20 * time.Second // a machine that is busy elsewhere takes its time
)

// start starts the responder unless it runs, and returns when it answers.
func (r *responder) start() error {
	if r.process != nil {
		select {
		case <-r.ended:
			return r.explain("ended by itself")
		default:
			return nil
		}
	}
	args := []string{"-config", "/dev/null", "-set", "nic.device=" + echoIface, "-set", "nic.driver=" + r.driver,
		"-set", fmt.Sprintf("respond.addresses=[%q]", responderPrefix), "-set", fmt.Sprintf("cpu.cores=[%d]", r.core)}
	if r.unprivileged {
		args = append(args, "-set", "cpu.lock_memory=false") // RLIMIT_MEMLOCK stays the user's
	}
	for _, s := range r.set {
		args = append(args, "-set", s)
	}
	if r.report != "" {
		args = append(args, "-set", "stats.report="+r.report)
	}
	c := exec.Command(r.program, args...)
	r.said = tail{}
	c.Stderr = &r.said
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL, Setpgid: true} // Ctrl-C is ours to hand on
	out, err := c.StdoutPipe()
	if err != nil {
		return err
	}
	if err := r.far.do(func() error { // the child inherits this thread's namespace
		var all unix.CPUSet
		for i := range len(all) * 64 {
			all.Set(i)
		}
		_ = unix.SchedSetaffinity(0, &all) // and its CPUs, which the bench may have narrowed
		return c.Start()
	}); err != nil {
		return fmt.Errorf("responder %s: %w", r.program, err)
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
	case r.ready = <-ready:
		return nil
	case <-r.ended:
		return r.explain("did not start")
	case <-ctx.Done():
		err := r.explain(fmt.Sprintf("was not ready within %v", startWithin))
		return errors.Join(err, r.stop())
	}
}

func (r *responder) explain(what string) error {
	return fmt.Errorf("the responder %s: %v: %s", what, r.failure, strings.TrimSpace(r.said.String()))
}

// stop ends the responder if it runs, and returns when it is gone.
func (r *responder) stop() error {
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

// tail keeps the end of what is written to it.
type tail struct {
	mu  sync.Mutex
	end []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	const most = 4 << 10
	t.end = append(t.end, b...)
	if cut := len(t.end) - most; cut > 0 {
		t.end = bytes.Clone(t.end[cut:])
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.end)
}
