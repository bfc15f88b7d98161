package ena

import (
	"unsafe"

	"github.com/rebound-nic/rebound/nic/kit/amazonadmin"
)

// Opcodes (ena_admin_aq_opcode).
const (
	opCreateSQ   = 1
	opDestroySQ  = 2
	opCreateCQ   = 3
	opDestroyCQ  = 4
	opGetFeature = 8
	opSetFeature = 9
	opGetStats   = 11
)

// Features (ena_admin_aq_feature_id).
const (
	featDevice      = 1
	featMaxQueues   = 2
	featHints       = 3
	featLLQ         = 4
	featMaxQueuesX  = 7
	featRSSHash     = 10
	featRSSTable    = 12
	featMTU         = 14
	featRSSInput    = 18
	featAENQ        = 26
	featLink        = 27
	featHost        = 28
	llqVersion      = 1 // the version of featLLQ with the recommended size and the depth of wide entries
	maxQueuesXVers  = 1 // the version of featMaxQueuesX that maxQueuesX describes
	selectCurrent   = 1
	capENIStats     = 1 << 0 // ena_admin_aq_caps_id
	capMetrics      = 1 << 2
	statsBasic      = 0
	statsENI        = 2
	statsMetrics    = 4
	statsScopeEth   = 1
	statsMyDevice   = 0xFFFF
	allowanceNumber = 5 // the metrics that ENI statistics and customer metrics share
)

const (
	dirTx, dirRx = 1 << 5, 2 << 5 // sq_identity 7:5

	placeHost, placeDevice = 1, 3 // sq_caps_2 3:0; completion policy 6:4 is 0: one for each request
	contiguous             = 1    // sq_caps_3
)

type createCQ struct {
	amazonadmin.Header
	caps1     uint8 // bit 5: interrupts; ours are polled
	entryWord uint8 // 4:0: entry size in 32-bit words
	depth     uint16
	vector    uint32 // noVector for a polled queue
	base      amazonadmin.Addr
}

const noVector = 0xFFFFFFFF // 0 is refused by firmware that is known (iPXE, ENA_MSIX_NONE; DPDK requests -1)

type createdCQ struct {
	amazonadmin.Completion
	index      uint16
	depth      uint16
	numa       uint32 // register offsets, 0 if there is none
	headDB     uint32
	intrUnmask uint32
}

type createSQ struct {
	amazonadmin.Header
	identity  uint8
	_         uint8
	placement uint8
	caps3     uint8
	cq        uint16
	depth     uint16
	base      amazonadmin.Addr
	headWB    amazonadmin.Addr
	_         [2]uint32
}

type createdSQ struct {
	amazonadmin.Completion
	index     uint16
	_         uint16
	doorbell  uint32 // in BAR 0
	llqDescs  uint32 // in BAR 2
	llqHeader uint32
}

type feature struct {
	amazonadmin.Header
	length  uint32 // control buffer
	addr    amazonadmin.Addr
	flags   uint8
	id      uint8
	version uint8
	_       uint8
	data    [44]byte
}

type gotFeature struct {
	amazonadmin.Completion
	data [56]byte
}

type deviceAttr struct {
	impl, version uint32
	features      uint32 // bit n: feature n can be had
	capabilities  uint32
	physBits      uint32
	virtBits      uint32
	mac           [6]byte
	_             [2]byte
	maxMTU        uint32
}

type llqFeature struct {
	num, depth            uint32
	headerHave, headerSet uint16
	entryHave, entrySet   uint16
	beforeHave, beforeSet uint16
	strideHave, strideSet uint16
	version               uint8
	recommended           uint8  // entry size
	wideDepth             uint16 // maximum number of entries of 256 bytes; 0 on devices that do not say
	accel                 uint16 // get: what the device supports; set: what is enabled
	maxBurst              uint16 // get: bytes between doorbells
	_                     uint32
}

const (
	llqInline         = 1 // header in the entry
	llqEntry128       = 1
	llqEntry256       = 4
	llqTwoBefore      = 2 // two descriptors before the header
	llqMultipleDescs  = 2
	accelNoMetaCache  = 1 << 0
	accelLimitTxBurst = 1 << 1
)

type maxQueues struct {
	sq, sqDepth, cq, cqDepth, llq, llqDepth, header uint32
	txDescs, rxDescs                                uint16
}

type maxQueuesX struct {
	version                                    uint8
	_                                          [3]byte
	txSQ, txCQ, rxSQ, rxCQ                     uint32
	txSQDepth, txCQDepth, rxSQDepth, rxCQDepth uint32
	header                                     uint32
	txDescs, rxDescs                           uint16
}

type aenqFeature struct{ supported, enabled uint32 }

type linkFeature struct{ speed, supported, flags uint32 }

// hints are times in ms; 0 leaves the driver its own, 0xFFFF switches the check off.
type hints struct {
	mmioRead, watchdog, missingTx, missedTx, adminCompletion, netdevWatchdog, txSGL, rxSGL uint16
}

type hostAttr struct {
	info, debug amazonadmin.Addr
	debugSize   uint32
}

type hashFunction struct{ supported, selected, init uint32 }

type hashTable struct {
	min, max, size uint16
	_              uint16
	inline         uint32
	entry          uint32
}

type getStats struct {
	amazonadmin.Header
	length    uint32
	addr      amazonadmin.Addr
	kind      uint8
	scope     uint8
	_         uint16
	queue     uint16
	device    uint16
	requested uint64
}

type gotStats struct {
	amazonadmin.Completion
	data [56]byte
}

// hostInfo describes the host to the device (ena_admin_host_info), in a page of 4 KiB.
type hostInfo struct {
	osType        uint32
	osDist        [128]byte
	osDistNumber  uint32
	kernel        [32]byte
	kernelNumber  uint32
	driverVersion uint32
	netFeatures   [2]uint32
	specVersion   uint16
	bdf           uint16
	cpus          uint16
	_             uint16
	features      uint32 // none: no receive offset, no interrupt moderation
}

const (
	osLinux = 1
	// some firmware creates completion queues for no other version (iPXE, ENA_HOST_INFO_VERSION_WTF; Linux's and DPDK's
	// is 2)
	driverMajor = 2
	specVersion = 2 << 8
)

// Compile-time checks of the layouts.
var (
	_ [20]byte                    = [unsafe.Sizeof(createCQ{})]byte{}
	_ [36]byte                    = [unsafe.Sizeof(createSQ{})]byte{}
	_ [amazonadmin.EntrySize]byte = [unsafe.Sizeof(feature{})]byte{}
	_ [amazonadmin.EntrySize]byte = [unsafe.Sizeof(gotFeature{})]byte{}
	_ [36]byte                    = [unsafe.Sizeof(llqFeature{})]byte{}
	_ [44]byte                    = [unsafe.Sizeof(maxQueuesX{})]byte{}
	_ [196]byte                   = [unsafe.Sizeof(hostInfo{})]byte{}
)
