package pci

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic/bus"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/golden"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

const (
	addr0 = "0000:03:00.0"
	addr1 = "0000:03:00.1"
)

func TestParseAddress(t *testing.T) {
	for in, want := range map[string]string{
		"0000:03:00.0": addr0, "03:00.0": addr0, "0000:AF:1f.7": "0000:af:1f.7", "10000:01:00.0": "10000:01:00.0",
		"": "", "eth0": "", "03:00": "", "03:00.8": "", "0000:03:20.0": "", "0000:103:00.0": "", "0000:03:00.0x": "",
		"../0000:03:00.0": "", "3:0.0": "",
	} {
		got, err := ParseAddress(in)
		if got != want || (err != nil) != (want == "") {
			t.Errorf("ParseAddress(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
}

func TestList(t *testing.T) {
	k := newKernel(t)
	k.card(addr1, "", "")
	k.card(addr0, "ixgbe", "7", "eth1")
	disk := card()
	disk.put32(cfgRevision, 0x01080200)
	k.file("sys/bus/pci/devices/0000:04:00.0/config", string(disk))
	k.file("sys/bus/pci/devices/0000:05:00.0/config", "short")
	k.file("sys/bus/pci/devices/0000:06:00.0/config", strings.Repeat("\xff", 256))
	all, err := k.list()
	if err != nil || len(all) != 2 {
		t.Fatalf("list = %+v, %v; want two network functions", all, err)
	}
	f := all[0]
	if f.Address != addr0 || f.Driver != "ixgbe" || f.Group != "7" || f.NUMANode != 1 ||
		!slices.Equal(f.Interfaces, []string{"eth1"}) || f.ID.Device != 0x10fb {
		t.Errorf("found %+v", f)
	}
	if f := all[1]; f.Driver != "" || f.Group != "" || f.Interfaces != nil {
		t.Errorf("found %+v, want no driver, group, interface", f)
	}
	for addr, want := range map[string]error{"0000:09:00.0": ErrNoDevice, "0000:05:00.0": errConfig,
		"0000:06:00.0": ErrGone} {
		check.Fails(t, addr, check.Err(k.find(addr)), want)
	}
}

func (k *kernel) bound(addr string) string { return linkName(k.host.device(addr) + "/driver") }

func TestBindAndBack(t *testing.T) {
	vfio, none := Target{}, Target{NoDriver: true}
	for _, c := range []struct {
		targets []Target // a later bind must not forget the original driver
		home    string   // the driver that the kernel would choose afterwards
	}{{[]Target{vfio, vfio}, "ixgbe"}, {[]Target{none, none}, "ixgbe"}, {[]Target{vfio, none, vfio}, "other"}} {
		k := newKernel(t)
		k.card(addr0, "ixgbe", "7", "eth1")
		k.driverModule(vfioDriver)
		for _, to := range c.targets {
			want := vfioDriver
			if to.NoDriver {
				want = ""
			}
			if err := k.bind("03:00.0", to); err != nil || k.bound(addr0) != want {
				t.Fatalf("bind: %v, driver %q, want %q", err, k.bound(addr0), want)
			}
		}
		k.home[addr0] = c.home
		k.driverModule("other")
		for range 2 {
			if err := k.unbind(addr0); err != nil || k.bound(addr0) != "ixgbe" {
				t.Fatalf("unbind: %v, driver %q, want ixgbe", err, k.bound(addr0))
			}
		}
		check.Equal(t, k.text(k.host.device(addr0), "driver_override"), "", "driver_override is %q afterwards")
		if left, _ := os.ReadDir(k.run); len(left) != 0 {
			t.Errorf("%v is left", left)
		}
	}
}

// A group may write configuration space from Bind to Unbind, also if the function was bound before.
func TestBindForGroup(t *testing.T) {
	needs.Root(t, "giving files away")
	k := newKernel(t)
	k.card(addr0, "ixgbe", "7", "eth1")
	k.driverModule(vfioDriver)
	is := func(when string, group uint32, mode os.FileMode) {
		t.Helper()
		i := must.Get(os.Stat(k.host.device(addr0) + "/config"))(t)
		check.Equal(t, i.Mode(), mode, when+" %v")
		check.Equal(t, i.Sys().(*syscall.Stat_t).Gid, group, when+" group %d")
	}
	must.OK(t, k.bind(addr0, Target{}))
	is("without a group", 0, 0o644)
	must.OK(t, k.bind(addr0, Target{Group: 1234}))
	is("for a group", 1234, 0o664)
	must.OK(t, k.unbind(addr0))
	is("after unbind", 0, 0o644)
}

func TestBindRefuses(t *testing.T) {
	var needed map[string]string
	for name, c := range map[string]struct {
		set  func(k *kernel)
		says string
	}{
		"default route": {func(k *kernel) { needed["eth1"] = "carries the default route" }, "eth1 carries the default route"},
		"ssh over a VLAN on a bond": {func(k *kernel) {
			k.link("sys/class/net/eth1/upper_bond0", "../bond0")
			k.link("sys/class/net/bond0/upper_bond0.7", "../bond0.7")
			// a cycle, which the kernel never has, must not cause a hang
			k.link("sys/class/net/bond0.7/upper_bond0", "../bond0")
			needed["bond0.7"] = "carries ssh"
		}, "under bond0.7"},
		"interface elsewhere": {func(k *kernel) {
			must.OK(t, os.RemoveAll(k.path("sys/bus/pci/devices/"+addr0+"/net")))
		}, "has no interface for it in this network namespace"},
		"virtual functions": {func(k *kernel) { k.file("sys/bus/pci/devices/"+addr0+"/sriov_numvfs", "4\n") }, "4 virtual functions"},
	} {
		k := newKernel(t)
		k.card(addr0, "ixgbe", "7", "eth1")
		k.driverModule(vfioDriver)
		needed = map[string]string{}
		c.set(k)
		check.Fails(t, name, k.bind(addr0, Target{Needed: needed}), errInUse, c.says)
		if k.bound(addr0) != "ixgbe" || len(k.log) != 0 {
			t.Errorf("%s: something was done: %q", name, k.log)
		}
		if err := k.bind(addr0, Target{Needed: needed, Force: true}); err != nil || k.bound(addr0) != vfioDriver {
			t.Errorf("%s, forced: %v", name, err)
		}
	}
}

// A function without a visible interface is refused, unless its ports carry messages only: an Ethernet function may
// have its interface in another network namespace.
func TestBindWithoutInterface(t *testing.T) {
	for layer, want := range map[string]error{"": errInUse, "Ethernet\n": errInUse, "InfiniBand\n": errInUse,
		"Unknown\n": nil} {
		k := newKernel(t)
		k.card(addr0, "efa", "7")
		k.driverModule(vfioDriver)
		if layer != "" {
			k.file("sys/bus/pci/devices/"+addr0+"/infiniband/rdmap0s3/ports/1/link_layer", layer)
		}
		if err := k.bind(addr0, Target{}); !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Errorf("link layer %q: %v, want %v", layer, err, want)
		}
	}
}

func TestBindFails(t *testing.T) {
	k := newKernel(t)
	k.card(addr0, "ixgbe", "", "eth1")
	k.driverModule(vfioDriver)
	check.Fails(t, "no group", k.bind(addr0, Target{}), errNoIOMMU, "intel_iommu=on")
	k = newKernel(t)
	k.card(addr0, "ixgbe", "7", "eth1")
	check.Fails(t, "no vfio-pci", k.bind(addr0, Target{}), nil, "no module vfio-pci")
	k = newKernel(t)
	k.card(addr0, "ixgbe", "7", "eth1")
	k.driverModule(vfioDriver)
	k.deny = vfioDriver
	if err := k.bind(addr0, Target{}); err == nil || k.bound(addr0) != "ixgbe" {
		t.Errorf("vfio-pci does not take it: %v, and driver %q has it", err, k.bound(addr0))
	}
	check.Fails(t, "no such function", k.bind("0000:09:00.0", Target{}), ErrNoDevice)
}

// A write that the kernel refuses ends a bind or an unbind with its reason, and a function that was moved goes back.
func TestEachWriteFails(t *testing.T) {
	var text strings.Builder
	for _, c := range []struct {
		name   string
		driver string // that has it now
		run    func(k *kernel) error
	}{
		{"bind", "ixgbe", func(k *kernel) error { return k.bind(addr0, Target{}) }},
		{"bind -no-driver", "ixgbe", func(k *kernel) error { return k.bind(addr0, Target{NoDriver: true}) }},
		{"unbind", vfioDriver, func(k *kernel) error { return k.unbind(addr0) }},
		{"unbind, of no driver", "", func(k *kernel) error { return k.unbind(addr0) }},
	} {
		for n := range 4 {
			k := newKernel(t)
			k.card(addr0, c.driver, "7", "eth1")
			k.driverModule(vfioDriver, "ixgbe")
			if k.home[addr0] = "ixgbe"; c.driver == vfioDriver {
				k.file("run/driver-of-"+addr0, "ixgbe\n")
			}
			count := 0
			k.write = func(path, value string) error {
				if count++; count == n {
					return unix.ENXIO
				}
				return k.attribute(path, value)
			}
			err := c.run(k)
			said := strings.ReplaceAll(fmt.Sprint(err), "\n", "; ")
			fmt.Fprintf(&text, "%s, write %d fails: %s has it; %q; %s\n", c.name, n, k.bound(addr0), k.log, said)
		}
	}
	golden.Equal(t, "testdata/writes.txt", text.String())
}

// Under kernel lockdown a function without a driver is of no use: only vfio-pci is.
func TestBindLockedDown(t *testing.T) {
	k := newKernel(t)
	k.card(addr0, "ixgbe", "7", "eth1")
	k.driverModule(vfioDriver)
	k.file("sys/kernel/security/lockdown", "none [integrity] confidentiality\n")
	check.Fails(t, "no driver", k.bind(addr0, Target{NoDriver: true}), bus.ErrRights, "lockdown is on (integrity",
		"without -no-driver")
	check.Equal(t, k.bound(addr0), "ixgbe", "driver %q afterwards")
	must.OK(t, k.bind(addr0, Target{}))
	k.file("sys/kernel/security/lockdown", "[none] integrity confidentiality\n")
	must.OK(t, k.bind(addr0, Target{NoDriver: true}))
}

func TestWriteAttribute(t *testing.T) {
	check.Fails(t, "an attribute that is not there", writeAttribute(t.TempDir()+"/none", "1"), os.ErrNotExist)
	for _, is := range []error{bus.ErrRights, unix.EPERM} {
		check.Fails(t, "rights", rights(unix.EPERM), is)
	}
}

func TestFunctionOf(t *testing.T) {
	k := newKernel(t)
	k.card(addr0, "ixgbe", "7", "eth1")
	k.card(addr1, "virtio-pci", "8")
	k.link("sys/class/net/eth1/device", k.host.device(addr0))
	k.file("sys/bus/pci/devices/"+addr1+"/virtio0/net/eth2/mtu", "1500")
	k.link("sys/class/net/eth2/device", k.host.device(addr1)+"/virtio0")
	for name, want := range map[string]string{"eth1": addr0, "eth2": addr1, "lo": "", "": "", "../eth1": ""} {
		check.Equal(t, k.functionOf(name), want, "function of "+name+" is %q")
	}
}
