package netif

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic"
)

// Claims reserve addresses on an interface for the process. The end of the process releases them.
type Claims []claim

type claim struct {
	address netip.Addr
	fd      int
}

// Files are what another process handed over and this one has not taken yet.
type Files []int

// Next takes the first file.
func (f *Files) Next() int {
	fd := (*f)[0]
	*f = (*f)[1:]
	return fd
}

// Claims takes the files of the claims of addresses.
func (f *Files) Claims(addresses []netip.Addr) (c Claims) {
	for _, a := range addresses {
		c = append(c, claim{a, f.Next()})
	}
	return c
}

// Close closes the files that were not taken.
func (f *Files) Close() {
	for _, fd := range *f {
		unix.Close(fd)
	}
	*f = nil
}

// Addresses returns what is claimed.
func (c Claims) Addresses() (all []netip.Addr) {
	for _, k := range c {
		all = append(all, k.address)
	}
	return all
}

// Files returns the file of each address.
func (c Claims) Files() (all []int) {
	for _, k := range c {
		all = append(all, k.fd)
	}
	return all
}

// Close releases the addresses, unless another process has inherited them.
func (c Claims) Close() {
	for _, k := range c {
		unix.Close(k.fd)
	}
}

// Claim reserves addresses that the process is about to answer for on the interface. It returns nic.ErrBusy if another responder
// answers for one of them, whichever driver it uses: with packet sockets both would answer, and an XDP program would silence the other
// responder. It keeps or closes what was inherited.
//
// A claim is the abstract name of a socket: it is valid in the network namespace and disappears with the process, even after SIGKILL.
func (i *Interface) Claim(addresses []netip.Prefix, inherited Claims) (c Claims, err error) {
	defer func() {
		inherited.Close()
		if err != nil {
			c.Close()
			c = nil
		}
	}()
	for _, p := range addresses {
		if n := slices.IndexFunc(inherited, func(k claim) bool { return k.address == p.Addr() }); n >= 0 {
			c, inherited = append(c, inherited[n]), slices.Delete(inherited, n, n+1)
			continue
		}
		fd, err := i.claim(p.Addr())
		if err != nil {
			return c, err
		}
		c = append(c, claim{p.Addr(), fd})
	}
	return c, nil
}

// ClaimName is the name of the socket with which a responder claims an address on the interface of that number.
func ClaimName(index int, a netip.Addr) string {
	return fmt.Sprintf("@rebound/answers/%d/%v", index, a)
}

func (i *Interface) claim(a netip.Addr) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("socket to claim %v: %w", a, err)
	}
	name := &unix.SockaddrUnix{Name: ClaimName(i.Index, a)}
	if err = unix.Bind(fd, name); err == nil {
		err = unix.Listen(fd, 16) // only a listening socket shows the process to those who connect
	}
	switch {
	case err == nil:
		return fd, nil
	case errors.Is(err, unix.EADDRINUSE):
		err = fmt.Errorf("address %v: %w: %s answers for it on %s: stop it, or use another address", a, nic.ErrBusy, claimant(fd, name), i.Name)
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
