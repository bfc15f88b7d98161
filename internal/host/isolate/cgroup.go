package isolate

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
)

// group is the cgroup of the polling threads: a partition to whose CPUs the scheduler balances no other thread.
type group struct {
	path   string // relative to the root of the file system
	parent string // the cgroup that the process is in
}

var errNoCpuset = errors.New(
	"the cpuset controller is not part of cgroup v2 on this host: boot with systemd.unified_cgroup_hierarchy=1")

// unified returns the mount point of cgroup v2 (/proc/self/mountinfo, proc_pid_mountinfo(5)).
func (h *Host) unified() (string, error) {
	text, err := h.read("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		dash := slices.Index(f, "-")
		if dash < 6 || dash+1 >= len(f) || f[dash+1] != "cgroup2" {
			continue
		}
		controllers, err := h.read(f[4] + "/cgroup.controllers")
		if err != nil {
			return "", err
		}
		if !slices.Contains(strings.Fields(controllers), "cpuset") {
			return "", errNoCpuset
		}
		return f[4], nil
	}
	return "", errors.New("cgroup v2 is not mounted: mount -t cgroup2 none /sys/fs/cgroup")
}

// partition creates a threaded cgroup below the process's own and makes it an isolated partition (Linux's
// cgroup-v2.rst, "Cpuset Interface Files"). Directly below the root that is a local partition. Elsewhere it is a remote
// one, which needs Linux 6.7 and the CPUs listed as exclusive in all cgroups above.
func (j *journal) partition(want []int) (*group, Step) {
	step := Step{Name: Partition}
	fail := func(err error) (*group, Step) {
		step.Err = err
		return nil, step
	}
	mount, err := j.unified()
	if err != nil {
		return fail(err)
	}
	// If the kernel was booted with isolcpus, only the affinity of processes keeps them off those CPUs, and the end of
	// a partition would set everyone's affinity to all CPUs.
	if booted := j.isolatedAtBoot(); len(booted) > 0 {
		if rest := without(want, booted); len(rest) > 0 {
			return fail(fmt.Errorf("CPUs %s were isolated at boot (isolcpus), which a partition with other CPUs would undo: use those, or boot with %s too", FormatCPUs(booted), FormatCPUs(rest)))
		}
		step.Done = "none needed: CPUs " + FormatCPUs(want) + " have been isolated since boot (isolcpus)"
		return nil, step
	}
	own, err := j.ownGroup()
	if err != nil {
		return fail(err)
	}
	g := &group{parent: path.Join(mount, own)}
	g.path = path.Join(g.parent, fmt.Sprintf("rebound-%d", os.Getpid()))

	var above []string // the cgroups between the root and the new one
	for dir := g.parent; dir != mount; dir = path.Dir(dir) {
		above = append(above, dir)
	}
	slices.Reverse(above)
	if len(above) > 0 {
		if _, err := j.read(above[0] + "/cpuset.cpus.exclusive"); errors.Is(err, os.ErrNotExist) && j.hasCpuset(mount) {
			return fail(fmt.Errorf("the process is in cgroup %s: only partitions directly below the root work before Linux 6.7", own))
		}
	}
	for _, dir := range append([]string{mount}, above...) {
		if dir == g.parent {
			break
		}
		if err := j.enable(dir); err != nil {
			return fail(err)
		}
	}
	if err := j.apply(change{Kind: directory, Path: g.path}, func() error { return j.mkdir(g.path) }); err != nil {
		return fail(err)
	}
	// Threads of one process can be in different cgroups only if these are threaded; the process's own cgroup may then
	// have processes.
	if err := j.write(g.path+"/cgroup.type", "threaded"); err != nil {
		return fail(fmt.Errorf("move threads into a separate cgroup: %w", err))
	}
	if err := j.enable(g.parent); err != nil {
		return fail(err)
	}
	for _, dir := range above {
		file := dir + "/cpuset.cpus.exclusive"
		has, err := j.readCPUs(file, false)
		if err == nil {
			err = j.setCPUs(file, false, union(has, want))
		}
		if err != nil {
			return fail(err)
		}
	}
	list := FormatCPUs(want)
	if err := j.write(g.path+"/cpuset.cpus", list); err != nil {
		return fail(err)
	}
	if err := j.write(g.path+"/cpuset.cpus.exclusive", list); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fail(err)
	}
	if err := j.write(g.path+"/cpuset.cpus.partition", "isolated"); err != nil {
		return fail(fmt.Errorf("cpuset.cpus.partition: %w", err))
	}
	if state, err := j.read(g.path + "/cpuset.cpus.partition"); err != nil || state != "isolated" {
		return fail(fmt.Errorf("cpuset.cpus.partition of %s is %q: %w", g.path, state,
			errors.Join(err, errors.New("want isolated"))))
	}
	step.Done = fmt.Sprintf("CPUs %s are an isolated partition, %s", list, g.path)
	return g, step
}

// isolatedAtBoot returns the CPUs that the kernel's command line takes from the scheduler: isolcpus=[FLAG,...]LIST,
// with the flag domain or none (Linux's kernel-parameters.txt). The lists in /sys and the root cgroup also include
// those of partitions.
func (h *Host) isolatedAtBoot() []int {
	cmdline, _ := h.read("/proc/cmdline")
	var out []int
	for field := range strings.FieldsSeq(cmdline) {
		text, ok := strings.CutPrefix(field, "isolcpus=")
		if !ok {
			continue
		}
		domain, flags := false, false
		for part := range strings.SplitSeq(text, ",") {
			if list, err := ParseCPUs(part); err == nil {
				out = union(out, list)
				continue
			}
			domain, flags = domain || part == "domain", true
		}
		if flags && !domain {
			out = nil
		}
	}
	return out
}

func (h *Host) hasCpuset(dir string) bool {
	text, _ := h.read(dir + "/cgroup.subtree_control")
	return slices.Contains(strings.Fields(text), "cpuset")
}

// enable turns the cpuset controller on for the children of a cgroup.
func (j *journal) enable(dir string) error {
	if j.hasCpuset(dir) {
		return nil
	}
	file := dir + "/cgroup.subtree_control"
	err := j.apply(change{Kind: controller, Path: file}, func() error { return j.write(file, "+cpuset") })
	if err != nil {
		return fmt.Errorf("enable cpuset in %s: %w", file, err)
	}
	return nil
}

// ownGroup returns the process's cgroup, "/" for the root.
func (h *Host) ownGroup() (string, error) {
	text, err := h.read("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(text) {
		if p, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			return p, nil
		}
	}
	return "", errNoCpuset
}
