package pci

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic/bus"
	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
)

// sysfsFunction is a function without a kernel driver, used through its files in sysfs. No IOMMU restricts its DMA.
type sysfsFunction struct {
	windows
	*dma.Physical
	id     ID
	node   int
	dir    string
	config *os.File
	size   int // size of configuration space

	noReset bool // the kernel cannot reset it
	once    sync.Once
	err     error
}

// openSysfs opens the function at addr, which must have no kernel driver, with physical addresses for DMA.
// unsafeNoIOMMU confirms that the user accepts this. It resets the function first: unlike with VFIO, nothing stops the
// device when the process is killed, and until that reset it may write to memory that the kernel has given to others.
func openSysfs(addr string, unsafeNoIOMMU bool) (Function, error) {
	f, err := machine.openSysfs(addr, unsafeNoIOMMU)
	if err != nil {
		return nil, err // not a nil *sysfsFunction in a Function
	}
	return f, nil
}

// openSysfs opens a function without VFIO, with physical addresses. This needs unsafeNoIOMMU, no kernel driver, and
// no IOMMU that translates.
func (h *host) openSysfs(addr string, unsafeNoIOMMU bool) (*sysfsFunction, error) {
	found, err := h.find(addr)
	if err != nil {
		return nil, err
	}
	addr = found.Address
	if !unsafeNoIOMMU {
		return nil, fmt.Errorf("pci: %s: without an IOMMU the device can write to any memory: bind it to vfio-pci, or set nic.unsafe_no_iommu: %w", addr, errNoIOMMU)
	}
	if mmio.PureGo {
		return nil, fmt.Errorf("pci: %s: a purego build has no barriers for a device: %w", addr, errors.ErrUnsupported)
	}
	if found.Driver != "" {
		return nil, fmt.Errorf("pci: %s belongs to kernel driver %s (rebound-responder bind %s): %w", addr,
			found.Driver, addr, bus.ErrBusy)
	}
	if t := h.text(h.device(addr), "iommu_group/type"); found.Group != "" && t != "identity" {
		return nil, fmt.Errorf("pci: %s: the IOMMU translates its addresses (group %s, type %q), so physical ones would fault: bind it to vfio-pci: %w", addr, found.Group, t, bus.ErrBusy)
	}
	f := &sysfsFunction{dir: h.device(addr), id: found.ID, node: found.NUMANode}
	f.windows = windows{host: h, addr: addr}
	if f.bars, err = h.bars(addr); err != nil {
		return nil, err
	}
	f.uncached = f.mapUncached
	if f.config, err = os.OpenFile(filepath.Join(f.dir, "config"), os.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		return nil, fmt.Errorf("pci: %s: %w", addr, rights(err))
	}
	if err := f.start(); err != nil {
		f.config.Close()
		return nil, fmt.Errorf("pci: %s: %w", addr, err)
	}
	return f, nil
}

// start claims the function for this process and brings it to a known state.
func (f *sysfsFunction) start() error {
	st, err := f.config.Stat()
	if err != nil {
		return err
	}
	f.size = int(st.Size())
	if err := unix.Flock(int(f.config.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("another process drives it: %w: %w", bus.ErrBusy, err)
	}
	if f.Physical, err = dma.UnsafeNoIOMMU(); err != nil {
		return err
	}
	err = setCommand(f, 0, cmdBusMaster)
	if err == nil {
		err = f.host.write(filepath.Join(f.dir, "enable"), "1") // power state D0, BARs decoded
	}
	if err == nil {
		err = f.Reset()
	}
	if err != nil {
		f.Physical.Close()
	}
	return err
}

func (f *sysfsFunction) Name() string    { return f.addr }
func (f *sysfsFunction) ID() ID          { return f.id }
func (f *sysfsFunction) Simulated() bool { return IsModel(f) }

// NUMANode returns the function's NUMA node, -1 if unknown.
func (f *sysfsFunction) NUMANode() int { return f.node }

// Notes lists unusual conditions of the function.
func (f *sysfsFunction) Notes() []string {
	notes := []string{"no IOMMU: the device can write to any memory, and continues to if this process is killed"}
	if f.noReset {
		notes = append(notes, "the kernel cannot reset the function: it is stopped by turning bus mastering off")
	}
	return append(notes, f.notes...)
}

func (f *sysfsFunction) ReadConfig(off int, p []byte) error {
	if err := checkAccess(f.addr, off, p, f.size); err != nil {
		return err
	}
	_, err := f.config.ReadAt(p, int64(off))
	return err
}

func (f *sysfsFunction) WriteConfig(off int, p []byte) error {
	if err := checkAccess(f.addr, off, p, f.size); err != nil {
		return err
	}
	_, err := f.config.WriteAt(p, int64(off))
	return err
}

func (f *sysfsFunction) SetBusMaster(on bool) error { return setBusMaster(f, on) }

// Reset asks the kernel for the best reset it has; the kernel preserves configuration space. Bus mastering is off
// afterwards. For some functions the kernel has none, such as those on a virtual machine's root bus. Then disabling bus
// mastering ends DMA, and the device keeps its state until its driver resets it.
func (f *sysfsFunction) Reset() error {
	err := f.host.write(filepath.Join(f.dir, "reset"), "1")
	if errors.Is(err, fs.ErrNotExist) {
		f.noReset, err = true, nil
	}
	if err != nil {
		return fmt.Errorf("pci: %s: reset: %w", f.addr, err)
	}
	return setCommand(f, cmdMemory|cmdINTxDisable, cmdBusMaster)
}

func (f *sysfsFunction) mapUncached(n int, from, size uint64) (*mmio.Window, error) {
	return f.fromSysfs(fmt.Sprintf("resource%d", n), false, from, size)
}

// Close implements Function. Later calls return the same error.
func (f *sysfsFunction) Close() error {
	f.once.Do(func() {
		var errs []error
		if !Gone(f) {
			errs = append(errs, f.SetBusMaster(false))
		}
		errs = append(errs, f.windows.close(), f.Physical.Close())
		errs = append(errs, f.host.write(filepath.Join(f.dir, "enable"), "0"), f.config.Close())
		f.err = errors.Join(errs...)
	})
	return f.err
}

func setBusMaster(c Config, on bool) error {
	if on {
		return setCommand(c, cmdBusMaster, 0)
	}
	return setCommand(c, 0, cmdBusMaster)
}
