package afpacket

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic"
)

// claim refuses an address that another Device answers for on this interface: every packet socket gets a copy of each
// request, so that both would answer. The claim is the abstract name of a socket: one for each network namespace, and gone
// with the process, however it ends.
func (d *Device) claim(a netip.Addr) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket to claim %v: %w", a, err)
	}
	d.claims = append(d.claims, fd)
	err = unix.Bind(fd, &unix.SockaddrUnix{Name: fmt.Sprintf("@rebound/afpacket/%d/%v", d.iface.Index, a)})
	if errors.Is(err, unix.EADDRINUSE) {
		return fmt.Errorf("address %v: %w: another responder answers for it on %s, and both would; end that one, or use "+
			"another address", a, nic.ErrBusy, d.iface.Name)
	} else if err != nil {
		return fmt.Errorf("claim %v: %w", a, err)
	}
	return nil
}
