package fastpath

import (
	"math/bits"
	"unsafe"

	"github.com/rebound-nic/rebound/cksum"
	"github.com/rebound-nic/rebound/polling"
)

// wideBytes is the number of bytes after a segment's first eight from which a call of cksum.Blocks costs less than the
// loop.
const wideBytes = 128

// LongFrame is the length of the shortest frame for which a driver sets Responder.Verified: summing a shorter one costs
// less than checking the device's result.
const LongFrame = 14 + 28 + wideBytes

// The kinds that Reply answers. An echo request over IPv4 is 0, and those over IPv6 are the last.
const (
	echo4 = iota
	udp4
	stamp4
	echo6
	udp6
	stamp6
)

// Offsets of fields from p: 14 bytes before the packet, so those of an untagged frame. seg4 and seg6 are where the
// segment begins.
const (
	etherType = 12

	ip4Version, ip4Length, ip4Fragment, ip4TTL, ip4Src, ip4Dst, seg4 = 14, 16, 20, 22, 26, 30, 34 // RFC 791 §3.1

	ip6Length, ip6HopLimit, ip6Src, ip6Dst, seg6 = 18, 21, 22, 38, 54 // RFC 8200 §3

	udpChecksum = 6 // from the segment
)

// Offsets of a STAMP test packet's fields from its UDP checksum (RFC 8762 §4.3.1).
const (
	stampSequence, stampTime, stampError, stampReceived                    = 2, 6, 14, 18
	stampSenderSequence, stampSenderTime, stampSenderError, stampSenderTTL = 26, 30, 38, 42
)

