// Package card opens PCI network functions, of this machine or simulated, with the driver that fits. It is the one switch
// over drivers on the device itself, for all commands.
package card

import (
	"errors"
	"fmt"
	"strings"

	"rebound/nic"
	"rebound/nic/bus/pci"
	"rebound/nic/bus/vfiouser"
	"rebound/nic/ena"
	"rebound/nic/ixgbe"
	"rebound/nic/mlx5"
)

// A driver is added by its name here, its case in DriverFor, which knows it by vendor and device ID, and its case in Open.

// Drivers are the names of the drivers on the device itself.
var Drivers = []string{"ixgbe", "mlx5", "ena"}

// PushModes are the values of Push.Mode that some driver knows.
var PushModes = []string{"auto", "off", "llq", "full", "header"}

// simulated begins the name of a device that a simnic serves.
const simulated = "vfio-user:"

// Named tells a PCI function ("0000:03:00.0") or a simulated one ("vfio-user:PATH") from a network interface, whose name
// has no colon.
func Named(device string) bool {
	_, err := pci.ParseAddress(device)
	return err == nil || strings.HasPrefix(device, simulated)
}

// DriverFor returns the driver for a PCI function, "" if there is none.
func DriverFor(id pci.ID) string {
	if _, ok := ixgbe.Supports(id); ok {
		return "ixgbe"
	}
	if _, ok := mlx5.Supports(id); ok {
		return "mlx5"
	}
	if _, ok := ena.Supports(id); ok {
		return "ena"
	}
	return ""
}

// Push is how frames reach a card that can take them by stores. Each driver checks it.
type Push struct {
	Mode string // "" and "auto" for the best that the card has
	Max  int    // the longest frame in bytes that is pushed whole; 0 for as long as the card takes
}

// Open opens o.Device with the driver of that name, or with the one for its ID where driver is "auto". Without an IOMMU it
// fails unless unsafeNoIOMMU is set: the device may then write to any memory.
func Open(driver string, unsafeNoIOMMU bool, push Push, o nic.Options) (nic.Device, error) {
	fn, err := take(o.Device, unsafeNoIOMMU)
	if err != nil {
		return nil, err
	}
	if driver == "auto" {
		driver = DriverFor(fn.ID())
	}
	// A driver takes the function over, and closes it if it cannot open the device.
	switch driver {
	case "ixgbe":
		if push.Mode != "" && push.Mode != "auto" && push.Mode != "off" {
			return nil, errors.Join(fmt.Errorf("ixgbe %s: push mode %q is none of auto, off: this card takes no frame by stores", o.Device, push.Mode), fn.Close())
		}
		d, err := ixgbe.Open(fn, o)
		return opened(fn, d, err)
	case "mlx5":
		d, err := mlx5.Open(fn, o, mlx5.Options{Push: push.Mode, PushMax: push.Max})
		return opened(fn, d, err)
	case "ena":
		d, err := ena.Open(fn, o, ena.Options{Push: push.Mode, PushMax: push.Max})
		return opened(fn, d, err)
	}
	return nil, errors.Join(fmt.Errorf("%s: %w: no driver for %v", o.Device, nic.ErrNoDevice, fn.ID()), fn.Close())
}

// Card is an open card.
type Card struct {
	nic.Device
	fn pci.Function
}

// Transactions returns the PCIe transactions that a device model has counted since it was made, by kind; nil for a real
// card, which counts none.
func (c *Card) Transactions() (map[string]int64, error) {
	if m, ok := c.fn.(interface {
		Transactions() (map[string]int64, error)
	}); ok {
		return m.Transactions()
	}
	return nil, nil
}

// opened keeps a nil pointer from becoming an interface that is not nil.
func opened[D nic.Device](fn pci.Function, d D, err error) (nic.Device, error) {
	if err != nil {
		return nil, err
	}
	return &Card{d, fn}, nil
}

func take(name string, unsafeNoIOMMU bool) (pci.Function, error) {
	if path, ok := strings.CutPrefix(name, simulated); ok {
		return vfiouser.Dial(path)
	}
	return pci.Open(name, unsafeNoIOMMU)
}
