package cards

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/internal/host/setting"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/golden"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/efasim"
	"github.com/rebound-nic/rebound/sim/ixgbesim"
	"github.com/rebound-nic/rebound/sim/simtest"
	"github.com/rebound-nic/rebound/sim/toysim"
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

// What each driver needs and can do.
func TestFactsOfDrivers(t *testing.T) {
	var b strings.Builder
	for _, name := range append(Drivers(), "none") {
		fmt.Fprintf(&b, "%s: on the bus %t, beside the kernel's driver %t, writes configuration %t, messages %t\n", name,
			OnBus(name), SharesDevices(name), WritesConfig(name), CarriesMessages(name))
	}
	golden.Equal(t, "testdata/facts.txt", b.String())
}

// An open device has what its driver has: timestamps, transactions of a model, and frames or messages, not both.
func TestOpened(t *testing.T) {
	device := func(m sim.Model) string {
		_, _, name := simtest.Serve(t, m)
		return name
	}
	frames := device(ixgbesim.New(ixgbesim.Options{MAC: [6]byte{2}}))
	messages := device(efasim.New(efasim.Options{MAC: [6]byte{2}}))
	without := device(virtiosim.New(virtiosim.Options{MAC: [6]byte{2}}))
	config := func(device, driver string) *Config {
		return &Config{Options: nic.Options{Device: device, Log: slog.New(slog.DiscardHandler)}, Driver: driver}
	}
	for name, ptp := range map[string]bool{frames: true, without: false} {
		d := must.Get(config(name, "auto").Open())(t)
		_, has := Timestamper(d).(nic.PTPTimestamper)
		check.Equal(t, has, ptp, d.Info().Driver+" has timestamps of PTP messages: %v")
		check.Equal(t, Blocks(d), true, "an access waits for the model: %v")
		if n, err := Transactions(d); err != nil || n["mmio write"] == 0 {
			t.Errorf("transactions %v, %v", n, err)
		}
		must.Close(t, d)
	}
	m := must.Get(config(messages, "auto").OpenMessenger())(t)
	check.Equal(t, m.Info().Driver, "efa", "driver %s")
	must.Close(t, m)
	check.Equal(t, Blocks(nil), false, "an access waits: %v")
	if n, err := Transactions(nil); n != nil || err != nil || Timestamper(nil) != nil {
		t.Errorf("transactions %v, %v, or timestamps, of no device", n, err)
	}
	pushed, observed := config(frames, "auto"), config(frames, "virtio")
	pushed.Push = "llq"
	observed.Observe = func(fn pci.Function) pci.Function { t.Log("observed"); return fn }
	for want, open := range map[string]func() error{
		"driver efa carries messages, not frames":   func() error { return check.Err(config(messages, "auto").Open()) },
		"driver ixgbe carries frames, not messages": func() error { return check.Err(config(frames, "auto").OpenMessenger()) },
		`push mode "llq": want one of auto, off`:    func() error { return check.Err(pushed.Open()) },
		"is no virtio network device":               func() error { return check.Err(observed.OpenAnswerer()) },
		"no driver for ":                            func() error { return check.Err(config(device(toysim.New([6]byte{2})), "auto").OpenAnswerer()) },
		"xdp drives a network interface":            func() error { return check.Err(config(frames, "xdp").OpenAnswerer()) },
		"ixgbe drives a PCI function":               func() error { return check.Err(config("lo", "ixgbe").OpenKernel()) },
		"xdp answers by itself":                     func() error { return check.Err(config("lo", "xdp").OpenMessenger()) },
	} {
		check.Fails(t, want, open(), nil, want)
	}
	for _, name := range []string{frames, messages} { // closed after each failure: the model has one client
		must.Close(t, must.Get(config(name, "auto").OpenAnswerer())(t))
	}
}

// What auto selects for a responder, and why.
func TestChoose(t *testing.T) {
	var got []string
	for _, c := range []struct {
		device, driver, pin string
		shared, core        bool
	}{{device: "lo", driver: "afxdp"}, {device: "0000:03:00.0"}, {device: "lo", shared: true}, {device: "lo", pin: "x", core: true}, {device: "lo"},
		{device: "nosuch0", core: true}, {device: "lo", core: true}} {
		of := &Config{Options: nic.Options{Device: c.device, Log: slog.New(slog.DiscardHandler)}, Driver: "auto",
			Pin: c.pin, Shared: c.shared}
		if c.driver != "" {
			of.Driver = c.driver
		}
		name, why := of.Choose(c.core)
		why, _, _ = strings.Cut(why, " (its")
		got = append(got, name+": "+why)
	}
	check.Equal(t, strings.Join(got, "\n"), `: 
: 
: 
xdp: nic.pin is set
xdp: no core is dedicated to it (cpu.cores, or an isolated one)
: 
xdp: a core is dedicated, but interface lo shares no memory with AF_XDP sockets`, "%s")
	check.Equal(t, Modprobe("mlx4")+", "+Modprobe("efa"), "modprobe -a mlx4_ib ib_uverbs, modprobe -a efa ib_uverbs", "%s")
	for device, is := range map[string]bool{"eth0": false, "0000:03:00.0": true, "vfio-user:x": true, "lo": false} {
		check.Equal(t, IsPCIDevice(device), is, device+" is a PCI device: %v")
	}
}

// Every function that a driver supports, or that is refused by name.
func TestEveryID(t *testing.T) {
	var text strings.Builder
	for _, vendor := range []uint16{0x1af4, 0x1d0f, intel, mellanox, 0x1234} {
		for device := range 1 << 16 {
			id := pci.ID{Vendor: vendor, Device: uint16(device)}
			name, err := DriverFor(id), NotSupported(id)
			if name != "" || err != nil {
				fmt.Fprintf(&text, "%04x:%04x %s %s %v\n", vendor, device, name, Model(id), err)
			}
		}
	}
	golden.Equal(t, "testdata/ids.txt", text.String())
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

// A driver of cards is refused on an interface without one: it has no socket to use instead.
func TestInterfaceWithoutCard(t *testing.T) {
	c := Config{Driver: "mlx5"}
	c.Device, c.Log = "lo", slog.New(slog.DiscardHandler)
	check.Fails(t, "Open", check.Err(c.Open()), nic.ErrNoDevice, "the kernel has no RDMA device for this interface")
	check.Fails(t, "OpenAnswerer", check.Err(c.OpenAnswerer()), nic.ErrNoDevice,
		"the kernel has no RDMA device for this interface")
}
