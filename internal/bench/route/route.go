// Package route determines the path to a target: the interface, the source address, and the MAC of the next hop. It
// also answers the next hop's requests for our address during a measurement, because the kernel may not know that
// address.
package route

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic/kit/netif"
)

// Path is the path to a target.
type Path struct {
	Interface string
	Index     int
	MTU       int // bytes of layer 3, of the interface or of the route if that has less
	MAC       [6]byte
	Source    netip.Addr
	Owned     bool       // Source is assigned to the kernel on this host
	Next      netip.Addr // the next hop: the target, or a router, whose address may be of the other family
	Loopback  bool

	kind  string // of the link's frames, as ip link shows it: "ether", "none"
	encap string // of the route
}

// Routed reports whether there is a router in between.
func (p *Path) Routed(target netip.Addr) bool { return p.Next != target }

// KernelResolves reports whether the kernel's neighbour table has the next hop's MAC: the source is the kernel's, or
// its family is not the next hop's, so that it cannot ask for it.
func (p *Path) KernelResolves() bool { return p.Owned || p.Source.Is4() != p.Next.Is4() }

// NoFrames returns why no Ethernet frames can be sent along the path to target, or nil.
func (p *Path) NoFrames(target netip.Addr) error {
	switch {
	case p.Loopback:
		return fmt.Errorf("%v is reached through the loopback interface %s, which carries no frames to a peer: use -transport socket, or a veth pair", target, p.Interface)
	case p.kind != "" && p.kind != "ether":
		return fmt.Errorf("interface %s carries no Ethernet frames (its link type is %s): use -transport socket",
			p.Interface, p.kind)
	case p.encap != "":
		return fmt.Errorf("the route to %v encapsulates packets (%s), which only the kernel does: use -transport socket", target, p.encap)
	}
	return nil
}

// Constraints restrict the choices of Find; zero fields do not.
type Constraints struct {
	Interface string
	Source    netip.Addr
	Gateway   netip.Addr

	// What else the kernel's rules and multipath routes may consider.
	TOS      uint8
	Protocol uint8 // of IP
	Port     uint16
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
	if err := p.from(target, w); err != nil {
		return p, err
	}
	if w.Source.IsValid() && w.Source.Is4() != target.Is4() {
		return p, fmt.Errorf("%w: source %v and target %v are of different families", ErrNoSource, w.Source, target)
	}
	p.Next, p.Source = w.Gateway, w.Source
	p.Owned = p.Source.IsValid() && owned(p.Source)
	if err := p.route(target, w); err != nil {
		return p, err
	}
	if !p.Source.IsValid() {
		p.Source = address(p.Index, target)
	}
	if !p.Source.IsValid() {
		return p, fmt.Errorf("%w: interface %s has none for %v: set -source", ErrNoSource, p.Interface, target)
	}
	p.Owned = p.Owned || owned(p.Source)
	return p, nil
}

// from chooses the interface that the user or the zone of a link-local address names.
func (p *Path) from(target netip.Addr, w Constraints) error {
	for i, name := range []string{w.Interface, target.Zone(), w.Gateway.Zone()} {
		if name == "" {
			continue
		}
		before := *p
		if err := p.link(byName(name)); err != nil {
			return fmt.Errorf("interface %s: %w", name, err)
		}
		if before.Index != 0 && before.Index != p.Index {
			return fmt.Errorf("%w: the zone of %v is %s, not %s", ErrNoInterface, []netip.Addr{1: target, w.Gateway}[i],
				p.Interface, before.Interface)
		}
	}
	return nil
}

// byName returns an interface by its name or, as the zone of an address may have it, by its number (RFC 4007 §11.2).
func byName(name string) (netlink.Link, error) {
	l, err := netlink.LinkByName(name)
	if index, bad := strconv.Atoi(name); err != nil && bad == nil {
		return netlink.LinkByIndex(index)
	}
	return l, err
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
	p.Interface, p.Index, p.MTU, p.Loopback, p.kind = a.Name, a.Index, a.MTU, a.Flags&net.FlagLoopback != 0, a.EncapType
	copy(p.MAC[:], a.HardwareAddr)
	return nil
}

