// Package limits names the limits of a process and its machine that a command runs into: open files, threads, memory,
// disk. Enough files, threads and memory for the start are checked before anything else, because the Go runtime and
// libraries end with a crash or a misleading error when one of these runs out in the middle of their work.
package limits

import (
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	_ "github.com/rebound-nic/rebound/internal/host/limits/early" // its init
)

// Need is what a command needs to start.
type Need struct {
	Files   int // beside those that are open
	Threads int
	Memory  uint64 // bytes
}

// Check returns an error that names the limit that leaves less than need, and how to raise it.
func Check(need Need) error { return check(need, "/proc/self/cgroup", "/sys/fs/cgroup") }

func check(need Need, own, root string) error {
	if n, err := room(need.Files); n < need.Files {
		return Explain(fmt.Errorf("the start needs %d more open files, and only %d can be opened: %w", need.Files, n,
			err))
	}
	return cgroups(need, own, root)
}

// room returns how many files can be opened, at most n, and the error of the next one.
func room(n int) (int, error) {
	open := make([]int, 0, n)
	defer func() {
		for _, fd := range open {
			unix.Close(fd)
		}
	}()
	for range n {
		fd, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return len(open), err
		}
		open = append(open, fd)
	}
	return n, nil
}

// cgroups checks the limits of this process's cgroup, listed in the file own, and of its parents below root. A file
// that is missing or unreadable is no limit.
func cgroups(need Need, own, root string) error {
	b, err := os.ReadFile(own)
	if err != nil {
		return nil
	}
	for _, l := range []struct {
		controllers           string // as in the file own; empty for the unified hierarchy
		folder                string // below root
		most, used, what, fix string
		need                  uint64
	}{
		{"", "", "pids.max", "pids.current", "threads", "TasksMax=", uint64(need.Threads)},
		{"", "", "memory.max", "memory.current", "bytes of memory", "MemoryMax=, resources.limits.memory", need.Memory},
		{"pids", "pids", "pids.max", "pids.current", "threads", "TasksMax=", uint64(need.Threads)}, // version 1
		{"memory", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "bytes of memory", "MemoryMax=, resources.limits.memory", need.Memory},
	} {
		for dir := range Groups(string(b), l.controllers, filepath.Join(root, l.folder)) {
			most, ok := number(filepath.Join(dir, l.most))
			used, _ := number(filepath.Join(dir, l.used))
			if l.what != "threads" { // the page cache makes room
				used -= min(used, cache(filepath.Join(dir, "memory.stat")))
			}
			if left := most - min(most, used); ok && left < l.need {
				return fmt.Errorf("the start needs %d %s, and the cgroup's limit leaves %d: %s is %d, of which %d are used (raise it: %s)", l.need, l.what,
					left, filepath.Join(dir, l.most), most, used, l.fix)
			}
		}
	}
	return nil
}

// Groups yields the folders of a process's cgroup and of those above it, from it up to top, which has the hierarchy.
// own is what its /proc/PID/cgroup says, and controllers what the hierarchy's line there has: nothing for version 2.
// Without such a line there are none.
func Groups(own, controllers, top string) iter.Seq[string] {
	return func(yield func(string) bool) {
		_, path, found := strings.Cut(own, ":"+controllers+":/")
		path, _, _ = strings.Cut(path, "\n")
		for dir := filepath.Join(top, path); found && len(dir) >= len(top) && yield(dir); {
			dir = filepath.Dir(dir)
		}
	}
}

// number reads a number from a file. "max" is none.
func number(file string) (n uint64, ok bool) {
	b, _ := os.ReadFile(file)
	n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	return n, err == nil
}

// cache is the memory of a cgroup that the kernel can reclaim, from its memory.stat.
func cache(file string) (n uint64) {
	b, _ := os.ReadFile(file)
	for line := range strings.Lines(string(b)) {
		if name, value, _ := strings.Cut(strings.TrimSpace(line), " "); name == "file" || name == "slab_reclaimable" ||
			name == "cache" { // cache is version 1's
			v, _ := strconv.ParseUint(value, 10, 64)
			n += v
		}
	}
	return n
}

// Explain adds to an error that a limit caused which limit that is and how to raise it. It returns other errors as they
// are.
func Explain(err error) error {
	limit := func(resource int) string {
		var l unix.Rlimit
		if unix.Getrlimit(resource, &l) != nil {
			return "unknown"
		}
		if l.Max == unix.RLIM_INFINITY {
			return "unlimited"
		}
		return strconv.FormatUint(l.Max, 10)
	}
	for _, c := range []struct {
		errno unix.Errno
		say   func() string
	}{
		{unix.EMFILE, func() string {
			return "the limit of open files is " + limit(unix.RLIMIT_NOFILE) +
				": raise it with ulimit -n or LimitNOFILE="
		}},
		{unix.ENFILE, func() string { return "this machine's limit of open files is reached: raise sysctl fs.file-max" }},
		{unix.ENOBUFS, func() string {
			return "no memory for a socket's buffers: the limit of locked memory is " + limit(unix.RLIMIT_MEMLOCK) +
				" bytes (ulimit -l, LimitMEMLOCK=)"
		}},
		{unix.ENOMEM, func() string {
			return "raise what limits memory: the cgroup's memory.max (MemoryMax=), locked memory, which is " +
				limit(unix.RLIMIT_MEMLOCK) +
				" bytes (ulimit -l, LimitMEMLOCK=), or use a smaller nic.ring_size"
		}},
		{unix.ENOSPC, func() string {
			return "no space: free some on the disk, or raise sysctl fs.inotify.max_user_watches if it is about watching files"
		}},
		{unix.EDQUOT, func() string { return "the user's disk quota is used up" }},
	} {
		if errors.Is(err, c.errno) {
			return fmt.Errorf("%w (%s)", err, c.say())
		}
	}
	return err
}
