// Package sim runs device models: PCI functions in software, for our drivers (in process or over vfio-user) and for
// Linux's drivers (in QEMU).
//
// A Model is written from the datasheet and is strict. Where a real device would fail silently, the model reports a
// violation, in one of two grades. Our drivers must cause neither. A third-party driver that works on the real device
// may cause warnings, and continues.
package sim

import (
	"iter"
	"sync/atomic"
	"time"
	"unsafe"
)

// Model is one device. The host serialises all calls, so a model needs no locks. It calls Host methods only within its
// own methods.
type Model interface {
	// Config describes the function. It is called once.
	Config() Config
	// Attach sets the host. It is called once, before all other methods.
	Attach(Host)

	// ReadBAR and WriteBAR are one access by the driver: 1, 2, 4 or 8 bytes, little endian, aligned, within the BAR and
	// outside of the MSI-X table, which the host handles. An error is a violation. After an error made by AsWarning the
	// access has taken effect; after any other (grade Error) a read yields all ones.
	//
	// Accesses to a polled range are passed here too, after they were counted and stored in shadow memory. The model
	// notes the value so that Step does not see it a second time. Earlier stores by pointer are found in Step.
	ReadBAR(bar int, off uint64, p []byte) error
	WriteBAR(bar int, off uint64, p []byte) error

	// Step checks doorbells and rings and does a bounded amount of work. It reports whether there was any. It is called
	// before and after frames are passed to the model.
	Step() bool

	// Receive receives a frame (without FCS) from the wire. The model may keep the frame. It reports whether the device
	// had room; without room the device counts a miss.
	Receive(frame []byte) bool
	// SetLink reports that the other end of the wire appeared or disappeared.
	SetLink(up bool)

	// Reset is power-on or a function-level reset: all state returns to the datasheet's defaults, and polled ranges of
	// shadow memory are zero. SetLink is called after each Reset.
	Reset()
}

// Host is the machine and the wire as a model sees them.
type Host interface {
	// DMARead and DMAWrite move one burst between host memory and p, and count as one transaction. Outside of a mapping
	// or with bus mastering off they fail and record a violation, except if the driver turned bus mastering off and has
	// written nothing since.
	DMARead(iova uint64, p []byte) error
	DMAWrite(iova uint64, p []byte) error
	// Interrupt raises MSI-X vector v (or MSI, or INTx, whichever the driver enabled).
	Interrupt(v int)
	// Shadow returns the memory behind a BAR, to which drivers with pointers write doorbells and pushed frames. It has
	// the size of the BAR and is meaningful in the ranges of BAR.Polled. Accesses by WriteBAR to such a range are
	// already in it.
	Shadow(bar int) []byte
	// Zero clears the polled ranges of a BAR's shadow memory.
	Zero(bar int)
	// CountMMIOWrite adds n stores that Step found in shadow memory.
	CountMMIOWrite(n int)
	// Command records a command that the device executed, for traces: its name, its status (0 for success), and its
	// fields in order. fields is called only while a trace is recorded.
	Command(name string, status uint8, fields iter.Seq2[string, uint64])
	// Transmit puts a frame (without FCS) on the wire. The host copies it.
	Transmit(frame []byte)
	// OnWire reports whether transmitted frames have not been taken by the device at the other end, which runs too, on
	// a machine that may be too busy for both. A model that counts retries of a request does not count one meanwhile.
	OnWire() bool
	// Errorf and Warnf report a violation of that grade. They name the register or command, the expected value and the
	// one seen.
	Errorf(format string, args ...any)
	Warnf(format string, args ...any)
	// Dropped counts a frame from the wire that the device dropped. The number of different reasons is small.
	Dropped(reason string)
	// Now returns the device's clock since power-on. It does not advance between Steps in stepped tests.
	Now() time.Duration
}

// Grade is the severity of a violation.
type Grade uint8

const (
	// Error marks what no device does: DMA to an unmapped address, a command on an object that does not exist, a tail
	// outside of the ring. The model does not do it either.
	Error Grade = iota
	// Warning marks what the datasheet forbids and devices are known to tolerate, such as a reserved bit. The model
	// does it.
	Warning
)

func (g Grade) String() string { return [...]string{"error", "warning"}[g] }

type warning struct{ error }

// AsWarning makes err, which ReadBAR or WriteBAR returns, a violation of grade Warning. AsWarning(nil) is nil.
func AsWarning(err error) error {
	if err == nil {
		return nil
	}
	return warning{err}
}

// Report records err, if it is not nil, as a violation of its grade, for errors outside of an access.
func Report(h Host, err error) {
	switch {
	case err == nil:
	case gradeOf(err) == Warning:
		h.Warnf("%v", err)
	default:
		h.Errorf("%v", err)
	}
}

// gradeOf returns the grade of a model's error.
func gradeOf(err error) Grade {
	if _, ok := err.(warning); ok {
		return Warning
	}
	return Error
}

// Config describes a model's configuration space and BARs.
type Config struct {
	Vendor, Device       uint16
	SubVendor, SubDevice uint16
	Revision             uint8
	Class                uint32 // 24 bits
	BARs                 [6]BAR
	MSIXVectors          int    // table size; 0 for none
	MSIXBAR              int    // BAR of the table and pending bits
	MSIXTable, MSIXPBA   uint32 // offsets in that BAR
	PCIeDevCap           uint32 // PCI Express Device Capabilities; bit 28 is FLR
	LinkSpeed, LinkWidth int    // PCIe generation and lanes shown in Link Status
	NoPM                 bool   // no Power Management capability, as in virtual functions
	SerialNumber         uint64 // Device Serial Number capability; 0 for none
	MultiFunction        bool   // Header Type announces more functions
	InterruptPin         uint8  // 1 for INTA# (0 means 1) to 4 for INTD#
	MSI                  bool   // one maskable message with a 64-bit address
	VPD                  []byte // read-only Vital Product Data (see VPD); nil for no such capability
	AER                  int    // version of Advanced Error Reporting; 0 for none
	ARI                  bool   // Alternative Routing-ID Interpretation, as in devices that support SR-IOV
	NextFunction         uint8  // Next Function Number of ARI
	// length of a Vendor-Specific capability with the registers of a vendorConfig; 0 for none
	VendorSize  int
	VendorParts [][]byte // read-only Vendor-Specific capabilities, from their third byte; only without MSI and MSI-X
	PMC, PMCSR  uint16   // Power Management Capabilities and Control/Status; 0 for 0003h and 0008h (No_Soft_Reset)
}

// vendorConfig is a model with registers in a Vendor-Specific capability, in dwords from byte 4.
type vendorConfig interface {
	ReadVendor(off int) uint32
	WriteVendor(off int, v uint32)
}

// BAR describes one base address register. Size 0 means that there is none. A 64-bit BAR uses two entries, the second
// empty.
type BAR struct {
	Size         uint64
	Is64         bool
	Prefetchable bool
	Polled       []Range // ranges in which a driver may store through a pointer; Step finds such stores
}

// Range is Len bytes at Off.
type Range struct{ Off, Len uint64 }

// Load32 reads a 32-bit word of shadow memory while a driver may be storing to it.
func Load32(p []byte) uint32 { return atomic.LoadUint32((*uint32)(unsafe.Pointer(&p[:4][0]))) }

// Load64 is Load32 for 64 bits.
func Load64(p []byte) uint64 { return atomic.LoadUint64((*uint64)(unsafe.Pointer(&p[:8][0]))) }
