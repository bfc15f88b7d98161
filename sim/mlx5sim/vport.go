package mlx5sim

// Flags that disable local loopback in the vport context.
const (
	disableUC = 1 << 0
	disableMC = 1 << 1
)

// vport is the function's own virtual port, with number 0.
type vport struct {
	mac                              [6]byte
	mtu                              int
	inline                           uint64 // min_wqe_inline_mode
	promiscAll, promiscUC, promiscMC bool
	lists                            [3][][8]byte // current unicast, multicast, VLANs
	l2                               map[uint32][6]byte
	arm                              uint32 // requested change events
	admin                            uint64
	lb                               uint32 // disableUC, disableMC
	roce                             bool   // roce_en
	// a virtual function whose host does not permit it to receive others' frames
	untrusted bool
}

func (m *Model) newVport() vport {
	v := vport{mac: m.opt.MAC, mtu: 1500, l2: map[uint32][6]byte{}, inline: 1, admin: 1}
	if m.prof.noInline {
		v.inline = 0
	}
	v.untrusted = m.prof.virtual
	if m.opt.NoLoopback {
		v.lb = disableUC | disableMC
	}
	return v
}

// leastInline is the min_wqe_inline_mode that send queues require.
func (m *Model) leastInline() uint64 { return m.vport.inline }

// NIC vport context, PRM "NIC Vport Context". The address list follows it.
var vportContext = lay(256, `00.26:24 min_wqe_inline_mode 00.2 disable_mc_local_lb 00.1 disable_uc_local_lb 00.0 roce_en 04.31 arm_change_event 04.4:0 events
	24.15:0 mtu 28*2 system_image_guid 30*2 port_guid 38*2 node_guid 68.31:16 qkey_violation_counter f0.31 promisc_uc f0.30 promisc_mc f0.29 promisc_all
	f0.26:24 list_type f0.15:0 list_size f4*2 permanent_address`)

// Commands for the vport, its counters, and the L2 address table of the port.
func vportCommands() map[uint16]*command {
	ready := func(c command) *command { c.from = hcaReady; return &c }
	const who = head + "08.31 other_vport 08.15:0 vport_number "
	return map[uint16]*command{
		// No virtual functions. DPDK's driver asks.
		0x740: ready(command{name: "QUERY_ESW_FUNCTIONS", in: plainIn, out: lay(128, ""), run: (*Model).accept}),
		0x750: ready(command{name: "QUERY_VPORT_STATE", in: lay(16, who),
			out: lay(16, "0c.31:16 max_tx_speed 0c.7:4 admin_state 0c.3:0 state"), run: (*Model).queryVportState}),
		0x751: ready(command{name: "MODIFY_VPORT_STATE", in: lay(16, who+"0c.31:16 max_tx_speed 0c.7:4 admin_state"),
			out: plainOut, run: (*Model).modifyVportState}),
		0x754: ready(command{name: "QUERY_NIC_VPORT_CONTEXT", in: lay(16, who+"0c.26:24 allowed_list_type"),
			out: lay(272, "").With(0x10, vportContext), run: (*Model).queryVport}),
		0x755: ready(command{name: "MODIFY_NIC_VPORT_CONTEXT",
			in: lay(512, who+"0c.31:0 field_select").With(0x100, vportContext), tail: true, out: plainOut,
			run: (*Model).modifyVport}),
		0x770: ready(command{name: "QUERY_VPORT_COUNTER", in: lay(32, who+"08.19:16 port_num 18.31 clear"),
			out: lay(528, "c0*4 transmitted_eth_multicast"), run: (*Model).queryVportCounter}),
		0x829: ready(command{name: "SET_L2_TABLE_ENTRY", in: lay(64,
			"00.31:16 opcode 04.15:0 op_mod 14.23:0 table_index 1c.12 vlan_valid 1c.11:0 vlan 20*2 mac_address"),
			out: plainOut, run: (*Model).setL2}),
		0x82b: ready(command{name: "DELETE_L2_TABLE_ENTRY", in: lay(64,
			"00.31:16 opcode 04.15:0 op_mod 14.23:0 table_index"), out: plainOut, run: (*Model).deleteL2}),
		0x830: ready(command{name: "SET_WOL_ROL", in: lay(16,
			"00.31:16 opcode 04.15:0 op_mod 08.31 rol_mode_valid 08.30 wol_mode_valid 08.15:8 rol_mode 08.7:0 wol_mode"), out: plainOut, run: (*Model).accept}),
		0x831: ready(command{name: "QUERY_WOL_ROL", in: plainIn, out: plainOut, run: (*Model).accept}),
	}
}

