package campaign

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// held is a kernel object that a responder had open; it must disappear with the process.
type held struct {
	kind string // "program", "link", "map", "vfio"
	id   int
}

func (h held) String() string { return fmt.Sprintf("BPF %s %d", h.kind, h.id) }

// holds returns the objects that a process has open, from the kernel's information on its file descriptors.
func holds(pid int) (all []held) {
	dir := fmt.Sprintf("/proc/%d/fdinfo", pid)
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			continue
		}
		for line := range strings.SplitSeq(string(b), "\n") {
			name, value, _ := strings.Cut(line, ":")
			kind, ok := strings.CutSuffix(name, "_id")
			var id int
			if _, err := fmt.Sscan(value, &id); ok && err == nil &&
				(kind == "prog" || kind == "link" || kind == "map") {
				all = append(all, held{kind, id})
			}
		}
	}
	return all
}

// there reports whether the object still exists.
func (h held) there() bool {
	var err error
	switch h.kind {
	case "prog":
		var p *ebpf.Program
		if p, err = ebpf.NewProgramFromID(ebpf.ProgramID(h.id)); err == nil {
			p.Close()
		}
	case "map":
		var m *ebpf.Map
		if m, err = ebpf.NewMapFromID(ebpf.MapID(h.id)); err == nil {
			m.Close()
		}
	case "link":
		var l link.Link
		if l, err = link.NewFromID(link.ID(h.id)); err == nil {
			l.Close()
		}
	}
	return !errors.Is(err, fs.ErrNotExist)
}

// gone waits until none of the objects exists, because the kernel may remove them slightly later, and returns the
// remaining ones.
func gone(all []held, limit time.Duration) (left []string) {
	for end := time.Now().Add(limit); ; time.Sleep(10 * time.Millisecond) {
		left = nil
		for _, h := range all {
			if h.there() {
				left = append(left, h.String())
			}
		}
		if len(left) == 0 || time.Now().After(end) {
			return left
		}
	}
}

// own counts the resources that this process holds.
type own struct {
	goroutines, files, memory, children, mounts int
	hugeFree                                    string
}

func holding() (o own) {
	o.goroutines = runtime.NumGoroutine()
	files, _ := os.ReadDir("/proc/self/fd")
	o.files = len(files)
	maps, _ := os.ReadFile("/proc/self/maps")
	o.memory = strings.Count(string(maps), "/memfd:") + strings.Count(string(maps), "/anon_hugepage")
	mounts, _ := os.ReadFile("/proc/self/mounts")
	o.mounts = strings.Count(string(mounts), "\n")
	everyThread(os.Getpid(), func(tid int) {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/children", tid))
		o.children += len(strings.Fields(string(b)))
	})
	info, _ := os.ReadFile("/proc/meminfo")
	for line := range strings.SplitSeq(string(info), "\n") {
		if v, ok := strings.CutPrefix(line, "HugePages_Free:"); ok {
			o.hugeFree = strings.TrimSpace(v)
		}
	}
	return o
}

func (o own) String() string {
	return fmt.Sprintf("%d goroutines, %d files, %d shared mappings, %d children, %d mounts", o.goroutines, o.files,
		o.memory, o.children, o.mounts)
}

// more lists the resources that have grown since before.
func (o own) more(before own) (all []string) {
	for _, c := range []struct {
		what     string
		now, was int
	}{{"goroutines", o.goroutines, before.goroutines}, {"files", o.files, before.files},
		{"shared mappings", o.memory, before.memory},
		{"child processes", o.children, before.children}, {"mounts", o.mounts, before.mounts}} {
		if c.now > c.was {
			all = append(all, fmt.Sprintf("%d %s, %d before", c.now, c.what, c.was))
		}
	}
	return all
}
