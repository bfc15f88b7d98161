package enasim

import (
	"encoding/binary"
	"fmt"

	"github.com/rebound-nic/rebound/sim/amazon"
	"github.com/rebound-nic/rebound/sim/parts"
)

const (
	// Register locations that the public definitions leave to the device.
	regUnmask amazon.Reg = 0x0800 // WO  interrupt control of each vector
	regTxDB   amazon.Reg = 0x1000 // WO  doorbell of each transmit submission queue
	regRxDB   amazon.Reg = 0x1800 // WO  doorbell of each receive submission queue
	msixTable            = 0x2000
	msixPBA              = 0x3000
)

// regTable lists the registers. The handlers refuse doorbells for queues and vectors that the model does not
// have.
var regTable = amazon.NewTable("ena_regs_defs.h", "AQ_DB", "AENQ_HEAD_DB", parts.WO,
	parts.One(amazon.Reg(0x0c), "CAPS_EXT", parts.RO, 0, 0),
	parts.One(amazon.RegACQTAIL, "ACQ_TAIL", parts.RO, 0, 0),
	parts.One(amazon.RegAENQTAIL, "AENQ_TAIL", parts.RO, 0, 0),
	parts.Row(regUnmask, int(regTxDB-regUnmask)/4, 4, "vector", parts.WO, all, 0),
	parts.Row(regTxDB, int(regRxDB-regTxDB)/4, 4, "TX doorbell", parts.WO, all, 0),
	parts.Row(regRxDB, int(msixTable-regRxDB)/4, 4, "RX doorbell", parts.WO, all, 0),
)

const all = 0xffffffff

// RegisterName implements sim.Namer.
func (m *Model) RegisterName(bar int, off uint64) (string, binary.ByteOrder) {
	switch bar {
	case 0:
		return regTable.Name(amazon.Reg(off)), le
	case 2:
		return fmt.Sprintf("LLQ[%d]+%05xh", off/llqStride, off%llqStride), le
	}
	return "", le
}

const (
	intrRxDelay = 0x7fff     // ena_eth_io_intr_reg
	intrTxShift = 15         //
	intrUnmask  = 1 << 30    //
	intrKeep    = 1 << 31    // moderation not updated
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
	featModeration: "INTERRUPT_MODERATION", featAENQ: "AENQ_CONFIG", featLink: "LINK_CONFIG",
	featHostAttr: "HOST_ATTR_CONFIG",
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