// route fills in the values that the constraints leave open from the kernel's routing table.
func (p *Path) route(target netip.Addr, w Constraints) error {
	to := target
	if w.Gateway.IsValid() {
		to = w.Gateway.Unmap()
	}
	q := question{to: to.WithZone(""), index: p.Index, tos: w.TOS, protocol: w.Protocol, port: w.Port}
	if to.Is4() == target.Is4() && (p.Owned || to.Is6()) { // the kernel refuses an IPv4 address that it does not have
		q.source = p.Source.WithZone("")
	}
	a, err := lookUp(q)
	if err == nil && a.source.Is4() && target.Is4() && !p.Source.IsValid() {
		q.source, p.Source = a.source, a.source // as connect(2): rules and hashes may depend on it
		a, err = lookUp(q)
	}
	if err != nil && !refuses(err) && p.Index != 0 && (p.Source.IsValid() || address(p.Index, target).IsValid() &&
		target.IsLinkLocalUnicast()) {
		if !p.Next.IsValid() {
			p.Next = target
		}
		return nil
	}
	if err == nil && a.kind == unix.RTN_BROADCAST {
		return fmt.Errorf("to %v: %w: it is a broadcast address: use the address of one host", target, ErrNoRoute)
	}
	if err != nil {
		return refusal(target, to, err)
	}
	// also for a VRF, whose routes are through another interface, and for an address of this host
	if a.index != p.Index {
		if err := p.link(netlink.LinkByIndex(a.index)); err != nil {
			return fmt.Errorf("interface %d towards %v: %w", a.index, target, err)
		}
	}
	if p.encap = a.encap; a.mtu > 0 {
		p.MTU = min(p.MTU, a.mtu)
	}
	if !p.Next.IsValid() {
		p.Next = target
		if a.next.IsValid() {
			p.Next = a.next.Unmap()
		}
	}
	if !p.Source.IsValid() && a.source.Is4() == target.Is4() {
		p.Source = a.source
	}
	return nil
}

// refuses reports whether the kernel has a route or a rule that refuses packets, and not just none that sends them.
func refuses(err error) bool {
	return errors.Is(err, unix.EACCES) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EHOSTUNREACH)
}

// refusal explains the kernel's error for a route (fib_props in net/ipv4/fib_semantics.c, ip6_route_info_create).
func refusal(target, to netip.Addr, err error) error {
	show := fmt.Sprintf("(ip route get %v)", to.WithZone(""))
	switch {
	case errors.Is(err, unix.ENETUNREACH):
		return fmt.Errorf("to %v: %w: add one, or set -iface and -source for a target on the link", target, ErrNoRoute)
	case errors.Is(err, unix.EACCES):
		return fmt.Errorf("to %v: %w: a route or a rule of the kernel prohibits it %s", target, ErrNoRoute, show)
	case errors.Is(err, unix.EINVAL):
		return fmt.Errorf("to %v: %w: a route or a rule of the kernel discards its packets (blackhole) %s", target,
			ErrNoRoute, show)
	case errors.Is(err, unix.EHOSTUNREACH):
		return fmt.Errorf("to %v: %w: a route of the kernel declares it unreachable %s", target, ErrNoRoute, show)
	}
	return fmt.Errorf("to %v: %w: the kernel's error is %w %s", target, ErrNoRoute, err, show)
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

// Entry is what the kernel's neighbour table has about an address.
type Entry struct {
	MAC       [6]byte
	Permanent bool          // set by the administrator: the kernel does not ask for it
	Confirmed time.Duration // since it last answered a request, or a protocol reported that it is reachable
}

// Known returns the kernel's entry for the next hop. ok is false if the kernel does not know its MAC.
func (p *Path) Known() (e Entry, ok bool) {
	r := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, 0)
	r.AddData(&netlink.Ndmsg{Family: uint8(nl.GetIPFamily(p.Next.AsSlice())), Index: uint32(p.Index)})
	r.AddData(nl.NewRtAttr(netlink.NDA_DST, p.Next.AsSlice()))
	all, err := r.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH)
	if err != nil || len(all) == 0 {
		return e, false
	}
	n, err := netlink.NeighDeserialize(all[0])
	if err != nil {
		return e, false
	}
	return entry(n)
}

