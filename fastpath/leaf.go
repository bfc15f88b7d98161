package fastpath

import (
	"encoding/binary"
	"math/bits"
)

// The leaves, for packets without an Ethernet header (see doc.go): IPoIB's four bytes are in front of them, at h[10:14], and the packet is where
// it is in a frame. Each costs the compiler at most 80 nodes, so that it is inlined where it is called, in AnswerPacket; a test holds that.
// Frames go by no leaves, but by Reply, which does the same in fewer instructions. The leaves read and write the frame's head in the widest words that fit, little-endian whatever the machine: the offsets are constant,
// so each is one load or store without a bounds check. A ones' complement sum of byte-swapped words is the byte-swapped
// sum (RFC 1071 §2 B), so sums need no swapping.
var le, be = binary.LittleEndian, binary.BigEndian

// Kind is what MatchIPoIB sees in a frame's head: the header fields that tell kinds apart, as they lie there.
type Kind uint32

// The kinds that leaves answer. Of IPv4, from the lowest bits up: flags and fragment offset without DF, version and IHL, and
// the protocol. Of IPv6: a bit where IPv4's DF would be, the version, and the next header.
const (
	ICMPv4 Kind = 0x01_45_0000
	UDPv4  Kind = 0x11_45_0000
	ICMPv6 Kind = 0x3a_60_0040
	UDPv6  Kind = 0x11_60_0040
)

// Sum4 reports whether the IPv4 header checksum is right: whether the header's sum is a multiple of 65535, modulo which 2^16
// is 1, so that wider words serve. No carry is lost: the fragment offset, which ends the first of them, is zero.
func (r *Responder) Sum4(h *[64]byte) bool {
	return r.open || (le.Uint64(h[14:])+uint64(le.Uint32(h[22:]))+uint64(le.Uint32(h[26:]))+uint64(le.Uint32(h[30:])))%0xffff == 0
}

// Hosts4 reports whether an IPv4 packet is to an address of ours from a unicast one that is not ours.
func (r *Responder) Hosts4(h *[64]byte) bool {
	s, d := le.Uint32(h[26:]), le.Uint32(h[30:])
	return r.open || r.own4[d*r.mul4>>shift4] == d && r.not4[s*r.mul4>>shift4] != s && h[26]-1 < 223 && h[26] != 127
}

// Echo4 reports whether an ICMPv4 message is an echo request. The one whose reply's checksum is zero by RFC 1624 is left to
// Slow, which knows whether that has to be 0xffff.
func Echo4(h *[64]byte) bool {
	w := le.Uint32(h[34:])
	return uint16(w) == 8 && w != 0xfff7_0008
}

// EchoReply4 turns an ICMPv4 echo request into its reply and counts it.
func (r *Responder) EchoReply4(h *[64]byte) {
	const change = 8<<16 - 8 // the type goes from 8 to 0, the checksum up by as much
	w := le.Uint32(h[34:]) + change
	if w < change { // end-around carry
		w += 1 << 16
	}
	le.PutUint32(h[34:], w)
	r.stats[AnsweredICMPv4].Add(1)
}

// SetTTL gives the reply its own TTL in Strict. Most requests have that TTL already and stay as they are, except for
// a checksum of ones, which RFC 1624 makes zero.
func (r *Responder) SetTTL(h *[64]byte) {
	if (h[22] != hopLimit || le.Uint16(h[24:]) == 0xffff) && !r.open {
		setHops4(h, hopLimit)
	}
}

// Ports4 reports whether a UDP datagram over IPv4 is to an echo port of ours from a port that is no service, and fills
// its packet.
func (r *Responder) Ports4(h *[64]byte) bool {
	s, d := le.Uint16(h[34:]), le.Uint16(h[36:])
	return r.echo[d>>6]>>(d&63)&1 != 0 && r.service[s>>6]>>(s&63)&1 == 0 && be.Uint16(h[38:])+20 == be.Uint16(h[16:])
}

