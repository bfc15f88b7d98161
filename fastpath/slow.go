package fastpath

import (
	"slices"
	"unsafe"

	"github.com/rebound-nic/rebound/cksum"
	"github.com/rebound-nic/rebound/polling"
)

const (
	etherTypeIPv4  = 0x0800
	etherTypeARP   = 0x0806
	etherTypeIPv6  = 0x86dd
	etherType8021Q = 0x8100
	etherType8021D = 0x88a8 // 802.1ad service tag

	protocolICMP   = 1
	protocolUDP    = 17
	protocolICMPv6 = 58

	hopLimit = 64 // greatest hop limit of replies
)

// MinBuffer is how many bytes from a frame's start must be readable and writable, however short the frame.
const MinBuffer = 128

// Slow is for the frames that Reply has not answered. It answers the frame of n bytes at h in place if it is for us and
// passes every guard, and returns the reply's length, which is n except for two kinds: the reply to duplicate address
// detection, and replies that are longer because of Config.STAMPBase. It returns 0 if there is nothing to send; the
// frame is then unchanged, and the reason is counted. It accepts any bytes, and answers every kind, including those of
// Reply.
//
//go:noinline
func (r *Responder) Slow(h *[64]byte, n int) int {
	if r.left != 0 && r.long(h, n) || r.limit.unsettled != 0 && r.again(h, n) {
		return n
	}
	v := r.answer(unsafe.Slice((*byte)(unsafe.Pointer(h)), max(n, MinBuffer))[:n], &n)
	r.stats[v].Add(1)
	r.slow++
	if v.Answered() {
		return n
	}
	return 0
}

// Slowed returns how many frames Slow judged itself, without Reply: its caller must be the one that calls Slow.
// Benchmarks of Reply read it, because Slow gives the same replies in a multiple of the time.
func (r *Responder) Slowed() uint64 { return r.slow }

// answer finds the packet after up to two VLAN tags, which a reply keeps. A reply that is longer than its request uses
// the room after f, up to its capacity. It sets *m to the reply's length if there is one.
func (r *Responder) answer(f []byte, m *int) Verdict {
	l3 := 14
	if len(f) < l3 {
		return RefusedShort
	}
	t := be.Uint16(f[12:])
	others := false // has a tag of a VLAN that is not answered
	for l3 < 14+2*4 && (t == etherType8021Q || t == etherType8021D) {
		if l3 += 4; len(f) < l3 {
			return RefusedShort
		}
		others = others || !r.vlan(be.Uint16(f[l3-4:])&0xfff)
		t = be.Uint16(f[l3-2:])
	}
	if others || l3 == 14 && !r.vlan(0) {
		return RefusedVLAN
	}
	switch t {
	case etherTypeIPv4:
		return r.ipv4(f, l3, m)
	case etherTypeIPv6:
		return r.ipv6(f, l3, m)
	case etherTypeARP:
		*m = length(f, l3, l3+28, 0)
		return r.arp(f, l3)
	}
	return RefusedEtherType
}

// vlan reports whether frames of VLAN id are answered.
func (r *Responder) vlan(id uint16) bool { return r.vlans[id>>6]>>(id&63)&1 != 0 }

// fits reports whether n bytes of packet from l3 on are in frame f. What follows them does not matter: it is Ethernet's
// padding, or a trailer, as some switches add with a timestamp.
func fits(f []byte, l3, n int) bool { return l3+n <= len(f) }

// length is the length of the reply to f, whose packet ended at end and has grown by grown bytes. Padding of a frame of
// up to 64 bytes, without tags, stays: Ethernet pads to 60, and tags may be added or removed after that. A trailer
// goes.
func length(f []byte, l3, end, grown int) int {
	switch {
	case grown > 0:
		return end + grown
	case len(f)-l3 > 50:
		return max(end, l3+46)
	}
	return len(f)
}

// macs checks that a frame is sent to our MAC from another one. Like the checks of the source, it returns the reason
// for a refusal, otherwise 0.
func (r *Responder) macs(f []byte) Verdict {
	if [6]byte(f) != r.macAddress {
		return RefusedMAC
	}
	return r.sourceMAC([6]byte(f[6:]))
}

