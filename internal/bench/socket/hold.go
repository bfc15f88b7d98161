package socket

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Hold opens a UDP port of the kernel and discards everything received: the kernel sees our replies too, and would
// otherwise tell the target that the port is unreachable.
func Hold(ip netip.Addr, index int) (fd int, port uint16, err error) {
	family, sa := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Addr: [4]byte{}})
	if ip.Is4() {
		sa = &unix.SockaddrInet4{Addr: ip.As4()}
	} else {
		family, sa = unix.AF_INET6, &unix.SockaddrInet6{Addr: ip.As16(), ZoneId: uint32(index)}
	}
	if fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return 0, 0, fmt.Errorf("reserve a UDP port: %w", err)
	}
	drop := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}
	err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &drop})
	if err == nil {
		err = unix.Bind(fd, sa)
	}
	var own unix.Sockaddr
	if err == nil {
		own, err = unix.Getsockname(fd)
	}
	if err != nil {
		unix.Close(fd)
		return 0, 0, fmt.Errorf("reserve a UDP port of %v: %w", ip, err)
	}
	switch a := own.(type) {
	case *unix.SockaddrInet4:
		port = uint16(a.Port)
	case *unix.SockaddrInet6:
		port = uint16(a.Port)
	}
	return fd, port, nil
}
