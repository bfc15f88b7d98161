package mlx4sim

import (
	"bytes"

	"github.com/rebound-nic/rebound/sim/rdma"
)

// Packets of an InfiniBand port, IBTA 1.3 volume 1 chapters 7 to 9. This model's wire format has no variant CRC.
const (
	permissiveLID  = 0xffff
	firstMulticast = 0xc000
	multicastQP    = 0xffffff
	managementVL   = 15
	wellKnownQKey  = 0x80010000 // of QP1

	nextLocal  = 2 // of the local route header: the transport's follows
	nextGlobal = 3 // a global route header does
	nextIBA    = 0x1b
)

// av is the address vector of a datagram segment, PRM "UD Address Vector" and "wqe_segment_ud"; on an Ethernet port
// the destination's address follows it.
var av = lay(48, `00.31 fl 00.25:24 port 00.23:0 pd 04.23 g 04.22:16 my_lid 04.15:0 rlid 08.22:16 mgid_index 08.11:8 max_stat_rate 08.7:0 hop_limit
	0c.31:28 sl 0c.27:20 tclass 0c.19:0 flow_label 10*4 rgid 20.23:0 dqpn 24.31:0 qkey 28.31:16 vlan 28.15:0 dmac_h 2c.31:0 dmac_l`)

// Bits of the control segment's flags for MLX queues.
const (
	mlxICRC = 1 << 4  // the last dword is the ICRC already
	mlxSLR  = 1 << 16 // the source LID is in the headers already
	mlxVL15 = 1 << 17
)

// path is a packet's destination: from a datagram's address vector, or a connection's context.
type path struct {
	sl, tclass, hops uint8
	dlid             uint16
	srcBits          uint16 // low bits of the source LID
	flow             uint32
	global           bool
	source           int // index of the source GID
	dgid             [16]byte
	dmac             [6]byte // on an Ethernet port
	smac             [6]byte
}

// packet is a packet with the headers of its link.
type packet struct {
	rdma.Packet
	vl, sl     uint8
	dlid, slid uint16
	grh        []byte // nil for none
	smac       []byte // on an Ethernet port

	// Of a datagram.
	qkey, sqpn uint32
	imm        []byte
	payload    []byte
}

// parsePacket parses a packet of an InfiniBand port. It refuses unknown formats.
func parsePacket(b []byte) (p packet, ok bool) {
	if len(b) < rdma.LRHSize+rdma.BTHSize+rdma.ICRCSize || int(be.Uint16(b[4:])&0x7ff)*4 != len(b) {
		return p, false
	}
	p.vl, p.sl, p.dlid, p.slid = b[0]>>4, b[1]>>4, be.Uint16(b[2:]), be.Uint16(b[6:])
	end := len(b) - rdma.ICRCSize
	r := b[rdma.LRHSize:end]
	switch b[1] & 3 {
	case nextLocal:
	case nextGlobal:
		if len(r) < rdma.GRHSize {
			return p, false
		}
		p.grh, r = r[:rdma.GRHSize], r[rdma.GRHSize:]
	default:
		return p, false
	}
	return p, p.parseTransport(r) && bytes.Equal(rdma.ICRC(b[:end], true), b[end:])
}

func (p *packet) parseTransport(r []byte) (ok bool) {
	if p.Packet, ok = rdma.Parse(r); !ok || p.Op>>5 != rdma.ServiceUD {
		return ok && p.Op>>5 == rdma.ServiceRC
	}
	n := rdma.DETHSize
	if p.Op == rdma.UDSendImm {
		n += 4
	}
	if p.Op != rdma.UDSend && p.Op != rdma.UDSendImm || len(p.Body) < n {
		return false
	}
	p.qkey, p.sqpn = be.Uint32(p.Body), be.Uint32(p.Body[4:])&0xffffff
	if n > rdma.DETHSize {
		p.imm = p.Body[rdma.DETHSize:n]
	}
	p.payload = p.Body[n:]
	return true
}