func (r *Responder) sourceMAC(m [6]byte) Verdict {
	switch {
	case m[0]&1 != 0:
		return RefusedSourceMAC
	case m == r.macAddress:
		return RefusedOwnSource
	}
	return 0
}

// ipv4 decides about a frame whose IPv4 header starts at l3. If it answers, it rewrites f in place and sets *m to the
// reply's length. Mode Open leaves out the checks of addresses and of the header checksum.
func (r *Responder) ipv4(f []byte, l3 int, m *int) Verdict {
	p := f[l3:]
	if len(p) < 20 {
		return RefusedShort
	}
	if r.mode != Open {
		if v := r.macs(f); v != 0 {
			return v
		}
	}
	n := int(be.Uint16(p[2:]))
	switch {
	case p[0]>>4 != 4:
		return RefusedVersion
	case p[0] != 0x45:
		return RefusedOptions
	case be.Uint16(p[6:])&^0x4000 != 0: // all but Don't Fragment
		return RefusedFragment
	case n < 20 || !fits(f, l3, n):
		return RefusedLength
	}
	if r.mode != Open {
		if cksum.Sum(p[:20], 0) != 0xffff {
			return RefusedHeaderChecksum
		}
		if !r.ours4(le.Uint32(p[16:])) {
			return RefusedAddress
		}
		if v := r.source4(p[12:16]); v != 0 {
			return v
		}
	}
	var v Verdict
	hops := uint8(hopLimit)
	in := arrival{hop: p[8], tos: p[1], hosts: p[12:20], mac: [6]byte(f[6:])}
	switch p[9] {
	case protocolICMP:
		v = r.icmp4(p[20:n], p[12:16])
	case protocolUDP:
		hops = min(p[8]-1, hopLimit)
		v = r.udp(p[20:n], &in)
	default:
		v = RefusedProtocol
	}
	if !v.Answered() {
		return v
	}
	if in.grown > 0 {
		be.PutUint16(p[2:], uint16(n+in.grown))
		be.PutUint16(p[10:], cksum.Update16(be.Uint16(p[10:]), uint16(n), uint16(n+in.grown)))
	}
	if in.tos != p[1] {
		w := be.Uint16(p)
		p[1] = in.tos
		be.PutUint16(p[10:], cksum.Update16(be.Uint16(p[10:]), w, be.Uint16(p)))
	}
	if r.mode != Open {
		w := be.Uint16(p[8:])
		p[8] = hops
		be.PutUint16(p[10:], cksum.Update16(be.Uint16(p[10:]), w, be.Uint16(p[8:])))
	}
	swap(f[:6], f[6:])
	swap(p[12:16], p[16:])
	*m = length(f, l3, l3+n, in.grown)
	return v
}

// sound reports whether a segment's checksum is right, if Config.ChecksumBytes requires its verification. n is the
// length of its packet, acc the pseudo-header's sum.
func (r *Responder) sound(segment []byte, n int, acc uint16) bool {
	return n > r.checksumBytes || cksum.Sum(segment, acc) == 0xffff
}

// icmp4 turns the echo request m into its reply if it is sound and its source, from, is below the rate limit. It
// updates the checksum by the difference.
func (r *Responder) icmp4(m, from []byte) Verdict {
	if len(m) < 8 {
		return RefusedLength
	}
	if m[0] != 8 || m[1] != 0 {
		return RefusedICMP
	}
	if !r.sound(m, 20+len(m), 0) {
		return RefusedChecksum
	}
	if !r.limit.allow(r.Loop.Start, hash4(from)) {
		return RefusedRate
	}
	m[0] = 0
	hc := cksum.Update16(be.Uint16(m[2:]), 0x0800, 0)
	if hc == 0 && cksum.Sum(m[4:], 0) == 0 { // an all-zero message is the only one for which a zero checksum is wrong
		hc = 0xffff
	}
	be.PutUint16(m[2:], hc)
	return AnsweredICMPv4
}

func (r *Responder) ours4(a uint32) bool { return r.own4[a*r.mul4>>shift4] == a }

