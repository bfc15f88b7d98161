package isolate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Journals is the folder with one journal for each process that holds CPUs. A reboot removes it, as it undoes the
// changes.
const Journals = "/run/rebound/isolate"

// change is one change to the machine, with what is needed to undo it. Undoing one that was not made has no effect.
type change struct {
	Kind kind   `json:"kind"`
	Path string `json:"path,omitempty"`

	Old, New string // value

	Before, After []int // cpus, task
	Mask          bool  // cpus: written as a mask

	TID   int    `json:",omitempty"` // task
	Start uint64 `json:",omitempty"` // of the task, in ticks since boot: its number may be another's by then
	// the latest start of any thread when this one was moved: a thread that started later may be its child
	Newest uint64 `json:",omitempty"`
}

type kind string

const (
	value      kind = "value"      // a file that had Old and has New
	cpus       kind = "cpus"       // a file with CPUs
	task       kind = "task"       // a thread's affinity
	directory  kind = "directory"  // a cgroup that was created
	controller kind = "controller" // cpuset was enabled in a cgroup.subtree_control
	offline    kind = "offline"    // a CPU was taken offline, and online again
)

// owner is a journal's first line.
type owner struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // of the process
	Boot  string `json:"boot"`
	CPUs  []int  `json:"cpus"`
}

// journal is the open journal of this process.
type journal struct {
	*Host
	file    *os.File
	changes []change
}

// open creates the journal of this process for its CPUs. Its first line identifies the process, so that a later one can
// see that the owner has died.
func (h *Host) open(cpus []int) (*journal, error) {
	if err := os.MkdirAll(h.path(Journals), 0o700); err != nil {
		return nil, err
	}
	o := owner{PID: os.Getpid(), CPUs: cpus}
	o.Boot, _ = h.read("/proc/sys/kernel/random/boot_id")
	if s, err := h.stat(o.PID, o.PID); err == nil {
		o.Start = s.start
	}
	f, err := os.OpenFile(h.path(fmt.Sprintf("%s/%d", Journals, o.PID)), os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND,
		0o600)
	if err != nil {
		return nil, err
	}
	j := &journal{Host: h, file: f}
	return j, j.line(o)
}

func (j *journal) line(v any) error {
	b, err := json.Marshal(v)
	if err == nil {
		_, err = j.file.Write(append(b, '\n'))
	}
	return err
}

// apply records a change and makes it.
func (j *journal) apply(c change, do func() error) error {
	if err := j.line(c); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	j.changes = append(j.changes, c)
	return do()
}

// set changes a file's value.
func (j *journal) set(path, to string) error {
	old, err := j.read(path)
	if err != nil || old == to {
		return err
	}
	return j.apply(change{Kind: value, Path: path, Old: old, New: to}, func() error { return j.write(path, to) })
}

// setCPUs changes a file with CPUs.
func (j *journal) setCPUs(path string, mask bool, to []int) error {
	c := change{Kind: cpus, Path: path, Mask: mask, After: to}
	var err error
	if c.Before, err = j.readCPUs(path, mask); err != nil || slices.Equal(c.Before, to) {
		return err
	}
	return j.apply(c, func() error { return j.writeCPUs(path, mask, to) })
}

func (h *Host) readCPUs(path string, mask bool) ([]int, error) {
	text, err := h.read(path)
	if err != nil {
		return nil, err
	}
	if mask {
		return parseMask(text)
	}
	return ParseCPUs(text)
}

func (h *Host) writeCPUs(path string, mask bool, cpus []int) error {
	if mask {
		return h.write(path, cpuMask(cpus))
	}
	return h.write(path, FormatCPUs(cpus))
}

// close undoes all changes, the last one first, and removes the journal. Threads come last: while a partition exists
// they cannot use its CPUs. What cannot be undone is returned as an error, and is not retried.
func (j *journal) close() error {
	err := j.undo(j.changes)
	j.letGo()
	return errors.Join(err, j.file.Close(), os.Remove(j.path(fmt.Sprintf("%s/%d", Journals, os.Getpid()))))
}

