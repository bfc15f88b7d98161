package pci

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"github.com/rebound-nic/rebound/nic/bus"
)

// host is the kernel's view of the machine. Tests substitute a tree of files.
type host struct {
	sys, dev, run string // "/sys", "/dev", "/run/rebound"

	write   func(path, value string) error // an attribute in sys
	ioctl   func(fd int, req, value uintptr, arg unsafe.Pointer) (int, error)
	modules func(name string) error // loads a kernel module
}

var machine = host{
	sys: "/sys", dev: "/dev", run: "/run/rebound",
	write: writeAttribute, ioctl: ioctl, modules: modprobe,
}

// Found is a network function of this machine.
type Found struct {
	Address    string   // "0000:03:00.0"
	ID         ID       //
	Driver     string   // its kernel driver, "" if none
	Interfaces []string // of that driver
	Group      string   // IOMMU group, "" if there is none
	NUMANode   int      // -1 if unknown
}

const classNetwork = 0x02 // base class (PCI Code and ID Assignment §1.3)

// List returns the network functions of this machine by address.
func List() ([]Found, error) { return machine.list() }

func (h *host) list() ([]Found, error) {
	dir := filepath.Join(h.sys, "bus/pci/devices")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("pci: %w", err)
	}
	var all []Found
	for _, e := range entries {
		f, err := h.find(e.Name())
		if err != nil || f.ID.Class>>16 != classNetwork {
			continue // a function that vanished meanwhile, or one that is not a network interface
		}
		all = append(all, f)
	}
	slices.SortFunc(all, func(a, b Found) int { return strings.Compare(a.Address, b.Address) })
	return all, nil
}

// ParseAddress returns the full form of a PCI address, domain:bus:device.function in hexadecimal: "03:00.0" becomes
// "0000:03:00.0".
func ParseAddress(s string) (string, error) {
	full := s
	if strings.Count(s, ":") == 1 {
		full = "0000:" + s
	}
	var domain, bus, dev, fn uint
	n, err := fmt.Sscanf(full, "%x:%x:%x.%x", &domain, &bus, &dev, &fn)
	canon := fmt.Sprintf("%04x:%02x:%02x.%x", domain, bus, dev, fn)
	if err != nil || n != 4 || bus > 0xff || dev > 0x1f || fn > 7 || !strings.EqualFold(canon, full) {
		return "", fmt.Errorf("pci: %q is not a PCI address such as 0000:03:00.0: %w", s, ErrNoDevice)
	}
	return canon, nil
}

// Find returns the function at a PCI address, of any class.
func Find(addr string) (Found, error) { return machine.find(addr) }

// find describes the function at an address from sysfs: IDs, driver, IOMMU group and NUMA node. The error is
// ErrNoDevice if there is none.
func (h *host) find(addr string) (Found, error) {
	addr, err := ParseAddress(addr)
	if err != nil {
		return Found{}, err
	}
	f := Found{Address: addr, NUMANode: -1}
	dir := h.device(addr)
	cfg, err := os.ReadFile(filepath.Join(dir, "config"))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return f, fmt.Errorf("pci: %s: %w (lspci -D lists all functions)", addr, ErrNoDevice)
	case err != nil:
		return f, fmt.Errorf("pci: %s: %w", addr, err)
	case len(cfg) < cfgHeader:
		return f, fmt.Errorf("pci: %s: configuration space ends at %#x: %w", addr, len(cfg), errConfig)
	}
	if f.ID, err = readID(bytesConfig(cfg)); err != nil {
		return f, fmt.Errorf("%s: %w", addr, err)
	}
	f.Driver = linkName(filepath.Join(dir, "driver"))
	f.Group = linkName(filepath.Join(dir, "iommu_group"))
	if n, err := strconv.Atoi(h.text(dir, "numa_node")); err == nil {
		f.NUMANode = n
	}
	// virtio has its own bus between the function and its interfaces. Links (physfn, virtfn0) lead to other
	// functions.
	for _, pattern := range []string{"net/*", "virtio*/net/*"} {
		paths, _ := filepath.Glob(filepath.Join(dir, pattern))
		for _, p := range paths {
			f.Interfaces = append(f.Interfaces, filepath.Base(p))
		}
	}
	return f, nil
}