// finish sets a packet's length and appends its ICRC.
func finish(b []byte) []byte {
	be.PutUint16(b[4:], be.Uint16(b[4:])&^0x7ff|uint16((len(b)+rdma.ICRCSize)/4))
	return append(b, rdma.ICRC(b, true)...)
}

// sendPacket prepends the link's headers to a packet and sends it.
func (m *Model) sendPacket(q *qp, to *path, p *rdma.Packet) {
	ib := &m.port.ib
	p.PKey = ib.pkeys[q.ctx.U("pkey_index")&127]
	t := p.Append(nil)
	var g []byte
	if to.global {
		g = make([]byte, rdma.GRHSize)
		be.PutUint32(g, 6<<28|uint32(to.tclass)<<20|to.flow&0xfffff)
		be.PutUint16(g[4:], uint16(len(t)+rdma.ICRCSize))
		g[6], g[7] = nextIBA, to.hops
		source := m.gid(to.source)
		copy(g[8:], source[:])
		copy(g[24:], to.dgid[:])
	}
	if m.port.link == Ethernet {
		m.sendRoCE(q, to, append(g, t...))
		return
	}
	b := make([]byte, rdma.LRHSize, rdma.LRHSize+len(g)+len(t)+rdma.ICRCSize)
	vl, ok := m.lane(to.sl)
	if !ok {
		q.sent++
		m.count.packetsOff++
		return
	}
	b[0] = vl << 4
	b[1] = to.sl<<4 | nextLocal
	if g != nil {
		b[1] |= nextGlobal
	}
	be.PutUint16(b[2:], to.dlid)
	be.PutUint16(b[6:], ib.lid|to.srcBits&(1<<ib.lmc-1))
	m.emit(q, finish(append(append(b, g...), t...)))
}

// lane returns the virtual lane of a service level, and whether it is in use: packets for others are dropped.
func (m *Model) lane(sl uint8) (vl uint8, ok bool) {
	ib := &m.port.ib
	vl = ib.sl2vl[sl>>1&7] >> (4 * (1 - sl&1)) & 15
	return vl, vl < 1<<(max(ib.vls, 1)-1)
}

// sendInfiniBand executes a WQE of an InfiniBand port.
func (m *Model) sendInfiniBand(q *qp, idx uint32, op uint8, w []byte) *wqeError {
	if op != opSend && op != opSendImm {
		return badWQE(syndLocalOp,
			"opcode is %02xh, a datagram queue has 00h (NOP), 0ah and 0bh (SEND, with immediate)", op)
	}
	if q.st == serviceMLX {
		return m.sendRaw(q, w)
	}
	if len(w) < ctrlSize+av.Size {
		return badWQE(syndLocalOp, "ds is %d: no room for the datagram segment", len(w)/segSize)
	}
	a := as(w[ctrlSize:], av)
	payload, err := m.gather(q, nil, w[ctrlSize+av.Size:], ctrlSize+av.Size)
	most := 256 << (m.port.ib.mtu - 1)
	switch {
	case err != nil:
		return err
	case len(payload) > most:
		return badWQE(syndLocalLength, "%d bytes, the MTU is %d", len(payload), most)
	case a.U("port") != 1:
		return badWQE(syndLocalOp, "the address vector says port %d", a.U("port"))
	case a.U32("pd") != q.pd:
		return badWQE(syndLocalProt, "the address vector's protection domain is %#x, the queue's %#x", a.U("pd"), q.pd)
	case m.port.link == Ethernet && !a.Is("g"):
		return badWQE(syndLocalOp, "the address vector has no global address (g), which an Ethernet port goes by")
	}
	if vlan := a.U("vlan"); m.port.link == Ethernet && (w[6]&(insertCVLAN|insertSVLAN) != 0 ||
		vlan != 0 && vlan < 0x1000) {
		m.host.Warnf("%v: a VLAN tag is asked for, and datagrams are sent without one in this model", q)
	}
	key := a.U32("qkey")
	if key>>31 != 0 {
		key = q.ctx.U32("q_key")
	}
	p := &rdma.Packet{Op: rdma.UDSend, Solicited: be.Uint32(w[8:])>>1&1 != 0, QPN: a.U32("dqpn"),
		PSN: uint32(q.sent) & 0xffffff}
	p.Body = be.AppendUint32(be.AppendUint32(nil, key), q.id)
	if op == opSendImm {
		p.Op = rdma.UDSendImm
		p.Body = append(p.Body, w[12:16]...)
	}
	p.Body = append(p.Body, payload...)
	to := &path{sl: uint8(a.U("sl")), tclass: uint8(a.U("tclass")), hops: uint8(a.U("hop_limit")),
		dlid: uint16(a.U("rlid")), srcBits: uint16(a.U("my_lid")),
		flow: a.U32("flow_label"), global: a.Is("g"), source: a.I("mgid_index"), dgid: [16]byte(a.Bytes("rgid")),
		smac: m.opt.MAC}
	be.PutUint16(to.dmac[:], uint16(a.U("dmac_h")))
	be.PutUint32(to.dmac[2:], a.U32("dmac_l"))
	m.sendPacket(q, to, p)
	return nil
}

