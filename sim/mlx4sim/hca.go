package mlx4sim

import (
	"fmt"
	"slices"

	"github.com/rebound-nic/rebound/sim/parts"
)

// firmware is the state of the firmware area.
type firmware struct {
	stage stage
	area  []chunk
}

// chunk is memory provided by the driver: 2^log pages.
type chunk struct {
	virt, at uint64
	pages    uint64
}

// PRM "QUERY_FW", with the additional fields of later firmware (function, communication vector, clock).
var fwOut = lay(0x100, `00.31:16 fw_pages 00.15:0 fw_rev_major 04.31:16 fw_rev_subminor 04.15:0 fw_rev_minor 08.23:16 ppf_id 08.15:0 cmd_interface_rev
	0c.31 dt 0c.7:0 log_max_outstanding_cmd 10.31:24 fw_hour 10.23:16 fw_minutes 10.15:8 fw_seconds 10.1 ccq 14.31:16 fw_year 14.15:8 fw_month 14.7:0 fw_day
	20*2 clr_int_base_offset 28.31:30 clr_int_bar 30*2 error_buf_offset 38.31:0 error_buf_size 3c.31:30 error_buf_bar 40*2 comm_base 48.31:30 comm_bar
	50*2 clock_offset 58.31:30 clock_bar`)

var adapterOut = lay(0x100, "10.31:24 intapin 20*56 vsd")

func firmwareCommands() map[uint16]*command {
	return map[uint16]*command{
		0x004: {name: "QUERY_FW", out: fwOut, run: (*Model).queryFW},
		0xfff: {name: "MAP_FA", in: mapping, tail: true, mods: 0x1ff, run: (*Model).mapFA},
		0xffe: {name: "UNMAP_FA", run: (*Model).unmapFA},
		0xff6: {name: "RUN_FW", run: (*Model).runFW},
		0x034: {name: "MOD_STAT_CFG", from: stageRunning, imm: true, outImm: true, mods: 0xffffffff, opMods: 1<<1 | 1<<2 | 1<<3, run: (*Model).modStatCfg},
		0x003: {name: "QUERY_DEV_CAP", from: stageRunning, out: devCap, run: (*Model).queryDevCap},
		0x006: {name: "QUERY_ADAPTER", from: stageRunning, out: adapterOut, run: (*Model).queryAdapter},
		0x031: {name: "NOP", mods: 0xffffffff, run: func(*Model, *call) *refusal { return nil }},
		0x050: {name: "HW_HEALTH_CHECK", from: stageReady, run: func(*Model, *call) *refusal { return nil }},
		0x03a: {name: "CONFIG_DEV", from: stageRunning, in: sized(0x80), out: sized(0x80), opMods: 1 << 1, run: unsupported},
		0x030: {name: "DIAG_RPRT", from: stageReady, out: sized(0x400), mods: 0xff, opMods: 1 << 2, run: (*Model).report},
		0x03b: {name: "ACCESS_REG", from: stageRunning, in: sized(0x100), out: sized(0x100), tail: true, mods: 0xffffffff, opMods: 0xffff, run: unsupported},
	}
}

// unsupported handles commands that no capability offers: firmware refuses them, and drivers cope.
func unsupported(*Model, *call) *refusal { return cannot(stBadOp, "no capability offers it") }

func (m *Model) queryFW(c *call) *refusal {
	o := c.out
	o.Set("fw_pages", fwPages)
	o.Set("fw_rev_major", uint64(m.prof.fw[0]))
	o.Set("fw_rev_minor", uint64(m.prof.fw[1]))
	o.Set("fw_rev_subminor", uint64(m.prof.fw[2]))
	o.Set("cmd_interface_rev", uint64(m.opt.InterfaceRev))
	o.Set("log_max_outstanding_cmd", 4)
	o.Set("fw_year", 0x2017)
	o.Set("fw_month", 0x06)
	o.Set("fw_day", 0x15)
	o.Set("clr_int_base_offset", regClrInt)
	o.Set("error_buf_offset", regCatas)
	o.Set("error_buf_size", catasWords)
	o.Set("clock_offset", regClock)
	return nil
}

func (m *Model) mapFA(c *call) *refusal {
	if m.fw.stage != stageReset {
		return refuse(stBadSysState, "the firmware runs")
	}
	chunks, r := m.chunks(c, false)
	if r != nil {
		return r
	}
	if n := pagesOf(m.fw.area) + pagesOf(chunks); n > fwPages {
		return refuse(stLimit, "%d pages for the firmware, QUERY_FW asked for %d", n, fwPages)
	}
	m.fw.area = append(m.fw.area, chunks...)
	return nil
}

