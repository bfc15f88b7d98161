package mlx5sim

import "github.com/rebound-nic/rebound/sim/parts"

// Profile identifies an adapter, or a virtual function of one.
type Profile int

// The adapters of this model. The recorded card is the first; each other one has its capabilities, except for the
// differences of its generation that an Ethernet driver sees: see profile.
const (
	ConnectX4     Profile = iota // 15b3:1013, the recorded card
	ConnectX4VF                  // 15b3:1014
	ConnectX4Lx                  // 15b3:1015
	ConnectX4LxVF                // 15b3:1016
	ConnectX5                    // 15b3:1017
	ConnectX5VF                  // 15b3:1018
	ConnectX5Ex                  // 15b3:1019
	ConnectX5ExVF                // 15b3:101a
	ConnectX6                    // 15b3:101b
	ConnectX6VF                  // 15b3:101c
	ConnectX6Dx                  // 15b3:101d
	ConnectXVF                   // 15b3:101e: of a ConnectX-6 Dx or later
	ConnectX6Lx                  // 15b3:101f
	ConnectX7                    // 15b3:1021
	BlueField                    // 15b3:a2d2: a ConnectX-5
	BlueFieldVF                  // 15b3:a2d3
	BlueField2                   // 15b3:a2d6: a ConnectX-6 Dx
	BlueField3                   // 15b3:a2dc: a ConnectX-7
)

// profile has the properties that depend on the adapter.
//
// The major firmware version identifies the adapter. According to public reports, the timer's frequency is 156.25 MHz
// for a ConnectX-4 Lx, 5 and 6, 78.125 MHz for a ConnectX-5 Ex and 1 GHz for a ConnectX-6 Dx (ibv_devinfo,
// hca_core_clock); for the others, that of the closest relative is used. The chips' IDs are from health reports and the
// vendor's tools (mstflint). ConnectX-4 and 4 Lx require inline headers in each send WQE, later ones read them by DMA
// (Linux, wqe_inline_mode).
type profile struct {
	name     string // "cx4"
	device   uint16
	fw       [3]uint16
	psid     string
	hwID     uint32 // the chip's ID in the health buffer
	virtual  bool
	vectors  int    // number of MSI-X vectors
	noInline bool   // wqe_inline_mode: no inline headers are required
	kHz      uint32 // device_frequency_khz; 0 if the firmware is too old to report it
	clock    Clock  // 0 for FreeRunning
	later    bool   // firmware newer than the recorded card's: flow tables and entries can be modified
	uctx     bool   // log_max_uctx: user contexts, unless the firmware's setting turns them off
	memic    bool   // device_memory
	umem     bool   // umem_uid_0: queue memory may refer to CREATE_UMEM
	lbSwitch bool   // disable_local_lb_uc, disable_local_lb_mc, self_lb_en_modifiable: loopback can be switched
	media    uint32 // eth_proto bits of PTYS
}

const (
	media25G  = proto25GBaseCR | proto25GBaseSR
	media50G  = media25G | proto50GBaseCR2
	media100G = proto100GBaseCR4 | proto100GBaseSR4

	clockConnectX5   = 156250
	clockConnectX5Ex = 78125
	clockConnectX6D  = 1000000
)

