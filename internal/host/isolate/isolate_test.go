package isolate

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/golden"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

// machine is a fake machine with four CPUs in a folder.
type machine struct {
	Host
	t       *testing.T
	threads map[int][]int // affinities
	dies    string        // a write to a file of this name kills the process
}

func newMachine(t *testing.T, files map[string]string) *machine {
	m := &machine{Host: Host{Root: t.TempDir()}, t: t, threads: map[int][]int{}}
	m.kernel = m.cgroups
	m.affinity = func(tid int) ([]int, error) {
		cpus, ok := m.threads[tid]
		if !ok {
			return nil, fs.ErrNotExist
		}
		return cpus, nil
	}
	m.setAffinity = func(tid int, cpus []int) error {
		switch tid {
		case 66:
			return fs.ErrPermission
		case 67: // ended meanwhile
			return unix.ESRCH
		}
		m.threads[tid] = cpus
		return nil
	}
	for name, text := range map[string]string{
		"/proc/sys/kernel/random/boot_id": "b007",
		"/proc/self/mountinfo": "x - cgroup2\n22 1 0:20 / / rw - cgroup cgroup2 rw\n23 1 0:21 / / - cgroup2 none rw\n" +
			"31 24 0:28 / /y rw -\n30 24 0:27 / /sys/fs/cgroup rw,nosuid - cgroup2 none rw",
		"/proc/self/cgroup":                                                  "0::/system.slice/rebound.service",
		"/sys/fs/cgroup/cgroup.controllers":                                  "cpuset cpu io memory",
		"/sys/fs/cgroup/cgroup.subtree_control":                              "cpu memory",
		"/sys/fs/cgroup/system.slice/cgroup.subtree_control":                 "memory",
		"/sys/fs/cgroup/system.slice/cpuset.cpus.exclusive":                  "",
		"/sys/fs/cgroup/system.slice/rebound.service/x":                      "",
		"/sys/devices/system/cpu/online":                                     "0-3",
		"/sys/devices/system/cpu/cpu2/online":                                "1",
		"/sys/devices/system/cpu/cpu3/online":                                "1",
		"/sys/devices/system/cpu/nohz_full":                                  "(null)",
		"/sys/devices/virtual/workqueue/cpumask":                             "f",
		"/sys/devices/virtual/workqueue/writeback/cpumask":                   "f",
		"/proc/irq/1/smp_affinity_list":                                      "0-3",
		"/proc/irq/2/smp_affinity_list":                                      "3",
		"/proc/irq/3/smp_affinity_list":                                      "0-1",
		"/proc/irq/default_smp_affinity":                                     "f",
		"/proc/sys/kernel/watchdog_cpumask":                                  "0-3",
		"/proc/sys/kernel/osrelease":                                         "6.18.1",
		"/proc/sys/vm/stat_interval":                                         "1",
		"/dev/cpu_dma_latency":                                               "",
		"/sys/kernel/debug/sched/fair_server/cpu3/runtime":                   "50000000",
		"/sys/kernel/debug/sched/fair_server/cpu3/period":                    "1000000000",
		"/sys/kernel/debug/sched/fair_server/cpu2/runtime":                   "50000000",
		"/sys/kernel/debug/sched/fair_server/cpu2/period":                    "1000000000",
		"/proc/sys/kernel/sched_rt_runtime_us":                               "950000",
		"/proc/sys/kernel/sched_rt_period_us":                                "1000000",
		"/sys/fs/cgroup/system.slice/rebound.service/cpuset.cpus.exclusive":  "",
		"/sys/fs/cgroup/system.slice/rebound.service/cgroup.subtree_control": "",
		"/sys/fs/cgroup/system.slice/rebound.service/cgroup.threads":         "",
	} {
		if _, ok := files[name]; !ok {
			m.put(name, text)
		}
	}
	for name, text := range files {
		if text != "absent" {
			m.put(name, text)
		}
	}
	m.thread(1, 1, 0, 0, 10, 0, 1, 2, 3)   // init
	m.thread(40, 40, 1, 0, 20, 2, 3)       // a server
	m.thread(40, 41, 1, 0, 21, 0, 1, 2, 3) // its other thread
	// a third, which restricted itself to the one CPU left to the first
	m.thread(40, 42, 1, 0, 22, 2)
	m.thread(50, 50, 2, pfNoSetAffinity, 5, 3)               // ksoftirqd/3
	m.thread(os.Getpid(), os.Getpid(), 1, 0, 30, 0, 1, 2, 3) // this process
	return m
}

