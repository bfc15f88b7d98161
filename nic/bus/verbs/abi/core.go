package abi

// VerbsIoctl is RDMA_VERBS_IOCTL, the one request that a uverbs device has.
const VerbsIoctl = 0xC0181B01

// IoctlHdr precedes NumAttrs attributes (ib_uverbs_ioctl_hdr). Length includes them.
type IoctlHdr struct {
	Length    uint16
	ObjectID  uint16
	MethodID  uint16
	NumAttrs  uint16
	Reserved1 uint64
	DriverID  uint32
	Reserved2 uint32
}

// Attr is one attribute (ib_uverbs_attr). Data is a pointer, up to 8 bytes inline, a handle or a file descriptor.
type Attr struct {
	AttrID   uint16
	Len      uint16
	Flags    uint16
	AttrData uint16
	Data     uint64
}

// AttrFMandatory makes the kernel reject a call with an attribute that it does not support.
const AttrFMandatory = 1 << 0

// Drivers (rdma_driver_id).
const (
	DriverMLX5 = 1
	DriverMLX4 = 2
	DriverEFA  = 17
)

// Objects (uverbs_default_objects).
const (
	ObjectDevice     = 0
	ObjectCQ         = 3
	ObjectAsyncEvent = 16
)

// Methods.
const (
	MethodInvokeWrite     = 0
	MethodGetContext      = 3
	MethodCQCreate        = 0
	MethodAsyncEventAlloc = 0
)

// Attributes of any method that has data of the driver.
const (
	AttrUHWIn  = 0x1000
	AttrUHWOut = 0x1001
)

// Attributes of MethodInvokeWrite, which makes a call of the interface before this one.
const (
	AttrCoreIn   = 0
	AttrCoreOut  = 1
	AttrWriteCmd = 2
)

// Attributes of MethodGetContext.
const (
	AttrGetContextNumCompVectors = 0
	AttrGetContextCoreSupport    = 1
)

// Attributes of MethodCQCreate.
const (
	AttrCreateCQHandle     = 0
	AttrCreateCQCQE        = 1
	AttrCreateCQUserHandle = 2
	AttrCreateCQCompVector = 4
	AttrCreateCQRespCQE    = 6
	AttrCreateCQEventFD    = 7
)

// AttrAsyncEventAllocFDHandle is the attribute of MethodAsyncEventAlloc.
const AttrAsyncEventAllocFDHandle = 0

// Calls by MethodInvokeWrite (ib_uverbs_write_cmds).
const (
	CmdQueryDevice  = 1
	CmdQueryPort    = 2
	CmdAllocPD      = 3
	CmdCreateAH     = 5
	CmdDestroyAH    = 8
	CmdRegMR        = 9
	CmdDeregMR      = 13
	CmdCreateQP     = 24
	CmdQueryQP      = 25
	CmdModifyQP     = 26
	ExCmdCreateFlow = 50
	CmdFlagExtended = 0x80000000
)

// AsyncEventDesc is read from the file of asynchronous events.
type AsyncEventDesc struct {
	Element   uint64
	EventType uint32
	Reserved  uint32
}

// AllocPD allocates a protection domain.
type AllocPD struct{ Response uint64 }

// AllocPDResp is the answer.
type AllocPDResp struct{ PDHandle uint32 }

// RegMR registers memory of the process.
type RegMR struct {
	Response    uint64
	Start       uint64
	Length      uint64
	HCAVA       uint64
	PDHandle    uint32
	AccessFlags uint32
}

// RegMRResp is the answer.
type RegMRResp struct {
	MRHandle uint32
	LKey     uint32
	RKey     uint32
}

// DeregMR undoes RegMR.
type DeregMR struct{ MRHandle uint32 }

// CreateQP creates a queue pair.
type CreateQP struct {
	Response      uint64
	UserHandle    uint64
	PDHandle      uint32
	SendCQHandle  uint32
	RecvCQHandle  uint32
	SRQHandle     uint32
	MaxSendWR     uint32
	MaxRecvWR     uint32
	MaxSendSGE    uint32
	MaxRecvSGE    uint32
	MaxInlineData uint32
	SqSigAll      uint8
	QPType        uint8
	IsSRQ         uint8
	Reserved      uint8
}