// sendRaw sends a packet that an MLX queue built, including headers. The device inserts the source LID and the ICRC if
// they are missing.
func (m *Model) sendRaw(q *qp, w []byte) *wqeError {
	flags := be.Uint32(w[8:])
	b, err := m.gather(q, nil, w[ctrlSize:], ctrlSize)
	if err != nil {
		return err
	}
	if m.port.link == Ethernet {
		return m.sendRawRoCE(q, flags, b)
	}
	if len(b) < rdma.LRHSize+rdma.BTHSize+rdma.ICRCSize || len(b)&3 != 0 {
		return badWQE(syndLocalLength, "a packet of %d bytes with its headers and room for the ICRC", len(b))
	}
	if be.Uint16(b[2:]) != uint16(be.Uint32(w[12:])>>16) {
		m.host.Warnf("%v: rlid is %#x, the headers say %#x", q, be.Uint32(w[12:])>>16, be.Uint16(b[2:]))
	}
	if vl15 := b[0]>>4 == managementVL; vl15 != (flags&mlxVL15 != 0) {
		m.host.Warnf("%v: v15 is %d, the headers say virtual lane %d", q, flags>>17&1, b[0]>>4)
	}
	if flags&mlxSLR == 0 {
		be.PutUint16(b[6:], m.port.ib.lid)
	}
	if flags&mlxICRC == 0 {
		b = finish(b[:len(b)-rdma.ICRCSize])
	}
	m.emit(q, b)
	return nil
}

// emit puts a packet on the wire, or loops it back if it is for this port. Members of a group receive what this port
// sends to it.
func (m *Model) emit(q *qp, b []byte) {
	q.sent++
	ib := &m.port.ib
	dlid := be.Uint16(b[2:])
	if b[0]>>4 != managementVL && ib.state != stateActive {
		m.count.packetsOff++
		return
	}
	if dlid == ib.lid && dlid != 0 || dlid >= firstMulticast && dlid != permissiveLID {
		m.port.turned = append(m.port.turned, append([]byte(nil), b...))
		if dlid < firstMulticast {
			return
		}
	}
	if !m.port.wire {
		m.count.packetsOff++
		return
	}
	m.transmitPacket(b)
}

func (m *Model) transmitPacket(b []byte) {
	m.count.packetsOut++
	m.count.wordsOut += uint64(len(b) / 4)
	if toGroup(b) {
		m.count.groupsOut++
	}
	if m.fault.lose == nil || !m.fault.lose(b) {
		m.host.Transmit(b)
	}
}

