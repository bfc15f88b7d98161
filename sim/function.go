package sim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/nic/bus/pci"
)

// Function is a port as seen by a driver in this process.
type Function struct {
	port   *Port
	win    [6]*mmio.Window
	gone   bool        // closed
	orphan atomic.Bool // dropped: the driver's process is gone, and its remaining calls have no effect
}

// Function opens the port for a driver in this process. Like the kernel's vfio-pci, it enables memory space and leaves
// bus mastering off. One driver at a time can open it: others get ErrOpen.
func (p *Port) Function() (*Function, error) {
	if err := p.Acquire(); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.space.setCommand(cmdMemory, true)
	p.owner = &Function{port: p}
	return p.owner, nil
}

var errOrphan = errors.New("sim: the function was taken from its driver")

var _ pci.Function = (*Function)(nil)

func (f *Function) Name() string { return f.port.Name() }

func (f *Function) ID() pci.ID {
	c := &f.port.conf
	return pci.ID{Vendor: c.Vendor, Device: c.Device, SubVendor: c.SubVendor, SubDevice: c.SubDevice,
		Revision: c.Revision, Class: c.Class}
}

func (f *Function) ReadConfig(off int, b []byte) error {
	if f.orphan.Load() {
		return errOrphan
	}
	err := f.port.ReadConfig(off, b)
	// vfio-pci emulates vendor and device ID, so they stay when the device does not answer (Linux,
	// init_pci_cap_basic_perm)
	for i := range b {
		if at := off + i; err == nil && at < len(f.port.space.init) && at < offCommand {
			b[i] = f.port.space.init[at]
		} else if err == nil && at == offCommand+1 && b[i] == 0xff { // and INTx Disable, which no driver here sets
			b[i] &^= 1 << (10 - 8)
		}
	}
	return err
}

func (f *Function) WriteConfig(off int, b []byte) error {
	if f.orphan.Load() {
		return errOrphan
	}
	return f.port.WriteConfig(off, b)
}

// BAR returns the registers. Accesses are trapped; the ranges that the model polls have shadow memory.
func (f *Function) BAR(n int) (*mmio.Window, error) {
	if n < 0 || n > 5 || f.port.conf.BARs[n].Size == 0 {
		return nil, fmt.Errorf("%s: there is no BAR %d", f.Name(), n)
	}
	if f.win[n] == nil {
		f.win[n] = mmio.Trapped(f.port.conf.BARs[n].Size, trap{f, n}, f.port.shadow[n].mem,
			func(off, size uint64) bool { return f.port.polled(n, off, size) })
	}
	return f.win[n], nil
}

func (f *Function) BARWC(n int) (*mmio.Window, error) { return f.BAR(n) }

type trap struct {
	fn  *Function
	bar int
}

func (t trap) ReadBAR(off uint64, b []byte) error {
	if t.fn.orphan.Load() {
		return errOrphan
	}
	return t.fn.port.ReadBAR(t.bar, off, b)
}

func (t trap) WriteBAR(off uint64, b []byte) error {
	if t.fn.orphan.Load() {
		return errOrphan
	}
	return t.fn.port.WriteBAR(t.bar, off, b)
}

// Map maps whole pages for the device at a random address.
func (f *Function) Map(m dma.Memory) (uint64, error) {
	if len(m.Bytes) == 0 || len(m.Bytes)%4096 != 0 || uintptr(unsafe.Pointer(&m.Bytes[0]))%4096 != 0 {
		return 0, fmt.Errorf("%s: cannot map %d bytes: not whole pages", f.Name(), len(m.Bytes))
	}
	if f.orphan.Load() {
		return 0, errOrphan
	}
	return f.port.MapAnywhere(Mapping{Size: uint64(len(m.Bytes)), Bytes: m.Bytes, Read: true, Write: true})
}

// memory keeps what closed arenas had: the tests of a driver open hundreds of devices.
var memory = dma.Pool{Guard: true}

// Kept returns the pool that all arenas of models in this process share.
func (f *Function) Kept() *dma.Pool { return &memory }

// Unmap undoes Map. It is a violation while bus mastering is on, because the device could still write to the memory. An
// unplugged device does no DMA.
func (f *Function) Unmap(iova uint64, size int) error {
	if f.orphan.Load() {
		return nil
	}
	f.port.mu.Lock()
	if f.port.budget != 0 && f.port.space.command()&cmdBusMaster != 0 {
		f.port.violation(Error, "unmap of IOVA %#x while bus mastering is on", iova)
	}
	f.port.mu.Unlock()
	n, err := f.port.Unmap(iova, uint64(size))
	if err == nil && n != uint64(size) {
		err = fmt.Errorf("%s: unmap of %#x+%#x: only %#x bytes were mapped", f.Name(), iova, size, n)
	}
	return err
}

func (f *Function) SetBusMaster(on bool) error {
	var b [2]byte
	if err := f.ReadConfig(offCommand, b[:]); err != nil {
		return err
	}
	v := binary.LittleEndian.Uint16(b[:]) &^ cmdBusMaster
	if on {
		v |= cmdBusMaster
	}
	binary.LittleEndian.PutUint16(b[:], v)
	return f.WriteConfig(offCommand, b[:])
}

// Reset performs a function-level reset. Afterwards memory space is enabled and bus mastering is off.
func (f *Function) Reset() error {
	if f.orphan.Load() {
		return errOrphan
	}
	f.port.mu.Lock()
	defer f.port.mu.Unlock()
	if f.port.present() {
		f.port.reset()
		f.port.space.setCommand(cmdMemory, true)
	}
	return nil
}

func (f *Function) Simulated() bool { return true }

// Close turns bus mastering off and removes all mappings. A mapping that is left is a leak of the driver, and a
// violation.
func (f *Function) Close() error {
	if f.gone {
		return fmt.Errorf("%s: closed twice", f.Name())
	}
	f.gone = true
	for _, w := range f.win {
		if w != nil {
			w.Retire()
		}
	}
	if f.orphan.Load() {
		return nil
	}
	f.port.mu.Lock()
	f.port.space.setCommand(cmdBusMaster, false)
	if n := len(f.port.dma.maps); n > 0 {
		f.port.violation(Error, "closed with %d DMA mappings left", n)
	}
	f.port.mu.Unlock()
	f.port.Drop()
	return nil
}
