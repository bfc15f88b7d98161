package pci

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic/bus"
	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
)

// vfioFunction is a function bound to vfio-pci. When this process exits, even after SIGKILL, the kernel turns bus
// mastering off, resets the function and empties the IOMMU before it reuses the memory.
type vfioFunction struct {
	windows
	iovas
	id      ID
	node    int
	regions [regionConfig + 1]vfioRegionInfo
	flags   uint32

	container, group, device *os.File
	config                   *os.File      // of sysfs, from the first WriteReal on
	physical                 *dma.Physical // without an IOMMU

	once sync.Once
	err  error
}

// openVFIO opens the function at addr, which must be bound to vfio-pci. unsafeNoIOMMU allows vfio-pci's mode without an
// IOMMU, where the device can write to any memory. A process can open one function of an IOMMU group.
func openVFIO(addr string, unsafeNoIOMMU bool) (Function, error) {
	f, err := machine.openVFIO(addr, unsafeNoIOMMU)
	if err != nil {
		return nil, err // not a nil *vfioFunction in a Function
	}
	return f, nil
}

// Openable returns the error that Open has, as far as it is known without changing anything or opening a file: another
// driver has the function, or it needs an IOMMU or the consent to go without.
func Openable(f *Found, unsafeNoIOMMU bool) error {
	if f.Driver == "" && unsafeNoIOMMU {
		return nil
	}
	_, err := machine.openable(f, unsafeNoIOMMU)
	return err
}

// Open opens the function at addr with openVFIO if it is bound to vfio-pci, and with openSysfs otherwise.
func Open(addr string, unsafeNoIOMMU bool) (Function, error) {
	f, err := machine.find(addr)
	switch {
	case err != nil:
		return nil, err
	case f.Driver == "" && unsafeNoIOMMU:
		return openSysfs(addr, unsafeNoIOMMU)
	}
	return openVFIO(addr, unsafeNoIOMMU)
}

// openVFIO opens a function that is bound to vfio-pci: its group, its container and its device. Without an IOMMU the
// device can write to all memory: this needs unsafeNoIOMMU. Errors say which driver has the function, and how to bind
// it.
func (h *host) openVFIO(addr string, unsafeNoIOMMU bool) (_ *vfioFunction, err error) {
	found, err := h.find(addr)
	if err != nil {
		return nil, err
	}
	addr = found.Address
	noIOMMU, err := h.openable(&found, unsafeNoIOMMU)
	if err != nil {
		return nil, err
	}

	f := &vfioFunction{id: found.ID, node: found.NUMANode}
	f.windows = windows{host: h, addr: addr, shared: true}
	f.uncached = f.mapUncached
	defer func() {
		if err != nil {
			err = fmt.Errorf("pci: %s: %w", addr, err)
			f.release()
		}
	}()
	if err := f.openContainer(noIOMMU); err != nil {
		return nil, err
	}
	if err := f.openGroup(found); err != nil {
		return nil, err
	}
	if err := f.setIOMMU(noIOMMU); err != nil {
		return nil, err
	}
	if err := f.openDevice(); err != nil {
		return nil, err
	}
	if err := setCommand(f, cmdMemory|cmdINTxDisable, cmdBusMaster); err != nil {
		return nil, err
	}
	return f, nil
}

// openable returns an error if a function cannot be opened by openVFIO, and otherwise whether vfio-pci has it without
// an IOMMU.
func (h *host) openable(f *Found, unsafeNoIOMMU bool) (noIOMMU bool, err error) {
	switch {
	case mmio.PureGo:
		return false, fmt.Errorf("pci: %s: a purego build has no barriers for a device: %w", f.Address,
			errors.ErrUnsupported)
	case f.Driver == "":
		return false, h.driverless(*f)
	case f.Driver != vfioDriver:
		return false, fmt.Errorf("pci: %s belongs to kernel driver %s (rebound-responder bind %s): %w", f.Address,
			f.Driver, f.Address, bus.ErrBusy)
	case f.Group == "":
		return false, fmt.Errorf("pci: %s: %w: boot with intel_iommu=on or amd_iommu=on", f.Address, errNoIOMMU)
	}
	if noIOMMU = h.withoutIOMMU(f.Group); noIOMMU && !unsafeNoIOMMU {
		return true, fmt.Errorf(
			"pci: %s: vfio-pci has it without an IOMMU, so that it can write to any memory: set nic.unsafe_no_iommu to accept that: %w", f.Address, errNoIOMMU)
	}
	return noIOMMU, nil
}