func (m *Model) runFW(c *call) *refusal {
	switch n := pagesOf(m.fw.area); {
	case m.fw.stage != stageReset:
		return refuse(stBadSysState, "the firmware runs already")
	case n < fwPages:
		return refuse(stBadSysState, "the firmware has %d pages, QUERY_FW asked for %d", n, fwPages)
	}
	m.fw.stage = stageRunning
	return nil
}

func (m *Model) unmapFA(*call) *refusal {
	switch {
	case m.fw.stage == stageReady:
		return refuse(stBadSysState, "CLOSE_HCA comes first")
	case len(m.fw.area) == 0:
		return refuse(stBadSysState, "nothing is mapped")
	}
	if n := len(m.icm.page); n > 0 {
		m.host.Warnf("UNMAP_FA: %d pages of ICM are still mapped", n)
	}
	if m.icm.aux != nil {
		m.host.Warnf("UNMAP_FA: auxiliary ICM is still mapped")
	}
	m.fw = firmware{}
	m.icm = newICM()
	return nil
}

// modStatCfg sets (1) or queries (2 of the default, 3 of the current) the static configuration: eight bytes at an
// offset.
func (m *Model) modStatCfg(c *call) *refusal {
	off := c.mod & 0xff
	if off&7 != 0 {
		return refuse(stBadParam, "offset %#x: the configuration is read and written by eight bytes", off)
	}
	c.outParam = 0
	switch c.opMod {
	case 0: // Linux sets everything at once, by a mailbox
		b := make([]byte, 0x100)
		if c.inParam&0xff != 0 || m.host.DMARead(c.inParam, b) != nil {
			return refuse(stBadParam, "in_param %#x cannot be read", c.inParam)
		}
		m.setStatic(be.Uint64(b))
		if slices.ContainsFunc(b[8:], func(v byte) bool { return v != 0 }) {
			m.setStatic(1)
		}
		return nil
	case 1:
		if off == 0 || c.inParam == 0 {
			m.setStatic(c.inParam)
		} else {
			m.setStatic(1)
		}
		return nil
	}
	if off == 0x90 {
		a := m.opt.MAC
		c.outParam = uint64(a[0])<<40 | uint64(a[1])<<32 | uint64(a[2])<<24 | uint64(a[3])<<16 | uint64(a[4])<<8 |
			uint64(a[5])
	}
	return nil
}

// setStatic sets the first eight bytes of the static configuration: the page size of UARs, if bit 40 says so.
func (m *Model) setStatic(v uint64) {
	if page := v >> 32 & 0xff; v>>40&1 != 0 && page != 12 && page != 0 { // Linux asks for 0, the default
		m.host.Warnf("MOD_STAT_CFG: log_pg_sz is %d, expected 12", page)
	}
	if v&^(0x1ff<<32) != 0 {
		m.host.Warnf("MOD_STAT_CFG: the setting is accepted and has no effect in this model")
	}
}

func (m *Model) queryAdapter(c *call) *refusal {
	c.out.Set("intapin", 0)
	vsd := c.out.Bytes("vsd")
	for i := range 16 { // the board's ID, the bytes of each dword swapped
		if i < len(m.prof.board) {
			vsd[0xd0+i^3] = m.prof.board[i]
		}
	}
	return nil
}

// table is one of the context tables in ICM.
type table struct {
	name string
	base uint64
	log  int // entries; negative for none
	size uint64
}

// hca is the configuration set by INIT_HCA.
type hca struct {
	qpc, altc, auxc, rdmarc, srqc, cqc, eqc, dmpt, mtt, mc table
	cmpt                                                   [4]table // of QPs, SRQs, CQs, EQs
	cqeSize, eqeSize                                       int
	logUARs                                                int
	deviceManaged                                          bool
	in                                                     []byte
}

// PRM "INIT_HCA", with the fields of later firmware: CQEs and EQEs of 64 bytes, flow steering.
var initHCA = lay(0x200, `00.31:24 version 0c.31:16 hca_core_clock 0c.15:0 cacheline 14.31:0 flags 18.31 recoverable_error_event
	30*2 qpc_base 48*2 srqc_base 50*2 cqc_base 58.31:0 eqe_cqe 60*2 altc_base 70*2 auxc_base 80*2 eqc_base 88.11:0 num_sys_eqs 90*2 rdmarc_base
	c0*2 mc_base d0.4:0 log_mc_entry_sz d4.4:0 log_mc_hash_sz d8.27 uc_group_steering d8.26:24 mc_hash_fn d8.4:0 log_mc_table_sz
	f0*2 dmpt_base f8.31 mw_enabled f8.12:8 pfto f8.5:0 log_dmpt_sz 100*2 mtt_base 108*2 cmpt_base 128.11:8 log_max_uars 128.7:0 uar_page_sz
	140*16 driver_version 1d0*2 fs_base 1e0.4:0 fs_log_entry_sz 1e8.31:30 fs_a0 1e8.4:0 fs_log_table_sz 1f0.23:16 fs_eth_bits 1f0.15:0 fs_eth_num_addrs
	1f4.23:16 fs_ib_bits 1f4.15:0 fs_ib_num_addrs`).
	Without("recoverable_error_event", "mw_enabled", "pfto", "fs_a0")

