package mlx5

import (
	"fmt"

	"github.com/rebound-nic/rebound/nic/kit/mlxkit"
)

// reg is an offset in the initialization segment, at the start of BAR 0. All of it is big-endian.
type reg uint64

const (
	regFwRev         reg = 0x0000 // fw_rev_minor 31:16, fw_rev_major 15:0
	regCmdifRev      reg = 0x0004 // cmd_interface_rev 31:16, fw_rev_subminor 15:0
	regCmdqAddrHigh  reg = 0x0010 // cmdq_phy_addr 63:32
	regCmdqAddrLow   reg = 0x0014 // cmdq_phy_addr 31:12, nic_interface 9:8, log_cmdq_size 7:4, log_cmdq_stride 3:0
	regCmdDoorbell   reg = 0x0018 // command_doorbell_vector: one bit for each entry
	regInitializing  reg = 0x01FC // initializing 31
	regHealthFw      reg = 0x0230 // health_buffer.fw_version: all ones when the bus does not answer
	regHealthRFR     reg = 0x0238 // health_buffer: rfr 31 (reset is required), severity 26:24
	regHealthSynd    reg = 0x023C // health_buffer: irisc_index 31:24, synd 23:16, ext_synd 15:0
	regTimerHigh     reg = 0x1000 // internal_timer_h
	regTimerLow      reg = 0x1004 // internal_timer_l
	regHealthCounter reg = 0x1010 // health_syndrome 31:24, health_counter 23:0
	regRealTimeHigh  reg = 0x1040 // real_time_h: seconds
	regRealTimeLow   reg = 0x1044 // real_time_l: ns

	initSegment = 0x1048 // number of its bytes used here

	initializing   uint32 = 1 << 31
	embeddedCPU    uint32 = 1 << 23 // this is the function of a BlueField's own processor (Linux, MLX5_ECPU_BIT_NUM)
	healthRFR      uint32 = 1 << 31
	nicDisabled    uint32 = 1 // nic_interface: the function was taken out of service
	cmdifRev              = 5 // the supported command interface revision
	maxCommandSlot        = 31
)

// A UAR page: doorbells and the BlueFlame registers (PRM, UAR page format).
const (
	uarPage    = 4096
	uarEQNoArm = 0x48  // EQ consumer index without arming
	uarBF      = 0x800 // the first of four BlueFlame registers, each of two halves

	// BAR 0 is mapped uncached below this offset: the initialization segment. UARs are above; the first that firmware
	// assigned in the recording is page 16.
	firstUAR = 0x10000
)

// opcode is a firmware command (PRM, Command Reference).
type opcode uint16

const (
	opQueryHCACap       opcode = 0x100
	opQueryAdapter      opcode = 0x101
	opInitHCA           opcode = 0x102
	opTeardownHCA       opcode = 0x103
	opEnableHCA         opcode = 0x104
	opDisableHCA        opcode = 0x105
	opQueryPages        opcode = 0x107
	opManagePages       opcode = 0x108
	opSetHCACap         opcode = 0x109
	opQueryISSI         opcode = 0x10A
	opSetISSI           opcode = 0x10B
	opSetDriverVersion  opcode = 0x10D
	opCreateMKey        opcode = 0x200
	opDestroyMKey       opcode = 0x202
	opQuerySpecial      opcode = 0x203
	opCreateEQ          opcode = 0x301
	opDestroyEQ         opcode = 0x302
	opCreateCQ          opcode = 0x400
	opDestroyCQ         opcode = 0x401
	opQueryVport        opcode = 0x750
	opModifyVport       opcode = 0x751
	opQueryNICVport     opcode = 0x754
	opModifyNICVport    opcode = 0x755
	opQueryVportCounter opcode = 0x770
	opAllocQCounter     opcode = 0x771
	opDeallocQCounter   opcode = 0x772
	opQueryQCounter     opcode = 0x773
	opAllocPD           opcode = 0x800
	opDeallocPD         opcode = 0x801
	opAllocUAR          opcode = 0x802
	opDeallocUAR        opcode = 0x803
	opAccessReg         opcode = 0x805
	opAllocTD           opcode = 0x816
	opDeallocTD         opcode = 0x817
	opSetL2Entry        opcode = 0x829
	opDeleteL2Entry     opcode = 0x82B
	opCreateTIR         opcode = 0x900
	opDestroyTIR        opcode = 0x902
	opCreateSQ          opcode = 0x904
	opModifySQ          opcode = 0x905
	opDestroySQ         opcode = 0x906
	opQuerySQ           opcode = 0x907
	opCreateRQ          opcode = 0x908
	opModifyRQ          opcode = 0x909
	opDestroyRQ         opcode = 0x90A
	opCreateTIS         opcode = 0x912
	opDestroyTIS        opcode = 0x914
	opCreateRQT         opcode = 0x916
	opDestroyRQT        opcode = 0x918
	opSetFlowRoot       opcode = 0x92F
	opCreateFlowTable   opcode = 0x930
	opDestroyFlowTable  opcode = 0x931
	opCreateFlowGroup   opcode = 0x933
	opDestroyFlowGroup  opcode = 0x934
	opSetFlowEntry      opcode = 0x936
	opDeleteFlowEntry   opcode = 0x938
)

