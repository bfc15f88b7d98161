package campaign

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/bench/testbed"
)

var faults = slices.Concat(deviceFaults, subnetFaults, hostFaults, kernelFaults)

// hostFaults are faults of the process and of its host.
var hostFaults = []fault{
	{name: "SIGKILL", on: []string{"all"}, do: func(s *session) error {
		time.Sleep(time.Duration(s.r.Int64N(int64(300 * time.Millisecond))))
		_, err := s.proc.signal(unix.SIGKILL, s.patience)
		return err
	}},
	{name: "SIGKILL while it starts", on: []string{"all"}, do: func(s *session) error {
		n := 1 + s.r.IntN(5)
		s.note("%d times", n)
		for range n {
			starts := func() int { s.proc.mu.Lock(); defer s.proc.mu.Unlock(); return s.proc.starts }
			was := starts()
			if _, err := s.proc.signal(unix.SIGKILL, s.patience); err != nil {
				return err
			}
			if err := s.until("a start", func() bool { return starts() > was }); err != nil {
				return err
			}
			time.Sleep(time.Duration(s.r.Int64N(int64(150 * time.Millisecond))))
		}
		_, err := s.proc.signal(unix.SIGKILL, s.patience)
		return err
	}},
	{name: "SIGTERM", on: []string{"all"}, do: func(s *session) error {
		e, err := s.proc.signal(unix.SIGTERM, s.patience)
		if err == nil && e.how != "exit 0" {
			err = errors.New(lastLine(e))
		}
		return err
	}},
	{name: "SIGSTOP", on: []string{"all"}, do: func(s *session) error {
		pid := s.proc.pid()
		_ = unix.Kill(pid, unix.SIGSTOP)
		s.for_(10*time.Millisecond, 3*time.Second)
		_ = unix.Kill(pid, unix.SIGCONT)
		return nil
	}},
	{name: "core taken by others", on: []string{"all"}, do: func(s *session) error {
		n := 1 + s.r.IntN(4)
		s.note("%d programs", n)
		var all []*exec.Cmd
		defer func() {
			for _, c := range all {
				_ = c.Process.Kill()
				_ = c.Wait()
			}
		}()
		for range n {
			c := exec.Command("/bin/sh", "-c", "while :; do :; done")
			c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
			if err := s.space.Do(c.Start); err != nil {
				return err
			}
			all = append(all, c)
			var set unix.CPUSet
			set.Set(lastCPU())
			_ = unix.SchedSetaffinity(c.Process.Pid, &set)
			_ = unix.Setpriority(unix.PRIO_PROCESS, c.Process.Pid, -10)
		}
		s.for_(50*time.Millisecond, time.Second)
		return nil
	}},
	{name: "core taken away", on: []string{"all"}, do: func(s *session) error {
		if runtime.NumCPU() < 2 {
			s.skip = "one CPU only"
			return nil
		}
		var set unix.CPUSet
		set.Set(0)
		before := map[int]unix.CPUSet{}
		everyThread(s.proc.pid(), func(tid int) {
			var was unix.CPUSet
			if unix.SchedGetaffinity(tid, &was) == nil && unix.SchedSetaffinity(tid, &set) == nil {
				before[tid] = was
			}
		})
		s.for_(50*time.Millisecond, time.Second)
		for tid, was := range before {
			_ = unix.SchedSetaffinity(tid, &was)
		}
		return nil
	}},
	{name: "too little memory", on: []string{"all"}, ends: true, do: tooLittleMemory},
	{name: "full disk", on: []string{"all"}, do: fullDisk},
	{name: "start on another clock", on: []string{"all"}, do: otherClock},
	{name: "steps of the time of day", on: []string{"all"}, do: clockSteps},
	{name: "scrapes without measure", on: []string{"all"}, do: func(s *session) error {
		at := s.proc.metricsAt()
		end := time.Now().Add(time.Duration(100+s.r.IntN(1000)) * time.Millisecond)
		var all sync.WaitGroup
		for i := range 4 {
			all.Go(func() {
				for time.Now().Before(end) {
					if i > 0 {
						_, _, _ = get(s.space, at, time.Second)
						continue
					}
					// a client that sends half a request, and nothing more
					if c, err := dial(s.space, at, time.Second); err == nil {
						_, _ = c.Write([]byte("GET /metrics HTTP/1.1\r\nHost: x\r\n"))
						time.Sleep(20 * time.Millisecond)
						c.Close()
					}
				}
			})
		}
		all.Wait()
		return nil
	}},
	{name: "summaries without measure", on: []string{"all"}, do: func(s *session) error {
		pid := s.proc.pid()
		for range 50 {
			_ = unix.Kill(pid, unix.SIGUSR1)
			time.Sleep(time.Millisecond)
		}
		return nil
	}},
}

