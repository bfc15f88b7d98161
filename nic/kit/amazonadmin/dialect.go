package amazonadmin

import "time"

// Dialect is what ENA and EFA do differently below their own commands.
type Dialect struct {
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

// The dialects, each as the published driver for Linux speaks it.
var (
	ENA = Dialect{MMIOReads: true, ReadTimeout: 200 * time.Millisecond}
	EFA = Dialect{EventsFromZero: true, LongIDs: true, ReadTimeout: 50 * time.Millisecond}
)
