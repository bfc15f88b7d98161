package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// children are the processes that this one started and waits for. All others that end here are orphans.
type children struct {
	mu   sync.Mutex
	ours map[int]bool
}

// reap waits for orphans, which become children of the first process.
func (c *children) reap() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	for range ended {
		for c.reapOne() {
		}
	}
}

func (c *children) reapOne() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	var info unix.Siginfo
	if err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil); err != nil {
		return false
	}
	// The process's number follows signal, error and code, aligned (waitid(2)).
	pid := int(*(*int32)(unsafe.Add(unsafe.Pointer(&info), 16)))
	if pid == 0 || c.ours[pid] { // its owner waits for it, and then calls this again
		return false
	}
	_, err := unix.Wait4(pid, nil, unix.WNOHANG, nil)
	return err == nil
}

// program is a run of a program.
type program struct {
	args []string
	dir  string
	env  []string
	out  func(line string) // each line of stdout
	log  func(line string) // each line of stderr
	stop time.Duration     // how long it may take to end after SIGTERM

	watched bool // it is killed when it stops notifying (sd_notify) that it works
}

// run runs the program until it ends, or ctx does. last is its last line on stderr.
func (c *children) run(ctx context.Context, p program) (last string, err error) {
	cmd := exec.Command(p.args[0], p.args[1:]...)
	cmd.Dir, cmd.Env = p.dir, append([]string{"PATH=/bin", "HOME=" + run, "GOTRACEBACK=crash"}, p.env...)
	var beats *notifications
	if p.watched {
		if beats, err = listenForBeats(); err != nil {
			return "", err
		}
		defer beats.Close()
		cmd.Env = append(cmd.Env, "NOTIFY_SOCKET="+beats.name, "WATCHDOG_USEC=60000000")
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		return "", err
	}
	errR, errW, err := os.Pipe()
	if err != nil {
		return "", errors.Join(err, outR.Close(), outW.Close())
	}
	cmd.Stdout, cmd.Stderr = outW, errW
	c.mu.Lock()
	err = cmd.Start()
	if err == nil {
		c.ours[cmd.Process.Pid] = true
	}
	c.mu.Unlock()
	outW.Close()
	errW.Close()
	if err != nil {
		return "", errors.Join(err, outR.Close(), errR.Close())
	}
	var reading sync.WaitGroup
	reading.Go(func() { lines(outR, p.out) })
	reading.Go(func() {
		lines(errR, func(line string) {
			if strings.TrimSpace(line) != "" {
				last = line
			}
			p.log(line)
		})
	})
	ended := make(chan struct{})
	go c.end(ctx, cmd.Process, p.stop, beats, ended)
	err = cmd.Wait()
	close(ended)
	c.mu.Lock()
	delete(c.ours, cmd.Process.Pid)
	c.mu.Unlock()
	for c.reapOne() {
	}
	reading.Wait()
	return last, err
}

// end ends a process when ctx is done, or when it has stopped saying that it works.
func (c *children) end(ctx context.Context, p *os.Process, patience time.Duration, beats *notifications,
	ended chan struct{}) {
	var silent <-chan struct{}
	if beats != nil {
		silent = beats.silent
	}
	select {
	case <-ended:
		return
	case <-silent:
		p.Signal(syscall.SIGABRT)
	case <-ctx.Done():
		p.Signal(syscall.SIGTERM)
	}
	select {
	case <-ended:
	case <-time.After(patience):
		p.Kill()
	}
}

// lines calls each for every line. Pipes that a grandchild still holds do not delay the end of the program for long.
func lines(r io.ReadCloser, each func(string)) {
	defer r.Close()
	for in := bufio.NewScanner(r); in.Scan(); {
		if each != nil {
			each(in.Text())
		}
	}
}

// exitCode returns the status of a program that exited, -1 for a signal.
func exitCode(err error) int {
	var e *exec.ExitError
	if errors.As(err, &e) {
		return e.ExitCode()
	}
	if err != nil {
		return -1
	}
	return 0
}

// backoff is the time to wait before a program is started again: longer each time, until it has worked for a while.
type backoff struct{ next time.Duration }

const (
	firstWait = 200 * time.Millisecond
	lastWait  = 30 * time.Second
	longRun   = 10 * time.Second
)

func (b *backoff) after(ran time.Duration) time.Duration {
	if b.next == 0 || ran >= longRun {
		b.next = firstWait
	}
	wait := b.next
	b.next = min(2*b.next, lastWait)
	return wait
}

func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
