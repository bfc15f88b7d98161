// Package socket sends probes through the kernel's own UDP and ping sockets, for hosts without the privilege to send
// frames. The measurement includes both directions through the kernel's network stack and a system call for each poll
// of the socket.
package socket

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/kit/netif"
	"github.com/rebound-nic/rebound/polling"
)

// Port is a connected, non-blocking UDP or ping socket. Send and Recv make raw system calls: they never enter Go's
// scheduler. One goroutine uses it.
type Port struct {
	// Refused counts ICMP errors that the kernel reported on the socket.
	Refused int64
	// Closed is how many of them report a closed port on the target. The kernel merges errors that arrive in quick
	// succession.
	Closed int64
	// LastRefusal is the latest such error.
	LastRefusal unix.Errno
	// Interface is the interface of the route to the target. EnableTimestamps queries its capabilities.
	Interface string

	fd     int
	local  netip.AddrPort
	count  atomic.Int64 // messages that Recv returned
	target netip.Addr   // without a zone
	ping   bool         // the kernel delivers echo replies with this identifier from any address
	from   unix.RawSockaddrInet6
	last   nic.Timestamp
	stamps bool // timestamps are on
	rx, tx netif.Message
}

// UDP connects to a UDP port. source may be the zero Addr.
func UDP(target netip.AddrPort, source netip.Addr, device string) (*Port, error) {
	return open(target, source, device, unix.IPPROTO_UDP)
}

// Ping opens a ping socket. The kernel chooses the echo identifier, which Local().Port() returns. It needs the caller's
// group to be in net.ipv4.ping_group_range.
func Ping(target, source netip.Addr, device string) (*Port, error) {
	proto := unix.IPPROTO_ICMP
	if target.Is6() {
		proto = unix.IPPROTO_ICMPV6
	}
	return open(netip.AddrPortFrom(target, 0), source, device, proto)
}

// open returns a socket of protocol proto for one target. An invalid source leaves the choice to the kernel; device
// binds it to an interface, "" to none.
func open(target netip.AddrPort, source netip.Addr, device string, proto int) (_ *Port, err error) {
	if !source.IsValid() && target.Addr().Is4() {
		source = netip.IPv4Unspecified()
	} else if !source.IsValid() {
		source = netip.IPv6Unspecified()
	}
	family := unix.AF_INET
	if target.Addr().Is6() {
		family = unix.AF_INET6
	}
	fd, err := bound(family, proto, netip.AddrPortFrom(source, 0), device)
	if err != nil {
		return nil, err
	}
	p := &Port{fd: fd, target: target.Addr().WithZone(""), ping: proto != unix.IPPROTO_UDP}
	defer func() {
		if err != nil {
			unix.Close(fd)
		}
	}()
	if err := unix.Connect(fd, sockaddr(target)); err != nil {
		return nil, fmt.Errorf("target %v: %w", target, err)
	}
	if p.local, err = local(fd); err != nil {
		return nil, err
	}
	return p, nil
}

// bound opens a non-blocking datagram socket, and binds it, which gives a ping socket its identifier. With a source
// port an IPv6 socket leaves the port to IPv4 sockets.
func bound(family, proto int, source netip.AddrPort, device string) (_ int, err error) {
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, proto)
	if errors.Is(err, unix.EACCES) && proto != unix.IPPROTO_UDP {
		return -1, fmt.Errorf("ping socket: %w: group %d is not in net.ipv4.ping_group_range (as root: sysctl -w net.ipv4.ping_group_range='0 2147483647'): %w", nic.ErrRights, unix.Getegid(), err)
	} else if err != nil {
		return -1, fmt.Errorf("socket: %w", err)
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
		}
	}()
	if device != "" {
		if err := unix.BindToDevice(fd, device); err != nil {
			return -1, fmt.Errorf("bind the socket to interface %s: %w", device, err)
		}
	}
	if source.Port() != 0 && source.Addr().Is6() {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
			return -1, fmt.Errorf("IPV6_V6ONLY: %w", err)
		}
	}
	if err := unix.Bind(fd, sockaddr(source)); err != nil {
		return -1, fmt.Errorf("source address %v: %w", source, err)
	}
	return fd, nil
}

// local is a socket's own address and port, or echo identifier.
func local(fd int) (netip.AddrPort, error) {
	own, err := unix.Getsockname(fd)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("getsockname: %w", err)
	}
	switch a := own.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port)), nil
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port)), nil
	}
	return netip.AddrPort{}, nil
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	s := &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
	if i, err := net.InterfaceByName(a.Addr().Zone()); err == nil {
		s.ZoneId = uint32(i.Index)
	} else if n, err := strconv.ParseUint(a.Addr().Zone(), 10, 32); err == nil { // RFC 4007 §11.2
		s.ZoneId = uint32(n)
	}
	return s
}

// Local returns the socket's own address and port, or echo identifier.
func (p *Port) Local() netip.AddrPort { return p.local }

