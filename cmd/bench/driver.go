package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"rebound/cmd/internal/card"
	"rebound/nic"
	"rebound/nic/afpacket"
	"rebound/nic/afxdp"
)

// drivers are the names that -driver takes.
var drivers = strings.Join(slices.Concat([]string{"auto", "afpacket", "afxdp"}, card.Drivers), ", ")

// onKernel reports whether an interface is the kernel's. A driver on the device itself takes it from the kernel, which then
// knows neither an interface nor an address nor a route.
func onKernel(iface string) bool { return !card.Named(iface) }

// opening is how a device is to be opened.
type opening struct {
	nic.Options
	driver, push  string
	shared        bool // the host uses the interface too, or the bench wants what only a packet socket has
	unsafeNoIOMMU bool
}

// open is the one place that knows which drivers there are.
func (o opening) open() (nic.Device, error) {
	if card.Named(o.Device) {
		d, err := card.Open(o.driver, o.unsafeNoIOMMU, card.Push{Mode: o.push}, o.Options)
		if err != nil {
			return nil, err
		}
		return awaitLink(d)
	}
	switch o.driver {
	case "auto":
		return o.auto()
	case "afpacket":
		return afpacket.Open(o.Options)
	case "afxdp":
		return afxdp.Open(o.Options, afxdp.Options{})
	}
	if slices.Contains(card.Drivers, o.driver) {
		return nil, usage("driver %s: -iface has to name a PCI address or vfio-user:PATH, and %q is neither", o.driver, o.Device)
	}
	return nil, usage("driver %q: want one of %s", o.driver, drivers)
}

// auto takes AF_XDP where the bench has an address of its own, and AF_PACKET where the host uses the interface too:
// attaching an XDP program can reset a card's queues, which a host at work should not suffer unasked.
func (o opening) auto() (nic.Device, error) {
	if o.shared {
		return afpacket.Open(o.Options)
	}
	d, err := afxdp.Open(o.Options, afxdp.Options{})
	if err == nil || errors.Is(err, nic.ErrNoDevice) || errors.Is(err, nic.ErrDown) {
		return d, err
	}
	o.Log.Info("AF_XDP is not to be had, taking AF_PACKET", "device", o.Device, "reason", err)
	second, failed := afpacket.Open(o.Options)
	if failed != nil {
		return nil, fmt.Errorf("%w; and by AF_XDP: %w", failed, err)
	}
	return second, nil
}

// linkPatience is how long a card may take to bring its link up: negotiation takes seconds.
const linkPatience = 15 * time.Second

// awaitLink waits for the link of a card that was just started.
func awaitLink(d nic.Device) (nic.Device, error) {
	for end := time.Now().Add(linkPatience); ; time.Sleep(10 * time.Millisecond) {
		l, err := d.Link()
		if err == nil && l.Up {
			return d, nil
		}
		if err == nil && time.Now().After(end) {
			err = fmt.Errorf("%s: %w: no link in %v: is the cable plugged in, and the other end up?", d.Info().Device, nic.ErrDown, linkPatience)
		}
		if err != nil {
			return nil, errors.Join(err, d.Close())
		}
	}
}
