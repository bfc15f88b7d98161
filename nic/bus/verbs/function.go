package verbs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic/bus"
	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/nic/bus/pci"
)

// Function is the PCI function of an RDMA device for a driver beside the kernel's. Its identity is that of the PCI
// function, while the kernel keeps its registers, bus mastering and reset. Memory is mapped by registration, which
// needs an open Context, and device addresses are the process's own addresses.
type Function struct {
	Found
	name   string // as the user named it
	config *os.File
	sys    string
	open   func(Found) (Kernel, error)
	find   func(name string) (Found, error) // nil if tests make the device

	mu      sync.Mutex
	context *Context
	regions []region
}

// region is registered memory.
type region struct {
	base, size uint64
	handle     uint32
	key        uint32
}

// Open returns the function of an RDMA device, by any name that Find accepts. The kernel's driver stays bound.
func Open(name string) (*Function, error) {
	found, err := Find(name)
	if err != nil {
		return nil, err
	}
	f, err := New(name, found, machine.sys, func(f Found) (Kernel, error) {
		if f.Node == "" {
			return nil, fmt.Errorf("%s: %w: %s", f.Name, bus.ErrNoDevice, f.Missing())
		}
		return open(f.Node, drivers[f.Function.Driver])
	})
	if err == nil {
		f.find = Find
	}
	return f, err
}

// New is Open for a device that tests make: sys has its files as in sysfs.
func New(name string, found Found, sys string, open func(Found) (Kernel, error)) (*Function, error) {
	if drivers[found.Function.Driver] == 0 {
		return nil, fmt.Errorf("%s: %w: not supported beside kernel driver %q", name, bus.ErrNoDevice,
			found.Function.Driver)
	}
	f := &Function{Found: found, name: name, sys: sys, open: open}
	var err error
	if f.config, err = os.Open(filepath.Join(sys, "bus/pci/devices", found.Function.Address, "config")); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return f, nil
}

// Of returns the Function inside fn, nil if fn is driven in another way.
func Of(fn pci.Function) *Function {
	for {
		switch f := fn.(type) {
		case *Function:
			return f
		case interface{ Unwrap() pci.Function }:
			fn = f.Unwrap()
		default:
			return nil
		}
	}
}

// Start opens a Context after Stop. The device is looked up again: the kernel may have made a new one in its place.
func (f *Function) Start() error {
	if f.find != nil {
		again, err := f.find(f.Function.Address)
		if err != nil {
			return err // another device may have its node now
		}
		f.Found = again
	}
	k, err := f.open(f.Found)
	if err != nil {
		return fmt.Errorf("%s: %w", f.name, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.context = &Context{Kernel: k}
	return nil
}

// Stop closes the open Context: the kernel destroys its objects and releases mapped memory, so a later Unmap does
// nothing. No loop may use memory that the Context mapped.
func (f *Function) Stop() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.context
	f.context, f.regions = nil, nil
	if c == nil {
		return nil
	}
	return c.close()
}

// Context returns the open Context.
func (f *Function) Context() *Context {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.context
}

// Text reads an attribute of the RDMA device in sysfs, "" if there is none.
func (f *Function) Text(name string) string {
	return text(filepath.Join(f.sys, "class/infiniband", f.Found.Name), name)
}

// Counters reads all of a folder of counters of the RDMA device in sysfs.
func (f *Function) Counters(folder string) (map[string]uint64, error) {
	dir := filepath.Join(f.sys, "class/infiniband", f.Found.Name, folder)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	all := map[string]uint64{}
	for _, e := range entries {
		var n uint64
		if _, err := fmt.Sscan(text(dir, e.Name()), &n); err == nil && e.Name() != "lifespan" { // of the kernel's copy
			all[e.Name()] = n
		}
	}
	return all, nil
}

// Name returns the name by which the function was opened.
func (f *Function) Name() string { return f.name }

// ID returns the PCI function's identity.
func (f *Function) ID() pci.ID { return f.Function.ID }

// Simulated reports whether the kernel's driver drives one of our models.
func (f *Function) Simulated() bool { return pci.IsModel(f) }

// NUMANode returns the function's NUMA node, -1 if unknown.
func (f *Function) NUMANode() int { return f.Function.NUMANode }

// Notes describes how the function is driven.
func (f *Function) Notes() []string {
	notes := []string{fmt.Sprintf("beside the kernel's driver %s, as %s", f.Function.Driver, f.Found.Name)}
	if others := slices.DeleteFunc(slices.Clone(f.Function.Interfaces),
		func(s string) bool { return s == f.name }); len(others) > 0 {
		notes[0] += " (interface " + strings.Join(others, ", ") + ")"
	}
	if f.ReadConfig(0x100, make([]byte, 4)) != nil {
		notes = append(notes, "started without CAP_SYS_ADMIN, which recognizing a device model needs: the backend is reported as silicon")
	}
	return notes
}

// ReadConfig implements pci.Function. Without CAP_SYS_ADMIN only the first 64 bytes can be read.
func (f *Function) ReadConfig(off int, p []byte) error {
	_, err := f.config.ReadAt(p, int64(off))
	return err
}

// WriteConfig returns errKernels.
func (f *Function) WriteConfig(int, []byte) error { return f.kernels("configuration space") }

// BAR returns errKernels.
func (f *Function) BAR(int) (*mmio.Window, error) { return nil, f.kernels("registers") }

// BARWC returns errKernels.
func (f *Function) BARWC(int) (*mmio.Window, error) { return nil, f.kernels("registers") }

// SetBusMaster does nothing: the kernel decides, and destroys a Context's objects before it releases their memory.
func (f *Function) SetBusMaster(bool) error { return nil }

// Reset returns errKernels.
func (f *Function) Reset() error { return f.kernels("reset") }

func (f *Function) kernels(what string) error {
	return fmt.Errorf("%s: %s: %w", f.name, what, errKernels)
}

// Map registers memory with the device. Its device address is the process's own.
func (f *Function) Map(m dma.Memory) (uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.context == nil {
		return 0, fmt.Errorf("%s: %w: no context is open", f.name, bus.ErrGone)
	}
	r, err := f.context.register(m.Bytes)
	if err != nil {
		return 0, fmt.Errorf("%s: register %d bytes: %w", f.name, len(m.Bytes), noMemory(err))
	}
	f.regions = append(f.regions, r)
	return r.base, nil
}

// Unmap undoes Map. Memory of a Context that was closed is free already.
func (f *Function) Unmap(iova uint64, _ int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.IndexFunc(f.regions, func(r region) bool { return r.base == iova })
	if i < 0 {
		return nil
	}
	err := f.context.deregister(f.regions[i].handle)
	if err == nil || errors.Is(err, unix.EIO) { // the kernel removed the device with all of its objects
		f.regions = slices.Delete(f.regions, i, i+1)
		return nil
	}
	return fmt.Errorf("%s: deregister memory: %w", f.name, err)
}

// Region returns the mapped memory that has an address, and its local key.
func (f *Function) Region(iova uint64) (base, size uint64, key uint32, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.regions {
		if iova-r.base < r.size {
			return r.base, r.size, r.key, nil
		}
	}
	return 0, 0, 0, fmt.Errorf("%s: no memory is registered at %#x", f.name, iova)
}

// Close closes the Context, and the kernel destroys its objects.
func (f *Function) Close() error { return errors.Join(f.Stop(), f.config.Close()) }