// Mark sets the TOS or traffic class, and the TTL or hop limit, of sent datagrams; with a ttl of 0 the kernel's default
// remains.
func (p *Port) Mark(tos, ttl uint8) error {
	level, tosOption, ttlOption := unix.IPPROTO_IP, unix.IP_TOS, unix.IP_TTL
	if p.local.Addr().Is6() {
		level, tosOption, ttlOption = unix.IPPROTO_IPV6, unix.IPV6_TCLASS, unix.IPV6_UNICAST_HOPS
	}
	if tos != 0 {
		if err := unix.SetsockoptInt(p.fd, level, tosOption, int(tos)); err != nil {
			return fmt.Errorf("DSCP and ECN %#x: %w", tos, err)
		}
	}
	if ttl != 0 {
		if err := unix.SetsockoptInt(p.fd, level, ttlOption, int(ttl)); err != nil {
			return fmt.Errorf("TTL %d: %w", ttl, err)
		}
	}
	return nil
}

// Send sends one datagram. It returns nic.ErrFull if the socket's buffer or the device's queue is full.
func (p *Port) Send(b []byte) error {
	var e unix.Errno
	for range 3 {
		_, _, e = unix.RawSyscall6(unix.SYS_SENDTO, uintptr(p.fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))),
			uintptr(len(b)), 0, 0, 0)
		switch e {
		case 0:
			return nil
		case unix.EAGAIN, unix.ENOBUFS:
			return nic.ErrFull
		case unix.EMSGSIZE:
			return fmt.Errorf("%w: %d bytes in one datagram", nic.ErrFrameSize, len(b))
		}
		if !p.refused(e) { // an error caused by an earlier datagram: reported once, then the call works
			break
		}
	}
	return fmt.Errorf("send: %w", e) // a repeated error is this host's own: it has no route any more
}

// refused reports whether the kernel derived the error from an ICMP error, and counts it if so.
func (p *Port) refused(e unix.Errno) bool {
	switch e {
	case unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.ENOPROTOOPT:
		p.Refused++
		if e == unix.ECONNREFUSED {
			p.Closed++
		}
		p.LastRefusal = e
		return true
	}
	return false
}

// Recv receives one datagram without waiting: n is 0 if there is none.
func (p *Port) Recv(buf []byte) (n int, at int64, err error) {
	var e unix.Errno
	if p.stamps {
		n, e = p.rx.Receive(p.fd, buf, 0, &p.from)
	} else {
		var got uintptr
		size := uint32(unsafe.Sizeof(p.from))
		got, _, e = unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(p.fd), uintptr(unsafe.Pointer(unsafe.SliceData(buf))),
			uintptr(len(buf)), 0,
			uintptr(unsafe.Pointer(&p.from)), uintptr(unsafe.Pointer(&size)))
		n = int(got)
	}
	now := int64(polling.TSC())
	switch {
	case e == unix.EAGAIN || e == unix.EINTR || p.refused(e):
		return 0, 0, nil
	case e != 0:
		return 0, 0, fmt.Errorf("receive: %w", e)
	}
	if p.stamps {
		p.last, _, _ = p.rx.Stamp()
	}
	p.count.Store(p.count.Load() + 1) // no other goroutine adds
	return n, now, nil
}

// FromTarget reports whether the message that Recv returned last came from the target. A ping socket receives echo
// replies with its identifier from any address, connected or not; a connected UDP socket does not.
func (p *Port) FromTarget() bool {
	if !p.ping {
		return true
	}
	if p.from.Family == unix.AF_INET {
		return p.target == netip.AddrFrom4((*unix.RawSockaddrInet4)(unsafe.Pointer(&p.from)).Addr)
	}
	return p.target == netip.AddrFrom16(p.from.Addr)
}

// Messages returns how many messages Recv has returned. Other goroutines may call it.
func (p *Port) Messages() int64 { return p.count.Load() }

// Drops returns how many datagrams the kernel has dropped because the socket's receive buffer was full, or because they
// were broken.
func (p *Port) Drops() (uint64, error) { return drops(p.fd) }

// drops reads the counter that SO_RXQ_OVFL delivers with a datagram. SO_MEMINFO returns it without one, and so includes
// drops after the latest datagram.
func drops(fd int) (uint64, error) {
	const meminfo, at = 55, 8 // asm-generic/socket.h: SO_MEMINFO; linux/sock_diag.h: SK_MEMINFO_DROPS
	var info [at + 1]uint32
	size := uint32(unsafe.Sizeof(info))
	if _, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, meminfo,
		uintptr(unsafe.Pointer(&info)),
		uintptr(unsafe.Pointer(&size)), 0); e != 0 {
		return 0, fmt.Errorf("SO_MEMINFO: %w", e)
	}
	return uint64(info[at]), nil
}

// Close closes the socket.
func (p *Port) Close() error { return unix.Close(p.fd) }