// Bits of INIT_HCA's flags.
const (
	hcaUDPortCheck   = 1 << 0
	hcaBigEndian     = 1 << 1
	hcaQoS           = 1 << 2
	hcaIPoIBChecksum = 1 << 3
	hcaCounters      = 1 << 4
	hcaDeviceManaged = 1 << 6
	hcaRSSFragments  = 1 << 13

	fsUDP = 1 << 1 // of fs_eth_bits and fs_ib_bits: unicast rules may match on it
	fsTCP = 1 << 2

	eqe64 = 1 << 29 // of eqe_cqe
	cqe64 = 1 << 30
)

func hcaCommands() map[uint16]*command {
	return map[uint16]*command{
		0x007: {name: "INIT_HCA", from: stageRunning, in: initHCA, run: (*Model).initHCA},
		0x008: {name: "CLOSE_HCA", from: stageReady, opMods: 1 << 1, run: (*Model).closeHCA},
		0x00b: {name: "QUERY_HCA", from: stageRunning, out: initHCA, run: (*Model).queryHCA},
	}
}

func (m *Model) initHCA(c *call) *refusal {
	in := c.in
	if m.fw.stage == stageReady {
		return refuse(stBadSysState, "the device is initialized already")
	}
	if m.icm.aux == nil {
		return refuse(stBadSysState, "MAP_ICM_AUX comes first")
	}
	flags := in.U32("flags")
	switch {
	case in.U("version") != 2:
		return refuse(stBadParam, "version is %d, expected 2", in.U("version"))
	case flags&hcaDeviceManaged != 0 && m.opt.Steering != DeviceManaged:
		return refuse(stBadParam, "flags %#x: device-managed steering is not offered", flags)
	case flags&hcaBigEndian != 0:
		return refuse(stBadParam, "flags %#x: the model's host is little endian", flags)
	case flags&(hcaQoS|hcaIPoIBChecksum|hcaCounters|hcaRSSFragments) != 0:
		return refuse(stBadParam, "flags %#x: QoS, checksums of IPoIB, counters and RSS of fragments are not offered",
			flags)
	case in.Is("uc_group_steering"):
		return refuse(stBadParam, "uc_group_steering: neither VEP steering is offered")
	case (in.U("fs_eth_bits")|in.U("fs_ib_bits"))&^(fsUDP|fsTCP) != 0:
		return refuse(stBadParam,
			"fs_eth_bits %#x, fs_ib_bits %#x: only bits 1 (UDP unicast) and 2 (TCP unicast) are known",
			in.U("fs_eth_bits"), in.U("fs_ib_bits"))
	case in.U("num_sys_eqs") != 0:
		return refuse(stBadParam, "num_sys_eqs is %d, the capability is 0", in.U("num_sys_eqs"))
	case in.U("uar_page_sz") != 0:
		return refuse(stBadParam, "uar_page_sz is %d, the model has 0 (4096 bytes)", in.U("uar_page_sz"))
	case in.I("log_max_uars") > logUARs:
		return refuse(stBadParam, "log_max_uars is %d, the BAR has 2^%d", in.U("log_max_uars"), logUARs)
	}
	if other := flags &^ (hcaUDPortCheck | hcaDeviceManaged); other != 0 {
		m.host.Warnf("INIT_HCA (07h): flags %#x are accepted and have no effect in this model", other)
	}
	h := hca{cqeSize: 32, eqeSize: 32, logUARs: in.I("log_max_uars"), deviceManaged: flags&hcaDeviceManaged != 0,
		in: append([]byte(nil), in.B...)}
	if in.U("eqe_cqe")&eqe64 != 0 {
		h.eqeSize = 64
	}
	if in.U("eqe_cqe")&cqe64 != 0 {
		h.cqeSize = 64
	}
	if other := in.U("eqe_cqe") &^ (eqe64 | cqe64); other != 0 {
		return refuse(stBadParam, "strides of EQEs and CQEs (%08x): only 64 bytes (bits 29 and 30) are offered", other)
	}
	logged := func(name string, size uint64) table { // the low bits of the base contain the log of the number
		v := in.U(name)
		return table{name: name, base: v &^ 0x1f, log: int(v & 0x1f), size: size}
	}
	h.qpc, h.srqc, h.cqc, h.eqc = logged("qpc_base", qpcSize), logged("srqc_base", srqcSize),
		logged("cqc_base", cqcSize), logged("eqc_base", eqcSize)
	h.altc = table{"altc_base", in.U("altc_base"), h.qpc.log, altcSize}
	h.auxc = table{"auxc_base", in.U("auxc_base"), h.qpc.log, auxcSize}
	h.rdmarc = logged("rdmarc_base", rdmarcSize)
	h.rdmarc.size <<= h.rdmarc.log & 7
	h.rdmarc.log = h.qpc.log
	h.dmpt = table{"dmpt_base", in.U("dmpt_base"), in.I("log_dmpt_sz"), dmptSize}
	h.mtt = table{"mtt_base", in.U("mtt_base"), -1, mttSize}
	h.mc = table{"mc_base", in.U("mc_base"), in.I("log_mc_table_sz"), 1 << in.I("log_mc_entry_sz")}
	if h.deviceManaged {
		h.mc = table{"fs_base", in.U("fs_base"), in.I("fs_log_table_sz"), 1 << in.I("fs_log_entry_sz")}
	}
	for i, of := range []table{h.qpc, h.srqc, h.cqc, h.eqc} {
		h.cmpt[i] = table{"cmpt_base", in.U("cmpt_base") + uint64(i)<<24*cmptSize, of.log, cmptSize}
	}
	if r := m.checkTables(&h); r != nil {
		return r
	}
	m.hca = h
	m.fw.stage = stageReady
	return nil
}

