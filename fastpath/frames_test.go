package fastpath

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"

	"rebound/fastpath/oracle"
)

var (
	ourMAC   = [6]byte{0x02, 0, 0, 0, 0, 0x01}
	theirMAC = [6]byte{0x02, 0, 0, 0, 0, 0x02}

	our4, their4 = netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("10.1.2.9")
	our6, their6 = netip.MustParseAddr("2001:db8::1:2:3"), netip.MustParseAddr("2001:db8::9")
	ourLL        = netip.MustParseAddr("fe80::1")
)

const clockNTP = 0xe8d4_a510_8000_0000 // what every test packet is stamped with while the rate is 0

func config(m Mode) Config {
	c := Config{
		Mode: m,
		MAC:  ourMAC,
		Addresses: []netip.Prefix{
			netip.MustParsePrefix("10.1.2.3/24"), netip.MustParsePrefix("192.0.2.77/32"),
			netip.PrefixFrom(our6, 64), netip.PrefixFrom(ourLL, 64),
		},
		UDPPorts:   []uint16{7, 9000},
		STAMPPorts: []uint16{862},
		Clock:      new(atomic.Pointer[Clock]),

		ChecksumBytes: 100, // some of the frames are longer
	}
	c.Clock.Store(&Clock{NTP: clockNTP, ErrorEstimate: ErrorEstimate(true, 1e-6)})
	return c
}

