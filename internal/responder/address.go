package responder

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/rebound-nic/rebound/nic/kit/netif"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// interfaceWith returns the interface that has one of the addresses, or "" if there is none.
func interfaceWith(addresses []netip.Prefix) string {
	for _, p := range addresses {
		if name, err := netif.Owner(p.Addr()); err == nil && name != "" {
			return name
		}
	}
	return ""
}

// With a driver beside the kernel's, the kernel answers ARP and neighbour discovery, so the interface needs the
// addresses. Missing ones are added, and a second process removes them when this one exits, even if it is killed.

// keepCommand runs that process: rebound-responder COMMAND INTERFACE ADDRESS...
const keepCommand = "__keep_addresses"

// lendAddresses adds the addresses that the interface lacks. release removes them.
func lendAddresses(iface string, addresses []netip.Prefix, log *slog.Logger) (added []netip.Addr, release func() error,
	err error) {
	release = func() error { return nil }
	link, err := netlink.LinkByName(iface)
	if err != nil {
		return nil, nil, fmt.Errorf("interface %s: %w", iface, err)
	}
	has, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return nil, nil, fmt.Errorf("addresses of %s: %w", iface, err)
	}
	var missing []netip.Prefix
	for _, p := range addresses {
		if !slices.ContainsFunc(has, func(a netlink.Addr) bool { return a.IP.Equal(net.IP(p.Addr().AsSlice())) }) {
			missing = append(missing, p)
			added = append(added, p.Addr())
		}
	}
	if len(missing) == 0 {
		return nil, release, nil
	}
	args := []string{keepCommand, iface}
	for _, p := range missing {
		args = append(args, p.String())
	}
	if release, err = startSecond(args...); err != nil {
		return nil, nil, fmt.Errorf("add %v to interface %s: %w (CAP_NET_ADMIN, or add them yourself: ip addr add)",
			missing, iface, err)
	}
	log.Info("addresses added while the responder runs", "interface", iface, "addresses", missing)
	return added, release, nil
}

// keepAddresses is the second process.
func keepAddresses(args []string, stdout io.Writer, stdin io.Reader) error {
	link, err := netlink.LinkByName(args[0])
	if err != nil {
		return err
	}
	var added []*netlink.Addr
	remove := func() (err error) {
		for _, a := range added {
			if e := netlink.AddrDel(link, a); e != nil && !errors.Is(e, unix.EADDRNOTAVAIL) &&
				!errors.Is(e, unix.ENODEV) {
				err = errors.Join(err, fmt.Errorf("remove %v: %w", a.IPNet, e))
			}
		}
		return err
	}
	for _, text := range args[1:] {
		a, err := netlink.ParseAddr(text)
		if err != nil {
			return errors.Join(err, remove())
		}
		a.Flags = unix.IFA_F_NOPREFIXROUTE // the host's own routes stay
		if strings.Contains(text, ":") {
			a.Flags |= unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(link, a); err != nil {
			return errors.Join(fmt.Errorf("add %s to %s: %w", text, args[0], err), remove())
		}
		added = append(added, a)
	}
	waitForFirst(stdout, stdin)
	return remove()
}
