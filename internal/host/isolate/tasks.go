package isolate

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// stat is the content of /proc/PID/task/TID/stat (proc_pid_stat(5)).
type stat struct {
	pid, tid int
	parent   int // process
	flags    uint64
	start    uint64 // ticks since boot
}

// Flags of include/linux/sched.h.
const (
	pfNoSetAffinity = 0x04000000 // a kernel thread bound to its CPU
)

// stat reads a thread's parent, flags and start time, in clock ticks since boot, from /proc.
func (h *Host) stat(pid, tid int) (stat, error) {
	text, err := h.read(fmt.Sprintf("/proc/%d/task/%d/stat", pid, tid))
	if err != nil {
		return stat{}, err
	}
	s := stat{pid: pid, tid: tid}
	f := strings.Fields(text[strings.LastIndexByte(text, ')')+1:]) // the name before it may have blanks
	if len(f) < 20 {
		return s, fmt.Errorf("/proc/%d/task/%d/stat: %d fields, want 22 or more", pid, tid, len(f)+2)
	}
	s.parent, _ = strconv.Atoi(f[1])
	s.flags, _ = strconv.ParseUint(f[6], 10, 64)
	s.start, err = strconv.ParseUint(f[19], 10, 64)
	return s, err
}

// threads returns all threads of the machine, by ID.
func (h *Host) threads() map[int]stat {
	all := map[int]stat{}
	for _, name := range h.glob("/proc/[0-9]*/task/[0-9]*") {
		tid, err := strconv.Atoi(path.Base(name))
		pid, err2 := strconv.Atoi(path.Base(path.Dir(path.Dir(name))))
		if err != nil || err2 != nil {
			continue
		}
		if s, err := h.stat(pid, tid); err == nil {
			all[tid] = s
		}
	}
	return all
}

// cpusOf returns the CPUs on which a thread may run, in ascending order.
func (h *Host) cpusOf(tid int) ([]int, error) {
	if h.affinity != nil {
		return h.affinity(tid)
	}
	var mask unix.CPUSet
	if err := unix.SchedGetaffinity(tid, &mask); err != nil {
		return nil, err
	}
	var out []int
	for c := range len(mask) * 64 {
		if mask.IsSet(c) {
			out = append(out, c)
		}
	}
	return out, nil
}

func (h *Host) move(tid int, cpus []int) error {
	if h.setAffinity != nil {
		return h.setAffinity(tid, cpus)
	}
	var mask unix.CPUSet
	for _, c := range cpus {
		mask.Set(c)
	}
	return unix.SchedSetaffinity(tid, &mask)
}

// moveTasks moves every movable thread of other processes off the CPUs. It repeats until there are none left, because
// threads may start meanwhile.
func (j *journal) moveTasks(away []int) Step {
	step := Step{Name: Threads}
	done, bound, refused := map[int]bool{}, 0, 0
	var why error
	moved := 0
	for again := true; again; {
		again = false
		all := j.threads()
		var newest uint64
		for _, s := range all {
			newest = max(newest, s.start)
		}
		for tid, s := range all {
			if done[tid] || s.pid == os.Getpid() {
				continue
			}
			done[tid] = true
			has, err := j.cpusOf(tid)
			if err != nil || !overlap(has, away) {
				continue
			}
			rest := without(has, away)
			if s.flags&pfNoSetAffinity != 0 || len(rest) == 0 {
				bound++
				continue
			}
			again = true
			c := change{Kind: task, TID: tid, Start: s.start, Newest: newest, Before: has, After: rest}
			switch err := j.apply(c, func() error { return j.move(tid, rest) }); {
			case errors.Is(err, unix.ESRCH):
			case err != nil:
				refused, why = refused+1, err
			default:
				moved++
			}
		}
	}
	step.Done = fmt.Sprintf("%d moved to other CPUs; %d stay, because the kernel or their owner bound them to these",
		moved, bound)
	if refused > 0 {
		step.Err = fmt.Errorf("%d could not be moved: %w", refused, why)
	}
	return step
}

// undoTasks gives the CPUs back to threads that were moved, and to threads started since, which inherited the affinity.
func (h *Host) undoTasks(changes []change) error {
	if len(changes) == 0 {
		return nil
	}
	of := map[int]change{}
	for _, c := range changes {
		of[c.TID] = c
	}
	all := h.threads()
	var failed []error
	for tid, s := range all {
		c, known := of[tid]
		if known = known && c.Start == s.start; !known {
			if s.flags&pfNoSetAffinity != 0 {
				continue // bound by the kernel, like its own per-CPU threads
			}
			if c, known = heir(s, all, of); !known {
				continue
			}
		}
		if has, err := h.cpusOf(tid); err != nil || !slices.Equal(has, c.After) {
			continue // gone, or set by another process
		}
		if err := h.move(tid, c.Before); err != nil && err != unix.ESRCH {
			failed = append(failed, fmt.Errorf("move thread %d back to CPUs %s: %w", tid, FormatCPUs(c.Before), err))
		}
	}
	return errors.Join(failed...)
}

// heir finds the change whose affinity a thread inherited: that of the first of its process or its ancestors that was
// moved before the thread started. A thread that existed when its parent was moved has set its CPUs itself.
func heir(s stat, all map[int]stat, of map[int]change) (change, bool) {
	for pid, depth := s.pid, 0; pid > 0 && depth < 100; depth++ {
		up, ok := all[pid]
		if c, moved := of[pid]; ok && moved && c.Start == up.start {
			return c, max(up.start, c.Newest) <= s.start
		}
		pid = up.parent
	}
	return change{}, false
}
