// Package oracle computes the expected reply to a frame, for tests of package fastpath.
//
// It is an independent implementation of the RFCs that shares no code with fastpath: it splits a frame into its parts,
// decides with net/netip, and builds the reply from the parts, with every checksum computed from scratch. It has no
// rate limit.
package oracle

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
)

// Rules defines which frames are answered. The fields are those of fastpath.Config.
type Rules struct {
	Open          bool
	MAC           [6]byte
	Addresses     []netip.Prefix
	UDPPorts      []uint16
	STAMPPorts    []uint16
	VLANs         []uint16
	ChecksumBytes int
	STAMPBase     bool
	Reflector     Reflector

	// The receive and transmit timestamps of a test packet.
	Time          uint64
	ErrorEstimate uint16

	// ServicePorts are the source ports from 1024 up that Strict refuses.
	ServicePorts []uint16
}

var be = binary.BigEndian

// Answer returns the reply to f, or nil if there is none. The reply uses buf if that is large enough.
func (r *Rules) Answer(f, buf []byte) []byte {
	if len(f) < 14 {
		return nil
	}
	at := 12
	for range 2 {
		if t := be.Uint16(f[at:]); t != 0x8100 && t != 0x88a8 {
			break
		}
		if at+6 > len(f) {
			return nil
		}
		if !r.member(be.Uint16(f[at+2:]) % 4096) {
			return nil
		}
		at += 4
	}
	if at == 12 && !r.member(0) {
		return nil
	}
	q := request{rules: r, frame: f, dst: [6]byte(f), src: [6]byte(f[6:]), tags: f[12:at], etherType: be.Uint16(f[at:]),
		packet: f[at+2:], out: buf[:0]}
	switch q.etherType {
	case 0x0800:
		return q.ipv4()
	case 0x86dd:
		return q.ipv6()
	case 0x0806:
		return q.arp()
	}
	return nil
}

func (r *Rules) member(vlan uint16) bool { return r.VLANs == nil || slices.Contains(r.VLANs, vlan) }

func (r *Rules) ours(a netip.Addr) bool {
	for _, p := range r.Addresses {
		if p.Addr() == a {
			return true
		}
	}
	return false
}

// host reports whether a can be another host's address.
func (r *Rules) host(a netip.Addr) bool {
	if a.IsMulticast() || a.IsLoopback() || a.IsUnspecified() || r.ours(a) {
		return false
	}
	if a.Is6() { // no prefix is longer than /64; ::/64 contains mapped and loopback addresses
		b := a.As16()
		return be.Uint64(b[:]) != 0
	}
	b := a.As4()
	if b[0] == 0 || b[0] >= 240 {
		return false
	}
	for _, p := range r.Addresses {
		if p.Addr().Is4() && p.Bits() < 31 && p.Contains(a) {
			v, hostMask := be.Uint32(b[:]), uint32(1)<<(32-p.Bits())-1
			if v&hostMask == 0 || v&hostMask == hostMask {
				return false
			}
		}
	}
	return true
}

// request is a parsed frame, with its reply under construction.
type request struct {
	rules     *Rules
	frame     []byte
	dst, src  [6]byte
	tags      []byte
	etherType uint16
	packet    []byte // including padding
	tos       byte   // or traffic class
	out       []byte
}

// filled reports whether n bytes of packet are in the frame. What follows is padding or a trailer.
func (q *request) filled(n int) bool { return len(q.packet) >= n }

// header starts the reply.
func (q *request) header(to, from [6]byte) {
	q.out = append(append(append(q.out, to[:]...), from[:]...), q.tags...)
	q.out = be.AppendUint16(q.out, q.etherType)
}

// padded appends the request's own padding to the reply: all of it if the frame, without tags, has at most 64 bytes,
// and otherwise, after a trailer was removed, as much as Ethernet's shortest frame needs.
func (q *request) padded() []byte {
	n := len(q.frame)
	if n-len(q.tags) > 64 {
		n = 60 + len(q.tags)
	}
	if len(q.out) < n {
		q.out = append(q.out, q.frame[len(q.out):n]...)
	}
	return q.out
}

// stations reports whether the frame is from another station to us.
func (q *request) stations() bool { return q.dst == q.rules.MAC && another(q.src, q.rules.MAC) }

func another(m, us [6]byte) bool { return m[0]&1 == 0 && m != us }

func (q *request) ipv4() []byte {
	p := q.packet
	if len(p) < 20 || p[0] != 0x45 || be.Uint16(p[6:])&0xbfff != 0 {
		return nil
	}
	n := int(be.Uint16(p[2:]))
	if n < 20 || !q.filled(n) {
		return nil
	}
	from, to := netip.AddrFrom4([4]byte(p[12:])), netip.AddrFrom4([4]byte(p[16:]))
	strict := !q.rules.Open
	if strict && (!q.stations() || Sum(p[:20]) != 0xffff || !q.rules.ours(to) || !q.rules.host(from)) {
		return nil
	}
	q.header(q.src, q.dst)
	at := len(q.out)
	q.out = append(q.out, p[:12]...)
	q.out = append(append(q.out, p[16:20]...), p[12:16]...)
	q.tos = p[1]
	ttl, ok := q.transport(p[20:n], p[12:20], p[9], p[8], n)
	if !ok {
		return nil
	}
	h := q.out[at:]
	h[1] = q.tos
	be.PutUint16(h[2:], uint16(len(h)))
	if strict {
		h[8] = ttl
	}
	if strict || len(h) != n || h[1] != p[1] {
		// Open also answers a frame with a wrong checksum, and the reply's checksum is wrong by the same amount.
		was := Sum(p[:20])
		h[10], h[11] = 0, 0
		put(h, 10, was, Sum(h[:20]))
	}
	return q.padded()
}

