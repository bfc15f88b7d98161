package fastpath

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
)

// One valid frame of each protocol, one change each, and the reason for which Strict refuses it. Offsets are those of
// an untagged frame; fix4 and fix6 correct the checksums after the change, so that only the change causes the refusal.
func TestVerdicts(t *testing.T) {
	put := func(at int, b ...byte) func([]byte) []byte {
		return func(f []byte) []byte { copy(f[at:], b); return f }
	}
	fix4 := func(change func([]byte) []byte) func([]byte) []byte {
		return func(f []byte) []byte {
			f = change(f)
			fixHeader(f[14:])
			return f
		}
	}
	fix6 := func(change func([]byte) []byte) func([]byte) []byte {
		return func(f []byte) []byte {
			f = change(f)
			f[56], f[57] = 0, 0
			be.PutUint16(f[56:], ^l4sum(f[22:38], f[38:54], f[20], f[54:]))
			return f
		}
	}
	cut := func(n int) func([]byte) []byte { return func(f []byte) []byte { return f[:n] } }
	more := func(n int) func([]byte) []byte { return func(f []byte) []byte { return append(f, make([]byte, n)...) } }
	both := func(a, b func([]byte) []byte) func([]byte) []byte { return func(f []byte) []byte { return b(a(f)) } }
	addr := func(at int, s string) func([]byte) []byte { return put(at, netip.MustParseAddr(s).AsSlice()...) }
	none := func(f []byte) []byte { return f }
	threeTags := bytes.Repeat([]byte{0x81, 0, 0, 5}, 3)

	for _, c := range []struct {
		base, change string
		do           func([]byte) []byte
		want         Verdict
	}{
		{"ping", "nothing", none, AnsweredICMPv4},
		{"ping", "empty", cut(0), RefusedShort},
		{"ping", "half an Ethernet header", cut(13), RefusedShort},
		{"ping", "half an IPv4 header", cut(33), RefusedShort},
		{"ping", "one byte lost", cut(97), RefusedLength},
		{"ping", "a trailer", more(1), AnsweredICMPv4},
		{"ping", "EtherType of nothing", put(12, 0x08, 0x01), RefusedEtherType},
		{"ping", "length field instead of an EtherType", put(12, 0x00, 0x54), RefusedEtherType},
		{"ping", "tag cut off", both(put(12, 0x81, 0x00), cut(17)), RefusedShort},
		{"ping", "three tags", func(f []byte) []byte { return slices.Concat(f[:12], threeTags, f[12:]) }, RefusedEtherType},
		{"ping", "to another MAC", put(5, 0x09), RefusedMAC},
		{"ping", "to the broadcast MAC", put(0, 255, 255, 255, 255, 255, 255), RefusedMAC},
		{"ping", "from the broadcast MAC", put(6, 255, 255, 255, 255, 255, 255), RefusedSourceMAC},
		{"ping", "from a multicast MAC", put(6, 0x01, 0, 0x5e, 0, 0, 1), RefusedSourceMAC},
		{"ping", "from our MAC", put(6, ourMAC[:]...), RefusedOwnSource},
		{"ping", "version 5", put(14, 0x55), RefusedVersion},
		{"ping", "version 6", put(14, 0x65), RefusedVersion},
		{"ping", "options", put(14, 0x46), RefusedOptions},
		{"ping", "header too short", put(14, 0x44), RefusedOptions},
		{"ping", "more fragments", fix4(put(20, 0x60)), RefusedFragment},
		{"ping", "reserved flag", fix4(put(20, 0xc0)), RefusedFragment},
		{"ping", "fragment offset", fix4(put(21, 1)), RefusedFragment},
		{"ping", "may be fragmented", fix4(put(20, 0)), AnsweredICMPv4},
		{"ping", "total length too short", fix4(put(17, 83)), RefusedChecksum}, // the last byte is a trailer
		{"ping", "total length too long", fix4(put(17, 85)), RefusedLength},
		{"ping", "total length below the header", fix4(put(16, 0, 19)), RefusedLength},
		{"ping", "header checksum", put(25, 0), RefusedHeaderChecksum},
		{"ping", "TTL without its checksum", put(22, 1), RefusedHeaderChecksum},
		{"ping", "TTL 1", fix4(put(22, 1)), AnsweredICMPv4},
		{"ping", "TCP", fix4(put(23, 6)), RefusedProtocol},
		{"ping", "ICMPv6 in IPv4", fix4(put(23, 58)), RefusedProtocol},
		{"ping", "echo reply", put(34, 0), RefusedICMP},
		{"ping", "timestamp request", put(34, 13), RefusedICMP},
		{"ping", "unreachable", put(34, 3), RefusedICMP},
		{"ping", "code 1", put(35, 1), RefusedICMP},
		{"ping", "ICMP header cut", both(fix4(put(16, 0, 27)), cut(41)), RefusedLength},
		{"ping", "traffic class", fix4(put(15, 0xb8)), AnsweredICMPv4},
		{"ping", "ICMP checksum", put(36, 1, 2), RefusedChecksum},
		{"ping", "data", put(97, 0), RefusedChecksum},
		{"ping long", "ICMP checksum", put(36, 1, 2), AnsweredICMPv4}, // longer than the verified length
		{"ping padded", "ICMP checksum", put(36, 1, 2), RefusedChecksum},
		{"ping padded", "padding", put(50, 1, 2), AnsweredICMPv4},
		{"ping unpadded", "padding to 64", more(22), AnsweredICMPv4},
		{"ping unpadded", "padding to 65", more(23), AnsweredICMPv4},

		{"udp", "nothing", none, AnsweredUDPv4},
		{"udp", "to another port", put(36, 0x23, 0x29), RefusedPort},
		{"udp", "to port 0", put(36, 0, 0), RefusedPort},
		{"udp", "TTL 2", fix4(put(22, 2)), AnsweredUDPv4},
		{"udp", "TTL 1", fix4(put(22, 1)), RefusedHopLimit},
		{"udp", "TTL 0", fix4(put(22, 0)), RefusedHopLimit},
		{"udp", "checksum", put(41, 0x77), RefusedChecksum},
		{"udp", "data", put(42, 'D'), RefusedChecksum},
		{"udp", "UDP length short", put(38, 0, 15), RefusedLength},
		{"udp", "UDP length long", put(38, 0, 17), RefusedLength},
		{"udp", "UDP length 0", put(38, 0, 0), RefusedLength},
		{"udp", "without checksum", put(40, 0, 0), AnsweredUDPv4},
		{"udp", "to STAMP, too short", put(36, 0x03, 0x5e), RefusedSTAMPShort},

		{"ping6", "nothing", none, AnsweredICMPv6},
		{"ping6", "half an IPv6 header", cut(53), RefusedShort},
		{"ping6", "one byte lost", cut(117), RefusedLength},
		{"ping6", "a trailer", more(1), AnsweredICMPv6},
		{"ping6", "version 4", put(14, 0x4a), RefusedVersion},
		{"ping6", "to another MAC", put(5, 9), RefusedMAC},
		{"ping6", "to all nodes' MAC", put(0, 0x33, 0x33, 0, 0, 0, 1), RefusedMAC},
		{"ping6", "from a group MAC", put(6, 1), RefusedSourceMAC},
		{"ping6", "from our MAC", put(6, ourMAC[:]...), RefusedOwnSource},
		{"ping6", "echo reply", put(54, 129), RefusedICMP},
		{"ping6", "router solicitation", put(54, 133), RefusedICMP},
		{"ping6", "advertisement", put(54, 136), RefusedICMP},
		{"ping6 empty", "checksum", put(56, 1, 2), RefusedChecksum},
		{"ping6 empty", "identifier", put(58, 1, 2), RefusedChecksum},
		{"ping6", "code 1", put(55, 1), RefusedICMP},
		{"ping6 empty", "ICMP header cut", both(put(18, 0, 7), cut(61)), RefusedLength},

		{"udp6", "nothing", none, AnsweredUDPv6},
		{"udp6", "without checksum", put(60, 0, 0), RefusedNoChecksum},
		{"udp6", "hop limit 2", put(21, 2), AnsweredUDPv6},
		{"udp6", "hop limit 1", put(21, 1), RefusedHopLimit},
		{"udp6", "checksum", put(60, 1), RefusedChecksum},
		{"udp6", "UDP length", put(59, 18), RefusedLength},
		{"udp6", "to another port", put(56, 1), RefusedPort},
		{"udp6", "from DNS", put(54, 0, 53), RefusedServicePort},

		{"arp", "nothing", none, AnsweredARP},
		{"arp", "half", cut(41), RefusedShort},
		{"arp", "a long trailer", more(5), AnsweredARP},
		{"arp", "to another MAC", put(0, 2, 0, 0, 0, 0, 9), RefusedMAC},
		{"arp", "from a group MAC", put(6, 3), RefusedSourceMAC},
		{"arp", "from our MAC", put(6, ourMAC[:]...), RefusedOwnSource},
		{"arp", "reply", put(21, 2), RefusedARP},
		{"arp", "reverse", put(21, 3), RefusedARP},
		{"arp", "hardware type", put(15, 6), RefusedARP},
		{"arp", "protocol type", put(16, 0x86), RefusedARP},
		{"arp", "hardware length", put(18, 8), RefusedARP},
		{"arp", "protocol length", put(19, 16), RefusedARP},
		{"arp", "for another", addr(38, "10.1.2.4"), RefusedAddress},
		{"arp", "announcement", addr(38, "10.1.2.9"), RefusedAnnouncement},
		{"arp", "announcement of ours", addr(28, "10.1.2.3"), RefusedAnnouncement},
		{"arp", "from our other address", addr(28, "192.0.2.77"), RefusedOwnSource},
		{"arp", "from a broadcast", addr(28, "10.1.2.255"), RefusedSource},
		{"arp", "from a group", addr(28, "224.0.0.5"), RefusedSource},
		{"arp", "for a group's hardware", put(22, 1), RefusedSourceMAC},
		{"arp", "for our hardware", put(22, ourMAC[:]...), RefusedOwnSource},
		{"arp", "target hardware filled in", put(32, 1, 2, 3, 4, 5, 6), AnsweredARP},
		{"arp", "for another's hardware", put(22, 2, 9, 9, 9, 9, 9), AnsweredARP},

		{"ns", "nothing", none, AnsweredND},
		{"ns", "hop limit 254", put(21, 254), RefusedND},
		{"ns", "code", fix6(put(55, 1)), RefusedND},
		{"ns", "checksum", put(56, 1, 2), RefusedND},
		{"ns", "option of length 0", fix6(put(79, 0)), RefusedND},
		{"ns with nonce", "nonce of length 0", fix6(put(79, 0)), RefusedND},
		{"ns", "option too long", fix6(put(79, 2)), RefusedND},
		{"ns", "an option of 16 bytes first", fix6(func(f []byte) []byte {
			f[19] += 16
			return slices.Concat(f[:78], []byte{14, 2, 0, 0}, bytes.Repeat([]byte{1, 1}, 6), f[78:])
		}), AnsweredND},
		{"ns", "an option of one byte", fix6(both(put(19, 33), more(1))), RefusedND},
		{"ns", "no sender's address", fix6(put(78, 14)), RefusedND},
		{"ns", "sender's address a group", fix6(put(80, 1)), RefusedSourceMAC},
		{"ns", "sender's address ours", fix6(put(80, ourMAC[:]...)), RefusedOwnSource},
		{"ns", "for another with our group", fix6(put(62, 0x20, 0x02)), RefusedAddress},
		{"ns", "to all nodes", fix6(both(put(0, 0x33, 0x33, 0, 0, 0, 1), addr(38, "ff02::1"))), RefusedMAC},
		{"ns", "to another group's MAC", put(5, 4), RefusedMAC},
		{"ns", "to our address by group MAC", fix6(addr(38, "2001:db8::1:2:3")), RefusedMAC},
		{"ns", "to our MAC", put(0, ourMAC[:]...), AnsweredND},
		{"ns", "from ours", fix6(addr(22, "fe80::1")), RefusedOwnSource},
		{"ns", "from a group", fix6(addr(22, "ff02::1")), RefusedSource},
		{"ns", "from :: with an option", fix6(addr(22, "::")), RefusedND},
		{"ns", "version", put(14, 0x50), RefusedVersion},
		{"ns", "too short", both(put(18, 0, 23), cut(77)), RefusedND},
		{"ns", "one byte lost", cut(85), RefusedLength},
		{"ns", "from our MAC", put(6, ourMAC[:]...), RefusedOwnSource},
		{"ns of dad", "to our address", fix6(both(put(0, ourMAC[:]...), addr(38, "2001:db8::1:2:3"))), RefusedND},

		{"stamp", "nothing", none, AnsweredSTAMPv4},
		{"twamp", "one byte less", func(f []byte) []byte { // 40 bytes cannot hold the sender's TTL
			f[17]--
			f[39]--
			return fix4(cut(len(f) - 1))(f)
		}, RefusedSTAMPShort},
		{"stamp6", "without checksum", put(60, 0, 0), RefusedNoChecksum},
		{"stamp", "hop limit 1", fix4(put(22, 1)), RefusedHopLimit},
		{"stamp", "checksum", put(40, 1), RefusedChecksum},
		{"stamp", "from a reflector", put(34, 0x03, 0x5e), RefusedServicePort},
		{"stamp6", "data", put(70, 1), RefusedChecksum},
	} {
		t.Run(c.base+"/"+c.change, func(t *testing.T) {
			verdictIs(t, c.do(find(c.base, 0)), c.want)
		})
	}
}

