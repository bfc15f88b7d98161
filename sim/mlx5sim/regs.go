package mlx5sim

import "github.com/rebound-nic/rebound/sim/parts"

// Access registers, PRM "Ports and Management Registers".
const (
	regPMLP           = 0x5002 // Ports Module to Local Port
	regMCIA           = 0x9014 // Management Cable Info Access
	regPMTU           = 0x5003 // Port MTU
	regPTYS           = 0x5004 // Port Type and Speed
	regPAOS           = 0x5006 // Port Administrative and Operational Status
	regPFCC           = 0x5007 // Port Flow Control Configuration
	regPPCNT          = 0x5008 // Port Performance Counters
	regPVLC           = 0x500f // Port Virtual Lane Capabilities
	regNodeDesc       = 0x6001 // Node Description
	regHostEndianness = 0x7004

	accessWrite = 0
	accessRead  = 1

	// eth_proto bits of PTYS.
	proto100GBaseCR4 = 1 << 20
	proto100GBaseSR4 = 1 << 21
	proto25GBaseCR   = 1 << 27
	proto25GBaseSR   = 1 << 29
	proto50GBaseCR2  = 1 << 30
)

var (
	pmtuReg = lay(16, "00.23:16 local_port 04.31:16 max_mtu 08.31:16 admin_mtu 0c.31:16 oper_mtu")
	paosReg = lay(16, "00.31:24 swid 00.23:16 local_port 00.11:8 admin_status 00.3:0 oper_status 04.31 ase 04.30 ee 04.1:0 e")
	ptysReg = lay(64, `00.30 an_disable_admin 00.29 an_disable_cap 00.23:16 local_port 00.2:0 proto_mask 04.31:28 an_status 0c.31:0 eth_proto_capability
	18.31:0 eth_proto_admin 24.31:0 eth_proto_oper 2c.3:0 connector_type 30.31:0 eth_proto_lp_advertise`)
	pmlpReg  = lay(64, "00.31 rxtx 00.23:16 local_port 00.7:0 width 04.7:0 module")
	mciaReg  = lay(144, "00.31 l 00.23:16 module 00.7:0 status 04.31:24 i2c_device_address 04.23:16 page_number 04.15:0 device_address 08.15:0 size 10*32 dwords")
	pfccReg  = lay(32, "00.23:16 local_port 00.4 ppan_mask_n 00.3 minor_stall_mask 00.2 critical_stall_mask 04.31:28 ppan 04.23:16 prio_mask_tx 04.7:0 prio_mask_rx 08.31 pptx 08.30 aptx 08.23:16 pfctx 0c.31 pprx 0c.30 aprx 0c.23:16 pfcrx")
	ppcntReg = lay(256, "00.31:24 swid 00.23:16 local_port 00.15:14 pnat 00.5:0 grp 04.31 clr 04.4:0 prio_tc")
	pvlcReg  = lay(16, "00.23:16 local_port")
	nodeReg  = lay(64, "00*16 node_desc")
	hostReg  = lay(16, "00.31:24 he")
)

type register struct {
	name string
	*parts.Layout
	read  func(m *Model, r msg) *refusal
	write func(m *Model, r msg) *refusal
}

var registers = map[uint32]*register{
	regHostEndianness: {"HOST_ENDIANNESS", hostReg, nil, (*Model).writeEndianness},
	regNodeDesc:       {"NODE_DESC", nodeReg, (*Model).readNodeDesc, (*Model).writeNodeDesc},
	regPMTU:           {"PMTU", pmtuReg, (*Model).readPMTU, (*Model).writePMTU},
	regPAOS:           {"PAOS", paosReg, (*Model).readPAOS, (*Model).writePAOS},
	regPTYS:           {"PTYS", ptysReg, (*Model).readPTYS, (*Model).writePTYS},
	regPMLP:           {"PMLP", pmlpReg, (*Model).readPMLP, nil},
	regMCIA:           {"MCIA", mciaReg, (*Model).readMCIA, nil},
	regPFCC:           {"PFCC", pfccReg, (*Model).readPFCC, (*Model).writePFCC},
	regPPCNT:          {"PPCNT", ppcntReg, (*Model).readPPCNT, nil},
	regPVLC:           {"PVLC", pvlcReg, func(*Model, msg) *refusal { return nil }, nil},
}

