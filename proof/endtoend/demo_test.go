package endtoend

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/programs"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

const nobody = 65534

// forNobody copies the bench and the responder to a place where any user may run them, and creates a folder that no
// user may write to.
func forNobody(t *testing.T) (program, dir string) {
	t.Helper()
	needRoot(t)
	root := programs.ForOthers(t, "bench", "responder")
	dir = filepath.Join(root, "out")
	must.OK(t, errors.Join(os.Mkdir(dir, 0o755), os.Chown(dir, nobody, nobody)))
	return filepath.Join(root, "bench"), dir
}

func TestDemo(t *testing.T) {
	program, dir := forNobody(t)
	for name, uid := range map[string]uint32{"root": 0, "user": nobody} {
		t.Run(name, func(t *testing.T) {
			out := filepath.Join(dir, name)
			c := alone(t, "demo", "-rounds", "2", "-duration", "50ms", "-anonymous", "-out", out)
			c.Path, c.Dir = program, dir
			c.SysProcAttr.Credential = &syscall.Credential{Uid: uid, Gid: uid}
			r := c.begin().wait()
			if uid != 0 && strings.Contains(r.errors, "user namespace") {
				t.Skip("this host forbids user namespaces:", r.errors)
			}
			if r.code != 0 {
				t.Fatalf("exit %d\n%s%s", r.code, r.out, r.errors)
			}
			sides := []string{"01-kernel", "02-xdp", "03-afxdp"}
			if uid != 0 {
				sides = []string{"01-kernel", "02-responder"}
			}
			check.Contains(t, r.out, "ready driver=", "p50", "kernel", sides[1][3:],
				"report "+filepath.Join(out, "01-kernel"))
			for _, side := range sides {
				rep := must.Get(report.Read(filepath.Join(out, side)))(t)
				if c := rep.Counts; len(rep.Runs) != 2 || c.Sent == 0 || c.Lost != 0 || c.Corrupt != 0 ||
					rep.Session == "" {
					t.Errorf("%s: %d runs, %+v", side, len(rep.Runs), c)
				}
				if !rep.Anonymous || rep.Host.Hostname != "" || rep.Host.Cmdline != "" ||
					strings.Contains(rep.Notes[0], "mac=0") {
					t.Errorf("%s is not anonymous: %+v, notes %q", side, rep.Host, rep.Notes)
				}
			}
		})
	}
}

// However the demo ends, none of its processes remains; its namespaces have no names, so they end as well.
func TestDemoKilled(t *testing.T) {
	t.Parallel()
	program, dir := forNobody(t)
	for _, sig := range []syscall.Signal{unix.SIGKILL, unix.SIGINT, unix.SIGTERM} {
		demo := child("demo", "-rounds", "1000", "-out", filepath.Join(dir, sig.String()))
		demo.Path = program
		c := programs.Start(t, demo, nil)
		if !strings.Contains(c.Ready, "ready") {
			t.Fatal(c.Ready)
		}
		spaces := namespaces(t, c.Process.Pid)
		responders := children(c.Process.Pid)
		// one responder is stopped before the next is started
		await.Until(t, "a responder is a child of the demo", func() bool {
			responders = children(c.Process.Pid)
			return len(responders) > 0
		})
		_ = c.Process.Signal(sig)
		_, _ = io.Copy(io.Discard, c.Lines)
		_ = c.Wait()
		for _, pid := range responders {
			await.Until(t, fmt.Sprintf("%v: process %d of the demo has ended", sig, pid),
				func() bool { return !alive(pid) })
		}
		named, _ := filepath.Glob("/var/run/netns/*")
		for _, name := range named {
			if info, err := os.Stat(name); err == nil && slices.ContainsFunc(spaces,
				func(s os.FileInfo) bool { return os.SameFile(s, info) }) {
				t.Errorf("%v: the demo's network namespace has the name %s", sig, name)
			}
		}
	}
}

// namespaces returns the network namespaces of a demo: the bench's and the responder's. They are kept open until the
// test ends, because namespaces created later, possibly by another test, could otherwise have the same inode numbers.
func namespaces(t *testing.T, pid int) (all []os.FileInfo) {
	t.Helper()
	own := must.Get(os.Stat("/proc/thread-self/ns/net"))(t)
	files, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/ns/net")
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			continue // a thread that has ended
		}
		t.Cleanup(func() { f.Close() })
		info := must.Get(f.Stat())(t)
		if !os.SameFile(info, own) && !slices.ContainsFunc(all,
			func(s os.FileInfo) bool { return os.SameFile(s, info) }) {
			all = append(all, info)
		}
	}
	if len(all) < 2 {
		t.Fatalf("the demo has %d network namespaces, want two", len(all))
	}
	return all
}

func children(pid int) (out []int) {
	files, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/children")
	for _, f := range files {
		b, _ := os.ReadFile(f)
		for _, s := range strings.Fields(string(b)) {
			if id, err := strconv.Atoi(s); err == nil {
				out = append(out, id)
			}
		}
	}
	return out
}

// alive reports whether the process is running; a zombie is not.
func alive(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	_, after, _ := bytes.Cut(b, []byte(") "))
	return len(after) > 0 && after[0] != 'Z' && after[0] != 'X'
}
