package amazonadmin

import "time"

// Dialect is what ENA and EFA do differently below their own commands.
type Dialect struct {
	GetFeature uint8 // opcode of reading a feature; the next one sets it. For the trace
	// EventsFromZero has the event queue's doorbell count events consumed. Otherwise it counts entries that the device may
	// write, and so starts at the queue's depth.
	EventsFromZero bool

	// LongIDs puts bits of the number of the command above its place in the identifier, and has the completion repeat all
	// twelve: what answers a command before it under the same place is found out.
	LongIDs bool

	// MMIOReads says that the PCI revision may tell of a device that answers register reads by MMIO only.
	MMIOReads bool

	ReadTimeout time.Duration // of one register read by DMA
}

// readTimeout is longer than Linux's (200 ms for ENA, 50 ms for EFA): a device that a busy hypervisor or model serves may be
// descheduled for that long, and a read that fails costs a restart of the device.
const readTimeout = time.Second

// The dialects, each as the published driver for Linux speaks it, except for readTimeout.
var (
	ENA = Dialect{GetFeature: 8, MMIOReads: true, ReadTimeout: readTimeout}
	EFA = Dialect{EventsFromZero: true, LongIDs: true, GetFeature: 11, ReadTimeout: readTimeout}
)
