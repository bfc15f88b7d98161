package mlx4sim

// Profile is a device model: its IDs, firmware and limits.
type Profile uint8

const (
	ConnectX3    Profile = iota // 15b3:1003
	ConnectX3Pro                // 15b3:1007
)

type profile struct {
	device, subsystem       uint16
	fw                      [3]uint16 // major, minor, subminor
	board                   string
	logQPs, logCQs, logMPTs int
}

var profiles = map[Profile]*profile{
	// A MCX354A-FCBT with its last firmware.
	ConnectX3:    {0x1003, 0x0050, [3]uint16{2, 42, 5000}, "MT_1090120019", 19, 16, 19},
	ConnectX3Pro: {0x1007, 0x0006, [3]uint16{2, 42, 5000}, "MT_1090111019", 19, 16, 19},
}

// Device is the PCI device ID.
func (p Profile) Device() uint16 { return profiles[p].device }

// Sizes of context entries, and the numbers that the firmware reserves, as reported by ConnectX-3 cards.
const (
	fwPages = 256 // 1 MB for the firmware

	qpcSize    = 256
	altcSize   = 64
	auxcSize   = 64
	rdmarcSize = 32
	srqcSize   = 128
	cqcSize    = 128
	eqcSize    = 64
	cmptSize   = 64
	dmptSize   = 64
	mttSize    = 8
	maxICM     = 1 << 40

	logReservedQPs  = 6 // 64
	logReservedCQs  = 7 // 128: the first CQ of a real card's driver was 80h
	logReservedSRQs = 6
	logReservedMPTs = 8  // 256: the first key of a real card's driver was for index 100h
	logReservedMTTs = 6  // 64
	reservedEQs     = 28 // seen on a ConnectX-3
	reservedUARs    = 8
	reservedPDs     = 4

	logSRQs  = 16
	logEQs   = 9
	logMCGs  = 17
	logCQE   = 22
	logWQE   = 14
	logEQE   = 22
	maxSQE   = 1008 // bytes of a send WQE
	maxRQE   = 512
	maxSGE   = 32
	logBF    = 9 // 512 bytes, two halves
	logBFPer = 3 // BlueFlame registers to a page
	logGSO   = 17
	logRSS   = 7
	ethMTU   = 9600
	logMACs  = 7
	logVLANs = 7
)

// PRM "QUERY_DEV_CAP", with the fields of later firmware.
var devCap = lay(0x100, `10.31:24 log_max_srq_sz 10.23:16 log_max_qp_sz 10.11:8 log2_rsvd_qps 10.4:0 log_max_qp 14.31:28 log2_rsvd_srqs 14.20:16 log_max_srqs
	14.13:8 num_rsvd_scqs 14.3:0 log_max_scqs 18.31:24 num_rsvd_eqs 18.23:16 log_max_cq_sz 18.11:8 log2_rsvd_cqs 18.4:0 log_max_cq
	1c.31:24 log_max_eq_sz 1c.21:16 log_max_d_mpts 1c.11:8 log2_rsvd_eqs 1c.3:0 log_max_eq 20.31:28 log2_rsvd_mtts 20.22:16 log_max_mrw_sz
	20.11:8 log2_rsvd_mrws 20.5:0 log_max_mtts 24.11:0 num_sys_eqs 28.21:16 log_max_ra_req_qp 28.5:0 log_max_ra_res_qp 2c.20:16 log_max_gso
	2c.13 rss_xor 2c.12 rss_toeplitz 2c.11:8 log_max_rss 2c.5:0 log_max_ra_res_global 30.0 rsz_srq 34.20:16 local_ca_ack_delay 34.15:8 mtu_width 34.3:0 num_ports 34.7:4 max_vl
	38.28:24 log_max_msg 38.3:0 log_max_gid 3c.31:16 stat_rate_support 3c.15 timestamps 3c.3:0 log_max_pkey 40.31:0 ext_flags 44.31:0 flags
	48.31:28 num_rsvd_uars 48.21:16 uar_sz 48.7:0 log_pg_sz 4c.31 bf 4c.20:16 log_bf_reg_size 4c.13:8 log_max_bf_regs_per_page 4c.5:0 log_max_bf_pages
	50.23:16 max_sg_sq 50.15:0 max_desc_sz_sq 54.23:16 max_sg_rq 54.15:0 max_desc_sz_rq 60.23:16 log_max_qp_mcg 60.11:8 num_rsvd_mcgs 60.7:0 log_max_mcg
	64.31:28 num_rsvd_pds 64.20:16 log_max_pd 64.15:12 num_rsvd_xrcds 64.4:0 log_max_xrcds 70.31:0 ext_flags_2 74.15 flow_steering 74.12:8 fs_log_max_range 74.7:0 fs_max_qp
	80.31:16 rdmarc_entry_sz 80.15:0 qpc_entry_sz 84.31:16 aux_entry_sz 84.15:0 altc_entry_sz 88.31:16 eqc_entry_sz 88.15:0 cqc_entry_sz
	8c.31:16 srq_entry_sz 8c.15:0 c_mpt_entry_sz 90.31:16 mtt_entry_sz 90.15:0 d_mpt_entry_sz 94.31:0 bmme_flags 98.31:0 resd_lkey a0*2 max_icm_size`)

