package cards

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/rebound-nic/rebound/internal/host/setting"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/drivers/afxdp"
	"github.com/rebound-nic/rebound/nic/drivers/ena"
	"github.com/rebound-nic/rebound/nic/drivers/xdp"
)

// Config selects the device, the driver and their settings. The settings tables fill it in; the commands add queues,
// what to answer or to wait for, and the log.
type Config struct {
	nic.Options
	Driver        string // "auto" or a driver's name
	Push          string // how frames reach a card that can take them by stores: "auto", "off" or a driver's own mode
	MaxInline     int    // the longest frame in bytes that is pushed whole; 0 for the card's maximum
	Port          int    // of a card with several ports on one PCI function; 0 for the first
	XDP           afxdp.Options
	Pin           string // xdp: the name under which its program stays
	UnsafeNoIOMMU bool   // PCI functions: open without an IOMMU too
	// "auto": the host uses the interface, so no XDP program should be attached and detached
	Shared  bool
	QKey    uint32                          // efa: of all queue pairs; 0 for the driver's own
	Observe func(pci.Function) pci.Function // wraps the function that the driver gets; nil for the function itself
	// mlx5, mlx4 beside the kernel's driver: addresses that exist for the responder alone
	Dedicated []netip.Addr
	Services  []nic.Service // efa: the queue pairs of each queue; nil for the driver's own
	Debug     Debug
}

// Debug is the section [debug] of config.toml.
type Debug struct {
	ena        ena.Debug
	skipEEPROM bool
	linkMode   string
	noSteering bool
}

// DebugSettings is the section [debug] of config.toml.
func (c *Config) DebugSettings() []setting.Setting {
	d := &c.Debug
	number := func(most uint64) func(string) (uint32, error) {
		return func(text string) (uint32, error) {
			n, err := strconv.ParseUint(text, 0, 32)
			if text == "auto" {
				return 0, nil
			} else if err != nil || n == 0 || n > most {
				return 0, fmt.Errorf("%q is neither auto nor a number from 1 to %d", text, most)
			}
			return uint32(n), nil
		}
	}
	flag := func(key string, to *bool, doc string) setting.Setting { return setting.Bool(key, to, false, doc) }
	return For([]setting.Setting{
		setting.Parsed("debug.host_version", &d.ena.HostVersion, "auto", number(0xFFFFFF),
			"The major version of the driver in the host information. Some firmware accepts only 2, which is the default."),
		setting.Parsed("debug.os_type", &d.ena.OSType, "auto", number(255),
			"The operating system in the host information: 1 Linux, which is auto, 2 Windows, 3 DPDK, "+
				"4 FreeBSD, 5 iPXE."),
		flag("debug.vector", &d.ena.Vector, "Create completion queues with interrupt vector 0 instead of all ones."),
		flag("debug.omit_meta", &d.ena.OmitMeta,
			"Push frames without a meta descriptor, unless the device announces that it needs one. Newer devices need it unannounced."),
		flag("debug.skip_eeprom_check", &d.skipEEPROM,
			"Use a card whose EEPROM has a wrong checksum. Its address and link mode may be wrong."),
		setting.Parsed("debug.link_mode", &d.linkMode, "auto", func(text string) (string, error) {
			if text != "auto" && (len(text) != 1 || text < "0" || text > "7") {
				return "", fmt.Errorf("%q is neither auto nor a Link Mode Select (\"0\" to \"7\")", text)
			}
			return text, nil
		}, "The 82599's Link Mode Select (AUTOC.LMS): \"0\" 1 Gb/s, \"1\" 10 Gb/s on four lanes, \"3\" SFI, \"4\" KX/KX4/KR; auto is SFI on SFP+ cards, elsewhere the EEPROM's."),
		flag("debug.no_steering", &d.noSteering,
			"Let every frame in, to the first queue, without filters by address and without RSS. mlx4: the port's table of "+
				"addresses steers frames instead of rules."),
	})
}

