package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// network is the management network.
type network struct {
	mu      sync.Mutex
	iface   string        // in use, without its VLAN; empty for none yet
	address netip.Prefix  // of this machine
	ntp     []string      // that DHCP named
	changed chan struct{} // a token for each change
	report  func(text string, worthSaying bool)
	tried   string // the last interface whose DHCP did not answer
}

func (n *network) get() (iface string, address netip.Prefix, ntp []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.iface, n.address, slices.Clone(n.ntp)
}

func (n *network) set(iface string, address netip.Prefix, ntp []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.iface, n.address, n.ntp = iface, address, ntp
	select {
	case n.changed <- struct{}{}:
	default:
	}
}

// loopback brings lo up.
func loopback() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}

// serve keeps the management interface configured until ctx ends. without are the devices under test, which it does not
// use.
func (n *network) serve(ctx context.Context, c *config, without []string) {
	defer n.set("", netip.Prefix{}, nil)
	if c.management == "none" {
		n.report("none", false)
		return
	}
	for {
		err := n.once(ctx, c, without)
		if ctx.Err() != nil {
			return
		}
		n.set("", netip.Prefix{}, nil)
		n.report(err.Error(), true)
		if !sleep(ctx, 2*time.Second) {
			return
		}
	}
}

// once chooses the interface, configures it, and returns when its link is lost.
func (n *network) once(ctx context.Context, c *config, without []string) error {
	link, err := choose(c.management, without, n.tried)
	if err != nil {
		return err
	}
	n.tried = link.Attrs().Name
	name := link.Attrs().Name
	if c.vlan != 0 {
		if link, err = vlanOn(link, c.vlan); err != nil {
			return err
		}
	}
	defer clean(link)
	n.mu.Lock()
	n.iface = name
	n.mu.Unlock()
	servers := c.dns
	if c.address.IsValid() {
		if err := assign(link, c.address, c.gateway); err != nil {
			return err
		}
		if err := resolver(servers); err != nil {
			return err
		}
		n.announce(link, c, c.address, nil)
		return carrierLost(ctx, name)
	}
	n.report(fmt.Sprintf("%s: asking for an address by DHCP", link.Attrs().Name), false)
	return n.lease(ctx, link, name, c)
}

func (n *network) announce(link netlink.Link, c *config, address netip.Prefix, ntp []string) {
	n.tried = ""
	n.set(nameOf(link), address, ntp)
	n.report(fmt.Sprintf("http://%s on %s", netip.AddrPortFrom(address.Addr(), uint16(c.port)), link.Attrs().Name),
		true)
}

// nameOf returns the name of an interface, or of the one below a VLAN.
func nameOf(link netlink.Link) string {
	if below, err := netlink.LinkByIndex(link.Attrs().ParentIndex); err == nil && link.Attrs().ParentIndex != 0 {
		return below.Attrs().Name
	}
	return link.Attrs().Name
}

// lease gets an address by DHCP, and renews it until the link is lost or the lease ends.
func (n *network) lease(ctx context.Context, link netlink.Link, name string, c *config) error {
	client, err := nclient4.New(link.Attrs().Name, nclient4.WithTimeout(2*time.Second), nclient4.WithRetry(3))
	if err != nil {
		return fmt.Errorf("%s: DHCP: %w", name, err)
	}
	defer client.Close()
	options := []dhcpv4.Modifier{dhcpv4.WithOption(dhcpv4.OptHostName(c.name)),
		dhcpv4.WithRequestedOptions(dhcpv4.OptionNTPServers)}
	lease, err := client.Request(ctx, options...)
	if err != nil {
		return fmt.Errorf("%s: no address by DHCP: %w", name, err)
	}
	for {
		ack := lease.ACK
		a, ok := netip.AddrFromSlice(ack.YourIPAddr.To4())
		bits, _ := ack.SubnetMask().Size()
		if !ok || bits == 0 {
			return fmt.Errorf("%s: DHCP gave no address with a subnet", name)
		}
		var router netip.Addr
		if r := ack.Router(); len(r) > 0 {
			router, _ = netip.AddrFromSlice(r[0].To4())
		}
		address := netip.PrefixFrom(a, bits)
		if err := assign(link, address, router); err != nil {
			return err
		}
		servers := c.dns
		if len(servers) == 0 {
			servers = addresses(ack.DNS())
		}
		if err := resolver(servers); err != nil {
			return err
		}
		var ntp []string
		for _, s := range ack.NTPServers() {
			ntp = append(ntp, s.String())
		}
		if _, before, _ := n.get(); before != address {
			n.announce(link, c, address, ntp)
		}
		// Renew after half of the time, as RFC 2131 §4.4.5 has it, and ask again after all of it.
		total := ack.IPAddressLeaseTime(time.Hour)
		end := time.Now().Add(total)
		for wait := total / 2; ; wait = max(time.Minute, time.Until(end)/2) {
			timeout, cancel := context.WithTimeout(ctx, wait)
			err := carrierLost(timeout, name)
			cancel()
			if err != nil && !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
				return err
			}
			renewed, err := client.Renew(ctx, lease, options...)
			if err == nil {
				lease = renewed
				break
			}
			if time.Now().After(end) {
				return fmt.Errorf("%s: the DHCP lease of %v ended: %w", name, address, err)
			}
		}
	}
}

