package mlx4sim

// port is the physical port.
type port struct {
	link      Link // Ethernet or InfiniBand
	wire      bool
	initiated bool // INIT_PORT
	up        bool
	mtu       int // of frames with FCS
	turned    [][]byte

	macs    [1 << logMACs]uint64 // MAC table, bit 63: valid
	gids    [128][16]byte        // on an Ethernet port
	vlans   *[128]uint32         // filter; nil: all pass
	mcast   map[uint64]bool
	mcastOn bool // the multicast filter
	calc    rqpCalc
	tags    [1 << logVLANs]uint32 // VLAN table, bit 31: valid
	flow    flow
	userMTU uint16 // which the firmware tells a board controller

	ib ibPort
}

// rqpCalc is SET_PORT's "receive QP calculation": how the MAC table selects QPs.
type rqpCalc struct {
	set            bool
	base           uint32
	promisc, mcast uint32
	promiscOn      bool
	mode           uint32
	macMiss        uint32
	vlanBits       uint32
}

func (p *port) reset(link Link) {
	if link == AnyLink {
		link = Ethernet
	}
	*p = port{link: link, wire: p.wire, mtu: 1522, mcast: map[uint64]bool{}}
}

// frameLimit is the longest frame without FCS.
func (p *port) frameLimit() int { return p.mtu - 4 }

// Sub-commands of SET_PORT on an Ethernet port, bits 15:8 of in_modifier.
const (
	setGeneral   = 0
	setRQPCalc   = 1
	setMACTable  = 2
	setVLANTable = 3
	setPrioMap   = 4
	setGIDTable  = 5
)

var (
	setPortGeneral = lay(0x24, `00.15:8 flags2 00.2 v_pptx 00.1 v_pprx 00.0 v_mtu 04.31:24 roce_mode 04.15:0 mtu 08.31 pptx 08.23:16 pfctx 0c.31 pprx 0c.23:16 pfcrx
		14.31:24 phv_en 18.15:0 user_mtu 1c*2 user_mac`).Without("roce_mode", "phv_en", "user_mac")
	setPortRQP = lay(0x20, `00.23:0 base_qpn 04.23:16 n_m 04.10:8 n_v 04.1:0 n_p 08.7:0 mac_miss_index 0c.31 intra_no_vlan 0c.22:16 no_vlan_index 0c.15 intra_miss 0c.6:0 vlan_miss_index
		10.2:0 no_vlan_prio 14.31 en_uc_promisc 14.23:0 promisc_qpn 18.31:30 mc_promisc_mode 18.29 mc_by_vlan 18.23:0 def_mcast_qpn`).
		Without("intra_no_vlan", "intra_miss", "no_vlan_prio", "mc_by_vlan")
	portOut = lay(0x80, `00.31 link_state 00.28 default_sense 00.27 suggested_eth 00.25 eth 00.24 ib 00.23 autoneg 00.19:16 ib_mtu 00.15:0 eth_mtu
		04.27:24 ib_link_speed 04.22:16 eth_link_speed 04.11:8 ib_port_width 04.7:4 log_max_gid 04.3:0 log_max_pkey 08.15:12 log_max_vlan 08.11:8 log_max_mac 08.3:0 max_vl
		0c.31:16 max_pkey 0c.15:0 max_gid 10*2 mac 18.31:24 transceiver_type 18.23:0 vendor_oui 1c.15:0 wavelength 20*2 transceiver_code`)
)

func portCommands() map[uint16]*command {
	return map[uint16]*command{
		0x009: {name: "INIT_PORT", from: stageReady, mods: 0xff, run: (*Model).initPort},
		0x00a: {name: "CLOSE_PORT", from: stageReady, mods: 0xff, run: (*Model).closePort},
		0x00c: {name: "SET_PORT", from: stageReady, in: sized(0x800), mods: 0xffff, opMods: 1 << 1, run: (*Model).setPort},
		0x043: {name: "QUERY_PORT", from: stageRunning, out: portOut, mods: 0xff, run: (*Model).queryPort},
		0x04d: {name: "SENSE_PORT", from: stageRunning, outImm: true, mods: 0xff, run: (*Model).sensePort},
		0x047: {name: "SET_VLAN_FLTR", from: stageReady, in: lay(0x200, "00*128 entry"), mods: 0xff, run: (*Model).setVLANs},
		0x048: {name: "SET_MCAST_FLTR", from: stageReady, imm: true, mods: 0xff, opMods: 1<<1 | 1<<2, run: (*Model).setMulticast},
		0x049: {name: "DUMP_ETH_STATS", from: stageReady, out: sized(0x1000), mods: 0x11ff, run: (*Model).dumpStats},
		0x024: {name: "MAD_IFC", from: stageReady, in: sized(0x200), out: sized(0x100), mods: 0xffffffff, opMods: 0xfffe, run: (*Model).madIfc},
	}
}

