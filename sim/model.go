// Package sim runs device models: PCI functions made of software, for drivers of ours (in process or over vfio-user) and
// for Linux's (in QEMU).
//
// A Model is written from the datasheet and is strict: what a real device punishes silently it reports as a violation, in one
// of two grades. A driver of ours has none of either. A driver that others wrote, and that runs on the real device, may get
// warnings, and runs on.
package sim

import (
	"iter"
	"sync/atomic"
	"time"
	"unsafe"
)

// Model is one device. The host serialises all calls, so a model needs no locks, and calls no Host method outside of
// its own methods.
type Model interface {
	// Config describes the function. It is asked once.
	Config() Config
	// Attach gives the model its host, once, before anything else.
	Attach(Host)

	// ReadBAR and WriteBAR are one access by the driver: 1, 2, 4 or 8 bytes, little endian, aligned, within the BAR and
	// outside of the MSI-X table, which the host keeps. An error is a violation: one made by AsWarning leaves the access as the
	// model made it; with any other, which is Refused, a read yields all ones.
	// An access to a polled range comes here too, counted and stored in shadow memory already: the model takes note of
	// the value, so that Step does not find it a second time. Stores by pointer that came before are still to be found.
	ReadBAR(bar int, off uint64, p []byte) error
	WriteBAR(bar int, off uint64, p []byte) error

	// Step looks at the doorbells and rings and advances the device by a bounded amount of work. It reports whether
	// there was any. It is called before and after frames are handed over.
	Step() bool

	// Receive takes a frame (without FCS) from the wire. The frame is the model's to keep. It reports whether the device
	// had room; a device without room counts a miss.
	Receive(frame []byte) bool
	// SetLink tells that the wire's other end came or went.
	SetLink(up bool)

	// Reset is power-on or a function-level reset: all state goes to the datasheet's defaults, polled ranges of shadow
	// memory are zero. The link is the wire's: SetLink follows each Reset.
	Reset()
}

// Host is what a model sees of the machine and the wire.
type Host interface {
	// DMARead and DMAWrite move one burst between host memory and p. They fail, and a violation is recorded, outside
	// of a mapping and while bus mastering is off; no violation if it was turned off and the driver wrote nothing since.
	// Each call counts as one transaction.
	DMARead(iova uint64, p []byte) error
	DMAWrite(iova uint64, p []byte) error
	// Interrupt raises MSI-X vector v (or MSI, or INTx, whichever the driver enabled).
	Interrupt(v int)
	// Shadow is the memory behind a BAR that drivers with pointers write doorbells and pushed frames to: the size of
	// the BAR, meaningful in the ranges of BAR.Polled. Accesses that came by WriteBAR into such a range are already
	// in it.
	Shadow(bar int) []byte
	// CountMMIOWrite counts n stores that Step found in shadow memory.
	CountMMIOWrite(n int)
	// Command tells of a command that the device executed, for traces: its name, its status, 0 for done, and the fields
	// that it was given, in order. Given is called only where there is a trace.
	Command(name string, status uint8, fields iter.Seq2[string, uint64])
	// Transmit puts a frame (without FCS) on the wire. The host copies it.
	Transmit(frame []byte)
	// Errorf and Warnf report a violation of that grade, naming register or command, what was expected and what was seen.
	Errorf(format string, args ...any)
	Warnf(format string, args ...any)
	// Dropped counts a frame from the wire that the device dropped, by a reason of which there are few.
	Dropped(reason string)
	// Now is the device's clock since power-on; it stalls between Steps in stepped tests.
	Now() time.Duration
}

// Grade says how bad a violation is.
type Grade uint8

const (
	// Error is what no device does: DMA to an address that is not mapped, a command on an object that does not exist, a
	// tail beyond the ring. The model does not do it either.
	Error Grade = iota
	// Warning is what the datasheet forbids and devices are known to bear: a reserved bit, an order. The model does it.
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

// Report records err, which no access can return, as a violation of its grade. Nil is none.
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

// Config is a model's configuration space and BARs.
type Config struct {
	Vendor, Device       uint16
	SubVendor, SubDevice uint16
	Revision             uint8
	Class                uint32 // 24 bits
	BARs                 [6]BAR
	MSIXVectors          int      // table size; 0 for none
	MSIXBAR              int      // where the table and pending bits lie
	MSIXTable, MSIXPBA   uint32   // offsets in that BAR
	PCIeDevCap           uint32   // PCI Express Device Capabilities; bit 28 is FLR
	LinkSpeed, LinkWidth int      // PCIe generation and lanes shown in Link Status
	NoPM                 bool     // no Power Management capability, as virtual functions have none
	SerialNumber         uint64   // Device Serial Number capability; 0 for none
	MultiFunction        bool     // Header Type says that the device has more functions
	InterruptPin         uint8    // 1 for INTA#, which 0 stands for too, to 4 for INTD#
	MSI                  bool     // one message, of 64-bit address, that can be masked
	VPD                  []byte   // Vital Product Data, read-only; nil for no such capability: see VPD
	AER                  int      // version of Advanced Error Reporting; 0 for none
	ARI                  bool     // Alternative Routing-ID Interpretation, as what can be virtualized has
	NextFunction         uint8    // of the device, as ARI tells
	VendorSize           int      // length of a Vendor-Specific capability, whose dwords a VendorConfig keeps; 0 for none
	VendorParts          [][]byte // Vendor-Specific capabilities that only read, from their third byte; of a function without MSI and MSI-X
	PMC, PMCSR           uint16   // Power Management Capabilities and Control/Status; 0 for 0003h and 0008h (No_Soft_Reset)
}

// VendorConfig is a model with registers in a Vendor-Specific capability: from byte 4 of it, in dwords.
type VendorConfig interface {
	ReadVendor(off int) uint32
	WriteVendor(off int, v uint32)
}

// BAR describes one base address register. Size 0 means there is none; a 64-bit BAR takes two entries, the second empty.
type BAR struct {
	Size         uint64
	Is64         bool
	Prefetchable bool
	Polled       []Range // where a driver may store through a pointer: the model finds such stores in Step
}

// Range is n bytes from off.
type Range struct{ Off, Len uint64 }

// Load32 reads a 32-bit word of shadow memory, which a driver may be storing to.
func Load32(p []byte) uint32 { return atomic.LoadUint32((*uint32)(unsafe.Pointer(&p[:4][0]))) }

// Load64 is Load32 for eight bytes.
func Load64(p []byte) uint64 { return atomic.LoadUint64((*uint64)(unsafe.Pointer(&p[:8][0]))) }
