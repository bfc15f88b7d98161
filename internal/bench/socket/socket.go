// Package socket sends probes through the kernel's own UDP and ping sockets, for hosts without the privilege to send
// frames. The measurement includes both directions through the kernel's network stack and a system call for each poll
// of the socket.
package socket

import (
	"encoding/binary"
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

// EnableTimestamps implements nic.Timestamper (Documentation/networking/timestamping.rst). A socket gets hardware
// timestamps only if they were turned on for the interface (hwstamp_ctl), which requires privileges that a socket does
// not need otherwise.
func (p *Port) EnableTimestamps(hardware bool) (nic.Timestamping, error) {
	flags := unix.SOF_TIMESTAMPING_SOFTWARE | unix.SOF_TIMESTAMPING_RX_SOFTWARE | unix.SOF_TIMESTAMPING_TX_SOFTWARE |
		unix.SOF_TIMESTAMPING_OPT_ID | unix.SOF_TIMESTAMPING_OPT_TSONLY
	if hardware {
		flags |= unix.SOF_TIMESTAMPING_RAW_HARDWARE | unix.SOF_TIMESTAMPING_RX_HARDWARE |
			unix.SOF_TIMESTAMPING_TX_HARDWARE |
			unix.SOF_TIMESTAMPING_OPT_TX_SWHW
	}
	if err := unix.SetsockoptInt(p.fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPING, flags); err != nil {
		return nic.Timestamping{}, fmt.Errorf("SO_TIMESTAMPING %#x: %w", flags, err)
	}
	p.stamps = true
	in := nic.Timestamping{RxSoftware: true} // by the kernel itself; all others depend on the interface's driver
	if info, err := unix.IoctlGetEthtoolTsInfo(p.fd, p.Interface); err == nil {
		in.TxSoftware = info.So_timestamping&unix.SOF_TIMESTAMPING_TX_SOFTWARE != 0
	}
	if on, err := unix.IoctlGetHwTstamp(p.fd, p.Interface); err == nil && hardware {
		in.RxHardware, in.TxHardware = on.Rx_filter != unix.HWTSTAMP_FILTER_NONE, on.Tx_type != unix.HWTSTAMP_TX_OFF
	}
	return in, nil
}

// RxTimestamp implements nic.Timestamper.
func (p *Port) RxTimestamp() nic.Timestamp { return p.last }

// TxTimestamp implements nic.Timestamper.
func (p *Port) TxTimestamp() (id uint32, t nic.Timestamp, ok bool, err error) {
	for {
		_, e := p.tx.Receive(p.fd, nil, unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT, nil)
		switch {
		case e == unix.EAGAIN:
			return 0, t, false, nil
		case e == unix.EINTR || p.refused(e):
			continue
		case e != 0:
			return 0, t, false, fmt.Errorf("read a transmit timestamp: %w", e)
		}
		if t, id, ok = p.tx.Stamp(); ok && t.Nanoseconds != 0 {
			return id, t, true, nil
		}
	}
}

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

// fromICMP reports whether the kernel may have derived the error from an ICMP error (icmp_err_convert,
// icmpv6_err_convert).
func fromICMP(e unix.Errno) bool {
	switch e {
	case unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.ENOPROTOOPT, unix.EHOSTDOWN, unix.ENONET,
		unix.EPROTO, unix.EOPNOTSUPP,
		unix.EMSGSIZE, unix.EACCES:
		return true
	}
	return false
}

// ICMPError is an ICMP or ICMPv6 error about a datagram that the socket sent.
type ICMPError struct {
	From       netip.Addr     // the host that reports it
	To         netip.AddrPort // where the datagram was sent
	V6         bool
	Type, Code uint8
	Payload    []byte // as much of the datagram's payload as the error quotes, perhaps nothing
}

// TimeExceeded reports whether a router received the datagram with a TTL of 1.
func (e *ICMPError) TimeExceeded() bool { // RFC 792, RFC 4443 §3.3
	return e.Code == 0 && (!e.V6 && e.Type == 11 || e.V6 && e.Type == 3)
}

// KeepErrors makes the kernel keep ICMP errors for NextError, or discard them. Meanwhile Send and Recv may notice an
// error about an earlier datagram, which they ignore. It takes no privilege, nor do SendTTL and NextError; all three
// may be used while another goroutine sends and receives.
func (s *Shared) KeepErrors(on bool) error {
	level, option, value := unix.IPPROTO_IP, unix.IP_RECVERR, 0
	if s.local.Addr().Is6() {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_RECVERR
	}
	if on {
		value = 1
	}
	if err := unix.SetsockoptInt(s.fd, level, option, value); err != nil {
		return fmt.Errorf("IP_RECVERR: %w", err)
	}
	return nil
}

// SendTTL sends one datagram with this TTL or hop limit. scope is the interface of a link-local address.
func (s *Shared) SendTTL(to netip.AddrPort, scope uint32, b []byte, ttl int) (err error) {
	level, option, address := unix.IPPROTO_IP, unix.IP_TTL, sockaddr(to)
	if a, ok := address.(*unix.SockaddrInet6); ok {
		level, option, a.ZoneId = unix.IPPROTO_IPV6, unix.IPV6_HOPLIMIT, scope
	}
	control := make([]byte, unix.CmsgSpace(4))
	binary.NativeEndian.PutUint64(control, uint64(unix.CmsgLen(4))) // struct cmsghdr: length, level, type
	binary.NativeEndian.PutUint32(control[8:], uint32(level))
	binary.NativeEndian.PutUint32(control[12:], uint32(option))
	binary.NativeEndian.PutUint32(control[unix.CmsgLen(0):], uint32(ttl))
	for range 3 { // an error about an earlier datagram is reported once
		if _, err = unix.SendmsgN(s.fd, b, control, address, unix.MSG_DONTWAIT); err == nil {
			return nil
		}
		if e, ok := err.(unix.Errno); !ok || !fromICMP(e) {
			break
		}
	}
	return fmt.Errorf("send with TTL %d: %w", ttl, err)
}

// NextError returns the next ICMP error that the kernel kept, or false after waiting for so many milliseconds.
func (s *Shared) NextError(buf []byte, wait int) (e ICMPError, ok bool, err error) {
	all := []unix.PollFd{{Fd: int32(s.fd)}} // POLLERR is always reported
	if n, err := unix.Poll(all, wait); err != nil && !errors.Is(err, unix.EINTR) {
		return e, false, fmt.Errorf("poll: %w", err)
	} else if n <= 0 || all[0].Revents&unix.POLLERR == 0 {
		return e, false, nil
	}
	control := make([]byte, 512)
	n, size, _, to, err := unix.Recvmsg(s.fd, buf, control, unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
	if err != nil {
		if c, is := err.(unix.Errno); is && (c == unix.EAGAIN || c == unix.EINTR || fromICMP(c)) {
			return e, false, nil
		}
		return e, false, fmt.Errorf("read the error queue: %w", err)
	}
	if e, ok = parseError(control[:size]); !ok {
		return e, false, nil
	}
	switch a := to.(type) {
	case *unix.SockaddrInet4:
		e.To = netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		e.To = netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port))
	}
	e.Payload = buf[:n]
	return e, true, nil
}