func (q *request) ipv6() []byte {
	p := q.packet
	if len(p) < 40 || p[0]>>4 != 6 {
		return nil
	}
	n := 40 + int(be.Uint16(p[4:]))
	if !q.filled(n) {
		return nil
	}
	if p[6] == 58 && n > 40 && p[40] == 135 {
		return q.solicitation(p[:40], p[40:n])
	}
	from, to := netip.AddrFrom16([16]byte(p[8:])), netip.AddrFrom16([16]byte(p[24:]))
	strict := !q.rules.Open
	if strict && (!q.stations() || !q.rules.ours(to) || !q.rules.host(from)) {
		return nil
	}
	q.header(q.src, q.dst)
	at := len(q.out)
	q.out = append(q.out, p[:8]...)
	q.out = append(append(q.out, p[24:40]...), p[8:24]...)
	q.tos = byte(be.Uint16(p) >> 4)
	hops, ok := q.transport(p[40:n], p[8:40], p[6], p[7], n)
	if !ok {
		return nil
	}
	h := q.out[at:]
	be.PutUint16(h, be.Uint16(h)&0xf00f|uint16(q.tos)<<4)
	be.PutUint16(h[4:], uint16(len(h)-40))
	if strict {
		h[7] = hops
	}
	return q.padded()
}

// transport appends the reply to segment s between hosts, and returns the hop limit of the reply. total is the length
// of the packet.
func (q *request) transport(s, hosts []byte, protocol, hops byte, total int) (byte, bool) {
	r := q.rules
	if len(s) < 8 {
		return 0, false
	}
	v6 := len(hosts) == 32
	at := len(q.out)
	if protocol == 17 {
		return q.datagram(s, hosts, hops, total)
	}
	var sum func(s []byte) uint16
	switch {
	case protocol == 1 && !v6 && s[0] == 8 && s[1] == 0: // RFC 792
		sum = func(s []byte) uint16 { return Sum(s) }
	case protocol == 58 && v6 && s[0] == 128 && s[1] == 0: // RFC 4443 §4
		sum = func(s []byte) uint16 { return PseudoSum(hosts, 58, s) }
	default:
		return 0, false
	}
	was := sum(s)
	if !r.Open && total <= r.ChecksumBytes && was != 0xffff {
		return 0, false
	}
	q.out = append(q.out, s...)
	m := q.out[at:]
	m[0] = 0
	if v6 {
		m[0] = 129
	}
	m[2], m[3] = 0, 0
	put(m, 2, was, sum(m))
	return 64, true
}

func (q *request) datagram(s, hosts []byte, hops byte, total int) (byte, bool) {
	r := q.rules
	v6 := len(hosts) == 32
	from, to, length, ck := be.Uint16(s), be.Uint16(s[2:]), be.Uint16(s[4:]), be.Uint16(s[6:])
	sealed := slices.Contains(r.Reflector.AuthPorts, to)
	stamp := sealed || slices.Contains(r.STAMPPorts, to)
	if int(length) != len(s) || !stamp && !slices.Contains(r.UDPPorts, to) || v6 && ck == 0 {
		return 0, false
	}
	was := PseudoSum(hosts, 17, s)
	if !r.Open {
		if from < 1024 || slices.Contains(r.UDPPorts, from) || slices.Contains(r.STAMPPorts, from) ||
			slices.Contains(r.Reflector.AuthPorts, from) || slices.Contains(r.ServicePorts, from) {
			return 0, false
		}
		if ck != 0 && total <= r.ChecksumBytes && was != 0xffff || hops < 2 {
			return 0, false
		}
	}
	at := len(q.out)
	q.out = be.AppendUint16(q.out, to)
	q.out = be.AppendUint16(q.out, from)
	q.out = append(q.out, s[4:]...)
	if stamp {
		reply, tos, ok := q.testPacket(s, hosts, hops, q.tos, sealed)
		if !ok {
			return 0, false
		}
		q.tos = tos
		q.out = append(q.out[:at+8], reply...)
		d := q.out[at:]
		be.PutUint16(d[4:], uint16(len(d)))
		if ck != 0 {
			d[6], d[7] = 0, 0
			put(d, 6, was, PseudoSum(hosts, 17, d))
			if d[6] == 0 && d[7] == 0 {
				d[6], d[7] = 0xff, 0xff
			}
		}
	}
	return min(hops-1, 64), true
}