func (m *machine) put(name, text string) {
	m.t.Helper()
	file := m.path(name)
	must.OK(m.t, errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text+"\n"), 0o644)))
}

func (m *machine) thread(pid, tid, parent, flags, start int, cpus ...int) {
	m.put(fmt.Sprintf("/proc/%d/task/%d/stat", pid, tid),
		fmt.Sprintf("%d (a (b) c) S %d 0 0 0 0 %d 0 0 0 0 0 0 0 0 20 0 1 0 %d 0 0", tid, parent, flags, start))
	m.threads[tid] = cpus
}

func (m *machine) snapshot() map[string]string {
	all := map[string]string{}
	filepath.WalkDir(m.Root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			m.t.Fatal(err)
		}
		rel := strings.TrimPrefix(name, m.Root)
		if strings.HasPrefix(rel, "/run") || strings.HasPrefix(rel, "/dev") || d.Name() == "cgroup.threads" {
			return nil
		}
		all[rel] = "folder"
		if !d.IsDir() {
			all[rel] = strings.TrimSpace(string(must.Get(os.ReadFile(name))(m.t)))
		}
		return nil
	})
	for tid, cpus := range m.threads {
		all[fmt.Sprintf("thread %d", tid)] = FormatCPUs(cpus)
	}
	return all
}

func (m *machine) same(before map[string]string) {
	m.t.Helper()
	m.want("after", before)
	for name := range m.snapshot() {
		if _, ok := before[name]; !ok {
			m.t.Errorf("%s is left", name)
		}
	}
	if left := m.glob(Journals + "/*"); len(left) > 0 {
		m.t.Errorf("journals are left: %q", left)
	}
}

// cgroups emulates the kernel's cgroups: files come and go with their folder, a controller is added to a list.
func (m *machine) cgroups(op, name, value string) (bool, error) {
	switch dir := m.path(name); {
	case op == "mkdir":
		if err := os.Mkdir(dir, 0o755); err != nil {
			return true, err
		}
		for _, f := range []string{"cgroup.type", "cgroup.threads", "cpuset.cpus", "cpuset.cpus.exclusive",
			"cpuset.cpus.partition"} {
			m.put(name+"/"+f, "")
		}
		return true, nil
	case op == "rmdir":
		if _, err := os.Stat(dir); err != nil {
			return true, err
		}
		return true, os.RemoveAll(dir)
	case strings.HasSuffix(name, "/cgroup.subtree_control"):
		now, _ := m.read(name)
		list := slices.DeleteFunc(strings.Fields(now), func(c string) bool { return c == value[1:] })
		if value[0] == '+' {
			list = append(list, value[1:])
		}
		m.put(name, strings.Join(list, " "))
		return true, nil
	case m.dies != "" && strings.HasSuffix(name, m.dies):
		panic(died)
	}
	return false, nil
}

const died = "killed"

func (m *machine) want(where string, want map[string]string) {
	m.t.Helper()
	now := m.snapshot()
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if now[name] != want[name] {
			m.t.Errorf("%s: %s is %q, want %q", where, name, now[name], want[name])
		}
	}
}

// own is the cgroup of the test's process.
const own = "/sys/fs/cgroup/system.slice/rebound.service"

