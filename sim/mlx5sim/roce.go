package mlx5sim

import (
	"bytes"

	"github.com/rebound-nic/rebound/sim/parts"
	"github.com/rebound-nic/rebound/sim/rdma"
)

// RoCE versions and layer 3 types of an address, and layer 3 types of a packet in a completion (Linux, driver.h,
// MLX5_ROCE_L3_TYPE).
const (
	roceV1   = 0 // its own EtherType, a GRH
	roceV2   = 2 // UDP
	l3V4Addr = 0
	l3V6Addr = 1

	typeGRH  = 0
	typeIPv6 = 1
	typeIPv4 = 2

	etherRoCE = 0x8915
	portRoCE  = 4791
	grhSize   = 40
)

var roceAddress = lay(32, `00*4 source_l3_address 10.28 vlan_valid 10.27:16 vlan_id 10.15:0 source_mac_47_32 14.31:0 source_mac_31_0
	18.11:8 roce_l3_type 18.7:0 roce_version`)

// roce is the table of addresses that the port uses as source and accepts as destination.
type roce struct {
	addresses [256]*gid // size: capability roce_address_table_size
	gsi       uint32    // the QP that is QP1
	turned    [][]byte  // looped-back packets, which arrive in the next Step
}

type gid struct {
	ip      [16]byte // an IPv4 address is in the last four bytes
	mac     [6]byte
	vlan    uint16
	tagged  bool
	version uint32
	l3      uint32
}

// Commands for RoCE.
func roceCommands() map[uint16]*command {
	ready := func(c command) *command { c.from = hcaReady; return &c }
	const which = "00.31:16 opcode 04.15:0 op_mod 08.31:16 roce_address_index 08.3:0 vhca_port_num "
	return map[uint16]*command{
		0x761: ready(command{name: "SET_ROCE_ADDRESS", in: lay(48, which).With(0x10, roceAddress), out: plainOut,
			run: (*Model).setRoCEAddress}),
		0x765: ready(command{name: "QUERY_HCA_VPORT_PKEY", in: lay(16,
			"00.31:16 opcode 04.15:0 op_mod 08.31 other_vport 08.19:16 port_num 08.15:0 vport_number 0c.15:0 pkey_index"),
			out: plainOut, run: (*Model).queryPkey}),
	}
}

// queryPkey returns a single partition key, the default one, as RoCE requires. Index ffffh requests the whole table.
func (m *Model) queryPkey(c *call) *refusal {
	if r := own(c); r != nil {
		return r
	}
	n := 128 << m.caps.general().U("pkey_table_size")
	i := c.in.I("pkey_index")
	if i != 0xffff && i >= n {
		return refuse(stBadParam, "pkey_index is %d, the table has %d", i, n)
	}
	if (i == 0 || i == 0xffff) && len(c.out.B) >= 20 {
		be.PutUint16(c.out.B[18:], 0xffff)
	}
	return nil
}

func (m *Model) setRoCEAddress(c *call) *refusal {
	in := c.in
	i := in.I("roce_address_index")
	if i >= len(m.roce.addresses) {
		return refuse(stBadParam, "roce_address_index is %d, the table has %d", i, len(m.roce.addresses)).with(0x63c66)
	}
	g := &gid{ip: [16]byte(in.Bytes("source_l3_address")), vlan: uint16(in.U("vlan_id")), tagged: in.Is("vlan_valid"),
		version: in.U32("roce_version"), l3: in.U32("roce_l3_type")}
	be.PutUint16(g.mac[:], uint16(in.U("source_mac_47_32")))
	be.PutUint32(g.mac[2:], in.U32("source_mac_31_0"))
	switch {
	case g.ip == [16]byte{}:
		g = nil
	case g.version != roceV1 && g.version != roceV2 || g.l3 > l3V6Addr:
		return refuse(stBadParam,
			"roce_version %d with roce_l3_type %d: the model has versions 0 and 2, types 0 (IPv4) and 1 (IPv6)",
			g.version, g.l3)
	}
	m.roce.addresses[i] = g
	return nil
}

// path is a packet's path: from a QP's context, or from a datagram's address vector.
type path struct {
	mac    [6]byte
	ip     [16]byte
	source uint32 // index of the source address
	tclass uint8
	hops   uint8
	sport  uint16
	flow   uint32
}

// packet is a RoCE packet without its Ethernet header.
type packet struct {
	rdma.Packet
	kind   uint8         // typeGRH, typeIPv6, typeIPv4
	grh    [grhSize]byte // received header; an IPv4 header is in its last 20 bytes
	frameN int
}

