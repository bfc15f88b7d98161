package pci

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/must"
)

// kernel plays Linux for the tests: a tree of files instead of /sys, /dev and /run, whose attributes behave like the
// kernel's, and the VFIO calls.
type kernel struct {
	host
	t    *testing.T
	log  []string          // attribute writes and VFIO calls that change something
	home map[string]string // the driver that the kernel itself would choose, by address
	deny string            // a driver that refuses to take functions

	viable bool
	info   [2]uint32 // of the device: flags, the number of its regions
	ranges []span
	sparse []span // of BAR 0
	mapped map[uint64]uint64
	mapErr error
	noMmap bool
	device *os.File // regions, each 1 MiB apart
}

const regionStride = 1 << 20

func newKernel(t *testing.T) *kernel {
	root := t.TempDir()
	k := &kernel{t: t, home: map[string]string{}, viable: true, info: [2]uint32{1 | 2, 9}, mapped: map[uint64]uint64{},
		ranges: []span{{0, 0xfedfffff}, {0xfef00000, 1<<39 - 1}}}
	k.host = host{sys: root + "/sys", dev: root + "/dev", run: root + "/run", write: k.attribute, ioctl: k.vfio}
	k.modules = func(name string) error { return fmt.Errorf("no module %s", name) }
	k.file("sys/bus/pci/drivers_probe", "")
	k.file("dev/vfio/vfio", "")
	k.memoryTypes(bar2 + "write-combining")
	return k
}

func (k *kernel) path(name string) string { return filepath.Join(filepath.Dir(k.sys), name) }

func (k *kernel) file(name, content string) {
	k.t.Helper()
	must.OK(k.t, os.MkdirAll(filepath.Dir(k.path(name)), 0o755))
	must.OK(k.t, os.WriteFile(k.path(name), []byte(content), 0o644))
}

func (k *kernel) link(name, to string) {
	k.t.Helper()
	must.OK(k.t, os.MkdirAll(filepath.Dir(k.path(name)), 0o755))
	must.OK(k.t, os.Symlink(to, k.path(name)))
}

// bar2 is the kernel's table of memory types before that of BAR 2.
const bar2 = "PAT memtype list:\nPAT: [mem 0x00000000f1000000-0x00000000f1004000] "

func (k *kernel) memoryTypes(table string) {
	k.file("sys/kernel/debug/x86/pat_memtype_list", table+"\n")
}

// at returns a byte of the device's regions.
func (k *kernel) at(off int64) byte {
	b := make([]byte, 1)
	k.device.ReadAt(b, off)
	return b[0]
}

func (k *kernel) command() byte { return k.at(regionConfig*regionStride + cfgCommand) }

func (k *kernel) driverModule(names ...string) {
	for _, n := range names {
		k.file("sys/bus/pci/drivers/"+n+"/bind", "")
		k.file("sys/bus/pci/drivers/"+n+"/unbind", "")
	}
}

// card adds a function with BARs of 64 KiB (0) and 16 KiB (2, prefetchable) and I/O ports (4).
func (k *kernel) card(addr, driver, group string, interfaces ...string) {
	dir := "sys/bus/pci/devices/" + addr + "/"
	k.file(dir+"config", string(card()))
	k.file(dir+"numa_node", "1\n")
	k.file(dir+"resource", "0xf0000000 0xf000ffff 0x00040200\n0x0 0x0 0x0\n0xf1000000 0xf1003fff 0x0014220c\n0x0 0x0 0x0\n0x6000 0x601f 0x00040101\n0x0 0x0 0x0\n")
	for _, attribute := range []string{"driver_override", "enable", "reset"} {
		k.file(dir+attribute, "")
	}
	k.file(dir+"resource0", strings.Repeat("\x00", 0x10000))
	k.file(dir+"resource2", strings.Repeat("\x00", 0x4000))
	k.file(dir+"resource2_wc", strings.Repeat("\x00", 0x4000))
	for _, i := range interfaces {
		k.file(dir+"net/"+i+"/mtu", "1500")
	}
	if driver != "" {
		k.driverModule(driver)
		k.link(dir+"driver", k.path("sys/bus/pci/drivers/"+driver))
		k.home[addr] = driver
	}
	if group != "" {
		k.link(dir+"iommu_group", k.path("sys/kernel/iommu_groups/"+group))
		k.link("sys/kernel/iommu_groups/"+group+"/devices/"+addr, k.path(dir))
		k.file("dev/vfio/"+group, "")
	}
}

func (k *kernel) attribute(path, value string) error {
	rel, _ := filepath.Rel(k.sys, path)
	if _, err := os.Stat(path); err != nil {
		return err
	}
	k.log = append(k.log, rel+"="+strings.TrimSpace(value))
	addr := value
	dir := k.host.device(addr)
	bound := linkName(filepath.Join(dir, "driver"))
	bind := func(driver string) error {
		if _, err := os.Stat(k.driver(driver)); err != nil || driver == "" || driver == k.deny {
			return nil
		}
		return os.Symlink(k.driver(driver), filepath.Join(dir, "driver"))
	}
	switch base := filepath.Base(path); {
	case base == "driver_override":
		return os.WriteFile(path, []byte(value), 0o644)
	case base == "unbind":
		if bound == "" {
			return unix.ENODEV
		}
		return os.Remove(filepath.Join(dir, "driver"))
	case base == "drivers_probe" && bound == "":
		if o := k.text(dir, "driver_override"); o != "" {
			return bind(o)
		}
		return bind(k.home[addr])
	case base == "bind":
		return bind(filepath.Base(filepath.Dir(path)))
	case base == "reset":
		cfg, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "config"))
		k.log = append(k.log, fmt.Sprintf("command was %#x", cfg[cfgCommand]))
	}
	return nil
}