// checkTables checks sizes and addresses: each table is aligned to its size, is within the ICM, and starts in mapped
// memory, for the entries that the firmware reserves.
func (m *Model) checkTables(h *hca) *refusal {
	for _, k := range []struct {
		t        table
		most     int
		reserved int
	}{{h.qpc, m.prof.logQPs, logReservedQPs}, {h.cqc, m.prof.logCQs, logReservedCQs},
		{h.srqc, logSRQs, logReservedSRQs}, {h.eqc, logEQs, 0},
		{h.dmpt, m.prof.logMPTs, logReservedMPTs}, {h.altc, m.prof.logQPs, logReservedQPs},
		{h.auxc, m.prof.logQPs, logReservedQPs}, {h.mc, logMCGs, -1}} {
		size := k.t.size << k.t.log
		switch {
		case k.t.log > k.most:
			return refuse(stLimit, "%s: 2^%d entries, the capability is 2^%d", k.t.name, k.t.log, k.most)
		case k.t.base&(size-1) != 0:
			return refuse(stBadParam, "%s is %#x: a table of %#x bytes is aligned to its size", k.t.name, k.t.base,
				size)
		case k.t.base+size > m.icm.size:
			return refuse(stBadParam, "%s: %#x to %#x, SET_ICM_SIZE said %#x", k.t.name, k.t.base, k.t.base+size,
				m.icm.size)
		}
		if k.reserved >= 0 {
			if k.t.log < k.reserved {
				return refuse(stBadParam, "%s: 2^%d entries, the firmware reserves 2^%d", k.t.name, k.t.log, k.reserved)
			}
			if _, r := m.icm.entry(k.t, 0); r != nil {
				return r
			}
		}
	}
	if _, r := m.icm.entry(table{"mtt_base", h.mtt.base, 0, 8}, 0); r != nil {
		return r
	}
	return nil
}

func (m *Model) closeHCA(*call) *refusal {
	for _, left := range m.obj.left() {
		m.host.Warnf("CLOSE_HCA: %s still exists", left)
	}
	m.closePorts()
	m.obj = newObjects()
	m.rules = newSteering()
	m.uar.reset(m)
	m.hca = hca{}
	m.fw.stage = stageRunning
	return nil
}

func (m *Model) queryHCA(c *call) *refusal {
	copy(c.out.B, m.hca.in)
	c.out.Set("hca_core_clock", coreMHz)
	return nil
}

func (m *Model) queryDevCap(c *call) *refusal {
	m.fillDevCap(c.out)
	return nil
}

// sized is the layout of a mailbox whose fields vary.
func sized(n int) *parts.Layout { return lay(n, fmt.Sprintf("00*%d data", n/4)) }
