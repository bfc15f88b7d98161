package pci

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic/bus/mmio"
)

// windows are the BARs of one function of this machine, mapped on first use.
type windows struct {
	host  *host
	addr  string
	bars  [6]bar
	split [6]uint64 // start of the write-combining part, 0 if none

	uc, wc [6]*mmio.Window
	maps   [][]byte
	notes  []string // why write-combining is not available
	closed bool
	shared bool // vfio-pci, the kernel's driver, maps the function's BARs too

	// uncached maps n bytes from offset from of a BAR into the window, or returns a trapped window over it.
	uncached func(n int, from, size uint64) (*mmio.Window, error)
}

// SplitWC implements the interface that the package function SplitWC looks for.
func (w *windows) SplitWC(n int, from uint64) error {
	if err := w.check(n); err != nil {
		return err
	}
	if from == 0 || from >= w.bars[n].size || from%uint64(os.Getpagesize()) != 0 {
		return fmt.Errorf("pci: %s: BAR %d of %#x bytes cannot be split at %#x: %w", w.addr, n, w.bars[n].size, from,
			ErrBAR)
	}
	if w.uc[n] != nil || w.wc[n] != nil {
		return fmt.Errorf("pci: %s: BAR %d is split after its first use: %w", w.addr, n, ErrBAR)
	}
	w.split[n] = from
	return nil
}

// BAR implements Function.
func (w *windows) BAR(n int) (*mmio.Window, error) {
	if err := w.check(n); err != nil {
		return nil, err
	}
	if w.uc[n] != nil {
		return w.uc[n], nil
	}
	if w.wc[n] != nil && w.split[n] == 0 {
		if w.wc[n].WriteCombining() {
			return nil, fmt.Errorf("pci: %s: BAR %d is mapped write-combining, and a page cannot be mapped both ways (SplitWC): %w", w.addr, n, ErrBAR)
		}
		return w.wc[n], nil
	}
	size := w.bars[n].size
	if w.split[n] != 0 {
		size = w.split[n]
		// The uncached mapping claims the whole BAR, after which the kernel refuses the write-combining one.
		if _, err := w.BARWC(n); err != nil {
			return nil, err
		}
		if w.uc[n] != nil {
			return w.uc[n], nil
		}
	}
	win, err := w.uncached(n, 0, size)
	if err != nil {
		return nil, fmt.Errorf("pci: %s: BAR %d: %w: %w", w.addr, n, ErrBAR, rights(err))
	}
	w.uc[n] = win
	return win, nil
}

// BARWC implements Function. The kernel offers write-combining only through the sysfs file resourceN_wc; vfio-pci maps
// a BAR uncached. The file can be used beside vfio-pci while vfio-pci has not claimed the same BAR, if kernel lockdown
// allows it. On amd64 the kernel's table of memory types must confirm it. arm64 has no such table: there the mapping
// counts as asked for, and mlx5, ena and efa measure whether it combines stores, by timing them (mmio.Timing).
func (w *windows) BARWC(n int) (*mmio.Window, error) {
	if err := w.check(n); err != nil {
		return nil, err
	}
	if w.wc[n] != nil {
		return w.wc[n], nil
	}
	if w.uc[n] != nil && w.split[n] == 0 {
		return w.uc[n], nil // its pages are uncached already
	}
	from, size := w.split[n], w.bars[n].size
	win, err := w.combining(n, from, size-from)
	if err != nil {
		note, before := fmt.Sprintf("BAR %d is not mapped write-combining: %v", n, err), len(w.maps)
		if win, err = w.uncached(n, from, size-from); err != nil {
			return nil, fmt.Errorf("pci: %s: BAR %d: %w: %w", w.addr, n, ErrBAR, rights(err))
		}
		// Amazon's patch of vfio-pci (amzn-drivers, enav2-vfio-patch) maps prefetchable BARs write-combining by itself.
		lo := w.bars[n].start
		if runtime.GOARCH == "amd64" && len(w.maps) > before && w.host.combines(span{lo + from, lo + size}, true) {
			win = mmio.Mapped(w.maps[before][:size], true)
		} else {
			w.notes = append(w.notes, note)
		}
	}
	w.wc[n] = win
	return win, nil
}

