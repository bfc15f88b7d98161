package xdp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic/kit/netif"
)

// A card accepts frames for registered multicast groups and stations. A packet socket's memberships end with the
// process, so a pin's have to be in the interface's own list.

// stations are the addresses to accept: solicited-node groups, and mac if it is not the interface's.
func stations(i *netif.Interface, mac [6]byte, addresses []netip.Prefix) (s []string) {
	if mac != i.MAC {
		s = append(s, net.HardwareAddr(mac[:]).String())
	}
	for _, p := range addresses {
		if p.Addr().Is6() {
			g := netif.SolicitedNode(p.Addr())
			if name := net.HardwareAddr(g[:]).String(); !slices.Contains(s, name) {
				s = append(s, name)
			}
		}
	}
	return s
}

// letIn makes the named interface accept a station or group, or stop accepting it.
func letIn(name string, index int, station string, in bool) error {
	mac, err := net.ParseMAC(station)
	if err != nil || len(mac) != 6 {
		return fmt.Errorf("station %q: not an address", station)
	}
	if mac[0]&1 == 0 { // bridge fdb add MAC dev IF self
		n := &netlink.Neigh{LinkIndex: index, Family: unix.AF_BRIDGE, Flags: netlink.NTF_SELF,
			State: netlink.NUD_PERMANENT, HardwareAddr: mac}
		if in {
			err = netlink.NeighSet(n)
		} else {
			err = netlink.NeighDel(n)
		}
		if errors.Is(err, unix.ENOENT) && !in || errors.Is(err, unix.EEXIST) && in {
			err = nil
		}
	} else {
		err = multicast(name, mac, in)
	}
	if err != nil {
		return fmt.Errorf("interface %s: frames for %s: %w", name, station, err)
	}
	return nil
}

// multicast adds a group to the interface's own list, or removes it (SIOCADDMULTI, SIOCDELMULTI).
func multicast(name string, mac net.HardwareAddr, in bool) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var r struct {
		name   [unix.IFNAMSIZ]byte
		family uint16 // AF_UNSPEC
		mac    [14]byte
		_      [8]byte
	}
	copy(r.name[:unix.IFNAMSIZ-1], name)
	copy(r.mac[:], mac)
	request := uintptr(unix.SIOCDELMULTI)
	if in {
		request = unix.SIOCADDMULTI
	}
	switch _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(unsafe.Pointer(&r))); {
	case e == unix.EINVAL && in: // the interface filters nothing
		return nil
	case e == unix.ENOENT && !in, e == unix.EINVAL && !in:
		return nil
	case e != 0:
		return e
	}
	return nil
}

// leaveGroups removes the pin's groups and stations, if its interface is in this thread's network namespace.
func (p *pin) leaveGroups() error {
	if p.about.Namespace != namespace() || p.link == nil {
		return nil
	}
	var all error
	for _, g := range p.about.Groups {
		all = errors.Join(all, letIn(p.about.Device, p.about.Ifindex, g, false))
	}
	return all
}

// namespace is the inode number of the calling thread's network namespace.
func namespace() uint64 {
	var s unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &s); err != nil {
		return 0
	}
	return s.Ino
}
