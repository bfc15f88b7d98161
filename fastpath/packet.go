package fastpath

import (
	"math/bits"
	"unsafe"
)

// LinkAddress is a station's MAC in the format that the leaves compare: six bytes as a little-endian machine loads
// them, shifted left by 16.
type LinkAddress uint64

// NewLinkAddress returns the LinkAddress of a MAC.
func NewLinkAddress(mac [6]byte) LinkAddress {
	return LinkAddress(le.Uint64([]byte{0, 0, mac[0], mac[1], mac[2], mac[3], mac[4], mac[5]}))
}

// PingPacket4 is Reply for an echo request over IPv4 without an Ethernet header (see doc.go), sent by station from,
// which must not be a group, to station to, and filling the n bytes from h on. It leaves long ones to AnswerPacket.
// Reply is a separate function, because distinguishing frames from packets would cost both.
//
//go:noinline
func (r *Responder) PingPacket4(h *[64]byte, n int, to, from LinkAddress) bool {
	p := unsafe.Pointer(h)
	// Match: IPoIB's encapsulation, version and IHL; flags and fragment offset without DF, and the protocol.
	e := *(*uint64)(unsafe.Add(p, 10))
	if e&0xff_ffff_ffff != 0x45_0000_0008 || *(*uint32)(unsafe.Add(p, 20))&0xff00_ffbf != 0x0100_0000 {
		return false
	}
	// Packet4, Sum4, Hosts4.
	packet := int(bits.ReverseBytes16(uint16(e >> 48)))
	if packet < 28 || packet+14 != n || packet >= 28+wideBytes {
		return false
	}
	s := *(*uint32)(unsafe.Add(p, 26))
	if !r.open {
		if uint64(to) != r.mac || uint64(from) == r.mac {
			return false
		}
		d := *(*uint32)(unsafe.Add(p, 30))
		if (*(*uint64)(unsafe.Add(p, 14))+uint64(*(*uint32)(unsafe.Add(p, 22)))+uint64(s)+uint64(d))%0xffff != 0 {
			return false
		}
		if r.own4[d*r.mul4>>shift4] != d || r.not4[s*r.mul4>>shift4] == s || uint8(s)-1 >= 223 || uint8(s) == 127 {
			return false
		}
	}
	// Echo4.
	if w := *(*uint32)(unsafe.Add(p, 34)); uint16(w) != 8 || w == 0xfff7_0008 {
		return false
	}
	// Admit.
	if packet <= r.checksumBytes {
		var c uint64
		sum, at, left := *(*uint64)(unsafe.Add(p, 34)), unsafe.Add(p, 42), packet-28
		if uint8(left)&16 != 0 {
			sum, c = bits.Add64(sum, *(*uint64)(at), 0)
			sum, c = bits.Add64(sum, *(*uint64)(unsafe.Add(at, 8)), c)
			sum, _ = bits.Add64(sum, 0, c)
			at = unsafe.Add(at, 16)
		}
		if uint8(left)&8 != 0 {
			sum, c = bits.Add64(sum, *(*uint64)(at), 0)
			sum, _ = bits.Add64(sum, 0, c)
			at = unsafe.Add(at, 8)
		}
		if uint8(left)&7 != 0 {
			sum, c = bits.Add64(sum, *(*uint64)(unsafe.Add(p, packet+6))>>(-8*left&63), 0)
			sum, _ = bits.Add64(sum, 0, c)
		}
		for ; left >= 32; left -= 32 {
			sum, c = bits.Add64(sum, *(*uint64)(at), 0)
			sum, c = bits.Add64(sum, *(*uint64)(unsafe.Add(at, 8)), c)
			sum, c = bits.Add64(sum, *(*uint64)(unsafe.Add(at, 16)), c)
			sum, c = bits.Add64(sum, *(*uint64)(unsafe.Add(at, 24)), c)
			sum, _ = bits.Add64(sum, 0, c)
			at = unsafe.Add(at, 32)
		}
		if !multiple(sum) {
			return false
		}
	}
	source := uint64(s) * 0x9e37_79b9_7f4a_7c15
	f := &r.limit.places[source>>slotShift]
	if (f.source^source)&r.limit.tag != 0 {
		r.limit.unsettled = source
		return false
	}
	now := r.Loop.Start << fraction
	if ahead := f.full - now; ahead <= r.limit.most {
		if ahead > r.limit.burst {
			return false
		}
		now = f.full
	}
	f.full = now + r.limit.cost
	// EchoReply4, SetTTL, Turn4.
	const change = 8<<16 - 8
	w := *(*uint32)(unsafe.Add(p, 34)) + change
	if w < change {
		w += 1 << 16
	}
	*(*uint32)(unsafe.Add(p, 34)) = w
	if t := *(*uint32)(unsafe.Add(p, 22)); (uint8(t) != hopLimit || t >= 0xffff_0000) && !r.open {
		setHops4(h, hopLimit)
	}
	*(*uint64)(unsafe.Add(p, 26)) = bits.RotateLeft64(*(*uint64)(unsafe.Add(p, 26)), 32)
	r.stats[AnsweredICMPv4].Add(1)
	return true
}

// againPacket answers an echo request whose source was not at home, and has been settled now.
//
//go:noinline
func (r *Responder) againPacket(h *[64]byte, n int, to, from LinkAddress) bool {
	return r.limit.meet(r.Loop.Start) && MatchIPoIB(h) == ICMPv4 && r.PingPacket4(h, n, to, from)
}

// AnswerPacket is for the packets that PingPacket4 has not answered: other kinds, and long ones. It reports whether it
// has turned the packet into its reply, of the same length. A packet that it turns down goes to Slow, with an Ethernet
// header that represents it.
//
//go:noinline
func (r *Responder) AnswerPacket(h *[64]byte, n int, to, from LinkAddress) bool {
	switch k := MatchIPoIB(h); { // see the package documentation for the order of the leaves
	case r.limit.unsettled != 0 && r.againPacket(h, n, to, from):
	case k == ICMPv4 && r.Packet4(h, n, to, from) && r.Sum4(h) && r.Hosts4(h) && Echo4(h) && r.Admit(h, k):
		r.EchoReply4(h)
		r.SetTTL(h)
		Turn4(h)
	case k == UDPv4 && r.Packet4(h, n, to, from) && r.Sum4(h) && r.Hosts4(h) && r.Ports4(h) && r.Datagram4(h) && r.Admit(h, k):
		r.SwapPorts4(h)
		r.DecTTL(h)
		Turn4(h)
	case k == ICMPv6 && r.Packet6(h, n, to, from) && r.To6(h) && r.From6(h) && Echo6(h) && r.Admit(h, k):
		r.EchoReply6(h)
		Turn6(h)
	case k == UDPv6 && r.Packet6(h, n, to, from) && r.To6(h) && r.From6(h) && r.Ports6(h) && r.Datagram6(h) && r.Admit(h, k):
		r.SwapPorts6(h)
		Turn6(h)
	default:
		return false
	}
	return true
}
