package mlx4sim

import (
	"math/bits"
	"time"
)

// Logical states of an InfiniBand port, IBTA §14.2.5.6.
const (
	stateDown   = 1
	stateInit   = 2
	stateArmed  = 3
	stateActive = 4
)

// ibPort is the subnet management agent's state of the port.
type ibPort struct {
	state     uint8
	lid, smID uint16
	smSL      uint8
	lmc       uint8
	mtu       uint8 // active: 1 for 256 bytes to 5 for 4096
	mkey      uint64
	protect   uint8
	lease     uint16
	prefix    uint64
	caps      uint32
	timeout   uint8
	vls       uint8
	pkeys     [128]uint16
	guids     [128]uint64
	desc      [64]byte
	sl2vl     [8]byte
	arbitrate [4][64]byte
	badPKeys  uint16
	badQKeys  uint16
	badMKeys  uint16
	notice    *notice // not repressed yet
	notices   uint32  // so far
	led       byte
	vlCap     uint8
	cleared   [16]uint64 // values of the performance counters when a manager cleared them, by the bit that selects them
	kept      map[string]uint64
}

// keptFields are the fields of PortInfo that a manager sets, that the port shows, and on which nothing in an adapter
// with an undisturbed link depends: limits of arbitration, of stalled lanes and of errors on the line.
var keptFields = []string{"down_default", "vl_high_limit", "vl_stall", "hoq_life", "enforce", "errors"}

func (m *Model) newIBPort() ibPort {
	p := ibPort{state: stateDown, mtu: 5, prefix: 0xfe80 << 48, caps: 0x02514868, vls: vlCap, vlCap: vlCap,
		kept: map[string]uint64{"down_default": 2, "vl_high_limit": 4}}
	p.pkeys[0] = 0xffff
	p.guids[0] = m.guid(1)
	copy(p.desc[:], "rebound model")
	for i := range p.sl2vl {
		p.sl2vl[i] = byte(2*i)<<4&0x70 | byte(2*i+1)&7
	}
	return p
}

// Management datagrams, IBTA §13.4 and §14.2.
const (
	madSize = 256

	classSMLID    = 0x01 // subnet management, by LID
	classSMDirect = 0x81 // by directed route
	classPerf     = 0x04
	classVendor   = 0x0a // Mellanox's

	methodGet         = 0x01
	methodSet         = 0x02
	methodGetResponse = 0x81
	methodTrapRepress = 0x07

	attrClassPort = 0x01
	attrNodeDesc  = 0x10
	attrNodeInfo  = 0x11
	attrPortCount = 0x12
	attrGUIDInfo  = 0x14
	attrPortInfo  = 0x15
	attrPKeys     = 0x16
	attrSL2VL     = 0x17
	attrVLArb     = 0x18
	attrLED       = 0x31
	attrGeneral   = 0x17   // of classVendor: versions
	attrPortMore  = 0x1d   // of classPerf: PortCountersExtended
	attrExtPort   = 0xff90 // Mellanox's ExtendedPortInfo
	attrModule    = 0xff60 // Mellanox's, memory of the module or cable

	statusBadVersion = 1 << 2
	statusBadMethod  = 2 << 2
	statusBadAttr    = 3 << 2
	statusBadField   = 7 << 2
)

const vlCap = 4 // code of eight data lanes, and the management lane

// PortInfo's attribute.
var portInfo = lay(64, `00*2 mkey 08*2 prefix 10.31:16 lid 10.15:0 sm_lid 14.31:0 caps 18.31:16 diag 18.15:0 lease 1c.31:24 local_port 1c.23:16 width_enabled
	1c.15:8 width_supported 1c.7:0 width_active 20.31:28 speed_supported 20.27:24 state 20.23:20 phys_state 20.19:16 down_default 20.15:14 protect 20.10:8 lmc
	20.7:4 speed_active 20.3:0 speed_enabled 24.31:28 neighbor_mtu 24.27:24 sm_sl 24.23:20 vl_cap 24.19:16 init_type 24.15:8 vl_high_limit 24.7:0 vl_arb_high_cap
	28.31:24 vl_arb_low_cap 28.23:20 init_reply 28.19:16 mtu_cap 28.15:13 vl_stall 28.12:8 hoq_life 28.7:4 oper_vls 28.3:0 enforce
	2c.31:16 bad_mkeys 2c.15:0 bad_pkeys 30.31:16 bad_qkeys 30.15:8 guid_cap 30.7 reregister 30.4:0 subnet_timeout 34.28:24 resp_time 34.23:16 errors 34.15:0 credit_hint`)

