// Package corpus has frames of every kind that a responder answers, and mutates them at random, to test package
// fastpath and implementations of the same rules.
package corpus

import (
	"encoding/binary"
	"net/netip"

	"github.com/rebound-nic/rebound/proof/oracle"
)

// Addresses of the client and of the responder.
var (
	OurMAC   = [6]byte{0x02, 0, 0, 0, 0, 0x01}
	TheirMAC = [6]byte{0x02, 0, 0, 0, 0, 0x02}

	Our4, Their4 = netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("10.1.2.9")
	Our6, Their6 = netip.MustParseAddr("2001:db8::1:2:3"), netip.MustParseAddr("2001:db8::9")
	ourLinkLocal = netip.MustParseAddr("fe80::1")

	// Addresses are all addresses of the responder.
	Addresses = []netip.Prefix{
		netip.PrefixFrom(Our4, 24), netip.MustParsePrefix("192.0.2.77/32"), netip.PrefixFrom(Our6, 64),
		netip.PrefixFrom(ourLinkLocal, 64),
	}
	broadcast = [6]byte{255, 255, 255, 255, 255, 255}
)

// The responder's ports, for echo and for test packets.
var (
	UDPPorts   = []uint16{7, 9000}
	STAMPPorts = []uint16{862}
)

// Eth builds a frame with the given number of VLAN tags: VLAN 100, or VLAN 20 inside VLAN 10.
func Eth(dst, src [6]byte, tags int, etherType uint16, payload []byte) []byte {
	b := append(append([]byte{}, dst[:]...), src[:]...)
	switch tags {
	case 1:
		b = append(b, 0x81, 0x00, 0x60, 0x64)
	case 2:
		b = append(b, 0x88, 0xa8, 0x00, 0x0a, 0x81, 0x00, 0xf0, 0x14)
	}
	return append(binary.BigEndian.AppendUint16(b, etherType), payload...)
}

// Pad extends b to at least n bytes.
func Pad(b []byte, n int) []byte {
	for len(b) < n {
		b = append(b, 0)
	}
	return b
}

// IPv4 builds a packet.
func IPv4(src, dst netip.Addr, protocol byte, payload []byte) []byte {
	b := []byte{0x45, 0x28, 0, 0, 0x12, 0x34, 0x40, 0, 57, protocol, 0, 0}
	binary.BigEndian.PutUint16(b[2:], uint16(20+len(payload)))
	b = append(append(b, src.AsSlice()...), dst.AsSlice()...)
	binary.BigEndian.PutUint16(b[10:], ^oracle.Sum(b))
	return append(b, payload...)
}

// ipv6 builds a packet.
func ipv6(src, dst netip.Addr, next, hop byte, payload []byte) []byte {
	b := []byte{0x6a, 0xbc, 0xde, 0xf0, 0, 0, next, hop}
	binary.BigEndian.PutUint16(b[4:], uint16(len(payload)))
	return append(append(append(b, src.AsSlice()...), dst.AsSlice()...), payload...)
}

// Echo builds an ICMP message without its checksum.
func Echo(typ byte, payload int) []byte {
	b := []byte{typ, 0, 0, 0, 0xca, 0xfe, 0, 7}
	for i := range payload {
		b = append(b, byte(i*7+3))
	}
	return b
}

// ICMPv4 builds an echo request in its packet.
func ICMPv4(src, dst netip.Addr, payload int) []byte {
	m := Echo(8, payload)
	binary.BigEndian.PutUint16(m[2:], ^oracle.Sum(m))
	return IPv4(src, dst, 1, m)
}

// ICMPv6 adds the checksum to message m and puts it into a packet.
func ICMPv6(src, dst netip.Addr, hop byte, m []byte) []byte {
	m[2], m[3] = 0, 0
	binary.BigEndian.PutUint16(m[2:], ^sum(src, dst, 58, m))
	return ipv6(src, dst, 58, hop, m)
}

// UDP builds a datagram in its packet.
func UDP(src, dst netip.Addr, from, to uint16, payload []byte) []byte {
	d := binary.BigEndian.AppendUint16(nil, from)
	d = binary.BigEndian.AppendUint16(d, to)
	d = binary.BigEndian.AppendUint16(d, uint16(8+len(payload)))
	d = append(append(d, 0, 0), payload...)
	ck := ^sum(src, dst, 17, d)
	if ck == 0 {
		ck = 0xffff
	}
	binary.BigEndian.PutUint16(d[6:], ck)
	if src.Is4() {
		return IPv4(src, dst, 17, d)
	}
	return ipv6(src, dst, 17, 33, d)
}

func arpRequest(sha [6]byte, spa, tpa netip.Addr) []byte {
	b := append([]byte{0, 1, 8, 0, 6, 4, 0, 1}, sha[:]...)
	b = append(append(b, spa.AsSlice()...), make([]byte, 6)...)
	return append(b, tpa.AsSlice()...)
}

// Solicit builds a neighbour solicitation for target in its packet.
func Solicit(src, dst, target netip.Addr, options ...byte) []byte {
	m := append([]byte{135, 0, 0, 0, 0, 0, 0, 0}, target.AsSlice()...)
	return ICMPv6(src, dst, 255, append(m, options...))
}

