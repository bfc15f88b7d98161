package socket

import (
	"errors"
	"fmt"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
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