func own(c *call) *refusal {
	if c.in.Is("other_vport") || c.in.Is("vport_number") {
		return refuse(stBadParam, "vport %d of another function: there is none", c.in.U("vport_number"))
	}
	return nil
}

func (m *Model) queryVportState(c *call) *refusal {
	if r := own(c); r != nil {
		return r
	}
	c.out.Set("admin_state", m.vport.admin)
	if m.port.up && m.vport.admin != 0 {
		c.out.Set("state", 1)
	}
	return nil
}

func (m *Model) modifyVportState(c *call) *refusal {
	if r := own(c); r != nil {
		return r
	}
	if c.in.U("op_mod") == 2 {
		// Linux 5.10 does not check
		return cannot(stBadParam, "the uplink's state needs uplink_follow, which is not offered")
	}
	m.vport.admin = c.in.U("admin_state")
	return nil
}

func (m *Model) queryVport(c *call) *refusal {
	if r := own(c); r != nil {
		return r
	}
	v, o := &m.vport, c.out
	o.Set("min_wqe_inline_mode", v.inline)
	o.Set("disable_mc_local_lb", uint64(v.lb>>1))
	o.Set("disable_uc_local_lb", uint64(v.lb&1))
	o.Set("mtu", uint64(v.mtu))
	for name, on := range map[string]bool{"promisc_uc": v.promiscUC, "promisc_mc": v.promiscMC,
		"promisc_all": v.promiscAll, "roce_en": v.roce} {
		if on {
			o.Set(name, 1)
		}
	}
	mac := v.mac
	guid := uint64(mac[0])<<56 | uint64(mac[1])<<48 | uint64(mac[2])<<40 | 0xffff<<24 | uint64(mac[3])<<16 | uint64(
		mac[4])<<8 | uint64(mac[5])
	o.Set("system_image_guid", guid)
	o.Set("port_guid", guid)
	o.Set("node_guid", guid)
	copy(o.Bytes("permanent_address")[2:], v.mac[:])
	kind := c.in.I("allowed_list_type")
	if kind > 2 {
		return refuse(stBadParam, "allowed_list_type is %d, expected 0 (unicast), 1 (multicast) or 2 (VLAN)", kind)
	}
	o.Set("list_type", uint64(kind))
	if list := v.lists[kind]; len(o.B) >= 272+8*len(list) {
		o.Set("list_size", uint64(len(list)))
		for i := range list {
			copy(o.B[272+8*i:], list[i][:])
		}
	}
	return nil
}

// Bits of field_select.
const (
	selectRoCE      = 1 << 1
	selectAddresses = 1 << 2
	selectPermanent = 1 << 3
	selectPromisc   = 1 << 4
	selectEvents    = 1 << 5
	selectMTU       = 1 << 6
	selectInline    = 1 << 7
	selectLoopback  = 1<<10 | 1<<11
)