// lastCPU is the CPU that the responder chooses if none is isolated.
func lastCPU() int {
	var all unix.CPUSet
	_ = unix.SchedGetaffinity(0, &all)
	last := 0
	for i := range len(all) * 64 {
		if all.IsSet(i) {
			last = i
		}
	}
	return last
}

// memoryGroup creates a memory control group, of either version. It returns its folder, and the name of its limit.
func memoryGroup() (dir, limit string, err error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return "", "", err
	}
	for line := range strings.SplitSeq(string(mounts), "\n") {
		f := strings.Fields(line)
		switch {
		case len(f) < 4:
			continue
		case f[2] == "cgroup2":
			all, _ := os.ReadFile(filepath.Join(f[1], "cgroup.subtree_control"))
			if !slices.Contains(strings.Fields(string(all)), "memory") {
				continue
			}
			limit = "memory.max"
		case f[2] == "cgroup" && slices.Contains(strings.Split(f[3], ","), "memory"):
			limit = "memory.limit_in_bytes"
		default:
			continue
		}
		dir = filepath.Join(f[1], fmt.Sprintf("rebound-campaign-%d", os.Getpid()))
		if err = os.Mkdir(dir, 0o755); err == nil {
			return dir, limit, nil
		}
	}
	return "", "", errors.Join(errors.New("no control group for memory can be made"), err)
}

// tooLittleMemory starts the responder several times with less memory than it may need.
func tooLittleMemory(s *session) (err error) {
	dir, limit, err := memoryGroup()
	if err != nil {
		s.skip = err.Error()
		return nil
	}
	defer func() {
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			rerr := os.Remove(dir)
			if rerr == nil {
				return
			}
			if time.Now().After(end) {
				err = errors.Join(err, rerr)
				return
			}
		}
	}()
	bytes := 1 << (21 + s.r.IntN(6)) // 2 to 64 MiB
	s.note("%d MiB", bytes>>20)
	if err := os.WriteFile(filepath.Join(dir, limit), []byte(strconv.Itoa(bytes)), 0); err != nil {
		return err
	}
	set := func(f func(pid int)) {
		s.proc.mu.Lock()
		s.proc.began = f
		s.proc.mu.Unlock()
	}
	set(func(pid int) { _ = os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0) })
	if _, err := s.proc.signal(unix.SIGTERM, s.patience); err != nil {
		return err
	}
	s.for_(time.Second, 4*time.Second)
	set(nil)
	s.note("%d ends", s.proc.endings()-s.began-1)
	// The running process has the limit; the next one is started without it, and the group can be removed.
	_, err = s.proc.signal(unix.SIGKILL, s.patience)
	return err
}

// fullDisk makes the responder save its report on a full disk, and then on one with space.
func fullDisk(s *session) error {
	folder := filepath.Join(s.disk(), "report")
	s.extra = []string{"stats.report=" + folder}
	end := func() (ending, error) {
		if err := s.proc.up(s.patience); err != nil {
			return ending{}, err
		}
		return s.proc.signal(unix.SIGTERM, s.patience)
	}
	if _, err := end(); err != nil { // a responder without a report
		return err
	}
	filler := filepath.Join(s.disk(), "filler")
	size := 0
	f, err := os.Create(filler)
	if err != nil {
		return err
	}
	for err == nil {
		var n int
		n, err = f.Write(make([]byte, 4096))
		size += n
	}
	leave := int64(s.r.IntN(6)) * 4096 // leave some space, for a report's first files
	_ = f.Truncate(max(int64(size)-leave, 0))
	f.Close()
	s.note("%d bytes of room", leave)
	full, err := end()
	if err != nil {
		return err
	}
	if full.how != "exit 1" || !strings.Contains(full.said, "no space left on device") {
		err = fmt.Errorf("with no room for its report the responder said: %s", lastLine(full))
	}
	// The folder was created at the start, for the user that the responder switched to, who may not remove it from a
	// folder owned by root.
	part, _ := os.ReadDir(folder)
	if left, _ := os.ReadDir(s.disk()); len(left) > 2 || len(part) > 0 || len(left) == 2 && left[1].Name() != "report" {
		err = errors.Join(err, fmt.Errorf("beside the filler there is %v, and in the report's folder %v", left, part))
	}
	os.Remove(filler)
	room, rerr := end()
	if err = errors.Join(err, rerr); err != nil {
		return err
	}
	if _, serr := os.Stat(filepath.Join(folder, "report.json")); room.how != "exit 0" || serr != nil {
		err = fmt.Errorf("with room for its report again: %s, %v", lastLine(room), serr)
	}
	s.extra = nil
	// The process started in the meantime still has the setting.
	if uerr := s.proc.up(s.patience); uerr != nil {
		return errors.Join(err, uerr)
	}
	_, kerr := s.proc.signal(unix.SIGKILL, s.patience)
	os.RemoveAll(folder)
	return errors.Join(err, kerr)
}

