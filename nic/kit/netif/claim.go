package netif

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic"
)

// Claims reserve addresses on an interface for the process. The end of the process releases them.
type Claims []int

// Close releases the addresses.
func (c Claims) Close() {
	for _, fd := range c {
		unix.Close(fd)
	}
}

// Claim reserves addresses that the process is about to answer for on the interface. It returns nic.ErrBusy if another responder
// answers for one of them, whichever driver it uses: with packet sockets both would answer, and an XDP program would silence the other
// responder.
//
// A claim is the abstract name of a socket: it is valid in the network namespace and disappears with the process, even after SIGKILL.
func (i *Interface) Claim(addresses []netip.Prefix) (Claims, error) {
	var c Claims
	for _, p := range addresses {
		fd, err := i.claim(p.Addr())
		if err != nil {
			c.Close()
			return nil, err
		}
		c = append(c, fd)
	}
	return c, nil
}

func (i *Interface) claim(a netip.Addr) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("socket to claim %v: %w", a, err)
	}
	name := &unix.SockaddrUnix{Name: fmt.Sprintf("@rebound/answers/%d/%v", i.Index, a)}
	if err = unix.Bind(fd, name); err == nil {
		err = unix.Listen(fd, 16) // only a listening socket shows the process to those who connect
	}
	switch {
	case err == nil:
		return fd, nil
	case errors.Is(err, unix.EADDRINUSE):
		err = fmt.Errorf("address %v: %w: %s answers for it on %s: stop that one, or use another address", a, nic.ErrBusy, claimant(fd, name), i.Name)
	default:
		err = fmt.Errorf("claim %v: %w", a, err)
	}
	unix.Close(fd)
	return -1, err
}

// claimant names the process that has a claim.
func claimant(fd int, name *unix.SockaddrUnix) string {
	if unix.Connect(fd, name) == nil {
		if c, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil && c.Pid > 0 {
			if comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", c.Pid)); err == nil {
				return fmt.Sprintf("process %d (%s)", c.Pid, strings.TrimSpace(string(comm)))
			}
			return fmt.Sprintf("process %d", c.Pid)
		}
	}
	return "another responder"
}