// undo reverts changes, the last one first. It goes on after an error and returns all of them.
func (h *Host) undo(changes []change) error {
	var failed []error
	var tasks []change
	for _, c := range slices.Backward(changes) {
		var err error
		switch c.Kind {
		case value:
			err = h.undoValue(c)
		case cpus:
			err = h.undoCPUs(c)
		case controller:
			if err = h.write(c.Path, "-cpuset"); errors.Is(err, unix.EBUSY) {
				err = nil // another cgroup below uses it by now
			}
		case directory:
			err = h.removeGroup(c.Path)
		case offline:
			err = h.write(c.Path, "1")
		case task:
			tasks = append(tasks, c)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			failed = append(failed, fmt.Errorf("undo %s: %w", c.Path, err))
		}
	}
	if err := h.undoTasks(tasks); err != nil {
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

// undoValue leaves a value alone that another process has changed since.
func (h *Host) undoValue(c change) error {
	now, err := h.read(c.Path)
	if err != nil || now != c.New {
		return err
	}
	return h.write(c.Path, c.Old)
}

// undoCPUs undoes only the difference that the change made: others may have added or removed their own CPUs since.
func (h *Host) undoCPUs(c change) error {
	now, err := h.readCPUs(c.Path, c.Mask)
	if err != nil {
		return err
	}
	to := without(union(now, without(c.Before, c.After)), without(c.After, c.Before))
	if slices.Equal(to, now) {
		return nil
	}
	return h.writeCPUs(c.Path, c.Mask, to)
}

// removeGroup removes a cgroup. Threads that have just exited may still be in it.
func (h *Host) removeGroup(path string) (err error) {
	for range 100 {
		if err = h.rmdir(path); err != unix.EBUSY {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
	return err
}

// Abandoned undoes what processes left behind that exited without undoing it, and returns a step for each of them. One
// that still runs gives a step without Err and Done.
func (h *Host) Abandoned() []Step {
	var steps []Step
	boot, _ := h.read("/proc/sys/kernel/random/boot_id")
	for _, name := range h.glob(Journals + "/*") {
		name = h.path(name)
		// If two processes start at once, only one may undo it: the one whose rename succeeds. That one may be killed
		// too.
		mine := name
		if whole, by, undoing := strings.Cut(filepath.Base(name), "."); undoing {
			pid, _ := strconv.Atoi(by)
			if _, err := h.stat(pid, pid); err == nil {
				continue
			}
			mine = filepath.Join(filepath.Dir(name), whole)
		}
		mine = fmt.Sprintf("%s.%d", mine, os.Getpid())
		o, changes, err := readJournal(name)
		step := Step{Name: fmt.Sprintf("CPUs %s of process %d", FormatCPUs(o.CPUs), o.PID)}
		s, serr := h.stat(o.PID, o.PID)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err == nil && o.Boot == boot && serr == nil && s.start == o.Start:
			steps = append(steps, step)
			continue
		case o.Boot == "" && serr == nil && o.PID != os.Getpid(): // about to write its first line
			continue
		}
		if err := os.Rename(name, mine); err != nil {
			continue
		}
		if o.Boot != boot {
			os.Remove(mine) // a reboot has undone it
			continue
		}
		h.mountDebugfs()
		step.Done = fmt.Sprintf("undid %d changes that it left when it was killed", len(changes))
		step.Err = errors.Join(err, h.undo(changes), os.Remove(mine))
		steps = append(steps, step)
	}
	return steps
}

// readJournal reads a journal. A truncated last line is a change that was not made.
func readJournal(name string) (o owner, changes []change, err error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return o, nil, err
	}
	lines := bytes.Split(b, []byte("\n"))
	if err := json.Unmarshal(lines[0], &o); err != nil {
		o.PID, _ = strconv.Atoi(filepath.Base(name))
		return o, nil, nil // the process exited before it changed anything
	}
	if len(lines) == 1 { // not even that line was written completely
		return o, nil, nil
	}
	for _, l := range lines[1 : len(lines)-1] {
		var c change
		if err := json.Unmarshal(l, &c); err != nil {
			return o, changes, fmt.Errorf("%s: %w", name, err)
		}
		changes = append(changes, c)
	}
	return o, changes, nil
}
