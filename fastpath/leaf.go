package fastpath

import (
	"encoding/binary"
	"math/bits"
)

// The leaves are for packets without an Ethernet header (see doc.go): IPoIB's four bytes are before them, at h[10:14],
// and the packet is at its position in a frame. Each costs the compiler at most 80 nodes, so that it is inlined into
// AnswerPacket; a test checks this. Frames are not handled by leaves but by Reply, which does the same in fewer
// instructions. The leaves access the frame's head in the widest words that fit, little-endian on every machine: the
// offsets are constant, so each access is one load or store without a bounds check. A ones' complement sum of
// byte-swapped words is the byte-swapped sum (RFC 1071 §2 B), so sums need no swapping.
var le, be = binary.LittleEndian, binary.BigEndian

// Kind is the result of MatchIPoIB: the header fields that distinguish kinds, at their positions in the frame.
type Kind uint32

// The kinds that leaves answer. For IPv4, from the lowest bits up: flags and fragment offset without DF, version and
// IHL, and the protocol. For IPv6: a bit at the position of IPv4's DF, the version, and the next header.
const (
	ICMPv4 Kind = 0x01_45_0000
	UDPv4  Kind = 0x11_45_0000
	ICMPv6 Kind = 0x3a_60_0040
	UDPv6  Kind = 0x11_60_0040
)

// Sum4 reports whether the IPv4 header checksum is right, which is the case if the header's sum is a multiple of 65535;
// 2^16 is 1 modulo 65535, so wider words can be summed. No carry is lost: the fragment offset, which ends the first
// word, is zero.
func (r *Responder) Sum4(h *[64]byte) bool {
	return r.open || (le.Uint64(h[14:])+uint64(le.Uint32(h[22:]))+uint64(le.Uint32(h[26:]))+uint64(le.Uint32(h[30:])))%0xffff == 0
}

// Hosts4 reports whether an IPv4 packet is sent to one of our addresses from a unicast address that is not ours.
func (r *Responder) Hosts4(h *[64]byte) bool {
	s, d := le.Uint32(h[26:]), le.Uint32(h[30:])
	return r.open || r.own4[d*r.mul4>>shift4] == d && r.not4[s*r.mul4>>shift4] != s && h[26]-1 < 223 && h[26] != 127
}

// Echo4 reports whether an ICMPv4 message is an echo request. If RFC 1624 makes the reply's checksum zero, it returns
// false, because Slow determines whether that has to be 0xffff.
func Echo4(h *[64]byte) bool {
	w := le.Uint32(h[34:])
	return uint16(w) == 8 && w != 0xfff7_0008
}

// EchoReply4 turns an ICMPv4 echo request into its reply and counts it.
func (r *Responder) EchoReply4(h *[64]byte) {
	const change = 8<<16 - 8 // the type changes from 8 to 0, and the checksum increases by the same amount
	w := le.Uint32(h[34:]) + change
	if w < change { // end-around carry
		w += 1 << 16
	}
	le.PutUint32(h[34:], w)
	r.stats[AnsweredICMPv4].Add(1)
}

// SetTTL sets the reply's own TTL in Strict. Most requests have that TTL already and are unchanged, except for a
// checksum of ones, which RFC 1624 makes zero.
func (r *Responder) SetTTL(h *[64]byte) {
	if (h[22] != hopLimit || le.Uint16(h[24:]) == 0xffff) && !r.open {
		setHops4(h, hopLimit)
	}
}

// Ports4 reports whether a UDP datagram over IPv4 is sent to one of our echo ports from a port that is not a service,
// and fills its packet.
func (r *Responder) Ports4(h *[64]byte) bool {
	s, d := le.Uint16(h[34:]), le.Uint16(h[36:])
	return r.echo[d>>6]>>(d&63)&1 != 0 && r.service[s>>6]>>(s&63)&1 == 0 && be.Uint16(h[38:])+20 == be.Uint16(h[16:])
}

// Datagram4 reports whether a UDP datagram can be sent back as it is: its TTL can be decremented, and its checksum is
// not just the sum of the pseudo-header, which Slow completes if Config.PartialChecksums is set.
func (r *Responder) Datagram4(h *[64]byte) bool {
	w := uint64(le.Uint32(h[26:])) + uint64(le.Uint32(h[30:])) + 0x1100 + uint64(le.Uint16(h[38:]))
	return (r.open || h[22] > 1) && !(r.partial && (w+0xffff-uint64(le.Uint16(h[40:])))%0xffff == 0)
}

// SwapPorts4 swaps the ports of a UDP datagram and counts it.
func (r *Responder) SwapPorts4(h *[64]byte) {
	le.PutUint32(h[34:], bits.RotateLeft32(le.Uint32(h[34:]), 16))
	r.stats[AnsweredUDPv4].Add(1)
}

// DecTTL makes the reply's TTL less than the request's in Strict, so that a datagram that bounces between two
// responders expires.
func (r *Responder) DecTTL(h *[64]byte) {
	if !r.open {
		setHops4(h, min(h[22]-1, hopLimit))
	}
}

// setHops4 sets the TTL and updates the header checksum (RFC 1624 eqn. 3).
func setHops4(h *[64]byte, ttl uint8) {
	s := uint32(^le.Uint16(h[24:])) + 0xffff - uint32(h[22]) + uint32(ttl)
	s = s&0xffff + s>>16
	h[22] = ttl
	le.PutUint16(h[24:], ^uint16(s+s>>16)) // the first fold can carry again
}