func onePort(n uint32) *refusal {
	if n&0xff != 1 {
		return refuse(stBadIndex, "port %d: the device has port 1", n&0xff)
	}
	return nil
}

func (m *Model) initPort(c *call) *refusal {
	if r := onePort(c.mod); r != nil {
		return r
	}
	m.port.initiated = true
	m.linkChanged()
	return nil
}

func (m *Model) closePort(c *call) *refusal {
	if r := onePort(c.mod); r != nil {
		return r
	}
	m.port.initiated = false
	m.linkChanged()
	return nil
}

func (m *Model) closePorts() {
	m.port.initiated, m.port.up, m.port.ib.state = false, false, stateDown
}

// linkChanged reports to the driver that the link went up or down.
func (m *Model) linkChanged() {
	up := m.port.wire && m.port.initiated
	if m.port.link != Ethernet { // a subnet manager then makes the port active, which an event reports
		switch ib := &m.port.ib; {
		case up && ib.state == stateDown:
			ib.state = stateInit
		case !up && ib.state != stateDown:
			m.count.linkDowns++
			m.setIBState(stateDown)
		}
		return
	}
	if up == m.port.up {
		return
	}
	m.port.up = up
	var d [eventData]byte
	d[8] = 1 << 4 // the port
	if up {
		m.event(eventPortChange, portActive, d[:])
	} else {
		m.event(eventPortChange, portDown, d[:])
	}
}

func (m *Model) queryPort(c *call) *refusal {
	if r := onePort(c.mod); r != nil {
		return r
	}
	o := c.out
	o.Set("link_state", uint64(bit(m.port.up)))
	o.Set("eth", uint64(bit(m.opt.Link != InfiniBand)))
	o.Set("ib", uint64(bit(m.opt.Link != Ethernet)))
	o.Set("suggested_eth", uint64(bit(m.opt.Link == AnyLink)))
	o.Set("ib_mtu", 5)
	o.Set("eth_mtu", ethMTU)
	o.Set("eth_link_speed", 0x0f) // other: there is no link
	if m.port.up {
		o.Set("eth_link_speed", 0x40) // 40 Gb/s
	}
	o.Set("ib_link_speed", 7)
	o.Set("ib_port_width", 3)
	o.Set("log_max_gid", 7)
	o.Set("log_max_pkey", 7)
	o.Set("log_max_vlan", logVLANs)
	o.Set("log_max_mac", logMACs)
	o.Set("max_vl", 8)
	a := m.opt.MAC
	o.Set("mac", uint64(a[0])<<40|uint64(a[1])<<32|uint64(a[2])<<24|uint64(a[3])<<16|uint64(a[4])<<8|uint64(a[5]))
	return nil
}

func (m *Model) sensePort(c *call) *refusal {
	if r := onePort(c.mod); r != nil {
		return r
	}
	switch c.outParam = 0; {
	case m.port.wire && m.port.link == Ethernet:
		c.outParam = 2
	case m.port.wire:
		c.outParam = 1
	}
	return nil
}

