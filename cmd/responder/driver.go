package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"rebound/nic"
	"rebound/nic/afpacket"
	"rebound/nic/afxdp"
	"rebound/nic/pci"
)

// A driver for a PCI function is added by its name here, its device IDs in driverFor, and its case in openFunction.
var (
	socketDrivers   = []string{"afpacket", "afxdp"}
	functionDrivers = []string{}
)

func driverNames() []string { return slices.Concat([]string{"auto"}, socketDrivers, functionDrivers) }

// driverFor returns the driver for a PCI function, "" if there is none.
func driverFor(id pci.ID) string {
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
	if path, ok := strings.CutPrefix(o.Device, "vfio-user:"); ok {
		return nil, fmt.Errorf("%w: %s: vfio-user is not in this build", nic.ErrNoDevice, path)
	}
	fn, err := pci.Open(o.Device, unsafeNoIOMMU)
	if err != nil {
		return nil, err
	}
	if driver == "auto" {
		driver = driverFor(fn.ID())
	}
	// A driver takes the function over, and closes it if it cannot open the device.
	switch driver {
	}
	return nil, errors.Join(fmt.Errorf("%s: %w: no driver for %v", o.Device, nic.ErrNoDevice, fn.ID()), fn.Close())
}
