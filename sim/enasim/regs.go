package enasim

import (
	"encoding/binary"
	"fmt"

	"github.com/rebound-nic/rebound/sim/kit"
)

// reg is an offset in BAR 0, ena_regs_defs.h.
type reg uint32

const (
	regVERSION     reg = 0x00 // RO  device version: minor 7:0, major 15:8
	regCTRLVERSION reg = 0x04 // RO  controller version: subminor 7:0, minor 15:8, major 23:16, implementation 31:24
	regCAPS        reg = 0x08 // RO  capabilities
	regCAPSEXT     reg = 0x0c // RO
	regAQBASELO    reg = 0x10 // RW  admin queue
	regAQBASEHI    reg = 0x14
	regAQCAPS      reg = 0x18 // RW  depth 15:0, entry size 31:16
	regACQBASELO   reg = 0x20 // RW  admin completion queue
	regACQBASEHI   reg = 0x24
	regACQCAPS     reg = 0x28
	regAQDB        reg = 0x2c // WO  admin queue tail
	regACQTAIL     reg = 0x30 // RO
	regAENQCAPS    reg = 0x34 // RW  asynchronous event queue
	regAENQBASELO  reg = 0x38
	regAENQBASEHI  reg = 0x3c
	regAENQHEADDB  reg = 0x40 // WO
	regAENQTAIL    reg = 0x44 // RO
	regINTRMASK    reg = 0x4c // RW  bit 0 masks the management interrupt
	regDEVCTL      reg = 0x54 // RW
	regDEVSTS      reg = 0x58 // RO
	regREADREQ     reg = 0x5c // WO  read-less read: request ID 15:0, register 31:16
	regRESPLO      reg = 0x60 // WO  where its response goes
	regRESPHI      reg = 0x64

	// Where the model puts what the public definitions leave to the device.
	regUnmask  reg = 0x0800 // WO  interrupt control of each vector
	regTxDB    reg = 0x1000 // WO  doorbell of each transmit submission queue
	regRxDB    reg = 0x1800 // WO  doorbell of each receive submission queue
	msixTable      = 0x2000
	msixPBA        = 0x3000
	regBARSize     = 0x4000
)

// regTable is what is written where. Doorbells beyond the queues and vectors of the model are refused by their handlers.
var regTable = kit.NewTable(regBARSize, "ena_regs_defs.h", []kit.Register[reg]{
	kit.One(regVERSION, "VERSION", kit.RO, 0, 0),
	kit.One(regCTRLVERSION, "CONTROLLER_VERSION", kit.RO, 0, 0),
	kit.One(regCAPS, "CAPS", kit.RO, 0, 0),
	kit.One(regCAPSEXT, "CAPS_EXT", kit.RO, 0, 0),
	kit.One(regAQBASELO, "AQ_BASE_LO", kit.RW, all, 0),
	kit.One(regAQBASEHI, "AQ_BASE_HI", kit.RW, all, 0),
	kit.One(regAQCAPS, "AQ_CAPS", kit.RW, all, 0),
	kit.One(regACQBASELO, "ACQ_BASE_LO", kit.RW, all, 0),
	kit.One(regACQBASEHI, "ACQ_BASE_HI", kit.RW, all, 0),
	kit.One(regACQCAPS, "ACQ_CAPS", kit.RW, all, 0),
	kit.One(regAQDB, "AQ_DB", kit.WO, all, 0),
	kit.One(regACQTAIL, "ACQ_TAIL", kit.RO, 0, 0),
	kit.One(regAENQCAPS, "AENQ_CAPS", kit.RW, all, 0),
	kit.One(regAENQBASELO, "AENQ_BASE_LO", kit.RW, all, 0),
	kit.One(regAENQBASEHI, "AENQ_BASE_HI", kit.RW, all, 0),
	kit.One(regAENQHEADDB, "AENQ_HEAD_DB", kit.WO, all, 0),
	kit.One(regAENQTAIL, "AENQ_TAIL", kit.RO, 0, 0),
	kit.One(regINTRMASK, "INTR_MASK", kit.RW, 1, 1),
	kit.One(regDEVCTL, "DEV_CTL", kit.Eff, all, 0),
	kit.One(regDEVSTS, "DEV_STS", kit.RO, 0, 0),
	kit.One(regREADREQ, "MMIO_REG_READ", kit.WO, all, 0),
	kit.One(regRESPLO, "MMIO_RESP_LO", kit.WO, all, 0),
	kit.One(regRESPHI, "MMIO_RESP_HI", kit.WO, all, 0),
	kit.Row(regUnmask, int(regTxDB-regUnmask)/4, 4, "vector", kit.WO, all, 0),
	kit.Row(regTxDB, int(regRxDB-regTxDB)/4, 4, "TX doorbell", kit.WO, all, 0),
	kit.Row(regRxDB, int(msixTable-regRxDB)/4, 4, "RX doorbell", kit.WO, all, 0),
})

