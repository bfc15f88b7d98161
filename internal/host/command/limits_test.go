package command

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

// start runs a command that does nothing, and returns what it says.
func start(t *testing.T, want int) string {
	t.Helper()
	p := &Program{Commands: []Command{{Name: "do", Run: func(*Env, []string) error { return nil }}}}
	var said strings.Builder
	check.Equal(t, p.Run([]string{"do"}, &said, &said), want, "exit code %d")
	return said.String()
}

// A command does not start with too few files, threads or bytes for the runtime and the libraries.
func TestTooFewFiles(t *testing.T) {
	var was unix.Rlimit
	must.OK(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	open := len(must.Get(os.ReadDir("/proc/self/fd"))(t))
	must.OK(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(open + 9), Max: was.Max}))
	said := start(t, process.Failed)
	must.OK(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was))
	check.Contains(t, said, "the start needs 64 more open files, and only ")
}

func TestSmallGroup(t *testing.T) {
	needs.Mounts(t)
	must.OK(t, unix.Mount("none", "/sys/fs/cgroup", "tmpfs", 0, ""))
	for _, c := range []struct{ pids, memory, says string }{
		{"24", "33554432", ""},
		{"23", "33554432", "the start needs 24 threads, and the cgroup's limit leaves 23"},
		{"24", "33554431", "the start needs 33554432 bytes of memory, and the cgroup's limit leaves 33554431"},
	} {
		must.OK(t, os.WriteFile("/sys/fs/cgroup/pids.max", []byte(c.pids), 0o644))
		must.OK(t, os.WriteFile("/sys/fs/cgroup/memory.max", []byte(c.memory), 0o644))
		if c.says == "" {
			check.Equal(t, start(t, process.Done), "", "%s")
			continue
		}
		check.Contains(t, start(t, process.Failed), c.says)
	}
}