// sendPacket sends a packet on the wire (RFC 768, InfiniBand volume 1 annexes A16 and A17). It reports whether the
// source address exists.
func (m *Model) sendPacket(to *path, p *rdma.Packet) bool {
	g := m.roce.addresses[to.source&0xff]
	if g == nil {
		return false
	}
	t := p.Append(nil)
	n := len(t) + rdma.ICRCSize
	f := make([]byte, 14, 14+4+grhSize+8+n)
	copy(f, to.mac[:])
	copy(f[6:], g.mac[:])
	if g.tagged {
		be.PutUint16(f[12:], 0x8100)
		f = append(f, byte(g.vlan>>8), byte(g.vlan), 0, 0)
	}
	at := len(f)
	switch {
	case g.version == roceV1:
		be.PutUint16(f[at-2:], etherRoCE)
		f = appendIPv6(f, to, g, n, 27) // IBA's next header value
	case g.l3 == l3V4Addr:
		be.PutUint16(f[at-2:], 0x0800)
		f = append(f, 0x45, to.tclass, 0, 0, 0, 0, 0x40, 0, to.hops, 17, 0, 0)
		f = append(append(f, g.ip[12:]...), to.ip[12:]...)
		be.PutUint16(f[at+2:], uint16(20+8+n))
		be.PutUint16(f[at+10:], ^parts.Sum16(f[at:at+20], 0))
	default:
		be.PutUint16(f[at-2:], 0x86dd)
		f = appendIPv6(f, to, g, 8+n, 17)
	}
	if g.version == roceV2 {
		f = be.AppendUint16(be.AppendUint16(f, to.sport), portRoCE)
		f = append(be.AppendUint16(f, uint16(8+n)), 0, 0)
	}
	f = append(f, t...)
	f = append(f, rdma.ICRC(f[at:], false)...)
	m.emit(f)
	return true
}

func appendIPv6(f []byte, to *path, g *gid, n int, next byte) []byte {
	f = be.AppendUint32(f, 6<<28|uint32(to.tclass)<<20|to.flow&0xfffff)
	f = append(be.AppendUint16(f, uint16(n)), next, to.hops)
	return append(append(f, g.ip[:]...), to.ip[:]...)
}

// emit counts a RoCE frame and sends it on the wire or, if it is for our own address, loops it back.
func (m *Model) emit(f []byte) {
	for len(f) < 60 {
		f = append(f, 0)
	}
	kind := cast(f)
	m.count.txIB[min(kind, multicast)].add(len(f))
	if m.lose != nil && m.lose(f) {
		return
	}
	if kind == unicast && m.vport.owns([6]byte(f)) {
		m.roce.turned = append(m.roce.turned, f)
		return
	}
	m.count.wireTx[kind].add(len(f))
	if m.port.up {
		m.host.Transmit(f)
	} else {
		m.count.txDiscard++
	}
}

// isRoCE reports whether a frame is for the RoCE transport, which has precedence over all flow tables.
func (m *Model) isRoCE(f *frame) bool {
	return m.vport.roce && (f.EtherType == etherRoCE || f.L4 == parts.L4UDP && f.DPort == portRoCE)
}

// receiveRoCE handles a RoCE frame that arrived at the vport.
func (m *Model) receiveRoCE(f *frame) {
	m.count.rxIB[min(cast(f.B), multicast)].add(len(f.B))
	p, ok := m.parsePacket(f)
	if !ok {
		m.count.roceDropped++
		return
	}
	if p.QPN == 1 {
		p.QPN = m.roce.gsi
	}
	q := m.obj.qps.m[p.QPN]
	if q == nil || q.state < qpRTR || q.state == qpError {
		m.count.roceDropped++
		return
	}
	switch {
	case (q.st == serviceUD || q.st == serviceGSI) && p.Op>>5 == rdma.ServiceUD:
		m.receiveDatagram(q, p)
	case q.st == serviceRC && p.Op>>5 == rdma.ServiceRC:
		q.conn.Receive(connection{m, q}, &p.Packet)
	default:
		m.count.roceDropped++
	}
}

// parsePacket checks a packet's headers, its checksum, and that its destination is one of our addresses.
func (m *Model) parsePacket(f *frame) (*packet, bool) {
	b := f.B[f.At:]
	p := &packet{frameN: len(f.B)}
	var bth, end int
	var dst [16]byte
	switch {
	case f.EtherType == etherRoCE && len(b) >= grhSize:
		p.kind, bth, end = typeGRH, grhSize, grhSize+int(be.Uint16(b[4:]))
		copy(dst[:], b[24:40])
	case f.L3 == parts.L3IPv6:
		p.kind, bth, end = typeIPv6, grhSize+8, f.End-f.At
		copy(dst[:], f.Dst)
	case f.L3 == parts.L3IPv4:
		p.kind, bth, end = typeIPv4, f.L4At-f.At+8, f.End-f.At
		copy(dst[12:], f.Dst)
	}
	if bth == 0 || end > len(b) || end-bth < rdma.BTHSize+rdma.ICRCSize {
		return nil, false
	}
	b = b[:end]
	if p.kind == typeIPv4 {
		copy(p.grh[20:], b[:20])
	} else {
		copy(p.grh[:], b[:grhSize])
	}
	end -= rdma.ICRCSize
	var ok bool
	if p.Packet, ok = rdma.Parse(b[bth:end]); !ok || !bytes.Equal(rdma.ICRC(b[:end], false), b[end:]) {
		return nil, false
	}
	return p, m.hasAddress(dst, p.kind)
}

// hasAddress reports whether a packet's destination is one of ours.
func (m *Model) hasAddress(dst [16]byte, kind uint8) bool {
	for _, g := range m.roce.addresses {
		switch {
		case g == nil, (g.version == roceV1) != (kind == typeGRH),
			(g.version == roceV2 && g.l3 == l3V4Addr) != (kind == typeIPv4):
		case kind == typeIPv4 && [4]byte(g.ip[12:]) == [4]byte(dst[12:]), kind != typeIPv4 && g.ip == dst:
			return true
		}
	}
	return false
}
