package route

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

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
