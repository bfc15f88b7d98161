package blame

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/bench"
)

// inChild marks a process of the campaign, and says what it is.
const inChild = "REBOUND_BLAME"

// IsChild reports whether this process was started by a campaign.
func IsChild() bool { return os.Getenv(inChild) != "" }

// child is this program as another process, which ends with this thread.
func child(what string, args ...string) *exec.Cmd {
	c := exec.Command("/proc/self/exe", args...)
	c.Env = append(os.Environ(), inChild+"="+what)
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	return c
}

// Child is what such a process does. It returns the exit status.
func Child() int {
	what, args := os.Getenv(inChild), os.Args[1:]
	os.Unsetenv(inChild)
	var err error
	switch what {
	case "hog":
		var n [3]int64
		for i := range n {
			n[i], _ = strconv.ParseInt(args[i], 10, 64)
		}
		err = beHog(int(n[0]), int(n[1]), n[2])
	case "bench":
		go collectWhenAsked()
		return bench.Main(args)
	case "card":
		err = beCard(args[0], args[1], args[2])
	case "remover":
		err = removeWhenOver(args[0])
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "blame: %s: %v\n", what, err)
		return 1
	}
	return 0
}

// collectWhenAsked collects garbage for each line of file descriptor 3, and says when on 4.
func collectWhenAsked() {
	lines, out := bufio.NewScanner(os.NewFile(3, "asked")), os.NewFile(4, "answers")
	for lines.Scan() {
		from := time.Now().UnixNano()
		runtime.GC()
		writePulses(out, []pulse{{from: from, to: time.Now().UnixNano()}})
	}
}

// collections plants collections of garbage in the bench, one after the other for the length of a pulse.
func collections(s *scene, schedule []pulse, _ *rand.Rand) ([]pulse, error) {
	return lost(s, s.bench, benchCore, func(int) (all []pulse, err error) {
		_, err = each(s, schedule, func(end time.Time) error {
			for time.Now().Before(end) {
				p, err := s.collect()
				if err != nil {
					return err
				}
				all = append(all, p)
			}
			return nil
		}, func() error { return nil })
		return all, err
	})
}

// quota plants a CPU quota of the responder's polling thread, in a cgroup.
func quota(s *scene, _ []pulse, r *rand.Rand) ([]pulse, error) {
	return lost(s, s.responder, responderCore, func(tid int) ([]pulse, error) {
		const period = 100_000 // µs
		c, err := newCgroup(period*8/10+r.IntN(period*15/100), period, s.responder, tid)
		if err != nil {
			return nil, fmt.Errorf("a cgroup with a CPU quota: %w", err)
		}
		defer c.remove()
		from := time.Now().UnixNano()
		<-s.end
		return []pulse{{from: from, to: time.Now().UnixNano()}}, nil
	})
}

// cgroup has a CPU quota. Another process removes it when this one has ended, however it did.
type cgroup struct {
	remover *exec.Cmd
	pipe    io.Closer
}

const cgroupPrefix = "rebound-blame-"

// newCgroup moves a thread, or with cgroup v2 its process, into a new cgroup.
func newCgroup(quota, period, pid, tid int) (*cgroup, error) {
	name := fmt.Sprintf("%s%d-%d", cgroupPrefix, os.Getpid(), tid)
	dir, files := "/sys/fs/cgroup/cpu/"+name, [][2]string{{"cpu.cfs_period_us", fmt.Sprint(period)},
		{"cpu.cfs_quota_us", fmt.Sprint(quota)}, {"tasks", fmt.Sprint(tid)}}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		dir, files = "/sys/fs/cgroup/"+name, [][2]string{{"cpu.max", fmt.Sprint(quota, period)},
			{"cgroup.procs", fmt.Sprint(pid)}}
	}
	c := &cgroup{remover: child("remover", dir)}
	c.remover.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.remover.Stderr = os.Stderr
	var err error
	if c.pipe, err = c.remover.StdinPipe(); err != nil {
		return nil, err
	}
	if err := c.remover.Start(); err != nil {
		return nil, err
	}
	go func() { _ = c.remover.Wait() }()
	err = os.Mkdir(dir, 0o755)
	for _, f := range files {
		if err == nil {
			err = os.WriteFile(dir+"/"+f[0], []byte(f[1]), 0)
		}
	}
	if err != nil {
		c.remove()
		return nil, err
	}
	return c, nil
}

func (c *cgroup) remove() { c.pipe.Close() } // the other process waits until the responder has ended, too

// removeWhenOver removes a cgroup when stdin is closed and its processes have ended.
func removeWhenOver(dir string) (err error) {
	_, _ = io.Copy(io.Discard, os.Stdin)
	for range 3000 {
		if err = os.Remove(dir); err == nil || errors.Is(err, os.ErrNotExist) {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return err
}

// pageOut plants page faults of the responder as under memory pressure: its code is taken out of memory.
func pageOut(s *scene, schedule []pulse, _ *rand.Rand) ([]pulse, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", s.responder))
	if err != nil {
		return nil, err
	}
	var code []unix.RemoteIovec
	for line := range strings.Lines(string(b)) {
		var from, to uintptr
		if n, _ := fmt.Sscanf(line, "%x-%x r-xp", &from, &to); n == 2 && strings.Contains(line, " r-xp ") &&
			strings.Contains(line, "/") {
			code = append(code, unix.RemoteIovec{Base: from, Len: int(to - from)})
		}
	}
	if len(code) == 0 {
		return nil, errors.New("no mapping of the responder's code in /proc/PID/maps")
	}
	fd, err := unix.PidfdOpen(s.responder, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	return lost(s, s.responder, responderCore, func(int) ([]pulse, error) {
		return each(s, schedule, func(end time.Time) error {
			for time.Now().Before(end) {
				if err := pageOutOf(fd, code); err != nil {
					return err
				}
			}
			return nil
		}, func() error { return nil })
	})
}

func pageOutOf(process int, code []unix.RemoteIovec) error {
	_, _, e := unix.Syscall6(unix.SYS_PROCESS_MADVISE, uintptr(process), uintptr(unsafe.Pointer(&code[0])),
		uintptr(len(code)), unix.MADV_PAGEOUT, 0, 0)
	if e != 0 {
		return e
	}
	return nil
}
