package responder

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

// threads returns the fields of /proc/PID/task/*/status, by thread.
func threads(t *testing.T, pid int) map[int]map[string]string {
	t.Helper()
	all := map[int]map[string]string{}
	for _, file := range must.Get(filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid)))(t) {
		b, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		fields := map[string]string{}
		for line := range strings.Lines(string(b)) {
			name, value, _ := strings.Cut(line, ":")
			fields[name] = strings.TrimSpace(value)
		}
		all[must.Get(strconv.Atoi(fields["Pid"]))(t)] = fields
	}
	if len(all) == 0 {
		t.Fatalf("no threads of process %d", pid)
	}
	return all
}

// kilobytes reads a field of the process's status.
func (p *child) kilobytes(t *testing.T, field string) int {
	t.Helper()
	return must.Get(strconv.Atoi(strings.TrimSuffix(threads(t, p.Process.Pid)[p.Process.Pid][field], " kB")))(t)
}

// polling returns the polling thread, which is the one that blocks SIGTERM.
func (p *child) polling(t *testing.T) int {
	t.Helper()
	return p.only(t, "blocks SIGTERM", func(status map[string]string) bool {
		return must.Get(strconv.ParseUint(status["SigBlk"], 16, 64))(t)>>(unix.SIGTERM-1)&1 == 1
	})
}

// only returns the one thread whose status has a property.
func (p *child) only(t *testing.T, what string, has func(status map[string]string) bool) int {
	t.Helper()
	all := threads(t, p.Process.Pid)
	maps.DeleteFunc(all, func(_ int, status map[string]string) bool { return !has(status) })
	if len(all) != 1 {
		t.Fatalf("%d threads, want 1 that %s", len(all), what)
	}
	return slices.Collect(maps.Keys(all))[0]
}

// faults returns the page faults of the polling thread.
func (p *child) faults(t *testing.T) (n int) {
	t.Helper()
	stat := must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/stat", p.Process.Pid, p.polling(t))))(t)
	_, rest, _ := strings.Cut(string(stat), ") ")
	for _, field := range []int{10, 12} { // minflt, majflt: proc_pid_stat(5)
		n += must.Get(strconv.Atoi(strings.Fields(rest)[field-3]))(t)
	}
	return n
}

// A responder is small: resident and locked memory have limits (docs/internals/performance.md), and no frame of any
// kind, the first of its kind included, makes the polling loop wait for a page.
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
