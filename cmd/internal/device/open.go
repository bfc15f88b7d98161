// Package device opens ports with the driver that fits: interfaces of the kernel, and PCI functions of this machine or
// simulated. It is the one switch over drivers, and the table of what users can choose about them, for all commands.
package device

import (
	"errors"
	"fmt"
	"strings"

	"rebound/nic"
	"rebound/nic/bus/pci"
	"rebound/nic/bus/vfiouser"
	"rebound/nic/xdp"
)

// simulated begins the name of a device that a simnic serves.
const simulated = "vfio-user:"

// Named tells a PCI function ("0000:03:00.0") or a simulated one ("vfio-user:PATH") from a network interface, whose name
// has no colon.
func Named(device string) bool {
	_, err := pci.ParseAddress(device)
	return err == nil || strings.HasPrefix(device, simulated)
}

// Open opens c.Device. Without an IOMMU it fails for a PCI function unless UnsafeNoIOMMU is set: the device may then write to
// any memory.
func (c *Config) Open() (nic.Device, error) {
	if err := Fits(c.Driver, c.Device); err != nil {
		return nil, err
	}
	if Named(c.Device) {
		return c.openFunction()
	}
	if err := (&driver{}).takes(c.Push); err != nil {
		return nil, fmt.Errorf("%s: %w: a socket has no card to push to", c.Device, err)
	}
	if c.Driver == "auto" {
		return c.openSocket()
	}
	if c.InKernel() {
		return nil, fmt.Errorf("%s: driver %s answers by itself, in the kernel: nothing can be sent or polled through it", c.Device, c.Driver)
	}
	return byName(c.Driver).socket(c)
}

// InKernel reports whether the driver answers by itself: OpenKernel opens it.
func (c *Config) InKernel() bool { d := byName(c.Driver); return d != nil && d.kernel != nil }

// OpenKernel opens c.Device with a driver that answers by itself.
func (c *Config) OpenKernel() (*xdp.Device, error) {
	if err := Fits(c.Driver, c.Device); err != nil {
		return nil, err
	}
	return byName(c.Driver).kernel(c)
}

// openSocket takes AF_XDP where kernel, interface and rights allow it, and AF_PACKET elsewhere or where the interface is
// shared: attaching an XDP program can reset a card's queues, which a host at work should not suffer unasked.
func (c *Config) openSocket() (nic.Device, error) {
	if c.Shared {
		return byName("afpacket").socket(c)
	}
	d, err := byName("afxdp").socket(c)
	if err == nil || errors.Is(err, nic.ErrNoDevice) || errors.Is(err, nic.ErrDown) {
		return d, err
	}
	c.Log.Warn("AF_XDP cannot be used here: taking AF_PACKET", "device", c.Device, "reason", err)
	second, failed := byName("afpacket").socket(c)
	if failed != nil {
		return nil, fmt.Errorf("%w; and by AF_XDP: %w", failed, err)
	}
	return second, nil
}

func (c *Config) openFunction() (nic.Device, error) {
	fn, err := take(c.Device, c.UnsafeNoIOMMU)
	if err != nil {
		return nil, err
	}
	name := c.Driver
	if name == "auto" {
		name = DriverFor(fn.ID())
	}
	d := byName(name)
	if d == nil {
		return nil, errors.Join(fmt.Errorf("%s: %w: no driver for %v", c.Device, nic.ErrNoDevice, fn.ID()), fn.Close())
	}
	if err := d.takes(c.Push); err != nil {
		return nil, errors.Join(fmt.Errorf("%s %s: %w", d.name, c.Device, err), fn.Close())
	}
	dev, err := d.function(fn, c)
	if err != nil {
		return nil, err
	}
	return &Card{dev, fn}, nil
}

func take(name string, unsafeNoIOMMU bool) (pci.Function, error) {
	if path, ok := strings.CutPrefix(name, simulated); ok {
		return vfiouser.Dial(path)
	}
	return pci.Open(name, unsafeNoIOMMU)
}

// Card is an open PCI function, of this machine or simulated.
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