var opcodeNames = map[opcode]string{
	opQueryHCACap: "QUERY_HCA_CAP", opQueryAdapter: "QUERY_ADAPTER", opInitHCA: "INIT_HCA",
	opTeardownHCA: "TEARDOWN_HCA",
	opEnableHCA:   "ENABLE_HCA", opDisableHCA: "DISABLE_HCA", opQueryPages: "QUERY_PAGES",
	opManagePages: "MANAGE_PAGES",
	opSetHCACap:   "SET_HCA_CAP", opQueryISSI: "QUERY_ISSI", opSetISSI: "SET_ISSI",
	opSetDriverVersion: "SET_DRIVER_VERSION",
	opCreateMKey:       "CREATE_MKEY", opDestroyMKey: "DESTROY_MKEY", opQuerySpecial: "QUERY_SPECIAL_CONTEXTS",
	opCreateEQ: "CREATE_EQ", opDestroyEQ: "DESTROY_EQ", opCreateCQ: "CREATE_CQ", opDestroyCQ: "DESTROY_CQ",
	opQueryVport: "QUERY_VPORT_STATE", opModifyVport: "MODIFY_VPORT_STATE", opQueryNICVport: "QUERY_NIC_VPORT_CONTEXT",
	opModifyNICVport: "MODIFY_NIC_VPORT_CONTEXT", opQueryVportCounter: "QUERY_VPORT_COUNTER",
	opAllocQCounter: "ALLOC_Q_COUNTER", opDeallocQCounter: "DEALLOC_Q_COUNTER", opQueryQCounter: "QUERY_Q_COUNTER",
	opAllocPD: "ALLOC_PD", opDeallocPD: "DEALLOC_PD", opAllocUAR: "ALLOC_UAR", opDeallocUAR: "DEALLOC_UAR",
	opAccessReg: "ACCESS_REGISTER", opAllocTD: "ALLOC_TRANSPORT_DOMAIN", opDeallocTD: "DEALLOC_TRANSPORT_DOMAIN",
	opSetL2Entry: "SET_L2_TABLE_ENTRY", opDeleteL2Entry: "DELETE_L2_TABLE_ENTRY", opCreateTIR: "CREATE_TIR",
	opDestroyTIR: "DESTROY_TIR", opCreateSQ: "CREATE_SQ", opModifySQ: "MODIFY_SQ", opDestroySQ: "DESTROY_SQ",
	opQuerySQ: "QUERY_SQ", opCreateRQ: "CREATE_RQ", opModifyRQ: "MODIFY_RQ", opDestroyRQ: "DESTROY_RQ",
	opCreateTIS: "CREATE_TIS", opDestroyTIS: "DESTROY_TIS", opCreateRQT: "CREATE_RQT", opDestroyRQT: "DESTROY_RQT",
	opSetFlowRoot: "SET_FLOW_TABLE_ROOT", opCreateFlowTable: "CREATE_FLOW_TABLE",
	opDestroyFlowTable: "DESTROY_FLOW_TABLE",
	opCreateFlowGroup:  "CREATE_FLOW_GROUP", opDestroyFlowGroup: "DESTROY_FLOW_GROUP",
	opSetFlowEntry:    "SET_FLOW_TABLE_ENTRY",
	opDeleteFlowEntry: "DELETE_FLOW_TABLE_ENTRY",
}

func (o opcode) String() string {
	if name := opcodeNames[o]; name != "" {
		return fmt.Sprintf("%s (%#x)", name, uint16(o))
	}
	return fmt.Sprintf("command %#x", uint16(o))
}

// Status is firmware's status of a command (PRM, Command Return Status).
type Status uint8

var statusNames = map[Status]string{
	0x01: "internal error", 0x02: "bad operation", 0x03: "bad parameter", 0x04: "bad system state",
	0x05: "bad resource",
	0x06: "resource busy", 0x08: "limits exceeded", 0x09: "bad resource state", 0x0A: "bad index", 0x0F: "no resources",
	0x10: "bad QP state", 0x30: "bad packet", 0x40: "bad size, too many outstanding CQEs", 0x50: "bad input length",
	0x51: "bad output length",
}

func (s Status) String() string { return mlxkit.Named(statusNames, s) }

// delivery is the status of a command queue entry: an error in the command's delivery (PRM, Command Queue Entry).
type delivery uint8

var deliveryNames = map[delivery]string{
	0x01: "signature error", 0x02: "token error", 0x03: "bad block number", 0x04: "output pointer is not aligned",
	0x05: "input pointer is not aligned", 0x06: "firmware internal error", 0x07: "input length error",
	0x08: "output length error", 0x09: "reserved fields are not clear", 0x10: "bad command descriptor",
}

func (s delivery) String() string { return mlxkit.Named(deliveryNames, s) }

// healthSyndrome is the reason for a device failure (PRM, health buffer).
type healthSyndrome uint8

var healthNames = map[healthSyndrome]string{
	0x01: "firmware internal error", 0x07: "internal processor does not respond", 0x08: "unrecoverable hardware error",
	0x09: "firmware CRC error", 0x0A: "ICM fetch PCI error", 0x0B: "fatal hardware error",
	0x0C: "asynchronous EQ overrun",
	0x0D: "EQ error", 0x0E: "invalid EQ referenced", 0x0F: "FFSER error", 0x10: "high temperature",
}

func (s healthSyndrome) String() string { return mlxkit.Named(healthNames, s) }

// Access registers (PRM, Port Registers).
const (
	accessWrite = 0 // op_mod
	accessRead  = 1

	regPMLP           = 0x5002 // Ports Module to Local Port
	regPMTU           = 0x5003
	regPTYS           = 0x5004
	regPAOS           = 0x5006
	regPPCNT          = 0x5008
	regHostEndianness = 0x7004
	regMCIA           = 0x9014 // Management Cable Info Access
)

// Capability classes and which value is requested (QUERY_HCA_CAP op_mod).
const (
	capGeneral   = 0 << 1
	capEthernet  = 1 << 1
	capFlowTable = 7 << 1

	capMax = 0
	capCur = 1

	capSize = 0x1000
)