// Datagram4 reports whether a UDP datagram can be sent back as it is: its TTL can be lowered, and its checksum is not, where
// Config.PartialChecksums is set, the pseudo-header's sum alone, which Slow completes.
func (r *Responder) Datagram4(h *[64]byte) bool {
	w := uint64(le.Uint32(h[26:])) + uint64(le.Uint32(h[30:])) + 0x1100 + uint64(le.Uint16(h[38:]))
	return (r.open || h[22] > 1) && !(r.partial && (w+0xffff-uint64(le.Uint16(h[40:])))%0xffff == 0)
}

// SwapPorts4 swaps the ports of a UDP datagram and counts it.
func (r *Responder) SwapPorts4(h *[64]byte) {
	le.PutUint32(h[34:], bits.RotateLeft32(le.Uint32(h[34:]), 16))
	r.stats[AnsweredUDPv4].Add(1)
}

// DecTTL makes the reply's TTL less than the request's in Strict, so that what bounces between two responders ends.
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

// Message reports whether a message is to be sent back: it is no responder's reply, and its sender is within its rate, which
// it takes the reply from. A sender is a number that the driver makes of what the device says of it, of which its lowest bits
// differ most. imm is the message's immediate data, 0 without. What Message turns down is left to Unsettled.
func (r *Responder) Message(sender uint64, imm uint32) bool {
	return imm != ReplyMark && r.limit.at(r.Loop.Start, sender*messageHash)
}

// Returned counts a message that is sent back.
func (r *Responder) Returned() { r.stats[AnsweredMessage].Add(1) }

// To6 reports whether an IPv6 packet is to an address of ours.
func (r *Responder) To6(h *[64]byte) bool {
	a := ip6{le.Uint64(h[38:]), le.Uint64(h[46:])}
	o := &r.own6[(a.hi+a.lo*r.mul6)*r.mul6>>shift6]
	return r.open || o.hi == a.hi && o.lo == a.lo
}

// From6 reports whether an IPv6 packet is from a unicast address that is not ours. It refuses all of ::/64, where only
// addresses lie that never go on a wire: unspecified, loopback, and IPv4's in IPv6's clothes.
func (r *Responder) From6(h *[64]byte) bool {
	a := ip6{le.Uint64(h[22:]), le.Uint64(h[30:])}
	o := &r.own6[(a.hi+a.lo*r.mul6)*r.mul6>>shift6]
	return r.open || a.hi != 0 && h[22] != 0xff && (o.hi != a.hi || o.lo != a.lo)
}

// Echo6 reports whether an ICMPv6 message is an echo request.
func Echo6(h *[64]byte) bool { return le.Uint16(h[54:]) == 128 }

// EchoReply6 is for IPv6 what EchoReply4 and SetTTL are for IPv4.
func (r *Responder) EchoReply6(h *[64]byte) {
	s := ^le.Uint32(h[54:])>>16 + 1 // the type, in the low byte, grows by one
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

// Datagram6 is for IPv6 what Datagram4 is for IPv4, and leaves every datagram to Slow where checksums may be partial.
func (r *Responder) Datagram6(h *[64]byte) bool { return !r.partial && (r.open || h[21] > 1) }

// SwapPorts6 is for IPv6 what SwapPorts4 and DecTTL are for IPv4.
func (r *Responder) SwapPorts6(h *[64]byte) {
	le.PutUint32(h[54:], bits.RotateLeft32(le.Uint32(h[54:]), 16))
	r.stats[AnsweredUDPv6].Add(1)
	if !r.open {
		h[21] = min(h[21]-1, hopLimit)
	}
}

// MatchIPoIB returns the kind of a packet: one of the constants, or another value for every packet that is not an unfragmented IPv4 packet
// without options or an IPv6 packet without extension headers, of ICMP or UDP.
func MatchIPoIB(h *[64]byte) Kind {
	switch le.Uint32(h[10:]) {
	case 0x0008:
		return Kind(le.Uint32(h[12:])&0xff_0000 | le.Uint32(h[20:])&0xff00_ffbf)
	case 0xdd86:
		return Kind(le.Uint32(h[12:])&0xf0_0000 | le.Uint32(h[20:])<<24 | 0x40)
	}
	return 0
}

// Packet4 reports whether a packet that came from station from, no group, is to us and not from us, and fills the n bytes from h on, and can
// hold an ICMP or UDP header.
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