// madIfc passes a management datagram to the agent, as if it had arrived, and returns the answer. Op modifier bits 0
// and 1 disable the check of keys, bit 2 means that the source of the packet is described, bit 3 that it is from the
// network.
func (m *Model) madIfc(c *call) *refusal {
	if r := onePort(c.mod); r != nil {
		return r
	}
	in := c.in.B[:madSize]
	if attr := be.Uint16(in[16:]); m.port.link == Ethernet && attr != attrNodeDesc && attr != attrNodeInfo &&
		attr != attrPKeys && attr != attrModule {
		return cannot(stBadPacket,
			"an Ethernet port's agent has the node's attributes, the P_Key table and the module, not %#x", attr)
	}
	if in[0] != 1 || in[3]&0x80 != 0 {
		return refuse(stBadPacket, "a datagram of version %d, method %02xh", in[0], in[3])
	}
	if c.opMod&4 != 0 {
		if r := m.checkExtended(in, c.in.B[madSize:]); r != nil {
			return r
		}
	}
	copy(c.out.B, m.agent(in, c.opMod&1 != 0))
	return nil
}

// checkExtended checks MAD_IFC's additional input for a datagram from the wire. PRM "MAD_IFC Input Mailbox": my_qpn is
// the number that the datagram was sent to, so 0 or 1, and not the device's number of that queue pair. A datagram whose
// directed route ends here has a hop pointer past the last hop when the agent receives it (IBTA C14-9:4); iPXE leaves
// it at the last hop, so this only warns.
func (m *Model) checkExtended(in, info []byte) *refusal {
	class := in[1]
	want := uint32(1)
	if class == classSMLID || class == classSMDirect {
		want = 0
	}
	if qpn := be.Uint32(info) & 0xffffff; qpn != want {
		return refuse(stBadParam, "my_qpn is %#x, a datagram of class %02xh is sent to QP%d", qpn, class, want)
	}
	if class == classSMDirect && in[6] != in[7]+1 {
		m.host.Warnf("MAD_IFC: the hop pointer is %d of %d hops, the agent is given %d", in[6], in[7], in[7]+1)
	}
	return nil
}

// agent answers one management datagram.
func (m *Model) agent(in []byte, trusted bool) []byte {
	out := append([]byte(nil), in...)
	class, method, attr, mod := in[1], in[3], be.Uint16(in[16:]), be.Uint32(in[20:])
	out[3] = methodGetResponse
	status := uint16(0)
	ib := &m.port.ib
	data := out[64:128]
	switch {
	case class == classPerf:
		status = m.perf(out, method, attr)
	case class == classVendor:
		status = m.vendor(out, method, attr)
	case class != classSMLID && class != classSMDirect:
		status = statusBadVersion
	case method == methodTrapRepress:
		m.repress(in)
		return out
	case method != methodGet && method != methodSet:
		status = statusBadMethod
	case !trusted && ib.mkey != 0 && ib.mkey != be.Uint64(in[24:]) && (method == methodSet || ib.protect > 1):
		ib.badMKeys++
		status = statusBadField
	default:
		status = m.smp(data, method == methodSet, attr, mod)
	}
	be.PutUint16(out[4:], status)
	return out
}