// driverless returns the error for a function without a kernel driver: it needs vfio-pci if there is an IOMMU, and the
// user's consent if there is none.
func (h *host) driverless(f Found) error {
	const without = "no kernel driver has it (bind -no-driver)"
	const consent = "set nic.unsafe_no_iommu = true to use it anyway, able to write to any memory"
	switch {
	case f.Group == "":
		return fmt.Errorf("pci: %s is not bound to vfio-pci: %s: %w: %s; if the machine has an IOMMU, boot with intel_iommu=on or amd_iommu=on, and give it to "+
			"vfio-pci (rebound-responder bind %s)", f.Address, without, errNoIOMMU, consent, f.Address)
	case h.text(h.device(f.Address), "iommu_group/type") == "identity":
		return fmt.Errorf("pci: %s is not bound to vfio-pci: %s: give it to vfio-pci (rebound-responder bind %s); the IOMMU does not translate its addresses (group %s, type identity), so "+
			"it also works without: %s: %w", f.Address, without, f.Address, f.Group, consent, bus.ErrBusy)
	}
	return fmt.Errorf("pci: %s is not bound to vfio-pci: %s: there is an IOMMU, so give it to vfio-pci (rebound-responder bind %s): %w", f.Address, without, f.Address, bus.ErrBusy)
}

// openContainer opens /dev/vfio/vfio and checks that the kernel has the API and the kind of IOMMU that is needed.
func (f *vfioFunction) openContainer(noIOMMU bool) (err error) {
	f.container, err = os.OpenFile(filepath.Join(f.host.dev, "vfio/vfio"), os.O_RDWR|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: the kernel has no VFIO container (modprobe vfio-pci)", err)
	}
	if err != nil {
		return rights(err)
	}
	v, err := f.call(f.container, vfioGetAPIVersion, 0)
	if err != nil || v != vfioAPIVersion {
		return fmt.Errorf("VFIO API version %d, want %d: %w", v, vfioAPIVersion,
			errors.Join(err, errors.ErrUnsupported))
	}
	kind := uintptr(vfioType1v2IOMMU)
	if noIOMMU {
		kind = vfioNoIOMMU
	}
	v, err = f.call(f.container, vfioCheckExtension, kind)
	// the kernel loads it together with vfio only if its own helper is set up
	if v != 1 && f.host.modules("vfio_iommu_type1") == nil {
		v, err = f.call(f.container, vfioCheckExtension, kind)
	}
	if v != 1 {
		return fmt.Errorf("VFIO has no IOMMU of type %d (modprobe vfio_iommu_type1): %w", kind,
			errors.Join(err, errors.ErrUnsupported))
	}
	return nil
}

// openGroup opens the function's IOMMU group and adds it to the container. Every function of the group must belong to
// vfio-pci or to no driver.
func (f *vfioFunction) openGroup(found Found) (err error) {
	f.group, err = os.OpenFile(f.host.groupFile(found.Group), os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return f.host.groupError(found, err)
	}
	status := vfioGroupStatus{argsz: uint32(unsafe.Sizeof(vfioGroupStatus{}))}
	if err := f.fill(f.group, vfioGroupGetStatus, unsafe.Pointer(&status)); err != nil {
		return fmt.Errorf("VFIO_GROUP_GET_STATUS: %w", err)
	}
	if status.flags&groupViable == 0 {
		return fmt.Errorf("%w: group %s also has %s: give them to vfio-pci too, or unbind them from their drivers",
			errGroup, found.Group, strings.Join(f.host.othersInGroup(found), ", "))
	}
	fd := int32(f.container.Fd())
	if err := f.fill(f.group, vfioGroupSetContainer, unsafe.Pointer(&fd)); err != nil {
		return fmt.Errorf("VFIO_GROUP_SET_CONTAINER: %w", rights(err))
	}
	return nil
}

