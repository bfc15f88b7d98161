package mlx5sim

import "encoding/binary"

const (
	l3None = 0
	l3IPv6 = 1 // as l4_l3_hdr_type of a CQE
	l3IPv4 = 2

	l4None = 0
	l4TCP  = 1
	l4UDP  = 2
)

// frame is a parsed Ethernet frame.
type frame struct {
	b            []byte
	etherType    uint16 // behind the tags
	vlan, vlan2  uint16
	tags         int
	svlan        bool // the outer tag is 802.1ad
	at           int  // where layer 3 begins
	l3, l4       uint8
	proto        uint8
	tos, ttl     uint8
	frag         bool
	src, dst     []byte
	sport, dport uint16
	tcpFlags     uint16
	l4At, end    int // where layer 4 begins, and the packet ends: padding excluded
	l3OK, l4OK   bool
	from         uint32 // transport domain that sent it; 0 from the wire
	blocked      bool   // a TIR kept it from its own transport domain
}

// parse never fails: what it cannot make out stays zero.
func parse(b []byte) (f frame) {
	f.b, f.end = b, len(b)
	if len(b) < 14 {
		return f
	}
	f.at = 14
	f.etherType = binary.BigEndian.Uint16(b[12:])
	for f.tags < 2 && (f.etherType == 0x8100 || f.etherType == 0x88a8) && len(b) >= f.at+4 {
		tci := binary.BigEndian.Uint16(b[f.at:])
		if f.tags == 0 {
			f.vlan, f.svlan = tci, f.etherType == 0x88a8
		} else {
			f.vlan2 = tci
		}
		f.etherType = binary.BigEndian.Uint16(b[f.at+2:])
		f.at += 4
		f.tags++
	}
	p := b[f.at:]
	switch {
	case f.etherType == 0x0800 && len(p) >= 20 && p[0]>>4 == 4:
		hl, total := int(p[0]&15)*4, int(binary.BigEndian.Uint16(p[2:]))
		if hl < 20 || total < hl || total > len(p) {
			return f
		}
		f.l3, f.tos, f.ttl, f.proto = l3IPv4, p[1], p[8], p[9]
		f.frag = binary.BigEndian.Uint16(p[6:])&0x3fff != 0
		f.src, f.dst = p[12:16], p[16:20]
		f.l4At, f.end = f.at+hl, f.at+total
		f.l3OK = sum16(p[:hl], 0) == 0xffff
	case f.etherType == 0x86dd && len(p) >= 40 && p[0]>>4 == 6:
		n := int(binary.BigEndian.Uint16(p[4:]))
		if 40+n > len(p) {
			return f
		}
		f.l3, f.tos, f.ttl, f.proto = l3IPv6, p[0]<<4|p[1]>>4, p[7], p[6]
		f.src, f.dst = p[8:24], p[24:40]
		f.l4At, f.end = f.at+40, f.at+40+n
		f.l3OK = true
	default:
		return f
	}
	f.ports()
	return f
}

func (f *frame) ports() {
	q := f.b[f.l4At:f.end]
	if f.frag || len(q) < 8 {
		return
	}
	switch {
	case f.proto == 17:
		f.l4 = l4UDP
		f.l4OK = binary.BigEndian.Uint16(q[6:]) == 0 && f.l3 == l3IPv4 || f.l4sum() == 0xffff
	case f.proto == 6 && len(q) >= 20:
		f.l4 = l4TCP
		f.tcpFlags = binary.BigEndian.Uint16(q[12:]) & 0x1ff
		f.l4OK = f.l4sum() == 0xffff
	default:
		return
	}
	f.sport, f.dport = binary.BigEndian.Uint16(q), binary.BigEndian.Uint16(q[2:])
}

// spi is the security parameters index of ESP (RFC 4303 §2) and AH (RFC 4302 §2), or nil.
func (f *frame) spi() []byte {
	off := f.l4At
	switch f.proto {
	case 51:
		off += 4
	case 50:
	default:
		return nil
	}
	if f.frag || off+4 > f.end {
		return nil
	}
	return f.b[off : off+4]
}

// l4sum is the one's complement sum of layer 4 with its pseudo header.
func (f *frame) l4sum() uint16 {
	s := sum16(f.src, 0)
	s = sum16(f.dst, s)
	n := f.end - f.l4At
	return sum16(f.b[f.l4At:f.end], add16(add16(s, uint16(f.proto)), uint16(n)))
}

func add16(a, b uint16) uint16 {
	s := uint32(a) + uint32(b)
	return uint16(s + s>>16)
}

// sum16 is the one's complement sum of b and s.
func sum16(b []byte, s uint16) uint16 {
	t := uint64(s)
	for ; len(b) >= 2; b = b[2:] {
		t += uint64(b[0])<<8 | uint64(b[1])
	}
	if len(b) == 1 {
		t += uint64(b[0]) << 8
	}
	for t>>16 != 0 {
		t = t>>16 + t&0xffff
	}
	return uint16(t)
}
