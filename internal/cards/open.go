// Package cards opens ports with the matching driver: interfaces of the kernel, and PCI functions of this machine or
// simulated ones. It contains the only switch over drivers, and the table of their settings, for all commands.
package cards

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/bus/verbs"
	"github.com/rebound-nic/rebound/nic/bus/vfiouser"
	"github.com/rebound-nic/rebound/nic/drivers/xdp"
	"github.com/rebound-nic/rebound/nic/kit"
	"github.com/rebound-nic/rebound/nic/kit/netif"
	"github.com/rebound-nic/rebound/nic/kit/xdpkit"
)

// simulated is the prefix of a device that simnic serves.
const simulated = "vfio-user:"

// IsPCIDevice reports whether device is a PCI function ("0000:03:00.0"), also by the name of its RDMA device
// ("rdmap0s6"), or a simulated one ("vfio-user:PATH"), and not a network interface, whose name has no colon.
func IsPCIDevice(device string) bool {
	_, err := pci.ParseAddress(device)
	return err == nil || strings.HasPrefix(device, simulated) || isRDMA(device)
}

// isRDMA reports whether a device is the name of an RDMA device of the kernel, and of no interface.
func isRDMA(device string) bool {
	if _, err := net.InterfaceByName(device); err == nil {
		return false
	}
	f, err := verbs.Find(device)
	return err == nil && f.Name == device
}

// Beside reports whether Open uses c.Device beside the kernel's driver, which keeps it.
func (c *Config) Beside() bool {
	f, err := verbs.Find(c.Device)
	if err != nil {
		return false
	}
	if f.Name == c.Device {
		return true
	}
	name := c.Driver
	if name == "auto" && IsPCIDevice(c.Device) {
		name = DriverFor(f.Function.ID)
	}
	d := byName(name)
	return d != nil && d.beside && c.Observe == nil // a probe reads registers
}

// BesideInterface returns the interface of a device that Open uses beside the kernel's driver, "" if it is not or
// carries no frames.
func (c *Config) BesideInterface() string {
	f, err := verbs.Find(c.Device)
	switch all := f.Function.Interfaces; {
	case err != nil || !c.Beside():
	case slices.Contains(all, c.Device): // perhaps one port of several
		return c.Device
	case len(all) == 1:
		return all[0]
	}
	return ""
}

// BesideKernel returns the driver that can use a device beside the kernel's driver, "" if there is none, and how it
// does, or why it cannot.
func BesideKernel(device string) (name, how string, why error) {
	f, err := verbs.Find(device)
	if err != nil {
		return "", "", err
	}
	d := byName(DriverFor(f.Function.ID))
	if d == nil || !d.beside {
		return "", "", fmt.Errorf("no driver for %v beside %s", f.Function.ID, f.Function.Driver)
	}
	if why := f.Missing(); why != "" {
		return d.name, "", errors.New(why)
	}
	fn, err := verbs.Open(device)
	if err != nil {
		return d.name, "", err
	}
	defer fn.Close()
	if d.available != nil {
		how, err = d.available(fn)
	}
	return d.name, how, err
}

// Modprobe is the command that loads the kernel's modules that a driver beside the kernel's needs.
func Modprobe(driver string) string {
	switch driver {
	case "mlx5", "mlx4":
		return "modprobe -a " + driver + "_ib ib_uverbs"
	}
	return "modprobe -a " + driver + " ib_uverbs"
}

