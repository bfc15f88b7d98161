package abi

// Capabilities of the program, in EFAAllocUcontextCmd.SupportedCaps: the kernel refuses a program that lacks one that
// the device requires.
const (
	EFAAllocUcontextCmdSuppCapsTxBatch = 1 << 0
	EFAAllocUcontextCmdSuppCapsMinSQWR = 1 << 1
)

// EFAUserCmdsSuppUdataCreateAH means that the response contains the address handle's number.
const EFAUserCmdsSuppUdataCreateAH = 1 << 1

// EFAAllocUcontextCmd is efa_ibv_alloc_ucontext_cmd.
type EFAAllocUcontextCmd struct {
	SupportedCaps uint32
	Reserved20    [4]uint8
}

// EFAAllocUcontextResp is the answer. Older kernels leave its end zero.
type EFAAllocUcontextResp struct {
	CompMask          uint32
	CmdsSuppUdataMask uint32
	SubCQsPerCQ       uint16
	InlineBufSize     uint16
	MaxLLQSize        uint32 // bytes
	MaxTxBatch        uint16 // units of 64 bytes
	MinSQWR           uint16
	InlineBufSizeEx   uint16
	ReservedB0        [2]uint8
}

// EFAAllocPDResp is efa_ibv_alloc_pd_resp.
type EFAAllocPDResp struct {
	CompMask   uint32
	PDN        uint16
	Reserved30 [2]uint8
}

// EFACreateCQWithSGID makes a receive completion contain the sender's GID if there is no address handle for it.
const EFACreateCQWithSGID = 1 << 1

// EFACreateCQ is efa_ibv_create_cq.
type EFACreateCQ struct {
	CompMask    uint32
	CQEntrySize uint32
	NumSubCQs   uint16
	Flags       uint8
	Reserved58  [5]uint8
}

// EFACreateCQRespDBOff in CompMask means that there is a doorbell.
const EFACreateCQRespDBOff = 1 << 0

// EFACreateCQResp is the answer.
type EFACreateCQResp struct {
	CompMask   uint32
	Reserved20 [4]uint8
	QMmapKey   uint64
	QMmapSize  uint64
	CQIdx      uint16
	ReservedD0 [2]uint8
	DBOff      uint32
	DBMmapKey  uint64
}

// EFAQPDriverTypeSRD is SRD among the driver's own kinds of queue pair.
const EFAQPDriverTypeSRD = 0

// EFACreateQP is efa_ibv_create_qp.
type EFACreateQP struct {
	CompMask     uint32
	RQRingSize   uint32 // bytes
	SQRingSize   uint32 // bytes
	DriverQPType uint32
	Flags        uint16
	SL           uint8
	Reserved98   [5]uint8
}

// EFACreateQPResp is the answer. Offsets are within the page that is mapped.
type EFACreateQPResp struct {
	CompMask       uint32
	RQDBOffset     uint32
	SQDBOffset     uint32
	LLQDescOffset  uint32
	RQMmapKey      uint64
	RQMmapSize     uint64
	RQDBMmapKey    uint64
	SQDBMmapKey    uint64
	LLQDescMmapKey uint64
	SendSubCQIdx   uint16
	RecvSubCQIdx   uint16
	Reserved1E0    [4]uint8
}

// EFACreateAHResp is efa_ibv_create_ah_resp.
type EFACreateAHResp struct {
	CompMask         uint32
	EFAAddressHandle uint16
	Reserved30       [2]uint8
}

// EFAQueryDeviceCapsRNRRetry means that the device supports QPMaskRNRRetry of package verbs.
const EFAQueryDeviceCapsRNRRetry = 1 << 1

// EFAQueryDeviceCapsCQWithSGID means that the device supports EFACreateCQWithSGID.
const EFAQueryDeviceCapsCQWithSGID = 1 << 3

// EFAExQueryDeviceResp is efa_ibv_ex_query_device_resp.
type EFAExQueryDeviceResp struct {
	CompMask    uint32
	MaxSQWR     uint32
	MaxRQWR     uint32
	MaxSQSGE    uint16
	MaxRQSGE    uint16
	MaxRDMASize uint32
	DeviceCaps  uint32
}
