package programs

import (
	"bufio"
	"bytes"
	"os/exec"
	"sync"
	"testing"
)

// Output is what a process has written so far.
type Output struct {
	mu sync.Mutex
	b  bytes.Buffer // not embedded: io.Copy would use its ReadFrom, which does not lock
}

func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// Running is a program that a test has started.
type Running struct {
	*exec.Cmd
	Ready string        // its first line
	Lines *bufio.Reader // the lines after that
	Log   *Output       // its standard error
}

// Start starts c and returns when it has printed its first line. It is killed when the test ends. If within is not nil,
// it calls its argument where the program has to run, for example in a network namespace.
func Start(t testing.TB, c *exec.Cmd, within func(start func() error) error) *Running {
	t.Helper()
	r := &Running{Cmd: c, Log: &Output{}}
	c.Stderr = r.Log
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if within == nil {
		within = func(start func() error) error { return start() }
	}
	if err := within(c.Start); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if c.ProcessState == nil {
			c.Process.Kill()
			c.Wait()
		}
	})
	r.Lines = bufio.NewReader(out)
	if r.Ready, err = r.Lines.ReadString('\n'); err != nil {
		c.Wait()
		t.Fatalf("%s is not ready: %v\n%s", c.Path, err, r.Log)
	}
	return r
}
