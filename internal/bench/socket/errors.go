package socket

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

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
