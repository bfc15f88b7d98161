package pci

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/rebound-nic/rebound/nic/bus"
	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
)

// Bequest describes a function for another process that continues to use it. The files go with it.
type Bequest struct {
	Kind  string // "vfio", "sysfs" or "vfio-user"
	State json.RawMessage
	Files []int `json:"-"`
}

// Heritable is a function that another process can continue to use while its device runs: the files keep it claimed, and DMA mappings
// remain. When no process has the files any more, the function is released as if its only process had exited.
type Heritable interface {
	Function
	dma.Adopter

	// Bequest returns what another process opens the function with. The files remain this process's.
	Bequest() (Bequest, error)

	// Arrive begins the use of a function that was inherited, when the other process no longer uses it. Before that, only Name, ID,
	// Simulated, BAR, BARWC, Adopt and Disown may be called, and Close is Leave.
	Arrive()

	// Leave is Close for this process only: the device continues.
	Leave() error
}

// inherited is the state of a function of this machine.
type inherited struct {
	Address  string
	Physical bool        // without an IOMMU
	WC       []inheritWC // BARs that are mapped write-combining
}

type inheritWC struct {
	BAR   int
	Split uint64 // where the write-combining part begins, 0 for all
}

// errAgain means that the kernel refuses what it granted the other process.
var errAgain = errors.New("stop the other responder first")

const kindVFIO, kindSysfs = "vfio", "sysfs"

// Inherit opens a function of this machine that another process uses. It owns the files.
func Inherit(b Bequest) (Heritable, error) { return machine.inherit(b) }

func (h *host) inherit(b Bequest) (_ Heritable, err error) {
	files := b.Files
	defer func() { bus.CloseFiles(files) }()
	next := func(name string) *os.File {
		f := os.NewFile(uintptr(files[0]), name)
		files = files[1:]
		return f
	}
	var s inherited
	if err := json.Unmarshal(b.State, &s); err != nil {
		return nil, fmt.Errorf("pci: inherited function: %w", err)
	}
	found, err := h.find(s.Address)
	if err != nil {
		return nil, err
	}
	fail := func(f Heritable, err error) (Heritable, error) {
		return nil, errors.Join(fmt.Errorf("pci: inherited function %s: %w", s.Address, err), f.Leave())
	}
	switch {
	case b.Kind == kindVFIO && len(files) == 3:
		f := &vfioFunction{id: found.ID, node: found.NUMANode, resting: true}
		f.windows = windows{host: h, addr: found.Address, shared: true}
		f.uncached = f.mapUncached
		f.device, f.group, f.container = next(found.Address), next("group"), next("container")
		if err = f.addresses(s.Physical); err == nil {
			err = f.describe()
		}
		if err == nil {
			err = f.combineAgain(s.WC)
		}
		if err != nil {
			return fail(f, err)
		}
		return f, nil
	case b.Kind == kindSysfs && len(files) == 1:
		f := &sysfsFunction{dir: h.device(found.Address), id: found.ID, node: found.NUMANode, size: cfgHeader, resting: true}
		f.windows = windows{host: h, addr: found.Address}
		f.uncached = f.mapUncached
		f.config = next(filepath.Join(f.dir, "config")) // and its lock
		if f.bars, err = h.bars(found.Address); err == nil {
			f.Physical, err = dma.UnsafeNoIOMMU()
		}
		if st, failed := f.config.Stat(); failed == nil {
			f.size = int(st.Size())
		}
		if err == nil {
			err = f.combineAgain(s.WC)
		}
		if err != nil {
			return fail(f, err)
		}
		return f, nil
	}
	return nil, fmt.Errorf("pci: inherited function of kind %q with %d files: another version's (%w)", b.Kind, len(b.Files), errAgain)
}

// bequest describes what all functions of this machine have.
func (w *windows) bequest(kind string, physical bool, files ...*os.File) (b Bequest, err error) {
	s := inherited{Address: w.addr, Physical: physical}
	for n, win := range w.wc {
		if win != nil && win.WriteCombining() {
			s.WC = append(s.WC, inheritWC{n, w.split[n]})
		}
	}
	b.Kind = kind
	for _, f := range files {
		b.Files = append(b.Files, int(f.Fd()))
	}
	b.State, err = json.Marshal(s)
	return b, err
}

// combineAgain maps BARs write-combining that the other process has mapped so. The kernel may refuse it while vfio-pci has them.
func (w *windows) combineAgain(all []inheritWC) error {
	for _, k := range all {
		if k.Split != 0 {
			if err := w.SplitWC(k.BAR, k.Split); err != nil {
				return err
			}
		}
		win, err := w.BARWC(k.BAR)
		if err != nil {
			return err
		}
		if !win.WriteCombining() && mmio.PushMethod() != mmio.MOVDIR64B {
			return fmt.Errorf("%v (%w)", w.notes, errAgain)
		}
	}
	return nil
}

// Bequest implements Heritable.
func (f *vfioFunction) Bequest() (Bequest, error) {
	return f.bequest(kindVFIO, f.physical != nil, f.device, f.group, f.container)
}

// Arrive implements Heritable.
func (f *vfioFunction) Arrive() { f.resting = false }

// Leave implements Heritable.
func (f *vfioFunction) Leave() error {
	f.once.Do(func() {
		f.iovas.close()
		f.err = errors.Join(f.windows.close(), f.release())
	})
	return f.err
}

// Adopt implements dma.Adopter.
func (f *vfioFunction) Adopt(m dma.Memory, iova uint64) error {
	if f.physical != nil {
		return f.physical.Adopt(m, iova)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.put(span{iova, iova + uint64(len(m.Bytes))}) {
		return fmt.Errorf("pci: %s: inherited memory of %#x bytes at %#x overlaps other memory", f.addr, len(m.Bytes), iova)
	}
	return nil
}

// Disown implements dma.Adopter.
func (f *vfioFunction) Disown(iova uint64, size int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drop(iova, uint64(size))
}

// Bequest implements Heritable.
func (f *sysfsFunction) Bequest() (Bequest, error) { return f.bequest(kindSysfs, true, f.config) }

// Arrive implements Heritable.
func (f *sysfsFunction) Arrive() { f.resting = false }

// Leave implements Heritable.
func (f *sysfsFunction) Leave() error {
	f.once.Do(func() {
		f.err = errors.Join(f.windows.close(), f.config.Close())
		if f.Physical != nil {
			f.err = errors.Join(f.err, f.Physical.Close())
		}
	})
	return f.err
}