// smp gets or sets an attribute of subnet management.
func (m *Model) smp(data []byte, set bool, attr uint16, mod uint32) uint16 {
	ib := &m.port.ib
	was := append([]byte(nil), data...)
	switch attr {
	case attrNodeDesc:
		if differs := string(ib.desc[:]) != string(data); set && differs {
			copy(ib.desc[:], data)
			m.changed(changeOfDesc)
		}
		copy(data, ib.desc[:])
	case attrNodeInfo:
		if set {
			return statusBadAttr
		}
		clear(data)
		copy(data, []byte{1, 1, 1, 1})
		be.PutUint64(data[4:], m.guid(3))
		be.PutUint64(data[12:], m.guid(0))
		be.PutUint64(data[20:], ib.guids[0])
		be.PutUint16(data[28:], 128)
		be.PutUint16(data[30:], m.prof.device)
		be.PutUint32(data[36:], 1<<24|0x0002c9)
	case attrPortInfo:
		if mod&0xff > 1 {
			return statusBadField
		}
		if set {
			if s := m.setPortInfo(as(was, portInfo)); s != 0 {
				return s
			}
		}
		m.getPortInfo(as(data, portInfo))
		if set {
			as(data, portInfo).Set("reregister", as(was, portInfo).U("reregister"))
		}
	case attrPKeys:
		block := int(mod & 0xffff)
		if block >= len(ib.pkeys)/32 {
			return statusBadField
		}
		changed := false
		for i := range 32 {
			k := &ib.pkeys[32*block+i]
			if v := be.Uint16(was[2*i:]); set && v != *k {
				*k, changed = v, true
			}
			be.PutUint16(data[2*i:], *k)
		}
		if changed {
			m.managementEvent(attrPKeys, uint32(block), 0)
		}
	case attrGUIDInfo:
		block := int(mod)
		if block >= len(ib.guids)/8 {
			return statusBadField
		}
		changed := false
		for i := range 8 {
			g := &ib.guids[8*block+i]
			if v := be.Uint64(was[8*i:]); set && 8*block+i > 0 && v != *g { // the first is the device's
				*g, changed = v, true
			}
			be.PutUint64(data[8*i:], *g)
		}
		if changed {
			m.managementEvent(attrGUIDInfo, uint32(block), 0)
		}
	case attrSL2VL:
		if set {
			copy(ib.sl2vl[:], was)
		}
		clear(data)
		copy(data, ib.sl2vl[:])
	case attrVLArb:
		part := mod >> 16
		if part < 1 || part > 4 {
			return statusBadField
		}
		if set {
			m.host.Warnf("VLArbitrationTable is kept and has no effect in this model: packets leave in the order of their WQEs")
			copy(ib.arbitrate[part-1][:], was)
		}
		copy(data, ib.arbitrate[part-1][:])
	case attrModule:
		return m.module(data, set)
	case attrLED: // IBTA §14.2.5.13: one bit
		if set {
			ib.led = was[0] & 0x80
		}
		clear(data)
		data[0] = ib.led
	case attrExtPort: // libibmad iba_types.h ib_mlnx_ext_port_info_t
		if set { // no source describes a card's behaviour with FDR10
			return statusBadAttr
		}
		clear(data)
		data[7], data[11] = 1, 1 // FDR10 is supported and enabled; the port runs at QDR
	default:
		return statusBadAttr
	}
	return 0
}

func (m *Model) getPortInfo(o msg) {
	ib := &m.port.ib
	clear(o.B)
	phys := uint64(2) // polling
	if ib.state > stateDown {
		phys = 5 // link up
	}
	for name, v := range map[string]uint64{"mkey": ib.mkey, "prefix": ib.prefix, "lid": uint64(ib.lid),
		"sm_lid": uint64(ib.smID), "caps": uint64(ib.caps),
		"lease": uint64(ib.lease), "local_port": 1, "width_enabled": 3, "width_supported": 3, "width_active": 2,
		"speed_supported": 7, "state": uint64(ib.state),
		"phys_state": phys, "protect": uint64(ib.protect), "lmc": uint64(ib.lmc), "speed_active": 4,
		"speed_enabled": 7,
		"neighbor_mtu":  uint64(ib.mtu), "sm_sl": uint64(ib.smSL), "vl_cap": uint64(ib.vlCap),
		"vl_arb_high_cap": 8, "vl_arb_low_cap": 8, "mtu_cap": 5,
		"oper_vls": uint64(ib.vls), "bad_mkeys": uint64(ib.badMKeys), "bad_pkeys": uint64(ib.badPKeys),
		"bad_qkeys": uint64(ib.badQKeys), "guid_cap": 16,
		"subnet_timeout": uint64(ib.timeout), "resp_time": 16} {
		o.Set(name, v)
	}
	for name, v := range ib.kept {
		o.Set(name, v)
	}
}

// Changes reported in the event, as bits.
const (
	changedSMLID      = 1 << 0
	changedPrefix     = 1 << 1
	changedLID        = 1 << 2
	changedReregister = 1 << 3
	changedSMSL       = 1 << 4
)