// otherClock starts the responder in a time namespace whose monotonic clock has an offset. The time of day is
// unchanged: see clockSteps.
func otherClock(s *session) error {
	offset := 1 + s.r.Int64N(10*365*86400)
	s.note("%d s ahead", offset)
	var failed error
	set := func(f func(start func() error) error) {
		s.proc.mu.Lock()
		defer s.proc.mu.Unlock()
		s.proc.prepare = f
	}
	space, err := timeSpace(s.space, offset)
	if err != nil {
		s.skip = err.Error()
		return nil
	}
	defer space.Close()
	set(func(start func() error) error { return space.Do(start) })
	if _, err := s.proc.signal(unix.SIGTERM, s.patience); err != nil {
		return err
	}
	if _, err := s.back(s.patience); err != nil {
		failed = fmt.Errorf("on another clock: %w", err)
	}
	set(nil)
	s.for_(0, time.Second)
	_, err = s.proc.signal(unix.SIGTERM, s.patience)
	return errors.Join(failed, err)
}

// timeSpace is a thread in the network namespace of space whose children have a monotonic clock that is ahead by the
// given number of seconds.
func timeSpace(space *testbed.Namespace, offset int64) (*testbed.Namespace, error) {
	t, err := testbed.NewNamespace()
	if err != nil {
		return nil, err
	}
	err = t.Do(func() error {
		if err := unix.Setns(space.FD, unix.CLONE_NEWNET); err != nil {
			return err
		}
		if err := unix.Unshare(unix.CLONE_NEWTIME); err != nil {
			return fmt.Errorf("a time namespace: %w", err)
		}
		offsets := fmt.Sprintf("monotonic %d 0\nboottime %d 0\n", offset, offset)
		// a thread's file is there, not below task/
		return os.WriteFile(fmt.Sprintf("/proc/%d/timens_offsets", unix.Gettid()), []byte(offsets), 0)
	})
	if err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

var kernelFaults = []fault{
	{name: "link down at our end", on: []string{"kernel"}, ends: true, do: func(s *session) error { return flap(s, true) }},
	{name: "link down at the other end", on: []string{"kernel"}, do: func(s *session) error { return flap(s, false) }},
	{name: "interface removed", on: []string{"kernel"}, not: []string{"pinned"}, ends: true,
		do: func(s *session) error {
			v := s.t.(*veth)
			if err := v.unplug(); err != nil {
				return err
			}
			if err := s.until("the end of a responder whose interface is gone",
				func() bool { return s.proc.endings() > s.began }); err != nil {
				return err
			}
			s.for_(0, time.Second)
			return v.plug()
		}},
	// The responder learns about an interface from the kernel's link messages. They are lost if more arrive than fit
	// into its socket while it is not reading: it must still detect that the interface went down.
	{name: "link messages lost", on: []string{"kernel"}, ends: true, do: func(s *session) error {
		pid, down := s.proc.pid(), s.r.IntN(2) == 1
		_ = unix.Kill(pid, unix.SIGSTOP)
		err := flood(s, 1000)
		if err == nil && down {
			s.note("and the link set down")
			err = s.t.(*veth).setUp(s.space, ourEnd, false)
		}
		_ = unix.Kill(pid, unix.SIGCONT)
		if err != nil || !down {
			return err
		}
		err = s.until("the end of a responder whose interface is down",
			func() bool { return s.proc.endings() > s.began })
		return errors.Join(err, s.t.(*veth).setUp(s.space, ourEnd, true))
	}},
	{name: "MTU changed", on: []string{"kernel"}, do: func(s *session) error {
		change := func(mtu int) error {
			return s.space.Do(func() error {
				l, err := netlink.LinkByName(ourEnd)
				if err != nil {
					return err
				}
				return netlink.LinkSetMTU(l, mtu)
			})
		}
		if err := change(1280 + s.r.IntN(220)); err != nil {
			return err
		}
		s.for_(10*time.Millisecond, 500*time.Millisecond)
		return change(1500)
	}},
}

// flood makes the kernel send the given number of link messages about the responder's interface.
func flood(s *session, n int) error {
	return s.space.Do(func() error {
		l, err := netlink.LinkByName(ourEnd)
		for i := 0; i < n && err == nil; i++ {
			err = netlink.LinkSetTxQLen(l, 1000+i%2)
		}
		return err
	})
}

func flap(s *session, ours bool) error {
	v := s.t.(*veth)
	space, name := v.near, theirEnd
	if ours {
		space, name = s.space, ourEnd
	}
	n := 1 + s.r.IntN(5)
	s.note("%d times", n)
	for range n {
		if err := v.setUp(space, name, false); err != nil {
			return err
		}
		time.Sleep(time.Duration(s.r.Int64N(int64(300 * time.Millisecond))))
		if err := v.setUp(space, name, true); err != nil {
			return err
		}
		time.Sleep(time.Duration(s.r.Int64N(int64(100 * time.Millisecond))))
	}
	return nil
}