func toGroup(b []byte) bool {
	lid := be.Uint16(b[2:])
	return lid >= firstMulticast && lid != permissiveLID
}

// receivePacket handles a packet from the wire.
func (m *Model) receivePacket(b []byte) bool {
	p, ok := parsePacket(b)
	if !ok {
		m.count.packetsBad++
		return false
	}
	m.count.packetsIn++
	m.count.wordsIn += uint64(len(b) / 4)
	if toGroup(b) {
		m.count.groupsIn++
	}
	return m.takePacket(&p)
}

// takePacket finds the QPs that a packet is for. A member of a group may have disabled loopback.
func (m *Model) takePacket(p *packet) bool {
	ib := &m.port.ib
	management := p.vl == managementVL
	multicast := p.dlid >= firstMulticast && p.dlid != permissiveLID
	switch {
	case m.port.link == Ethernet: // by address, before
	case management && p.QPN != 0, !management && ib.state < stateArmed,
		!multicast && p.dlid != permissiveLID && p.dlid&^(1<<ib.lmc-1) != ib.lid, p.dlid == permissiveLID &&
			!management:
		m.count.rxFiltered++
		return false
	}
	index, member := ib.partition(p.PKey)
	if !member && !management {
		ib.badPKeys++
		return false
	}
	switch {
	case p.Op>>5 == rdma.ServiceRC:
		return m.toQP(p, index)
	case p.QPN == multicastQP:
		took := false
		for _, to := range m.group(p) {
			if !(to.block && p.sqpn == to.q.id && p.slid == ib.lid) {
				took = m.datagram(to.q, p, index) || took
			}
		}
		return took
	case p.QPN < 2:
		if m.obj.sqp == 0 {
			return false
		}
		if q := m.findQP(m.obj.sqp + 2*p.QPN); q != nil {
			return m.datagram(q, p, index)
		}
	default:
		return m.toQP(p, index)
	}
	m.count.rxNoQueue++
	return false
}

// toQP delivers a packet to a QP by its number.
func (m *Model) toQP(p *packet, index int) bool {
	switch q := m.findQP(p.QPN); {
	case q != nil && q.st == serviceUD && p.Op>>5 == rdma.ServiceUD:
		return m.datagram(q, p, index)
	case q != nil && q.st == serviceRC && p.Op>>5 == rdma.ServiceRC:
		return m.connected(q, p)
	}
	m.count.rxNoQueue++
	return false
}

// member is a QP of a multicast group.
type member struct {
	q     *qp
	block bool // does not receive its own packets
}

// group returns the QPs that are attached to the group that a packet is for: by flow rules, or the multicast group
// table.
func (m *Model) group(p *packet) (list []member) {
	if p.grh == nil {
		return nil
	}
	add := func(qpn uint32, block bool) {
		if q := m.findQP(qpn); q != nil {
			list = append(list, member{q, block})
		}
	}
	if m.hca.deviceManaged {
		for _, r := range m.rules.rules {
			if len(r.specs) > 0 && r.specs[0].kind == specIB &&
				string(as(r.specs[0].b, specs[specIB]).Bytes("gid")) == string(p.grh[24:]) {
				add(r.qpn, !r.loop)
			}
		}
		return list
	}
	for _, g := range m.rules.groups {
		if string(g[16:32]) != string(p.grh[24:]) {
			continue
		}
		for i := range be.Uint32(g[4:]) & 0xffffff {
			v := be.Uint32(g[32+4*i:])
			add(v&0xffffff, v>>30&1 != 0)
		}
	}
	return list
}