func (m *Model) accessReg(c *call) *refusal {
	id := c.in.U32("register_id")
	r, ok := registers[id]
	if !ok {
		return cannot(stBadParam, "register %04xh is not there", id)
	}
	if n := len(c.in.B) - 16; n > r.Size {
		return refuse(stInLen, "%s: %d bytes, the register has %d", r.name, n, r.Size)
	}
	if off, set, found := r.Stray(c.in.B[16:]); found {
		m.host.Warnf("%s: reserved bits %08x set at %02xh", r.name, set, off)
	}
	data := make([]byte, r.Size)
	copy(data, c.in.B[16:])
	reg := as(data, r.Layout)
	if r.Has("local_port") && reg.U("local_port") != 1 {
		return refuse(stBadParam, "%s: local_port is %d, the port is 1", r.name, reg.U("local_port"))
	}
	if m.prof.virtual && id == regHostEndianness {
		return refuse(stBadParam, "%s: a virtual function has none", r.name)
	}
	if f := m.opt.RefuseRegister; f != nil && f(id, c.in.U("op_mod") == accessWrite) {
		return cannot(stBadRes, "%s: not granted", r.name).with(0x305684)
	}
	do := r.read
	if op := c.in.U("op_mod"); op == accessWrite {
		do = r.write
	} else if op != accessRead {
		return refuse(stBadParam, "%s: op_mod is %d, expected 0 (write) or 1 (read)", r.name, op)
	}
	if do == nil {
		return refuse(stBadParam, "%s: cannot be accessed with op_mod %d", r.name, c.in.U("op_mod"))
	}
	if m.prof.virtual && c.in.U("op_mod") == accessWrite {
		// accepted, because Linux's driver gives up otherwise, but without effect: the port belongs to the host
		m.count.portWrites++
		return nil
	}
	if f := do(m, reg); f != nil {
		return f
	}
	if c.in.U("op_mod") == accessRead {
		copy(c.out.B[min(16, len(c.out.B)):], data)
	}
	return nil
}

// pauses are the fields of PFCC that turn flow control on.
var pauses = []string{"pptx", "pfctx", "pprx", "pfcrx"}

func (m *Model) readPFCC(r msg) *refusal {
	for i, name := range pauses {
		r.Set(name, m.port.pause[i])
	}
	return nil
}

// writePFCC keeps what is written. The model sends no pause frames, and does not stop for one.
func (m *Model) writePFCC(r msg) *refusal {
	for i, name := range pauses {
		if m.port.pause[i] = r.U(name); m.port.pause[i] != 0 {
			m.host.Warnf("PFCC: accepted without effect: a card with %s sends or obeys pause frames", name)
		}
	}
	return nil
}

func (m *Model) writeEndianness(r msg) *refusal {
	if r.Is("he") {
		m.host.Warnf("HOST_ENDIANNESS: accepted without effect: he is %#x, and the model is for little-endian hosts",
			r.U("he"))
	}
	return nil
}

// readNodeDesc returns InfiniBand's node description.
func (m *Model) readNodeDesc(r msg) *refusal {
	copy(r.B, m.port.node)
	return nil
}

func (m *Model) writeNodeDesc(r msg) *refusal {
	m.port.node = string(r.B)
	return nil
}

func (m *Model) readPMTU(r msg) *refusal {
	r.Set("max_mtu", maxMTU)
	r.Set("admin_mtu", uint64(m.port.mtu))
	r.Set("oper_mtu", uint64(m.port.mtu))
	return nil
}

func (m *Model) writePMTU(r msg) *refusal {
	v := r.I("admin_mtu")
	if v < 68 || v > maxMTU {
		return refuse(stBadParam, "PMTU: admin_mtu is %d, expected 68 to %d", v, maxMTU)
	}
	m.port.mtu = v
	return nil
}

func (m *Model) readPAOS(r msg) *refusal {
	r.Set("admin_status", 1)
	if m.port.adminDown {
		r.Set("admin_status", 2)
	}
	r.Set("oper_status", 2)
	if m.port.up {
		r.Set("oper_status", 1)
	}
	return nil
}

func (m *Model) writePAOS(r msg) *refusal {
	switch v := r.U("admin_status"); {
	case !r.Is("ase"):
		return nil
	case v == 1 || v == 2:
		m.port.adminDown = v == 2
		m.linkChanged()
		return nil
	default:
		return refuse(stBadParam, "PAOS: admin_status is %d, expected 1 (up) or 2 (down)", v)
	}
}

func (m *Model) readPTYS(r msg) *refusal {
	if r.U("proto_mask") != 4 {
		return refuse(stBadParam, "PTYS: proto_mask is %d, the port has 4 (Ethernet)", r.U("proto_mask"))
	}
	r.Set("eth_proto_capability", uint64(m.prof.media))
	r.Set("eth_proto_admin", uint64(m.prof.media))
	r.Set("connector_type", 3) // copper cable
	if m.port.up {
		r.Set("an_status", 1)
		for _, best := range []uint32{proto100GBaseCR4, proto50GBaseCR2} {
			if m.prof.media&best != 0 {
				r.Set("eth_proto_oper", uint64(best))
				r.Set("eth_proto_lp_advertise", uint64(best))
				break
			}
		}
	}
	return nil
}