// entry returns what an entry of the kernel has, ok is false if it cannot be used.
func entry(n *netlink.Neigh) (e Entry, ok bool) {
	const usable = netlink.NUD_REACHABLE | netlink.NUD_STALE | netlink.NUD_DELAY | netlink.NUD_PROBE |
		netlink.NUD_PERMANENT | netlink.NUD_NOARP
	if n.State&usable == 0 || len(n.HardwareAddr) != 6 {
		return e, false
	}
	return Entry{[6]byte(n.HardwareAddr), n.State&(netlink.NUD_PERMANENT|netlink.NUD_NOARP) != 0,
		time.Duration(n.Confirmed) * (time.Second / ticks)}, true
}

// Asker returns a Neighbour that asks for the next hop's MAC: from the source, or from an address of the interface that
// has the next hop's family.
func (p *Path) Asker(mac [6]byte) *Neighbour {
	from := p.Source
	if from.Is4() != p.Next.Is4() {
		from = address(p.Index, p.Next)
	}
	return NewNeighbour(from, mac)
}

// Neighbours returns what the kernel knows about the neighbours on an interface, by address; nil if the table cannot be
// read.
func Neighbours(index int, v6 bool) map[netip.Addr]Entry {
	family := netlink.FAMILY_V4
	if v6 {
		family = netlink.FAMILY_V6
	}
	list, err := netlink.NeighList(index, family)
	if err != nil {
		return nil
	}
	out := map[netip.Addr]Entry{}
	for i := range list {
		ip, _ := netip.AddrFromSlice(list[i].IP)
		if e, ok := entry(&list[i]); ok {
			out[ip.Unmap()] = e
		}
	}
	return out
}

const ticks = 100 // a second: USER_HZ

// AskKernel makes the kernel resolve the next hop. It needs CAP_NET_ADMIN.
func (p *Path) AskKernel() error {
	return netlink.NeighSet(&netlink.Neigh{LinkIndex: p.Index, IP: p.Next.WithZone("").AsSlice(),
		Flags: netlink.NTF_USE, State: netlink.NUD_NONE})
}

// question is everything about a probe that the kernel takes into account when it selects a route. Probes have no mark,
// and the user is that of this process, as for a socket.
type question struct {
	to, source netip.Addr // no source, or one that the kernel may send from
	index      int        // of the interface or VRF, 0 for any
	tos        uint8
	protocol   uint8 // of IP, 0 if unknown
	port       uint16
}

// answer is the kernel's route.
type answer struct {
	kind   uint8 // RTN_UNICAST, RTN_LOCAL, ...
	index  int
	next   netip.Addr // a router, perhaps of the other family; the zero Addr if the target is on the link
	source netip.Addr
	mtu    int    // of the route or of the path, 0 for the interface's
	encap  string // of a tunnel that belongs to the route, "" for none
}

// encapsulations are the values of RTA_ENCAP_TYPE (linux/lwtunnel.h).
var encapsulations = []string{1: "mpls", "ip", "ila", "ip6", "seg6", "bpf", "seg6local", "rpl", "ioam6", "xfrm"}

