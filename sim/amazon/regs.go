package amazon

import "github.com/rebound-nic/rebound/sim/parts"

// Reg is an offset in BAR 0. Source: ena_regs_defs.h and efa_regs_defs.h.
type Reg uint32

// Registers of both cards.
const (
	RegVERSION     Reg = 0x00 // RO  device version: minor 7:0, major 15:8
	RegCTRLVERSION Reg = 0x04 // RO  controller version: subminor 7:0, minor 15:8, major 23:16, implementation 31:24
	RegCAPS        Reg = 0x08 // RO  capabilities
	RegAQBASELO    Reg = 0x10 // RW  admin queue
	RegAQBASEHI    Reg = 0x14
	RegAQCAPS      Reg = 0x18 // RW  depth 15:0, entry size 31:16
	RegACQBASELO   Reg = 0x20 // RW  admin completion queue
	RegACQBASEHI   Reg = 0x24
	RegACQCAPS     Reg = 0x28 // RW  depth 15:0, entry size 31:16; EFA: entry size 23:16, MSI-X vector 31:24
	RegAQDB        Reg = 0x2c // WO  admin queue tail
	RegACQTAIL     Reg = 0x30 // RO, ENA only
	RegAENQCAPS    Reg = 0x34 // RW  asynchronous event queue, as ACQ_CAPS
	RegAENQBASELO  Reg = 0x38
	RegAENQBASEHI  Reg = 0x3c
	RegAENQDB      Reg = 0x40 // events consumed; ENA adds the depth
	RegAENQTAIL    Reg = 0x44 // RO, ENA only
	RegINTRMASK    Reg = 0x4c // RW  bit 0 masks the management interrupt
	RegDEVCTL      Reg = 0x54 // RW
	RegDEVSTS      Reg = 0x58 // RO
	RegREADREQ     Reg = 0x5c // WO  read by DMA: request ID 15:0, register 31:16
	RegRESPLO      Reg = 0x60 // DMA address of the response
	RegRESPHI      Reg = 0x64
)

// BARSize is the size in bytes of BAR 0 in the models.
const BARSize = 0x4000

// NewTable declares the shared registers and those of one card. The two definitions name the doorbells differently, and
// differ in whether MMIO_RESP can be read.
func NewTable(doc, aqDoorbell, aenqDoorbell string, resp parts.Access, card ...parts.Register[Reg]) *parts.Table[Reg] {
	return parts.NewTable(BARSize, doc, append(card,
		parts.One(RegVERSION, "VERSION", parts.RO, 0, 0),
		parts.One(RegCTRLVERSION, "CONTROLLER_VERSION", parts.RO, 0, 0),
		parts.One(RegCAPS, "CAPS", parts.RO, 0, 0),
		parts.One(RegAQBASELO, "AQ_BASE_LO", parts.RW, all, 0),
		parts.One(RegAQBASEHI, "AQ_BASE_HI", parts.RW, all, 0),
		parts.One(RegAQCAPS, "AQ_CAPS", parts.RW, all, 0),
		parts.One(RegACQBASELO, "ACQ_BASE_LO", parts.RW, all, 0),
		parts.One(RegACQBASEHI, "ACQ_BASE_HI", parts.RW, all, 0),
		parts.One(RegACQCAPS, "ACQ_CAPS", parts.RW, all, 0),
		parts.One(RegAQDB, aqDoorbell, parts.WO, all, 0),
		parts.One(RegAENQCAPS, "AENQ_CAPS", parts.RW, all, 0),
		parts.One(RegAENQBASELO, "AENQ_BASE_LO", parts.RW, all, 0),
		parts.One(RegAENQBASEHI, "AENQ_BASE_HI", parts.RW, all, 0),
		parts.One(RegAENQDB, aenqDoorbell, parts.WO, all, 0),
		parts.One(RegINTRMASK, "INTR_MASK", parts.RW, 1, 1),
		parts.One(RegDEVCTL, "DEV_CTL", parts.Eff, all, 0),
		parts.One(RegDEVSTS, "DEV_STS", parts.RO, 0, 0),
		parts.One(RegREADREQ, "MMIO_REG_READ", parts.WO, all, 0),
		parts.One(RegRESPLO, "MMIO_RESP_LO", resp, all, 0),
		parts.One(RegRESPHI, "MMIO_RESP_HI", resp, all, 0),
	))
}

const all = 0xffffffff

const (
	capsContiguous   = 1 << 0 // queues must be physically contiguous
	capsResetShift   = 1      // reset timeout, 100 ms
	capsWidthShift   = 8      // DMA address bits
	capsAdminTOShift = 16     // admin command timeout, 100 ms

	CTLReset     = 1 << 0 // of DEV_CTL
	CTLReason    = 28     // reset reason, bits 3:0
	ctlReasonExt = 24     // reset reason, bits 7:4; ENA only
	ctlReserved  = 0x00fffffe

	StsReady         = 1 << 0 // of DEV_STS
	StsResetProgress = 1 << 3
	stsResetFinished = 1 << 4
	StsFatal         = 1 << 5

	// Entry is the size in bytes of an entry in AQ, ACQ and AENQ.
	Entry = 64
)

// Completion status, {ena,efa}_admin_aq_completion_status.
const (
	statusOK        = 0
	statusBadOpcode = 2
)
