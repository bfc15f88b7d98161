package cards

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rebound-nic/rebound/internal/host/setting"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/bus/verbs"
	"github.com/rebound-nic/rebound/nic/drivers/afpacket"
	"github.com/rebound-nic/rebound/nic/drivers/afxdp"
	"github.com/rebound-nic/rebound/nic/drivers/efa"
	"github.com/rebound-nic/rebound/nic/drivers/ena"
	"github.com/rebound-nic/rebound/nic/drivers/ixgbe"
	"github.com/rebound-nic/rebound/nic/drivers/mlx4"
	"github.com/rebound-nic/rebound/nic/drivers/mlx5"
	"github.com/rebound-nic/rebound/nic/drivers/virtio"
	"github.com/rebound-nic/rebound/nic/drivers/xdp"
)

// driver describes a driver: on the kernel, through a socket, or on the device. Its users' settings are listed with it.
type driver struct {
	name, doc string
	has       []string         // settings that only some drivers have
	lacks     []string         // settings that all others have
	push      []setting.Choice // its own values of nic.push
	socket    func(*Config) (nic.Device, error)
	kernel    func(*Config) (*xdp.Device, error)              // answers without a loop of ours
	function  func(pci.Function, *Config) (nic.Device, error) // owns the function, and closes it on error
	// likewise, of a device that carries messages, not frames
	messages func(pci.Function, *Config) (nic.Messenger, error)
	// either also takes a verbs.Function, and leaves the device to the kernel's driver
	beside bool
	// how a device is used so, or why it cannot be; nil if that is not known
	available func(*verbs.Function) (how string, err error)
	vendor    uint16 // of the PCI functions
	// whether function or messages drives a device of that ID, and its name
	supports func(pci.ID) (name string, ok bool)
	config   bool   // restores what vfio-pci does not let it write, through sysfs
	page     string // in docs: the first hour on a real card
}

