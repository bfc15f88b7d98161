package mlx4

import (
	"fmt"

	"github.com/rebound-nic/rebound/nic/kit/mlxkit"
)

// reg is an offset in BAR 0. All registers are big-endian and allow only 32-bit accesses.
type reg uint64

const (
	regHCR reg = 0x80680 // host command register: seven dwords
	// ownership: a read of 0 takes it, any other value means that it is taken; writing 0 releases it
	regOwner    reg = 0x8069C
	regReset    reg = 0xF0010 // writing 1 resets the whole card
	regResetSem reg = 0xF03FC // flash semaphore: a read of 0 takes it; a reset releases it

	registers = 0xF0400 // bytes of BAR 0 that are used here
)

// The host command register by dwords (Linux, drivers/net/ethernet/mellanox/mlx4/cmd.c).
const (
	hcrInHigh   = regHCR + 0x00
	hcrInLow    = regHCR + 0x04
	hcrModifier = regHCR + 0x08
	hcrOutHigh  = regHCR + 0x0C
	hcrOutLow   = regHCR + 0x10
	hcrToken    = regHCR + 0x14 // 31:16
	hcrStatus   = regHCR + 0x18 // status 31:24, go 23, event 22, toggle 21, opcode modifier 15:12, opcode 11:0

	hcrGo     uint32 = 1 << 23
	hcrToggle uint32 = 1 << 21

	pollToken = 0xFFFF // of commands that raise no event
)

// A UAR page of BAR 2: doorbells. The BlueFlame pages follow all UAR pages, in the same order.
const (
	uarPage  = 4096
	uarSend  = 0x14  // send doorbell: QP number 31:8
	uarEQ    = 0x800 // consumer index of EQ 4n + i, on UAR page n, at 0x800 + 8i: arm 31, index 23:0
	minBAR2  = 1 << 20
	firstUAR = 128 // pages below are left to others: to event queues, and by Linux to virtual functions
)

// Command interface revisions that this driver supports. Revisions before 3 start a port with different fields.
const cmdifRev = 3

// opcode is a firmware command (Linux, include/linux/mlx4/cmd.h).
type opcode uint16

const (
	opQueryDevCap  opcode = 0x003
	opQueryFW      opcode = 0x004
	opQueryAdapter opcode = 0x006
	opInitHCA      opcode = 0x007
	opCloseHCA     opcode = 0x008
	opInitPort     opcode = 0x009
	opClosePort    opcode = 0x00A
	opSetPort      opcode = 0x00C
	opSW2HWMPT     opcode = 0x00D
	opHW2SWMPT     opcode = 0x00F
	opMapEQ        opcode = 0x012
	opSW2HWEQ      opcode = 0x013
	opHW2SWEQ      opcode = 0x014
	opSW2HWCQ      opcode = 0x016
	opHW2SWCQ      opcode = 0x017
	opRST2INIT     opcode = 0x019
	opINIT2RTR     opcode = 0x01A
	opRTR2RTS      opcode = 0x01B
	op2RST         opcode = 0x021
	opSpecialQP    opcode = 0x023
	opMADIFC       opcode = 0x024
	opReadMCG      opcode = 0x025
	opWriteMCG     opcode = 0x026
	opMGIDHash     opcode = 0x027
	opQueryPort    opcode = 0x043
	opSetVLANFltr  opcode = 0x047
	opSetMCastFltr opcode = 0x048
	opDumpEthStats opcode = 0x049
	opFlowAttach   opcode = 0x065
	opFlowDetach   opcode = 0x066
	opRunFW        opcode = 0xFF6
	opUnmapICM     opcode = 0xFF9
	opMapICM       opcode = 0xFFA
	opUnmapICMAux  opcode = 0xFFB
	opMapICMAux    opcode = 0xFFC
	opSetICMSize   opcode = 0xFFD
	opUnmapFA      opcode = 0xFFE
	opMapFA        opcode = 0xFFF
)

var opcodeNames = map[opcode]string{
	opQueryDevCap: "QUERY_DEV_CAP", opQueryFW: "QUERY_FW", opQueryAdapter: "QUERY_ADAPTER", opInitHCA: "INIT_HCA",
	opCloseHCA: "CLOSE_HCA", opInitPort: "INIT_PORT", opClosePort: "CLOSE_PORT", opSetPort: "SET_PORT",
	opSW2HWMPT: "SW2HW_MPT", opHW2SWMPT: "HW2SW_MPT", opMapEQ: "MAP_EQ", opSW2HWEQ: "SW2HW_EQ", opHW2SWEQ: "HW2SW_EQ",
	opSW2HWCQ: "SW2HW_CQ", opHW2SWCQ: "HW2SW_CQ", opRST2INIT: "RST2INIT_QP", opINIT2RTR: "INIT2RTR_QP",
	opRTR2RTS: "RTR2RTS_QP", op2RST: "2RST_QP", opSpecialQP: "CONF_SPECIAL_QP",
	opMADIFC: "MAD_IFC", opReadMCG: "READ_MCG", opWriteMCG: "WRITE_MCG", opMGIDHash: "MGID_HASH",
	opQueryPort:   "QUERY_PORT",
	opSetVLANFltr: "SET_VLAN_FLTR", opSetMCastFltr: "SET_MCAST_FLTR", opDumpEthStats: "DUMP_ETH_STATS",
	opFlowAttach: "QP_FLOW_STEERING_ATTACH", opFlowDetach: "QP_FLOW_STEERING_DETACH", opRunFW: "RUN_FW",
	opUnmapICM: "UNMAP_ICM", opMapICM: "MAP_ICM", opUnmapICMAux: "UNMAP_ICM_AUX", opMapICMAux: "MAP_ICM_AUX",
	opSetICMSize: "SET_ICM_SIZE", opUnmapFA: "UNMAP_FA", opMapFA: "MAP_FA",
}

func (o opcode) String() string {
	if name := opcodeNames[o]; name != "" {
		return fmt.Sprintf("%s (%#x)", name, uint16(o))
	}
	return fmt.Sprintf("command %#x", uint16(o))
}

// Status is firmware's status of a command (Linux, cmd.c: CMD_STAT_*).
type Status uint8

const statusMultiFunction Status = 0x50

var statusNames = map[Status]string{
	0x01: "internal error", 0x02: "bad operation", 0x03: "bad parameter", 0x04: "bad system state",
	0x05: "bad resource",
	0x06: "resource busy", 0x08: "exceeds the device's limits", 0x09: "bad resource state", 0x0A: "index out of range",
	0x0B: "firmware image is corrupt", 0x0C: "error in the mapping of context memory (ICM)", 0x10: "bad QP state",
	0x20: "bad segment parameters", 0x21: "memory windows are bound to the region",
	0x22: "local attached memory is not present",
	0x30: "bad management packet", 0x40: "more completions are outstanding than would fit",
	statusMultiFunction: "not for this function: multi-function support is required",
}

func (s Status) String() string { return mlxkit.Named(statusNames, s) }

// Flags of QUERY_DEV_CAP, the 64 bits at 0x40 (Linux, MLX4_DEV_CAP_FLAG_*), and the dword at 0x70.
const (
	capUDPRSS      uint64 = 1 << 40
	capPortChanges uint64 = 1 << 59 // events report changes by the subnet manager

	cap2SWCQInit uint32 = 1 << 23 // SW2HW_CQ leaves the entries as software wrote them, with opcode modifier 1
)

// Link types of a port in QUERY_PORT (byte 0).
const (
	portIB  = 1
	portEth = 2

	portUp uint8 = 0x80
)
