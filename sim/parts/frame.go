package parts

import "encoding/binary"

// Layers of a Frame, by their numbers in a ConnectX CQE (l4_l3_hdr_type).
const (
	L3None = 0
	L3IPv6 = 1
	L3IPv4 = 2

	L4None = 0
	L4TCP  = 1
	L4UDP  = 2
)

// Frame is a parsed Ethernet frame, for models that classify and check what they receive.
type Frame struct {
	B            []byte
	EtherType    uint16 // after the tags
	VLAN, VLAN2  uint16
	Tags         int
	SVLAN        bool // the outer tag is 802.1ad
	At           int  // offset of layer 3
	L3, L4       uint8
	Proto        uint8
	TOS, TTL     uint8
	Frag         bool
	Src, Dst     []byte
	SPort, DPort uint16
	TCPFlags     uint16
	L4At, End    int // offset of layer 4, and end of the packet without padding
	L3OK, L4OK   bool
}

// ParseFrame never fails: fields that it cannot parse stay zero.
func ParseFrame(b []byte) (f Frame) {
	f.B, f.End = b, len(b)
	if len(b) < 14 {
		return f
	}
	f.At = 14
	f.EtherType = binary.BigEndian.Uint16(b[12:])
	for f.Tags < 2 && (f.EtherType == 0x8100 || f.EtherType == 0x88a8) && len(b) >= f.At+4 {
		tci := binary.BigEndian.Uint16(b[f.At:])
		if f.Tags == 0 {
			f.VLAN, f.SVLAN = tci, f.EtherType == 0x88a8
		} else {
			f.VLAN2 = tci
		}
		f.EtherType = binary.BigEndian.Uint16(b[f.At+2:])
		f.At += 4
		f.Tags++
	}
	p := b[f.At:]
	switch {
	case f.EtherType == 0x0800 && len(p) >= 20 && p[0]>>4 == 4:
		hl, total := int(p[0]&15)*4, int(binary.BigEndian.Uint16(p[2:]))
		if hl < 20 || total < hl || total > len(p) {
			return f
		}
		f.L3, f.TOS, f.TTL, f.Proto = L3IPv4, p[1], p[8], p[9]
		f.Frag = binary.BigEndian.Uint16(p[6:])&0x3fff != 0
		f.Src, f.Dst = p[12:16], p[16:20]
		f.L4At, f.End = f.At+hl, f.At+total
		f.L3OK = Sum16(p[:hl], 0) == 0xffff
	case f.EtherType == 0x86dd && len(p) >= 40 && p[0]>>4 == 6:
		n := int(binary.BigEndian.Uint16(p[4:]))
		if 40+n > len(p) {
			return f
		}
		f.L3, f.TOS, f.TTL, f.Proto = L3IPv6, p[0]<<4|p[1]>>4, p[7], p[6]
		f.Src, f.Dst = p[8:24], p[24:40]
		f.L4At, f.End = f.At+40, f.At+40+n
		f.L3OK = true
	default:
		return f
	}
	f.ports()
	return f
}

func (f *Frame) ports() {
	q := f.B[f.L4At:f.End]
	if f.Frag || len(q) < 8 {
		return
	}
	switch {
	case f.Proto == 17:
		f.L4 = L4UDP
		f.L4OK = binary.BigEndian.Uint16(q[6:]) == 0 && f.L3 == L3IPv4 || f.L4Sum() == 0xffff
	case f.Proto == 6 && len(q) >= 20:
		f.L4 = L4TCP
		f.TCPFlags = binary.BigEndian.Uint16(q[12:]) & 0x1ff
		f.L4OK = f.L4Sum() == 0xffff
	default:
		return
	}
	f.SPort, f.DPort = binary.BigEndian.Uint16(q), binary.BigEndian.Uint16(q[2:])
}

// SPI returns the security parameters index of ESP (RFC 4303 §2) or AH (RFC 4302 §2), or nil.
func (f *Frame) SPI() []byte {
	off := f.L4At
	switch f.Proto {
	case 51:
		off += 4
	case 50:
	default:
		return nil
	}
	if f.Frag || off+4 > f.End {
		return nil
	}
	return f.B[off : off+4]
}

// L4Sum returns the one's complement sum of layer 4 and its pseudo-header.
func (f *Frame) L4Sum() uint16 {
	s := Sum16(f.Src, 0)
	s = Sum16(f.Dst, s)
	n := f.End - f.L4At
	return Sum16(f.B[f.L4At:f.End], add16(add16(s, uint16(f.Proto)), uint16(n)))
}

func add16(a, b uint16) uint16 {
	s := uint32(a) + uint32(b)
	return uint16(s + s>>16)
}

// Sum16 returns the one's complement sum of b and s.
func Sum16(b []byte, s uint16) uint16 {
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