func (m *Model) writePTYS(r msg) *refusal {
	if v := r.U32("eth_proto_admin"); v&^m.prof.media != 0 {
		return refuse(stBadParam, "PTYS: eth_proto_admin is %08x, the port has %08x", v, m.prof.media)
	}
	return nil
}

func (m *Model) readPMLP(r msg) *refusal {
	r.Set("width", 4)
	r.Set("module", uint64(m.opt.Module))
	return nil
}

// Status values of MCIA.
const (
	mciaNoEEPROM     = 1
	mciaNotConnected = 3
)

// readMCIA reads bytes of a module: a passive QSFP28 cable (SFF-8636) in this function's port, and nothing in the
// card's other port.
func (m *Model) readMCIA(r msg) *refusal {
	const most = 48
	at, n := r.I("device_address"), r.I("size")
	clear(r.B[0x10:])
	switch {
	case n == 0 || n > most:
		return refuse(stBadParam, "MCIA: size is %d, expected 1 to %d", n, most)
	case r.U("module") > 1 || m.prof.virtual:
		return refuse(stBadParam, "MCIA: the card has no module %d", r.U("module"))
	case r.U("module") != uint64(m.opt.Module):
		r.Set("status", mciaNotConnected)
	case r.U("i2c_device_address") != 0x50 || r.U("page_number") != 0 || at+n > 256:
		r.Set("status", mciaNoEEPROM)
	default:
		e := qsfp()
		copy(r.B[0x10:], e[at:at+n])
	}
	return nil
}

// qsfp returns the lower page and page 00h of a module's memory (SFF-8636, Tables 6-1 and 6-14).
func qsfp() (e [256]byte) {
	e[0], e[1], e[2] = 0x11, 8, 1<<2 // QSFP28, revision 2.8 of SFF-8636, no other pages
	e[128], e[130] = 0x11, 0x23      // no separable connector
	e[131], e[192] = 1<<7, 0x0b      // extended compliance: 100GBASE-CR4
	e[146], e[147] = 1, 0xa0         // one metre of unequalized copper
	for at, text := range map[int]string{148: "REBOUND MODEL   ", 168: "QSFP28 DAC 1M   ", 184: "1 ",
		196: "SERIAL0123456789", 212: "260101  "} {
		copy(e[at:], text)
	}
	for _, part := range [][2]int{{128, 191}, {192, 223}} {
		for _, v := range e[part[0]:part[1]] {
			e[part[1]] += v
		}
	}
	return e
}

// Groups of port counters.
const (
	ppcnt8023 = 0x00 // IEEE 802.3
	ppcnt2863 = 0x01 // RFC 2863
	ppcnt2819 = 0x02 // RFC 2819
	ppcntPrio = 0x10
)

// fcs is the number of FCS bytes, which wire counters include and frames here do not have.
const fcs = 4

func withFCS(t traffic) uint64 { return t.bytes + fcs*t.frames }

func (m *Model) readPPCNT(r msg) *refusal {
	k, b := &m.count, r.B[8:]
	put := func(off int, v uint64) { be.PutUint64(b[off:], v) }
	rx, tx := total(k.wireRx), total(k.wireTx)
	clear(b)
	switch r.U("grp") {
	case ppcnt8023:
		put(0x00, tx.frames)
		put(0x08, rx.frames)
		put(0x20, withFCS(tx))
		put(0x28, withFCS(rx))
		put(0x30, k.wireTx[multicast].frames)
		put(0x38, k.wireTx[broadcast].frames)
		put(0x40, k.wireRx[multicast].frames)
		put(0x48, k.wireRx[broadcast].frames)
		put(0x60, k.rxOversize)
	case ppcnt2863:
		put(0x00, withFCS(rx))
		put(0x08, k.wireRx[unicast].frames)
		put(0x28, withFCS(tx))
		put(0x30, k.wireTx[unicast].frames)
		put(0x38, k.txDiscard)
		put(0x48, k.wireRx[multicast].frames)
		put(0x50, k.wireRx[broadcast].frames)
		put(0x58, k.wireTx[multicast].frames)
		put(0x60, k.wireTx[broadcast].frames)
	case ppcnt2819:
		put(0x08, withFCS(rx))
		put(0x10, rx.frames)
		put(0x18, k.wireRx[broadcast].frames)
		put(0x20, k.wireRx[multicast].frames)
		put(0x38, k.rxOversize)
	case ppcntPrio:
		if r.U("prio_tc") == 0 {
			put(0x00, withFCS(rx))
			put(0x20, rx.frames)
			put(0x28, withFCS(tx))
			put(0x48, tx.frames)
		}
	}
	return nil
}