// CreateQPResp is the answer.
type CreateQPResp struct {
	QPHandle      uint32
	QPN           uint32
	MaxSendWR     uint32
	MaxRecvWR     uint32
	MaxSendSGE    uint32
	MaxRecvSGE    uint32
	MaxInlineData uint32
	Reserved      uint32
}

// QPDest is a path (ib_uverbs_qp_dest).
type QPDest struct {
	DGID         [16]byte
	FlowLabel    uint32
	DLID         uint16
	Reserved     uint16
	SGIDIndex    uint8
	HopLimit     uint8
	TrafficClass uint8
	SL           uint8
	SrcPathBits  uint8
	StaticRate   uint8
	IsGlobal     uint8
	PortNum      uint8
}

// ModifyQP changes the attributes in AttrMask.
type ModifyQP struct {
	Dest             QPDest
	AltDest          QPDest
	QPHandle         uint32
	AttrMask         uint32
	QKey             uint32
	RQPSN            uint32
	SQPSN            uint32
	DestQPNum        uint32
	QPAccessFlags    uint32
	PKeyIndex        uint16
	AltPKeyIndex     uint16
	QPState          uint8
	CurQPState       uint8
	PathMTU          uint8
	PathMigState     uint8
	EnSQDAsyncNotify uint8
	MaxRdAtomic      uint8
	MaxDestRdAtomic  uint8
	MinRNRTimer      uint8
	PortNum          uint8
	Timeout          uint8
	RetryCnt         uint8
	RNRRetry         uint8
	AltPortNum       uint8
	AltTimeout       uint8
	Reserved         [2]uint8
}

// QueryQP requests the attributes in AttrMask.
type QueryQP struct {
	Response uint64
	QPHandle uint32
	AttrMask uint32
}

// QueryQPResp is the answer.
type QueryQPResp struct {
	Dest            QPDest
	AltDest         QPDest
	MaxSendWR       uint32
	MaxRecvWR       uint32
	MaxSendSGE      uint32
	MaxRecvSGE      uint32
	MaxInlineData   uint32
	QKey            uint32
	RQPSN           uint32
	SQPSN           uint32
	DestQPNum       uint32
	QPAccessFlags   uint32
	PKeyIndex       uint16
	AltPKeyIndex    uint16
	QPState         uint8
	CurQPState      uint8
	PathMTU         uint8
	PathMigState    uint8
	SQDraining      uint8
	MaxRdAtomic     uint8
	MaxDestRdAtomic uint8
	MinRNRTimer     uint8
	PortNum         uint8
	Timeout         uint8
	RetryCnt        uint8
	RNRRetry        uint8
	AltPortNum      uint8
	AltTimeout      uint8
	SQSigAll        uint8
	Reserved        [5]uint8
}

// GlobalRoute is the part of an address that crosses subnets.
type GlobalRoute struct {
	DGID         [16]byte
	FlowLabel    uint32
	SGIDIndex    uint8
	HopLimit     uint8
	TrafficClass uint8
	Reserved     uint8
}

type AHAttr struct {
	GRH         GlobalRoute
	DLID        uint16
	SL          uint8
	SrcPathBits uint8
	StaticRate  uint8
	IsGlobal    uint8
	PortNum     uint8
	Reserved    uint8
}

// CreateAH makes an address handle.
type CreateAH struct {
	Response   uint64
	UserHandle uint64
	PDHandle   uint32
	Reserved   uint32
	Attr       AHAttr
}

// CreateAHResp is the answer.
type CreateAHResp struct{ AHHandle uint32 }

// DestroyAH undoes CreateAH.
type DestroyAH struct{ AHHandle uint32 }

// ExQueryDevice requests QueryDeviceResp and later extensions.
type ExQueryDevice struct {
	CompMask uint32
	Reserved uint32
}