// drivers are all there are; a driver is added by its row here.
var drivers = []driver{
	{
		name: "afpacket",
		has:  []string{"nic.down_limit"},
		doc: "any interface of the kernel, through a packet socket. The kernel also receives every frame, so the addresses " +
			"must not be the kernel's.",
		socket: func(c *Config) (nic.Device, error) { return opened(afpacket.Open(c.Options)) },
	},
	{
		name: "afxdp",
		has:  []string{"nic.queue", "nic.generic_xdp", "nic.down_limit"},
		doc: "an interface of the kernel, through AF_XDP. Only answered traffic is intercepted; everything else reaches the " +
			"kernel.",
		socket: func(c *Config) (nic.Device, error) { return opened(afxdp.Open(c.Options, c.XDP)) },
	},
	{
		name: "xdp",
		has:  []string{"nic.generic_xdp", "nic.pin", "nic.down_limit"},
		lacks: []string{"nic.mtu", "respond.stamp_mode", "respond.stamp_sessions", "respond.stamp_idle",
			"respond.stamp_auth_ports", "respond.stamp_key",
			"respond.stamp_tlvs", "respond.stamp_timing", "respond.stamp_location", "respond.stamp_dscp", "respond.stamp_clock_error"},
		doc: "an interface of the kernel, with an XDP program that answers in the kernel: no core polls, and [cpu] has no " +
			"effect. Only answered or refused traffic is intercepted.",
		kernel: func(c *Config) (*xdp.Device, error) {
			return xdp.Open(c.Options, xdp.Options{Generic: c.XDP.Generic, Pin: c.Pin})
		},
	},
	{
		name: "ixgbe",
		doc:  "an Intel 82599 or X540, bound by `rebound-responder bind`, or a simulated one.",
		has:  []string{"debug.skip_eeprom_check", "debug.link_mode", "debug.no_steering"},
		function: func(fn pci.Function, c *Config) (nic.Device, error) {
			return opened(ixgbe.OpenWith(fn, c.Options, ixgbe.Options{SkipEEPROM: c.Debug.skipEEPROM,
				LinkMode: c.Debug.linkMode, NoSteering: c.Debug.noSteering}))
		},
		vendor: 0x8086, supports: ixgbe.Supports, page: "82599.md",
	},
	{
		name: "mlx5",
		has:  []string{"nic.push", "nic.push_max", "debug.no_steering"},
		doc: "a ConnectX-5 or later or BlueField by its interface, beside the kernel's driver (modules mlx5_ib, ib_uverbs; CAP_NET_RAW), or a " +
			"ConnectX-4 or later, bound the same way.",
		push: []setting.Choice{
			{Name: "full", Doc: "mlx5, mlx4: the complete frame in the work queue entry, through BlueFlame"},
			{Name: "header", Doc: "mlx5: the headers in the work queue entry, and a pointer to the frame"},
		},
		function: func(fn pci.Function, c *Config) (nic.Device, error) {
			return opened(mlx5.Open(fn, c.Options, mlx5.Options{Push: c.Push, MaxInline: c.MaxInline,
				NoSteering: c.Debug.noSteering,
				Dedicated:  c.Dedicated}))
		},
		beside: true, available: mlx5.Available,
		vendor: 0x15b3, supports: mlx5.Supports, page: "mlx5.md",
	},
	{
		name: "mlx4",
		has:  []string{"nic.push", "nic.push_max", "nic.port", "debug.no_steering"},
		doc: "a ConnectX-3 by its interface, beside the kernel's driver (mlx4_core with log_num_mgm_entry_size=-1, mlx4_ib, ib_uverbs; CAP_NET_RAW), or " +
			"bound the same way. The port can be Ethernet or InfiniBand (IPoIB; bound only).",
		push: []setting.Choice{{Name: "full"}}, // as mlx5
		function: func(fn pci.Function, c *Config) (nic.Device, error) {
			own := mlx4.Options{Push: c.Push, MaxInline: c.MaxInline, Port: c.Port, Dedicated: c.Dedicated}
			if c.Debug.noSteering {
				own.Steering = "a0"
			}
			return opened(mlx4.Open(fn, c.Options, own))
		},
		beside: true, available: mlx4.Available,
		vendor: 0x15b3, supports: mlx4.Supports, page: "mlx4.md", config: true,
	},
	{
		name: "ena",
		has: []string{"nic.push", "nic.push_max", "debug.host_version", "debug.os_type", "debug.vector",
			"debug.omit_meta"},
		doc:  "an Amazon ENA, bound the same way.",
		push: []setting.Choice{{Name: "llq", Doc: "ena: low-latency queues, or an error if the device has none"}},
		function: func(fn pci.Function, c *Config) (nic.Device, error) {
			return opened(ena.Open(fn, c.Options, ena.Options{Push: c.Push, MaxInline: c.MaxInline,
				Debug: c.Debug.ena}))
		},
		vendor: 0x1d0f, supports: ena.Supports, page: "ena.md",
	},
	{
		name: "efa",
		has:  []string{"nic.push", "nic.push_max", "nic.qkey", "respond.handover", "respond.stamp_messages"},
		lacks: []string{"nic.mac", "respond.addresses", "respond.udp_ports", "respond.vlans", "respond.stamp_ports",
			"respond.stamp_auth_ports",
			"guard.checksum_bytes", "guard.loop"},
		doc: "an Amazon EFA, beside the kernel's efa driver (module ib_uverbs; no privileges), or bound the same way. It carries " +
			"messages instead of frames: respond.addresses must be empty, and clients connect through respond.handover.",
		messages: func(fn pci.Function, c *Config) (nic.Messenger, error) {
			d, err := efa.Open(fn, c.Options, efa.Options{Push: c.Push, MaxInline: c.MaxInline, QKey: c.QKey,
				Services: c.Services})
			if err != nil {
				return nil, err
			}
			return d, nil
		},
		beside: true,
		vendor: 0x1d0f, supports: efa.Supports, page: "efa.md",
	},
	{
		name:     "virtio",
		doc:      "the virtio network device of a virtual machine, bound the same way.",
		function: func(fn pci.Function, c *Config) (nic.Device, error) { return opened(virtio.Open(fn, c.Options)) },
		vendor:   0x1af4, supports: virtio.Supports, page: "virtio.md",
	},
}

// opened keeps a nil pointer from becoming an interface that is not nil.
func opened[D nic.Device](d D, err error) (nic.Device, error) {
	if err != nil {
		return nil, err
	}
	return d, nil
}