// verdictIs checks that Reply and Slow give a frame a verdict, and treat it as the oracle does.
func verdictIs(t *testing.T, f []byte, want Verdict) {
	t.Helper()
	cfg := config(Strict)
	fast, slow := responder(t, cfg), responder(t, cfg)
	check.OK(t, judge(&cfg, fast, slow, f))
	for way, r := range map[string]*Responder{"snippet": fast, "Slow": slow} {
		for v, n := range r.Stats() {
			if n != 0 && Verdict(v) != want {
				t.Errorf("%s: %s, want %s", way, Verdict(v), want)
			}
		}
	}
}

// Requests that are correct except for an address or the port that they come from.
func TestVerdictsByAddressAndPort(t *testing.T) {
	ping := func(from, to netip.Addr) []byte {
		if to.Is4() {
			return toUs(0, icmp4(from, to, 56))
		}
		return toUs(0, icmp6(from, to, 64, echo(128, 56)))
	}
	for want, to := range map[Verdict][]string{
		AnsweredICMPv4: {"192.0.2.77"}, // our second address
		RefusedAddress: {"10.1.2.4", "10.1.2.255", "255.255.255.255", "0.0.0.0", "0.0.0.1", "1.0.0.0", "224.0.0.1",
			"2001:db8::1:2:4", "2001:db9::1:2:3", "ff02::1", "::", "100::"},
	} {
		for _, s := range to {
			a := netip.MustParseAddr(s)
			from, _ := hosts(a.Is6())
			t.Run("to "+s, func(t *testing.T) { verdictIs(t, ping(from, a), want) })
		}
	}
	for want, from := range map[Verdict][]string{
		AnsweredICMPv4: {"10.1.3.255", "192.0.2.255", "1.0.0.0", "126.0.0.1", "223.255.255.254"}, // the first two are broadcasts of no subnet of ours
		RefusedSource: {"10.1.2.255", "10.1.2.0", "0.0.0.0", "0.1.2.3", "127.0.0.1", "224.0.0.1", "240.0.0.1",
			"255.255.255.255",
			"ff02::9", "::", "::1", "::ffff:10.1.2.9"},
		RefusedOwnSource: {"10.1.2.3", "192.0.2.77", "fe80::1"},
	} {
		for _, s := range from {
			a := netip.MustParseAddr(s)
			_, to := hosts(a.Is6())
			t.Run("from "+s, func(t *testing.T) { verdictIs(t, ping(a, to), want) })
		}
	}
	for want, from := range map[Verdict][]uint16{
		AnsweredUDPv4:      {1024},
		RefusedServicePort: {0, 7, 13, 19, 53, 69, 123, 1023, 1434, 1900, 3702, 5353, 5355, 11211, 9000, 862}, // the last two are ours
	} {
		for _, port := range from {
			t.Run(fmt.Sprint("from port ", port), func(t *testing.T) {
				verdictIs(t, toUs(0, udp(their4, our4, port, 9000, nil)), want)
			})
		}
	}
}