func taken() map[string]string {
	g := fmt.Sprintf("%s/rebound-%d", own, os.Getpid())
	return map[string]string{
		g + "/cgroup.type": "threaded", g + "/cpuset.cpus": "3", g + "/cpuset.cpus.exclusive": "3",
		g + "/cpuset.cpus.partition":   "isolated",
		own + "/cpuset.cpus.exclusive": "3", "/sys/fs/cgroup/system.slice/cpuset.cpus.exclusive": "3",
		own + "/cgroup.subtree_control":                      "cpuset",
		"/sys/fs/cgroup/system.slice/cgroup.subtree_control": "memory cpuset",
		"/sys/devices/virtual/workqueue/cpumask":             "7",
		"/sys/devices/virtual/workqueue/writeback/cpumask":   "7",
		"/proc/irq/1/smp_affinity_list":                      "0-2", "/proc/irq/2/smp_affinity_list": "0-2",
		"/proc/irq/3/smp_affinity_list":  "0-1",
		"/proc/irq/default_smp_affinity": "7", "/proc/sys/kernel/watchdog_cpumask": "0-2",
		"/proc/sys/vm/stat_interval":                       "3600",
		"/sys/devices/system/cpu/cpu3/online":              "1",
		"/sys/kernel/debug/sched/fair_server/cpu3/runtime": "0",
		"/sys/kernel/debug/sched/fair_server/cpu2/runtime": "50000000",
		"thread 1": "0-2", "thread 40": "2", "thread 41": "0-2", "thread 50": "3",
		fmt.Sprint("thread ", os.Getpid()): "0-3",
	}
}

func (m *machine) take(cpus ...int) *Lease {
	m.t.Helper()
	l := must.Get(m.Begin(cpus))(m.t)
	for _, s := range append(l.Isolate(), l.LiftGuards()) {
		if s.Name == "tick" {
			check.Fails(m.t, s.Name, s.Err, nil, "nohz_full=3")
		} else {
			check.OK(m.t, s.Err)
		}
	}
	return l
}

// A lease frees the CPU of everything that can be moved, and restores every file and every thread.
func TestTakeAndRelease(t *testing.T) {
	m := newMachine(t, nil)
	before := m.snapshot()
	l := m.take(3)
	m.want("taken", taken())
	check.OK(t, l.Join())
	// A thread that started meanwhile inherited its parent's CPUs; what another process set meanwhile is left alone.
	m.thread(70, 70, 40, 0, 99, m.threads[40]...)
	m.thread(71, 71, 1, 0, 99, 1)
	m.thread(72, 72, 40, pfNoSetAffinity, 99, 2) // the kernel's own, of CPU 2
	m.thread(73, 73, 2, 0, 99, 2)                // no ancestor of it was moved
	m.put("/proc/irq/1/smp_affinity_list", "1")
	check.OK(t, l.Release())
	m.want("released", map[string]string{"thread 70": "2-3", "thread 71": "1", "thread 72": "2",
		"thread 73":                     "2",
		"/proc/irq/1/smp_affinity_list": "1,3"})
	m.put("/proc/irq/1/smp_affinity_list", "0-3")
	for _, tid := range []int{70, 71, 72, 73} {
		delete(m.threads, tid)
		os.RemoveAll(m.path(fmt.Sprintf("/proc/%d", tid)))
	}
	m.same(before)
}

// Two processes that each hold a CPU restore their own, in any order.
func TestTwoLeases(t *testing.T) {
	m := newMachine(t, nil)
	before := m.snapshot()
	const file = "/sys/devices/virtual/workqueue/cpumask"
	l := m.take(3)
	has := must.Get(m.readCPUs(file, true))(t)
	other := []change{{Kind: cpus, Path: file, Mask: true, Before: has, After: without(has, []int{2})}}
	must.OK(t, m.writeCPUs(file, true, other[0].After))
	check.OK(t, l.Release())
	m.want("one released", map[string]string{file: "b"})
	check.OK(t, m.undo(other))
	m.same(before)
}

