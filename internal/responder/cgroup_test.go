package responder

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/programs"
)

// memoryGroup returns a memory cgroup below that of this process, and the file of its limit. Its processes, if any are
// left, are killed at the end of the test.
func memoryGroup(t *testing.T) (dir, limit string) {
	t.Helper()
	own := string(must.Get(os.ReadFile("/proc/self/cgroup"))(t))
	path := func(controller string) string {
		_, path, _ := strings.Cut("\n"+own, ":"+controller+":")
		path, _, _ = strings.Cut(path, "\n")
		return path
	}
	for _, c := range []struct{ dir, limit string }{
		{filepath.Join("/sys/fs/cgroup", path("")), "memory.max"},
		{filepath.Join("/sys/fs/cgroup/memory", path("memory")), "memory.limit_in_bytes"},
	} {
		dir := filepath.Join(c.dir, fmt.Sprintf("rebound-test-%d", os.Getpid()))
		if err := os.Mkdir(dir, 0o755); err != nil {
			continue
		}
		t.Cleanup(func() {
			await.Until(t, "the cgroup is empty", func() bool {
				b, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
				for pid := range strings.FieldsSeq(string(b)) {
					n, _ := strconv.Atoi(pid)
					unix.Kill(n, unix.SIGKILL)
				}
				return unix.Rmdir(dir) == nil
			})
		})
		if _, err := os.Stat(filepath.Join(dir, c.limit)); err == nil {
			return dir, filepath.Join(dir, c.limit)
		}
	}
	t.Skip("no memory controller in a cgroup that this process may write")
	return "", ""
}

// With a limit of memory from 8 MB on, the responder and the bench start, or end with an error that names the cgroup's
// limit. The kernel kills neither. With less it kills them before their first instruction.
func TestMemoryCgroup(t *testing.T) {
	w := newWire(t)
	dir, limit := memoryGroup(t)
	within := func(c *exec.Cmd) *exec.Cmd {
		c.Args = append([]string{"sh", "-c",
			`ip link set lo up; echo "0 0" > /proc/sys/net/ipv4/ping_group_range; echo $$ > "$0" && exec "$@"`,
			filepath.Join(dir, "cgroup.procs")}, append([]string{c.Path}, c.Args[1:]...)...)
		c.Path, c.Err = "/bin/sh", nil
		return c
	}
	started := map[string]bool{}
	for _, megabytes := range []int{8, 16, 24, 32, 40, 48, 64, 96, 256} {
		must.OK(t, os.WriteFile(limit, []byte(strconv.Itoa(megabytes<<20)), 0o644))
		for _, driver := range []string{"afpacket", "afxdp", "xdp", "bench"} {
			c := within(exec.Command(programs.Path(t, "bench"), "run", "127.0.0.1", "-transport", "socket", "-count",
				"100", "-out", filepath.Join(t.TempDir(), "out")))
			if driver != "bench" {
				c = within(w.command(t, "nic.driver="+driver))
			}
			var stderr strings.Builder
			c.Stderr = &stderr
			out := must.Get(c.StdoutPipe())(t)
			must.OK(t, w.here.try(t)(c.Start))
			timer := time.AfterFunc(2*time.Minute, func() { c.Process.Kill() })
			lines := bufio.NewScanner(out)
			ready := false
			for lines.Scan() {
				if strings.HasPrefix(lines.Text(), "ready ") {
					ready = true
					c.Process.Signal(unix.SIGTERM)
				}
			}
			c.Wait()
			timer.Stop()
			code := c.ProcessState.ExitCode()
			switch {
			case code == 0 && (ready || driver == "bench"):
				started[driver] = true
			case code == exitFailed && strings.Contains(stderr.String(), limit) &&
				!strings.Contains(stderr.String(), "goroutine ") && !started[driver]:
			default:
				t.Errorf("%s with %d MB: %v\n%s", driver, megabytes, c.ProcessState, stderr.String())
			}
		}
	}
	if len(started) != 4 {
		t.Errorf("with 256 MB started only: %v", started)
	}
}
