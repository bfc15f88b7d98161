package responder

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/host/isolate"
	"github.com/rebound-nic/rebound/internal/host/process"
)

// The main goroutine stays on the process's first thread. The kernel delivers signals to that thread, and no polling
// loop ever runs on it.
func init() { runtime.LockOSThread() }

// onlineCPUs returns the CPUs of this machine, sorted.
func onlineCPUs() ([]int, error) {
	b, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err != nil {
		return nil, err
	}
	cpus, err := isolate.ParseCPUs(strings.TrimSpace(string(b)))
	if err != nil {
		return nil, fmt.Errorf("/sys/devices/system/cpu/online: %w", err)
	}
	return cpus, nil
}

// chooseCore picks the polling core if the user named none: the last isolated one, otherwise the last one that this
// process may use. The first one handles interrupts on most machines.
func chooseCore(online []int) int {
	if b, err := os.ReadFile("/sys/devices/system/cpu/isolated"); err == nil {
		if isolated, err := isolate.ParseCPUs(strings.TrimSpace(string(b))); err == nil && len(isolated) > 0 {
			return isolated[len(isolated)-1]
		}
	}
	var mask unix.CPUSet
	if unix.SchedGetaffinity(0, &mask) == nil {
		for _, c := range slices.Backward(online) {
			if mask.IsSet(c) {
				return c
			}
		}
	}
	return online[len(online)-1]
}

// keepOff moves every thread of this process off the polling cores. A thread inherits the affinity of the one that
// started it, and the runtime starts none from a locked thread, so later threads stay off as well. It returns the
// remaining CPUs of the process. If this process can have only polling cores, it moves nothing and returns none.
func keepOff(cores, online []int) ([]int, error) {
	var mask unix.CPUSet
	if err := unix.SchedGetaffinity(0, &mask); err != nil {
		return nil, fmt.Errorf("sched_getaffinity: %w", err)
	}
	left := func(use func(int) bool) (out []int) {
		for _, c := range online {
			if use(c) && !slices.Contains(cores, c) {
				out = append(out, c)
			}
		}
		return out
	}
	rest := left(mask.IsSet)
	confined := len(rest) == 0 // to the polling cores: by taskset, which can be undone, or by a cpuset, which cannot
	if confined {
		rest = left(func(int) bool { return true })
	}
	if len(rest) == 0 {
		return nil, nil
	}
	mask.Zero()
	for _, c := range rest {
		mask.Set(c)
	}
	switch err := process.Bind(&mask); {
	case errors.Is(err, unix.EINVAL) && confined:
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("move to CPUs %s: %w", isolate.FormatCPUs(rest), err)
	}
	return rest, nil
}

// occupy makes the calling thread, which is locked, the polling thread of core: on that core only, with signals
// blocked, and with SCHED_FIFO if priority is set. Signals go to the process's other threads, except for synchronous
// ones caused by this thread (an access to an unmapped page), which cannot be blocked.
func occupy(core, priority int) error {
	var mask unix.CPUSet
	mask.Set(core)
	if err := unix.SchedSetaffinity(0, &mask); err != nil {
		return fmt.Errorf("run on core %d: sched_setaffinity: %w", core, err)
	}
	var signals unix.Sigset_t
	for i := range signals.Val {
		signals.Val[i] = ^uint64(0)
	}
	for _, s := range []unix.Signal{unix.SIGSEGV, unix.SIGBUS, unix.SIGFPE, unix.SIGILL, unix.SIGTRAP} {
		signals.Val[(s-1)/64] &^= 1 << ((s - 1) % 64)
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &signals, nil); err != nil {
		return fmt.Errorf("block signals on core %d: %w", core, err)
	}
	if priority > 0 {
		attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: uint32(priority)}
		if err := unix.SchedSetAttr(0, &attr, 0); err != nil {
			return fmt.Errorf("SCHED_FIFO %d on core %d: %w (needs CAP_SYS_NICE)", priority, core, err)
		}
	}
	return nil
}