// setIOMMU turns translation on and reads which I/O addresses may be mapped. Without an IOMMU it prepares for
// physical addresses instead.
func (f *vfioFunction) setIOMMU(noIOMMU bool) (err error) {
	kind := uintptr(vfioType1v2IOMMU)
	if noIOMMU {
		kind = vfioNoIOMMU
	}
	if _, err := f.call(f.container, vfioSetIOMMU, kind); err != nil {
		hint := ""
		if errors.Is(err, unix.EPERM) && !noIOMMU {
			hint = " (the kernel considers the IOMMU unsafe: no interrupt remapping)"
		}
		return fmt.Errorf("VFIO_SET_IOMMU type %d%s: %w", kind, hint, rights(err))
	}
	if noIOMMU {
		f.physical, err = dma.UnsafeNoIOMMU()
		return err
	}
	ranges, err := f.iovaRanges()
	if err != nil {
		return err
	}
	f.iovas = newIOVAs(ranges)
	return nil
}

// openDevice obtains the device from the group, which resets the function, and checks that it is a PCI function.
func (f *vfioFunction) openDevice() error {
	name, err := unix.BytePtrFromString(f.addr)
	if err != nil {
		return err
	}
	fd, err := f.host.ioctl(int(f.group.Fd()), vfioGroupGetDeviceFD, 0, unsafe.Pointer(name))
	if err != nil {
		return fmt.Errorf("VFIO_GROUP_GET_DEVICE_FD: %w", rights(err))
	}
	unix.CloseOnExec(fd)
	f.device = os.NewFile(uintptr(fd), f.addr)
	info := vfioDeviceInfo{argsz: uint32(unsafe.Sizeof(vfioDeviceInfo{}))}
	if err := f.fill(f.device, vfioDeviceGetInfo, unsafe.Pointer(&info)); err != nil {
		return fmt.Errorf("VFIO_DEVICE_GET_INFO: %w", err)
	}
	if info.flags&devicePCI == 0 || info.regions <= regionConfig {
		return fmt.Errorf("VFIO_DEVICE_GET_INFO: flags %#x and %d regions are not those of a PCI function: %w",
			info.flags, info.regions, errors.ErrUnsupported)
	}
	f.flags = info.flags
	sysfs, err := f.host.bars(f.addr) // VFIO does not say which BARs are I/O ports
	if err != nil {
		return err
	}
	for i := range f.regions {
		r := &f.regions[i]
		*r = vfioRegionInfo{argsz: uint32(unsafe.Sizeof(*r)), index: uint32(i)}
		if err := f.fill(f.device, vfioDeviceGetRegionInfo, unsafe.Pointer(r)); err != nil {
			return fmt.Errorf("VFIO_DEVICE_GET_REGION_INFO %d: %w", i, err)
		}
		if i < len(f.bars) {
			f.bars[i] = bar{start: sysfs[i].start, size: r.size, io: sysfs[i].io, prefetch: sysfs[i].prefetch}
		}
	}
	if f.regions[regionConfig].size < cfgSize {
		return fmt.Errorf("configuration region of %#x bytes: %w", f.regions[regionConfig].size, errConfig)
	}
	return nil
}

// call makes an ioctl with a value.
func (f *vfioFunction) call(file *os.File, req, value uintptr) (int, error) {
	return f.host.ioctl(int(file.Fd()), req, value, nil)
}

// fill makes an ioctl with a struct.
func (f *vfioFunction) fill(file *os.File, req uintptr, arg unsafe.Pointer) error {
	_, err := f.host.ioctl(int(file.Fd()), req, 0, arg)
	return err
}

func (f *vfioFunction) Name() string    { return f.addr }
func (f *vfioFunction) ID() ID          { return f.id }
func (f *vfioFunction) Simulated() bool { return IsModel(f) }

// NUMANode returns the function's NUMA node, -1 if unknown.
func (f *vfioFunction) NUMANode() int { return f.node }

// Notes lists unusual conditions of the function.
func (f *vfioFunction) Notes() []string {
	if f.physical == nil {
		return f.notes
	}
	return append([]string{"no IOMMU: the device can write to any memory"}, f.notes...)
}

func (f *vfioFunction) ReadConfig(off int, p []byte) error {
	r := &f.regions[regionConfig]
	if err := checkAccess(f.addr, off, p, int(r.size)); err != nil {
		return err
	}
	_, err := f.device.ReadAt(p, int64(r.offset)+int64(off))
	return err
}