func TestKilled(t *testing.T) {
	for _, at := range []string{"nowhere", "cpu3/online", "cgroup.type", "system.slice/cpuset.cpus.exclusive",
		"cpuset.cpus.partition",
		"writeback/cpumask", "irq/2/smp_affinity_list", "vm/stat_interval", "cpu3/runtime"} {
		t.Run(strings.ReplaceAll(at, "/", "_"), func(t *testing.T) {
			m := newMachine(t, nil)
			before := m.snapshot()
			func() {
				defer func() {
					if r := recover(); r != nil && r != died {
						panic(r)
					}
				}()
				m.dies = at
				m.take(3)
			}()
			m.dies = ""
			if steps := m.Abandoned(); len(steps) != 1 || steps[0].Done != "" || steps[0].Err != nil {
				t.Fatalf("what a living process holds: %v", steps)
			}
			pid := fmt.Sprintf("/proc/%d/task/%d/stat", os.Getpid(), os.Getpid())
			alive, _ := m.read(pid)
			m.put(pid, strings.Replace(alive, " 30 0 0", " 31 0 0", 1)) // another process has the PID now
			if at == "nowhere" {                                        // the process that undid it was killed as well
				for _, j := range m.glob(Journals + "/*") {
					must.OK(t, os.Rename(m.path(j), m.path(j)+".99999"))
				}
			}
			steps := m.Abandoned()
			m.put(pid, alive)
			if len(steps) != 1 || steps[0].Err != nil || steps[0].Done == "" {
				t.Errorf("%v", steps)
			}
			m.same(before)
		})
	}
}

// What killed processes left is undone once, by one process, unless a reboot has undone it. If a part cannot be
// undone, the rest is.
func TestAbandoned(t *testing.T) {
	const file, head = "/proc/sys/vm/stat_interval", `{"pid":77,"boot":"b007","cpus":[3]}` + "\n"
	line := func(c change) string { return string(must.Get(json.Marshal(c))(t)) + "\n" }
	set := line(change{Kind: value, Path: file, Old: "7", New: "1"})
	undid := func(n int) string {
		return fmt.Sprintf("[CPUs 3 of process 77: undid %d changes that it left when it was killed", n)
	}
	for _, c := range []struct {
		name, file, text string
		says             []string // of the steps
		left             int      // journals
		now              string   // in file
	}{
		{"whole", "77", head + set, []string{undid(1)}, 0, "7"},
		{"before a reboot", "77", `{"pid":77,"boot":"c007"}` + "\n" + set, []string{"[]"}, 0, "1"},
		{"a half of its first line", "77", head[:9], []string{"[]"}, 0, "1"},
		{"a half of a line by this number", fmt.Sprint(os.Getpid()), head[:9], []string{"[]"}, 0, "1"},
		{"not written yet by a living process", "40", "", []string{"[]"}, 1, "1"},
		{"the first line's end is missing", "77", head[:len(head)-1], []string{undid(0)}, 0, "1"},
		{"a half of its second line", "77", head + set + set[:9], []string{undid(1)}, 0, "7"},
		{"a wrong line", "77", head + set + "?\n", []string{undid(1) + "; not all: ", "/77: invalid"}, 0, "7"},
		{"undone by a living process", fmt.Sprint("77.", os.Getpid()), head + set, []string{"[]"}, 1, "1"},
		{"undone by a killed process", "77.88", head + set, []string{undid(1)}, 0, "7"},
		{"undone by another process now", "77.88", "gone", []string{"[]"}, 1, "1"},
		{"cannot be undone", "77", head + line(change{Kind: cpus, Path: "/proc/self/cgroup"}) +
			line(change{Kind: offline, Path: "/proc"}) + line(change{Kind: task, TID: 66, Start: 25, After: []int{3}}) + set,
			[]string{undid(4) + "; not all: undo /proc: open ", "undo /proc/self/cgroup: ", "is not a list of CPUs",
				"move thread 66 back to CPUs : "}, 0, "7"},
		{"in use by others", "77", head + line(change{Kind: controller, Path: own + "/cgroup.subtree_control"}) +
			line(change{Kind: directory, Path: own + "/busy"}) + set, []string{undid(3) + "]"}, 0, "7"},
	} {
		m := newMachine(t, nil)
		m.thread(66, 66, 1, 0, 25, 3)
		m.put(own+"/busy/x", "")
		refusals := 2
		m.kernel = func(op, name, value string) (bool, error) {
			if value == "-cpuset" {
				return true, unix.EBUSY
			}
			if refusals--; op == "rmdir" && refusals >= 0 {
				return true, unix.EBUSY
			}
			return m.cgroups(op, name, value)
		}
		if m.put(Journals+"/"+c.file, c.text); c.text == "gone" {
			name := m.path(Journals + "/" + c.file)
			must.OK(t, errors.Join(os.Remove(name), os.Symlink("nowhere", name)))
		} else { // put adds the end of a line
			must.OK(t, os.WriteFile(m.path(Journals+"/"+c.file), []byte(c.text), 0o600))
		}
		said := fmt.Sprint(m.Abandoned())
		for _, want := range c.says {
			check.Contains(t, c.name+": "+said, want)
		}
		check.Equal(t, len(m.glob(Journals+"/*")), c.left, c.name+": %d journals are left")
		check.Equal(t, must.Get(m.read(file))(t), c.now, c.name+": "+file+" is %s")
		_, err := os.Stat(m.path(own + "/busy"))
		check.Equal(t, err != nil, c.name == "in use by others", c.name+": the cgroup is gone: %v")
	}
}

