package socket

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Hold opens a UDP port of the kernel and discards everything received: the kernel sees our replies too, and would
// otherwise tell the target that the port is unreachable.
func Hold(ip netip.Addr, index int) (fd int, port uint16, err error) { return hold(ip, index, 0, "") }

// HoldPorts holds count ports as OpenPorts chooses them. Nothing is received from the sockets but ICMP errors. device
// is the interface that they send through, "" for any.
func HoldPorts(ip netip.Addr, index, count int, device string) ([]*Shared, error) {
	return lowest(count, func(port uint16) (int, error) {
		fd, _, err := hold(ip, index, port, device)
		return fd, err
	})
}

// hold holds a port, any if it is 0.
func hold(ip netip.Addr, index int, want uint16, device string) (fd int, port uint16, err error) {
	family, sa := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Addr: [4]byte{}})
	if ip.Is4() {
		sa = &unix.SockaddrInet4{Addr: ip.As4(), Port: int(want)}
	} else {
		family, sa = unix.AF_INET6, &unix.SockaddrInet6{Addr: ip.As16(), Port: int(want), ZoneId: uint32(index)}
	}
	if fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
		return 0, 0, fmt.Errorf("reserve a UDP port: %w", err)
	}
	drop := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}
	err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &drop})
	if err == nil && family == unix.AF_INET6 { // routers may choose the path by it, and our frames have none
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_AUTOFLOWLABEL, 0)
	}
	if err == nil && device != "" {
		err = unix.BindToDevice(fd, device)
	}
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