func (q *request) arp() []byte {
	r, p := q.rules, q.packet
	if len(p) < 28 || !q.filled(28) || q.dst != r.MAC && q.dst != [6]byte{255, 255, 255, 255, 255, 255} ||
		!another(q.src, r.MAC) ||
		!bytes.Equal(p[:8], []byte{0, 1, 8, 0, 6, 4, 0, 1}) {
		return nil
	}
	spa, tpa, sha := netip.AddrFrom4([4]byte(p[14:])), netip.AddrFrom4([4]byte(p[24:])), [6]byte(p[8:])
	if !r.ours(tpa) || spa == tpa || !spa.IsUnspecified() && !r.host(spa) || !another(sha, r.MAC) {
		return nil
	}
	q.header(sha, r.MAC)
	q.out = append(append(q.out, 0, 1, 8, 0, 6, 4, 0, 2), r.MAC[:]...)
	q.out = append(append(append(q.out, p[24:28]...), sha[:]...), p[14:18]...)
	return q.padded()
}

// solicitation answers a neighbour solicitation m under the IPv6 header h (RFC 4861 §4.3, §7.1.1, §7.2.4).
func (q *request) solicitation(h, m []byte) []byte {
	r := q.rules
	if !another(q.src, r.MAC) || h[7] != 255 || len(m) < 24 || m[1] != 0 || PseudoSum(h[8:40], 58, m) != 0xffff {
		return nil
	}
	from, to, target := netip.AddrFrom16([16]byte(h[8:])), netip.AddrFrom16([16]byte(h[24:])),
		netip.AddrFrom16([16]byte(m[8:]))
	group, groupMAC := SolicitedNode(target)
	if !r.ours(target) || to != group && to != target || q.dst != r.MAC && (to != group || q.dst != groupMAC) ||
		!from.IsUnspecified() && !r.host(from) {
		return nil
	}
	mac, found := q.src, false
	for o := m[24:]; len(o) > 0; o = o[int(o[1])*8:] {
		if len(o) < 8 || o[1] == 0 || int(o[1])*8 > len(o) || o[0] == 1 && o[1] != 1 {
			return nil
		}
		if o[0] == 1 {
			found, mac = true, [6]byte(o[2:])
		}
	}
	dad := from.IsUnspecified()
	switch {
	case dad && (found || to != group), !dad && to == group && !found, found && !another(mac, r.MAC):
		return nil
	}
	flags, dst := byte(0x60), from.As16()
	if dad {
		mac = [6]byte{0x33, 0x33, 0, 0, 0, 1}
		flags, dst = 0x20, [16]byte{0xff, 2, 15: 1}
	}
	q.header(mac, r.MAC)
	at := len(q.out)
	q.out = append(append(append(q.out, h[:8]...), m[8:24]...), dst[:]...)
	q.out = append(append(q.out, 136, 0, 0, 0, flags, 0, 0, 0), m[8:24]...)
	option := append([]byte{2, 1}, r.MAC[:]...)
	if dad {
		q.out = append(q.out, option...)
		be.PutUint16(q.out[at+4:], 32)
	} else {
		for o := m[24:]; len(o) > 0; o = o[int(o[1])*8:] {
			if o[0] == 1 {
				q.out = append(q.out, option...)
			} else {
				q.out = append(q.out, o[:int(o[1])*8]...)
			}
		}
	}
	na := q.out[at+40:]
	be.PutUint16(na[2:], ^PseudoSum(q.out[at+8:at+40], 58, na))
	return q.out
}

// put stores a checksum such that the sum of b, which is sum without it, is the same as in the request: right if it was
// right, and otherwise wrong by the same amount.
func put(b []byte, at int, was, sum uint16) {
	ck := (uint32(was) + 2*0xffff - uint32(sum)) % 0xffff
	// 0 and 0xffff are the same residue. A finished checksum is 0xffff only over zeros.
	if ck == 0 && sum == 0 {
		ck = 0xffff
	}
	be.PutUint16(b[at:], uint16(ck))
}

// Sum is the checksum exactly as RFC 1071 defines it.
func Sum(b []byte) uint16 { return add(0, b) }

func add(s uint32, b []byte) uint16 {
	for ; len(b) >= 2; b = b[2:] {
		s += uint32(b[0])<<8 | uint32(b[1])
	}
	if len(b) == 1 {
		s += uint32(b[0]) << 8
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

// PseudoSum is the sum of segment s and its pseudo-header: 0xffff if the checksum in it is right. hosts are its source
// and destination address.
func PseudoSum(hosts []byte, protocol byte, s []byte) uint16 {
	return add(uint32(add(uint32(protocol)+uint32(len(s)), hosts)), s)
}

// SolicitedNode returns the multicast group of address a and its MAC (RFC 4291 §2.7.1, RFC 2464 §7).
func SolicitedNode(a netip.Addr) (netip.Addr, [6]byte) {
	b := a.As16()
	g := [16]byte{0xff, 2, 11: 1, 12: 0xff, 13: b[13], 14: b[14], 15: b[15]}
	return netip.AddrFrom16(g), [6]byte{0x33, 0x33, 0xff, b[13], b[14], b[15]}
}
