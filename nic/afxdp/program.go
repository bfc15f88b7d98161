package afxdp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf/asm"

	"rebound/fastpath"
	"rebound/nic"
)

// The program's registers that live through calls.
const (
	regContext = asm.R6 // struct xdp_md
	regFrame   = asm.R7 // start of the frame, moved on by 4 for each VLAN tag: offsets below are those of an untagged frame
	regEnd     = asm.R8 // end of the frame
	regTo      = asm.R9 // whose MAC the frame is to: toUs or toGroup
)

const (
	toUs    = 1
	toGroup = 2
)

// Verdicts of linux/bpf.h, and offsets in struct xdp_md.
const (
	xdpPass = 2

	mdData    = 0
	mdDataEnd = 4
	mdQueue   = 16
)

// Offsets in an untagged frame.
const (
	offType = 12
	offL3   = 14

	offIPv4Fragment = offL3 + 6
	offIPv4Protocol = offL3 + 9
	offIPv4Source   = offL3 + 12
	offIPv4Dest     = offL3 + 16
	offL4           = offL3 + 20 // behind an IPv4 header without options

	offIPv6Next     = offL3 + 6
	offIPv6HopLimit = offL3 + 7
	offIPv6Source   = offL3 + 8
	offIPv6Dest     = offL3 + 24
	offIPv6L4       = offL3 + 40
	offNDTarget     = offIPv6L4 + 8 // RFC 4861 §4.3, §4.4

	offARPSender = offL3 + 14 // protocol addresses, RFC 826
	offARPTarget = offL3 + 24
)

// maxListed bounds addresses and ports, each: the program compares one after the other.
const maxListed = 512

// filter says what the program takes. Empty lists take nothing, but anyAddress takes all addresses.
type filter struct {
	all        bool // everything
	mac        [6]byte
	anyMAC     bool
	anyAddress bool         // whatever the destination, for echo requests and datagrams
	addresses  []netip.Addr // ours
	remote     netip.Addr   // the only source, if valid
	ports      []uint16     // UDP destination ports
	requests   bool         // take echo requests
	replies    []uint16     // take echo replies with these identifiers
	arp        []uint16     // take ARP operations
	nd         []uint8      // take ICMPv6 types: neighbour solicitation, advertisement
}

// newFilter reads what the options ask for.
func newFilter(o *nic.Options, mac [6]byte) (filter, error) {
	f := filter{mac: mac}
	switch {
	case o.Match != nil && o.Steer != nil:
		return f, errors.New("both Match and Steer are set: want one of them at most")
	case o.Match != nil:
		c := o.Match
		for _, p := range c.Addresses {
			f.addresses = append(f.addresses, p.Addr().Unmap())
		}
		open := c.Mode == fastpath.Open
		f.anyMAC, f.anyAddress = open, open
		f.ports, f.requests = slices.Concat(c.UDPPorts, c.STAMPPorts), true
		f.arp, f.nd = []uint16{arpRequest}, []uint8{ndSolicitation}
	case o.Steer != nil:
		s := o.Steer
		f.addresses, f.remote = []netip.Addr{s.Local.Unmap()}, s.Remote.Unmap()
		if !f.remote.IsValid() || f.addresses[0].BitLen() != f.remote.BitLen() {
			return f, fmt.Errorf("steer %v to %v: want two addresses of one family", s.Remote, s.Local)
		}
		f.ports, f.replies = s.UDPPorts, s.EchoIDs
		if s.Neighbours {
			f.arp, f.nd = []uint16{arpRequest, arpReply}, []uint8{ndSolicitation, ndAdvertisement}
		}
	default:
		f.all = true
	}
	if !f.all && !f.family(4) && !f.family(16) {
		return f, errors.New("nothing to take: Match or Steer has no address")
	}
	if o.Steer != nil && len(f.ports)+len(f.replies)+len(f.arp) == 0 {
		return f, errors.New("nothing to take: Steer has no echo identifier, no port and no neighbours")
	}
	if n := max(len(f.addresses), len(f.ports), len(f.replies)); n > maxListed {
		return f, fmt.Errorf("%d addresses or ports: the XDP program takes %d at most", n, maxListed)
	}
	return f, nil
}

// listed reports whether there is an address of size bytes, and family whether packets of that size's family are taken.
func (f *filter) listed(size int) bool {
	return slices.ContainsFunc(f.addresses, func(a netip.Addr) bool { return a.BitLen() == 8*size })
}

func (f *filter) family(size int) bool { return f.anyAddress || f.listed(size) }

const (
	arpRequest      = 1
	arpReply        = 2
	ndSolicitation  = 135
	ndAdvertisement = 136

	icmpEchoReply     = 0
	icmpEchoRequest   = 8
	icmpv6EchoRequest = 128
	icmpv6EchoReply   = 129

	protoICMP   = 1
	protoUDP    = 17
	protoICMPv6 = 58
)