// Reply answers the most frequent requests: echo requests, datagrams and test packets over IPv4 and IPv6, untagged or
// with one 802.1Q tag. It reports whether it has turned the frame into its reply, of the same length. A frame that it
// turns down is unchanged and not counted, and goes to Slow.
//
// It is one function that is called, rather than leaves inlined into a Poll, and calls no other: so it needs no stack
// frame, its values stay in registers, and only those of the Poll's values that outlive the call are stored. For a long
// packet it therefore returns to Slow, which has the payload summed and calls it again. For the same reason, loads use
// package unsafe: each inlined call, including those of encoding/binary, leaves a NOP behind. Both architectures are
// little-endian.
//
//go:noinline
func (r *Responder) Reply(h *[64]byte, n int) bool {
	p, us := unsafe.Pointer(h), r.mac // the packet is 14 bytes after p
	w := *(*uint32)(unsafe.Add(p, etherType))
	if uint16(w) == 0x0081 {
		id := bits.ReverseBytes16(uint16(w>>16)) & 0xfff
		if r.vlans[id>>6]>>(id&63)&1 == 0 {
			return false
		}
		p, n, us = unsafe.Add(p, 4), n-4, r.macTagged
		w = *(*uint32)(unsafe.Add(p, etherType))
	}
	if !r.skip.macs {
		to, from := *(*uint64)(unsafe.Pointer(h))<<16, *(*uint64)(unsafe.Add(unsafe.Pointer(h), 6))
		if to != us || uint8(from)&1 != 0 || from<<16 == us {
			return false
		}
	}
	kind := echo4
	var sum, c, source uint64
	var left int          // bytes to be summed after the segment's first eight
	var at unsafe.Pointer // their address
	x := *(*uint32)(unsafe.Add(p, ip4Fragment))
	switch {
	case w&0xff_ffff == 0x45_0008 && x&0xffbf == 0: // IPv4, no options, no fragment
		left = int(bits.ReverseBytes16(*(*uint16)(unsafe.Add(p, ip4Length)))) - 28
		if left < 0 || left+42 != n && (left+42 > n || n > 64) {
			return false
		}
		s, d := *(*uint32)(unsafe.Add(p, ip4Src)), *(*uint32)(unsafe.Add(p, ip4Dst))
		if !r.skip.hosts {
			if (*(*uint64)(unsafe.Add(p, ip4Version))+uint64(*(*uint32)(unsafe.Add(p, ip4TTL)))+
				uint64(s)+uint64(d))%0xffff != 0 {
				return false
			}
			if r.own4[d*r.mul4>>shift4] != d || r.not4[s*r.mul4>>shift4] == s || uint8(s)-1 >= 223 || uint8(s) == 127 {
				return false
			}
		}
		sum, at, source = *(*uint64)(unsafe.Add(p, seg4)), unsafe.Add(p, seg4+8), uint64(s)*0x9e37_79b9_7f4a_7c15
		switch x >> 24 {
		case protocolICMP: // if the reply's checksum becomes zero, Slow determines which zero is correct
			if uint16(sum) != 8 || uint32(sum) == 0xfff7_0008 {
				return false
			}
		case protocolUDP:
			from, to := uint16(sum), uint16(sum>>16)
			kind = udp4
			if r.echo[to>>6]>>(to&63)&1 == 0 {
				if r.reflects[to>>6]>>(to&63)&1 == 0 || left < stampLength || left > r.stampMost ||
					r.stamps == maxStamps {
					return false
				}
				kind = stamp4
			}
			if r.service[from>>6]>>(from&63)&1 != 0 || int(bits.ReverseBytes16(uint16(sum>>32))) != left+8 {
				return false
			}
			if *(*uint8)(unsafe.Add(p, ip4TTL)) < 2 && !r.skip.hops {
				return false
			}
			pseudo := uint64(s) + uint64(d) + 0x1100 + uint64(uint16(sum>>32))
			if r.partial && (pseudo+0xffff-sum>>48)%0xffff == 0 {
				return false
			}
			if sum>>48 != 0 {
				sum, c = bits.Add64(sum, pseudo, 0)
				sum, _ = bits.Add64(sum, 0, c)
			} else { // no checksum (RFC 768)
				sum, left = 0, 0
			}
		default:
			return false
		}
	case w&0xf0_ffff == 0x60_dd86: // IPv6
		left = int(bits.ReverseBytes16(*(*uint16)(unsafe.Add(p, ip6Length)))) - 8
		if left < 0 || left+62 != n && (left+62 > n || n > 64) {
			return false
		}
		head := *(*uint64)(unsafe.Add(p, seg6))
		switch uint8(x) {
		case protocolICMPv6:
			if uint16(head) != 128 {
				return false
			}
			kind = echo6
		case protocolUDP:
			from, to := uint16(head), uint16(head>>16)
			kind = udp6
			if r.echo[to>>6]>>(to&63)&1 == 0 {
				if r.reflects[to>>6]>>(to&63)&1 == 0 || left < stampLength || left > r.stampMost ||
					r.stamps == maxStamps {
					return false
				}
				kind = stamp6
			}
			if r.service[from>>6]>>(from&63)&1 != 0 || int(bits.ReverseBytes16(uint16(head>>32))) != left+8 ||
				head>>48 == 0 ||
				*(*uint8)(unsafe.Add(p, ip6HopLimit)) < 2 && !r.skip.hops {
				return false
			}
		default:
			return false
		}
		// The segment's first eight bytes, and the pseudo-header.
		sum, c = bits.Add64(head, uint64(bits.ReverseBytes16(uint16(left+8)))+uint64(x&0xff)<<8, 0)
		hi, lo := *(*uint64)(unsafe.Add(p, ip6Dst)), *(*uint64)(unsafe.Add(p, ip6Dst+8))
		sum, c = bits.Add64(sum, hi, c)
		sum, c = bits.Add64(sum, lo, c)
		sum, _ = bits.Add64(sum, 0, c)
		if !r.skip.hosts {
			o := &r.own6[(hi+lo*r.mul6)*r.mul6>>shift6]
			if o.hi != hi || o.lo != lo {
				return false
			}
		}
		hi, lo = *(*uint64)(unsafe.Add(p, ip6Src)), *(*uint64)(unsafe.Add(p, ip6Src+8))
		sum, c = bits.Add64(sum, hi, 0)
		sum, c = bits.Add64(sum, lo, c)
		sum, _ = bits.Add64(sum, 0, c)
		if !r.skip.hosts {
			o := &r.own6[(hi+lo*r.mul6)*r.mul6>>shift6]
			if hi == 0 || uint8(hi) == 0xff || o.hi == hi && o.lo == lo {
				return false
			}
		}
		if r.partial && kind != echo6 {
			pseudo, carry := bits.Add64(sum, ^head, 0) // subtract head again
			pseudo, carry = bits.Add64(pseudo, ^(head >> 48), carry)
			if pseudo, _ = bits.Add64(pseudo, 0, carry); pseudo%0xffff == 0 {
				return false
			}
		}
		at, source = unsafe.Add(p, seg6+8), (hi*0xbf58_476d_1ce4_e5b9^lo)*0x9e37_79b9_7f4a_7c15
	default:
		return false
	}
	// The checksum. A short one is always verified, because it is rare that Slow would not refuse it: either Config
	// requires no verification, or the checksum is partial by chance.
	if left >= wideBytes {
		switch {
		case left >= r.unverified, r.Verified && kind != echo4 && kind != echo6:
			sum, left = 0, 0
		case r.tail == 0: // see long
			r.left = left
			return false
		}
	}
	if uint8(left)&7 != 0 { // the last bytes are the high bytes of the word that ends with them
		sum, c = bits.Add64(sum, *(*uint64)(unsafe.Add(at, left-8))>>(-8*left&63), 0)
		sum, _ = bits.Add64(sum, 0, c)
	}
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
	if left >= wideBytes {
		sum, c = bits.Add64(sum, r.tail, 0)
		sum, _ = bits.Add64(sum, 0, c)
		left = 0
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
	if kind == udp4 || kind == udp6 { // repeats.allow
		e := &r.repeats.of[source>>slotShift]
		key := *(*uint32)(unsafe.Add(p, seg4+4))
		if kind == udp6 {
			key = *(*uint32)(unsafe.Add(p, seg6+4))
		}
		if r.Loop.Start-e.began > r.repeats.window {
			e.began, e.key, e.count = r.Loop.Start, key, 1
		} else if e.key == key {
			if e.count >= r.repeats.most {
				return false
			}
			e.count++
		}
	}
	f.full = now + r.limit.cost
	// Nothing is turned down from here on.
	to, from := *(*uint64)(unsafe.Pointer(h)), *(*uint64)(unsafe.Add(unsafe.Pointer(h), 6))
	// the sender's MAC and the bytes after it, which the next store writes after our MAC
	*(*uint64)(unsafe.Pointer(h)) = from
	*(*uint64)(unsafe.Add(unsafe.Pointer(h), 6)) = to<<16>>16 | from>>48<<48
	var hops uint8
	if kind < echo6 { // IPv4
		s, d := *(*uint32)(unsafe.Add(p, ip4Src)), *(*uint32)(unsafe.Add(p, ip4Dst))
		*(*uint32)(unsafe.Add(p, ip4Src)), *(*uint32)(unsafe.Add(p, ip4Dst)) = d, s
		if kind == echo4 {
			const change = 8<<16 - 8 // the type changes from 8 to 0, and the checksum increases by the same amount
			w := *(*uint32)(unsafe.Add(p, seg4)) + change
			if w < change { // end-around carry
				w += 1 << 16
			}
			*(*uint32)(unsafe.Add(p, seg4)) = w
			// Most requests have our TTL already and are unchanged, except for a checksum of ones, which RFC 1624 makes
			// zero.
			if t := *(*uint32)(unsafe.Add(p, ip4TTL)); (uint8(t) != hopLimit || t >= 0xffff_0000) && !r.skip.hops {
				setHops4((*[64]byte)(p), hopLimit)
			}
			r.stats[AnsweredICMPv4].Add(1)
			return true
		}
		hops = *(*uint8)(unsafe.Add(p, ip4TTL))
		*(*uint32)(unsafe.Add(p, seg4)) = bits.RotateLeft32(*(*uint32)(unsafe.Add(p, seg4)), 16)
		if !r.skip.hops {
			setHops4((*[64]byte)(p), min(hops-1, hopLimit))
		}
		if kind == udp4 {
			r.stats[AnsweredUDPv4].Add(1)
			return true
		}
		r.stats[AnsweredSTAMPv4].Add(1)
		at = unsafe.Add(p, seg4+udpChecksum)
	} else {
		shi, slo := *(*uint64)(unsafe.Add(p, ip6Src)), *(*uint64)(unsafe.Add(p, ip6Src+8))
		*(*uint64)(unsafe.Add(p, ip6Src)), *(*uint64)(unsafe.Add(p, ip6Src+8)) = *(*uint64)(unsafe.Add(p, ip6Dst)),
			*(*uint64)(unsafe.Add(p, ip6Dst+8))
		*(*uint64)(unsafe.Add(p, ip6Dst)), *(*uint64)(unsafe.Add(p, ip6Dst+8)) = shi, slo
		if kind == echo6 {
			s := ^*(*uint32)(unsafe.Add(p, seg6))>>16 + 1 // the type, in the low byte, increases by one
			*(*uint32)(unsafe.Add(p, seg6)) = ^(s+s>>16)<<16 | 129
			if !r.skip.hops {
				*(*uint8)(unsafe.Add(p, ip6HopLimit)) = hopLimit
			}
			r.stats[AnsweredICMPv6].Add(1)
			return true
		}
		hops = *(*uint8)(unsafe.Add(p, ip6HopLimit))
		*(*uint32)(unsafe.Add(p, seg6)) = bits.RotateLeft32(*(*uint32)(unsafe.Add(p, seg6)), 16)
		if !r.skip.hops {
			*(*uint8)(unsafe.Add(p, ip6HopLimit)) = min(hops-1, hopLimit)
		}
		if kind == udp6 {
			r.stats[AnsweredUDPv6].Add(1)
			return true
		}
		r.stats[AnsweredSTAMPv6].Add(1)
		at = unsafe.Add(p, seg6+udpChecksum)
	}
	// The test packet after the UDP checksum at at becomes a stateless reflector's (see reflect), except for its
	// transmit timestamp. Its receive timestamp is the start of the pass.
	clock := r.clock.Load()
	came := bits.ReverseBytes64(clock.At(r.Loop.Start))
	head, ours := *(*uint32)(unsafe.Add(at, stampSequence)), bits.ReverseBytes16(clock.ErrorEstimate)
	stamp := &r.stamp[r.stamps&(maxStamps-1)]
	r.stamps++
	stamp.at, stamp.sum = uintptr(at), 0
	if sum = uint64(*(*uint16)(at)); sum != 0 {
		// RFC 1624 eqn. 3: the sender's values at changed positions are added, the new ones are subtracted. Moved
		// values cancel out, except for the sequence number, which also stays at its old position.
		sum, c = bits.Add64(sum+uint64(^ours)+uint64(^uint16(hops))+uint64(*(*uint8)(unsafe.Add(at, stampSenderTTL))),
			uint64(^head), 0)
		sum, c = bits.Add64(sum, *(*uint64)(unsafe.Add(at, stampReceived)), c)
		sum, c = bits.Add64(sum, *(*uint64)(unsafe.Add(at, stampSenderSequence)), c)
		sum, c = bits.Add64(sum, *(*uint64)(unsafe.Add(at, stampSenderTime+4)), c)
		sum, c = bits.Add64(sum, ^came, c)
		stamp.sum, _ = bits.Add64(sum, 0, c)
	}
	*(*uint64)(unsafe.Add(at, stampReceived)) = came
	*(*uint32)(unsafe.Add(at, stampSenderSequence)) = head
	*(*uint64)(unsafe.Add(at, stampSenderTime)) = *(*uint64)(unsafe.Add(at, stampTime))
	*(*uint32)(unsafe.Add(at, stampSenderError)) = uint32(*(*uint16)(unsafe.Add(at, stampError)))
	*(*uint8)(unsafe.Add(at, stampSenderTTL)) = hops
	*(*uint16)(unsafe.Add(at, stampError)) = ours
	return true
}

// long answers a packet that Reply returned because it is long: it sums the part that Reply would sum in blocks of 32
// bytes.
//
//go:noinline
func (r *Responder) long(h *[64]byte, n int) bool {
	left := r.left
	r.left = 0
	blocks := unsafe.Add(unsafe.Pointer(h), n-left+left&24) // a frame of this length has no padding
	if r.tail = cksum.Blocks((*byte)(blocks), left&^31); r.tail == 0 {
		r.tail = 0xffff
	}
	ok := r.Reply(h, n) || r.limit.unsettled != 0 && r.limit.meet(r.Loop.Start) && r.Reply(h, n)
	r.tail = 0
	return ok
}

// maxStamps is how many test packets can wait for their transmit timestamp: those of one pass.
const maxStamps = 32

// stamped is a test packet that is a complete reply except for its transmit timestamp.
type stamped struct {
	at  uintptr // address of the UDP checksum; buffers are not moved by the garbage collector
	sum uint64  // the inverse of the checksum so far; 0 if there is none
}

// Departing writes the time into the test packets that Reply has answered since the last call. A Poll calls it before
// it passes a reply to its device: before the doorbell, if the device reads the frame after it, otherwise before the
// frame is copied.
func (r *Responder) Departing() {
	if r.stamps != 0 {
		r.depart()
	}
}

//go:noinline
func (r *Responder) depart() {
	clock := r.clock.Load()
	if r.timing.plain {
		for i := range r.stamps & (2*maxStamps - 1) {
			s := &r.stamp[i&(maxStamps-1)]
			s.sum = r.timed(*(*unsafe.Pointer)(unsafe.Pointer(&s.at)), s.sum, clock)
		}
	}
	// The clock may be a later one than T2's, so T3 is reckoned from T2.
	since := clock.At(polling.TSC()) - clock.At(r.Loop.Start)
	for i := range r.stamps & (2*maxStamps - 1) {
		s := &r.stamp[i&(maxStamps-1)]
		at := *(*unsafe.Pointer)(unsafe.Pointer(&s.at))
		now := bits.ReverseBytes64(bits.ReverseBytes64(*(*uint64)(unsafe.Add(at, 18))) + since)
		*(*uint64)(unsafe.Add(at, 6)) = now
		if s.sum != 0 {
			sum, carry := bits.Add64(s.sum, ^now, 0)
			sum, _ = bits.Add64(sum, 0, carry)
			*(*uint16)(at) = cksum.UDP(uint16(sum % 0xffff))
		}
	}
	r.stamps = 0
}

// again answers a request whose source was not at home, and has been settled now.
//
//go:noinline
func (r *Responder) again(h *[64]byte, n int) bool {
	if !r.limit.meet(r.Loop.Start) {
		return false
	}
	ok := r.Reply(h, n)
	r.Departing()
	return ok
}
