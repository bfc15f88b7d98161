package hook

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"golang.org/x/sys/unix"
)

func TestRun(t *testing.T) {
	file := filepath.Join(t.TempDir(), "out")
	h := Hook{Name: "b", Command: `echo "$REBOUND_VARIANT $(sed -n 's/^Cpus_allowed_list:\t//p' /proc/self/status)" > ` + file, Within: time.Minute}
	var all unix.CPUSet
	must.OK(t, unix.SchedGetaffinity(0, &all))
	cpu := 0
	for !all.IsSet(cpu) {
		cpu++
	}
	h.CPUs.Set(cpu)
	must.OK(t, h.Run())
	if b, _ := os.ReadFile(file); string(b) != "b "+strconv.Itoa(cpu)+"\n" {
		t.Errorf("%q, want variant b on CPU %d", b, cpu)
	}
	if all2 := (unix.CPUSet{}); unix.SchedGetaffinity(0, &all2) != nil || all2 != all {
		t.Errorf("the caller's own CPUs are %v now", all2)
	}
}

func TestFails(t *testing.T) {
	h := Hook{Name: "b", Command: "echo no such sysctl >&2; exit 3", Within: time.Minute}
	if err := h.Run(); !errors.Is(err, errHook) || !strings.Contains(err.Error(), "no such sysctl") || !strings.Contains(err.Error(), "exit status 3") {
		t.Error(err)
	}
	pid := filepath.Join(t.TempDir(), "pid")
	// The shell has to reach the sleep command, on a machine that may delay it by a second.
	h = Hook{Name: "b", Command: "echo starting; sleep 1000 & echo $! > " + pid + "; wait", Within: 5 * time.Second}
	if err := h.Run(); !errors.Is(err, errHook) || !strings.Contains(err.Error(), "within 5s") || !strings.Contains(err.Error(), "starting") {
		t.Error(err)
	}
	b := must.Get(os.ReadFile(pid))(t)
	id, _ := strconv.Atoi(strings.TrimSpace(string(b)))
	await.Until(t, "what the hook started has ended", func() bool {
		s, err := os.ReadFile("/proc/" + strconv.Itoa(id) + "/stat")
		return err != nil || strings.Contains(string(s), ") Z ")
	})
}

// Run does not wait for background processes of a hook.
func TestBackground(t *testing.T) {
	pid := filepath.Join(t.TempDir(), "pid")
	h := Hook{Command: "sleep 1000 & echo $! > " + pid, Within: time.Minute}
	check.OK(t, h.Run())
	killAlive(t, pid)
}

// The time limit is for the hook, not for the output of a background process, which keeps running.
func TestBoundEndsWithHook(t *testing.T) {
	defer func(was time.Duration) { grace = was }(grace)
	grace = 6 * time.Second
	pid := filepath.Join(t.TempDir(), "pid")
	h := Hook{Command: "sleep 1000 & echo $! > " + pid, Within: 5 * time.Second}
	check.OK(t, h.Run())
	killAlive(t, pid)
}

// killAlive kills the process whose ID is in a file, and fails the test if it had already ended.
func killAlive(t *testing.T, file string) {
	t.Helper()
	b := must.Get(os.ReadFile(file))(t)
	id, _ := strconv.Atoi(strings.TrimSpace(string(b)))
	if err := unix.Kill(id, unix.SIGKILL); err != nil {
		t.Errorf("what the hook left in the background: %v", err)
	}
}
