package enasim

import (
	"fmt"

	"github.com/rebound-nic/rebound/sim"
)

// parsed is the device's view of a frame's headers.
type parsed struct {
	f        []byte
	proto    int // of the hash input
	l3, ip   int // ena_eth_io_l3_proto_index; offset of the IP header
	ipLen    int // of header
	src, dst []byte
	l4       int // offset of the TCP or UDP header, 0 for none
	l4Proto  int // ena_eth_io_l4_proto_index
	end      int // of the IP packet
	frag     bool
}

func parseFrame(f []byte) parsed {
	p := parsed{f: f, proto: protoOther}
	at := 12
	for n := 0; n < 2 && at+6 <= len(f) && (be.Uint16(f[at:]) == 0x8100 || be.Uint16(f[at:]) == 0x88a8); n++ {
		at += 4
	}
	if at+2 > len(f) {
		return p
	}
	ip := f[at+2:]
	switch be.Uint16(f[at:]) {
	case 0x0800:
		if len(ip) < 20 || ip[0]>>4 != 4 {
			return p
		}
		hl, total := int(ip[0]&15)*4, int(be.Uint16(ip[2:]))
		if hl < 20 || total < hl || total > len(ip) {
			return p
		}
		p.l3, p.ip, p.ipLen, p.end = l3IPv4, at+2, hl, at+2+total
		p.src, p.dst = ip[12:16], ip[16:20]
		if p.frag = be.Uint16(ip[6:])&0x3fff != 0; p.frag {
			p.proto = protoFrag4
			return p
		}
		p.transport(ip[9], protoIP4, protoTCP4, protoUDP4)
	case 0x86dd:
		if len(ip) < 40 || ip[0]>>4 != 6 {
			return p
		}
		total := 40 + int(be.Uint16(ip[4:]))
		if total > len(ip) {
			return p
		}
		p.l3, p.ip, p.ipLen, p.end = l3IPv6, at+2, 40, at+2+total
		p.src, p.dst = ip[8:24], ip[24:40]
		if next := ip[6]; next == 0 || next == 43 || next == 60 { // extension headers are not followed
			p.proto = protoIP6EX
			return p
		}
		p.transport(ip[6], protoIP6, protoTCP6, protoUDP6)
	}
	return p
}

func (p *parsed) transport(next byte, ip, tcp, udp int) {
	p.proto = ip
	at := p.ip + p.ipLen
	switch {
	case next == 6 && p.end-at >= 20:
		p.proto, p.l4, p.l4Proto = tcp, at, l4TCP
	case next == 17 && p.end-at >= 8:
		p.proto, p.l4, p.l4Proto = udp, at, l4UDP
	}
}

// status is the result of parsing and of the enabled checks in a receive completion.
func (p *parsed) status(enabled uint32) uint32 {
	s := uint32(p.l3) | uint32(p.l4Proto)<<8
	if p.frag {
		s |= rxFrag
	}
	if p.l3 == l3IPv4 && (enabled&1 == 0 || ones(p.f[p.ip:p.ip+p.ipLen], 0) != 0xffff) {
		s |= rxL3Err
	}
	if p.l4 == 0 || enabled&map[int]uint32{l3IPv4: 1 << 1, l3IPv6: 1 << 2}[p.l3] == 0 {
		return s
	}
	if p.l4Proto == l4UDP && be.Uint16(p.f[p.l4+6:]) == 0 {
		return s // no checksum to check
	}
	s |= rxChecked
	if ones(p.f[p.l4:p.end], p.pseudo()) != 0xffff {
		s |= rxL4Err
	}
	return s
}

// pseudo is the sum of the pseudo-header.
func (p *parsed) pseudo() uint32 {
	next := uint32(6)
	if p.l4Proto == l4UDP {
		next = 17
	}
	return ones(p.dst, ones(p.src, next+uint32(p.end-p.l4)))
}

// ones is the one's complement sum of b and s, folded.
func ones(b []byte, s uint32) uint32 {
	for i, x := range b {
		s += uint32(x) << (8 * (1 - i&1))
		s = s>>16 + s&0xffff
	}
	return s>>16 + s&0xffff
}

// insertChecksum completes a transport checksum whose field contains the pseudo-header's sum. The meta descriptor
// locates it.
func insertChecksum(h sim.Host, f []byte, ctrl uint32, meta txMetaData) error {
	if !meta.valid {
		return fmt.Errorf("l4_csum_en, but no meta descriptor was sent with the frame or stored")
	}
	l3, l4 := int(ctrl&0xf), int(ctrl>>8&0x1f)
	p := parseFrame(f)
	at, field := meta.l3Off+meta.l3Len, 6
	if l4 == l4TCP {
		field = 16
	}
	switch {
	case l3 != p.l3 || l4 != l4TCP && l4 != l4UDP || p.l4Proto != 0 && l4 != p.l4Proto:
		return fmt.Errorf("l3_proto_idx %d and l4_proto_idx %d, the frame has %d and %d", l3, l4, p.l3, p.l4Proto)
	case meta.l3Off != p.ip:
		return fmt.Errorf("l3_hdr_off %d, the frame's IP header begins at %d", meta.l3Off, p.ip)
	case at+field+2 > p.end:
		return fmt.Errorf("l3_hdr_off %d, l3_hdr_len %d: no checksum there in a packet that ends at %d", meta.l3Off,
			meta.l3Len, p.end)
	case ctrl&tx1Partial == 0 && p.l4 == 0:
		return fmt.Errorf("l4_csum_en without l4_csum_partial in a packet without a TCP or UDP header")
	case l3 == l3IPv4 && ctrl&tx1DF != 0 != (f[p.ip+6]&0x40 != 0): // DPDK sets it by the packet's type
		h.Warnf("transmit descriptor: DF is %v, not as in the IPv4 header", ctrl&tx1DF != 0)
	}
	pseudo := uint32(0)
	if ctrl&tx1Partial == 0 {
		// The device offers partial checksums only. DPDK leaves the bit out though it did put the pseudo header's sum
		// there, and its frames arrive.
		h.Warnf("transmit descriptor: l4_csum_en without l4_csum_partial")
		pseudo = p.pseudo()
		be.PutUint16(f[at+field:], 0)
	}
	sum := ^uint16(ones(f[at:p.end], pseudo))
	if sum == 0 && l4 == l4UDP {
		sum = 0xffff
	}
	be.PutUint16(f[at+field:], sum)
	return nil
}
