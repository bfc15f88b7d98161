// Package beside has what drivers of Ethernet cards beside the kernel's driver share: the interface that the kernel
// keeps, the configurations that rules of the card cannot implement, and the changes of the interface that end or
// restart a device.
package beside

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/verbs"
	"github.com/rebound-nic/rebound/nic/kit"
	"github.com/rebound-nic/rebound/nic/kit/netif"
)

// Interface is the kernel's view of a card's port.
type Interface struct {
	nic.Link
	MAC    [6]byte
	MTU    int
	Master string // the bond or bridge that it belongs to
	Number int    // of the port on the card, from 1
}

// Read reads it. An interface that is down has no link, which is not an error. Tests replace it.
var Read = func(name string) (f Interface, err error) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return f, fmt.Errorf("interface %s: %w: %w", name, nic.ErrGone, err)
	}
	if copy(f.MAC[:], i.HardwareAddr) != len(i.HardwareAddr) {
		return f, fmt.Errorf("interface %s: %w: its address %v is not Ethernet's", name, errors.ErrUnsupported,
			i.HardwareAddr)
	}
	f.MTU = i.MTU
	if master, err := os.Readlink("/sys/class/net/" + name + "/master"); err == nil {
		f.Master = filepath.Base(master)
	}
	if b, err := os.ReadFile("/sys/class/net/" + name + "/dev_port"); err == nil {
		fmt.Sscan(string(b), &f.Number)
	}
	f.Number++
	if up, err := netif.Lookup(name); err == nil {
		defer up.Close()
		f.Link, _ = up.Link()
	}
	return f, nil
}

// Switchdev reports whether a card at a PCI address is a switch whose ports are interfaces. Tests replace it.
// (phys_switch_id does not show it: Linux also assigns one to ports of cards in legacy mode.)
var Switchdev = netif.Switchdev

// OutOfBuffer returns how many frames of a port of an RDMA device found no buffer in any of its queues, modulo 2^32.
// Tests replace it.
var OutOfBuffer = func(fn *verbs.Function, port int) (n uint32) {
	fmt.Sscan(fn.Text(fmt.Sprintf("ports/%d/hw_counters/out_of_buffer", port)), &n)
	return n
}

// Port is a port of a card that the kernel keeps.
type Port struct {
	Fn     *verbs.Function
	Limits kit.Limits
	Ports  bool // the function has an interface for each port of the card

	Name   string // of the interface
	Number int    // on the card, from 1
	Events atomic.Uint64

	checks int
}

// Choose finds the interface of the card's function, and rejects what rules for one port cannot implement.
func (p *Port) Choose(c *kit.Card) error {
	o := &c.Options
	all := p.Fn.Function.Interfaces
	switch {
	case o.MAC != [6]byte{}:
		return c.Errorf("nic.mac is for a function of our own: the interface keeps its address")
	case o.Match == nil && o.Steer == nil:
		return c.Errorf("%w: beside the kernel's driver this driver receives chosen frames only, not all (use afpacket, or rebound-responder bind %s)", errors.ErrUnsupported,
			p.Fn.Function.Address)
	case o.Match != nil && o.Steer != nil:
		return c.Errorf("both Match and Steer are set: want one of them")
	case o.Steer != nil && o.Steer.Neighbours:
		return c.Errorf("%w: beside the kernel's driver ARP and neighbour discovery stay with the kernel: %v has to be an address of the interface (ip address add)",
			errors.ErrUnsupported, o.Steer.Local)
	case p.Ports && slices.Contains(all, p.Fn.Name()):
		p.Name = p.Fn.Name()
	case len(all) == 1:
		p.Name = all[0]
	case p.Ports:
		return c.Errorf("%w: %s has the interfaces %v: name one of them", errors.ErrUnsupported, p.Fn.Found.Name, all)
	default:
		return c.Errorf("%w: %s has the interfaces %v, expected one (RoCE LAG and devlink ports are not supported: use xdp)", errors.ErrUnsupported, p.Fn.Found.Name, all)
	}
	switch f, err := Read(p.Name); {
	case err != nil:
		return c.Errorf("%w", err)
	case f.Master != "":
		return c.Errorf("%w: interface %s belongs to %s: use driver xdp on it", errors.ErrUnsupported, p.Name, f.Master)
	case Switchdev(p.Fn.Function.Address):
		return c.Errorf("%w: interface %s is a port of the card's switch (switchdev mode): use driver xdp",
			errors.ErrUnsupported, p.Name)
	default:
		p.Number = f.Number
	}
	return nil
}

// Learn sets the card's address and MTU to the interface's. A restarted device keeps its address, because replies and
// rules have it.
func (p *Port) Learn(c *kit.Card) error {
	f, err := Read(p.Name)
	if err != nil {
		return c.Errorf("%w", err)
	}
	if mtu := c.Options.MTU; mtu != p.Limits.MTU && mtu != f.MTU {
		return c.Errorf("MTU %d: interface %s has %d (ip link set %s mtu %d)", mtu, p.Name, f.MTU, p.Name, mtu)
	}
	c.MTU = min(f.MTU, p.Limits.MaxMTU)
	if c.MAC != [6]byte{} && f.MAC != c.MAC {
		return c.Errorf("%w: interface %s has another address now, %v: start again", nic.ErrDown, p.Name,
			net.HardwareAddr(f.MAC[:]))
	}
	c.MAC = f.MAC
	return nil
}

// Link is the interface's.
func (p *Port) Link() (nic.Link, error) {
	f, err := Read(p.Name)
	return f.Link, err
}

const readEvery = 10 // number of checks from one reading of the interface to the next

// Check reads the kernel's events, and checks whether the interface still matches the rules.
func (p *Port) Check(c *kit.Card) *kit.Symptom {
	ctx := p.Fn.Context()
	for {
		e, ok := ctx.Event()
		if !ok {
			break
		}
		if e.EventType == verbs.EventDeviceFatal {
			return &kit.Symptom{Reason: "device_fatal", Why: "the kernel removed or reset the device"}
		}
		p.Events.Add(1)
	}
	if p.checks++; p.checks%readEvery != 0 {
		return nil
	}
	switch f, err := Read(p.Name); {
	case err != nil:
		return &kit.Symptom{Reason: "interface_gone", Why: err.Error()}
	case f.MAC != c.MAC:
		return &kit.Symptom{Reason: "address_changed", Why: fmt.Sprintf("interface %s has another address now: %v",
			p.Name, net.HardwareAddr(f.MAC[:]))}
	case min(f.MTU, p.Limits.MaxMTU) != c.MTU:
		return &kit.Symptom{Reason: "mtu_changed", Why: fmt.Sprintf("interface %s has another MTU now: %d", p.Name,
			f.MTU)}
	}
	return nil
}