// Without a journal nothing is changed.
func TestNoJournal(t *testing.T) {
	m := newMachine(t, nil)
	before := m.snapshot()
	l := must.Get(m.Begin([]int{3}))(t)
	check.Fails(t, "a second lease", check.Err(m.Begin([]int{3})), fs.ErrExist, "journal of changes to this machine: ")
	must.OK(t, l.file.Close())
	for _, s := range append(l.Take(Timers, Partition, Threads, Workqueues, Interrupts, Housekeeping), l.LiftGuards()) {
		if s.Err == nil && s.Name != Interrupts { // it counts those that stay
			t.Error(s)
		}
	}
	m.want("without a journal", before)
	must.OK(t, os.RemoveAll(m.path("/run")))
	m.put("/run", "")
	check.Fails(t, "no folder", check.Err(m.Begin([]int{3})), unix.ENOTDIR)
}

// The zero Host asks the kernel.
func TestThisMachine(t *testing.T) {
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	h := &Host{Root: t.TempDir()}
	has := must.Get(h.cpusOf(unix.Gettid()))(t)
	last := has[len(has)-1:]
	must.OK(t, h.move(unix.Gettid(), last))
	check.Same(t, must.Get(h.cpusOf(unix.Gettid()))(t), last, "it may run on %v")
	check.Fails(t, "no thread", check.Err(h.cpusOf(1<<30)), unix.ESRCH)
	must.OK(t, errors.Join(h.mkdir("/x"), h.rmdir("/x")))
	check.Fails(t, "a folder that is gone", h.rmdir("/x"), unix.ENOENT)
}

// A thread's start is the 22nd field of its stat, and its name may have anything in it.
func TestStat(t *testing.T) {
	m := newMachine(t, nil)
	for text, want := range map[string]string{
		"9 (a) b) S 1 0 0 0 0 64 0 0 0 0 0 0 0 0 20 0 1 0 77": "{9 9 1 64 77} <nil>",
		"9 (a) S 1 0 0 0 0 64 0 0 0 0 0 0 0 0 20 0 1 0":       "{9 9 0 0 0} /proc/9/task/9/stat: 21 fields, want 22 or more",
	} {
		m.put("/proc/9/task/9/stat", text)
		s, err := m.stat(9, 9)
		check.Equal(t, fmt.Sprint(s, " ", err), want, "%s")
	}
}

