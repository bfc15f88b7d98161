package fastpath

import "github.com/rebound-nic/rebound/cksum"

// arp answers a request for one of our addresses (RFC 826). This includes a probe for it (RFC 5227 §2.1.1), whose
// sender address is 0.0.0.0: the reply says that the address is in use. It is the same in both modes.
func (r *Responder) arp(f []byte, l3 int) Verdict {
	a := f[l3:]
	if len(a) < 28 {
		return RefusedShort
	}
	to, sha, spa, tpa := [6]byte(f), [6]byte(a[8:]), a[14:18], a[24:]
	if to != broadcast && to != r.macAddress {
		return RefusedMAC
	}
	if v := r.sourceMAC([6]byte(f[6:])); v != 0 {
		return v
	}
	if be.Uint64(a) != 0x0001_0800_06_04_0001 { // Ethernet, IPv4, their address lengths, request
		return RefusedARP
	}
	if !fits(f, l3, 28) {
		return RefusedLength
	}
	if [4]byte(spa) == [4]byte(tpa) {
		return RefusedAnnouncement
	}
	if !r.ours4(le.Uint32(tpa)) {
		return RefusedAddress
	}
	if le.Uint32(spa) != 0 {
		if v := r.source4(spa); v != 0 {
			return v
		}
	}
	if v := r.sourceMAC(sha); v != 0 {
		return v
	}
	a[7] = 2 // reply
	swap(spa, tpa)
	copy(a[18:], sha[:])
	copy(a[8:], r.macAddress[:])
	copy(f, sha[:])
	copy(f[6:], r.macAddress[:])
	return AnsweredARP
}

var broadcast = [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// solicitation answers a neighbour solicitation for one of our addresses (RFC 4861 §7.2.4). It is the same in both
// modes.
//
// The advertisement replaces the solicitation byte for byte: the sender's link-layer address option becomes our target
// link-layer address option; other options are kept, because a receiver ignores unexpected ones. So a solicitation
// without the former gets a reply without the latter. RFC 4861 §4.3 requires the option in a multicast solicitation
// with a sender address, which is refused otherwise; a unicast one does not need it in the reply.
//
// A solicitation from the unspecified address is duplicate address detection (RFC 4862 §5.4). It must not have that
// option, but its reply, which is sent to all nodes, must. So that reply has exactly this option whatever the request
// had, and is 8 bytes longer than a request without options.
func (r *Responder) solicitation(f []byte, l3 int, size *int) Verdict {
	p := f[l3:]
	n := 40 + int(be.Uint16(p[4:]))
	src, dst, m := p[8:24], p[24:40], p[40:]
	if [6]byte(f) != r.macAddress && ([4]byte(f) != [4]byte{0x33, 0x33, 0xff, p[37]} ||
		[2]byte(f[4:]) != [2]byte(p[38:]) ||
		dst[0] != 0xff) {
		return RefusedMAC // neither our MAC nor the group of the destination address (RFC 2464 §7)
	}
	if v := r.sourceMAC([6]byte(f[6:])); v != 0 {
		return v
	}
	switch {
	case p[0]>>4 != 6:
		return RefusedVersion
	case !fits(f, l3, n):
		return RefusedLength
	case n < 64 || p[7] != 255 || m[1] != 0:
		return RefusedND
	}
	m = m[:n-40]
	target := m[8:24]
	solicited := [13]byte(dst) == solicitedNode && [3]byte(dst[13:]) == [3]byte(target[13:])
	switch {
	case !r.ours6(target):
		return RefusedAddress
	case !solicited && [16]byte(dst) != [16]byte(target):
		return RefusedAddress
	}
	dad := [16]byte(src) == [16]byte{}
	if !dad {
		if v := r.source6(src); v != 0 {
			return v
		}
	}
	if s := uint32(pseudo(p[8:40], protocolICMPv6, len(m))); cksum.Sum(m, uint16(s)) != 0xffff {
		return RefusedND
	}
	var lla []byte // the sender's, from the last option that has it
	for o := m[24:]; len(o) > 0; o = o[8*int(o[1]):] {
		if len(o) < 8 || o[1] == 0 || len(o) < 8*int(o[1]) {
			return RefusedND
		}
		if o[0] == 1 {
			if lla = o[2:8]; o[1] != 1 {
				return RefusedND
			}
		}
	}
	to := [6]byte(f[6:])
	*size = length(f, l3, l3+n, 0)
	switch {
	case dad && (lla != nil || !solicited), !dad && solicited && lla == nil:
		return RefusedND
	case lla != nil:
		to = [6]byte(lla)
		if v := r.sourceMAC(to); v != 0 {
			return v
		}
	}
	for o := m[24:]; len(o) > 0; o = o[8*int(o[1]):] {
		if o[0] == 1 {
			o[0] = 2 // target link-layer address
			copy(o[2:], r.macAddress[:])
		}
	}
	m[0], m[4], m[5], m[6], m[7] = 136, 0x60, 0, 0, 0 // advertisement: solicited, override; not a router
	copy(dst, src)
	if dad {
		end := l3 + 40 + 24 + 8
		f, *size = f[:end], end
		m = f[l3+40:]
		m[24], m[25] = 2, 1
		copy(m[26:], r.macAddress[:])
		be.PutUint16(p[4:], uint16(len(m)))
		m[4] = 0x20 // override
		copy(dst, allNodes[:])
		to = [6]byte{0x33, 0x33, 0, 0, 0, 1}
	}
	copy(src, target)
	copy(f, to[:])
	copy(f[6:], r.macAddress[:])
	m[2], m[3] = 0, 0
	be.PutUint16(m[2:], ^cksum.Sum(m, pseudo(p[8:40], protocolICMPv6, len(m))))
	return AnsweredND
}

var (
	solicitedNode = [13]byte{0xff, 2, 11: 1, 12: 0xff} // ff02::1:ff00:0/104 (RFC 4291 §2.7.1)
	allNodes      = [16]byte{0xff, 2, 15: 1}           // ff02::1
)
