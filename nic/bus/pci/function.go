// Package pci gives a user-space driver access to a PCI function: identity, configuration space, BARs, bus mastering,
// reset and DMA mapping. VFIO, sysfs, vfio-user (nic/bus/vfiouser) and device models (sim) implement it, and a driver
// cannot distinguish them.
package pci

import (
	"fmt"

	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
)

// Function is one PCI function, owned by this process until Close. It is for the control path, not the hot loop.
type Function interface {
	dma.Mapper

	Name() string // "0000:03:00.0", "vfio-user:/run/nic0", "sim:ixgbe"
	ID() ID

	// ReadConfig reads 1, 2 or 4 bytes from configuration space into p, little endian.
	ReadConfig(off int, p []byte) error
	WriteConfig(off int, p []byte) error

	// BAR returns the registers of BAR n (0 to 5), uncached if they are mapped. Later calls return the same window.
	BAR(n int) (*mmio.Window, error)
	// BARWC returns BAR n for pushing whole descriptors and frames, write-combining if possible. Window.WriteCombining
	// reports whether it is.
	BARWC(n int) (*mmio.Window, error)

	SetBusMaster(on bool) error
	Reset() error // function-level reset, or the closest equivalent that the function supports

	// Simulated reports whether the device is one of our models.
	Simulated() bool

	// Close turns bus mastering off, then unmaps everything.
	Close() error
}

// ID is the function's identity: configuration space 00h to 0Bh and 2Ch to 2Fh.
type ID struct {
	Vendor, Device       uint16
	SubVendor, SubDevice uint16
	Revision             uint8
	Class                uint32 // 24 bits: base class, subclass, interface
}

func (id ID) String() string {
	return fmt.Sprintf("%04x:%04x rev %02x", id.Vendor, id.Device, id.Revision)
}
