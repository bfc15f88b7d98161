package pci

import (
	"errors"

	"github.com/rebound-nic/rebound/nic/bus"
)

// What can be wrong with a function before a driver sees it. Errors wrap these with the address, what was found and,
// where the user can fix it, how.
var (
	ErrNoDevice = bus.ErrNoDevice
	ErrGone     = bus.ErrGone // configuration space reads all ones
	ErrBusy     = bus.ErrBusy
	ErrRights   = bus.ErrRights

	ErrNoIOMMU = errors.New("no IOMMU group")             // none in the machine, or not switched on
	ErrGroup   = errors.New("IOMMU group is not viable")  // another function of the group belongs to a host driver
	ErrInUse   = errors.New("interface is needed")        // it carries the default route or the ssh session
	ErrConfig  = errors.New("configuration space is bad") // capability lists that lead nowhere
	ErrBAR     = errors.New("BAR is unusable")
	ErrClosed  = errors.New("PCI function is closed")
)
