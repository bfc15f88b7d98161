package fastpath

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
)

// oracle says in the plainest way what the reply to f is, or nil if there is none. It takes the frame apart, decides by
// netip's rules, and builds the reply from the parts.
func oracle(c *Config, f []byte) []byte {
	if len(f) < 14 {
		return nil
	}
	var dst, src [6]byte
	copy(dst[:], f)
	copy(src[:], f[6:])
	tags, rest := []byte{}, f[12:]
	for len(tags) < 8 && (rest[0] == 0x81 && rest[1] == 0x00 || rest[0] == 0x88 && rest[1] == 0xa8) {
		if len(rest) < 6 {
			return nil
		}
		tags, rest = append(tags, rest[:4]...), rest[4:]
	}
	etherType, p := binary.BigEndian.Uint16(rest), rest[2:]
	strict := c.Mode == Strict
	if (src[0]&1 == 1 || src == c.MAC) && (strict || etherType == 0x0806) {
		return nil
	}
	reply := func(to, from [6]byte, packet []byte) []byte {
		out := append(append([]byte{}, to[:]...), from[:]...)
		out = append(append(out, tags...), rest[:2]...)
		out = append(out, packet...)
		return append(out, f[len(out):]...) // the padding
	}
	trailerOK := func(packet int) bool {
		extra := len(p) - packet
		return extra == 0 || extra > 0 && len(f)-len(tags) <= 64
	}
	switch etherType {
	case 0x0800:
		if len(p) < 20 || p[0] != 0x45 || p[6]&0xbf != 0 || p[7] != 0 {
			return nil
		}
		n := int(binary.BigEndian.Uint16(p[2:]))
		if n < 20 || !trailerOK(n) {
			return nil
		}
		from, _ := netip.AddrFromSlice(p[12:16])
		to, _ := netip.AddrFromSlice(p[16:20])
		if strict && (dst != c.MAC || naiveSum(p[:20]) != 0xffff || !ours(c, to) || !host(c, from)) {
			return nil
		}
		seg := answerL4(c, from, to, p[9], p[8], bytes.Clone(p[20:n]))
		if seg == nil {
			return nil
		}
		out := bytes.Clone(p[:20])
		if strict {
			out[8] = 64
		}
		copy(out[12:], to.AsSlice())
		copy(out[16:], from.AsSlice())
		if strict {
			out[10], out[11] = 0, 0
			binary.BigEndian.PutUint16(out[10:], ^naiveSum(out))
		}
		return reply(src, dst, append(out, seg...))
	case 0x86dd:
		if len(p) < 40 || p[0]>>4 != 6 {
			return nil
		}
		n := 40 + int(binary.BigEndian.Uint16(p[4:]))
		if !trailerOK(n) {
			return nil
		}
		from, _ := netip.AddrFromSlice(p[8:24])
		to, _ := netip.AddrFromSlice(p[24:40])
		if p[6] == 58 && n > 40 && p[40] == 135 {
			na, mac := advertise(c, dst, src, from, to, p[7], p[40:n])
			if na == nil {
				return nil
			}
			out := append(bytes.Clone(p[:40]), na...)
			copy(out[8:], p[48:64]) // from the target
			to := from
			if from.IsUnspecified() {
				to = netip.MustParseAddr("ff02::1")
			}
			copy(out[24:], to.AsSlice())
			out[42], out[43] = 0, 0
			binary.BigEndian.PutUint16(out[42:], ^l4sum(out[8:24], out[24:40], 58, out[40:]))
			return reply(mac, c.MAC, out)
		}
		if strict && (dst != c.MAC || !ours(c, to) || !host(c, from)) {
			return nil
		}
		seg := answerL4(c, from, to, p[6], p[7], bytes.Clone(p[40:n]))
		if seg == nil {
			return nil
		}
		out := bytes.Clone(p[:40])
		if strict {
			out[7] = 64
		}
		copy(out[8:], to.AsSlice())
		copy(out[24:], from.AsSlice())
		return reply(src, dst, append(out, seg...))
	case 0x0806:
		if len(p) < 28 || !trailerOK(28) || dst != c.MAC && dst != [6]byte{255, 255, 255, 255, 255, 255} ||
			!bytes.Equal(p[:8], []byte{0, 1, 8, 0, 6, 4, 0, 1}) {
			return nil
		}
		spa, _ := netip.AddrFromSlice(p[14:18])
		tpa, _ := netip.AddrFromSlice(p[24:28])
		sha := [6]byte(p[8:14])
		if !ours(c, tpa) || spa == tpa || !spa.IsUnspecified() && !host(c, spa) || sha[0]&1 == 1 || sha == c.MAC {
			return nil
		}
		out := append([]byte{0, 1, 8, 0, 6, 4, 0, 2}, c.MAC[:]...)
		out = append(append(append(out, tpa.AsSlice()...), sha[:]...), spa.AsSlice()...)
		return reply(sha, c.MAC, out)
	}
	return nil
}

func ours(c *Config, a netip.Addr) bool {
	return slices.ContainsFunc(c.Addresses, func(p netip.Prefix) bool { return p.Addr() == a })
}