func responder(t testing.TB, c Config) *Responder {
	t.Helper()
	r, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func naiveSum(parts ...[]byte) uint16 { return oracle.Sum(slices.Concat(parts...)) }

func l4sum(src, dst []byte, protocol byte, seg []byte) uint16 {
	return oracle.PseudoSum(slices.Concat(src, dst), protocol, seg)
}

// expected is the oracle's reply.
func expected(c *Config, f []byte) []byte {
	r := oracle.Rules{
		Open: c.Mode == Open, MAC: c.MAC, Addresses: c.Addresses, UDPPorts: c.UDPPorts, STAMPPorts: c.STAMPPorts, VLANs: c.VLANs,
		ChecksumBytes: c.ChecksumBytes, STAMPBase: c.STAMPBase, Time: clockNTP, ErrorEstimate: ErrorEstimate(true, 1e-6),
		ServicePorts: servicePorts[:],
	}
	return r.Answer(f, nil)
}

func eth(dst, src [6]byte, tags int, etherType uint16, payload []byte) []byte {
	b := append(append([]byte{}, dst[:]...), src[:]...)
	switch tags {
	case 1:
		b = append(b, 0x81, 0x00, 0x60, 0x64)
	case 2:
		b = append(b, 0x88, 0xa8, 0x00, 0x0a, 0x81, 0x00, 0xf0, 0x14)
	}
	return append(binary.BigEndian.AppendUint16(b, etherType), payload...)
}

func pad(b []byte, n int) []byte {
	for len(b) < n {
		b = append(b, 0)
	}
	return b
}

func ip4(src, dst netip.Addr, protocol byte, payload []byte) []byte {
	b := []byte{0x45, 0x28, 0, 0, 0x12, 0x34, 0x40, 0, 57, protocol, 0, 0}
	binary.BigEndian.PutUint16(b[2:], uint16(20+len(payload)))
	b = append(append(b, src.AsSlice()...), dst.AsSlice()...)
	binary.BigEndian.PutUint16(b[10:], ^naiveSum(b))
	return append(b, payload...)
}

func packet6(src, dst netip.Addr, next, hop byte, payload []byte) []byte {
	b := []byte{0x6a, 0xbc, 0xde, 0xf0, 0, 0, next, hop}
	binary.BigEndian.PutUint16(b[4:], uint16(len(payload)))
	return append(append(append(b, src.AsSlice()...), dst.AsSlice()...), payload...)
}

func echo(typ byte, payload int) []byte {
	b := []byte{typ, 0, 0, 0, 0xca, 0xfe, 0, 7}
	for i := range payload {
		b = append(b, byte(i*7+3))
	}
	return b
}

func icmp4(src, dst netip.Addr, payload int) []byte {
	m := echo(8, payload)
	binary.BigEndian.PutUint16(m[2:], ^naiveSum(m))
	return ip4(src, dst, 1, m)
}

func icmp6(src, dst netip.Addr, hop byte, m []byte) []byte {
	m[2], m[3] = 0, 0
	binary.BigEndian.PutUint16(m[2:], ^l4sum(src.AsSlice(), dst.AsSlice(), 58, m))
	return packet6(src, dst, 58, hop, m)
}

func udp(src, dst netip.Addr, from, to uint16, payload []byte) []byte {
	d := binary.BigEndian.AppendUint16(nil, from)
	d = binary.BigEndian.AppendUint16(d, to)
	d = binary.BigEndian.AppendUint16(d, uint16(8+len(payload)))
	d = append(append(d, 0, 0), payload...)
	ck := ^l4sum(src.AsSlice(), dst.AsSlice(), 17, d)
	if ck == 0 {
		ck = 0xffff
	}
	binary.BigEndian.PutUint16(d[6:], ck)
	if src.Is4() {
		return ip4(src, dst, 17, d)
	}
	return packet6(src, dst, 17, 33, d)
}

func arpRequest(sha [6]byte, spa, tpa netip.Addr) []byte {
	b := append([]byte{0, 1, 8, 0, 6, 4, 0, 1}, sha[:]...)
	b = append(append(b, spa.AsSlice()...), make([]byte, 6)...)
	return append(b, tpa.AsSlice()...)
}

func solicit(src, dst, target netip.Addr, options ...byte) []byte {
	m := append([]byte{135, 0, 0, 0, 0, 0, 0, 0}, target.AsSlice()...)
	return icmp6(src, dst, 255, append(m, options...))
}

// testPacket is a STAMP sender's (RFC 8762 §4.2.1) of n bytes.
func testPacket(n int) []byte {
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

type request struct {
	name  string
	frame []byte
	kind  Verdict
}

// requests are frames of every kind that is answered, under tags VLAN tags.
func requests(tags int) []request {
	group, groupMAC := oracle.SolicitedNode(our6)
	slla := append([]byte{1, 1}, theirMAC[:]...)
	nonce := []byte{14, 1, 1, 2, 3, 4, 5, 6}
	e := func(etherType uint16, p []byte) []byte { return eth(ourMAC, theirMAC, tags, etherType, p) }
	noSum := e(0x0800, udp(their4, our4, 40000, 9000, []byte("no checksum")))
	copy(noSum[14+4*tags+26:], []byte{0, 0})
	zeros := make([]byte, 8+10)
	zeros[0], zeros[2], zeros[3] = 8, 0xf7, 0xff
	return []request{
		{"ping", e(0x0800, icmp4(their4, our4, 56)), AnsweredICMPv4},
		{"ping long", e(0x0800, icmp4(their4, our4, 600)), AnsweredICMPv4},
		{"ping padded", pad(e(0x0800, icmp4(their4, our4, 1)), 60), AnsweredICMPv4},
		{"ping unpadded", e(0x0800, icmp4(their4, our4, 0)), AnsweredICMPv4},
		{"ping of zeros", e(0x0800, ip4(their4, our4, 1, zeros)), AnsweredICMPv4},
		{"ping to the second address", e(0x0800, icmp4(their4, netip.MustParseAddr("192.0.2.77"), 56)), AnsweredICMPv4},
		{"udp", e(0x0800, udp(their4, our4, 40000, 9000, []byte("datagram"))), AnsweredUDPv4},
		{"udp empty, padded", pad(e(0x0800, udp(their4, our4, 40000, 7, nil)), 60), AnsweredUDPv4},
		{"udp without checksum", noSum, AnsweredUDPv4},
		{"ping6", e(0x86dd, icmp6(their6, our6, 61, echo(128, 56))), AnsweredICMPv6},
		{"ping6 empty", e(0x86dd, icmp6(their6, ourLL, 61, echo(128, 0))), AnsweredICMPv6},
		{"udp6", e(0x86dd, udp(their6, our6, 40000, 9000, []byte("datagrams"))), AnsweredUDPv6},
		{"udp6 empty", e(0x86dd, udp(their6, our6, 40000, 9000, nil)), AnsweredUDPv6},
		{"arp", pad(eth(broadcast, theirMAC, tags, 0x0806, arpRequest(theirMAC, their4, our4)), 60), AnsweredARP},
		{"arp unicast", e(0x0806, arpRequest(theirMAC, their4, our4)), AnsweredARP},
		{"arp probe", pad(eth(broadcast, theirMAC, tags, 0x0806, arpRequest(theirMAC, netip.IPv4Unspecified(), our4)), 60), AnsweredARP},
		{"ns", eth(groupMAC, theirMAC, tags, 0x86dd, solicit(their6, group, our6, slla...)), AnsweredND},
		{"ns unicast", e(0x86dd, solicit(their6, our6, our6)), AnsweredND},
		{"ns with nonce", eth(groupMAC, theirMAC, tags, 0x86dd, solicit(their6, group, our6, append(nonce, slla...)...)), AnsweredND},
		{"ns of dad", eth(groupMAC, theirMAC, tags, 0x86dd, solicit(netip.IPv6Unspecified(), group, our6)), AnsweredND},
		{"ns of dad with nonce", eth(groupMAC, theirMAC, tags, 0x86dd, solicit(netip.IPv6Unspecified(), group, our6, nonce...)), AnsweredND},
		{"stamp", e(0x0800, udp(their4, our4, 40000, 862, testPacket(44))), AnsweredSTAMPv4},
		{"stamp long", e(0x0800, udp(their4, our4, 40000, 862, testPacket(71))), AnsweredSTAMPv4},
		{"twamp", e(0x0800, udp(their4, our4, 40000, 862, testPacket(41))), AnsweredSTAMPv4},
		{"stamp6", e(0x86dd, udp(their6, our6, 40000, 862, testPacket(44))), AnsweredSTAMPv6},
	}
}

// inBuffer returns a copy of f that lies at the start of a receive buffer full of what was there before.
func inBuffer(f []byte) []byte {
	b := make([]byte, max(len(f), MinBuffer)+64)
	for i := range b {
		b[i] = 0xa5
	}
	return b[:copy(b, f)]
}