// What follows an IPv6 header is an extension header registered by IANA, a fragment, or another protocol.
func TestNextHeaders(t *testing.T) {
	for next := range 256 {
		want := RefusedProtocol
		switch next {
		case 0, 43, 50, 51, 60, 135, 139, 140:
			want = RefusedExtension
		case 44:
			want = RefusedFragment
		case protocolUDP, protocolICMPv6:
			continue
		}
		f := find("ping6", 0)
		f[20] = byte(next)
		verdictIs(t, f, want)
	}
}

func TestVerdictNames(t *testing.T) {
	seen := map[string]Verdict{}
	for i := range Verdicts {
		v := Verdict(i)
		if other, twice := seen[v.String()]; twice || v.String() == "" || v.String() == "unknown" {
			t.Errorf("verdict %d has the name %q, as %d", v, v, other)
		}
		seen[v.String()] = v
	}
	for v, want := range map[Verdict]string{
		AnsweredSTAMPv6: "stampv6", RefusedShort: "short", RefusedHeaderChecksum: "header_checksum",
		RefusedSource: "source", RefusedICMP: "icmp_type", RefusedSTAMPShort: "stamp_short", RefusedND: "nd_invalid",
		Verdict(Verdicts): "unknown",
	} {
		if v.String() != want {
			t.Errorf("verdict %d is %q, want %q", v, v, want)
		}
	}
}
