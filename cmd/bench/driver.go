package main

import (
	"errors"
	"fmt"
	"log/slog"

	"rebound/nic"
	"rebound/nic/afpacket"
	"rebound/nic/afxdp"
)

// drivers are the names that -driver takes.
const drivers = "auto, afpacket, afxdp"

// onKernel reports whether a driver works on an interface of the kernel's. The others drive a card themselves: the kernel
// then knows neither an interface nor an address nor a route.
func onKernel(driver string) bool {
	switch driver {
	case "auto", "afpacket", "afxdp":
		return true
	}
	return false
}

// openDevice is the one place that knows which drivers there are.
func openDevice(driver string, o nic.Options) (nic.Device, error) {
	switch driver {
	case "afpacket":
		return afpacket.Open(o)
	case "afxdp":
		return afxdp.Open(o)
	}
	return nil, usage("driver %q: want one of %s", driver, drivers)
}

// openAuto takes AF_XDP where the bench has an address of its own, and AF_PACKET where the host uses the interface too:
// attaching an XDP program can reset a card's queues, which a host at work should not suffer unasked.
func openAuto(o nic.Options, shared bool, log *slog.Logger) (nic.Device, error) {
	if shared {
		return openDevice("afpacket", o)
	}
	d, err := openDevice("afxdp", o)
	if err == nil || errors.Is(err, nic.ErrNoDevice) || errors.Is(err, nic.ErrDown) {
		return d, err
	}
	log.Info("AF_XDP is not to be had, taking AF_PACKET", "device", o.Device, "reason", err)
	d, second := openDevice("afpacket", o)
	if second != nil {
		return nil, fmt.Errorf("%w; and by AF_XDP: %w", second, err)
	}
	return d, nil
}
