package ixgbesim

import "encoding/binary"

var be = binary.BigEndian

// packet is the receive parser's result, §7.1.2.8 and §7.1.6.2: offsets from the start of the frame, 0 for none.
type packet struct {
	vlan     bool
	tag      uint16
	ip       int
	v6       bool
	fragment bool
	proto    byte
	l4       int
	end      int    // of the IP packet
	kind     uint32 // PKTTYPE
}

// PKTTYPE bits, table 7-17.
const (
	pktIP4, pktIP4E = 1 << 0, 1 << 1
	pktIP6, pktIP6E = 1 << 2, 1 << 3
	pktTCP, pktUDP  = 1 << 4, 1 << 5
	pktSCTP         = 1 << 6
	pktEType        = 1 << 11 // bits 2 to 0 name the EtherType filter instead
)

const protoTCP, protoUDP, protoSCTP = 6, 17, 132

func parse(f []byte) (p packet) {
	off := 12
	if be.Uint16(f[off:]) == 0x8100 {
		p.vlan, p.tag = true, be.Uint16(f[14:])
		off = 16
	}
	typ := be.Uint16(f[off:])
	off += 2
	switch {
	case typ == 0x0800 && len(f) >= off+20 && f[off]>>4 == 4:
		ihl, total := int(f[off]&0xf)*4, int(be.Uint16(f[off+2:]))
		if ihl < 20 || total < ihl || off+total > len(f) {
			return p
		}
		p.ip, p.end, p.proto, p.l4 = off, off+total, f[off+9], off+ihl
		p.kind = pktIP4
		if ihl > 20 {
			p.kind = pktIP4E
		}
		p.fragment = be.Uint16(f[off+6:])&0x3fff != 0
	case typ == 0x86dd && len(f) >= off+40 && f[off]>>4 == 6:
		p.ip, p.v6, p.proto, p.l4 = off, true, f[off+6], off+40
		p.end = off + 40 + int(be.Uint16(f[off+4:]))
		p.kind = pktIP6
		if p.end > len(f) {
			return packet{vlan: p.vlan, tag: p.tag}
		}
		for p.proto == 0 || p.proto == 43 || p.proto == 44 || p.proto == 60 { // extension headers
			if p.l4+8 > p.end {
				return packet{vlan: p.vlan, tag: p.tag}
			}
			p.kind = pktIP6E
			n := 8
			if p.proto == 44 {
				p.fragment = true
			} else {
				n = 8 + 8*int(f[p.l4+1])
			}
			p.proto = f[p.l4]
			if p.l4 += n; p.l4 > p.end {
				return packet{vlan: p.vlan, tag: p.tag}
			}
		}
	default:
		return p
	}
	if p.fragment {
		return p
	}
	switch n := p.end - p.l4; {
	case p.proto == protoTCP && n >= 20:
		p.kind |= pktTCP
	case p.proto == protoUDP && n >= 8:
		p.kind |= pktUDP
	case p.proto == protoSCTP && n >= 12:
		p.kind |= pktSCTP
	default:
		p.proto = 0
	}
	return p
}

// frame0 undoes VLAN stripping in the offsets of p, so that they fit the frame as it is stored.
func frame0(f []byte, stripped bool, p *packet) []byte {
	if stripped && p.ip > 0 {
		p.ip, p.l4, p.end = p.ip-4, p.l4-4, p.end-4
	}
	return f
}

// verify checks the checksums that the device checks, §7.1.11, and returns the descriptor's status and error bits.
func (p *packet) verify(f []byte) (status, errs uint32) {
	if p.ip == 0 {
		return 0, 0
	}
	if !p.v6 {
		status |= rxIP
		if fold(sum(f[p.ip:p.l4], 0)) != 0xffff {
			errs |= rxIE
		}
	}
	if p.fragment || p.proto != protoTCP && p.proto != protoUDP {
		return status, errs
	}
	if p.proto == protoUDP && be.Uint16(f[p.l4+6:]) == 0 {
		return status, errs // the sender made none
	}
	status |= rxL4I
	if fold(sum(f[p.l4:p.end], p.pseudo(f, p.end-p.l4))) != 0xffff {
		errs |= rxL4E
	}
	return status, errs
}

// pseudo sums the pseudo header.
func (p *packet) pseudo(f []byte, n int) uint32 {
	addrs := f[p.ip+12 : p.ip+20]
	if p.v6 {
		addrs = f[p.ip+8 : p.ip+40]
	}
	return sum(addrs, uint32(p.proto)+uint32(n))
}

// sum adds big-endian 16-bit words, padding an odd length with a zero byte (RFC 1071).
func sum(b []byte, s uint32) uint32 {
	t := uint64(s)
	for ; len(b) >= 2; b = b[2:] {
		t += uint64(b[0])<<8 | uint64(b[1])
	}
	if len(b) == 1 {
		t += uint64(b[0]) << 8
	}
	for t > 0xffff {
		t = t&0xffff + t>>16
	}
	return uint32(t)
}

func fold(s uint32) uint16 {
	for s > 0xffff {
		s = s&0xffff + s>>16
	}
	return uint16(s)
}
