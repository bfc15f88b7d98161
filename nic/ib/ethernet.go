package ib

import (
	"encoding/binary"

	"github.com/rebound-nic/rebound/cksum"
)

// The responder and the bench work on Ethernet frames. On an InfiniBand port, the driver converts packets to Ethernet
// frames that only this host sees: an Ethernet header replaces the encapsulation, and ARP and neighbour discovery carry
// six-byte addresses. The MAC of a host on the subnet is made from its LID and queue pair number, 40 bits: 02, LID,
// queue pair.

const (
	HeaderSize  = 14                      // Ethernet header
	arpSize     = 8 + 2*AddressSize + 2*4 // RFC 4391 §9.1.2
	arpEthernet = 8 + 2*6 + 2*4           // RFC 826

	hardwareEthernet, hardwareInfiniBand = 1, 32

	nextICMPv6                  = 58
	solicitation, advertisement = 135, 136
	neighbourSize               = 24 // a solicitation or advertisement, without options
	optionSource, optionTarget  = 1, 2
	optionIPoIB                 = 3 // in units of 8 bytes: 2 zero bytes between length and address (RFC 4391 §9.3)
)

// Station returns the made-up MAC of a queue pair (24 bits) at a LID (16 bits). LID 0 is never assigned: it stands for
// the port itself.
func Station(lid uint16, qpn uint32) [6]byte {
	return [6]byte{2, byte(lid >> 8), byte(lid), byte(qpn >> 16), byte(qpn >> 8), byte(qpn)}
}

// ParseStation is the inverse of Station. It reports false if mac does not identify another host's queue pair.
func ParseStation(mac [6]byte) (lid uint16, qpn uint32, ok bool) {
	lid = binary.BigEndian.Uint16(mac[1:])
	return lid, binary.BigEndian.Uint32(mac[2:]) & 0xFFFFFF, mac[0] == 2 && lid != 0 && lid < 0xC000
}

// GroupMAC returns the Ethernet address of the IP multicast group that mgid stands for (RFC 1112 §6.4, RFC 2464 §7).
func GroupMAC(mgid GID) [6]byte {
	low := binary.BigEndian.Uint32(mgid[12:])
	switch {
	case binary.BigEndian.Uint16(mgid[2:]) == signature6:
		return [6]byte{0x33, 0x33, byte(low >> 24), byte(low >> 16), byte(low >> 8), byte(low)}
	case low == 0xFFFFFFFF:
		return [6]byte{0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF}
	}
	return [6]byte{0x01, 0x00, 0x5E, byte(low>>16) & 0x7F, byte(low >> 8), byte(low)}
}

// Neighbour reports whether a payload (encapsulation and packet) carries hardware addresses: ARP, or a neighbour
// solicitation or advertisement.
func Neighbour(p []byte) bool {
	if len(p) < EncapSize {
		return false
	}
	switch binary.BigEndian.Uint16(p) {
	case EtherTypeARP:
		return true
	case EtherTypeIPv6:
		p = p[EncapSize:]
		return len(p) > 40 && p[6] == nextICMPv6 && (p[40] == solicitation || p[40] == advertisement)
	}
	return false
}

// ToEthernet writes the frame that represents a payload into f and returns its length and the hardware address that the
// sender gives in it (zero if it gives none), which the frame shows as from. It reports false for anything but IP and
// ARP, and for messages with malformed addresses. f must have room for HeaderSize bytes more than the packet.
// ToEthernet does not allocate.
func ToEthernet(f, p []byte, to, from [6]byte) (n int, sender Address, ok bool) {
	if len(p) < EncapSize || len(f) < HeaderSize+len(p)-EncapSize {
		return 0, Address{}, false
	}
	kind := binary.BigEndian.Uint16(p)
	copy(f, to[:])
	copy(f[6:], from[:])
	binary.BigEndian.PutUint16(f[12:], kind)
	neighbour, out, p := Neighbour(p), f[HeaderSize:], p[EncapSize:]
	switch {
	case kind == EtherTypeARP:
		if len(p) < arpSize || !arpHead(p, hardwareInfiniBand, AddressSize) {
			return 0, Address{}, false
		}
		sender = Address(p[8:])
		copy(out, p[:8])
		out[1], out[4] = hardwareEthernet, 6
		copy(out[8:], from[:])
		copy(out[14:], p[28:32])
		var target [6]byte
		if p[7] == 2 {
			target = to
		}
		copy(out[18:], target[:])
		copy(out[24:], p[52:56])
		n = arpEthernet
	case neighbour:
		n, sender, ok = options(out, p, optionIPoIB, 1, func(b []byte) { copy(b[2:], from[:]) })
		return HeaderSize + n, sender, ok
	case kind == EtherTypeIPv4 || kind == EtherTypeIPv6:
		n = copy(out, p)
	default:
		return 0, Address{}, false
	}
	return HeaderSize + n, sender, true
}

