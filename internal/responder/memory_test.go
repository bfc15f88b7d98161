package responder

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

// kilobytes reads a field of /proc/PID/status.
func (p *process) kilobytes(t *testing.T, field string) int {
	t.Helper()
	b := must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Process.Pid)))(t)
	m := regexp.MustCompile(`(?m)^` + field + `:\s+(\d+) kB$`).FindSubmatch(b)
	if m == nil {
		t.Fatalf("no %s in %s", field, b)
	}
	n := must.Get(strconv.Atoi(string(m[1])))(t)
	return n
}

// polling returns the polling thread, which is the one that blocks SIGTERM.
func (p *process) polling(t *testing.T) (thread int) {
	t.Helper()
	tasks := fmt.Sprintf("/proc/%d/task/", p.Process.Pid)
	found := 0
	for _, e := range must.Get(os.ReadDir(tasks))(t) {
		status, err := os.ReadFile(tasks + e.Name() + "/status")
		if err != nil {
			continue // it has ended
		}
		m := regexp.MustCompile(`(?m)^SigBlk:\s+([0-9a-f]+)$`).FindSubmatch(status)
		blocked := must.Get(strconv.ParseUint(string(m[1]), 16, 64))(t)
		if blocked>>(unix.SIGTERM-1)&1 == 0 {
			continue
		}
		found++
		thread = must.Get(strconv.Atoi(e.Name()))(t)
	}
	if found != 1 {
		t.Fatalf("%d threads block SIGTERM, want 1", found)
	}
	return thread
}

// faults returns the page faults of the polling thread.
func (p *process) faults(t *testing.T) (n int) {
	t.Helper()
	stat := must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/stat", p.Process.Pid, p.polling(t))))(t)
	_, rest, _ := strings.Cut(string(stat), ") ")
	for _, field := range []int{10, 12} { // minflt, majflt: proc_pid_stat(5)
		n += must.Get(strconv.Atoi(strings.Fields(rest)[field-3]))(t)
	}
	return n
}

// A responder is small: resident and locked memory have limits (docs/memory.md), and no frame of any kind, the first of its kind
// included, makes the polling loop wait for a page.
func TestMemory(t *testing.T) {
	needs.Programs(t, "ping")
	const mb = 1 << 10 // in kB
	for _, c := range []struct {
		driver           string
		resident, locked int
	}{{"afpacket", 40 * mb, 40 * mb}, {"afxdp", 40 * mb, 40 * mb}, {"xdp", 20 * mb, 0}} {
		t.Run(c.driver, func(t *testing.T) {
			w := newWire(t)
			p := w.start(t, nil, "nic.driver="+c.driver, "guard.rate=0")
			polls := c.driver != "xdp"
			before := 0
			if polls {
				before = p.faults(t)
			}
			w.run(t, "ping", "-c", "2000", "-i", "0.0005", "-q", ours4)
			w.run(t, "ping", "-6", "-c", "200", "-i", "0.001", "-s", "1400", "-q", ours6)
			echoUDP(t, w.dial(t, ours4+":7"))
			echoUDP(t, w.dial(t, "["+ours6+"]:7"))
			if polls {
				if n := p.faults(t) - before; n != 0 {
					t.Errorf("the polling thread had %d page faults", n)
				}
			}
			resident, locked := p.kilobytes(t, "VmRSS"), p.kilobytes(t, "VmLck")
			t.Logf("%d kB resident, %d kB locked", resident, locked)
			if resident > c.resident {
				t.Errorf("%d kB are resident, want %d at most", resident, c.resident)
			}
			if locked > c.locked || polls && locked == 0 && !strings.Contains(p.Log.String(), "memory is not locked") {
				t.Errorf("%d kB are locked, want %d at most, and some in a polling responder", locked, c.locked)
			}
		})
	}
}
