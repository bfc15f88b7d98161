package mlx5sim

import "github.com/rebound-nic/rebound/sim/parts"

// capBytes is the length of a capability structure as QUERY_HCA_CAP returns it.
const capBytes = 4096

// Capability types, bits 15:1 of QUERY_HCA_CAP's op_mod. Bit 0 set requests the current values, clear the maximum
// values.
const (
	capGeneral   = 0x0
	capEthernet  = 0x1
	capAtomic    = 0x3
	capRoCE      = 0x4
	capFlowTable = 0x7
	capDeviceMem = 0xf
	capTypes     = 0x30
)

// words are a structure's dwords by their offsets.
type words map[int]uint32

// The maximum capabilities of the recorded ConnectX-4.
var recorded = map[int]words{
	capGeneral: {0x10: 0x0f0f0017, 0x14: 0x00170000, 0x18: 0x00160018, 0x1c: 0x16180008, 0x20: 0x04401010,
		0x24: 0x00040004,
		0x28: 0x00040004, 0x2c: 0xe0000004, 0x30: 0x40ff0005, 0x34: 0xc7100101, 0x38: 0x1e000000, 0x3c: 0x00010001,
		0x40: 0xc006cc0e, 0x44: 0xe2fa030f, 0x48: 0x0005000c, 0x4c: 0xa0090000, 0x50: 0x00000400, 0x54: 0x00000200,
		0x58: 0x00000100, 0x5c: 0x00000030, 0x60: 0x00000015, 0x64: 0x10180018, 0x6c: 0x17171717, 0x70: 0x97100900,
		0x74: 0x09040606, 0x78: 0x0000000f, 0x7c: 0x800c0e0a, 0x90: 0x10000008, 0x98: 0x00000113, 0xb4: 0x00000001,
		0xb8: 0x00080010},
	capEthernet: {0x00: 0xe8725903, 0x08: 0x00000544, 0x30: 0x00000008, 0x34: 0x00000010, 0x38: 0x00000020, 0x3c: 0x00000200},
	capAtomic:   {0x10: 0x0000000f, 0x14: 0x0000003c, 0x18: 0x0000003c},
	capRoCE:     {0x00: 0x40000000, 0x10: 0x00070007, 0x14: 0x000012b7, 0x18: 0xffffc000, 0x1c: 0x00000100},
	capFlowTable: {0x40: 0xc8000000, 0x44: 0x100000ff, 0x4c: 0x00000009, 0x50: 0x0000000a, 0x54: 0x00000019,
		0x60: 0xeeefffc1,
		0x64: 0xeeeffe00, 0x70: 0xeeefffc0, 0x74: 0xeeeffe00, 0xc0: 0xc8000000, 0xc4: 0x100000ff, 0xcc: 0x00000009,
		0xd0: 0x0000000a, 0xd4: 0x00000019, 0xe0: 0xeeefffc0, 0xe4: 0xeeeffe00, 0xf0: 0xeeefffc0, 0xf4: 0xeeeffe00,
		0x100: 0x88000000, 0x104: 0x100000ff, 0x10c: 0x00000009, 0x110: 0x0000000a, 0x114: 0x00000019,
		0x120: 0xeeefffc0,
		0x124: 0xeeeffe00, 0x130: 0xeeefffc0, 0x134: 0xeeeffe00, 0x180: 0xc8000000, 0x184: 0x100000ff,
		0x18c: 0x00000009,
		0x190: 0x0000000a, 0x194: 0x00000019, 0x1a0: 0xeeefffc0, 0x1a4: 0xeeeffe00, 0x1b0: 0xeeefffc0,
		0x1b4: 0xeeeffe00},
}

// currentGeneral has the general capabilities whose current values differ from the maximum on the recorded card: a
// driver may raise them with SET_HCA_CAP.
var currentGeneral = words{0x10: 0x0f0f000e, 0x2c: 0xe0000000, 0x30: 0x40ff0000, 0x40: 0xc0060c0e, 0x90: 0x10000000}

// notModelled are capabilities of the recorded card that this model does not implement and does not report.
var notModelled = []struct {
	kind int
	parts.Field
	why string
}{
	{capGeneral, parts.Field{Off: 0x40, Hi: 30, Lo: 30}, "striding_rq: receive queues are cyclic, one WQE for a frame"},
	{capGeneral, parts.Field{Off: 0x40, Hi: 11, Lo: 11}, "wq_signature: WQEs are not signed"},
	{capGeneral, parts.Field{Off: 0x40, Hi: 10, Lo: 10}, "sctr_data_cqe: payload is not scattered into CQEs"},
	{capGeneral, parts.Field{Off: 0x40, Hi: 1, Lo: 1}, "atomic: no atomic operations"},
	{capGeneral, parts.Field{Off: 0x44, Hi: 1, Lo: 1}, "uc: QPs are RC and UD"},
	{capGeneral, parts.Field{Off: 0x44, Hi: 30, Lo: 30}, "cq_resize"},
	{capGeneral, parts.Field{Off: 0x34, Hi: 26, Lo: 26}, "ets: one traffic class"},
	{capEthernet, parts.Field{Off: 0x00, Hi: 29, Lo: 29}, "lro_cap"},
	{capEthernet, parts.Field{Off: 0x00, Hi: 27, Lo: 27}, "lro_time_stamp"},
	{capEthernet, parts.Field{Off: 0x00, Hi: 15, Lo: 14}, "multi_pkt_send_wqe"},
	{capEthernet, parts.Field{Off: 0x00, Hi: 1, Lo: 0}, "tunnel_stateless_gre and _vxlan: inner headers are not parsed"},
}

