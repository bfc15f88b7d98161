package socket

import (
	"fmt"
	"net/netip"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/polling"
)

// Shared is a non-blocking UDP or ping socket that many targets of one family share: it is bound, but not connected.
// Like a Port it makes raw system calls. One goroutine uses it.
type Shared struct {
	Refused int64 // sends for which the kernel had no route

	fd    int
	local netip.AddrPort
	from  unix.RawSockaddrInet6 // large enough for either family
	count atomic.Int64          // messages that Recv returned
}

// Peer is a target's address in the kernel's format.
type Peer struct {
	raw  unix.RawSockaddrInet6
	size uintptr
}

// NewPeer returns a's Peer. scope is the interface of a link-local address.
func NewPeer(a netip.AddrPort, scope uint32) Peer {
	var p Peer
	if a.Addr().Is4() {
		in := (*unix.RawSockaddrInet4)(unsafe.Pointer(&p.raw))
		in.Family, in.Addr, p.size = unix.AF_INET, a.Addr().As4(), unix.SizeofSockaddrInet4
	} else {
		p.raw.Family, p.raw.Addr, p.raw.Scope_id, p.size = unix.AF_INET6, a.Addr().As16(), scope,
			unix.SizeofSockaddrInet6
	}
	p.raw.Port = a.Port()<<8 | a.Port()>>8
	return p
}

// Scope is the interface of a link-local address, otherwise 0 or any interface.
func (p *Peer) Scope() uint32 { return p.raw.Scope_id }

// OpenShared opens a socket of source's family; source may be unspecified (0.0.0.0, ::). ping opens it for echo
// requests: the kernel then chooses the identifier, which Local().Port() returns, and the caller's group has to be in
// net.ipv4.ping_group_range.
func OpenShared(source netip.Addr, ping bool, device string) (*Shared, error) {
	family, proto := unix.AF_INET, unix.IPPROTO_UDP
	if source.Is6() {
		family = unix.AF_INET6
	}
	switch {
	case ping && source.Is6():
		proto = unix.IPPROTO_ICMPV6
	case ping:
		proto = unix.IPPROTO_ICMP
	}
	fd, err := bound(family, proto, netip.AddrPortFrom(source, 0), device)
	if err != nil {
		return nil, err
	}
	return shared(fd)
}

func shared(fd int) (s *Shared, err error) {
	s = &Shared{fd: fd}
	if s.local, err = local(fd); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return s, nil
}

// Mark is Port.Mark.
func (s *Shared) Mark(tos, ttl uint8) error { return (&Port{fd: s.fd, local: s.local}).Mark(tos, ttl) }

// Local returns the socket's own address and port, or echo identifier.
func (s *Shared) Local() netip.AddrPort { return s.local }

// Send sends one datagram to a peer. It returns nic.ErrFull if the socket's buffer or the device's queue is full, and
// another error if this host currently has no route to the peer; the socket remains usable.
func (s *Shared) Send(to *Peer, b []byte) error {
	var e unix.Errno
	for range 3 {
		_, _, e = unix.RawSyscall6(unix.SYS_SENDTO, uintptr(s.fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))),
			uintptr(len(b)), 0,
			uintptr(unsafe.Pointer(&to.raw)), to.size)
		switch e {
		case 0:
			return nil
		case unix.EAGAIN, unix.ENOBUFS:
			return nic.ErrFull
		}
		if !fromICMP(e) { // otherwise perhaps about an earlier datagram: reported once, then the call works
			break
		}
	}
	s.Refused++
	return e
}

// Recv receives one datagram and its sender without waiting: n is 0 if there is none.
func (s *Shared) Recv(buf []byte) (n int, from netip.AddrPort, at int64, err error) {
	size := uint32(unsafe.Sizeof(s.from))
	got, _, e := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(s.fd), uintptr(unsafe.Pointer(unsafe.SliceData(buf))),
		uintptr(len(buf)), 0,
		uintptr(unsafe.Pointer(&s.from)), uintptr(unsafe.Pointer(&size)))
	at = int64(polling.TSC())
	switch {
	case e == 0:
	case e == unix.EAGAIN || e == unix.EINTR || fromICMP(e):
		return 0, from, at, nil
	default:
		return 0, from, at, fmt.Errorf("receive: %w", e)
	}
	s.count.Store(s.count.Load() + 1)
	port := s.from.Port<<8 | s.from.Port>>8
	if s.from.Family == unix.AF_INET {
		return int(got), netip.AddrPortFrom(netip.AddrFrom4((*unix.RawSockaddrInet4)(unsafe.Pointer(&s.from)).Addr),
			port), at, nil
	}
	return int(got), netip.AddrPortFrom(netip.AddrFrom16(s.from.Addr), port), at, nil
}

// Messages is Port.Messages.
func (s *Shared) Messages() int64 { return s.count.Load() }

// Drops is Port.Drops.
func (s *Shared) Drops() (uint64, error) { return drops(s.fd) }

// Close closes the socket.
func (s *Shared) Close() error { return unix.Close(s.fd) }
