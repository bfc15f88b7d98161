package cards

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/rebound-nic/rebound/internal/host/setting"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/ixgbesim"
	"github.com/rebound-nic/rebound/sim/vfioserver"
	"github.com/rebound-nic/rebound/sim/virtiosim"
)

// A push setting for a socket driver is an error, because it would have no effect.
func TestSocketDoesNotPush(t *testing.T) {
	for _, driver := range []string{"auto", "afpacket", "afxdp"} {
		var c Config
		table := setting.New(c.Settings()...)
		for _, s := range []string{"nic.device=lo", "nic.push=llq", "nic.driver=" + driver} {
			must.OK(t, table.Set(s))
		}
		must.OK(t, table.Apply())
		c.Log = slog.New(slog.DiscardHandler)
		check.Fails(t, driver+" with nic.push = llq", check.Err(c.Open()), nil,
			`push mode "llq": want one of auto, off: a socket`)
	}
}

// Timestamps are those of the driver, of a PCI function, too.
func TestTimestamper(t *testing.T) {
	for _, c := range []struct {
		model sim.Model
		has   bool
	}{
		{ixgbesim.New(ixgbesim.Options{MAC: [6]byte{2}}), true},
		{virtiosim.New(virtiosim.Options{MAC: [6]byte{2}}), false},
	} {
		p := must.Get(sim.New(c.model, sim.Options{}))(t)
		path := filepath.Join(t.TempDir(), "nic")
		server := must.Get(vfioserver.Listen(path, p, slog.New(slog.DiscardHandler)))(t)
		p.StartRemote()
		t.Cleanup(func() { server.Close(); p.Close() })
		config := Config{Options: nic.Options{Device: simulated + path}, Driver: "auto"}
		d := must.Get(config.Open())(t)
		_, ptp := Timestamper(d).(nic.PTPTimestamper)
		check.Equal(t, ptp, c.has, d.Info().Driver+" has timestamps of PTP messages: %v")
		must.Close(t, d)
	}
}

// A driver that is not for the device is refused before anything is opened.
func TestFits(t *testing.T) {
	for _, c := range []struct {
		driver, device, want string
	}{
		{"auto", "eth1", ""},
		{"auto", "0000:03:00.0", ""},
		{"afxdp", "eth1", ""},
		{"mlx5", "vfio-user:/run/x", ""},
		{"afxdp", "0000:03:00.0", "afxdp drives a network interface, and 0000:03:00.0 is a PCI function"},
		{"ena", "eth1", "ena drives a PCI function, and eth1 is a network interface"},
	} {
		got := ""
		if err := Fits(c.driver, c.device); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s, %s: %q, want %q", c.driver, c.device, got, c.want)
		}
	}
}

// A function of a known family that no driver supports is refused by name, with an alternative, and no function is both
// supported and refused.
func TestNotSupported(t *testing.T) {
	for id, want := range map[pci.ID]string{
		{Vendor: 0x8086, Device: 0x1563}: "X550-T2 (8086:1563) is not supported",
		{Vendor: 0x8086, Device: 0x10ed}: "82599 virtual function",
		{Vendor: 0x15b3, Device: 0x1023}: "ConnectX-8", {Vendor: 0x15b3, Device: 0x1004}: "ConnectX-3 virtual function",
		{Vendor: 0x15b3, Device: 0x1011}: "has InfiniBand only",
		{Vendor: 0x8086, Device: 0x151c}: "no driver for the PHY",
	} {
		check.Fails(t, want, NotSupported(id), nic.ErrNoDevice, want, "nic.driver auto, xdp or afxdp")
	}
	for _, device := range []uint16{0x10f9, 0x1514, 0x1517, 0x152a} {
		check.Equal(t, DriverFor(pci.ID{Vendor: 0x8086, Device: device}), "ixgbe",
			fmt.Sprintf("8086:%04x: driver ", device)+"%q")
	}
	check.Equal(t, DriverFor(pci.ID{Vendor: 0x1d0f, Device: 0x0051}), "ena", "1d0f:0051: driver %q")
	for _, r := range refused {
		for device := range r.devices {
			if d := DriverFor(pci.ID{Vendor: r.vendor, Device: device}); d != "" {
				t.Errorf("%04x:%04x is refused, and driver %s supports it", r.vendor, device, d)
			}
		}
	}
}

// A driver of cards is refused on an interface without one: it has no socket to use instead.
func TestInterfaceWithoutCard(t *testing.T) {
	c := Config{Driver: "mlx5"}
	c.Device, c.Log = "lo", slog.New(slog.DiscardHandler)
	check.Fails(t, "Open", check.Err(c.Open()), nic.ErrNoDevice, "the kernel has no RDMA device for this interface")
	check.Fails(t, "OpenAnswerer", check.Err(c.OpenAnswerer()), nic.ErrNoDevice,
		"the kernel has no RDMA device for this interface")
}
