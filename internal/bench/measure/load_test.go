package measure

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// processID returns the process ID that a command writes to a file.
func processID(t *testing.T, file string) (id int) {
	t.Helper()
	await.Until(t, "the command has written its process ID", func() bool {
		b, err := os.ReadFile(file)
		id, _ = strconv.Atoi(strings.TrimSpace(string(b)))
		return err == nil && id > 0
	})
	return id
}

// alive returns a function that reports whether the process whose ID is in a file runs.
func alive(t *testing.T, file string) func() bool {
	t.Helper()
	id := processID(t, file)
	return func() bool {
		s, err := os.ReadFile("/proc/" + strconv.Itoa(id) + "/stat")
		return err == nil && !strings.Contains(string(s), ") Z ")
	}
}

// A load runs until it is stopped, and then no process of its group remains: neither one that ignores SIGTERM, nor a
// child.
func TestLoad(t *testing.T) {
	defer func(was time.Duration) { stopWithin = was }(stopWithin)
	stopWithin = 100 * time.Millisecond
	dir := t.TempDir()
	child, own := filepath.Join(dir, "child"), filepath.Join(dir, "own")
	l := must.Get(StartLoad("trap '' TERM; sleep 1000 & echo $! >"+child+"; echo $$ >"+own+
		"; while :; do sleep 1000; done", unix.CPUSet{}))(t)
	running, shell := alive(t, child), alive(t, own)
	if how, ended := l.Ended(); ended {
		t.Errorf("the load has ended: %s", how)
	}
	check.Equal(t, shell(), true, "the load's shell runs: %v")
	check.Equal(t, running(), true, "the load's child runs: %v")
	l.Stop()
	if _, ended := l.Ended(); !ended {
		t.Error("the load is stopped and has not ended")
	}
	await.Until(t, "all of the load has ended", func() bool { return !running() && !shell() })
	l.Stop() // a second call does nothing
}

// A load that ends without being stopped reports how. It runs on the CPUs that it may use.
func TestLoadEnds(t *testing.T) {
	var all, cpus unix.CPUSet
	must.OK(t, unix.SchedGetaffinity(0, &all))
	cpu := 0
	for !all.IsSet(cpu) {
		cpu++
	}
	cpus.Set(cpu)
	for command, says := range map[string][]string{
		"echo cannot connect >&2; exit 3": {"exit status 3", "cannot connect"},
		"exit 0":                          {"it ended with status 0"},
		`echo "CPU $(sed -n 's/^Cpus_allowed_list:\t//p' /proc/self/status) alone"`: {fmt.Sprintf("CPU %d alone", cpu)},
	} {
		l := must.Get(StartLoad(command, cpus))(t)
		var how string
		await.Until(t, "the load has ended", func() (ended bool) { how, ended = l.Ended(); return ended })
		check.Contains(t, how, says...)
		l.Stop()
	}
}
