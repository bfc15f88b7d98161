package amazonadmin

import "time"

// Dialect describes the differences between ENA and EFA below their own commands.
type Dialect struct {
	GetFeature uint8 // opcode of reading a feature; the next one sets it. For the trace
	// EventsFromZero means that the event queue's doorbell counts consumed events. Otherwise it counts entries that the
	// device may write, and so starts at the queue's depth.
	EventsFromZero bool

	// LongIDs adds bits of the command's number above its slot in the identifier. The completion repeats all twelve
	// bits, so that a late completion of an earlier command in the same slot is detected.
	LongIDs bool

	// MMIOReads means that the PCI revision can mark a device that answers register reads by MMIO only.
	MMIOReads bool

	ReadTimeout time.Duration // of one register read by DMA
}

// readTimeout is longer than Linux's (200 ms for ENA, 50 ms for EFA): a device that a busy hypervisor or model serves
// may be descheduled for that long, and a read that fails costs a restart of the device.
const readTimeout = time.Second

// The dialects, each as the published driver for Linux speaks it, except for readTimeout.
var (
	ENA = Dialect{GetFeature: 8, MMIOReads: true, ReadTimeout: readTimeout}
	EFA = Dialect{EventsFromZero: true, LongIDs: true, GetFeature: 11, ReadTimeout: readTimeout}
)