func (m *Model) setPort(c *call) *refusal {
	if r := onePort(c.mod); r != nil {
		return r
	}
	if c.opMod == 0 {
		return m.setInfiniBandPort(c)
	}
	if m.port.link != Ethernet {
		return refuse(stBadSize, "op_modifier 1 is for an Ethernet port")
	}
	p, b := &m.port, c.in.B
	reserved := func(what string, l *layout) msg {
		if off, set, found := l.Stray(b); found {
			m.host.Warnf("SET_PORT (0ch) of %s: reserved bits %08x set in the dword at %02xh of the mailbox", what, set,
				off)
		}
		in := as(b, l)
		in.WarnIdle(m.host, "SET_PORT (0ch) of "+what)
		return in
	}
	switch c.mod >> 8 {
	case setGeneral:
		in := reserved("general parameters", setPortGeneral)
		if f := in.U("flags2") &^ 0x60; f != 0 {
			return refuse(stBadParam, "flags2 is %02xh: the model takes the user's MTU (20h) and address (40h)",
				in.U("flags2"))
		}
		if in.Is("v_mtu") {
			mtu := in.I("mtu")
			if mtu < 64 || mtu > ethMTU+26 {
				return refuse(stBadParam, "mtu is %d, expected 64 to %d", mtu, ethMTU+26)
			}
			p.mtu = mtu
		}
		if in.Is("v_pprx") {
			p.flow.obeys, p.flow.obeysPrio = in.Is("pprx"), uint8(in.U("pfcrx"))
		}
		if in.Is("v_pptx") {
			p.flow.sends, p.flow.sendsPrio = in.Is("pptx"), uint8(in.U("pfctx"))
		}
		if in.U("flags2")&0x20 != 0 {
			p.userMTU = uint16(in.U("user_mtu"))
		}
	case setRQPCalc:
		in := reserved("receive QP calculation", setPortRQP)
		if m.hca.deviceManaged {
			m.host.Warnf("SET_PORT (0ch) of receive QP calculation has no effect with flow steering")
		}
		p.calc = rqpCalc{set: true, base: in.U32("base_qpn"), promisc: in.U32("promisc_qpn"),
			promiscOn: in.Is("en_uc_promisc"), mcast: in.U32("def_mcast_qpn"),
			mode: in.U32("mc_promisc_mode"), macMiss: in.U32("mac_miss_index"), vlanBits: in.U32("n_v")}
		if p.calc.mode != multicastDefault {
			m.host.Warnf("SET_PORT (0ch): mc_promisc_mode %d: the multicast group table has no effect on frames in this model",
				p.calc.mode)
		}
		m.checkVLANSteering()
		if m.findQP(p.calc.base) == nil {
			return refuse(stBadRes, "base_qpn %#x is in RST", p.calc.base)
		}
	case setMACTable:
		for i := range p.macs {
			v := be.Uint64(b[8*i:])
			if v&(0x7fff<<48) != 0 {
				m.host.Warnf("SET_PORT (0ch): MAC table entry %d is %016x: reserved bits are set", i, v)
			}
			p.macs[i] = v
		}
	case setGIDTable:
		m.setGIDs(b)
	case setVLANTable:
		for i := range p.tags {
			p.tags[i] = be.Uint32(b[4*i:])
		}
		m.checkVLANSteering()
	case setPrioMap:
		m.host.Warnf("SET_PORT (0ch) of the priority map is accepted and has no effect in this model")
	default:
		return refuse(stBadParam, "sub-command %d", c.mod>>8)
	}
	return nil
}

// checkVLANSteering warns of VLANs that select queues: on a card, the index in the VLAN table is a part of the number
// of the QP that the MAC table selects.
func (m *Model) checkVLANSteering() {
	for _, v := range m.port.tags {
		if v>>31 != 0 && m.port.calc.vlanBits > 0 && !m.hca.deviceManaged {
			m.host.Warnf("SET_PORT (0ch): the VLAN table selects no queues in this model")
			return
		}
	}
}

// setVLANs sets the filter: a bit for each VLAN, the first in the last dword.
func (m *Model) setVLANs(c *call) *refusal {
	if r := onePort(c.mod); r != nil {
		return r
	}
	f := new([128]uint32)
	for i := range f {
		f[127-i] = be.Uint32(c.in.B[4*i:])
	}
	m.port.vlans = f
	return nil
}

// setMulticast adds an address to the filter (op modifier 0), after clearing it if bit 63 is set, and disables (1) or
// enables (2) the filter.
func (m *Model) setMulticast(c *call) *refusal {
	if r := onePort(c.mod); r != nil {
		return r
	}
	p := &m.port
	switch c.opMod {
	case 0:
		if c.inParam>>63 != 0 {
			clear(p.mcast)
		}
		if mac := c.inParam & (1<<48 - 1); mac != 0 {
			p.mcast[mac] = true
		}
	case 1:
		p.mcastOn = false
	case 2:
		p.mcastOn = true
	}
	return nil
}