// datagram delivers a packet to a queue: 40 bytes for the GRH, whether there is one or not, then the payload.
func (m *Model) datagram(q *qp, p *packet, pkeyIndex int) bool {
	if q.state != qpRTR && q.state != qpRTS && q.state != qpSQError {
		m.count.rxNoQueue++
		return false
	}
	special := q.st == serviceMLX
	switch {
	case special && p.QPN == 1 && p.qkey != wellKnownQKey, !special && p.qkey != q.ctx.U32("q_key"):
		m.port.ib.badQKeys++
		return false
	case !special && p.PKey&0x7fff != m.port.ib.pkeys[q.ctx.U("pkey_index")&127]&0x7fff:
		m.port.ib.badPKeys++
		return false
	}
	w, idx := m.takeRecv(q, p.vl != managementVL)
	switch {
	case w == nil && p.vl == managementVL:
		m.count.managementDrops++
		return false
	case w == nil:
		m.diag.dropped++
		return false
	}
	b := make([]byte, rdma.GRHSize, rdma.GRHSize+len(p.payload))
	copy(b, p.grh)
	if err := m.scatter(q, w, append(b, p.payload...)); err != nil {
		m.host.Errorf("%v, receive WQE %#x: %v (syndrome %02xh)", q, idx, err, err.synd)
		m.failRecv(q, idx, err.synd)
		return false
	}
	q.received++
	var e [32]byte
	be.PutUint32(e[:], q.id)
	switch {
	case special:
		be.PutUint32(e[4:], uint32(pkeyIndex))
	case p.imm != nil:
		copy(e[4:], p.imm)
	}
	be.PutUint32(e[8:], p.sqpn|uint32(p.dlid&(1<<m.port.ib.lmc-1))<<24)
	if p.grh != nil {
		e[8] |= 0x80
	}
	be.PutUint32(e[0x0c:], uint32(p.sl)<<28|uint32(p.slid))
	copy(e[0x0e:], p.smac)
	be.PutUint32(e[0x14:], uint32(len(b)+len(p.payload)))
	be.PutUint16(e[0x18:], uint16(idx))
	e[31] = receivedSend
	if p.imm != nil {
		e[31] = receivedSendImm
	}
	m.complete(m.obj.cqs[q.rcq], &e, p.Solicited)
	return true
}

// gid returns an entry of the port's GID table: on an InfiniBand port, the subnet's prefix and a GUID.
func (m *Model) gid(i int) (g [16]byte) {
	if m.port.link == Ethernet {
		return m.port.gids[i&127]
	}
	be.PutUint64(g[:], m.port.ib.prefix)
	be.PutUint64(g[8:], m.port.ib.guids[i&127])
	return g
}

func (m *Model) hasGID(i int) bool {
	if m.port.link == Ethernet {
		return m.gid(i) != [16]byte{}
	}
	return m.port.ib.guids[i&127] != 0
}

// partition returns a P_Key's index in the table, and whether the port is a member. Two limited members cannot
// communicate.
func (p *ibPort) partition(key uint16) (index int, member bool) {
	for i, k := range p.pkeys {
		if k&0x7fff == key&0x7fff && k&0x7fff != 0 && (k|key)&0x8000 != 0 {
			return i, true
		}
	}
	return 0, false
}

// checkPath checks the path that a queue of the transport needs before it receives.
func (m *Model) checkPath(q *qp, in msg) *refusal {
	if i := in.U("pkey_index"); m.port.ib.pkeys[i&127] == 0 && q.st != serviceMLX {
		m.host.Warnf("INIT2RTR_QP: %v: P_Key %d is not valid", q, i)
	}
	if q.st != serviceRC {
		return nil
	}
	switch lid := in.U("rlid"); {
	case m.port.link == Ethernet && !in.Is("grh"):
		return refuse(stBadParam, "grh is 0: packets of an Ethernet port have one")
	case in.Is("grh") && !m.hasGID(in.I("mgid_index")):
		return refuse(stBadParam, "mgid_index is %d, an address that is not set", in.U("mgid_index"))
	case m.port.link != Ethernet && (lid == 0 || lid >= firstMulticast):
		return refuse(stBadParam, "rlid is %#x: a connection goes to 1 to bfffh", lid)
	}
	return nil
}