func (f *vfioFunction) WriteConfig(off int, p []byte) error {
	r := &f.regions[regionConfig]
	if err := checkAccess(f.addr, off, p, int(r.size)); err != nil {
		return err
	}
	_, err := f.device.WriteAt(p, int64(r.offset)+int64(off))
	return err
}

// WriteReal writes through sysfs, unless the value is already there. The file stays open: a process that gave its
// rights up could not open it again. Without CAP_SYS_ADMIN the kernel lets the file be written, but of no more than 64
// bytes be read.
func (f *vfioFunction) WriteReal(off int, p []byte) (err error) {
	if f.config == nil {
		f.config, err = os.OpenFile(filepath.Join(f.host.device(f.addr), "config"), os.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			f.config = nil
			return fmt.Errorf("pci: %s: %w", f.addr, rights(err))
		}
	}
	now := make([]byte, len(p))
	for range 2 {
		n, err := f.config.ReadAt(now, int64(off))
		if err != nil && err != io.EOF {
			return fmt.Errorf("pci: %s: %w", f.addr, err)
		}
		if bytes.Equal(now[:n], p) {
			return nil
		}
		if _, err := f.config.WriteAt(p, int64(off)); err != nil {
			return fmt.Errorf("pci: %s: configuration space %#x: %w", f.addr, off, rights(err))
		}
		if n == 0 {
			return nil
		}
	}
	return fmt.Errorf("pci: %s: configuration space %#x reads % x, expected % x: %w", f.addr, off, now, p, errConfig)
}

func (f *vfioFunction) SetBusMaster(on bool) error { return setBusMaster(f, on) }

// Reset asks the kernel for the best reset it has; the kernel preserves configuration space. Bus mastering is off
// afterwards.
func (f *vfioFunction) Reset() error {
	if f.flags&deviceReset == 0 {
		return fmt.Errorf("pci: %s: the kernel has no way to reset this function: %w", f.addr, errors.ErrUnsupported)
	}
	if _, err := f.call(f.device, vfioDeviceReset, 0); err != nil {
		return fmt.Errorf("pci: %s: VFIO_DEVICE_RESET: %w", f.addr, err)
	}
	return setCommand(f, cmdMemory|cmdINTxDisable, cmdBusMaster)
}

// mapUncached maps the parts of a region that the kernel allows. A region that cannot be mapped at all is accessed with
// reads and writes of the device's file.
func (f *vfioFunction) mapUncached(n int, from, size uint64) (*mmio.Window, error) {
	r := &f.regions[n]
	if r.flags&regionMmap == 0 {
		return mmio.Trapped(from+size, regionTrap{f, n}, nil, nil), nil
	}
	areas, err := f.mappable(n)
	if err != nil {
		return nil, err
	}
	var pieces []piece
	for _, a := range areas {
		lo, hi := max(a.lo, from), min(a.hi, from+size)
		if lo < hi {
			pieces = append(pieces, piece{fd: int(f.device.Fd()), file: int64(r.offset + lo), at: lo, size: hi - lo})
		}
	}
	return f.mapped(from+size, false, pieces...)
}

// span is a range of offsets or addresses, hi excluded.
type span struct{ lo, hi uint64 }

// mappable returns the ranges of a region that can be mapped: all of it, unless a capability excludes some (old
// kernels: the MSI-X table).
func (f *vfioFunction) mappable(n int) ([]span, error) {
	r := f.regions[n]
	if r.flags&regionCaps == 0 {
		return []span{{0, r.size}}, nil
	}
	buf := make([]byte, min(r.argsz, 1<<16))
	*(*vfioRegionInfo)(unsafe.Pointer(&buf[0])) = vfioRegionInfo{argsz: uint32(len(buf)), index: uint32(n)}
	if err := f.fill(f.device, vfioDeviceGetRegionInfo, unsafe.Pointer(&buf[0])); err != nil {
		return nil, fmt.Errorf("VFIO_DEVICE_GET_REGION_INFO %d with capabilities: %w", n, err)
	}
	off := (*vfioRegionInfo)(unsafe.Pointer(&buf[0])).capOffset
	body, ok := vfioCapability(buf, off, capSparseMmap)
	if !ok {
		return []span{{0, r.size}}, nil
	}
	var areas []span
	for _, a := range vfioPairs(body) {
		if a[0] > r.size || a[1] > r.size-a[0] {
			return nil, fmt.Errorf("region %d of %#x bytes has a mappable range of %#x at %#x: %w", n, r.size, a[1],
				a[0], ErrBAR)
		}
		areas = append(areas, span{a[0], a[0] + a[1]})
	}
	return areas, nil
}