// source4 checks an IPv4 source address.
func (r *Responder) source4(a []byte) Verdict {
	switch w := le.Uint32(a); {
	case r.ours4(w):
		return RefusedOwnSource
	case a[0] == 0 || a[0] == 127 || a[0] >= 224 || r.not4[w*r.mul4>>shift4] == w:
		return RefusedSource
	}
	return 0
}

// ipv6 is ipv4 for an IPv6 header at l3. Neighbour solicitations are answered before the addresses are checked,
// because they go to a group.
func (r *Responder) ipv6(f []byte, l3 int, m *int) Verdict {
	p := f[l3:]
	if len(p) < 40 {
		return RefusedShort
	}
	if p[6] == protocolICMPv6 && len(p) > 40 && p[40] == 135 {
		return r.solicitation(f, l3, m)
	}
	if r.mode != Open {
		if v := r.macs(f); v != 0 {
			return v
		}
	}
	n := 40 + int(be.Uint16(p[4:]))
	switch {
	case p[0]>>4 != 6:
		return RefusedVersion
	case !fits(f, l3, n):
		return RefusedLength
	}
	if r.mode != Open {
		if !r.ours6(p[24:40]) {
			return RefusedAddress
		}
		if v := r.source6(p[8:24]); v != 0 {
			return v
		}
	}
	var v Verdict
	hops := uint8(hopLimit)
	in := arrival{hop: p[7], tos: p[0]<<4 | p[1]>>4, hosts: p[8:40], mac: [6]byte(f[6:])}
	switch p[6] {
	case protocolICMPv6:
		v = r.icmp6(p[40:n], p[8:40])
	case protocolUDP:
		hops = min(p[7]-1, hopLimit)
		v = r.udp(p[40:n], &in)
	case 44:
		v = RefusedFragment
	case 0, 43, 50, 51, 60, 135, 139, 140: // the IPv6 extension header types registered by IANA
		v = RefusedExtension
	default:
		v = RefusedProtocol
	}
	if !v.Answered() {
		return v
	}
	be.PutUint16(p[4:], uint16(n-40+in.grown))
	p[0], p[1] = p[0]&0xf0|in.tos>>4, p[1]&0x0f|in.tos<<4
	if r.mode != Open {
		p[7] = hops
	}
	swap(f[:6], f[6:])
	swap(p[8:24], p[24:])
	*m = length(f, l3, l3+n, in.grown)
	return v
}

// icmp6 is icmp4 for ICMPv6, whose checksum includes the two addresses, hosts.
func (r *Responder) icmp6(m, hosts []byte) Verdict {
	if len(m) < 8 {
		return RefusedLength
	}
	if m[0] != 128 || m[1] != 0 {
		return RefusedICMP
	}
	if !r.sound(m, 40+len(m), pseudo(hosts, protocolICMPv6, len(m))) {
		return RefusedChecksum
	}
	if !r.limit.allow(r.Loop.Start, hash6(hosts)) {
		return RefusedRate
	}
	m[0] = 129
	be.PutUint16(m[2:], cksum.Update16(be.Uint16(m[2:]), 128<<8, 129<<8))
	return AnsweredICMPv6
}

func (r *Responder) ours6(a []byte) bool {
	w := ip6{le.Uint64(a), le.Uint64(a[8:])}
	return r.own6[(w.hi+w.lo*r.mul6)*r.mul6>>shift6] == w
}

// source6 checks an IPv6 source address.
func (r *Responder) source6(a []byte) Verdict {
	switch {
	case r.ours6(a):
		return RefusedOwnSource
	case a[0] == 0xff || le.Uint64(a) == 0:
		return RefusedSource
	}
	return 0
}