func (k *kernel) vfio(fd int, req, value uintptr, arg unsafe.Pointer) (int, error) {
	argsz := func(want uintptr) {
		if got := *(*uint32)(arg); uintptr(got) < want {
			k.t.Errorf("VFIO call %#x with argsz %d, want at least %d", req, got, want)
		}
	}
	note := func(format string, a ...any) { k.log = append(k.log, fmt.Sprintf(format, a...)) }
	switch req {
	case 0x3b64: // VFIO_GET_API_VERSION
		return 0, nil
	case 0x3b65: // VFIO_CHECK_EXTENSION
		if value != 3 && value != 8 { // type 1 v2, and none
			return 0, nil
		}
		return 1, nil
	case 0x3b67: // VFIO_GROUP_GET_STATUS
		argsz(8)
		(*vfioGroupStatus)(arg).flags = 2 // it has a container
		if k.viable {
			(*vfioGroupStatus)(arg).flags |= 1
		}
	case 0x3b68: // VFIO_GROUP_SET_CONTAINER
		note("set container")
	case 0x3b66: // VFIO_SET_IOMMU
		note("set iommu %d", value)
	case 0x3b70: // VFIO_IOMMU_GET_INFO
		info := (*vfioIOMMUInfo)(arg)
		given := info.argsz
		need := uint32(24 + 16 + 16*len(k.ranges))
		*info = vfioIOMMUInfo{argsz: need, flags: 2 | 1, pageSizes: 1<<12 | 1<<21}
		if given < need {
			break
		}
		info.capOffset = 24
		out := unsafe.Slice((*byte)(arg), need)[24:]
		*(*[4]uint16)(unsafe.Pointer(&out[0])) = [4]uint16{1, 1, 0, 0}
		*(*uint32)(unsafe.Pointer(&out[8])) = uint32(len(k.ranges))
		for i, r := range k.ranges {
			*(*[2]uint64)(unsafe.Pointer(&out[16+16*i])) = [2]uint64{r.lo, r.hi}
		}
	case 0x3b6a: // VFIO_GROUP_GET_DEVICE_FD
		note("device %s", unix.BytePtrToString((*byte)(arg)))
		return unix.Dup(int(k.device.Fd()))
	case 0x3b6b: // VFIO_DEVICE_GET_INFO
		argsz(20)
		info := (*vfioDeviceInfo)(arg)
		info.flags, info.regions = k.info[0], k.info[1]
	case 0x3b6c: // VFIO_DEVICE_GET_REGION_INFO
		argsz(32)
		r := (*vfioRegionInfo)(arg)
		given := r.argsz
		size := map[uint32]uint64{0: 0x10000, 2: 0x4000, 4: 32, 7: cfgExtendedSize}[r.index]
		*r = vfioRegionInfo{argsz: 32, flags: 3, index: r.index, size: size, offset: uint64(r.index) * regionStride}
		if r.index < 4 && size > 0 && !k.noMmap {
			r.flags |= 4
		}
		if r.index == 0 && k.sparse != nil {
			r.flags |= 8
			r.argsz = uint32(32 + 16 + 16*len(k.sparse))
			if given >= r.argsz {
				r.capOffset = 32
				out := unsafe.Slice((*byte)(arg), r.argsz)[32:]
				*(*[4]uint16)(unsafe.Pointer(&out[0])) = [4]uint16{1, 1, 0, 0}
				*(*uint32)(unsafe.Pointer(&out[8])) = uint32(len(k.sparse))
				for i, s := range k.sparse {
					*(*[2]uint64)(unsafe.Pointer(&out[16+16*i])) = [2]uint64{s.lo, s.hi - s.lo}
				}
			}
		}
	case 0x3b6f: // VFIO_DEVICE_RESET
		note("reset")
	case 0x3b71: // VFIO_IOMMU_MAP_DMA
		argsz(32)
		m := (*vfioDMAMap)(arg)
		if k.mapErr != nil {
			return -1, k.mapErr
		}
		inside := false
		for _, r := range k.ranges {
			inside = inside || m.iova >= r.lo && m.iova+m.size-1 <= r.hi
		}
		for at, size := range k.mapped {
			if m.iova < at+size && at < m.iova+m.size {
				return -1, unix.EEXIST
			}
		}
		if !inside || m.flags != 1|2 || m.vaddr%4096 != 0 {
			return -1, unix.EINVAL
		}
		k.mapped[m.iova] = m.size
	case 0x3b72: // VFIO_IOMMU_UNMAP_DMA
		argsz(24)
		m := (*vfioDMAUnmap)(arg)
		if k.mapped[m.iova] != m.size {
			m.size = 0
		}
		delete(k.mapped, m.iova)
	default:
		k.t.Errorf("VFIO call %#x", req)
		return -1, unix.ENOTTY
	}
	return 0, nil
}

func (k *kernel) backDevice() {
	f := must.Get(os.Create(k.path("device")))(k.t)
	k.t.Cleanup(func() { f.Close() })
	must.OK(k.t, f.Truncate(9*regionStride))
	if _, err := f.WriteAt(card(), regionConfig*regionStride); err != nil {
		k.t.Fatal(err)
	}
	k.device = f
}