var profiles = map[Profile]*profile{
	ConnectX4: {name: "cx4", device: 0x1013, fw: [3]uint16{14, 12, 1220}, psid: "MT_2430110027", hwID: 0x209, vectors: vectors, media: media100G},

	ConnectX4VF:   later("cx4vf", 0x1014, 0x209, 12, 28, 2006, vf, inline, clockConnectX5, media100G),
	ConnectX4Lx:   later("cx4lx", 0x1015, 0x20b, 14, 32, 1010, pf, inline, clockConnectX5, media50G),
	ConnectX4LxVF: later("cx4lxvf", 0x1016, 0x20b, 14, 32, 1010, vf, inline, clockConnectX5, media50G),
	ConnectX5:     later("cx5", 0x1017, 0x20d, 16, 35, 2000, pf, noInline, clockConnectX5, media100G),
	ConnectX5VF:   later("cx5vf", 0x1018, 0x20d, 16, 35, 2000, vf, noInline, clockConnectX5, media100G),
	ConnectX5Ex:   later("cx5ex", 0x1019, 0x20d, 16, 35, 2000, pf, noInline, clockConnectX5Ex, media100G),
	ConnectX5ExVF: later("cx5exvf", 0x101a, 0x20d, 16, 35, 2000, vf, noInline, clockConnectX5Ex, media100G),
	ConnectX6:     later("cx6", 0x101b, 0x20f, 20, 35, 2000, pf, noInline, clockConnectX5, media100G),
	ConnectX6VF:   later("cx6vf", 0x101c, 0x20f, 20, 35, 2000, vf, noInline, clockConnectX5, media100G),
	ConnectX6Dx:   later("cx6dx", 0x101d, 0x212, 22, 36, 1010, pf, noInline, clockConnectX6D, media100G),
	ConnectXVF:    later("vf", 0x101e, 0x212, 22, 36, 1010, vf, noInline, clockConnectX6D, media100G),
	ConnectX6Lx:   later("cx6lx", 0x101f, 0x216, 26, 36, 1010, pf, noInline, clockConnectX6D, media50G),
	ConnectX7:     later("cx7", 0x1021, 0x218, 28, 36, 1010, pf, noInline, clockConnectX6D, media100G),
	BlueField:     later("bf", 0xa2d2, 0x211, 18, 33, 1048, pf, noInline, clockConnectX5, media100G),
	BlueFieldVF:   later("bfvf", 0xa2d3, 0x211, 18, 33, 1048, vf, noInline, clockConnectX5, media100G),
	BlueField2:    later("bf2", 0xa2d6, 0x214, 24, 36, 1010, pf, noInline, clockConnectX6D, media100G),
	BlueField3:    later("bf3", 0xa2dc, 0x21c, 32, 36, 1010, pf, noInline, clockConnectX6D, media100G),
}

const (
	pf, vf           = false, true
	inline, noInline = false, true
)

// later returns an adapter with newer firmware than that of the recorded card.
func later(name string, device uint16, hwID uint32, major, minor, sub uint16, virtual, noInline bool, kHz,
	media uint32) *profile {
	p := &profile{name: name, device: device, fw: [3]uint16{major, minor, sub}, psid: "MT_0000000000", hwID: hwID,
		virtual: virtual,
		vectors: vectors, noInline: noInline, kHz: kHz, later: true, lbSwitch: true, media: media}
	if device == 0x101e { // observed on a ConnectX-7: 12 vectors
		p.vectors = 12
	}
	p.uctx = kHz != 0 && hwID >= 0x20d // a ConnectX-5
	p.memic = p.uctx && !virtual
	p.umem = device == 0x1021 || device == 0xa2dc
	if kHz == clockConnectX6D { // the ConnectX-6 Dx generation
		p.clock = BothClocks
	}
	return p
}

// Name is the short name of the adapter: "cx6dx".
func (p Profile) Name() string { return profiles[p].name }

// Device is the PCI device ID.
func (p Profile) Device() uint16 { return profiles[p].device }

// Virtual reports whether it is a virtual function.
func (p Profile) Virtual() bool { return profiles[p].virtual }

// Profiles returns all profiles.
func Profiles() (all []Profile) {
	for p := ConnectX4; profiles[p] != nil; p++ {
		all = append(all, p)
	}
	return all
}

// amendment is a capability field that differs from the recorded value.
type amendment struct {
	kind  int
	field parts.Field
	value uint32
}

// outerIPVersion is ft_field_support.outer_ip_version of NIC receive tables (Linux, mlx5_ifc.h). The recorded
// ConnectX-4 does not have it; Linux matches the EtherType there.
var outerIPVersion = parts.Field{Off: 0x60, Hi: 28, Lo: 28}