// run takes a lease, runs and undoes every step, and returns what each said.
func (m *machine) run(cpus ...int) (said []string) {
	l := must.Get(m.Begin(cpus))(m.t)
	steps := append(l.Isolate(), l.LiftGuards())
	steps = append(steps, Step{Name: "join", Err: l.Join()}, Step{Name: "leave", Err: l.Leave()},
		Step{Name: "release", Err: l.Release()})
	for _, f := range must.Get(os.ReadDir("/proc/self/fd"))(m.t) {
		to, _ := os.Readlink("/proc/self/fd/" + f.Name())
		if strings.HasPrefix(to, m.Root) || to == "/dev/full" {
			m.t.Errorf("%s is open", to)
		}
	}
	for _, s := range append(steps, l.Take("magic")...) {
		said = append(said, strings.NewReplacer(m.Root, "", fmt.Sprint("rebound-", os.Getpid()), "rebound-PID", "\n",
			"\n    ").Replace(s.String()))
	}
	return said
}

// What each step says on a machine that can do all, and where one file is missing or has an unexpected content, or one
// write is refused. Only steps that say something else are recorded. Whatever is missing, all is restored.
func TestRefusals(t *testing.T) {
	needs.Long(t)
	var text strings.Builder
	usual := newMachine(t, nil).run(3)
	fmt.Fprintf(&text, "the usual machine\n  %s\n", strings.Join(usual, "\n  "))
	fmt.Fprintf(&text, "two CPUs\n  %s\n", strings.Join(newMachine(t, nil).run(3, 2), "\n  "))
	record := func(name string, said []string) {
		fmt.Fprintln(&text, name)
		for i := range said {
			if said[i] != usual[i] {
				fmt.Fprintf(&text, "  %s\n", said[i])
			}
		}
	}
	variants := []map[string]string{
		{"/sys/fs/cgroup/cgroup.controllers": "memory"}, {"/proc/self/mountinfo": ""},
		{"/sys/fs/cgroup/system.slice/cpuset.cpus.exclusive": "absent",
			"/sys/fs/cgroup/cgroup.subtree_control": "cpuset"},
		{"/proc/self/cgroup": "0::/system.slice", "/sys/fs/cgroup/system.slice/cpuset.cpus.exclusive": "absent",
			"/sys/fs/cgroup/cgroup.subtree_control": "cpuset"},
		{"/proc/cmdline": "quiet isolcpus=2"}, {"/proc/self/cgroup": "0::/"},
		{"/sys/fs/cgroup/cgroup.subtree_control": "cpu cpuset", own + "/cgroup.subtree_control": "cpuset"},
		{"/proc/sys/kernel/osrelease": "6.11.9"}, {"/proc/sys/kernel/osrelease": "6.12.0"},
		{"/sys/devices/system/cpu/nohz_full": "2-3"}, {"/sys/devices/system/cpu/nohz_full": "2"},
		{"/proc/irq/default_smp_affinity": "8"}, {"/proc/sys/kernel/watchdog_cpumask": "0-2"},
	}
	for name, content := range newMachine(t, nil).snapshot() {
		if content == "folder" || name[0] != '/' || strings.Contains(name, "/task/") {
			continue
		}
		if !strings.HasSuffix(name, "subtree_control") { // every cgroup has one
			variants = append(variants, map[string]string{name: "absent"})
		}
		if !strings.HasSuffix(name, "/cpu3/online") {
			variants = append(variants, map[string]string{name: "?"})
		}
	}
	slices.SortStableFunc(variants, func(a, b map[string]string) int {
		return cmp.Compare(fmt.Sprint(a), fmt.Sprint(b))
	})
	for _, files := range variants {
		m := newMachine(t, files)
		before := m.snapshot()
		record(fmt.Sprint(files), m.run(3))
		m.same(before)
	}
	for refused, more := 1, true; more; refused++ {
		m := newMachine(t, map[string]string{"/sys/kernel/security/lockdown": "none [integrity] confidentiality"})
		before, inner, ops, what := m.snapshot(), m.kernel, 0, ""
		m.kernel = func(op, name, value string) (bool, error) {
			if ops++; ops == refused {
				if what = fmt.Sprintln(op, name, value, "is refused"); strings.HasSuffix(name, "/cgroup.threads") {
					what = fmt.Sprintln(op, name, "is refused")
				}
				return true, fs.ErrPermission
			}
			return inner(op, name, value)
		}
		said := m.run(3)
		if more = what != ""; more {
			record(strings.ReplaceAll(strings.TrimSpace(what), fmt.Sprintf("rebound-%d", os.Getpid()), "rebound-PID"),
				said)
		}
		if !slices.ContainsFunc(said, func(s string) bool { return strings.HasPrefix(s, "release: not done") }) {
			m.same(before)
		}
	}
	m := newMachine(t, nil)
	m.thread(66, 66, 1, 0, 25, 0, 3)
	m.thread(67, 67, 1, 0, 25, 0, 3)
	record("a thread that cannot be moved, and one that has ended", m.run(3))
	m = newMachine(t, map[string]string{"/dev/cpu_dma_latency": "absent", "/dev/x": ""})
	must.OK(t, os.Symlink("/dev/full", m.path("/dev/cpu_dma_latency")))
	record("idle states stay", m.run(3))
	m = newMachine(t, nil)
	m.kernel = func(op, name, value string) (bool, error) {
		if strings.HasSuffix(name, "/cpuset.cpus.partition") {
			m.put(name, value+" invalid (Cpu list in cpuset.cpus not exclusive)")
			return true, nil
		}
		return m.cgroups(op, name, value)
	}
	record("an invalid partition", m.run(3))
	var log strings.Builder
	Log(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})), Step{Name: "a", Done: "done"}, Step{Name: "b", Err: fs.ErrPermission}, Step{"c", "some", fs.ErrPermission})
	text.WriteString(log.String())
	golden.Equal(t, "testdata/refusals.txt", text.String())
}

