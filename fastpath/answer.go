package fastpath

import (
	"math/bits"
	"unsafe"
)

// Ping4 answers an echo request over IPv4, what most askers send: it reports whether it has made the frame its reply, of the same
// length. It does what the leaves do for that kind, in their order, and leaves to Answer what any of them turns down, unchanged and
// uncounted.
//
// It is one function that is called, not leaves that are inlined into a Poll, and calls none that stays one: so it needs no frame on the
// stack, its values stay in registers, and none of the Poll's is stored but those that outlive the call. Loads are written by
// package unsafe for the same reason: each inlined call, encoding/binary's too, leaves a NOP behind. Both architectures are little-endian.
//
//go:noinline
func (r *Responder) Ping4(h *[64]byte, n int) bool {
	p := unsafe.Pointer(h)
	// Match: the type, version and IHL; flags and fragment offset without DF, and the protocol.
	if *(*uint32)(unsafe.Add(p, 12))&0xff_ffff != 0x45_0008 || *(*uint32)(unsafe.Add(p, 20))&0xff00_ffbf != 0x0100_0000 {
		return false
	}
	// IPv4, Sum4, Hosts4.
	packet := int(bits.ReverseBytes16(*(*uint16)(unsafe.Add(p, 16))))
	if packet < 28 || packet+14 != n && (packet+14 > n || n > 64) {
		return false
	}
	to, from := *(*uint64)(p)<<16, *(*uint64)(unsafe.Add(p, 6))
	s, d := *(*uint32)(unsafe.Add(p, 26)), *(*uint32)(unsafe.Add(p, 30))
	if !r.open {
		if to != r.mac || uint8(from)&1 != 0 || from<<16 == to {
			return false
		}
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
	// Admit: the checksum, and the source's rate. The first word is never of zeros alone, since it has the type.
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
		if uint8(left)&7 != 0 { // the last bytes are the high ones of the word that ends with them
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
	// EchoReply4, SetTTL, Swap4.
	const change = 8<<16 - 8
	w := *(*uint32)(unsafe.Add(p, 34)) + change
	if w < change {
		w += 1 << 16
	}
	*(*uint32)(unsafe.Add(p, 34)) = w
	if t := *(*uint32)(unsafe.Add(p, 22)); (uint8(t) != hopLimit || t >= 0xffff_0000) && !r.open {
		setHops4(h, hopLimit)
	}
	*(*uint64)(p) = from // the sender's MAC and the type, which the next store puts behind ours
	*(*uint64)(unsafe.Add(p, 6)) = to>>16 | 0x0008<<48
	*(*uint32)(unsafe.Add(p, 26)), *(*uint32)(unsafe.Add(p, 30)) = d, s
	r.stats[AnsweredICMPv4].Add(1)
	return true
}

// bounce4 is to a UDP datagram over IPv4, which Match has seen, what Ping4 is to an echo request, and made like it.
//
//go:noinline
func (r *Responder) bounce4(h *[64]byte, n int) bool {
	p := unsafe.Pointer(h)
	// IPv4, Sum4, Hosts4.
	packet := int(bits.ReverseBytes16(*(*uint16)(unsafe.Add(p, 16))))
	if packet < 28 || packet+14 != n && (packet+14 > n || n > 64) {
		return false
	}
	to, from := *(*uint64)(p)<<16, *(*uint64)(unsafe.Add(p, 6))
	s, d := *(*uint32)(unsafe.Add(p, 26)), *(*uint32)(unsafe.Add(p, 30))
	if !r.open {
		if to != r.mac || uint8(from)&1 != 0 || from<<16 == to {
			return false
		}
		if (*(*uint64)(unsafe.Add(p, 14))+uint64(*(*uint32)(unsafe.Add(p, 22)))+uint64(s)+uint64(d))%0xffff != 0 {
			return false
		}
		if r.own4[d*r.mul4>>shift4] != d || r.not4[s*r.mul4>>shift4] == s || uint8(s)-1 >= 223 || uint8(s) == 127 {
			return false
		}
	}
	// Ports4, Datagram4.
	ports, size := *(*uint32)(unsafe.Add(p, 34)), *(*uint16)(unsafe.Add(p, 38))
	if from, to := uint16(ports), ports>>16; r.echo[to>>6]>>(to&63)&1 == 0 || r.service[from>>6]>>(from&63)&1 != 0 || int(bits.ReverseBytes16(size)) != packet-20 {
		return false
	}
	pseudo := uint64(s) + uint64(d) + 0x1100 + uint64(size)
	if *(*uint8)(unsafe.Add(p, 22)) < 2 && !r.open || r.partial && (pseudo+0xffff-uint64(*(*uint16)(unsafe.Add(p, 40))))%0xffff == 0 {
		return false
	}
	// Admit: the checksum, zero of which is none (RFC 768), and the source's rate. The pseudo-header's sum is not zero.
	if packet <= r.checksumBytes && *(*uint16)(unsafe.Add(p, 40)) != 0 {
		sum, c := bits.Add64(pseudo, *(*uint64)(unsafe.Add(p, 34)), 0)
		sum, _ = bits.Add64(sum, 0, c)
		at, left := unsafe.Add(p, 42), packet-28
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
		if uint8(left)&7 != 0 { // the last bytes are the high ones of the word that ends with them
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
	// SwapPorts4, DecTTL, Swap4.
	*(*uint32)(unsafe.Add(p, 34)) = bits.RotateLeft32(*(*uint32)(unsafe.Add(p, 34)), 16)
	if !r.open {
		setHops4(h, min(h[22]-1, hopLimit))
	}
	*(*uint64)(p) = from // the sender's MAC and the type, which the next store puts behind ours
	*(*uint64)(unsafe.Add(p, 6)) = to>>16 | 0x0008<<48
	*(*uint32)(unsafe.Add(p, 26)), *(*uint32)(unsafe.Add(p, 30)) = d, s
	r.stats[AnsweredUDPv4].Add(1)
	return true
}

// again answers a request whose source was not at home, and has settled now.
//
//go:noinline
func (r *Responder) again(h *[64]byte, n int) bool {
	if !r.limit.meet(r.Loop.Start) {
		return false
	}
	k := Match(h)
	return k == ICMPv4 && r.Ping4(h, n) || k == UDPv4 && r.bounce4(h, n)
}

// Answer is for the frames that Ping4 has not answered. It returns the length of the reply that it has made of one, 0 where there is
// none.
//
//go:noinline
func (r *Responder) Answer(h *[64]byte, n int) int {
	switch k := Match(h); { // see the package's documentation for what the leaves ask of each other
	case k == UDPv4 && r.bounce4(h, n):
	case k == ICMPv6 && r.IPv6(h, n) && r.To6(h) && r.From6(h) && Echo6(h) && r.Admit(h, k):
		r.EchoReply6(h)
		Swap6(h)
	case k == UDPv6 && r.IPv6(h, n) && r.To6(h) && r.From6(h) && r.Ports6(h) && r.Datagram6(h) && r.Admit(h, k):
		r.SwapPorts6(h)
		Swap6(h)
	default:
		n = r.Slow(h, n)
	}
	return n
}