// amendments returns the amendments of a profile (PRM, HCA Capabilities Layout).
func (p *profile) amendments() (a []amendment) {
	if p.noInline {
		// wqe_inline_mode: not required
		a = append(a, amendment{capEthernet, parts.Field{Off: 0x00, Hi: 13, Lo: 12}, 2})
	}
	if p.kHz != 0 {
		// device_frequency_mhz
		a = append(a, amendment{capGeneral, parts.Field{Off: 0x98, Hi: 31, Lo: 0}, p.kHz / 1000},
			amendment{capGeneral, parts.Field{Off: 0x9c, Hi: 31, Lo: 0}, p.kHz}) // device_frequency_khz
	}
	if p.lbSwitch {
		// disable_local_lb_uc, disable_local_lb_mc
		a = append(a, amendment{capGeneral, parts.Field{Off: 0x7c, Hi: 30, Lo: 29}, 3},
			amendment{capEthernet, parts.Field{Off: 0x00, Hi: 23, Lo: 23}, 1}) // self_lb_en_modifiable
	}
	if p.later { // flow_counter_bulk_alloc, log_max_flow_counter_bulk
		a = append(a, amendment{capGeneral, parts.Field{Off: 0x60, Hi: 15, Lo: 8}, bulkAlloc},
			amendment{capGeneral, parts.Field{Off: 0x68, Hi: 23, Lo: 16}, logBulkQuery})
		// flow_counter, flow_modify_en, identified_miss_table_mode, flow_table_modify
		a = append(a, amendment{capFlowTable, parts.Field{Off: 0x40, Hi: 29, Lo: 29}, 1},
			amendment{capFlowTable, parts.Field{Off: 0x40, Hi: 28, Lo: 28}, 1},
			amendment{capFlowTable, parts.Field{Off: 0x40, Hi: 26, Lo: 25}, 3},
			amendment{capFlowTable, outerIPVersion, 1})
	}
	if p.memic { // device_memory; memic, log_min_memic_alloc_size and log_max_memic_addr_alignment, where and how much
		at := p.memicAt()
		a = append(a, amendment{capGeneral, parts.Field{Off: 0x34, Hi: 23, Lo: 23}, 1},
			amendment{capDeviceMem, parts.Field{Off: 0x00, Hi: 31, Lo: 31}, 1},
			amendment{capDeviceMem, parts.Field{Off: 0x04, Hi: 20, Lo: 16}, logMemicUnit},
			amendment{capDeviceMem, parts.Field{Off: 0x04, Hi: 7, Lo: 0}, logMemicAlign},
			amendment{capDeviceMem, parts.Field{Off: 0x08, Hi: 31, Lo: 0}, uint32(at >> 32)},
			amendment{capDeviceMem, parts.Field{Off: 0x0c, Hi: 31, Lo: 0}, uint32(at)},
			amendment{capDeviceMem, parts.Field{Off: 0x10, Hi: 31, Lo: 0}, memicSize},
			amendment{capDeviceMem, parts.Field{Off: 0x14, Hi: 31, Lo: 0}, memicSize})
	}
	if p.umem { // umem_uid_0, log_max_umem
		a = append(a, amendment{capGeneral, parts.Field{Off: 0x48, Hi: 13, Lo: 13}, 1},
			amendment{capGeneral, parts.Field{Off: 0x8c, Hi: 20, Lo: 16}, 16})
	}
	if p.virtual {
		// vport_group_manager, vhca_group_manager
		a = append(a, amendment{capGeneral, parts.Field{Off: 0x34, Hi: 31, Lo: 30}, 0},
			amendment{capGeneral, parts.Field{Off: 0x34, Hi: 24, Lo: 24}, 0}, // eswitch_manager
			amendment{capGeneral, parts.Field{Off: 0x48, Hi: 21, Lo: 16}, 0}) // uar_sz: BAR 0 is 1 MB
	}
	return a
}

// uctx reports whether the firmware has user contexts.
func (o *Options) uctx() bool { return profiles[o.Profile].uctx && !o.NoUCTX }

// amendments returns the capabilities that firmware settings change.
func (o *Options) amendments() (a []amendment) {
	if o.uctx() { // log_max_uctx, uctx_cap; log_max_umem
		a = append(a, amendment{capGeneral, parts.Field{Off: 0x8c, Hi: 28, Lo: 24}, logMaxUCTX},
			amendment{capGeneral, parts.Field{Off: 0xd4, Hi: 31, Lo: 0}, uctxRawTX},
			amendment{capGeneral, parts.Field{Off: 0x8c, Hi: 20, Lo: 16}, 16})
	}
	if o.NoIPVersion {
		a = append(a, amendment{capFlowTable, outerIPVersion, 0})
	}
	if o.ICMP { // flex_parser_protocols
		a = append(a, amendment{capGeneral, parts.Field{Off: 0xa8, Hi: 31, Lo: 0}, parserICMP4 | parserICMP6})
	}
	return a
}

// barSize is the size of BAR 0: 1 MB << cap uar_sz.
func (p *profile) barSize() uint64 {
	if p.virtual {
		return 1 << 20
	}
	return 1 << 25
}