// program builds the XDP program. sockets is the file descriptor of the map from queue to socket; vlanTag the BTF
// identifier of bpf_xdp_metadata_rx_vlan_tag, 0 where that may not be called.
func (f *filter) program(sockets int, vlanTag int64) asm.Instructions {
	b := &builder{}
	b.add(
		asm.Mov.Reg(regContext, asm.R1),
		asm.LoadMem(regFrame, regContext, mdData, asm.Word),
		asm.LoadMem(regEnd, regContext, mdDataEnd, asm.Word),
	)
	b.need(offL3)
	if !f.all {
		f.destination(b)
		f.etherType(b)
		// The verifier refuses code that nothing leads to.
		if f.family(4) {
			f.ipv4(b)
		}
		if f.family(16) {
			f.ipv6(b)
		}
		if f.listed(4) {
			f.neighbour4(b)
		}
		if f.listed(16) && len(f.nd) > 0 {
			f.neighbour6(b)
		}
		f.udpPorts(b)
	}
	b.take(sockets, vlanTag)
	b.label("pass")
	b.add(asm.Mov.Imm(asm.R0, xdpPass), asm.Return())
	return b.code
}

// destination sets regTo, or passes a frame to another station.
func (f *filter) destination(b *builder) {
	b.add(asm.Mov.Imm(regTo, toUs))
	if f.anyMAC {
		return
	}
	b.add(
		asm.LoadMem(asm.R1, regFrame, 0, asm.Word),
		asm.LoadMem(asm.R2, regFrame, 4, asm.Half),
	)
	b.unless32(asm.R1, binary.NativeEndian.Uint32(f.mac[:]), "foreign")
	b.add(asm.JEq.Imm(asm.R2, int32(binary.NativeEndian.Uint16(f.mac[4:])), "type"))
	b.label("foreign")
	b.add(
		asm.LoadMem(asm.R1, regFrame, 0, asm.Byte),
		asm.And.Imm(asm.R1, 1),
		asm.JEq.Imm(asm.R1, 0, "pass"),
		asm.Mov.Imm(regTo, toGroup),
	)
}

// etherType steps over up to two VLAN tags and branches.
func (f *filter) etherType(b *builder) {
	b.label("type")
	for _, label := range []string{"tag1", "tag2"} {
		b.add(asm.LoadMem(asm.R1, regFrame, offType, asm.Half))
		b.add(asm.JEq.Imm(asm.R1, wire16(0x8100), label))
		b.add(asm.JNE.Imm(asm.R1, wire16(0x88a8), "untagged"))
		b.label(label)
		b.add(asm.Add.Imm(regFrame, 4))
		b.need(offL3)
	}
	b.add(asm.LoadMem(asm.R1, regFrame, offType, asm.Half))
	b.label("untagged")
	if f.family(4) {
		b.add(asm.JEq.Imm(asm.R1, wire16(0x0800), "ipv4"))
	}
	if f.family(16) {
		b.add(asm.JEq.Imm(asm.R1, wire16(0x86dd), "ipv6"))
	}
	if f.listed(4) {
		b.add(asm.JEq.Imm(asm.R1, wire16(0x0806), "arp"))
	}
	b.jump("pass")
}

func (f *filter) ipv4(b *builder) {
	b.label("ipv4")
	b.need(offL4 + 8)
	b.add(
		asm.JNE.Imm(regTo, toUs, "pass"),
		asm.LoadMem(asm.R1, regFrame, offL3, asm.Byte),
		asm.JNE.Imm(asm.R1, 0x45, "pass"), // options
		asm.LoadMem(asm.R1, regFrame, offIPv4Fragment, asm.Half),
		asm.And.Imm(asm.R1, wire16(0x3fff)),
		asm.JNE.Imm(asm.R1, 0, "pass"),
	)
	f.hosts(b, 4, offIPv4Source, offIPv4Dest)
	b.add(
		asm.LoadMem(asm.R1, regFrame, offL4+2, asm.Half),
		asm.LoadMem(asm.R2, regFrame, offIPv4Protocol, asm.Byte),
		asm.JEq.Imm(asm.R2, protoUDP, "udp"),
		asm.JNE.Imm(asm.R2, protoICMP, "pass"),
		asm.LoadMem(asm.R1, regFrame, offL4+4, asm.Half),
		asm.LoadMem(asm.R2, regFrame, offL4, asm.Byte),
	)
	f.echo(b, icmpEchoRequest, icmpEchoReply)
}