// parseError reads the control messages of a message from the error queue (ip(7), IP_RECVERR): a sock_extended_err,
// followed by the address of the host that reports the error.
func parseError(control []byte) (e ICMPError, ok bool) {
	const extended = 16
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return e, false
	}
	for _, m := range messages {
		v4 := m.Header.Level == unix.SOL_IP && m.Header.Type == unix.IP_RECVERR
		e.V6 = m.Header.Level == unix.SOL_IPV6 && m.Header.Type == unix.IPV6_RECVERR
		if !v4 && !e.V6 || len(m.Data) < extended {
			continue
		}
		switch origin := m.Data[4]; {
		case v4 && origin == unix.SO_EE_ORIGIN_ICMP, e.V6 && origin == unix.SO_EE_ORIGIN_ICMP6:
		default:
			continue
		}
		e.Type, e.Code = m.Data[5], m.Data[6]
		from := m.Data[extended:]
		switch {
		case v4 && len(from) >= 8 && binary.NativeEndian.Uint16(from) == unix.AF_INET:
			e.From = netip.AddrFrom4([4]byte(from[4:]))
		case e.V6 && len(from) >= 24 && binary.NativeEndian.Uint16(from) == unix.AF_INET6:
			e.From = netip.AddrFrom16([16]byte(from[8:]))
		default:
			continue
		}
		return e, true
	}
	return ICMPError{}, false
}