// Settings is the section [nic] of config.toml.
func (c *Config) Settings() []setting.Setting {
	names := []setting.Choice{}
	push := []setting.Choice{
		{Name: "auto", Doc: "the best method of the card, tested at start and shown in the log and in " +
			"reports"}}
	for _, d := range drivers {
		names = append(names, setting.Choice{Name: d.name, Doc: d.doc})
		for _, p := range d.push {
			if p.Doc != "" { // described with another driver that has it
				push = append(push, p)
			}
		}
	}
	names = append(names, setting.Choice{Name: "auto",
		Doc: "for a PCI function, the driver of its ID. For an interface, xdp. If a core is dedicated to it (cpu.cores, or an " +
			"isolated core): mlx5 if the card can be used beside the kernel's driver, afxdp if the interface's driver supports zero copy. If that is not available, it falls " +
			"back to afxdp, then afpacket. The log shows the choice and the reason."})
	push = append(push, setting.Choice{Name: "off",
		Doc: "descriptors and frames stay in host memory, and the card fetches them"})

	return For([]setting.Setting{
		setting.OneOf("nic.driver", &c.Driver, "auto", names, "The driver:"),
		setting.String("nic.device", &c.Device, "", checkName,
			"An interface name (\"eth1\"), a PCI address (\"0000:03:00.0\"), an RDMA device (efa: \"rdmap0s6\") or a simulated device "+
				"(\"vfio-user:PATH\"). `rebound-responder nics` lists the devices."),
		setting.Range("nic.queue", &c.XDP.Queue, 0, math.MaxInt, 0, "",
			"The interface's first queue to use. With several cores, the following ones are used too."),
		setting.Int("nic.ring_size", &c.RingSize, 0, func(n int) error {
			if n != 0 && (n < 32 || n > 1<<16 || n&(n-1) != 0) {
				return fmt.Errorf("%d is not a power of two from 32 to 65536; 0 is the driver's default", n)
			}
			return nil
		}, "Descriptors in each ring, a power of two from 32 to 65536; 0 is the driver's default."),
		setting.Range("nic.mtu", &c.MTU, 68, 65535, 0, "the interface's own MTU, or 1500 for a PCI function",
			"The largest IP packet in bytes. Jumbo frames (9000) need it on every device of the network. Socket drivers: the interface must have this "+
				"MTU (`ip link set eth1 mtu 9000`)."),
		setting.OneOf("nic.push", &c.Push, "auto", push, "How replies are pushed to the card:"),
		setting.Range("nic.push_max", &c.MaxInline, 1, 1024, 0, "the card's maximum",
			"The longest frame in bytes that is pushed completely. ena: up to 96 uses 128-byte entries; efa: up to 32 uses 64-byte "+
				"entries.").In("nic.push!=off"),
		// -port is UDP's
		setting.Range("nic.port", &c.Port, 1, 2, 0, "the first", "The port of the card.").Flag("card-port", ""),
		setting.Parsed("nic.mac", &c.MAC, "", parseStation,
			"The MAC address to answer from; empty is the device's own. Many virtual networks deliver only to the device's own. "+
				"afpacket: with a different address the kernel drops its copy of each request early. On veth this removed two thirds "+
				"of the round trips above 10 microseconds."),
		setting.Bool("nic.generic_xdp", &c.XDP.Generic, false,
			"Use the kernel's generic XDP hook instead of the driver's. With afxdp on veth this shortens the round trip by an "+
				"eighth. There is no zero copy, and frames whose VLAN tag was stripped (rx-vlan-offload) are answered without the tag."),
		setting.String("nic.pin", &c.Pin, "", xdp.CheckPin,
			"A name under which the program and its counters stay in the kernel when the responder exits or is killed; it "+
				"continues to answer. A responder with the same name replaces the program atomically. "+
				"`rebound-responder status` shows what is pinned, `rebound-responder unpin NAME` removes it. Empty: the program is "+
				"removed with the process."),
		setting.Parsed("nic.qkey", &c.QKey, "0x11111111", func(text string) (uint32, error) {
			k, err := strconv.ParseUint(text, 0, 32)
			if err != nil || k == 0 {
				return 0, fmt.Errorf("%q is not a Q_Key of 32 bits above 0, such as \"0x11111111\"", text)
			}
			return uint32(k), nil
		}, "The Q_Key of all queue pairs. The device drops messages with a different one. ibv_ud_pingpong and perftest use "+
			"0x11111111."),
		setting.Bool("nic.unsafe_no_iommu", &c.UnsafeNoIOMMU, false,
			"Use PCI functions without an IOMMU: the device can then write to any memory, and so can anyone who exploits it."),
	})
}

// Removed are the settings of [nic] that earlier versions had, and what replaces each.
var Removed = map[string]string{"nic.take_over": "for a restart without loss use nic.driver = \"xdp\" with nic.pin"}

// checkName returns an error if device cannot be a device name. Empty is allowed.
func checkName(device string) error {
	switch {
	case device == simulated:
		return errors.New(simulated + " needs the path of a socket")
	case device == "" || IsPCIDevice(device):
	case len(device) > 15 || strings.ContainsAny(device, "/: \t\r\n\x00") || device == "." || device == "..":
		return fmt.Errorf("%q is not an interface name, PCI address (0000:03:00.0) or vfio-user:PATH", device)
	}
	return nil
}

// parseStation reads the MAC address of one station; empty is the zero address.
func parseStation(text string) (mac [6]byte, err error) {
	if text == "" {
		return mac, nil
	}
	m, err := net.ParseMAC(text)
	if err != nil || len(m) != len(mac) || m[0]&1 != 0 || [6]byte(m) == mac {
		return mac, fmt.Errorf("%q is not the MAC address of one station, such as \"02:00:5e:10:00:01\"", text)
	}
	return [6]byte(m), nil
}