// udp answers the datagram d that arrived as described by in, whose tos becomes that of the reply, and grown how much
// longer it is.
func (r *Responder) udp(d []byte, in *arrival) Verdict {
	ip6 := len(in.hosts) == 2*16
	if len(d) < 8 || int(be.Uint16(d[4:])) != len(d) {
		return RefusedLength
	}
	from, to := be.Uint16(d), be.Uint16(d[2:])
	auth := slices.Contains(r.auth, to)
	stamp := auth || slices.Contains(r.stampPorts, to)
	least := 8
	if auth {
		least = 8 + authBase
	} else if stamp {
		least = 8 + r.stampLeast
	}
	ck := be.Uint16(d[6:])
	acc := pseudo(in.hosts, protocolUDP, len(d))
	partial := r.partial && ck == acc
	header, source := 20, uint64(0)
	if ip6 {
		header, source = 40, hash6(in.hosts)
	} else {
		source = hash4(in.hosts)
	}
	switch {
	case !stamp && !r.echo.has(to):
		return RefusedPort
	case r.service.has(from):
		return RefusedServicePort
	case r.mode != Open && in.hop < 2:
		return RefusedHopLimit
	case ip6 && ck == 0:
		return RefusedNoChecksum
	case len(d) < least:
		return RefusedSTAMPShort
	case ck != 0 && !partial && !r.sound(d, header+len(d), acc):
		return RefusedChecksum
	case auth && !r.authentic(d[8:]):
		return RefusedSTAMPHMAC
	}
	var s *session
	if stamp {
		in.seen = polling.TSC()
		var why Verdict
		if why, s = r.admit(d, in, auth, source); why != 0 {
			return why
		}
	} else if !r.repeats.allow(r.Loop.Start, source, le.Uint32(d[4:])) {
		return RefusedLoop
	} else if !r.limit.allow(r.Loop.Start, source) {
		return RefusedRate
	}
	if partial {
		complete(d)
	}
	v := AnsweredUDPv4
	switch {
	case stamp:
		if len(d) < 8+stampLength {
			in.grown = 8 + stampBase - len(d)
			d = grow(d, in.grown)
		}
		in.ports = d[:4]
		in.tos = r.reflect(d, in, s, auth)
		v = AnsweredSTAMPv4
		if ip6 {
			v = AnsweredSTAMPv6
		}
	case ip6:
		v = AnsweredUDPv6
	}
	swap(d[:2], d[2:])
	return v
}

// admit finds the session of the test packet in datagram d, if sessions are enabled, and charges the reply to its
// source's rate. It returns the reason for a refusal, otherwise 0.
func (r *Responder) admit(d []byte, in *arrival, auth bool, source uint64) (why Verdict, s *session) {
	table, limit, ssid := r.sessions, &r.limit, uint16(0)
	switch p := d[8:]; {
	case auth:
		table, limit, ssid = r.sealed.sessions, &r.sealed.limit, be.Uint16(p[authSSID:])
	case len(p) >= stampLength:
		ssid = be.Uint16(p[baseSSID:])
	}
	if table == nil {
		if !limit.allow(r.Loop.Start, source) {
			return RefusedRate, nil
		}
		return 0, nil
	}
	k := frameKey(in.hosts, d, ssid)
	return r.enter(table, limit, &k, in.seen, source)
}

// enter is admit for a packet of the session k that arrived at tick now.
func (r *Responder) enter(table *sessions, limit *limiter, k *sessionKey, now, source uint64) (why Verdict,
	s *session) {
	s, going := table.find(k, now)
	if going {
		s.received++
		s.seen = now
	}
	switch {
	case s == nil:
		return RefusedSTAMPSessions, nil
	case !limit.allow(r.Loop.Start, source):
		return RefusedRate, nil
	case !going:
		table.begin(s, k, now)
	}
	return 0, s
}

// complete computes the checksum of a datagram whose checksum field contains the pseudo-header's sum (RFC 768), as the
// kernel leaves it for a device to complete. A finished checksum that has that value by chance is unchanged.
func complete(d []byte) {
	// The field is part of the sum, so the sum includes the pseudo-header.
	be.PutUint16(d[6:], cksum.UDP(^cksum.Sum(d, 0)))
}

// pseudo is the sum of a pseudo-header (RFC 768, RFC 8200 §8.1).
func pseudo(hosts []byte, protocol, n int) uint16 {
	s := uint32(cksum.Sum(hosts, 0)) + uint32(protocol) + uint32(n)
	return uint16(s>>16 + s&0xffff)
}

// swap exchanges a and as many bytes of b.
func swap(a, b []byte) {
	for i := range a {
		a[i], b[i] = b[i], a[i]
	}
}
