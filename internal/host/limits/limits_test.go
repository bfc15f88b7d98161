package limits

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/must"
)

// The limits of the process's cgroup and of its parents count, without reclaimable memory.
func TestCgroups(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string // of the parent and of the cgroup itself
		want  []string          // of the error, nil for none
	}{
		"none":              {nil, nil},
		"unlimited":         {map[string]string{"a/b/memory.max": "max\n", "a/b/memory.current": "100\n", "a/b/pids.max": "max\n"}, nil},
		"enough":            {map[string]string{"a/b/memory.max": "1100\n", "a/b/memory.current": "100\n", "a/pids.max": "20", "a/pids.current": "10"}, nil},
		"cache":             {map[string]string{"a/b/memory.max": "1100\n", "a/b/memory.current": "1000\n", "a/b/memory.stat": "anon 100\nfile 800\nslab_reclaimable 100\n"}, nil},
		"memory":            {map[string]string{"a/b/memory.max": "1099\n", "a/b/memory.current": "100\n"}, []string{"a/b/memory.max is 1099", "leaves 999", "MemoryMax"}},
		"parent's memory":   {map[string]string{"a/memory.max": "500", "a/memory.current": "600"}, []string{"a/memory.max is 500", "leaves 0"}},
		"version 1":         {map[string]string{"memory/c/memory.limit_in_bytes": "1099\n", "memory/c/memory.usage_in_bytes": "1100\n", "memory/c/memory.stat": "cache 1000\n"}, []string{"memory/c/memory.limit_in_bytes is 1099", "leaves 999", "MemoryMax"}},
		"version 1, parent": {map[string]string{"pids/pids.max": "15", "pids/pids.current": "6"}, []string{"10 threads", "pids/pids.max is 15"}},
		"threads":           {map[string]string{"a/b/pids.max": "15", "a/b/pids.current": "6"}, []string{"10 threads", "pids.max is 15", "TasksMax"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			own := filepath.Join(dir, "cgroup")
			must.OK(t, os.WriteFile(own, []byte("1:name=x:/other\n3:pids:/d\n2:memory:/c\n0::/a/b\n"), 0o644))
			for f, text := range c.files {
				must.OK(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, f)), 0o755))
				must.OK(t, os.WriteFile(filepath.Join(dir, f), []byte(text), 0o644))
			}
			err := check(Need{Files: 1, Threads: 10, Memory: 1000}, own, dir)
			if (err != nil) != (c.want != nil) {
				t.Fatalf("got %v", err)
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%v; want %q", err, w)
				}
			}
		})
	}
}

func TestExplain(t *testing.T) {
	for errno, want := range map[unix.Errno]string{unix.EMFILE: "ulimit -n", unix.ENFILE: "fs.file-max",
		unix.ENOMEM: "memory.max", unix.ENOBUFS: "ulimit -l",
		unix.ENOSPC: "inotify", unix.EDQUOT: "quota"} {
		err := Explain(fmt.Errorf("open x: %w", errno))
		if !errors.Is(err, errno) || !strings.HasPrefix(err.Error(), "open x: ") ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", errno, err)
		}
	}
	if err := Explain(unix.EPERM); err != unix.EPERM {
		t.Errorf("EPERM became %v", err)
	}
	if Explain(nil) != nil {
		t.Error("nil became an error")
	}
}
