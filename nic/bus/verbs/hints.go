package verbs

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// tooOld says which kernels have the calls that this package makes. EPROTONOSUPPORT is the answer to an object, a
// method or a mandatory attribute that the kernel does not know.
func tooOld(err error) error {
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return fmt.Errorf("%w: this kernel's RDMA interface has no such call (Linux 5.9 or later has it)", err)
	}
	return err
}

// noMemory says what a lack of memory means for a call that pins this process's memory: RLIMIT_MEMLOCK, unless it does
// not apply.
func noMemory(err error) error {
	if !errors.Is(err, unix.ENOMEM) && !errors.Is(err, unix.EPERM) {
		return err
	}
	var limit unix.Rlimit
	if e := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); e != nil {
		limit.Cur = unix.RLIM_INFINITY
	}
	return lockedMemory(err, limit.Cur, mayLock())
}

// lockedMemory is noMemory for a process with this limit of locked memory, or without one.
func lockedMemory(err error, limit uint64, unlimited bool) error {
	if unlimited || limit == unix.RLIM_INFINITY {
		return fmt.Errorf("%w (locked memory is not limited: the device, or a cgroup's limit of memory, has no more)",
			err)
	}
	return fmt.Errorf("%w (locked memory is limited to %d KiB: raise it with ulimit -l or LimitMEMLOCK=, or give the process CAP_IPC_LOCK)", err, limit>>10)
}

// mayLock reports whether the process has CAP_IPC_LOCK, to which the limit does not apply.
func mayLock() bool {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	_, _, e := unix.RawSyscall(unix.SYS_CAPGET, uintptr(unsafe.Pointer(&hdr)), uintptr(unsafe.Pointer(&data)), 0)
	return e == 0 && data[0].Effective>>unix.CAP_IPC_LOCK&1 != 0
}

// selinux says so if the kernel enforces SELinux's rules, which may refuse a device file whatever its mode. root is
// /sys.
func selinux(root string) string {
	if b, err := os.ReadFile(root + "/fs/selinux/enforce"); err != nil || strings.TrimSpace(string(b)) != "1" {
		return ""
	}
	return " (SELinux is enforced: ausearch -m avc -ts recent shows whether it refused)"
}
