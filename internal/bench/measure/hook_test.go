package measure

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
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

// A hook that takes too long is killed with what it started.
func TestSlowHook(t *testing.T) {
	needs.Long(t)
	pid := filepath.Join(t.TempDir(), "pid")
	// The shell has to reach the sleep command, on a machine that may delay it by a second.
	h := Hook{Name: "b", Command: "echo starting; sleep 1000 & echo $! > " + pid + "; wait", Within: 5 * time.Second}
	check.Fails(t, "a slow hook", h.Run(), errHook, "within 5.000 s", "starting")
	running := alive(t, pid)
	await.Until(t, "what the hook started has ended", func() bool { return !running() })
}

// Run does not wait for background processes of a hook, which keep running: neither for their end, nor longer for their
// output than the hook may take.
func TestBackground(t *testing.T) {
	needs.Long(t)
	defer func(was time.Duration) { grace = was }(grace)
	for _, c := range []struct{ grace, within time.Duration }{{grace, time.Minute},
		{6 * time.Second, 5 * time.Second}} {
		grace = c.grace
		pid := filepath.Join(t.TempDir(), "pid")
		h := Hook{Command: "sleep 1000 & echo $! > " + pid, Within: c.within}
		check.OK(t, h.Run())
		if err := unix.Kill(processID(t, pid), unix.SIGKILL); err != nil {
			t.Errorf("what the hook left in the background: %v", err)
		}
	}
}
