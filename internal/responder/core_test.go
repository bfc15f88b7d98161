package responder

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/internal/host/isolate"
	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/programs"
)

// Cores that the loops get are free of this process's other threads. If every core polls, that is remarked, or refused
// with cpu.priority.
func TestPrepare(t *testing.T) {
	var all, now unix.CPUSet
	must.OK(t, unix.SchedGetaffinity(0, &all))
	defer scheduled(t)()
	online := must.Get(onlineCPUs())(t)
	s := newSettings(online)
	remarks, err := prepare(s, online, online)
	if err != nil || len(remarks) != 1 || !slices.Equal(remarks[0].attrs, []any{"cores", isolate.FormatCPUs(online)}) {
		t.Errorf("every core: %v, %v", remarks, err)
	}
	must.OK(t, unix.SchedGetaffinity(0, &now))
	check.Equal(t, now, all, "moved to %v")
	s.cpu.priority = 1
	_, err = prepare(s, online, online)
	check.Fails(t, "every core", err, nil, "cpu.priority: SCHED_FIFO on every core", "("+isolate.FormatCPUs(online)+")")
	if len(online) < 2 {
		t.Skip("needs two CPUs")
	}
	for _, core := range []int{online[0], online[1]} { // the second time the process has only this one
		if remarks, err = prepare(s, []int{core}, online); err != nil || remarks != nil {
			t.Errorf("core %d: %v, %v", core, remarks, err)
		}
		must.OK(t, process.EachThread(func(tid int) error {
			if err := unix.SchedGetaffinity(tid, &now); err != nil {
				return err
			}
			want := map[bool]int{true: all.Count() - 1, false: len(online) - 1}[core == online[0]]
			if now.IsSet(core) || now.Count() != want {
				t.Errorf("thread %d has %d CPUs, %d: %t", tid, now.Count(), core, now.IsSet(core))
			}
			return nil
		}))
		now.Zero()
		now.Set(online[1])
		must.OK(t, process.Bind(&now))
	}
	rest := must.Get(keepOff(online[1:2], online))(t)
	check.Same(t, rest, slices.Delete(slices.Clone(online), 1, 2), "the rest is %v")
	must.OK(t, unix.SchedGetaffinity(0, &now))
	check.Equal(t, now.IsSet(online[1]), false, "still on the core: %t")
}

// occupy puts one thread on its core, without the signals that go to others, and says what it cannot.
func TestOccupy(t *testing.T) {
	online := must.Get(onlineCPUs())(t)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread() // it ends with the goroutine
		check.OK(t, occupy(online[0], 0))
		var mask unix.CPUSet
		check.OK(t, unix.SchedGetaffinity(0, &mask))
		if !mask.IsSet(online[0]) || mask.Count() != 1 {
			t.Errorf("%d CPUs", mask.Count())
		}
		status, err := os.ReadFile("/proc/thread-self/status")
		check.OK(t, err)
		_, blocked, _ := strings.Cut(string(status), "SigBlk:\t")
		var set uint64
		fmt.Sscanf(blocked, "%x", &set)
		for _, s := range []unix.Signal{unix.SIGKILL, unix.SIGSTOP, unix.SIGSEGV, unix.SIGBUS, unix.SIGFPE, unix.SIGILL,
			unix.SIGTRAP} {
			check.Equal(t, set>>(s-1)&1, 0, s.String()+" blocked: %d")
			set |= 1 << (s - 1)
		}
		check.Equal(t, set, ^uint64(0), "all others are blocked: %x")
		check.Fails(t, "no such core", occupy(1023, 0), unix.EINVAL, "run on core 1023: sched_setaffinity")
		check.Fails(t, "no such priority", occupy(online[0], 100), nil, "SCHED_FIFO 100 on core", "needs CAP_SYS_NICE")
	}()
	<-ended
}

// A device without an Ethernet address cannot answer for a MAC.
func TestMACOf(t *testing.T) {
	var c fastpath.Config
	must.OK(t, mac(&c, nic.Info{MAC: "02:00:00:00:00:07"}))
	check.Equal(t, c.MAC, [6]byte{2, 0, 0, 0, 0, 7}, "%x")
	for _, text := range []string{"", "00:00:00:00:00:00", "02:00:00:00:00:00:00:07"} {
		check.Fails(t, text, mac(&c, nic.Info{MAC: text, Device: "lo"}), nil, "lo has no Ethernet address")
	}
}

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
