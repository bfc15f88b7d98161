package efasim

import (
	"encoding/binary"
	"fmt"

	"github.com/rebound-nic/rebound/sim/amazon"
	"github.com/rebound-nic/rebound/sim/parts"
)

// EQ_DB: EQ number in bits 15:0, arm in bit 31 (efa_regs_defs.h).
const regEQDB amazon.Reg = 0x68

const (
	// Offsets that the public definitions leave to the device.
	msixTable = 0x2000
	msixPBA   = 0x3000
)

var regTable = amazon.NewTable("efa_regs_defs.h", "AQ_PROD_DB", "AENQ_CONS_DB", parts.RW,
	parts.One(regEQDB, "EQ_DB", parts.WO, eqdbArm|0xffff, 0))

// RegisterName implements sim.Namer.
func (m *Model) RegisterName(bar int, off uint64) (string, binary.ByteOrder) {
	if bar == m.opt.doorbells && off >= m.uarBase() && off < m.uarBase()+maxUAR*uarSize {
		u, at := (off-m.uarBase())/uarSize, off%uarSize
		switch {
		case at >= cqDoorbells:
			return fmt.Sprintf("UAR[%d] CQ[%d] doorbell", u, (at-cqDoorbells)/4), le
		case at%8 == 0:
			return fmt.Sprintf("UAR[%d] SQ[%d] doorbell", u, at/8), le
		}
		return fmt.Sprintf("UAR[%d] RQ[%d] doorbell", u, at/8), le
	}
	switch bar {
	case 0:
		return regTable.Name(amazon.Reg(off)), le
	case 2:
		return fmt.Sprintf("LLQ+%06xh", off), le
	}
	return "", le
}

const (
	eqdbArm = 1 << 31

	// CQ doorbell, efa_regs_defs.h.
	cqdbConsumer = 0xffff
	cqdbSN       = 3 << 29
	cqdbSNShift  = 29
	cqdbArm      = 1 << 31

	poison = uint64(0xc3d1_5a7e_0b86_9f24)
)

// Choices of the model: doorbell pages, one per UAR, with a slot for each possible queue; and the memory of LLQs.
const (
	uarSize     = 4096
	maxUAR      = 64
	cqDoorbells = 2048    // in the page, after those of SQ and RQ
	llqMemory   = 4 << 20 // BAR 2
	pageSize    = 4096
	maxQP       = 256
	maxCQ       = 512
	maxEQ       = 32
	maxEQDepth  = 1024
)

// Admin commands, efa_admin_aq_opcode.
const (
	opCreateQP    = 1
	opModifyQP    = 2
	opQueryQP     = 3
	opDestroyQP   = 4
	opCreateAH    = 5
	opDestroyAH   = 6
	opRegMR       = 7
	opDeregMR     = 8
	opCreateCQ    = 9
	opDestroyCQ   = 10
	opGetFeature  = 11
	opSetFeature  = 12
	opGetStats    = 13
	opAllocPD     = 14
	opDeallocPD   = 15
	opAllocUAR    = 16
	opDeallocUAR  = 17
	opCreateEQ    = 18
	opDestroyEQ   = 19
	cmdCtrlData   = 1 << 1 // flags of the command's header
	cmdCtrlIndir  = 1 << 2
	cmdFlagsKnown = 7
)

// Completion status, efa_admin_aq_completion_status.
const (
	statusOK          = 0
	statusNoResource  = 1
	statusBadOpcode   = 2
	statusUnsupported = 3
	statusMalformed   = 4
	statusIllegal     = 5
	statusBusy        = 7
)

// Features, efa_admin_aq_feature_id.
const (
	featDevice  = 1
	featAENQ    = 2
	featNetwork = 3
	featQueue1  = 4
	featHints   = 5
	featHost    = 6
	featEvents  = 7
	featQueue2  = 9
)

var featNames = map[uint8]string{
	featDevice: "DEVICE_ATTR", featAENQ: "AENQ_CONFIG", featNetwork: "NETWORK_ATTR", featQueue1: "QUEUE_ATTR_1",
	featHints: "HW_HINTS", featHost: "HOST_INFO", featEvents: "EVENT_QUEUE_ATTR", featQueue2: "QUEUE_ATTR_2",
}

// Capabilities, device_caps of efa_admin_feature_device_attr_desc.
const (
	CapRDMARead    = 1 << 0
	CapRNRRetry    = 1 << 1
	CapPolling128  = 1 << 2
	CapRDMAWrite   = 1 << 3
	CapUnsolicited = 1 << 4
)

// Statistics types, efa_admin_get_stats_type.
const (
	statsBasic    = 0
	statsMessages = 1
	statsRead     = 2
	statsWrite    = 3
	statsNetwork  = 4
)

// Queue pair types, efa_admin_qp_type.
const (
	typeUD  = 1
	typeSRD = 2
)

// Queue pair states, efa_admin_qp_state.
const (
	stateReset = 0
	stateInit  = 1
	stateRTR   = 2
	stateRTS   = 3
	stateSQD   = 4
	stateSQE   = 5
	stateErr   = 6
)

// Operations, efa_io_send_op_type.
const (
	opSend  = 0
	opRead  = 1
	opWrite = 2
)

// Completion status of work requests, efa_io_comp_status.
const (
	compOK              = 0
	compFlushed         = 1
	compQPInternal      = 2
	compUnsupportedOp   = 3
	compInvalidAH       = 4
	compInvalidLKey     = 5
	compBadLength       = 6
	compRemoteAddress   = 7
	compRemoteAbort     = 8
	compRemoteQPN       = 9
	compRemoteRNR       = 10
	compRemoteLength    = 11
	compRemoteStatus    = 12
	compUnresponsive    = 13
	compUnknownPeer     = 14
	compUnreachable     = 15
	compFeatureMismatch = 18
)

// Transmit WQE, efa_io_tx_meta_desc: ctrl1 and ctrl2.
const (
	ctrl1Op     = 0x0f
	ctrl1Imm    = 1 << 4
	ctrl1Inline = 1 << 5
	ctrl1Ext    = 1 << 6
	ctrl1Meta   = 1 << 7
	ctrl2Phase  = 1 << 0
	ctrl2First  = 1 << 2
	ctrl2Last   = 1 << 3
	ctrl2Comp   = 1 << 4
	ctrl2MBZ    = 1<<1 | 7<<5
)

// Receive descriptor, efa_io_rx_desc: lkey_ctrl.
const (
	rxKey   = 0xffffff
	rxFirst = 1 << 30
	rxLast  = 1 << 31
	rxMBZ   = 0x3f << 24
)

// Completion, efa_io_cdesc_common: flags.
const (
	cqeSend        = 1 << 1 // q_type
	cqeRecv        = 2 << 1
	cqeImm         = 1 << 3
	cqeOpShift     = 4
	cqeUnsolicited = 1 << 7
)

// noAH is the address handle of a sender for which the device has none.
const noAH = 0xffff

// grhSize is the size in bytes of the area before the message in a UD receive buffer, InfiniBand specification 1.7
// §11.4.1.2 (Receive with GRH).
const grhSize = 40