func (f *filter) ipv6(b *builder) {
	b.label("ipv6")
	b.need(offIPv6L4 + 8)
	b.add(
		asm.LoadMem(asm.R1, regFrame, offL3, asm.Byte),
		asm.And.Imm(asm.R1, 0xf0),
		asm.JNE.Imm(asm.R1, 0x60, "pass"),
		asm.LoadMem(asm.R2, regFrame, offIPv6Next, asm.Byte),
		asm.JEq.Imm(asm.R2, protoUDP, "host6"),
		asm.JNE.Imm(asm.R2, protoICMPv6, "pass"),
		asm.LoadMem(asm.R1, regFrame, offIPv6L4, asm.Byte),
	)
	for _, t := range f.nd {
		if !f.listed(16) {
			break
		}
		b.add(asm.JEq.Imm(asm.R1, int32(t), "nd"))
	}
	b.label("host6")
	b.add(asm.JNE.Imm(regTo, toUs, "pass"))
	f.hosts(b, 16, offIPv6Source, offIPv6Dest)
	b.add(
		asm.LoadMem(asm.R1, regFrame, offIPv6L4+2, asm.Half),
		asm.LoadMem(asm.R2, regFrame, offIPv6Next, asm.Byte),
		asm.JEq.Imm(asm.R2, protoUDP, "udp"),
		asm.LoadMem(asm.R1, regFrame, offIPv6L4+4, asm.Half),
		asm.LoadMem(asm.R2, regFrame, offIPv6L4, asm.Byte),
	)
	f.echo(b, icmpv6EchoRequest, icmpv6EchoReply)
}

// hosts passes a packet that is not from the remote or not to one of the addresses, which have size bytes.
func (f *filter) hosts(b *builder, size int, source, dest int16) {
	if f.remote.IsValid() {
		b.listed(size, source, []netip.Addr{f.remote})
	}
	if !f.anyAddress {
		b.listed(size, dest, f.addresses)
	}
}

// echo takes an ICMP message of the type in R2 with the identifier in R1, or passes it.
func (f *filter) echo(b *builder, request, reply int32) {
	if f.requests {
		b.add(asm.JEq.Imm(asm.R2, request, "take"))
	}
	if len(f.replies) > 0 {
		b.add(asm.JNE.Imm(asm.R2, reply, "pass"))
		for _, id := range f.replies {
			b.add(asm.JEq.Imm(asm.R1, wire16(id), "take"))
		}
	}
	b.jump("pass")
}

// udpPorts takes a datagram to the port in R1, or passes it.
func (f *filter) udpPorts(b *builder) {
	b.label("udp")
	for _, port := range f.ports {
		b.add(asm.JEq.Imm(asm.R1, wire16(port), "take"))
	}
	b.jump("pass")
}

// neighbour4 takes ARP packets for the addresses.
func (f *filter) neighbour4(b *builder) {
	b.label("arp")
	b.need(offARPTarget + 4)
	for i, op := range f.arp {
		next := fmt.Sprint("arp", i)
		// Ethernet and IPv4, six and four bytes, the operation.
		head := []byte{0, 1, 8, 0, 6, 4, 0, byte(op)}
		b.add(
			asm.LoadMem(asm.R1, regFrame, offL3, asm.Word),
			asm.LoadMem(asm.R2, regFrame, offL3+4, asm.Word),
		)
		b.unless32(asm.R1, binary.NativeEndian.Uint32(head), next)
		b.unless32(asm.R2, binary.NativeEndian.Uint32(head[4:]), next)
		if f.remote.IsValid() {
			b.listed(4, offARPSender, []netip.Addr{f.remote})
		}
		b.listed(4, offARPTarget, f.addresses)
		b.jump("take")
		b.label(next)
	}
	b.jump("pass")
}

// neighbour6 takes neighbour discovery for the addresses: the type is in R1.
func (f *filter) neighbour6(b *builder) {
	b.label("nd")
	b.need(offNDTarget + 16)
	b.add(
		asm.LoadMem(asm.R2, regFrame, offIPv6HopLimit, asm.Byte),
		asm.JNE.Imm(asm.R2, 255, "pass"), // RFC 4861 §7.1: it has crossed no router
	)
	if f.remote.IsValid() { // an advertisement is about its sender
		b.add(asm.JEq.Imm(asm.R1, ndAdvertisement, "advertisement"))
		b.listed(16, offIPv6Source, []netip.Addr{f.remote})
		b.listed(16, offNDTarget, f.addresses)
		b.jump("take")
		b.label("advertisement")
		b.listed(16, offNDTarget, []netip.Addr{f.remote})
		b.jump("take")
		return
	}
	b.listed(16, offNDTarget, f.addresses)
	b.jump("take")
}

// wire16 is what a 16-bit load of the big-endian v yields, as a jump's operand.
func wire16(v uint16) int32 {
	return int32(binary.NativeEndian.Uint16([]byte{byte(v >> 8), byte(v)}))
}