// host reports whether a can be another host's address.
func host(c *Config, a netip.Addr) bool {
	b := a.AsSlice()
	if ours(c, a) || a.IsMulticast() || a.IsLoopback() || a.IsUnspecified() {
		return false
	}
	if a.Is6() {
		return !bytes.Equal(b[:8], make([]byte, 8))
	}
	if b[0] == 0 || b[0] >= 240 {
		return false
	}
	for _, p := range c.Addresses {
		if p.Addr().Is4() && p.Bits() < 31 && p.Contains(a) {
			v, hostMask := binary.BigEndian.Uint32(b), uint32(1)<<(32-p.Bits())-1
			if v&hostMask == 0 || v&hostMask == hostMask {
				return false
			}
		}
	}
	return true
}

// answerL4 returns what answers seg, which it may change.
func answerL4(c *Config, from, to netip.Addr, protocol, hop byte, seg []byte) []byte {
	if len(seg) < 8 {
		return nil
	}
	was := l4sum(from.AsSlice(), to.AsSlice(), protocol, seg)
	switch {
	case protocol == 1 && from.Is4() && seg[0] == 8 && seg[1] == 0:
		was = naiveSum(seg)
		seg[0] = 0
		setChecksum(seg, 2, was, naiveSum)
		return seg
	case protocol == 58 && from.Is6() && seg[0] == 128 && seg[1] == 0:
		seg[0] = 129
		setChecksum(seg, 2, was, func(b ...[]byte) uint16 { return l4sum(from.AsSlice(), to.AsSlice(), 58, seg) })
		return seg
	case protocol == 17:
		sport, dport := binary.BigEndian.Uint16(seg), binary.BigEndian.Uint16(seg[2:])
		stamp := slices.Contains(c.STAMPPorts, dport)
		ck := binary.BigEndian.Uint16(seg[6:])
		if !stamp && !slices.Contains(c.UDPPorts, dport) || int(binary.BigEndian.Uint16(seg[4:])) != len(seg) ||
			from.Is6() && ck == 0 || stamp && len(seg) < 49 {
			return nil
		}
		if c.Mode == Strict && (slices.Contains(c.UDPPorts, sport) || slices.Contains(c.STAMPPorts, sport) ||
			slices.Contains(servicePorts[:], sport)) {
			return nil
		}
		binary.BigEndian.PutUint16(seg, dport)
		binary.BigEndian.PutUint16(seg[2:], sport)
		if stamp {
			b := seg[8:]
			sender := bytes.Clone(b[:14])
			binary.BigEndian.PutUint64(b[4:], clockNTP)
			binary.BigEndian.PutUint16(b[12:], c.Clock.Load().ErrorEstimate)
			binary.BigEndian.PutUint64(b[16:], clockNTP)
			copy(b[24:], sender)
			copy(b[38:], []byte{0, 0, hop})
			if ck != 0 {
				setChecksum(seg, 6, was, func(b ...[]byte) uint16 { return l4sum(from.AsSlice(), to.AsSlice(), 17, seg) })
				if seg[6] == 0 && seg[7] == 0 {
					seg[6], seg[7] = 0xff, 0xff
				}
			}
		}
		return seg
	}
	return nil
}

// setChecksum makes the segment's sum what it was in the request: right if it was right, wrong by the same if not.
func setChecksum(seg []byte, at int, was uint16, sum func(...[]byte) uint16) {
	seg[at], seg[at+1] = 0, 0
	s := sum(seg)
	ck := (int(was) - int(s) + 2*0xffff) % 0xffff
	// 0 and 0xffff are the same residue. A finished checksum is 0xffff only over zeros.
	if ck == 0 && s == 0 {
		ck = 0xffff
	}
	binary.BigEndian.PutUint16(seg[at:], uint16(ck))
}

// advertise returns the neighbour advertisement for solicitation m, its checksum still to be computed, and the MAC it is
// for.
func advertise(c *Config, dst, src [6]byte, from, to netip.Addr, hop byte, m []byte) ([]byte, [6]byte) {
	none := [6]byte{}
	if src[0]&1 == 1 || src == c.MAC || hop != 255 || len(m) < 24 || m[1] != 0 ||
		l4sum(from.AsSlice(), to.AsSlice(), 58, m) != 0xffff {
		return nil, none
	}
	target, _ := netip.AddrFromSlice(m[8:24])
	group, groupMAC := solicitedNodeOf(target)
	if !ours(c, target) || to != group && to != target || dst != c.MAC && (to != group || dst != groupMAC) {
		return nil, none
	}
	if !from.IsUnspecified() && !host(c, from) {
		return nil, none
	}
	out, mac, found := append([]byte{136, 0, 0, 0, 0x60, 0, 0, 0}, m[8:24]...), src, false
	for o := m[24:]; len(o) > 0; {
		if len(o) < 8 || o[1] == 0 || int(o[1])*8 > len(o) {
			return nil, none
		}
		if o[0] == 1 {
			if o[1] != 1 {
				return nil, none
			}
			found, mac = true, [6]byte(o[2:8])
			out = append(append(out, 2, 1), c.MAC[:]...)
		} else {
			out = append(out, o[:int(o[1])*8]...)
		}
		o = o[int(o[1])*8:]
	}
	if from.IsUnspecified() {
		if found || to != group {
			return nil, none
		}
		out[4] = 0x20
		return out, [6]byte{0x33, 0x33, 0, 0, 0, 1}
	}
	if !found && to == group || found && (mac[0]&1 == 1 || mac == c.MAC) {
		return nil, none
	}
	return out, mac
}