// Bits of the capability flags.
const (
	capRC           = 1 << 0
	capUC           = 1 << 1
	capUD           = 1 << 2
	capSRQ          = 1 << 6
	capIPoIBSum     = 1 << 7
	capPKeyCount    = 1 << 8
	capQKeyCount    = 1 << 9
	capDPDP         = 1 << 12
	capLSO          = 1 << 15 // "blh", big LSO headers: Linux takes it for LSO
	capUDPortCheck  = 1 << 20
	capUDMulticast  = 1 << 21
	capRoCE         = 1 << 30
	extLoopback     = 1 << (32 - 32) // of unicast frames whose WQE names the destination
	extFCSKeep      = 1 << (34 - 32)
	extUDPRSS       = 1 << (40 - 32)
	extSense        = 1 << (55 - 32)
	extPortMgmt     = 1 << (59 - 32)
	extEQE64        = 1 << (61 - 32)
	extCQE64        = 1 << (62 - 32)
	ext2FlowStats   = 1 << 28
	fsMaxQPPerEntry = 248
)

func (m *Model) fillDevCap(o msg) {
	set := func(v map[string]uint64) {
		for name, x := range v {
			o.Set(name, x)
		}
	}
	p := m.prof
	set(map[string]uint64{
		"log_max_srq_sz": logWQE, "log_max_qp_sz": logWQE, "log2_rsvd_qps": logReservedQPs,
		"log_max_qp":     uint64(p.logQPs),
		"log2_rsvd_srqs": logReservedSRQs, "log_max_srqs": logSRQs, "num_rsvd_eqs": reservedEQs,
		"log_max_cq_sz": logCQE,
		"log2_rsvd_cqs": logReservedCQs, "log_max_cq": uint64(p.logCQs), "log_max_eq_sz": logEQE,
		"log_max_d_mpts": uint64(p.logMPTs),
		"log2_rsvd_eqs":  5, "log_max_eq": logEQs, "log2_rsvd_mtts": logReservedMTTs, "log_max_mrw_sz": 64,
		"log2_rsvd_mrws": logReservedMPTs,
		"log_max_mtts":   31, "log_max_ra_req_qp": 7, "log_max_ra_res_qp": 7, "log_max_gso": logGSO, "rss_xor": 1,
		"rss_toeplitz": 1, "log_max_rss": logRSS,
		"log_max_ra_res_global": 23, "local_ca_ack_delay": 15, "num_ports": 1, "max_vl": 8, "mtu_width": 0x53,
		"log_max_msg": 30, "log_max_gid": 7,
		"timestamps": 1, "log_max_pkey": 7, "stat_rate_support": 0, "num_rsvd_uars": reservedUARs,
		"uar_sz": logUARs + 12 - 20, "log_pg_sz": 9,
		"bf": 1, "log_bf_reg_size": logBF, "log_max_bf_regs_per_page": logBFPer, "log_max_bf_pages": logUARs,
		"max_sg_sq": maxSGE, "max_desc_sz_sq": maxSQE, "max_sg_rq": maxSGE, "max_desc_sz_rq": maxRQE,
		"log_max_qp_mcg": 8, "log_max_mcg": 13,
		"num_rsvd_pds": reservedPDs, "log_max_pd": 15,
		"rdmarc_entry_sz": rdmarcSize, "qpc_entry_sz": qpcSize, "aux_entry_sz": auxcSize, "altc_entry_sz": altcSize,
		"eqc_entry_sz": eqcSize,
		"cqc_entry_sz": cqcSize, "srq_entry_sz": srqcSize, "c_mpt_entry_sz": cmptSize, "mtt_entry_sz": mttSize,
		"d_mpt_entry_sz": dmptSize,
		"resd_lkey":      reservedLKey, "max_icm_size": maxICM,
		"flags":     capRC | capSRQ | capUD | capUDPortCheck | capUDMulticast | capPKeyCount | capQKeyCount,
		"ext_flags": extLoopback | extFCSKeep | extUDPRSS | extPortMgmt | extEQE64 | extCQE64,
	})
	if m.opt.NoPortEvents {
		o.Set("ext_flags", o.U("ext_flags")&^extPortMgmt)
	}
	if m.opt.Link != InfiniBand {
		o.Set("flags", o.U("flags")|capLSO|capRoCE)
		o.Set("ext_flags_2", ext2FlowStats)
	}
	if m.opt.Link == AnyLink {
		o.Set("flags", o.U("flags")|capDPDP)
		o.Set("ext_flags", o.U("ext_flags")|extSense)
	}
	if m.opt.Steering == DeviceManaged {
		set(map[string]uint64{"flow_steering": 1, "fs_max_qp": fsMaxQPPerEntry})
	}
}
