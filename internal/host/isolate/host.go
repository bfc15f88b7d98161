// Package isolate reserves CPUs of a running machine for one program, without a reboot, and undoes it on exit. It makes
// a cgroup-v2 partition, moves everything that can be moved to other CPUs and, on request, lifts the kernel's guard
// against real-time threads.
//
// Every change is written to a journal before it is made, so that the next process can undo what a killed one left
// behind (Abandoned).
package isolate

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Host is the machine. The zero Host is the one that the program runs on; tests use another root and fake threads.
type Host struct {
	Root string // "" for "/"

	affinity    func(tid int) ([]int, error)
	setAffinity func(tid int, cpus []int) error
	// emulates what the kernel does on a "write", "mkdir" or "rmdir"
	kernel  func(op, name, value string) (handled bool, err error)
	debugfs *os.File            // mounted for this process only, if no other mount exists
	held    map[string]*os.File // kept open after they were changed (hold)
}

// Step is one part of isolation, with its result.
type Step struct {
	Name string
	Done string // what was done, or empty
	Err  error  // why it was not done, or only partly
}

func (s Step) String() string {
	switch {
	case s.Err == nil:
		return s.Name + ": " + s.Done
	case s.Done == "":
		return s.Name + ": not done: " + s.Err.Error()
	}
	return s.Name + ": " + s.Done + "; not all: " + s.Err.Error()
}

const debugfsPath = "/sys/kernel/debug/"

func (h *Host) path(name string) string {
	if rest, ok := strings.CutPrefix(name, debugfsPath); ok && h.Root == "" && h.debugfs != nil {
		return fmt.Sprintf("/proc/self/fd/%d/%s", h.debugfs.Fd(), rest)
	}
	return filepath.Join("/", h.Root, name)
}

// mountDebugfs makes debugfs readable to this process if it is not mounted. The mount is not attached to any path.
func (h *Host) mountDebugfs() error {
	if _, err := os.Stat(h.path(debugfsPath + "sched")); err == nil || h.Root != "" || h.debugfs != nil {
		return nil
	}
	fs, err := unix.Fsopen("debugfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("debugfs: %w", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return fmt.Errorf("debugfs: %w", err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("debugfs: %w", err)
	}
	h.debugfs = os.NewFile(uintptr(fd), "debugfs")
	return nil
}

func (h *Host) read(name string) (string, error) {
	if f := h.held[name]; f != nil {
		_, err := f.Seek(0, io.SeekStart)
		b, err2 := io.ReadAll(f)
		return strings.TrimSpace(string(b)), errors.Join(err, err2)
	}
	b, err := os.ReadFile(h.path(name))
	return strings.TrimSpace(string(b)), err
}

// hold keeps a short kernel file open until letGo, so that a process that has confined itself, and may no longer open
// it, can still restore it.
func (h *Host) hold(name string) error {
	if h.held[name] != nil {
		return nil
	}
	f, err := os.OpenFile(h.path(name), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	if h.held == nil {
		h.held = map[string]*os.File{}
	}
	h.held[name] = f
	return nil
}

func (h *Host) letGo() {
	for _, f := range h.held {
		f.Close()
	}
	h.held = nil
}

// glob returns the matching files, with paths relative to Root.
func (h *Host) glob(pattern string) []string {
	names, _ := filepath.Glob(h.path(pattern))
	for i, n := range names {
		names[i] = filepath.Join("/", strings.TrimPrefix(n, filepath.Join("/", h.Root)))
	}
	return names
}

// write writes an existing kernel file.
func (h *Host) write(name, value string) error {
	if h.kernel != nil {
		if handled, err := h.kernel("write", name, value); handled {
			return err
		}
	}
	if f := h.held[name]; f != nil {
		f.Truncate(0) // for ordinary files in tests; the kernel's files have no length
		_, err := f.Seek(0, io.SeekStart)
		if err == nil {
			_, err = f.WriteString(value + "\n")
		}
		return err
	}
	f, err := os.OpenFile(h.path(name), os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value + "\n")
	return errors.Join(err, f.Close())
}

func (h *Host) mkdir(name string) error {
	if h.kernel != nil {
		_, err := h.kernel("mkdir", name, "")
		return err
	}
	return os.Mkdir(h.path(name), 0o755)
}

func (h *Host) rmdir(name string) error {
	if h.kernel != nil {
		_, err := h.kernel("rmdir", name, "")
		return err
	}
	return unix.Rmdir(h.path(name))
}

// FormatCPUs formats a sorted list of CPUs as the kernel does: "0-3,8".
func FormatCPUs(cpus []int) string {
	var parts []string
	for i := 0; i < len(cpus); {
		j := i
		for j+1 < len(cpus) && cpus[j+1] == cpus[j]+1 {
			j++
		}
		if j > i {
			parts = append(parts, fmt.Sprintf("%d-%d", cpus[i], cpus[j]))
		} else {
			parts = append(parts, strconv.Itoa(cpus[i]))
		}
		i = j + 1
	}
	return strings.Join(parts, ",")
}

// ParseCPUs parses the kernel's list of CPUs, "0-3,8".
func ParseCPUs(s string) ([]int, error) {
	var out []int
	for part := range strings.SplitSeq(s, ",") {
		if part = strings.TrimSpace(part); part == "" || part == "(null)" {
			continue
		}
		first, last, span := strings.Cut(part, "-")
		a, err := strconv.ParseUint(first, 10, 16)
		b := a
		if err == nil && span {
			b, err = strconv.ParseUint(last, 10, 16)
		}
		if err != nil || b < a {
			return nil, fmt.Errorf("%q is not a list of CPUs", s)
		}
		for c := a; c <= b; c++ {
			out = append(out, int(c))
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// cpuMask formats CPUs in the kernel's other notation: "10f", in groups of 32 bits.
func cpuMask(cpus []int) string {
	groups := []uint32{0}
	for _, c := range cpus {
		for c/32 >= len(groups) {
			groups = append(groups, 0)
		}
		groups[c/32] |= 1 << (c % 32)
	}
	var b strings.Builder
	for i := len(groups) - 1; i >= 0; i-- {
		if i == len(groups)-1 {
			fmt.Fprintf(&b, "%x", groups[i])
		} else {
			fmt.Fprintf(&b, ",%08x", groups[i])
		}
	}
	return b.String()
}

func parseMask(s string) ([]int, error) {
	var out []int
	groups := strings.Split(s, ",")
	slices.Reverse(groups)
	for i, g := range groups {
		v, err := strconv.ParseUint(g, 16, 32)
		if err != nil {
			return nil, fmt.Errorf("%q is not a mask of CPUs", s)
		}
		for bit := range 32 {
			if v>>bit&1 != 0 {
				out = append(out, 32*i+bit)
			}
		}
	}
	return out, nil
}

// without returns the CPUs of a that are not in b.
func without(a, b []int) []int {
	return slices.DeleteFunc(slices.Clone(a), func(c int) bool { return slices.Contains(b, c) })
}

func union(a, b []int) []int {
	out := slices.Concat(a, b)
	slices.Sort(out)
	return slices.Compact(out)
}

func overlap(a, b []int) bool { return len(without(a, b)) < len(a) }