// FindIn is Find on a machine whose /sys is the folder sys.
func FindIn(sys, addr string) (Found, error) { return (&host{sys: sys}).find(addr) }

// FunctionOf returns the PCI address of a network interface of this machine, "" if it has none.
func FunctionOf(iface string) string { return machine.functionOf(iface) }

func (h *host) functionOf(iface string) string {
	if iface != filepath.Base(iface) {
		return ""
	}
	dir, err := filepath.EvalSymlinks(filepath.Join(h.sys, "class/net", iface, "device"))
	if err != nil {
		return ""
	}
	// virtio has its own bus between the function and its interface
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if addr, err := ParseAddress(filepath.Base(d)); err == nil {
			return addr
		}
	}
	return ""
}

func (h *host) device(addr string) string { return filepath.Join(h.sys, "bus/pci/devices", addr) }

func (h *host) driver(name string) string { return filepath.Join(h.sys, "bus/pci/drivers", name) }

// text reads an attribute, "" if there is none.
func (h *host) text(dir, name string) string {
	b, _ := os.ReadFile(filepath.Join(dir, name))
	return strings.TrimSpace(string(b))
}

// writeAttribute never makes a file: that one is not there means something in sysfs.
func writeAttribute(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return rights(err)
	}
	_, err = f.WriteString(value)
	return rights(errors.Join(err, f.Close()))
}

// rights adds bus.ErrRights to an error caused by missing permissions.
func rights(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: %w (needs root, and no kernel lockdown)", bus.ErrRights, err)
	}
	return err
}

// linkName returns the last element of a symbolic link's target, "" if there is no link.
func linkName(path string) string {
	to, err := os.Readlink(path)
	if err != nil {
		return ""
	}
	return filepath.Base(to)
}

// bytesConfig is a copy of configuration space.
type bytesConfig []byte

func (b bytesConfig) ReadConfig(off int, p []byte) error {
	if off < 0 || off+len(p) > len(b) {
		return fmt.Errorf("pci: configuration space ends at %#x, read of %d at %#x: %w", len(b), len(p), off, errConfig)
	}
	copy(p, b[off:])
	return nil
}

func (b bytesConfig) WriteConfig(int, []byte) error { return bus.ErrRights }

// bar is one line of a function's sysfs resource file.
type bar struct {
	start    uint64 // physical address
	size     uint64
	io       bool
	prefetch bool
}

// bars reads the sizes of a function's BARs. Flags are those of linux/ioport.h.
func (h *host) bars(addr string) (b [6]bar, err error) {
	const (
		flagIO       = 0x100
		flagPrefetch = 0x2000
	)
	lines := strings.Split(h.text(h.device(addr), "resource"), "\n")
	for i := range b {
		if i >= len(lines) {
			break
		}
		var start, end, flags uint64
		if _, err := fmt.Sscanf(lines[i], "0x%x 0x%x 0x%x", &start, &end, &flags); err != nil {
			return b, fmt.Errorf("pci: %s: resource line %d is %q: %w", addr, i, lines[i], errConfig)
		}
		if flags == 0 || end < start || end == ^uint64(0) {
			continue
		}
		b[i] = bar{start: start, size: end - start + 1, io: flags&flagIO != 0, prefetch: flags&flagPrefetch != 0}
	}
	return b, nil
}

// checkAccess enforces the rules of ReadConfig: 1, 2 or 4 bytes, aligned, within size.
func checkAccess(name string, off int, p []byte, size int) error {
	n := len(p)
	if n != 1 && n != 2 && n != 4 || off < 0 || off%n != 0 || off+n > size {
		return fmt.Errorf("pci: %s: %d bytes at %#x of a configuration space of %#x: %w", name, n, off, size, errConfig)
	}
	return nil
}