// FromEthernet writes the payload that one of our frames represents into p and returns its length, without Ethernet
// padding. own is our hardware address, peer that of the receiver of an ARP reply. It reports false if the frame has no
// such payload or p is too small: an ARP packet grows by 28 bytes, a neighbour discovery message by 16. FromEthernet
// does not allocate.
func FromEthernet(p, f []byte, own, peer Address) (n int, ok bool) {
	if len(f) < HeaderSize || len(p) < EncapSize {
		return 0, false
	}
	kind := binary.BigEndian.Uint16(f[12:])
	Encapsulate(p, kind)
	f, out := f[HeaderSize:], p[EncapSize:]
	switch kind {
	case EtherTypeARP:
		if len(f) < arpEthernet || len(out) < arpSize || !arpHead(f, hardwareEthernet, 6) {
			return 0, false
		}
		copy(out, f[:8])
		out[1], out[4] = hardwareInfiniBand, AddressSize
		copy(out[8:], own[:])
		copy(out[28:], f[14:18])
		if f[7] == 1 {
			peer = Address{} // unknown: this is what the request asks for
		}
		copy(out[32:], peer[:])
		copy(out[52:], f[24:28])
		return EncapSize + arpSize, true
	case EtherTypeIPv4:
		if len(f) < 20 {
			return 0, false
		}
		f = f[:min(len(f), max(20, int(binary.BigEndian.Uint16(f[2:]))))]
	case EtherTypeIPv6:
		if len(f) < 40 {
			return 0, false
		}
		f = f[:min(len(f), 40+int(binary.BigEndian.Uint16(f[4:])))]
		if len(f) > 40 && f[6] == nextICMPv6 && (f[40] == solicitation || f[40] == advertisement) {
			n, _, ok = options(out, f, 1, optionIPoIB, func(b []byte) { copy(b[4:], own[:]) })
			return EncapSize + n, ok
		}
	default:
		return 0, false
	}
	if len(out) < len(f) {
		return 0, false
	}
	return EncapSize + copy(out, f), true
}

// arpHead reports whether b is an ARP request or reply for IPv4 with the given hardware type and address size.
func arpHead(b []byte, hardware, size byte) bool {
	return b[0] == 0 && b[1] == hardware && binary.BigEndian.Uint16(b[2:]) == EtherTypeIPv4 && b[4] == size &&
		b[5] == 4 && b[6] == 0 && (b[7] == 1 || b[7] == 2)
}

// options copies a neighbour discovery message, an IPv6 packet, and replaces its link-layer address options of from
// units by options of to units (8 bytes each), which put fills in. It returns the new length and the address in the
// last such option. The checksum stays correct if it was correct, and wrong if it was wrong.
func options(out, p []byte, from, to int, put func(option []byte)) (n int, sender Address, ok bool) {
	l := int(binary.BigEndian.Uint16(p[4:]))
	if l < neighbourSize || 40+l != len(p) || len(out) < 40+neighbourSize {
		return 0, Address{}, false
	}
	m := p[40:]
	n = copy(out, p[:40+neighbourSize])
	for o := m[neighbourSize:]; len(o) > 0; {
		if len(o) < 8 || o[1] == 0 || len(o) < 8*int(o[1]) {
			return 0, Address{}, false
		}
		size := 8 * int(o[1])
		link := o[0] == optionSource || o[0] == optionTarget
		grown := size
		if link {
			if int(o[1]) != from {
				return 0, Address{}, false
			}
			grown = 8 * to
		}
		if len(out)-n < grown {
			return 0, Address{}, false
		}
		b := out[n : n+grown]
		n += grown
		if !link {
			copy(b, o)
		} else {
			clear(b)
			b[0], b[1] = o[0], byte(to)
			put(b)
			if from == optionIPoIB {
				sender = Address(o[4:])
			}
		}
		o = o[size:]
	}
	binary.BigEndian.PutUint16(out[4:], uint16(n-40))
	was, is := cksum.Sum(m, uint16(len(m))), cksum.Sum(out[40:n], uint16(n-40))
	binary.BigEndian.PutUint16(out[42:], cksum.Update16(binary.BigEndian.Uint16(out[42:]), was, is))
	return n, sender, true
}
