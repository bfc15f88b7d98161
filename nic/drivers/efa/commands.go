package efa

import (
	"unsafe"

	"github.com/rebound-nic/rebound/nic/kit/amazonadmin"
)

// Opcodes (efa_admin_aq_opcode).
const (
	opCreateQP   = 1
	opModifyQP   = 2
	opCreateAH   = 5
	opDestroyAH  = 6
	opRegMR      = 7
	opCreateCQ   = 9
	opGetFeature = 11
	opSetFeature = 12
	opGetStats   = 13
	opAllocPD    = 14
	opAllocUAR   = 16
)

// Features (efa_admin_aq_feature_id).
const (
	featDevice  = 1
	featAENQ    = 2
	featNetwork = 3
	featQueues1 = 4
	featHints   = 5
	featHost    = 6
	featQueues2 = 9
)

type feature struct {
	amazonadmin.Header
	length uint32 // control buffer
	addr   amazonadmin.Addr
	_      uint8
	id     uint8
	_      [2]uint8
	data   [44]byte // bytes of the command from 20 on
}

type gotFeature struct {
	amazonadmin.Completion
	data [56]byte
}

type deviceAttr struct {
	features    uint64 // bit n: feature n is available
	pageSizes   uint64 // bit n: pages of 2^n bytes
	firmware    uint32
	adminAPI    uint32
	version     uint32
	doorbellBAR uint16
	physBits    uint8
	virtBits    uint8
	caps        uint32
	maxRDMA     uint32
	guid        uint64
	linkSpeed   uint16 // Gbit/s; 0 stands for 100
}

// Capabilities (deviceAttr.caps).
const (
	capRDMARead  = 1 << 0
	capRNRRetry  = 1 << 1
	capRDMAWrite = 1 << 3
)

type aenqFeature struct{ supported, enabled uint32 }

type networkAttr struct {
	gid [16]byte
	mtu uint32
}

type queueAttr1 struct {
	maxQP, maxSQDepth, inline, maxRQDepth, maxCQ, maxCQDepth uint32
	subCQs, minSQDepth, maxSendSGE, maxRecvSGE               uint16
	maxMR, maxMRPages, maxPD, maxAH, maxLLQ                  uint32
	// maxBatch: 64 bytes between doorbells, 0 for no limit
	maxRDMASGE, maxBatch uint16
}

type queueAttr2 struct{ inlineEx uint16 }

// hints are times in ms; 0 selects the driver's own.
type hints struct{ mmioRead, watchdog, adminCompletion, poll uint16 }

// hostInfo describes the host to the device (efa_admin_host_info); it is in a page of 4 KiB.
type hostInfo struct {
	distribution  [128]byte
	osType        uint32 // 0: Linux
	kernel        [32]byte
	kernelNumber  uint32
	driverVersion uint32 // 15:8 sub-minor, 23:16 minor, 31:24 major
	bdf           uint16
	specVersion   uint16 // 7:0 minor, 15:8 major
	flags         uint32
}

// specVersion is the version of the published driver's definitions.
const specVersion = 2 << 8

type allocPD struct{ amazonadmin.Header }

type allocated struct { // of a protection domain, and of a UAR
	amazonadmin.Completion
	number uint16
}

const maxInlinePages = 4

type regMR struct {
	amazonadmin.Header
	pd          uint16
	_           uint16
	pages       [maxInlinePages]uint64 // or the page list's length and address in the first 12 bytes
	length      uint64
	flags       uint8 // 4:0 page shift
	permissions uint8
	_           uint16
	pageNum     uint32 // zero in the published driver
	iova        uint64
}

const localWrite = 1 << 0 // permissions: the device may write

type regdMR struct {
	amazonadmin.Completion
	lkey, rkey uint32
}

type createCQ struct {
	amazonadmin.Header
	caps1  uint8 // bit 5: interrupts; ours are polled
	caps2  uint8 // 4:0 entry size in words, 5: includes the sender's GID if it has no handle
	depth  uint16
	eqn    uint16
	_      uint16
	base   amazonadmin.Addr
	lkey   uint32
	subCQs uint16
	uar    uint16
}