const all = 0xffffffff

// RegisterName implements sim.Namer.
func (m *Model) RegisterName(bar int, off uint64) (string, binary.ByteOrder) {
	switch bar {
	case 0:
		return regTable.Name(reg(off)), le
	case 2:
		return fmt.Sprintf("LLQ[%d]+%05xh", off/llqStride, off%llqStride), le
	}
	return "", le
}

func (r reg) String() string { return regTable.Label(r) }

const (
	capsContiguous   = 1 << 0 // queues must be physically contiguous
	capsResetShift   = 1      // reset timeout, 100 ms
	capsWidthShift   = 8      // DMA address bits
	capsAdminTOShift = 16     // admin command timeout, 100 ms

	ctlReset       = 1 << 0
	ctlReasonExt   = 24 // reset reason, bits 7:4
	ctlReason      = 28 // reset reason, bits 3:0
	ctlUnsupported = 0x00fffffe

	stsReady         = 1 << 0
	stsResetProgress = 1 << 3
	stsResetFinished = 1 << 4
	stsFatal         = 1 << 5

	intrRxDelay = 0x7fff     // ena_eth_io_intr_reg
	intrTxShift = 15         //
	intrUnmask  = 1 << 30    //
	intrKeep    = 1 << 31    // moderation not updated
	admin       = 64         // bytes of an entry in AQ, ACQ and AENQ
	noVector    = 0xffffffff // CREATE_CQ: the queue is polled
	noInline    = 0xffffffff // RSS: no inline entry
	hashFields  = 0x3f       // ena_admin_flow_hash_fields
	hashProtos  = 16         //
	keyWords    = 10         //
	tableLog    = 7          // RSS indirection table entries, log2
	poison      = uint64(0xe5a7_1cc0_93d6_f00d)
	llqStride   = 128 << 10 // BAR 2 memory of one LLQ
	llqDepth    = 1024      // entries of 128 bytes
	hostDepth   = 4096
	cacheMax    = 64
	maxTxDescs  = 20
	maxRxDescs  = 16
	maxHeader   = 128 // of descriptors in host memory
	delayUnit   = 2   // microseconds of one unit of interrupt delay
	fifoMax     = 256 // frames held for a queue without buffers
	minMTU      = 128
)

// Admin commands, ena_admin_aq_opcode.
const (
	opCreateSQ   = 1
	opDestroySQ  = 2
	opCreateCQ   = 3
	opDestroyCQ  = 4
	opGetFeature = 8
	opSetFeature = 9
	opGetStats   = 11
)

// Completion status, ena_admin_aq_completion_status.
const (
	statusOK          = 0
	statusNoResource  = 1
	statusBadOpcode   = 2
	statusUnsupported = 3
	statusMalformed   = 4
	statusIllegal     = 5
	statusUnknown     = 6
)

