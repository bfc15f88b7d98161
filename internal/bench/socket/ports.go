package socket

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/polling"
)

// Ports are UDP sockets with different source ports. One goroutine receives.
type Ports struct {
	All []*Shared

	epoll  int
	events []unix.EpollEvent
	ready  int // events that Ready has not returned yet
}

// FirstPort and lastPort bound the source ports: those of RFC 6335 §6 that Linux does not choose itself by default
// (ip_local_port_range ends at 60999).
const FirstPort, lastPort = 61000, 65535

// OpenPorts opens count UDP sockets like OpenShared, with the lowest ports from 61000 on that are free: a flow that
// ECMP hashes by its ports then takes the same path after a restart.
func OpenPorts(source netip.Addr, count int, device string) (_ *Ports, err error) {
	p := &Ports{events: make([]unix.EpollEvent, count)}
	if p.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	family := unix.AF_INET
	if source.Is6() {
		family = unix.AF_INET6
	}
	if p.All, err = lowest(count, func(port uint16) (int, error) {
		return bound(family, unix.IPPROTO_UDP, netip.AddrPortFrom(source, port), device)
	}); err != nil {
		return nil, err
	}
	for i, s := range p.All {
		if err := unix.EpollCtl(p.epoll, unix.EPOLL_CTL_ADD, s.fd,
			&unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(i)}); err != nil {
			return nil, fmt.Errorf("epoll: %w", err)
		}
	}
	return p, nil
}

// lowest opens sockets on the count lowest ports that are free.
func lowest(count int, open func(port uint16) (fd int, err error)) (all []*Shared, err error) {
	defer func() {
		if err != nil {
			for _, s := range all {
				s.Close()
			}
			all = nil
		}
	}()
	for port := FirstPort; len(all) < count; port++ {
		if port > lastPort {
			return all, fmt.Errorf("%d of the UDP ports %d to %d are free, need %d", len(all), FirstPort, lastPort,
				count)
		}
		fd, err := open(uint16(port))
		if errors.Is(err, unix.EADDRINUSE) {
			continue
		} else if err != nil {
			return all, err
		}
		s, err := shared(fd)
		if err != nil {
			return all, err
		}
		all = append(all, s)
	}
	return all, nil
}

// Ready returns a socket that may have a datagram, nil for none, with one system call for all sockets. It does not
// wait.
func (p *Ports) Ready() (*Shared, error) {
	if p.ready == 0 {
		n, _, e := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(p.epoll),
			uintptr(unsafe.Pointer(unsafe.SliceData(p.events))), uintptr(len(p.events)), 0, 0, 0)
		if e != 0 && e != unix.EINTR {
			return nil, fmt.Errorf("epoll: %w", e)
		}
		if e != 0 || n == 0 {
			return nil, nil
		}
		p.ready = int(n)
	}
	p.ready--
	return p.All[p.events[p.ready].Fd], nil
}

// Drops is the sum of Shared.Drops.
func (p *Ports) Drops() (sum uint64, err error) {
	for _, s := range p.All {
		n, e := s.Drops()
		sum, err = sum+n, errors.Join(err, e)
	}
	return sum, err
}

// Messages is the sum of Shared.Messages.
func (p *Ports) Messages() (sum int64) {
	for _, s := range p.All {
		sum += s.Messages()
	}
	return sum
}

// Close closes all sockets.
func (p *Ports) Close() error {
	err := unix.Close(p.epoll)
	for _, s := range p.All {
		err = errors.Join(err, s.Close())
	}
	return err
}

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