func (m *Model) modifyVport(c *call) *refusal {
	if r := own(c); r != nil {
		return r
	}
	in, v := c.in, &m.vport
	sel := in.U("field_select")
	if other := sel &^ (selectRoCE | selectAddresses | selectPermanent | selectPromisc | selectEvents | selectMTU |
		selectInline | selectLoopback); other != 0 {
		return refuse(stBadParam, "field_select %#x: bits %#x cannot be changed", sel, other)
	}
	if sel&selectInline != 0 {
		if in.U("min_wqe_inline_mode") > 3 || m.prof.noInline {
			return refuse(stBadParam, "min_wqe_inline_mode %d cannot be set", in.U("min_wqe_inline_mode"))
		}
		v.inline = in.U("min_wqe_inline_mode")
	}
	if sel&selectRoCE != 0 {
		v.roce = in.Is("roce_en")
	}
	if sel&selectMTU != 0 {
		v.mtu = in.I("mtu")
	}
	if sel&selectPromisc != 0 {
		v.promiscAll, v.promiscUC, v.promiscMC = in.Is("promisc_all"), in.Is("promisc_uc"), in.Is("promisc_mc")
	}
	if sel&selectEvents != 0 {
		v.arm = in.U32("events")
	}
	if sel&selectPermanent != 0 {
		if m.prof.virtual {
			return refuse(stBadParam, "permanent_address of a virtual function is the host's to set")
		}
		copy(v.mac[:], in.Bytes("permanent_address")[2:])
	}
	if sel&selectLoopback != 0 {
		if !m.caps.loopbackSwitch() {
			return refuse(stBadParam,
				"field_select %#x: local loopback cannot be switched without disable_local_lb_uc and _mc", sel)
		}
		v.lb = in.U32("disable_mc_local_lb")<<1 | in.U32("disable_uc_local_lb")
	}
	if sel&selectAddresses != 0 {
		kind, n := in.I("list_type"), in.I("list_size")
		most := 1 << m.caps.general().I([]string{"log_max_current_uc_list", "log_max_current_mc_list",
			"log_max_vlan_list"}[min(kind, 2)])
		switch {
		case kind > 2:
			return refuse(stBadParam, "allowed_list_type is %d, expected 0 to 2", kind)
		case n > most:
			return refuse(stBadParam, "allowed_list_size is %d, the capability allows %d", n, most)
		case len(in.B) < 512+8*n:
			return refuse(stInLen, "%d addresses in %d bytes", n, len(in.B))
		}
		v.lists[kind] = nil
		for i := range n {
			v.lists[kind] = append(v.lists[kind], [8]byte(in.B[512+8*i:]))
		}
	}
	return nil
}

func (m *Model) queryVportCounter(c *call) *refusal {
	if r := own(c); r != nil {
		return r
	}
	b := c.out.B
	put := func(off int, t traffic) {
		be.PutUint64(b[off:], t.frames)
		be.PutUint64(b[off+8:], t.bytes)
	}
	k := &m.count
	put(0x30, k.rxIB[unicast])
	put(0x40, k.txIB[unicast])
	put(0x50, k.rxIB[multicast])
	put(0x60, k.txIB[multicast])
	put(0x70, k.rx[broadcast])
	put(0x80, k.tx[broadcast])
	put(0x90, k.rx[unicast])
	put(0xa0, k.tx[unicast])
	put(0xb0, k.rx[multicast])
	put(0xc0, k.tx[multicast])
	return nil
}

// setL2 changes the table before all vports (MPFS), which only the function that manages the switch may fill.
func (m *Model) setL2(c *call) *refusal {
	if m.prof.virtual {
		return refuse(stBadOp, "a virtual function has no L2 table")
	}
	i := c.in.U32("table_index")
	if i >= 1<<16 {
		return refuse(stBadIndex, "table_index is %d, capability log_max_l2_table is 16", i)
	}
	m.vport.l2[i] = [6]byte(c.in.Bytes("mac_address")[2:])
	return nil
}

func (m *Model) deleteL2(c *call) *refusal {
	i := c.in.U32("table_index")
	if _, ok := m.vport.l2[i]; !ok {
		return refuse(stBadIndex, "entry %d is not set", i)
	}
	delete(m.vport.l2, i)
	return nil
}

// lets reports whether the vport accepts a frame from the wire.
func (v *vport) lets(f []byte) bool {
	if v.promiscAll && !v.untrusted {
		return true
	}
	mac := [6]byte(f)
	if mac[0]&1 != 0 {
		if mac == [6]byte{255, 255, 255, 255, 255, 255} || v.promiscMC && !v.untrusted {
			return true
		}
		return v.listed(1, mac)
	}
	return v.promiscUC && !v.untrusted || v.owns(mac)
}

// owns reports whether a unicast address is the vport's.
func (v *vport) owns(mac [6]byte) bool {
	if mac == v.mac || v.listed(0, mac) {
		return true
	}
	for _, a := range v.l2 {
		if a == mac {
			return true
		}
	}
	return false
}

func (v *vport) listed(kind int, mac [6]byte) bool {
	for _, a := range v.lists[kind] {
		if [6]byte(a[2:]) == mac {
			return true
		}
	}
	return false
}
