package responder

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/programs"
)

// A responder that has one CPU, in a cpuset (a container with one whole CPU under Kubernetes' static CPU manager) or by
// taskset, polls there. A cpuset refuses the other CPUs to the process's other threads, taskset does not.
func TestOneCPU(t *testing.T) {
	cpu := lastOfTwoCPUs(t)
	for _, c := range []struct {
		name, want, priority string // what the log says, without cpu.priority and with it
		confined             func(t *testing.T, cpu string) []string
	}{
		{"cpuset", "every core that this process can have polls",
			"SCHED_FIFO on every core that this process can have (" + cpu + ")",
			func(t *testing.T, cpu string) []string {
				return []string{"sh", "-c", `echo $$ >"$0" && exec "$@"`, filepath.Join(cpuset(t, cpu), "cgroup.procs")}
			}},
		{"taskset", "", "", func(_ *testing.T, cpu string) []string { return []string{"taskset", "-c", cpu} }},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWire(t)
			command := func(sets ...string) *exec.Cmd {
				return exec.Command("env", append(c.confined(t, cpu), w.command(t, sets...).Args...)...)
			}
			if c.priority != "" {
				_, stderr, _ := w.here.outcome(t, command("nic.driver=afxdp", "cpu.priority=1",
					"cpu.realtime_guard=keep"))
				check.Contains(t, stderr, c.priority)
			}
			p := &child{programs.Start(t, command("nic.driver=afxdp"), w.here.try(t))}
			w.run(t, "ping", "-c", "20", "-i", "0.01", "-W", "60", ours4)
			if !p.logs("core="+cpu) || !p.logs(c.want) {
				t.Errorf("it should poll on CPU %s, and log %q:\n%s", cpu, c.want, p.Log)
			}
			p.counted(t, map[string]int{"icmpv4": 20})
			check.Equal(t, count(t, p.stop(t, unix.SIGTERM), "icmpv4"), 20, "%d pings in the summary")
		})
	}
}

// cpuset makes a cgroup that may use one CPU, and removes it when the test ends.
func cpuset(t *testing.T, cpu string) string {
	t.Helper()
	root := "/sys/fs/cgroup"
	if b, _ := os.ReadFile(root + "/cgroup.subtree_control"); !strings.Contains(string(b), "cpuset") {
		root += "/cpuset" // of cgroup v1
	}
	mems, err := os.ReadFile(root + "/cpuset.mems")
	if errors.Is(err, os.ErrNotExist) { // the root of cgroup v2 has none
		mems, err = os.ReadFile(root + "/cpuset.mems.effective")
	}
	if err != nil {
		t.Skip("needs the cpuset controller:", err)
	}
	dir, err := os.MkdirTemp(root, "rebound-test-")
	if errors.Is(err, unix.EROFS) { // as in most containers
		t.Skip("needs cgroups that can be written:", err)
	}
	must.OK(t, err)
	t.Cleanup(func() {
		if !await.Holds(func() bool { return os.Remove(dir) == nil }) {
			t.Errorf("%s cannot be removed", dir)
		}
	})
	must.OK(t, os.WriteFile(dir+"/cpuset.mems", mems, 0))
	must.OK(t, os.WriteFile(dir+"/cpuset.cpus", []byte(cpu), 0))
	return dir
}
