// Package pci is a PCI function as a user-space driver needs it: identity, configuration space, BARs, bus mastering, reset
// and DMA mapping. VFIO, sysfs, vfio-user (nic/bus/vfiouser) and device models (sim) implement it, and a driver cannot
// tell which it has.
package pci

import (
	"fmt"

	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
)

// Function is one PCI function, owned by this process until Close. It is control path: not for the hot loop.
type Function interface {
	dma.Mapper

	Name() string // "0000:03:00.0", "vfio-user:/run/nic0", "sim:ixgbe"
	ID() ID

	// ReadConfig reads the 1, 2 or 4 bytes of p from configuration space, little endian.
	ReadConfig(off int, p []byte) error
	WriteConfig(off int, p []byte) error

	// BAR returns the registers of BAR n (0 to 5), mapped uncached where they are mapped. It may be called again and
	// returns the same window.
	BAR(n int) (*mmio.Window, error)
	// BARWC returns BAR n for pushing whole descriptors and frames: mapped write-combining where that can be had.
	// Window.WriteCombining tells.
	BARWC(n int) (*mmio.Window, error)

	SetBusMaster(on bool) error
	Reset() error // function-level reset, or the nearest that the function has

	// Simulated reports whether a device model of ours is behind it.
	Simulated() bool

	// Close turns bus mastering off, then unmaps everything.
	Close() error
}

// ID is what a function says it is: configuration space 00h to 0Bh and 2Ch to 2Fh.
type ID struct {
	Vendor, Device       uint16
	SubVendor, SubDevice uint16
	Revision             uint8
	Class                uint32 // 24 bits: base class, subclass, interface
}

func (id ID) String() string {
	return fmt.Sprintf("%04x:%04x rev %02x", id.Vendor, id.Device, id.Revision)
}
