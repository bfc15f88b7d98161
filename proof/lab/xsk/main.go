// Xsk queries the kernel's AF_XDP state: "xsk IF" prints the XDP program of an interface, "program 0" for none, "xsk IF
// PID" also each AF_XDP socket of a process, and whether it is bound with zero copy. It runs in the lab's guest, to
// compare a responder's output with the kernel's state.
package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic/kit/netif"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "xsk:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 1 || len(args) > 2 {
		return errors.New("usage: xsk IF [PID]")
	}
	i, err := netif.Lookup(args[0])
	if err != nil {
		return err
	}
	defer i.Close()
	fmt.Println("program", i.XDP)
	if len(args) == 1 {
		return nil
	}
	pid, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	return sockets(pid)
}

// sockets examines copies of the process's descriptors (pidfd_getfd(2)).
func sockets(pid int) error {
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return err
	}
	p, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("pidfd_open: %w", err)
	}
	for _, e := range fds {
		n, err := strconv.Atoi(e.Name())
		if err != nil {
			return err
		}
		fd, err := unix.PidfdGetfd(p, n, 0)
		if errors.Is(err, unix.EBADF) {
			continue // closed in the meantime
		} else if err != nil {
			return fmt.Errorf("pidfd_getfd: %w", err)
		}
		if domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN); err == nil && domain == unix.AF_XDP {
			var flags uint32 // struct xdp_options
			size := uint32(unsafe.Sizeof(flags))
			if _, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_XDP, unix.XDP_OPTIONS,
				uintptr(unsafe.Pointer(&flags)), uintptr(unsafe.Pointer(&size)), 0); e != 0 {
				return fmt.Errorf("XDP_OPTIONS: %w", e)
			}
			fmt.Printf("socket %d zero-copy %v\n", n, flags&unix.XDP_OPTIONS_ZEROCOPY != 0)
		}
		unix.Close(fd)
	}
	return nil
}