func addresses(list []net.IP) (out []netip.Addr) {
	for _, ip := range list {
		if a, ok := netip.AddrFromSlice(ip); ok {
			out = append(out, a.Unmap())
		}
	}
	return out
}

func resolver(servers []netip.Addr) error {
	var b strings.Builder
	for _, s := range servers {
		fmt.Fprintf(&b, "nameserver %v\n", s)
	}
	return os.WriteFile("/etc/resolv.conf", []byte(b.String()), 0o644)
}

// choose returns the interface to use, with its link up. "auto" is the first one with a link by PCI address, or the
// next one after tried.
func choose(which string, without []string, tried string) (netlink.Link, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, err
	}
	var candidates []netlink.Link
	for _, l := range links {
		a := l.Attrs()
		if l.Type() != "device" || a.Flags&net.FlagLoopback != 0 || a.EncapType != "ether" ||
			slices.Contains(without, a.Name) || slices.Contains(without, pciAddress(a.Name)) {
			continue
		}
		if which == "auto" || matches(which, a.Name) {
			candidates = append(candidates, l)
		}
	}
	if len(candidates) == 0 && which != "auto" {
		return nil, fmt.Errorf("appliance.management: no interface %s", which)
	} else if len(candidates) == 0 {
		return nil, errors.New("no interface with a kernel driver is left for management")
	}
	slices.SortFunc(candidates, func(a, b netlink.Link) int {
		return cmp.Or(strings.Compare(pciAddress(a.Attrs().Name), pciAddress(b.Attrs().Name)),
			strings.Compare(a.Attrs().Name, b.Attrs().Name))
	})
	if i := slices.IndexFunc(candidates, func(l netlink.Link) bool { return l.Attrs().Name == tried }); i >= 0 {
		candidates = slices.Concat(candidates[i+1:], candidates[:i+1])
	}
	var names []string
	for _, l := range candidates {
		if err := netlink.LinkSetUp(l); err != nil {
			return nil, fmt.Errorf("%s: %w", l.Attrs().Name, err)
		}
		names = append(names, l.Attrs().Name)
	}
	for range 20 { // a link takes seconds to come up
		for _, l := range candidates {
			if carrier(l.Attrs().Name) {
				return l, nil
			}
		}
		time.Sleep(250 * time.Millisecond)
	}
	return nil, fmt.Errorf("no link on %s", strings.Join(names, ", "))
}

// matches reports whether which is the name, the MAC address or the PCI address of an interface.
func matches(which, name string) bool {
	mac, _ := os.ReadFile("/sys/class/net/" + name + "/address")
	return which == name || strings.EqualFold(which, strings.TrimSpace(string(mac))) || which == pciAddress(name)
}

// pciAddress returns the PCI address of an interface's device, "" if it has none.
func pciAddress(name string) string {
	to, err := filepath.EvalSymlinks("/sys/class/net/" + name + "/device")
	if err != nil {
		return ""
	}
	for ; to != "/"; to = filepath.Dir(to) { // virtio's device is below that of PCI
		if exists(filepath.Join("/sys/bus/pci/devices", filepath.Base(to))) {
			return filepath.Base(to)
		}
	}
	return ""
}

func carrier(name string) bool {
	b, err := os.ReadFile("/sys/class/net/" + name + "/carrier")
	return err == nil && strings.TrimSpace(string(b)) == "1"
}

// carrierLost returns when the interface is without a link for three seconds.
func carrierLost(ctx context.Context, name string) error {
	for missing := 0; ; {
		if !sleep(ctx, time.Second) {
			return ctx.Err()
		}
		if carrier(name) {
			missing = 0
		} else if missing++; missing == 3 {
			return fmt.Errorf("%s: link is down", name)
		}
	}
}

func vlanOn(link netlink.Link, id int) (netlink.Link, error) {
	name := fmt.Sprintf("%s.%d", link.Attrs().Name, id)
	v := &netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Name: name, ParentIndex: link.Attrs().Index}, VlanId: id}
	if err := netlink.LinkAdd(v); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("VLAN %s: %w", name, err)
	}
	l, err := netlink.LinkByName(name)
	if err != nil {
		return nil, err
	}
	return l, netlink.LinkSetUp(l)
}

func assign(link netlink.Link, address netip.Prefix, router netip.Addr) error {
	name := link.Attrs().Name
	if address.Addr().Is6() {
		if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/disable_ipv6", []byte("0"), 0); err != nil {
			return err
		}
	}
	ip := &netlink.Addr{IPNet: &net.IPNet{IP: address.Addr().AsSlice(),
		Mask: net.CIDRMask(address.Bits(), address.Addr().BitLen())}}
	if err := netlink.AddrReplace(link, ip); err != nil {
		return fmt.Errorf("%s: address %v: %w", name, address, err)
	}
	if router.IsValid() {
		if err := netlink.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index,
			Gw: router.AsSlice()}); err != nil {
			return fmt.Errorf("%s: router %v: %w", name, router, err)
		}
	}
	return nil
}

// clean removes the addresses, and with them the routes, of an interface. A VLAN is removed.
func clean(link netlink.Link) {
	if link.Type() == "vlan" {
		netlink.LinkDel(link)
		return
	}
	list, _ := netlink.AddrList(link, netlink.FAMILY_ALL)
	for _, a := range list {
		netlink.AddrDel(link, &a)
	}
}