// CPUs isolated at boot need no partition, whose end would open them to every process.
func TestIsolatedAtBoot(t *testing.T) {
	for _, c := range []struct{ cmdline, want string }{
		{"quiet isolcpus=3 nohz_full=3", "none needed: CPUs 3 have been isolated since boot (isolcpus)"},
		{"isolcpus=managed_irq,domain,2-3", "none needed: CPUs 3 have been isolated since boot (isolcpus)"},
		{"isolcpus=managed_irq,3 nohz_full=3", "CPUs 3 are an isolated partition, "}, // only its interrupts are kept off
		{"nohz_full=3", "CPUs 3 are an isolated partition, "},
	} {
		m := newMachine(t, map[string]string{"/proc/cmdline": c.cmdline})
		before := m.snapshot()
		l := must.Get(m.Begin([]int{3}))(t)
		_, step := l.partition(l.CPUs)
		if step.Err != nil || !strings.HasPrefix(step.Done, c.want) {
			t.Errorf("%s: %v", c.cmdline, step)
		}
		check.OK(t, l.Release())
		m.same(before)
	}
}

func TestBoundThread(t *testing.T) {
	m := newMachine(t, nil)
	m.thread(80, 80, 1, 0, 25, 3)
	l := must.Get(m.Begin([]int{3}))(t)
	defer l.Release()
	check.Fails(t, "replug", l.replug().Err, nil,
		"CPU 3 is not briefly taken offline, because thread 80 of process 80 is bound to it")
}