type capSet struct {
	max, cur map[int][]byte
}

// structure is a capability structure without the unimplemented capabilities, and with this function's amendments.
func structure(kind int, w words, amended []amendment) []byte {
	b := make([]byte, capBytes)
	for off, v := range w {
		be.PutUint32(b[off:], v)
	}
	for _, n := range notModelled {
		if n.kind == kind {
			be.PutUint32(b[n.Off:], be.Uint32(b[n.Off:])&^n.Mask())
		}
	}
	for _, a := range amended {
		if a.kind == kind {
			be.PutUint32(b[a.field.Off:], be.Uint32(b[a.field.Off:])&^a.field.Mask()|a.value<<a.field.Lo)
		}
	}
	return b
}

func (m *Model) newCaps() capSet {
	amended := append(m.prof.amendments(), m.opt.amendments()...)
	formats := uint32(m.stamps() - FreeRunning)
	amended = append(amended, amendment{capGeneral, parts.Field{Off: 0x88, Hi: 31, Lo: 30}, formats}, // sq_ts_format
		amendment{capGeneral, parts.Field{Off: 0x88, Hi: 29, Lo: 28}, formats}, // rq_ts_format
		amendment{capRoCE, parts.Field{Off: 0x00, Hi: 1, Lo: 0}, formats})      // qp_ts_format
	s := capSet{max: map[int][]byte{}, cur: map[int][]byte{}}
	for kind, w := range recorded {
		s.max[kind], s.cur[kind] = structure(kind, w, amended), structure(kind, w, amended)
	}
	if m.prof.memic {
		s.max[capDeviceMem] = structure(capDeviceMem, nil, amended)
		s.cur[capDeviceMem] = s.max[capDeviceMem]
	}
	current := structure(capGeneral, currentGeneral, amended)
	for off := range currentGeneral {
		copy(s.cur[capGeneral][off:off+4], current[off:])
	}
	return s
}

// general has the general capabilities that a driver may set, and those that the model reads.
var general = lay(capBytes, `10.4:0 log_max_qp 2c.27 cache_line_128byte 2c.15:0 gid_table_size 30.15:0 pkey_table_size 40.15:14 cmdif_checksum
	48.31 uar_4k 90.15:0 log_uar_page_sz 7c.30 disable_local_lb_uc 7c.29 disable_local_lb_mc
	98.31:0 device_frequency_mhz 7c.4:0 log_max_current_uc_list 7c.12:8 log_max_current_mc_list
	7c.20:16 log_max_vlan_list`)

func (s *capSet) general() msg         { return as(s.cur[capGeneral], general) }
func (s *capSet) cmdifChecksum() bool  { return s.general().Is("cmdif_checksum") }
func (s *capSet) loopbackSwitch() bool { return s.general().Is("disable_local_lb_uc") }

func (m *Model) queryCap(c *call) *refusal {
	op := c.in.I("op_mod")
	if c.in.Is("other_function") {
		return refuse(stBadParam, "other_function is set: there is none")
	}
	if op>>1 >= capTypes {
		return refuse(stBadParam, "op_mod %xh: no capability type %xh", op, op>>1)
	}
	from := m.caps.max
	if op&1 == 1 {
		from = m.caps.cur
	}
	copy(c.out.B[min(16, len(c.out.B)):], from[op>>1]) // as much as fits into the driver's output buffer
	return nil
}

// setCap sets new current values: each field that a driver may change must be between zero and its maximum, and all
// others are unchanged.
func (m *Model) setCap(c *call) *refusal {
	if m.hca == hcaReady {
		return refuse(stBadSysState, "capabilities are set before INIT_HCA")
	}
	op := c.in.I("op_mod")
	want := c.in.B[16:]
	if len(want) != capBytes {
		return refuse(stInLen, "input is %d bytes, expected %d", len(c.in.B), 16+capBytes)
	}
	if op>>1 != capGeneral {
		return refuse(stBadParam, "op_mod %xh: capability type %xh cannot be set", op, op>>1)
	}
	cur, greatest := m.caps.cur[capGeneral], m.caps.max[capGeneral]
	settable := make([]byte, capBytes)
	for _, name := range []string{"log_max_qp", "cache_line_128byte", "gid_table_size", "pkey_table_size",
		"cmdif_checksum",
		"uar_4k", "log_uar_page_sz", "log_max_current_uc_list"} {
		as(settable, general).Set(name, ^uint64(0))
		if v, most := as(want, general).U(name), as(greatest, general).U(name); v > most {
			return refuse(stBadParam, "%s is %d, its greatest value is %d", name, v, most)
		}
	}
	for off := 0; off < capBytes; off += 4 {
		if diff := (be.Uint32(want[off:]) ^ be.Uint32(cur[off:])) &^ be.Uint32(settable[off:]); diff != 0 {
			return refuse(stBadParam,
				"general capabilities at %02xh: bits %08x cannot be changed (are %08x, asked for %08x)",
				off, diff, be.Uint32(cur[off:]), be.Uint32(want[off:]))
		}
	}
	copy(cur, want)
	return nil
}