// Message reports whether a message is to be sent back: it is not a reply of a responder, and its sender is within its
// rate, to which the reply is charged. A sender is a number that the driver derives from the device's information; its
// lowest bits should differ most. imm is the message's immediate data, 0 if there is none. A message that Message turns
// down goes to Unsettled.
func (r *Responder) Message(sender uint64, imm uint32) bool {
	return imm != ReplyMark && r.limit.at(r.Loop.Start, sender*messageHash)
}

// Returned counts a message that is sent back.
func (r *Responder) Returned() { r.stats[AnsweredMessage].Add(1) }

// To6 reports whether an IPv6 packet is sent to one of our addresses.
func (r *Responder) To6(h *[64]byte) bool {
	a := ip6{le.Uint64(h[38:]), le.Uint64(h[46:])}
	o := &r.own6[(a.hi+a.lo*r.mul6)*r.mul6>>shift6]
	return r.open || o.hi == a.hi && o.lo == a.lo
}

// From6 reports whether an IPv6 packet is from a unicast address that is not ours. It refuses all of ::/64, which only
// contains addresses that never appear on a wire: unspecified, loopback, and IPv4-mapped and IPv4-compatible ones.
func (r *Responder) From6(h *[64]byte) bool {
	a := ip6{le.Uint64(h[22:]), le.Uint64(h[30:])}
	o := &r.own6[(a.hi+a.lo*r.mul6)*r.mul6>>shift6]
	return r.open || a.hi != 0 && h[22] != 0xff && (o.hi != a.hi || o.lo != a.lo)
}

// Echo6 reports whether an ICMPv6 message is an echo request.
func Echo6(h *[64]byte) bool { return le.Uint16(h[54:]) == 128 }

// EchoReply6 is for IPv6 what EchoReply4 and SetTTL are for IPv4.
func (r *Responder) EchoReply6(h *[64]byte) {
	s := ^le.Uint32(h[54:])>>16 + 1 // the type, in the low byte, increases by one
	le.PutUint32(h[54:], ^(s+s>>16)<<16|129)
	r.stats[AnsweredICMPv6].Add(1)
	if !r.open {
		h[21] = hopLimit
	}
}

// Ports6 is for IPv6 what Ports4 is for IPv4. It also refuses a datagram without a checksum (RFC 8200 §8.1).
func (r *Responder) Ports6(h *[64]byte) bool {
	s, d := le.Uint16(h[54:]), le.Uint16(h[56:])
	return r.echo[d>>6]>>(d&63)&1 != 0 && r.service[s>>6]>>(s&63)&1 == 0 &&
		be.Uint16(h[58:]) == be.Uint16(h[18:]) && le.Uint16(h[60:]) != 0
}

// Datagram6 is for IPv6 what Datagram4 is for IPv4, but returns false for every datagram if checksums may be partial,
// so that Slow handles it.
func (r *Responder) Datagram6(h *[64]byte) bool { return !r.partial && (r.open || h[21] > 1) }

// SwapPorts6 is for IPv6 what SwapPorts4 and DecTTL are for IPv4.
func (r *Responder) SwapPorts6(h *[64]byte) {
	le.PutUint32(h[54:], bits.RotateLeft32(le.Uint32(h[54:]), 16))
	r.stats[AnsweredUDPv6].Add(1)
	if !r.open {
		h[21] = min(h[21]-1, hopLimit)
	}
}

// MatchIPoIB returns the kind of a packet: one of the constants for ICMP and UDP in an unfragmented IPv4 packet without
// options or an IPv6 packet without extension headers, and another value for every other packet.
func MatchIPoIB(h *[64]byte) Kind {
	switch le.Uint32(h[10:]) {
	case 0x0008:
		return Kind(le.Uint32(h[12:])&0xff_0000 | le.Uint32(h[20:])&0xff00_ffbf)
	case 0xdd86:
		return Kind(le.Uint32(h[12:])&0xf0_0000 | le.Uint32(h[20:])<<24 | 0x40)
	}
	return 0
}

// Packet4 reports whether a packet from station from, which must not be a group, is addressed to us and not sent by us,
// fills the n bytes from h on, and can contain an ICMP or UDP header.
func (r *Responder) Packet4(h *[64]byte, n int, to, from LinkAddress) bool {
	l := int(be.Uint16(h[16:])) + 14
	return l >= 42 && l == n && (r.open || uint64(to) == r.mac && uint64(from) != r.mac)
}

// Packet6 is for IPv6 what Packet4 is for IPv4.
func (r *Responder) Packet6(h *[64]byte, n int, to, from LinkAddress) bool {
	l := int(be.Uint16(h[18:])) + 54
	return l >= 62 && l == n && (r.open || uint64(to) == r.mac && uint64(from) != r.mac)
}

// Turn4 exchanges source and destination of an IPv4 packet.
func Turn4(h *[64]byte) { le.PutUint64(h[26:], bits.RotateLeft64(le.Uint64(h[26:]), 32)) }

// Turn6 exchanges source and destination of an IPv6 packet.
func Turn6(h *[64]byte) {
	a := *(*[16]byte)(h[22:])
	*(*[16]byte)(h[22:]) = *(*[16]byte)(h[38:])
	*(*[16]byte)(h[38:]) = a
}
