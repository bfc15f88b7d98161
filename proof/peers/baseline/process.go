package baseline

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Process is a program that answers while it runs.
type Process struct {
	Command []string
	Ready   string // text that it prints when it is ready, or about to be
	Quit    string // text written to its standard input to end it; "" for SIGTERM

	// Within runs a function on a thread with the network namespace and the CPUs intended for the program.
	Within func(func() error) error

	run   *exec.Cmd
	input io.WriteCloser
	said  output
	ended chan struct{}
}

const (
	startWithin = 20 * time.Second
	endWithin   = 5 * time.Second
)

// Start starts the program and returns when it has reported that it is ready. Its standard input stays open.
func (p *Process) Start() (err error) {
	c := exec.Command(p.Command[0], p.Command[1:]...)
	p.said = output{ready: []byte(p.Ready), seen: make(chan struct{})}
	c.Stdout, c.Stderr = &p.said, &p.said
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL, Setpgid: true}
	if p.input, err = c.StdinPipe(); err != nil {
		return err
	}
	if err := p.Within(c.Start); err != nil {
		return fmt.Errorf("%s: %w", p.Command[0], err)
	}
	p.run, p.ended = c, make(chan struct{})
	go func() {
		_ = c.Wait()
		close(p.ended)
	}()
	select {
	case <-p.said.seen:
		return nil
	case <-p.ended:
		err = fmt.Errorf("%s ended at once (%v): %s", p.Command[0], c.ProcessState, p.said.last())
	case <-time.After(startWithin):
		err = fmt.Errorf("%s was not ready within %v: %s", p.Command[0], startWithin, p.said.last())
	}
	return errors.Join(err, p.Stop())
}

// Stop ends the program if it is running, and returns when it has ended.
func (p *Process) Stop() error {
	if p.run == nil {
		return nil
	}
	run := p.run
	p.run = nil
	if p.Quit != "" {
		_, _ = io.WriteString(p.input, p.Quit)
	} else {
		_ = run.Process.Signal(unix.SIGTERM)
	}
	select {
	case <-p.ended:
		return nil
	case <-time.After(endWithin):
		_ = run.Process.Kill()
		<-p.ended
		return fmt.Errorf("%s did not end within %v of being told to: %s", p.Command[0], endWithin, p.said.last())
	}
}

// output keeps the end of a program's output, and searches for a word in it.
type output struct {
	mu    sync.Mutex
	end   []byte
	ready []byte
	seen  chan struct{}
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	const most = 16 << 10
	o.end = append(o.end, b...)
	if o.ready != nil && bytes.Contains(o.end, o.ready) {
		o.ready = nil
		close(o.seen)
	}
	if cut := len(o.end) - most; cut > 0 {
		o.end = bytes.Clone(o.end[cut:])
	}
	return len(b), nil
}

// last returns the last lines, joined into one.
func (o *output) last() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(string(o.end)), "\n")
	return strings.Join(lines[max(0, len(lines)-3):], "; ")
}
