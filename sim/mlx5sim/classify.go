package mlx5sim

import (
	"encoding/binary"

	"github.com/rebound-nic/rebound/sim/parts"
)

// Match parameters, PRM "Flow Table Match Parameters": the fields that the model extracts from a frame.
var (
	outerHeaders = `00*1 smac_47_16 04.31:16 smac_15_0 04.15:0 ethertype 08*1 dmac_47_16 0c.31:16 dmac_15_0 0c.15:13 first_prio 0c.12 first_cfi
		0c.11:0 first_vid 10.31:24 ip_protocol 10.23:18 ip_dscp 10.17:16 ip_ecn 10.15 cvlan_tag 10.14 svlan_tag 10.13 frag 10.12:9 ip_version
		10.8:0 tcp_flags 14.31:16 tcp_sport 14.15:0 tcp_dport 18.7:0 ttl_hoplimit 1c.31:16 udp_sport 1c.15:0 udp_dport 20*4 src 30*4 dst `
	miscParameters  = "44.15:0 source_port 48.31:29 second_prio 48.28 second_cfi 48.27:16 second_vid 4c.31 second_cvlan_tag "
	misc3Parameters = "118*1 icmp_header_data 11c*1 icmpv6_header_data 120.31:24 icmp_type 120.23:16 icmp_code 120.15:8 icmpv6_type 120.7:0 icmpv6_code "
)

// Bits of match_criteria_enable.
const (
	enableOuter = 1 << 0
	enableMisc  = 1 << 1
	enableMisc3 = 1 << 4 // only the fields listed in flex_parser_protocols

	parserICMP4 = 1 << 8 // flex_parser_protocols
	parserICMP6 = 1 << 9
)

// matchable has the fields that a group with this match_criteria_enable can match.
func matchable(enable uint64) *parts.Layout {
	text := ""
	if enable&enableOuter != 0 {
		text += outerHeaders
	}
	if enable&enableMisc != 0 {
		text += miscParameters
	}
	if enable&enableMisc3 != 0 {
		text += misc3Parameters
	}
	return lay(matchSize, text)
}

// parsed is the number of bytes of the match parameters that the model fills in.
const parsed = 0x140

// parameters returns the match parameters of a frame.
func (f *frame) parameters() (p [parsed]byte) {
	copy(p[0:6], f.B[6:12])
	copy(p[8:14], f.B[:6])
	be.PutUint16(p[6:], f.EtherType)
	be.PutUint16(p[14:], f.VLAN)
	if f.Tags > 0 {
		p[0x12] |= 0x80
		if f.SVLAN {
			p[0x12] ^= 0xc0
		}
	}
	if f.Tags > 1 {
		be.PutUint16(p[0x48:], f.VLAN2)
		p[0x4c] |= 0x80
	}
	if f.L3 != parts.L3None {
		p[0x10], p[0x11] = f.Proto, f.TOS
		version := uint16(4)
		if f.L3 == parts.L3IPv6 {
			version = 6
			copy(p[0x20:], f.Src)
			copy(p[0x30:], f.Dst)
		} else {
			copy(p[0x2c:], f.Src)
			copy(p[0x3c:], f.Dst)
		}
		w := be.Uint16(p[0x12:]) | version<<9 | f.TCPFlags
		if f.Frag {
			w |= 1 << 13
		}
		be.PutUint16(p[0x12:], w)
		p[0x1b] = f.TTL
	}
	switch f.L4 {
	case parts.L4TCP:
		be.PutUint16(p[0x14:], f.SPort)
		be.PutUint16(p[0x16:], f.DPort)
	case parts.L4UDP:
		be.PutUint16(p[0x1c:], f.SPort)
		be.PutUint16(p[0x1e:], f.DPort)
	}
	if q := f.B[min(f.L4At, f.End):f.End]; f.L3 != parts.L3None && !f.Frag && len(q) >= 2 {
		switch {
		case f.L3 == parts.L3IPv4 && f.Proto == 1:
			copy(p[0x120:], q[:2])
			copy(p[0x118:0x11c], q[min(4, len(q)):])
		case f.L3 == parts.L3IPv6 && f.Proto == 58:
			copy(p[0x122:], q[:2])
			copy(p[0x11c:0x120], q[min(4, len(q)):])
		}
	}
	return p
}

// Receive handles a frame from the wire.
func (m *Model) Receive(b []byte) bool {
	if len(b) < 14 || !m.port.up || m.dead() {
		return false
	}
	m.count.wireRx[cast(b)].add(len(b))
	if len(b) > m.port.frameLimit() {
		m.host.Dropped("longer than the port's MTU")
		m.count.rxOversize++
		return false
	}
	if m.hca != hcaReady || !m.vport.lets(b) {
		m.count.filtered++
		return true
	}
	return m.take(b, nil)
}

// take counts and steers a frame that reaches the vport: from the wire, or from one of the vport's queues.
func (m *Model) take(b []byte, by *sq) bool {
	f := parse(b)
	if by != nil {
		f.from, f.made = m.obj.tiss.m[by.tis].td, by.made
	}
	if m.isRoCE(&f) {
		m.receiveRoCE(&f)
		return true
	}
	m.count.rx[cast(b)].add(len(b))
	p := f.parameters()
	took, room := m.steer(m.flow.root, &f, &p, 0)
	switch {
	case took && room:
		m.count.taken.add(len(b))
	case took: // and dropped
	case f.blocked:
		m.count.selfBlocked++
	default:
		m.count.missed++
	}
	return room
}

// maxHops bounds the number of tables that a frame passes through.
const maxHops = 64

// steer walks a flow table. took reports whether any queue was found, room whether all queues found had room for the
// frame.
func (m *Model) steer(id uint32, f *frame, p *[parsed]byte, hops int) (took, room bool) {
	t, ok := m.flow.tables[id]
	if !ok || hops > maxHops {
		return false, true
	}
	for _, e := range t.entries {
		if !matches(p, &t.groups[e.group].mask, &e.value) {
			continue
		}
		for _, c := range e.counts {
			c.add(len(f.B))
		}
		if e.action&actionDrop != 0 {
			return false, true
		}
		room = true
		for _, d := range e.dest {
			var a, b bool
			if d.kind == destTable {
				a, b = m.steer(d.id, f, p, hops+1)
			} else {
				a, b = m.intoTIR(m.obj.tirs.m[d.id], f, e.tag)
			}
			took, room = took || a, room && b
		}
		return took, room
	}
	return m.steer(t.miss, f, p, hops+1)
}

func matches(p *[parsed]byte, mask, value *[matchSize]byte) bool {
	for i := 0; i < len(p); i += 8 {
		if (binary.LittleEndian.Uint64(p[i:])^binary.LittleEndian.Uint64(value[i:]))&binary.LittleEndian.Uint64(
			mask[i:]) != 0 {
			return false
		}
	}
	return true
}

// intoTIR selects the receive queue. A TIR accepts frames from queues of the same transport domain only if configured
// to, or if they are later than its configuration.
func (m *Model) intoTIR(t *tir, f *frame, tag uint32) (took, room bool) {
	if f.from != 0 && f.from == t.td && f.made <= t.knows && t.selfLB>>min(cast(f.B), multicast)&1 == 0 {
		f.blocked = true
		return false, true
	}
	rqn, hash, kind := t.rqn, uint32(0), uint8(0)
	if t.indirect {
		hash, kind = t.hash.sum(f)
		list := m.obj.rqts.m[t.rqtn].rqns
		rqn = list[hash&uint32(len(list)-1)]
	}
	return true, m.receive(m.obj.rqs.m[rqn], f, hash, kind, tag)
}