func TestGuards(t *testing.T) {
	const throttled = "/proc/sys/kernel/sched_rt_runtime_us"
	for _, c := range []struct {
		files map[string]string
		want  string
	}{
		{map[string]string{"/proc/sys/kernel/osrelease": "absent"}, "open "},
		{map[string]string{"/proc/sys/kernel/osrelease": "6.1", throttled: "?"}, "strconv.Atoi: "},
		{nil, "[fair server of CPU 3: 50ms of each 1s]"},
		{map[string]string{"/sys/kernel/debug/sched/fair_server/cpu3/runtime": "0"}, "[]"},
		{map[string]string{"/proc/sys/kernel/osrelease": "6.1.0-18-amd64"}, "[sched_rt_runtime_us: 50ms of each 1s]"},
		{map[string]string{"/proc/sys/kernel/osrelease": "6.11.9", throttled: "-1"}, "[]"},
		{map[string]string{"/proc/sys/kernel/osrelease": "6.11.9", throttled: "1000000"}, "[]"},
		{map[string]string{"/sys/kernel/debug/sched/fair_server/cpu3/runtime": "absent"},
			"[fair server of CPU 3: 50ms of each 1s (the kernel's default; it cannot be read: "},
	} {
		m := newMachine(t, c.files)
		g, err := m.Guards([]int{3})
		got := fmt.Sprint(g)
		if err != nil {
			got = err.Error()
		}
		if !strings.HasPrefix(got, c.want) {
			t.Errorf("%v: %s, want %s", c.files, got, c.want)
		}
	}
}

// A guard that is not lifted by what should do it is an error.
func TestGuardStays(t *testing.T) {
	for _, c := range []struct{ vanishes, says string }{
		{"none", "is still active after it was disabled"}, {"/proc/sys/kernel/osrelease", "osrelease"},
	} {
		m := newMachine(t, nil)
		l := must.Get(m.Begin([]int{3}))(t)
		m.kernel = func(op, name, value string) (bool, error) {
			os.Remove(m.path(c.vanishes))
			return true, nil
		}
		check.Fails(t, "lift", l.LiftGuards().Err, nil, c.says)
		l.Release()
	}
}

// A CPU or a priority that does not exist is not tested.
func TestProbeFails(t *testing.T) {
	_, _, err := Probe(1023, 1, 0)
	check.Fails(t, "a CPU", err, unix.EINVAL, "run on CPU 1023: ")
	var all unix.CPUSet
	must.OK(t, unix.SchedGetaffinity(0, &all))
	cpu := 0
	for !all.IsSet(cpu) {
		cpu++
	}
	longest, total, err := Probe(cpu, 100, 0)
	check.Fails(t, "a priority", err, unix.EINVAL, fmt.Sprintf("SCHED_FIFO 100 on CPU %d: ", cpu))
	check.Equal(t, longest+total, 0, "it was descheduled for %v")
}

func TestCPUs(t *testing.T) {
	check.Equal(t, FormatCPUs(union([]int{2, 3}, []int{0, 3})), "0,2-3", "the union is %s")
	for _, c := range []struct{ list, mask string }{
		{"0-3,8", "10f"}, {"", "0"}, {"0", "1"}, {"31-32", "1,80000000"}, {"63-64", "1,80000000,00000000"}, {"0,2-3,8-11,13", "2f0d"},
	} {
		cpus, err := ParseCPUs(c.list)
		if err != nil || FormatCPUs(cpus) != c.list || cpuMask(cpus) != c.mask {
			t.Errorf("%q: %v, %v, list %q, mask %q", c.list, cpus, err, FormatCPUs(cpus), cpuMask(cpus))
		}
		back, err := parseMask(c.mask)
		if err != nil || !slices.Equal(back, cpus) {
			t.Errorf("%q: %v, %v", c.mask, back, err)
		}
	}
	for _, bad := range []string{"3-1", "a", "1-", "-1", "70000"} {
		check.Fails(t, bad, check.Err(ParseCPUs(bad)), nil)
	}
}