// lookUp asks the kernel for a route (rtnetlink(7), RTM_GETROUTE). It returns the kernel's error if there is none.
func lookUp(q question) (a answer, err error) {
	family, bits := unix.AF_INET, 32
	if q.to.Is6() {
		family, bits = unix.AF_INET6, 128
	}
	r := nl.NewNetlinkRequest(unix.RTM_GETROUTE, 0)
	// ECN is no part of it
	m := &nl.RtMsg{RtMsg: unix.RtMsg{Family: uint8(family), Dst_len: uint8(bits), Tos: q.tos &^ 3}}
	put := func(kind int, value []byte) { r.AddData(nl.NewRtAttr(kind, value)) }
	if q.source.IsValid() {
		m.Src_len = uint8(bits)
	}
	r.AddData(m)
	put(unix.RTA_DST, q.to.AsSlice())
	if q.source.IsValid() {
		put(unix.RTA_SRC, q.source.AsSlice())
	}
	if q.index != 0 {
		put(unix.RTA_OIF, nl.Uint32Attr(uint32(q.index)))
	}
	if q.protocol != 0 {
		put(unix.RTA_IP_PROTO, []byte{q.protocol})
	}
	if q.protocol == unix.IPPROTO_UDP {
		put(unix.RTA_DPORT, binary.BigEndian.AppendUint16(nil, q.port))
	}
	all, err := r.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWROUTE)
	if err != nil {
		return a, err
	}
	if len(all) == 0 {
		return a, unix.ENETUNREACH
	}
	return parse(all[0])
}

// parse decodes the kernel's answer to a route request, a rtmsg with its attributes.
func parse(b []byte) (a answer, err error) {
	m := nl.DeserializeRtMsg(b)
	a.kind = m.Type
	attributes, err := nl.ParseRouteAttr(b[m.Len():])
	for _, r := range attributes {
		switch v := r.Value; r.Attr.Type &^ unix.NLA_F_NESTED {
		case unix.RTA_OIF:
			a.index = int(nl.NativeEndian().Uint32(v))
		case unix.RTA_GATEWAY:
			a.next, _ = netip.AddrFromSlice(v)
		case unix.RTA_VIA: // struct rtvia: the family, then an address of it
			a.next, _ = netip.AddrFromSlice(v[2:])
		case unix.RTA_PREFSRC:
			a.source, _ = netip.AddrFromSlice(v)
		case unix.RTA_ENCAP_TYPE:
			n := int(nl.NativeEndian().Uint16(v))
			if a.encap = fmt.Sprint("type ", n); n < len(encapsulations) && encapsulations[n] != "" {
				a.encap = encapsulations[n]
			}
		case unix.RTA_METRICS:
			metrics, err := nl.ParseRouteAttr(v)
			if err != nil {
				return a, err
			}
			for _, x := range metrics {
				if x.Attr.Type == unix.RTAX_MTU {
					a.mtu = int(nl.NativeEndian().Uint32(x.Value))
				}
			}
		}
	}
	return a, err
}

// Bypassed returns warnings about what is configured with tc on the path's interface and does not apply to raw frames.
// qdisc means that they are sent through the interface's queueing discipline.
func (p *Path) Bypassed(qdisc bool) (warnings []string) {
	if p.Index == 0 { // not an interface of the kernel
		return nil
	}
	egress, ingress, err := netif.TrafficControl(p.Interface)
	if err != nil {
		return []string{fmt.Sprintf("unknown whether raw frames bypass a queueing discipline (tc): %v", err)}
	}
	if egress != "" && !qdisc {
		warnings = append(warnings,
			fmt.Sprintf("raw frames bypass what tc has configured on %s (%s), which may delay or drop packets of sockets (send through it: -qdisc)",
				p.Interface, egress))
	}
	if ingress != "" {
		warnings = append(warnings,
			fmt.Sprintf("raw frames are received before tc's ingress filters on %s (%s), which may delay or drop packets to sockets "+
				"(receive behind them: -transport socket)", p.Interface, ingress))
	}
	return warnings
}
