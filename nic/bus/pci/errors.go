package pci

import (
	"errors"

	"github.com/rebound-nic/rebound/nic/bus"
)

// Errors that a function can have before a driver sees it. Returned errors wrap these with the address, what was found
// and, if the user can fix it, how.
var (
	ErrNoDevice = bus.ErrNoDevice
	ErrGone     = bus.ErrGone // configuration space reads all ones

	errNoIOMMU = errors.New("no IOMMU group")             // the machine has none, or it is disabled
	errGroup   = errors.New("IOMMU group is not viable")  // another function of the group belongs to a host driver
	errInUse   = errors.New("interface is in use")        // it carries the default route or the ssh session
	errConfig  = errors.New("configuration space is bad") // capability lists with invalid entries
	ErrBAR     = errors.New("BAR is unusable")
	errClosed  = errors.New("PCI function is closed")
)