// combining maps a BAR from the file resourceN_wc, which exists for prefetchable BARs. Of a split BAR it maps the
// uncached part from resourceN, too: vfio-pci claims a BAR when it is mapped from the device's file (Linux 6.12; newer
// kernels when the device is opened), and a kernel with CONFIG_IO_STRICT_DEVMEM then revokes all mappings from sysfs.
// The next store to one is SIGBUS.
func (w *windows) combining(n int, from, size uint64) (*mmio.Window, error) {
	name := fmt.Sprintf("resource%d_wc", n)
	win, err := w.fromSysfs(name, true, from, size)
	if errors.Is(err, unix.EINVAL) {
		err = fmt.Errorf("%w: the kernel reserves claimed BARs for their driver (boot with iomem=relaxed)", err)
	}
	if err != nil {
		return nil, err
	}
	lo := w.bars[n].start
	if runtime.GOARCH == "amd64" && !w.host.combines(span{lo + from, lo + from + size}, w.shared) {
		w.unmapLast()
		return nil, fmt.Errorf("%s: the kernel mapped it with another memory type (/sys/kernel/debug/x86/pat_memtype_list)", name)
	}
	if from > 0 {
		if w.uc[n], err = w.fromSysfs(fmt.Sprintf("resource%d", n), false, 0, from); err != nil {
			w.unmapLast()
			return nil, err
		}
	}
	return win, nil
}

// fromSysfs maps a part of a BAR from one of the function's files.
func (w *windows) fromSysfs(name string, wc bool, from, size uint64) (*mmio.Window, error) {
	f, err := os.OpenFile(filepath.Join(w.host.device(w.addr), name), os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	win, err := w.mapped(from+size, wc, piece{fd: int(f.Fd()), file: int64(from), at: from, size: size})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return win, nil
}

// unmapLast unmaps the window that was mapped last.
func (w *windows) unmapLast() {
	last := len(w.maps) - 1
	unix.Munmap(w.maps[last])
	w.maps = w.maps[:last]
}

// combines reports whether x86's table of memory types lists a physical range as write-combining. If the range is
// already mapped uncached elsewhere, as by vfio-pci, a request for write-combining succeeds but silently gets uncached
// (seen with Linux 7.2). If the table cannot be read, shared means that this is to be expected.
func (h *host) combines(r span, shared bool) bool {
	table, err := os.ReadFile(filepath.Join(h.sys, "kernel/debug/x86/pat_memtype_list"))
	if err != nil {
		return !shared
	}
	found := false
	for line := range strings.Lines(string(table)) {
		var lo, hi uint64
		var kind string
		n, _ := fmt.Sscanf(line, "PAT: [mem 0x%x-0x%x] %s", &lo, &hi, &kind)
		if n != 3 { // kernels before 5.7
			n, _ = fmt.Sscanf(line, "%s @ 0x%x-0x%x", &kind, &lo, &hi)
		}
		if n != 3 || hi <= r.lo || lo >= r.hi {
			continue
		}
		if kind != "write-combining" {
			return false
		}
		found = true
	}
	return found
}

// mapped returns a window of size bytes that consists of pieces.
func (w *windows) mapped(size uint64, wc bool, pieces ...piece) (*mmio.Window, error) {
	b, err := mapPieces(size, pieces...)
	if err != nil {
		return nil, err
	}
	w.maps = append(w.maps, b)
	return mmio.Mapped(b[:size], wc), nil
}

// check returns why BAR n cannot be used, nil if it can.
func (w *windows) check(n int) error {
	switch {
	case w.closed:
		return fmt.Errorf("pci: %s: %w", w.addr, errClosed)
	case n < 0 || n > 5 || w.bars[n].size == 0:
		return fmt.Errorf("pci: %s has no BAR %d: %w", w.addr, n, ErrBAR)
	case w.bars[n].io:
		return fmt.Errorf("pci: %s: BAR %d is a range of I/O ports: %w", w.addr, n, ErrBAR)
	}
	return nil
}

// close retires all windows and unmaps them.
func (w *windows) close() error {
	w.closed = true
	for _, win := range append(w.uc[:], w.wc[:]...) {
		if win != nil {
			win.Retire()
		}
	}
	var errs []error
	for _, b := range w.maps {
		errs = append(errs, unix.Munmap(b))
	}
	w.maps = nil
	return errors.Join(errs...)
}
