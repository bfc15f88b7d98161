// Package route determines the path to a target: the interface, the source address, and the MAC of the next hop. It
// also answers the next hop's requests for our address during a measurement, because the kernel may not know that
// address.
package route

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Path is the path to a target.
type Path struct {
	Interface string
	Index     int
	MTU       int // bytes of layer 3
	MAC       [6]byte
	Source    netip.Addr
	Owned     bool       // Source is assigned to the kernel on this host
	Next      netip.Addr // the next hop: the target, or a router
	Loopback  bool
}

// Routed reports whether there is a router in between.
func (p *Path) Routed(target netip.Addr) bool { return p.Next != target }

// Constraints restrict the choices of Find; zero fields do not.
type Constraints struct {
	Interface string
	Source    netip.Addr
	Gateway   netip.Addr
}

// Errors about values that the user can change.
var (
	ErrNoInterface = errors.New("no such interface")
	errDown        = errors.New("interface is down")
	ErrNoRoute     = errors.New("no route")
	ErrNoSource    = errors.New("no source address")
)

// Find asks the kernel for the route to target. If an interface and a source are given, no route is needed: a target
// without one is then assumed to be on the link.
func Find(target netip.Addr, w Constraints) (Path, error) {
	target = target.Unmap()
	var p Path
	if w.Interface != "" {
		if err := p.link(netlink.LinkByName(w.Interface)); err != nil {
			return p, fmt.Errorf("interface %s: %w", w.Interface, err)
		}
	}
	if w.Source.IsValid() && w.Source.Is4() != target.Is4() {
		return p, fmt.Errorf("%w: source %v and target %v are of different families", ErrNoSource, w.Source, target)
	}
	p.Next, p.Source = w.Gateway, w.Source
	if err := p.route(target, w); err != nil {
		return p, err
	}
	if !p.Source.IsValid() {
		p.Source = address(p.Index, target)
	}
	if !p.Source.IsValid() {
		return p, fmt.Errorf("%w: interface %s has none for %v: set -source", ErrNoSource, p.Interface, target)
	}
	p.Owned = owned(p.Source)
	return p, nil
}

func (p *Path) link(l netlink.Link, err error) error {
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return ErrNoInterface
	} else if err != nil {
		return err
	}
	a := l.Attrs()
	if a.Flags&net.FlagUp == 0 {
		return errDown
	}
	p.Interface, p.Index, p.MTU, p.Loopback = a.Name, a.Index, a.MTU, a.Flags&net.FlagLoopback != 0
	copy(p.MAC[:], a.HardwareAddr)
	return nil
}

// route fills in the values that the constraints leave open from the kernel's routing table.
func (p *Path) route(target netip.Addr, w Constraints) error {
	to := target
	if w.Gateway.IsValid() {
		to = w.Gateway
	}
	routes, err := netlink.RouteGetWithOptions(to.WithZone("").AsSlice(), &netlink.RouteGetOptions{OifIndex: p.Index})
	if p.Index == 0 && target.Zone() != "" {
		err = p.link(netlink.LinkByName(target.Zone()))
	}
	if err != nil || len(routes) == 0 {
		if p.Index != 0 && (p.Source.IsValid() || address(p.Index, target).IsValid() && target.IsLinkLocalUnicast()) {
			if !p.Next.IsValid() {
				p.Next = target
			}
			return nil
		}
		if err == nil || errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) {
			err = ErrNoRoute
		}
		return fmt.Errorf("to %v: %w: add one, or set -iface and -source for a target on the link", target, err)
	}
	r := routes[0]
	if p.Index == 0 {
		if err := p.link(netlink.LinkByIndex(r.LinkIndex)); err != nil {
			return fmt.Errorf("interface %d towards %v: %w", r.LinkIndex, target, err)
		}
	}
	if !p.Next.IsValid() {
		p.Next = target
		if gw, ok := netip.AddrFromSlice(r.Gw); ok {
			p.Next = gw.Unmap()
		}
	}
	if src, ok := netip.AddrFromSlice(r.Src); ok && !p.Source.IsValid() {
		p.Source = src.Unmap()
	}
	return nil
}

// address returns an address of the interface that suits target: in the same subnet if there is one, otherwise with the
// same scope.
func address(index int, target netip.Addr) netip.Addr {
	family := netlink.FAMILY_V4
	if target.Is6() {
		family = netlink.FAMILY_V6
	}
	l, err := netlink.LinkByIndex(index)
	if err != nil {
		return netip.Addr{}
	}
	list, err := netlink.AddrList(l, family)
	if err != nil {
		return netip.Addr{}
	}
	var best netip.Addr
	for _, a := range list {
		ip, ok := netip.AddrFromSlice(a.IP)
		if !ok {
			continue
		}
		ip = ip.Unmap()
		bits, _ := a.Mask.Size()
		if netip.PrefixFrom(ip, bits).Contains(target.WithZone("")) {
			return ip
		}
		if !best.IsValid() && ip.IsLinkLocalUnicast() == target.IsLinkLocalUnicast() {
			best = ip
		}
	}
	return best
}

// owned reports whether any interface of this network namespace has the address.
func owned(a netip.Addr) bool {
	list, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return false
	}
	for _, have := range list {
		if ip, ok := netip.AddrFromSlice(have.IP); ok && ip.Unmap() == a.WithZone("") {
			return true
		}
	}
	return false
}

// Known returns the next hop's MAC from the kernel's neighbour table, after asking the kernel to resolve it if it is
// unknown. ok is false if it remains unknown; asking needs CAP_NET_ADMIN.
func (p *Path) Known() (mac [6]byte, ok bool) {
	mac, ok = Neighbours(p.Index, p.Next.Is6())[p.Next.WithZone("")]
	return mac, ok
}

// Neighbours returns the MACs that the kernel knows on an interface, by address; nil if the table cannot be read.
func Neighbours(index int, v6 bool) map[netip.Addr][6]byte {
	family := netlink.FAMILY_V4
	if v6 {
		family = netlink.FAMILY_V6
	}
	list, err := netlink.NeighList(index, family)
	if err != nil {
		return nil
	}
	out := map[netip.Addr][6]byte{}
	for _, n := range list {
		ip, _ := netip.AddrFromSlice(n.IP)
		const usable = netlink.NUD_REACHABLE | netlink.NUD_STALE | netlink.NUD_DELAY | netlink.NUD_PROBE | netlink.NUD_PERMANENT | netlink.NUD_NOARP
		if n.State&usable != 0 && len(n.HardwareAddr) == 6 {
			out[ip.Unmap()] = [6]byte(n.HardwareAddr)
		}
	}
	return out
}

// AskKernel makes the kernel resolve the next hop. It needs CAP_NET_ADMIN.
func (p *Path) AskKernel() error {
	return netlink.NeighSet(&netlink.Neigh{LinkIndex: p.Index, IP: p.Next.WithZone("").AsSlice(), Flags: netlink.NTF_USE, State: netlink.NUD_NONE})
}