// QueryDeviceResp has the attributes that every device reports.
type QueryDeviceResp struct {
	FwVer                 uint64
	NodeGUID              uint64 // big endian
	SysImageGUID          uint64 // big endian
	MaxMRSize             uint64
	PageSizeCap           uint64
	VendorID              uint32
	VendorPartID          uint32
	HwVer                 uint32
	MaxQP                 uint32
	MaxQPWR               uint32
	DeviceCapFlags        uint32
	MaxSGE                uint32
	MaxSGERd              uint32
	MaxCQ                 uint32
	MaxCQE                uint32
	MaxMR                 uint32
	MaxPD                 uint32
	MaxQPRdAtom           uint32
	MaxEERdAtom           uint32
	MaxResRdAtom          uint32
	MaxQPInitRdAtom       uint32
	MaxEEInitRdAtom       uint32
	AtomicCap             uint32
	MaxEE                 uint32
	MaxRDD                uint32
	MaxMW                 uint32
	MaxRawIPv6QP          uint32
	MaxRawEthyQP          uint32
	MaxMcastGrp           uint32
	MaxMcastQPAttach      uint32
	MaxTotalMcastQPAttach uint32
	MaxAH                 uint32
	MaxFMR                uint32
	MaxMapPerFMR          uint32
	MaxSRQ                uint32
	MaxSRQWR              uint32
	MaxSRQSGE             uint32
	MaxPKeys              uint16
	LocalCaAckDelay       uint8
	PhysPortCnt           uint8
	Reserved              [4]uint8
}

// ExQueryDeviceResp starts with QueryDeviceResp. Its other fields are not used here.
type ExQueryDeviceResp struct {
	Base           QueryDeviceResp
	CompMask       uint32
	ResponseLength uint32
}

// QueryPort requests the state of a port.
type QueryPort struct {
	Response uint64
	PortNum  uint8
	Reserved [7]uint8
}

// QueryPortResp is the answer.
type QueryPortResp struct {
	PortCapFlags  uint32
	MaxMsgSz      uint32
	BadPKeyCntr   uint32
	QKeyViolCntr  uint32
	GIDTblLen     uint32
	PKeyTblLen    uint16
	LID           uint16
	SMLID         uint16
	State         uint8
	MaxMTU        uint8
	ActiveMTU     uint8
	LMC           uint8
	MaxVLNum      uint8
	SMSL          uint8
	SubnetTimeout uint8
	InitTypeReply uint8
	ActiveWidth   uint8
	ActiveSpeed   uint8
	PhysState     uint8
	LinkLayer     uint8
	Flags         uint8
	Reserved      uint8
}

// CreateFlow creates a rule for received frames. Extended. FlowAttr.NumOfSpecs specifications follow it.
type CreateFlow struct {
	CompMask uint32
	QPHandle uint32
	FlowAttr FlowAttr
}

// FlowAttr is the common part of a rule. Size is that of the specifications.
type FlowAttr struct {
	Type       uint32
	Size       uint16
	Priority   uint16
	NumOfSpecs uint8
	Reserved   [2]uint8
	Port       uint8
	Flags      uint32
}

// CreateFlowResp is the answer.
type CreateFlowResp struct {
	CompMask   uint32
	FlowHandle uint32
}

// FlowEthFilter is a value or a mask of an Ethernet header. EtherType and VLANTag are big endian.
type FlowEthFilter struct {
	DstMAC    [6]uint8
	SrcMAC    [6]uint8
	EtherType uint16
	VLANTag   uint16
}

// FlowSpecEth selects Ethernet headers.
type FlowSpecEth struct {
	Type     uint32
	Size     uint16
	Reserved uint16
	Val      FlowEthFilter
	Mask     FlowEthFilter
}

// FlowIPv4Filter is a value or a mask of an IPv4 header. Addresses are big endian.
type FlowIPv4Filter struct {
	SrcIP uint32
	DstIP uint32
	Proto uint8
	TOS   uint8
	TTL   uint8
	Flags uint8
}

// FlowSpecIPv4 selects IPv4 headers.
type FlowSpecIPv4 struct {
	Type     uint32
	Size     uint16
	Reserved uint16
	Val      FlowIPv4Filter
	Mask     FlowIPv4Filter
}

// FlowTCPUDPFilter is a value or a mask of ports, big endian.
type FlowTCPUDPFilter struct {
	DstPort uint16
	SrcPort uint16
}

// FlowSpecTCPUDP selects headers of TCP or UDP.
type FlowSpecTCPUDP struct {
	Type     uint32
	Size     uint16
	Reserved uint16
	Val      FlowTCPUDPFilter
	Mask     FlowTCPUDPFilter
}

// DeviceManagedFlowSteering is the flag of a device whose rules select frames by their headers
// (QueryDeviceResp.DeviceCapFlags).
const DeviceManagedFlowSteering = 1 << 29