// Drivers are the values of nic.driver.
func Drivers() []string {
	names := []string{"auto"}
	for _, d := range drivers {
		names = append(names, d.name)
	}
	return names
}

// Senders are the values of nic.driver with which a program can send.
func Senders() []string {
	return slices.DeleteFunc(Drivers(), func(name string) bool {
		d := byName(name)
		return d != nil && d.kernel != nil
	})
}

// For returns settings restricted to the drivers that have them: those listed in a setting's row, drivers on the device
// only, or drivers with a polling loop, which excludes drivers that answer in the kernel. The setting's description
// then starts with the drivers.
func For(list []setting.Setting) []setting.Setting {
	list = slices.Clone(list)
	for i := range list {
		s := &list[i]
		var has, lacks []string
		for j := range drivers {
			if d := &drivers[j]; d.hasSetting(s.Key) {
				has = append(has, d.name)
			} else {
				lacks = append(lacks, d.name)
			}
		}
		if len(lacks) == 0 || len(has) == 0 {
			continue
		}
		s.Drivers = has
		whose := strings.Join(has, ", ")
		if onBus := namesOf((*driver).onBus); slices.Equal(has, onBus) {
			whose = "drivers on the device"
		} else if len(has) > len(lacks) {
			whose = "not " + strings.Join(lacks, ", ")
		}
		s.Doc = "[" + whose + "] " + s.Doc
	}
	return list
}

// namesOf returns the names of the drivers of a kind.
func namesOf(is func(*driver) bool) (names []string) {
	for i := range drivers {
		if is(&drivers[i]) {
			names = append(names, drivers[i].name)
		}
	}
	return names
}

func (d *driver) hasSetting(key string) bool {
	section, _, _ := strings.Cut(key, ".")
	switch {
	case key == "nic.unsafe_no_iommu":
		return d.onBus()
	case key == "nic.ring_size", section == "cpu":
		return d.kernel == nil
	case slices.Contains(d.lacks, key):
		return false
	}
	return slices.Contains(d.has, key) || !slices.ContainsFunc(drivers,
		func(d driver) bool { return slices.Contains(d.has, key) })
}

func byName(name string) *driver {
	i := slices.IndexFunc(drivers, func(d driver) bool { return d.name == name })
	if i < 0 {
		return nil
	}
	return &drivers[i]
}

// onBus reports whether the driver drives PCI functions.
func (d *driver) onBus() bool { return d.function != nil || d.messages != nil }

// OnBus reports whether a driver drives PCI functions.
func OnBus(name string) bool { d := byName(name); return d != nil && d.onBus() }

// SharesDevices reports whether a driver can use a device that the kernel's driver keeps.
func SharesDevices(name string) bool { d := byName(name); return d != nil && d.beside }

// WritesConfig reports whether a driver writes a function's configuration space through sysfs.
func WritesConfig(name string) bool { d := byName(name); return d != nil && d.config }

// CarriesMessages reports whether a driver's device carries messages, not frames.
func CarriesMessages(name string) bool { d := byName(name); return d != nil && d.messages != nil }

// pushNames are the values of nic.push that name a way of this driver.
func (d *driver) pushNames() (names []string) {
	for _, m := range d.push {
		names = append(names, m.Name)
	}
	return names
}

// DriverFor returns the driver for a PCI function, "" if there is none.
func DriverFor(id pci.ID) string {
	for _, d := range drivers {
		if d.supports == nil {
			continue
		}
		if _, ok := d.supports(id); ok {
			return d.name
		}
	}
	return ""
}

// Model returns the name of a PCI function that a driver here supports, "" for any other.
func Model(id pci.ID) string {
	if d := byName(DriverFor(id)); d != nil {
		name, _ := d.supports(id)
		return name
	}
	return ""
}

// Fits returns an error if a driver does not support that kind of device.
func Fits(name, device string) error {
	switch d := byName(name); {
	case d == nil: // auto
	case !d.onBus() && IsPCIDevice(device):
		return fmt.Errorf("%s drives a network interface, and %s is a PCI function", name, device)
	case d.onBus() && !IsPCIDevice(device) && !(d.beside && d.function != nil):
		return fmt.Errorf("%s drives a PCI function, and %s is a network interface", name, device)
	}
	return nil
}