// Open opens c.Device. Without an IOMMU it fails for a PCI function unless UnsafeNoIOMMU is set: the device may then
// write to any memory.
func (c *Config) Open() (nic.Device, error) {
	if err := Fits(c.Driver, c.Device); err != nil {
		return nil, err
	}
	if IsPCIDevice(c.Device) || c.Beside() {
		port, err := c.openFunction()
		if err != nil {
			return nil, err
		}
		if d, ok := port.(nic.Device); ok {
			return d, nil
		}
		return nil, errors.Join(fmt.Errorf("%s: driver %s carries messages, not frames", c.Device, port.Info().Driver),
			port.Close())
	}
	if err := c.checkNoPush(); err != nil {
		return nil, err
	}
	if c.Driver == "auto" {
		return c.openSocket()
	}
	if c.InKernel() {
		return nil, fmt.Errorf("%s: driver %s answers by itself, in the kernel: nothing can be sent or polled through it", c.Device, c.Driver)
	}
	d := byName(c.Driver)
	if d.socket == nil {
		return nil, fmt.Errorf("%s: %w: the kernel has no RDMA device for this interface, which driver %s needs beside the kernel's driver (%s; "+
			"rebound-responder nics lists usable devices)", c.Device, nic.ErrNoDevice, c.Driver, Modprobe(c.Driver))
	}
	return d.socket(c)
}

// checkNoPush returns an error for a value of nic.push that names a way to push, which an interface of the kernel's
// does not have.
func (c *Config) checkNoPush() error {
	if err := kit.CheckPush(c.Push, 0); err != nil {
		return fmt.Errorf("%s: %w: a socket has no card to push to", c.Device, err)
	}
	return nil
}

// InKernel reports whether the driver answers in the kernel: use OpenKernel.
func (c *Config) InKernel() bool { d := byName(c.Driver); return d != nil && d.kernel != nil }

// OpenKernel opens c.Device with a driver that answers in the kernel.
func (c *Config) OpenKernel() (*xdp.Device, error) {
	if err := Fits(c.Driver, c.Device); err != nil {
		return nil, err
	}
	if err := c.checkNoPush(); err != nil {
		return nil, err
	}
	return byName(c.Driver).kernel(c)
}

// Choose returns the driver that "auto" selects for a responder, and the reason; "" if Open decides. core reports
// whether the user named or isolated a core. Without a core the program in the kernel is best; a loop that polls memory
// shared with the card needs no interrupt, but uses a core.
func (c *Config) Choose(core bool) (name, why string) {
	switch {
	case c.Driver != "auto" || IsPCIDevice(c.Device) || c.Shared:
		return "", ""
	case c.Pin != "":
		return "xdp", "nic.pin is set"
	case !core:
		return "xdp", "no core is dedicated to it (cpu.cores, or an isolated one)"
	}
	i, err := netif.Lookup(c.Device)
	if err != nil {
		return "", ""
	}
	defer i.Close()
	if name, _, err := BesideKernel(c.Device); err == nil && !CarriesMessages(name) {
		return name, fmt.Sprintf(
			"a core is dedicated, and the card of interface %s can be used beside the kernel's driver", i.Name)
	} else if name != "" {
		c.Log.Info("the card cannot be used beside the kernel's driver", "device", c.Device, "driver", name, "reason",
			err)
	}
	if f := xdpkit.AskFeatures(i.Index); !f.Has(xdpkit.ZeroCopy) {
		return "xdp", fmt.Sprintf(
			"a core is dedicated, but interface %s shares no memory with AF_XDP sockets (its XDP features: %v)", i.Name,
			f)
	}
	return "afxdp", "a core is dedicated, and the interface shares memory with AF_XDP sockets (zero copy)"
}

// OpenAnswerer opens c.Device for a loop that answers: frames as Open does, or a nic.Messenger.
func (c *Config) OpenAnswerer() (nic.Answerer, error) {
	if !IsPCIDevice(c.Device) && !c.Beside() {
		return c.Open()
	}
	if err := Fits(c.Driver, c.Device); err != nil {
		return nil, err
	}
	return c.openFunction()
}

// OpenMessenger opens c.Device, which must carry messages.
func (c *Config) OpenMessenger() (nic.Messenger, error) {
	port, err := c.OpenAnswerer()
	if err != nil {
		return nil, err
	}
	if m, ok := port.(nic.Messenger); ok {
		return m, nil
	}
	return nil, errors.Join(fmt.Errorf("%s: driver %s carries frames, not messages", c.Device, port.Info().Driver),
		port.Close())
}