// setPortInfo applies a subnet manager's PortInfo to the port.
func (m *Model) setPortInfo(in msg) uint16 {
	ib := &m.port.ib
	to := uint8(in.U("state"))
	switch lid := in.U("lid"); {
	case lid == 0 && to >= stateArmed, lid >= firstMulticast, lid&(1<<in.U("lmc")-1) != 0,
		in.U("sm_lid") >= firstMulticast, to > stateActive,
		in.U("neighbor_mtu") > 5, in.U("oper_vls") > uint64(ib.vlCap):
		return statusBadField
	case to == stateArmed && ib.state != stateInit && ib.state != stateArmed, to == stateActive &&
		ib.state != stateArmed && ib.state != stateActive, to == stateInit:
		return statusBadField
	}
	if width, speed := in.U("width_enabled"), in.U("speed_enabled"); width != 0 && width&2 == 0 ||
		speed != 0 && speed&4 == 0 {
		m.host.Warnf("PortInfo: width_enabled %#x, speed_enabled %#x: the link stays at 4x and QDR in this model", width, speed)
	}
	if in.U("phys_state") == 3 {
		m.host.Warnf("PortInfo: the physical state Disabled is accepted and has no effect in this model")
	}
	if in.U("lease") != 0 && in.U("mkey") != 0 {
		m.host.Warnf("PortInfo: the lease period of the M_Key is kept and never ends in this model")
	}
	for _, name := range keptFields {
		if v := in.U(name); v != 0 || name != "down_default" { // 0 leaves the default state as it is
			ib.kept[name] = v
		}
	}
	changed := uint32(0)
	note := func(differs bool, bit uint32) {
		if differs {
			changed |= bit
		}
	}
	note(uint16(in.U("lid")) != ib.lid, changedLID)
	note(uint16(in.U("sm_lid")) != ib.smID, changedSMLID)
	note(uint8(in.U("sm_sl")) != ib.smSL, changedSMSL)
	note(in.U("prefix") != ib.prefix, changedPrefix)
	note(in.Is("reregister"), changedReregister)
	ib.lid, ib.smID, ib.smSL, ib.prefix = uint16(in.U("lid")), uint16(in.U("sm_lid")), uint8(in.U("sm_sl")),
		in.U("prefix")
	ib.lmc, ib.mkey, ib.protect, ib.lease = uint8(in.U("lmc")), in.U("mkey"), uint8(in.U("protect")),
		uint16(in.U("lease"))
	ib.timeout = uint8(in.U("subnet_timeout"))
	if v := uint8(in.U("neighbor_mtu")); v != 0 {
		ib.mtu = v
	}
	if v := uint8(in.U("oper_vls")); v != 0 {
		ib.vls = v
	}
	switch to {
	case stateDown:
		m.setIBState(stateDown)
		m.linkChanged() // the link trains again
	case stateArmed, stateActive:
		m.setIBState(to)
	}
	if changed != 0 {
		m.managementEvent(attrPortInfo, 0, changed)
	}
	return 0
}

// setIBState reports to the driver that the port became active or inactive.
func (m *Model) setIBState(to uint8) {
	was := m.port.ib.state
	m.port.ib.state = to
	m.port.up = to == stateActive
	var d [eventData]byte
	d[8] = 1 << 4
	switch {
	case to == stateActive && was != stateActive:
		m.event(eventPortChange, portActive, d[:])
	case was == stateActive && to != stateActive:
		m.event(eventPortChange, portDown, d[:])
	}
}

// managementEvent reports a subnet manager's change: PortInfo, or a block of a table.
func (m *Model) managementEvent(attr uint8, block, changed uint32) {
	var d [eventData]byte
	d[3] = 1
	if attr == attrPortInfo {
		be.PutUint16(d[4:], m.port.ib.smID)
		be.PutUint16(d[6:], m.port.ib.lid)
		be.PutUint32(d[8:], changed)
		d[15] = m.port.ib.smSL
		be.PutUint64(d[16:], m.port.ib.prefix)
	} else {
		be.PutUint32(d[4:], block)
		be.PutUint32(d[8:], 0xffffffff)
	}
	m.event(eventPortMgmt, attr, d[:])
}

// Performance counters by the bit of CounterSelect that clears them, IBTA §16.1.3.5. The others count disturbances of
// the line, and what a switch or a port with partition enforcement drops. Nothing in the model causes these: they are
// 0.
const (
	perfLinkDowned      = 2
	perfReceiveErrors   = 3
	perfTransmitDropped = 6
	perfManagementDrops = 11
	perfData            = 12 // sent; received data, sent and received packets follow
)

// perfAt has the place of the counters of errors in PortCounters, and their size in bytes.
var perfAt = map[int][2]int{perfLinkDowned: {7, 1}, perfReceiveErrors: {8, 2}, perfTransmitDropped: {14, 2},
	perfManagementDrops: {22, 2}}

