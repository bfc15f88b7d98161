package baseline

import (
	"fmt"
	"io"
	"net/netip"
	"runtime"
	"runtime/debug"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/polling"
)

// EchoUDP answers datagrams to an IPv4 address on a kernel socket, which it polls on one core: the best that a program
// can do without a driver in user space. It prints "ready" and returns only with an error.
func EchoUDP(at netip.AddrPort, core int, w io.Writer) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: at.Addr().As4(), Port: int(at.Port())}); err != nil {
		return fmt.Errorf("bind to %v: %w", at, err)
	}
	runtime.LockOSThread()
	var set unix.CPUSet
	set.Set(core)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("run on core %d: %w", core, err)
	}
	debug.SetGCPercent(-1)
	buf := make([]byte, 1<<16)
	runtime.GC() // see polling.Pin
	var from unix.RawSockaddrInet4
	fmt.Fprintln(w, "ready")
	polling.Pin()
	defer polling.Unpin()
	for {
		size := uint32(unsafe.Sizeof(from))
		n, _, e := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)),
			unix.MSG_DONTWAIT, uintptr(unsafe.Pointer(&from)), uintptr(unsafe.Pointer(&size)))
		if e == unix.EAGAIN {
			continue
		} else if e != 0 {
			return fmt.Errorf("recvfrom: %w", e)
		}
		unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&buf[0])), n, unix.MSG_DONTWAIT,
			uintptr(unsafe.Pointer(&from)), uintptr(size))
	}
}
