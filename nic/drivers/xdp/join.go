package xdp

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/kit/netif"
	"github.com/rebound-nic/rebound/nic/kit/xdpkit"
)

// findPin returns the pin to join, nil if there is none.
func (d *Device) findPin(own Options) (*pin, error) {
	p, err := openPin(own.Pin)
	if errors.Is(err, ErrNoPin) {
		if _, err := os.Stat(pinPath(own.Pin, "")); err == nil { // started but not completed
			return nil, removePin(own.Pin)
		}
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	wrong := ""
	switch a := p.about; {
	case a.Namespace != namespace():
		wrong = "is of an interface in another network namespace"
	case a.Device != d.iface.Name:
		wrong = fmt.Sprintf("is on interface %s, not %s", a.Device, d.iface.Name)
	case !p.gone && a.Ifindex != d.iface.Index:
		wrong = fmt.Sprintf("is on another interface that had the name %s", a.Device)
	case !p.gone && own.Generic != (a.Hook == xdpkit.Generic) && own.Generic:
		wrong = fmt.Sprintf("is at the driver's hook, and nic.generic_xdp asks for the other")
	}
	if wrong != "" {
		p.close()
		return nil, fmt.Errorf("pin %q %s: `rebound-responder unpin %s` ends it, another name makes another", own.Pin,
			wrong, own.Pin)
	}
	return p, nil
}

// letIn makes the interface accept the frames that are answered, and completes the pin.
func (d *Device) letIn(own Options, joined *pin, mac [6]byte, c *fastpath.Config) (err error) {
	i := d.iface
	if d.groups, err = netif.PacketSocket(); errors.Is(err, unix.EPERM) {
		return fmt.Errorf("packet socket for multicast groups: %w: it takes CAP_NET_RAW: %w", nic.ErrRights, err)
	} else if err != nil {
		return fmt.Errorf("packet socket for multicast groups: %w", err)
	}
	if own.Pin == "" {
		return i.Receive(d.groups, mac, c.Addresses)
	}
	now := time.Now().Round(time.Second)
	a := About{
		Pin: own.Pin, Layout: layoutSum(), Device: i.Name, Ifindex: i.Index, Namespace: namespace(), Hook: d.info.Push,
		MAC:      d.info.MAC,
		UDPPorts: c.UDPPorts, STAMP: c.STAMPPorts, Mode: "strict", T2: "program", T3: "program", Since: now,
		Updated: now, PID: os.Getpid(),
		Groups: stations(i, mac, c.Addresses),
	}
	if c.Mode == fastpath.Open {
		a.Mode = "open"
	}
	if d.stamped {
		a.T2 = "card"
	}
	for _, p := range c.Addresses {
		a.Addresses = append(a.Addresses, p.String())
	}
	for _, g := range a.Groups {
		if err := letIn(i.Name, i.Index, g, true); err != nil {
			return err
		}
	}
	if joined == nil {
		if err := savePin(a, d.maps, d.link); err != nil {
			return errors.Join(err, removePin(own.Pin))
		}
		d.pin = own.Pin
		return nil
	}
	if joined.gone {
		if err := os.Remove(pinPath(own.Pin, xdpkit.PinLink)); err != nil {
			return fmt.Errorf("pin %q: %w", own.Pin, err)
		}
		if err := d.link.Pin(pinPath(own.Pin, xdpkit.PinLink)); err != nil {
			return fmt.Errorf("pin %q: %s: %w", own.Pin, xdpkit.PinLink, err)
		}
		d.pin = own.Pin
	} else {
		for _, g := range joined.about.Groups {
			if !slices.Contains(a.Groups, g) {
				if err := letIn(i.Name, i.Index, g, false); err != nil {
					return err
				}
			}
		}
	}
	a.Since = joined.about.Since
	d.since = a.Since
	d.note("joined pin %q of %v: its counts continue", own.Pin, a.Since)
	return writeAbout(joined.notes, a)
}
