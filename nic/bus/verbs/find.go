package verbs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/rebound-nic/rebound/nic/bus"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/bus/verbs/abi"
)

// errKernels is returned for operations that only the kernel's driver may do.
var errKernels = errors.New("the kernel drives this function")

// drivers are the numbers in the interface of kernel drivers, by their names on the PCI bus.
var drivers = map[string]uint32{"efa": abi.DriverEFA, "mlx5_core": abi.DriverMLX5, "mlx4_core": abi.DriverMLX4}

// Found is an RDMA device with a kernel driver.
type Found struct {
	Name     string // "rdmap0s6", "mlx5_0"
	Function pci.Found
	Node     string // "/dev/infiniband/uverbs0"; "" if module ib_uverbs is not loaded
	ABI      int    // version of the driver's part of the interface
}

// Missing returns what the process lacks to use the device, and how to get it; "" if nothing.
func (f *Found) Missing() string {
	switch {
	case f.Node == "":
		return "no module ib_uverbs (modprobe ib_uverbs)"
	case !readable(f.Node):
		return "no access to " + f.Node
	}
	return ""
}

func readable(name string) bool {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err == nil {
		f.Close()
	}
	return err == nil
}

// host is the root of the kernel's device files. Tests substitute a tree of files.
type host struct {
	sys, dev string
	function func(address string) (pci.Found, error)
}

var machine = host{"/sys", "/dev", pci.Find}

// list returns the RDMA devices of this machine by name.
func (h *host) list() ([]Found, error) {
	paths, err := filepath.Glob(filepath.Join(h.sys, "class/infiniband/*"))
	if err != nil {
		return nil, err
	}
	nodes, _ := filepath.Glob(filepath.Join(h.sys, "class/infiniband_verbs/uverbs*"))
	var all []Found
	for _, p := range paths {
		device, err := filepath.EvalSymlinks(filepath.Join(p, "device"))
		if err != nil {
			continue // a device in software
		}
		f := Found{Name: filepath.Base(p)}
		if f.Function, err = h.function(filepath.Base(device)); err != nil {
			continue // not on the PCI bus, or removed meanwhile
		}
		for _, n := range nodes {
			if text(n, "ibdev") == f.Name {
				f.Node = filepath.Join(h.dev, "infiniband", filepath.Base(n))
				f.ABI, _ = strconv.Atoi(text(n, "abi_version"))
			}
		}
		all = append(all, f)
	}
	slices.SortFunc(all, func(a, b Found) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// text reads an attribute in sysfs, "" if there is none.
func text(dir, name string) string {
	b, _ := os.ReadFile(filepath.Join(dir, name))
	return strings.TrimSpace(string(b))
}

// Find returns an RDMA device by its name, by PCI address, or by network interface. ErrNoDevice means that there is
// none.
func Find(name string) (Found, error) { return machine.find(name) }

func (h *host) find(name string) (Found, error) {
	all, err := h.list()
	if err != nil {
		return Found{}, err
	}
	address, _ := pci.ParseAddress(name)
	for _, f := range all {
		if f.Name == name || f.Function.Address == address || slices.Contains(f.Function.Interfaces, name) {
			return f, nil
		}
	}
	return Found{}, fmt.Errorf("%s: %w: the kernel has no RDMA device of that name", name, bus.ErrNoDevice)
}