// Features, ena_admin_aq_feature_id.
const (
	featAttributes = 1
	featMaxQueues  = 2
	featHints      = 3
	featLLQ        = 4
	featMaxExt     = 7
	featHash       = 10
	featOffload    = 11
	featTable      = 12
	featMTU        = 14
	featHashInput  = 18
	featModeration = 20
	featAENQ       = 26
	featLink       = 27
	featHostAttr   = 28

	featAll = 1<<featAttributes | 1<<featMaxQueues | 1<<featHints | 1<<featLLQ | 1<<featMaxExt | 1<<featHash |
		1<<featOffload | 1<<featTable | 1<<featMTU | 1<<featHashInput | 1<<featModeration | 1<<featAENQ | 1<<featLink |
		1<<featHostAttr
)

var featNames = map[uint8]string{
	featAttributes: "ATTRIBUTES", featMaxQueues: "MAX_QUEUES_NUM", featHints: "HW_HINTS", featLLQ: "LLQ",
	featMaxExt: "MAX_QUEUES_EXT", featHash: "RSS_HASH_FUNCTION", featOffload: "STATELESS_OFFLOAD_CONFIG",
	featTable: "RSS_INDIRECTION_TABLE", featMTU: "MTU", featHashInput: "RSS_HASH_INPUT",
	featModeration: "INTERRUPT_MODERATION", featAENQ: "AENQ_CONFIG", featLink: "LINK_CONFIG", featHostAttr: "HOST_ATTR_CONFIG",
}

// Capabilities, ena_admin_aq_caps_id.
const (
	capENI             = 1 << 0
	capMetrics         = 1 << 2
	capExtendedReasons = 1 << 3
	capCDescMBZ        = 1 << 4
)

// Hash functions, ena_admin_hash_functions, as bits.
const (
	hashToeplitz = 1 << 1
	hashCRC32    = 1 << 2
)

// Submission queue directions, ena_admin_sq_direction.
const (
	dirTX = 1
	dirRX = 2
)

// Placement, ena_admin_placement_policy_type.
const (
	placeHost   = 1
	placeDevice = 3
)

// Transmit descriptor, ena_eth_io_tx_desc, and meta descriptor, ena_eth_io_tx_meta_desc: word 0.
const (
	txLen      = 0xffff
	txReqHi    = 0x3f << 16
	txMeta     = 1 << 23
	txPhase    = 1 << 24
	txFirst    = 1 << 26
	txLast     = 1 << 27
	txComp     = 1 << 28
	txMBZ      = 1<<22 | 1<<25 | 7<<29
	metaExt    = 1 << 14
	metaType   = 1 << 20
	metaStore  = 1 << 21
	metaMBZ    = 0x03ff | 1<<10 | 1<<11 | 1<<12 | 1<<13 | 1<<15 | 1<<22 | 1<<25 | 7<<29
	tx1DF      = 1 << 4 // word 1
	tx1TSO     = 1 << 7
	tx1L3      = 1 << 13
	tx1L4      = 1 << 14
	tx1NoFCS   = 1 << 15
	tx1Partial = 1 << 17
	tx1MBZ     = 3<<5 | 1<<16 | 7<<18 | 1<<21
	tx3MBZ     = 0xff << 16 // word 3
)

// Receive completion, ena_eth_io_rx_cdesc_base: status.
const (
	rxL3Err     = 1 << 13
	rxL4Err     = 1 << 14
	rxFrag      = 1 << 15
	rxChecked   = 1 << 16
	rxPhase     = 1 << 24
	rxFirst     = 1 << 26
	rxLast      = 1 << 27
	rxBufferBit = 1 << 30
)

// Protocols, ena_eth_io_l3_proto_index and ena_eth_io_l4_proto_index.
const (
	l3IPv4 = 8
	l3IPv6 = 11
	l4TCP  = 12
	l4UDP  = 13
)
