package main

import (
	"errors"
	"fmt"
	"slices"

	"rebound/cmd/internal/card"
	"rebound/nic"
	"rebound/nic/afpacket"
	"rebound/nic/afxdp"
)

var socketDrivers = []string{"afpacket", "afxdp"}

func driverNames() []string { return slices.Concat([]string{"auto"}, socketDrivers, card.Drivers) }

// openDevice opens what the configuration names.
func openDevice(s *settings, o nic.Options) (nic.Device, error) {
	if card.Named(o.Device) {
		return card.Open(s.NIC.Driver, s.NIC.UnsafeNoIOMMU, card.Push{Mode: s.NIC.Push, Max: s.NIC.PushMax}, o)
	}
	if p := s.NIC.Push; p != "auto" && p != "off" {
		return nil, fmt.Errorf("%s: push mode %q is none of auto, off: a socket has no card to push to", o.Device, p)
	}
	xdp := afxdp.Options{Queue: s.NIC.Queue, Generic: s.NIC.GenericXDP}
	switch s.NIC.Driver {
	case "afpacket":
		return afpacket.Open(o)
	case "afxdp":
		return afxdp.Open(o, xdp)
	}
	return openSocket(o, xdp)
}

// openSocket takes AF_XDP where kernel, interface and rights allow it, and AF_PACKET elsewhere.
func openSocket(o nic.Options, xdp afxdp.Options) (nic.Device, error) {
	dev, err := afxdp.Open(o, xdp)
	switch {
	case err == nil:
		return dev, nil
	case errors.Is(err, nic.ErrNoDevice), errors.Is(err, nic.ErrDown):
		return nil, err
	}
	o.Log.Warn("AF_XDP is not to be had: taking AF_PACKET", "device", o.Device, "reason", err)
	other, failed := afpacket.Open(o)
	if failed != nil {
		return nil, failed
	}
	return other, nil
}
