package abi

// MLX5AllocUctxDevX, in a context's Flags, has the context's commands passed to the firmware.
const MLX5AllocUctxDevX = 1 << 0

// Features that the program supports, in LibCaps. Without the second the kernel allocates doorbell pages for it.
const (
	MLX5LibCap4KUAR  = 1 << 0
	MLX5LibCapDynUAR = 1 << 1
)

// MLX5AllocUcontextReqV2 is mlx5_ib_alloc_ucontext_req_v2.
type MLX5AllocUcontextReqV2 struct {
	TotalNumBfregs      uint32
	NumLowLatencyBfregs uint32
	Flags               uint32
	CompMask            uint32
	MaxCQEVersion       uint8
	Reserved0           uint8
	Reserved1           uint16
	Reserved2           uint32
	LibCaps             uint64
}

// MLX5AllocUcontextResp is the answer.
type MLX5AllocUcontextResp struct {
	QPTabSize          uint32
	BfRegSize          uint32
	TotBfregs          uint32
	CacheLineSize      uint32
	MaxSQDescSz        uint16
	MaxRQDescSz        uint16
	MaxSendWQEBB       uint32
	MaxRecvWR          uint32
	MaxSRQRecvWR       uint32
	NumPorts           uint16
	FlowActionFlags    uint16
	CompMask           uint32
	ResponseLength     uint32
	CQEVersion         uint8
	CmdsSuppUHW        uint8
	EthMinInline       uint8
	ClockInfoVersions  uint8
	HCACoreClockOffset uint64
	LogUARSize         uint32
	NumUARsPerPage     uint32
	NumDynBfregs       uint32
	DumpFillMkey       uint32
}

// MLX5AllocPDResp is mlx5_ib_alloc_pd_resp.
type MLX5AllocPDResp struct{ PDN uint32 }

// MLX5UserInlineModeNone, in EthMinInline, is a device that requires no headers inline in a send WQE. The value of each
// other mode is one more than the firmware's.
const MLX5UserInlineModeNone = 1

// MLX5CreateCQ has the addresses of a completion queue's entries and of its doorbell record, and the number of its
// doorbell page.
type MLX5CreateCQ struct {
	BufAddr          uint64
	DBAddr           uint64
	CQESize          uint32
	CQECompEn        uint8
	CQECompResFormat uint8
	Flags            uint16
	UARPageIndex     uint16
	Reserved0        uint16
	Reserved1        uint32
}

// MLX5CreateCQResp is the answer.
type MLX5CreateCQResp struct {
	CQN      uint32
	Reserved uint32
}

// Flags of MLX5CreateCQ and MLX5CreateQP: UARPageIndex and BFRegIndex have the number of a doorbell page of the
// program's own.
const (
	MLX5CreateCQFlagsUARPageIndex = 1 << 1
	MLX5QPFlagUARPageIndex        = 1 << 10
)

// MLX5CreateQP has the addresses of a queue pair's rings and of its doorbell records: the receive queue's, then the
// send queue's.
type MLX5CreateQP struct {
	BufAddr    uint64 // receive queue
	DBAddr     uint64
	SQWQECount uint32 // blocks
	RQWQECount uint32
	RQWQEShift uint32
	Flags      uint32
	UIdx       uint32
	BFRegIndex uint32
	SQBufAddr  uint64
	ECEOptions uint32
	DCIStreams [2]uint8
	Reserved   uint16
}

// Objects of the driver (mlx5_ib_objects), and the core's that it adds methods to.
const (
	ObjectFlow            = 9
	MLX5ObjectDevX        = 0x1000
	MLX5ObjectDevXObj     = 0x1001
	MLX5ObjectDevXUmem    = 0x1002
	MLX5ObjectFlowMatcher = 0x1003
	MLX5ObjectUAR         = 0x1008
)

// Methods, and their attributes.
const (
	MLX5MethodDevXOther     = 0x1000
	MLX5AttrDevXOtherCmdIn  = 0x1000
	MLX5AttrDevXOtherCmdOut = 0x1001

	MLX5MethodDevXQueryEQN      = 0x1002
	MLX5AttrDevXQueryEQNUserVec = 0x1000
	MLX5AttrDevXQueryEQNDevEQN  = 0x1001

	MLX5MethodDevXObjCreate     = 0x1000
	MLX5AttrDevXObjCreateHandle = 0x1000
	MLX5AttrDevXObjCreateCmdIn  = 0x1001
	MLX5AttrDevXObjCreateCmdOut = 0x1002

	MLX5MethodDevXObjModify     = 0x1002
	MLX5AttrDevXObjModifyHandle = 0x1000
	MLX5AttrDevXObjModifyCmdIn  = 0x1001
	MLX5AttrDevXObjModifyCmdOut = 0x1002

	MLX5MethodDevXObjQuery     = 0x1003
	MLX5AttrDevXObjQueryHandle = 0x1000
	MLX5AttrDevXObjQueryCmdIn  = 0x1001
	MLX5AttrDevXObjQueryCmdOut = 0x1002

	MLX5MethodDevXUmemReg     = 0x1000
	MLX5AttrDevXUmemRegHandle = 0x1000
	MLX5AttrDevXUmemRegAddr   = 0x1001
	MLX5AttrDevXUmemRegLen    = 0x1002
	MLX5AttrDevXUmemRegAccess = 0x1003
	MLX5AttrDevXUmemRegOutID  = 0x1004

	MLX5MethodUARObjAlloc         = 0x1000
	MLX5AttrUARObjAllocHandle     = 0x1000
	MLX5AttrUARObjAllocType       = 0x1001
	MLX5AttrUARObjAllocMmapOffset = 0x1002
	MLX5AttrUARObjAllocMmapLength = 0x1003
	MLX5AttrUARObjAllocPageID     = 0x1004

	MLX5MethodFlowMatcherCreate      = 0x1000
	MLX5AttrFlowMatcherCreateHandle  = 0x1000
	MLX5AttrFlowMatcherMatchMask     = 0x1001
	MLX5AttrFlowMatcherFlowType      = 0x1002
	MLX5AttrFlowMatcherMatchCriteria = 0x1003
	MLX5FlowTypeNormal               = 0

	MLX5MethodCreateFlow         = 0x1000
	MLX5AttrCreateFlowHandle     = 0x1000
	MLX5AttrCreateFlowMatchValue = 0x1001
	MLX5AttrCreateFlowDestQP     = 0x1002
	MLX5AttrCreateFlowDestDevX   = 0x1003
	MLX5AttrCreateFlowMatcher    = 0x1004
)

// Kinds of doorbell pages (mlx5_ib_uapi_uar_alloc_type).
const (
	MLX5UAPIUARAllocTypeBF = 0 // write-combining
	MLX5UAPIUARAllocTypeNC = 1
)