// Timing is a test packet that asks for the Host Timing TLV: flag U, type 253 for private use, and a value of 16 bytes
// that begins with a mark.
func Timing() []byte {
	return append(TestPacket(44), "\x80\xfd\x00\x10RBND\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"...)
}

// TestPacket is a STAMP sender's test packet (RFC 8762 §4.2.1) of n bytes.
func TestPacket(n int) []byte {
	b := []byte{0, 0, 0, 42, 0xe8, 0xd4, 0xa5, 0x0f, 0x11, 0x22, 0x33, 0x44, 0x9f, 0x01}
	for len(b) < n {
		if len(b) < 44 {
			b = append(b, 0)
		} else {
			b = append(b, byte(len(b)))
		}
	}
	return b
}

// Request is a frame that the responder answers.
type Request struct {
	Name  string
	Frame []byte
	Kind  string // the verdict's name
}

// Requests are frames of every kind that the responder answers, with the given number of VLAN tags.
func Requests(tags int) []Request {
	group, groupMAC := oracle.SolicitedNode(Our6)
	slla := append([]byte{1, 1}, TheirMAC[:]...)
	nonce := []byte{14, 1, 1, 2, 3, 4, 5, 6}
	e := func(etherType uint16, p []byte) []byte { return Eth(OurMAC, TheirMAC, tags, etherType, p) }
	noSum := e(0x0800, UDP(Their4, Our4, 40000, 9000, []byte("no checksum")))
	copy(noSum[14+4*tags+26:], []byte{0, 0})
	zeros := make([]byte, 8+10)
	zeros[0], zeros[2], zeros[3] = 8, 0xf7, 0xff
	return []Request{
		{"ping", e(0x0800, ICMPv4(Their4, Our4, 56)), "icmpv4"},
		{"ping long", e(0x0800, ICMPv4(Their4, Our4, 600)), "icmpv4"},
		{"ping padded", Pad(e(0x0800, ICMPv4(Their4, Our4, 1)), 60), "icmpv4"},
		{"ping unpadded", e(0x0800, ICMPv4(Their4, Our4, 0)), "icmpv4"},
		{"ping of zeros", e(0x0800, IPv4(Their4, Our4, 1, zeros)), "icmpv4"},
		{"ping to the second address", e(0x0800, ICMPv4(Their4, netip.MustParseAddr("192.0.2.77"), 56)), "icmpv4"},
		{"udp", e(0x0800, UDP(Their4, Our4, 40000, 9000, []byte("datagram"))), "udpv4"},
		{"udp empty, padded", Pad(e(0x0800, UDP(Their4, Our4, 40000, 7, nil)), 60), "udpv4"},
		{"udp without checksum", noSum, "udpv4"},
		{"ping6", e(0x86dd, ICMPv6(Their6, Our6, 61, Echo(128, 56))), "icmpv6"},
		{"ping6 empty", e(0x86dd, ICMPv6(Their6, ourLinkLocal, 61, Echo(128, 0))), "icmpv6"},
		{"udp6", e(0x86dd, UDP(Their6, Our6, 40000, 9000, []byte("datagrams"))), "udpv6"},
		{"udp6 empty", e(0x86dd, UDP(Their6, Our6, 40000, 9000, nil)), "udpv6"},
		{"arp", Pad(Eth(broadcast, TheirMAC, tags, 0x0806, arpRequest(TheirMAC, Their4, Our4)), 60), "arp"},
		{"arp unicast", e(0x0806, arpRequest(TheirMAC, Their4, Our4)), "arp"},
		{"arp probe", Pad(Eth(broadcast, TheirMAC, tags, 0x0806, arpRequest(TheirMAC, netip.IPv4Unspecified(), Our4)), 60), "arp"},
		{"ns", Eth(groupMAC, TheirMAC, tags, 0x86dd, Solicit(Their6, group, Our6, slla...)), "nd"},
		{"ns unicast", e(0x86dd, Solicit(Their6, Our6, Our6)), "nd"},
		{"ns with nonce", Eth(groupMAC, TheirMAC, tags, 0x86dd, Solicit(Their6, group, Our6, append(nonce, slla...)...)), "nd"},
		{"ns of dad", Eth(groupMAC, TheirMAC, tags, 0x86dd, Solicit(netip.IPv6Unspecified(), group, Our6)), "nd"},
		{"ns of dad with nonce", Eth(groupMAC, TheirMAC, tags, 0x86dd, Solicit(netip.IPv6Unspecified(), group, Our6, nonce...)), "nd"},
		{"stamp", e(0x0800, UDP(Their4, Our4, 40000, 862, TestPacket(44))), "stampv4"},
		{"stamp long", e(0x0800, UDP(Their4, Our4, 40000, 862, TestPacket(71))), "stampv4"},
		{"stamp timing", e(0x0800, UDP(Their4, Our4, 40000, 862, Timing())), "stampv4"},
		{"stamp6 timing", e(0x86dd, UDP(Their6, Our6, 40000, 862, Timing())), "stampv6"},
		{"twamp", e(0x0800, UDP(Their4, Our4, 40000, 862, TestPacket(41))), "stampv4"},
		{"stamp6", e(0x86dd, UDP(Their6, Our6, 40000, 862, TestPacket(44))), "stampv6"},
	}
}

func sum(src, dst netip.Addr, protocol byte, s []byte) uint16 {
	return oracle.PseudoSum(append(src.AsSlice(), dst.AsSlice()...), protocol, s)
}