const senderGID = 1 << 5

type createdCQ struct {
	amazonadmin.Completion
	index    uint16
	_        uint16 // the depth, in a field whose name has changed
	doorbell uint32
	flags    uint16 // bit 0: there is a doorbell
}

type createQP struct {
	amazonadmin.Header
	pd             uint16
	kind           uint8 // 1 UD, 2 SRD
	flags          uint8
	sqBase         uint64 // unused: the send queue is in the device
	rqBase         uint64
	sendCQ, recvCQ uint32
	sqKey, rqKey   uint32
	sqBytes        uint32
	sqDepth        uint32
	rqBytes        uint32
	rqDepth        uint32
	uar            uint16
	serviceLevel   uint8
	_              uint8
}

type createdQP struct {
	amazonadmin.Completion
	handle           uint32
	number           uint16
	_                uint16
	sendSub, recvSub uint16 // of the CQs
	sqDoorbell       uint32 // in the doorbell BAR
	rqDoorbell       uint32
	llq              uint32 // in BAR 2
}

type modifyQP struct {
	amazonadmin.Header
	mask   uint32
	handle uint32
	state  uint32
	from   uint32
	qkey   uint32
	psn    uint32
	drain  uint8
	rnr    uint8
}

const (
	maskState = 1 << 0
	maskFrom  = 1 << 1
	maskQKey  = 1 << 2
	maskPSN   = 1 << 3
	maskRNR   = 1 << 5

	stateReset = 0
	stateInit  = 1
	stateRTR   = 2
	stateRTS   = 3
)

type createAH struct {
	amazonadmin.Header
	gid [16]byte
	pd  uint16
}

type createdAH struct {
	amazonadmin.Completion
	handle uint16
}

type destroyAH struct {
	amazonadmin.Header
	handle uint16
	pd     uint16
}

type getStats struct {
	amazonadmin.Header
	_        [12]byte
	kind     uint8
	scope    uint8
	modifier uint16
}

type gotStats struct {
	amazonadmin.Completion
	value [7]uint64
}

// The compiler checks the layouts.
var (
	_ [amazonadmin.EntrySize]byte = [unsafe.Sizeof(feature{})]byte{}
	_ [amazonadmin.EntrySize]byte = [unsafe.Sizeof(gotFeature{})]byte{}
	_ [20]byte                    = [unsafe.Offsetof(feature{}.data)]byte{}
	_ [17]byte                    = [unsafe.Offsetof(feature{}.id)]byte{}
	_ [amazonadmin.EntrySize]byte = [unsafe.Sizeof(regMR{})]byte{}
	_ [28]byte                    = [unsafe.Sizeof(createCQ{})]byte{}
	_ [12]byte                    = [unsafe.Offsetof(createCQ{}.base)]byte{}
	_ [12]byte                    = [unsafe.Offsetof(createdCQ{}.doorbell)]byte{}
	_ [16]byte                    = [unsafe.Offsetof(createQP{}.rqBase)]byte{}
	_ [56]byte                    = [unsafe.Offsetof(createQP{}.uar)]byte{}
	_ [16]byte                    = [unsafe.Offsetof(createdQP{}.sendSub)]byte{}
	_ [28]byte                    = [unsafe.Offsetof(createdQP{}.llq)]byte{}
	_ [28]byte                    = [unsafe.Offsetof(modifyQP{}.drain)]byte{}
	_ [20]byte                    = [unsafe.Offsetof(createAH{}.pd)]byte{}
	_ [16]byte                    = [unsafe.Offsetof(getStats{}.kind)]byte{}
	_ [56]byte                    = [unsafe.Offsetof(queueAttr1{}.maxBatch) + 2]byte{}
	_ [180]byte                   = [unsafe.Sizeof(hostInfo{})]byte{}
)
