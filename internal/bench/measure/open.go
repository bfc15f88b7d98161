package measure

import (
	"errors"
	"fmt"
	"time"

	"github.com/rebound-nic/rebound/internal/cards"
	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/nic"
)

// onKernel reports whether an interface belongs to the kernel. A driver for the device itself detaches it from the
// kernel, which then has no interface, address or route for it.
func onKernel(iface string) bool { return !cards.IsPCIDevice(iface) }

// open opens a device, and waits for its link if the kernel does not drive it.
func open(c cards.Config) (nic.Device, error) {
	if err := cards.Fits(c.Driver, c.Device); err != nil {
		return nil, process.Usagef("-driver, -iface: %w", err)
	}
	d, err := c.Open()
	if err != nil || onKernel(c.Device) {
		return d, err
	}
	return awaitLink(d)
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
			why := "is the cable plugged in, and the other end up?"
			if l.Waits != "" {
				why = l.Waits
			}
			err = fmt.Errorf("%s: %w: no link in %v: %s", d.Info().Device, nic.ErrDown, linkPatience, why)
		}
		if err != nil {
			return nil, errors.Join(err, d.Close())
		}
	}
}
