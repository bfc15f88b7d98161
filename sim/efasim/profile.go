package efasim

// Profile is one generation of the device: the differences between PCI IDs according to public reports.
type Profile struct {
	Name   string // "efa0"
	Device uint16 // PCI device ID, and hw_ver

	Caps      uint32 // device_caps
	SubCQs    uint16 // sub-CQs of each CQ
	Inline    uint16 // inline bytes of a 128-byte WQE, QUEUE_ATTR_2; 0 without that feature
	Polled    bool   // CQs without interrupts have a doorbell too
	Doorbells int    // BAR of the doorbells
	MaxRDMA   uint32 // bytes per RDMA operation
	MaxMR     uint32
	MinSQ     uint16 // minimum depth of an SQ; if not 0, at most depth-1 entries may be pending
	Batch     uint16 // largest amount of LLQ memory written between two doorbells, in 64 bytes; 0 for no limit
	LinkGbps  uint16
	GUID      bool // the node has a GUID
}

// Profiles, oldest first. EFA0 has more than one sub-CQ and a node GUID of 0, and neither RDMA write nor wide inline
// data. Limits that were seen on several generations are the same for all: see queueLimits.
var (
	EFA0 = Profile{Name: "efa0", Device: 0xefa0, Caps: CapRDMARead | CapRNRRetry, SubCQs: 2, Doorbells: 0,
		MaxRDMA: 1 << 30,
		MaxMR:   262144}
	EFA1 = Profile{Name: "efa1", Device: 0xefa1, Caps: CapRDMARead | CapRNRRetry | CapPolling128 | CapRDMAWrite,
		SubCQs: 1, Doorbells: 2,
		MaxRDMA: 1 << 30, MaxMR: 262144, LinkGbps: 100, GUID: true, Batch: 64}
	EFA2 = Profile{Name: "efa2", Device: 0xefa2, Caps: EFA1.Caps | CapUnsolicited, SubCQs: 1, Polled: true,
		Doorbells: 4,
		MaxRDMA:   1 << 30, MaxMR: 262144, LinkGbps: 200, GUID: true, MinSQ: 16, Batch: 64}
	EFA3 = Profile{Name: "efa3", Device: 0xefa3, Caps: EFA2.Caps, SubCQs: 1, Polled: true, Doorbells: 4, Inline: 80,
		MaxRDMA: 1 << 30, MaxMR: 524288, LinkGbps: 400, GUID: true, MinSQ: 16, Batch: 64}
)

// Profiles returns all profiles.
func Profiles() []Profile { return []Profile{EFA0, EFA1, EFA2, EFA3} }

// Limits of real devices: fi_info -v of two efa1 devices. Values without a public report are the model's choice.
const (
	mtu        = 8928 // bytes of a message
	inlineMax  = 32   // inline bytes of a 64-byte WQE
	maxSQDepth = 4096
	maxRQDepth = 32768
	maxCQDepth = 32768
	maxSendSGE = 2
	maxRecvSGE = 3
	maxRDMASGE = 1
	maxMRPages = 1 << 20
	maxPD      = 256
	maxAH      = 1024
	maxLLQ     = maxSQDepth * 128
	pageSizes  = 0x3fffff000 // page_size_cap: 4 KiB to 8 GiB
	eventMask  = 1           // EVENT_QUEUE_ATTR: completion events
)
