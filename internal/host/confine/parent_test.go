package confine

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

// A program that requested the death of its children with it gets it, although Linux forgets the request when a child
// changes its user.
func TestBecomeKeepsParentDeathSignal(t *testing.T) {
	needs.Root(t, "changing the user")
	switch role() {
	case "child":
		must.OK(t, Become(nobody))
		for _, h := range Apply(Needs{}) {
			if h.Err != nil {
				t.Log(h.Name, h.Err)
			}
		}
		os.Stdout.WriteString("ready " + strconv.Itoa(os.Getpid()) + "\n")
		select {}
	case "parent":
		runtime.LockOSThread() // whose end the child's signal is for
		c := again(t, "child")
		c.Stdout, c.Stderr = os.Stdout, os.Stderr
		c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
		t.Fatal(c.Run())
	}
	parent := again(t, "parent")
	out := must.Get(parent.StdoutPipe())(t)
	must.OK(t, parent.Start())
	lines := bufio.NewReader(out)
	line, err := lines.ReadString('\n')
	child, bad := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(line, "ready ")))
	if err != nil || bad != nil {
		t.Fatalf("%q %v", line, err)
	}
	defer unix.Kill(child, unix.SIGKILL) // its number is in use: the pipe's end is the child's
	var ended atomic.Bool
	go func() {
		_, _ = io.Copy(io.Discard, lines) // until no process has the other end open
		ended.Store(true)
	}()
	must.OK(t, parent.Process.Kill())
	await.Until(t, "the child has ended", ended.Load)
	_ = parent.Wait()
}

// A confined process learns how a child that it started before has ended.
func TestWaitForChild(t *testing.T) {
	if role() == "" {
		succeeds(t, "child")
		return
	}
	child := exec.Command("cat")
	in := must.Get(child.StdinPipe())(t)
	must.OK(t, child.Start())
	Apply(Needs{})
	in.Close()
	must.OK(t, child.Wait())
}
