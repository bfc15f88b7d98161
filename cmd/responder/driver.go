package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"rebound/nic"
	"rebound/nic/afpacket"
	"rebound/nic/afxdp"
	"rebound/nic/ixgbe"
	"rebound/nic/pci"
	"rebound/nic/vfiouser"
)

// A driver for a PCI function is added by its name here, its case in driverFor, which knows it by vendor and device ID,
// and its case in openFunction.
var (
	socketDrivers   = []string{"afpacket", "afxdp"}
	functionDrivers = []string{"ixgbe"}
)

func driverNames() []string { return slices.Concat([]string{"auto"}, socketDrivers, functionDrivers) }

// driverFor returns the driver for a PCI function, "" if there is none.
func driverFor(id pci.ID) string {
	if _, ok := ixgbe.Supports(id); ok {
		return "ixgbe"
	}
	return ""
}

// openDevice opens what the configuration names.
func openDevice(s *settings, o nic.Options) (nic.Device, error) {
	if isFunction(o.Device) {
		return openFunction(s.NIC.Driver, s.NIC.UnsafeNoIOMMU, o)
	}
	switch s.NIC.Driver {
	case "afpacket":
		return afpacket.Open(o)
	case "afxdp":
		return afxdp.Open(o)
	}
	return openSocket(o)
}

// openSocket takes AF_XDP where kernel, interface and rights allow it, and AF_PACKET elsewhere.
func openSocket(o nic.Options) (nic.Device, error) {
	dev, err := afxdp.Open(o)
	switch {
	case err == nil:
		return dev, nil
	case errors.Is(err, nic.ErrNoDevice), errors.Is(err, nic.ErrDown):
		return nil, err
	}
	o.Log.Info("AF_XDP is not to be had: taking AF_PACKET", "device", o.Device, "reason", err)
	other, failed := afpacket.Open(o)
	if failed != nil {
		return nil, failed
	}
	return other, nil
}

// openFunction opens a PCI function, or a simulated one, with the driver of that name, or of its ID.
func openFunction(driver string, unsafeNoIOMMU bool, o nic.Options) (nic.Device, error) {
	fn, err := takeFunction(o.Device, unsafeNoIOMMU)
	if err != nil {
		return nil, err
	}
	if driver == "auto" {
		driver = driverFor(fn.ID())
	}
	// A driver takes the function over, and closes it if it cannot open the device.
	switch driver {
	case "ixgbe":
		return ixgbe.Open(fn, o)
	}
	return nil, errors.Join(fmt.Errorf("%s: %w: no driver for %v", o.Device, nic.ErrNoDevice, fn.ID()), fn.Close())
}

func takeFunction(device string, unsafeNoIOMMU bool) (pci.Function, error) {
	if path, ok := strings.CutPrefix(device, "vfio-user:"); ok {
		return vfiouser.Dial(path)
	}
	return pci.Open(device, unsafeNoIOMMU)
}