// regionTrap accesses a BAR through the device's file.
type regionTrap struct {
	f *vfioFunction
	n int
}

func (t regionTrap) ReadBAR(off uint64, p []byte) error {
	_, err := t.f.device.ReadAt(p, int64(t.f.regions[t.n].offset+off))
	return err
}

func (t regionTrap) WriteBAR(off uint64, p []byte) error {
	_, err := t.f.device.WriteAt(p, int64(t.f.regions[t.n].offset+off))
	return err
}

// Close implements Function. Later calls return the same error.
func (f *vfioFunction) Close() error {
	f.once.Do(func() {
		var errs []error
		if !Gone(f) {
			errs = append(errs, f.SetBusMaster(false))
		}
		f.iovas.close()
		f.err = errors.Join(append(errs, f.windows.close(), f.release())...)
	})
	return f.err
}

// release closes the files. Closing the container's last file removes all of its mappings from the IOMMU.
func (f *vfioFunction) release() error {
	var errs []error
	for _, file := range []*os.File{f.config, f.device, f.group, f.container} {
		if file != nil {
			errs = append(errs, file.Close())
		}
	}
	if f.physical != nil {
		errs = append(errs, f.physical.Close())
	}
	return errors.Join(errs...)
}

// Translated implements the interface that the package function Translated looks for.
func (f *vfioFunction) Translated() bool { return f.physical == nil }

// withoutIOMMU reports whether a group was created by vfio-pci for a function without an IOMMU.
func (h *host) withoutIOMMU(group string) bool {
	return h.text(filepath.Join(h.sys, "kernel/iommu_groups", group), "name") == "vfio-noiommu"
}

// groupFile returns the file of an IOMMU group.
func (h *host) groupFile(group string) string {
	if h.withoutIOMMU(group) {
		group = "noiommu-" + group
	}
	return filepath.Join(h.dev, "vfio", group)
}

// groupError explains why a group's file cannot be opened.
func (h *host) groupError(f Found, err error) error {
	switch {
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("a process has IOMMU group %s open (fuser -v %s): %w", f.Group, h.groupFile(f.Group),
			bus.ErrBusy)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: no VFIO file for IOMMU group %s (vfio-pci creates it): %w", errGroup, f.Group, err)
	}
	return rights(err)
}

// othersInGroup returns the functions of a group that belong to host drivers.
func (h *host) othersInGroup(f Found) []string {
	var names []string
	entries, _ := os.ReadDir(filepath.Join(h.device(f.Address), "iommu_group/devices"))
	for _, e := range entries {
		d := linkName(filepath.Join(h.device(e.Name()), "driver"))
		if e.Name() == f.Address || d == "" || d == vfioDriver || d == "pcieport" || d == "pci-stub" {
			continue
		}
		names = append(names, fmt.Sprintf("%s (%s)", e.Name(), d))
	}
	if names == nil {
		return []string{"functions that are not visible here"}
	}
	return names
}

// vfioCapability returns the body, after the header, of the capability with an ID in the chain that begins at offset
// off of info (vfio_info_cap_header: id, version, offset of the next from the start of info).
func vfioCapability(info []byte, off uint32, id uint16) ([]byte, bool) {
	for range len(info) / 8 {
		if off == 0 || uint64(off)+8 > uint64(len(info)) {
			return nil, false
		}
		head := info[off:]
		if leUint16(head) == id {
			return head[8:], true
		}
		off = leUint32(head[4:])
	}
	return nil, false
}

// vfioPairs returns the pairs of 64-bit numbers in a capability's body: their number, a reserved word, the pairs. Pairs
// beyond the end of the body are left out.
func vfioPairs(body []byte) [][2]uint64 {
	if len(body) < 8 {
		return nil
	}
	n := leUint32(body)
	var pairs [][2]uint64
	for r := bytes.NewBuffer(body[8:]); n > 0 && r.Len() >= 16; n-- {
		p := r.Next(16)
		pairs = append(pairs, [2]uint64{leUint64(p), leUint64(p[8:])})
	}
	return pairs
}