// perf answers performance management: counters of errors, of data and of packets, which saturate; and those of data
// and packets in 64 bits.
func (m *Model) perf(out []byte, method uint8, attr uint16) uint16 {
	data, k := out[64:], &m.count
	// data is in units of four bytes
	now := [16]uint64{perfLinkDowned: k.linkDowns, perfReceiveErrors: k.packetsBad, perfTransmitDropped: k.packetsOff,
		perfManagementDrops: k.managementDrops,
		perfData:            k.wordsOut, k.wordsIn, k.packetsOut, k.packetsIn}
	cleared, choice := &m.port.ib.cleared, be.Uint16(data[2:])
	all := now // since they were cleared
	for i := range all {
		all[i] -= cleared[i]
	}
	set := func(first, n int) { // after the values were returned
		for i := range n {
			if method == methodSet && choice>>i&1 != 0 {
				cleared[first+i] = now[first+i]
			}
		}
	}
	switch {
	case method != methodGet && method != methodSet:
		return statusBadMethod
	case attr == attrClassPort:
		clear(data[:72])
		data[0], data[1] = 1, 1
		be.PutUint16(data[2:], 1<<9) // extended counters
	case attr == attrPortCount:
		clear(data[:44])
		data[1] = 1
		set(0, len(all))
		for i, at := range perfAt {
			for k, v := 0, min(all[i], 1<<(8*at[1])-1); k < at[1]; k++ {
				data[at[0]+k] = byte(v >> (8 * (at[1] - 1 - k)))
			}
		}
		for i, v := range all[perfData:] {
			be.PutUint32(data[24+4*i:], uint32(min(v, 1<<32-1)))
		}
	case attr == attrPortMore:
		clear(data[:72])
		data[1] = 1
		set(perfData, 4)
		for i, v := range all[perfData:] {
			be.PutUint64(data[8+8*i:], v)
		}
		out, in := all[perfData+2], all[perfData+3]
		be.PutUint64(data[40:], out-min(k.groupsOut, out))
		be.PutUint64(data[48:], in-min(k.groupsIn, in))
		be.PutUint64(data[56:], k.groupsOut)
		be.PutUint64(data[64:], k.groupsIn)
	default:
		return statusBadAttr
	}
	return 0
}

// vendor answers the vendor's class: ClassPortInfo, which every class has, and the versions (infiniband-diags
// vendstat.c, is4_general_info_t).
func (m *Model) vendor(out []byte, method uint8, attr uint16) uint16 {
	switch {
	case method != methodGet:
		return statusBadMethod
	case attr == attrClassPort:
		clear(out[64:])
		out[64], out[65] = 1, 1
	case attr == attrGeneral:
		clear(out[24:])
		hw, fw, more := out[24+8:], out[24+8+32:], out[24+8+32+36:]
		be.PutUint16(hw[2:], m.prof.device)
		be.PutUint32(hw[28:], uint32(m.host.Now()/time.Second))
		copy(fw[16:32], m.prof.board)
		for i, v := range m.prof.fw {
			be.PutUint32(more[4*i:], uint32(v))
		}
		fw[1], fw[2], fw[3] = byte(m.prof.fw[0]), byte(m.prof.fw[1]), byte(m.prof.fw[2])
	default:
		return statusBadAttr
	}
	return 0
}

// setInfiniBandPort restricts the agent's capabilities: SET_PORT with op modifier 0.
func (m *Model) setInfiniBandPort(c *call) *refusal {
	if m.port.link == Ethernet {
		return refuse(stBadSize, "op_modifier 0 is for an InfiniBand port")
	}
	flags := be.Uint32(c.in.B)
	vls, mtu := flags>>4&15, flags>>12&15
	switch {
	case flags>>21&1 != 0 && (vls == 0 || vls > 8):
		return cannot(stLimit, "%d virtual lanes, the port has 8", vls)
	case flags>>22&1 != 0 && (mtu < 1 || mtu > 5):
		return refuse(stBadParam, "mtu_cap is %d, expected 1 (256 bytes) to 5 (4096)", mtu)
	case flags>>22&1 != 0:
		m.port.ib.mtu = min(m.port.ib.mtu, uint8(mtu))
	}
	if flags>>21&1 != 0 { // the port's are 1, 2, 4 or 8, coded as 1 to 4
		m.port.ib.vlCap = uint8(bits.Len32(vls))
		m.port.ib.vls = min(m.port.ib.vls, m.port.ib.vlCap)
	}
	if n := be.Uint16(c.in.B[0x28:]); flags>>20&1 != 0 && int(n) != len(m.port.ib.pkeys) {
		m.host.Warnf("SET_PORT (0ch): a P_Key table of %d is accepted, the port's has %d in this model", n,
			len(m.port.ib.pkeys))
	}
	if other := flags &^ (7<<20 | 15<<12 | 15<<4 | 1<<1); other != 0 {
		m.host.Warnf("SET_PORT (0ch): flags %08x are accepted and have no effect in this model", other)
	}
	if flags&(1<<1) != 0 || be.Uint32(c.in.B[4:]) != 0 {
		if caps := be.Uint32(c.in.B[4:]); caps != m.port.ib.caps {
			m.port.ib.caps = caps
			m.changed(0)
		}
	}
	return nil
}