// openSocket uses AF_XDP if kernel, interface and rights allow it, and AF_PACKET otherwise or if the interface is
// shared: attaching an XDP program can reset a card's queues, which should not happen unasked on a host in use.
func (c *Config) openSocket() (nic.Device, error) {
	if c.Shared {
		return byName("afpacket").socket(c)
	}
	d, err := byName("afxdp").socket(c)
	if err == nil || errors.Is(err, nic.ErrNoDevice) || errors.Is(err, nic.ErrDown) {
		return d, err
	}
	c.Log.Warn("AF_XDP is not available here: falling back to AF_PACKET", "device", c.Device, "reason", err)
	second, failed := byName("afpacket").socket(c)
	if failed != nil {
		return nil, fmt.Errorf("%w; and by AF_XDP: %w", failed, err)
	}
	return second, nil
}

func (c *Config) openFunction() (nic.Answerer, error) {
	fn, err := c.openPCI()
	if err != nil {
		return nil, err
	}
	if err := NotSupported(fn.ID()); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", c.Device, err), fn.Close())
	}
	name := c.Driver
	if name == "auto" {
		name = DriverFor(fn.ID())
	}
	d := byName(name)
	if d == nil {
		return nil, errors.Join(fmt.Errorf("%s: %w: no driver for %v", c.Device, nic.ErrNoDevice, fn.ID()), fn.Close())
	}
	if err := kit.CheckPush(c.Push, 0, d.pushNames()...); err != nil {
		return nil, errors.Join(fmt.Errorf("%s %s: %w", d.name, c.Device, err), fn.Close())
	}
	if beside := verbs.Of(fn); beside != nil && (!d.beside || c.Observe != nil) {
		return nil, errors.Join(
			fmt.Errorf("%s %s: %w beside the kernel's driver (rebound-responder bind %s, and use that address)", d.name,
				c.Device,
				errors.ErrUnsupported, beside.Function.Address), fn.Close())
	}
	if c.Observe != nil {
		fn = c.Observe(fn)
	}
	if d.messages != nil {
		m, err := d.messages(fn, c)
		if err != nil {
			return nil, err
		}
		return &messenger{Messenger: m, modelled: modelled{fn, c.behindSocket()}}, nil
	}
	dev, err := d.function(fn, c)
	if err != nil {
		return nil, err
	}
	return &card{Device: dev, modelled: modelled{fn, c.behindSocket()}}, nil
}

// behindSocket reports whether the device is a model in another process.
func (c *Config) behindSocket() bool { return strings.HasPrefix(c.Device, simulated) }

func (c *Config) openPCI() (pci.Function, error) {
	if path, ok := strings.CutPrefix(c.Device, simulated); ok {
		return vfiouser.Dial(path)
	}
	if c.Beside() {
		return verbs.Open(c.Device)
	}
	return pci.Open(c.Device, c.UnsafeNoIOMMU)
}

// card and messenger are an open PCI function, of this machine or simulated.
type card struct {
	nic.Device
	modelled
}

type messenger struct {
	nic.Messenger
	modelled
}

// Timestamper returns the timestamps of an open port, nil if its driver has none.
func Timestamper(port nic.Port) nic.Timestamper {
	if c, ok := port.(*card); ok {
		port = c.Device
	}
	t, _ := port.(nic.Timestamper)
	return t
}

type modelled struct {
	fn     pci.Function
	blocks bool
}

// Blocks reports whether access to the registers of an open port waits for a message from a device model. A loop that
// reads registers is not pinned then (polling.Pin).
func Blocks(port nic.Port) bool {
	c, ok := port.(interface{ waits() bool })
	return ok && c.waits()
}

func (c *modelled) waits() bool { return c.blocks }

// Transactions returns the PCIe transactions that a device model has counted since it was made, by kind; nil for any
// other port.
func Transactions(port nic.Port) (map[string]int64, error) {
	if c, ok := port.(interface {
		transactions() (map[string]int64, error)
	}); ok {
		return c.transactions()
	}
	return nil, nil
}

func (c *modelled) transactions() (map[string]int64, error) {
	if m, ok := c.fn.(interface {
		Transactions() (map[string]int64, error)
	}); ok {
		return m.Transactions()
	}
	return nil, nil
}
