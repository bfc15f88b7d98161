package pci

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic/bus"
	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

func vfioKernel(t *testing.T) *kernel {
	if mmio.PureGo {
		t.Skip("purego build: devices are refused")
	}
	k := newKernel(t)
	k.card(addr0, vfioDriver, "7")
	k.backDevice()
	return k
}

func TestVFIO(t *testing.T) {
	k := vfioKernel(t)
	fds := openFiles(t)
	f := must.Get(k.openVFIO("03:00.0", false))(t)
	check.Same(t, k.log, []string{"set container", "set iommu 3", "device " + addr0}, "the kernel saw %q")
	if f.Name() != addr0 || f.ID().Device != 0x10fb || f.Simulated() || f.NUMANode() != 1 || Notes(f) != nil {
		t.Errorf("name %s, ID %v, node %d, notes %q", f.Name(), f.ID(), f.NUMANode(), Notes(f))
	}
	command := func() uint16 { v, _ := read16(f, cfgCommand); return v }
	check.Equal(t, command(), cmdMemory|cmdINTxDisable, "command is %#x after open")
	if err := f.SetBusMaster(true); err != nil || command()&cmdBusMaster == 0 {
		t.Errorf("bus mastering: %v, command %#x", err, command())
	}
	if err := f.Reset(); err != nil || command()&cmdBusMaster != 0 || k.log[len(k.log)-1] != "reset" {
		t.Errorf("reset: %v, command %#x, kernel %q", err, command(), k.log)
	}
	for _, access := range []struct{ off, n int }{{-4, 4}, {1, 2}, {2, 4}, {0, 3}, {0, 8}, {0x1000, 4}} {
		check.Fails(t, fmt.Sprintf("%d bytes of configuration at %#x", access.n, access.off),
			f.ReadConfig(access.off, make([]byte, access.n)), errConfig)
	}

	w := must.Get(f.BAR(0))(t)
	w.Write32(0x1234&^3, 0xc0ffee00)
	seen := make([]byte, 4)
	k.device.ReadAt(seen, 0x1234)
	if w.Size() != 0x10000 || w.WriteCombining() || !slices.Equal(seen, []byte{0, 0xee, 0xff, 0xc0}) {
		t.Errorf("BAR 0: size %#x, the device has %x", w.Size(), seen)
	}
	check.Equal(t, must.Get(f.BAR(0))(t), w, "a second window of BAR 0: %p")
	if same, err := f.BARWC(0); err != nil || same != w || same.WriteCombining() {
		t.Errorf("BARWC of a BAR that is mapped uncached: %v, %v", same, err)
	}
	wc, err := f.BARWC(2)
	if err != nil || !wc.WriteCombining() || wc.Size() != 0x4000 {
		t.Fatalf("BARWC(2): %+v, %v", wc, err)
	}
	wc.Write32(0x40, 0x11111111)
	if b, _ := os.ReadFile(k.host.device(addr0) + "/resource2_wc"); b[0x40] != 0x11 {
		t.Error("the write-combining window is not that of resource2_wc")
	}
	check.Fails(t, "BAR(2), mapped write-combining", check.Err(f.BAR(2)), ErrBAR)
	for _, n := range []int{-1, 1, 4, 6} {
		check.Fails(t, fmt.Sprintf("BAR(%d)", n), check.Err(f.BAR(n)), ErrBAR)
	}
	check.Fails(t, "a BAR that is too small", check.Err(Registers(f, 0, 0x10001)), ErrBAR)
	if got, err := Registers(f, 0, 0x10000); got != w || err != nil {
		t.Errorf("Registers: %v", err)
	}
	must.OK(t, f.SetBusMaster(true))

	arena := must.Get(dma.NewArena(f, 4<<20))(t)
	check.Equal(t, len(k.mapped), 1, "%d mappings in the IOMMU")
	for range 2 {
		must.Close(t, f)
	}
	check.Equal(t, k.command()&byte(cmdBusMaster), 0, "bus mastering after Close: %#x")
	check.Equal(t, w.Read32(0), ^uint32(0), "registers after Close: %#x")
	must.Close(t, arena) // after the function
	check.Fails(t, "Map after Close", check.Err(f.Map(dma.Memory{Bytes: make([]byte, 4096)})), errClosed)
	check.Fails(t, "BAR after Close", check.Err(f.BAR(0)), errClosed)
	check.Equal(t, openFiles(t), fds, "%d files are open")
}

func openFiles(t *testing.T) int {
	e := must.Get(os.ReadDir("/proc/self/fd"))(t)
	return len(e)
}

func TestVFIORefuses(t *testing.T) {
	for name, c := range map[string]struct {
		set  func(k *kernel)
		want error
		says string
	}{
		"other driver": {func(k *kernel) { k.move(Found{Address: addr0, Driver: vfioDriver}, "ixgbe") }, bus.ErrBusy, "responder bind"},
		"no driver":    {func(k *kernel) { k.move(Found{Address: addr0, Driver: vfioDriver}, "") }, bus.ErrBusy, "no kernel driver has it (bind -no-driver): there is an IOMMU, so give it to vfio-pci (rebound-responder bind " + addr0 + ")"},
		"no driver, no group": {func(k *kernel) {
			k.move(Found{Address: addr0, Driver: vfioDriver}, "")
			os.Remove(k.host.device(addr0) + "/iommu_group")
		}, errNoIOMMU, "nic.unsafe_no_iommu = true"},
		"no driver, no translation": {func(k *kernel) {
			k.move(Found{Address: addr0, Driver: vfioDriver}, "")
			k.file("sys/kernel/iommu_groups/7/type", "identity\n")
		}, bus.ErrBusy, "nic.unsafe_no_iommu = true"},
		"no group":      {func(k *kernel) { os.Remove(k.host.device(addr0) + "/iommu_group") }, errNoIOMMU, "intel_iommu=on"},
		"no group file": {func(k *kernel) { os.Remove(k.dev + "/vfio/7") }, errGroup, "group 7"},
		"no container":  {func(k *kernel) { os.Remove(k.dev + "/vfio/vfio") }, os.ErrNotExist, "modprobe"},
		"not viable": {func(k *kernel) {
			k.viable = false
			k.card(addr1, "e1000e", "7")
		}, errGroup, addr1 + " (e1000e)"},
		"not a PCI function":     {func(k *kernel) { k.info[0] = 1 }, nil, "PCI"},
		"no configuration space": {func(k *kernel) { k.info[1] = 7 }, nil, "PCI"},
		"no IOMMU":               {func(k *kernel) { k.file("sys/kernel/iommu_groups/7/name", "vfio-noiommu\n") }, errNoIOMMU, "unsafe_no_iommu"},
		"not a device":           {func(k *kernel) { os.RemoveAll(k.host.device(addr0)) }, ErrNoDevice, addr0},
		"gone": {func(k *kernel) {
			k.device.WriteAt([]byte(strings.Repeat("\xff", cfgExtendedSize)), regionConfig*regionStride)
		}, ErrGone, "all ones"},
	} {
		k := vfioKernel(t)
		k.driverModule("ixgbe")
		c.set(k)
		fds := openFiles(t)
		check.Fails(t, name, check.Err(k.openVFIO(addr0, false)), c.want, c.says)
		check.Equal(t, openFiles(t), fds, name+": %d files are open")
	}
	k := vfioKernel(t)
	k.info = [2]uint32{2, 8}
	f := must.Get(k.openVFIO(addr0, false))(t)
	check.Fails(t, "a reset of what cannot be reset", f.Reset(), errors.ErrUnsupported)
	must.Close(t, f)
	check.Fails(t, "group in use", k.groupError(Found{Group: "7"}, unix.EBUSY), bus.ErrBusy, "fuser")
}

// TestSplitWC: registers uncached and doorbells write-combining in one BAR, with offsets that count from its start.
func TestSplitWC(t *testing.T) {
	k := vfioKernel(t)
	f := must.Get(k.openVFIO(addr0, false))(t)
	defer f.Close()
	for _, from := range []uint64{0, 0x800, 0x4000, 1 << 40} {
		check.Fails(t, fmt.Sprintf("split at %#x", from), SplitWC(f, 2, from), ErrBAR)
	}
	must.OK(t, SplitWC(f, 2, 0x1000))
	uc, err := f.BAR(2)
	if err != nil || uc.Size() != 0x1000 || uc.WriteCombining() {
		t.Fatalf("BAR(2): %+v, %v", uc, err)
	}
	wc, err := f.BARWC(2)
	if err != nil || wc.Size() != 0x4000 || !wc.WriteCombining() {
		t.Fatalf("BARWC(2): %+v, %v", wc, err)
	}
	uc.Write32(0x10, 0x22222222)
	wc.Write32(0x2010, 0x33333333)
	b, _ := os.ReadFile(k.host.device(addr0) + "/resource2_wc")
	check.Equal(t, b[0x2010], 0x33, "the write-combining store left %#x")
	b, _ = os.ReadFile(k.host.device(addr0) + "/resource2")
	check.Equal(t, b[0x10], 0x22, "the uncached store left %#x")
	check.Fails(t, "split after use", SplitWC(f, 2, 0x2000), ErrBAR)
	// If the kernel offers no write-combining, both parts are uncached, and reported as such.
	must.OK(t, SplitWC(f, 0, 0x1000))
	up, err := f.BARWC(0)
	if err != nil || up.WriteCombining() {
		t.Fatalf("BARWC(0): %+v, %v", up, err)
	}
	up.Write32(0x1010, 0x44444444)
	check.Equal(t, k.at(0x1010), 0x44, "the store to the upper part of BAR 0 left %#x")
}

// TestSplitWCRevoked: the kernel revokes all mappings of a BAR from sysfs when vfio-pci claims it
// (CONFIG_IO_STRICT_DEVMEM), which the first mapping from the device's file does. A store to what it revoked is SIGBUS,
// as beyond the end of a file.
func TestSplitWCRevoked(t *testing.T) {
	for name, missing := range map[string]string{"both parts from sysfs": "", "no uncached file": "resource2",
		"no write-combining file": "resource2_wc"} {
		for _, first := range []string{"BAR", "BARWC"} {
			k := vfioKernel(t)
			f := must.Get(k.openVFIO(addr0, false))(t)
			defer f.Close()
			if missing != "" {
				must.OK(t, os.Remove(k.host.device(addr0)+"/"+missing))
			}
			claim := f.uncached
			f.uncached = func(n int, from, size uint64) (*mmio.Window, error) {
				for _, file := range []string{"resource2", "resource2_wc"} {
					os.Truncate(k.host.device(addr0)+"/"+file, 0)
				}
				return claim(n, from, size)
			}
			must.OK(t, SplitWC(f, 2, 0x1000))
			if first == "BARWC" {
				must.Get(f.BARWC(2))(t)
			}
			uc, wc := must.Get(f.BAR(2))(t), must.Get(f.BARWC(2))(t)
			maps := string(must.Get(os.ReadFile("/proc/self/maps"))(t))
			check.Equal(t, strings.Contains(maps, k.host.device(addr0)+"/resource2_wc"), missing == "",
				name+": resource2_wc is mapped: %v")
			if missing == "" && !wc.WriteCombining() {
				t.Errorf("%s first: not write-combining", first)
			}
			for _, w := range []struct {
				*mmio.Window
				off uint64
			}{{uc, 0x10}, {wc, 0x2010}} {
				func() {
					defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
					defer func() {
						if p := recover(); p != nil {
							t.Errorf("%s, %s first: store at %#x: %v", name, first, w.off, p)
						}
					}()
					w.Write32(w.off, 0x77777777)
				}()
			}
		}
	}
}

func TestVFIORegions(t *testing.T) {
	k := vfioKernel(t)
	k.sparse = []span{{0, 0x2000}, {0x4000, 0x10000}} // a hole where old kernels hide the MSI-X table
	f := must.Get(k.openVFIO(addr0, false))(t)
	defer f.Close()
	w := must.Get(f.BAR(0))(t)
	for _, off := range []uint64{0x1000, 0x4000, 0xfffc} {
		w.Write32(off, uint32(off)|1)
		check.Equal(t, k.at(int64(off)), byte(off)|1, fmt.Sprintf("the store at %#x left %%#x", off))
	}
	k.sparse = []span{{0x4000, 0x6000}, {0x8000, 0x10000}}
	e := must.Get(k.openVFIO(addr0, false))(t)
	defer e.Close()
	check.Same(t, must.Get(e.mappable(0))(t), k.sparse, "mappable: %#x")
	k.sparse = []span{{0x8000, 0x11000}}
	g := must.Get(k.openVFIO(addr0, false))(t)
	defer g.Close()
	check.Fails(t, "a mappable range beyond the BAR", check.Err(g.BAR(0)), ErrBAR)
	k.sparse, k.noMmap = nil, true
	h := must.Get(k.openVFIO(addr0, false))(t)
	defer h.Close()
	w = must.Get(h.BAR(0))(t)
	w.Write64(0x20, 0x5555555555555555)
	check.Equal(t, w.Read32(0x24), 0x55555555, "a BAR that cannot be mapped keeps %#x")
	check.Fails(t, "a BAR that cannot be mapped gives pointers", check.Err(w.Pointer(0x20, 4)), nil)
}

func TestIOVA(t *testing.T) {
	k := vfioKernel(t)
	for _, k.ranges = range [][]span{nil, {{7 << 20, 7 << 20}}, {{8 << 20, 7 << 20}}} { // as before Linux 5.4
		f := must.Get(k.openVFIO(addr0, false))(t)
		check.Same(t, must.Get(f.iovaRanges())(t), []span{{0, 0xfee00000}, {0xfef00000, 1 << 39}}, "%#x")
		must.Close(t, f)
	}
	k.ranges = []span{{1 << 33, 1<<33 + 16<<20 - 1}, {0x1000, 0xffffff}} // in any order; the low one starts at a page
	f := must.Get(k.openVFIO(addr0, false))(t)
	defer f.Close()
	mem := must.Get(unix.Mmap(-1, 0, 4<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON))(t)
	defer unix.Munmap(mem)
	var all []uint64
	for {
		iova, err := f.Map(dma.Memory{Bytes: mem})
		if err != nil {
			break
		}
		if iova < 1<<21 || iova%(1<<21) != 0 {
			t.Errorf("device address %#x", iova)
		}
		all = append(all, iova)
	}
	// The low range, from 2 MiB to 16 MiB less a byte, has room for three; the high one, 16 MiB less a byte, for three
	// more.
	if len(all) != 6 || all[0] != 2<<20 || all[3] != 1<<33 {
		t.Errorf("4 MiB at %#x", all)
	}
	check.Fails(t, "a part was unmapped", f.Unmap(all[1], 4096), nil)
	check.OK(t, f.Unmap(all[2], len(mem)))
	if again, err := f.Map(dma.Memory{Bytes: mem}); err != nil || again != all[2] {
		t.Errorf("the free address is not used again: %#x, %v", again, err)
	}
	f.Unmap(all[0], len(mem))
	k.mapErr = unix.ENOMEM
	check.Fails(t, "no memory may be locked", check.Err(f.Map(dma.Memory{Bytes: mem})), unix.ENOMEM, "ulimit -l")
	k.mapErr = nil
	if iova, err := f.Map(dma.Memory{Bytes: mem}); err != nil || iova != all[0] {
		t.Errorf("after a failure %#x, %v; want %#x again", iova, err, all[0])
	}
}

func TestSysfs(t *testing.T) {
	if mmio.PureGo {
		t.Skip("purego build: devices are refused")
	}
	needs.Root(t, "reading physical addresses")
	k := newKernel(t)
	k.card(addr0, "", "")
	config := k.host.device(addr0) + "/config"
	left := card() // by a process that was killed
	left.put16(cfgCommand, cmdBusMaster|cmdMemory)
	k.file("sys/bus/pci/devices/"+addr0+"/config", string(left))

	check.Fails(t, "without consent", check.Err(k.openSysfs(addr0, false)), errNoIOMMU, "unsafe_no_iommu")
	f := must.Get(k.openSysfs(addr0, true))(t)
	dir := "bus/pci/devices/" + addr0 + "/"
	if want := []string{dir + "enable=1", dir + "reset=1", "command was 0x0"}; !slices.Equal(
		slices.DeleteFunc(slices.Clone(k.log), func(s string) bool { return s == "command was 0x2" }), want[:2]) {
		t.Errorf("the kernel saw %q, want %q with bus mastering off", k.log, want)
	}
	check.Fails(t, "a second open", check.Err(k.openSysfs(addr0, true)), bus.ErrBusy)
	w := must.Get(f.BAR(0))(t)
	w.Write32(0x40, 0x66666666)
	if b, _ := os.ReadFile(k.host.device(addr0) + "/resource0"); b[0x40] != 0x66 {
		t.Error("a store did not reach resource0")
	}
	if wc, err := f.BARWC(2); err != nil || !wc.WriteCombining() {
		t.Errorf("BARWC(2): %v", err)
	}
	check.Equal(t, len(Notes(f)) > 0, true, "a note that there is no IOMMU: %v")
	must.OK(t, f.SetBusMaster(true))
	for range 2 {
		must.Close(t, f)
	}
	if b, _ := os.ReadFile(config); b[cfgCommand]&byte(cmdBusMaster) != 0 {
		t.Error("bus mastering is on after Close")
	}
	check.Equal(t, k.log[len(k.log)-1], dir+"enable=0", "the last write is %s")
	again := must.Get(k.openSysfs(addr0, true))(t)
	again.Close()
}

func TestSysfsRefuses(t *testing.T) {
	if mmio.PureGo {
		t.Skip("purego build: devices are refused")
	}
	k := newKernel(t)
	k.card(addr0, "ixgbe", "")
	check.Fails(t, "a kernel driver has it", check.Err(k.openSysfs(addr0, true)), bus.ErrBusy, "ixgbe")
	k = newKernel(t)
	k.card(addr0, "", "7")
	k.file("sys/kernel/iommu_groups/7/type", "DMA-FQ\n")
	check.Fails(t, "behind an IOMMU that translates", check.Err(k.openSysfs(addr0, true)), nil, "vfio-pci")
	k = newKernel(t)
	k.card(addr0, "", "")
	os.Remove(k.host.device(addr0) + "/reset")
	if f, err := k.openSysfs(addr0, true); err != nil {
		t.Errorf("a function that the kernel cannot reset: %v", err)
	} else if on, err := BusMastering(f); on || err != nil ||
		!strings.Contains(strings.Join(f.Notes(), ";"), "cannot reset") {
		t.Errorf("a function that the kernel cannot reset: bus mastering %v, %v, notes %q", on, err, f.Notes())
	}
}

func TestGone(t *testing.T) {
	k := vfioKernel(t)
	f := must.Get(k.openVFIO(addr0, false))(t)
	check.Equal(t, Gone(f), false, "gone before it left: %v")
	k.device.WriteAt([]byte(strings.Repeat("\xff", cfgExtendedSize)), regionConfig*regionStride)
	check.Equal(t, Gone(f), true, "gone after surprise removal: %v")
	must.Close(t, f)
}

// vfio-pci emulates some bits. WriteReal writes them through sysfs, also when the process may not open the file any
// more.
func TestWriteReal(t *testing.T) {
	k := vfioKernel(t)
	f := must.Get(k.openVFIO(addr0, false))(t)
	path := filepath.Join(k.host.device(addr0), "config")
	must.OK(t, os.WriteFile(path, make([]byte, cfgSize), 0o600))
	check.OK(t, WriteReal(f, 0x78, []byte{0x10, 0x28}))
	kept := must.Get(os.Open(path))(t)
	defer kept.Close()
	os.Remove(path)
	check.OK(t, WriteReal(f, 0x78, []byte{0x20, 0x28}))
	b := make([]byte, 2)
	if _, err := kept.ReadAt(b, 0x78); err != nil || !bytes.Equal(b, []byte{0x20, 0x28}) {
		t.Errorf("% x, %v", b, err)
	}
	must.Close(t, f)
	k.file("sys/bus/pci/devices/"+addr0+"/config", string(card()))
	f = must.Get(k.openVFIO(addr0, false))(t)
	defer f.Close()
	os.Remove(path)
	check.Fails(t, "without the file", WriteReal(f, 0x78, []byte{0x10, 0x28}), nil, addr0)
}

// Without CAP_SYS_ADMIN the kernel shows 64 bytes of configuration space, and lets all of it be written.
func TestWriteRealUnread(t *testing.T) {
	k := vfioKernel(t)
	f := must.Get(k.openVFIO(addr0, false))(t)
	defer f.Close()
	path := filepath.Join(k.host.device(addr0), "config")
	must.OK(t, os.WriteFile(path, make([]byte, cfgHeader), 0o600))
	check.OK(t, WriteReal(f, 0x78, []byte{0x10, 0x28}))
	if b, err := os.ReadFile(path); err != nil || len(b) != 0x7A || b[0x78] != 0x10 {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}

func TestVFIOWithoutIOMMU(t *testing.T) {
	k := vfioKernel(t)
	needs.Root(t, "reading physical addresses")
	k.file("sys/kernel/iommu_groups/7/name", "vfio-noiommu\n")
	k.file("dev/vfio/noiommu-7", "")
	os.Remove(k.dev + "/vfio/7")
	f := must.Get(k.openVFIO(addr0, true))(t)
	if !slices.Contains(k.log, "set iommu 8") || len(Notes(f)) == 0 {
		t.Errorf("kernel %q, notes %q", k.log, Notes(f))
	}
	if _, err := f.Map(dma.Memory{Bytes: make([]byte, 4096), Page: 4096}); err == nil || len(k.mapped) != 0 {
		t.Errorf("ordinary pages were mapped: %v", err)
	}
	must.Close(t, f)
}

// TestWriteCombiningIsTrue: the kernel accepts a write-combining mapping of pages that are uncached elsewhere, and
// leaves them uncached.
func TestWriteCombiningIsTrue(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("only x86 has one table of memory types")
	}
	for list, want := range map[string]bool{
		bar2 + "write-combining": true,
		bar2 + "uncached-minus":  false,
		// before Linux 5.7
		"PAT memtype list:\nwrite-back @ 0xbfe00000-0xbfe01000\nwrite-combining @ 0xf1000000-0xf1004000": true,
		"PAT memtype list:\nuncached-minus @ 0xf1000000-0xf1004000":                                      false,
		"PAT: [mem 0x00000000f2000000-0x00000000f2004000] write-combining":                               false,
		"": false,
	} {
		combines(t, vfioKernel(t), list, want)
	}
}

// combines fails the test unless BAR 2 is write-combining as wanted, or else a note says that it is not.
func combines(t *testing.T, k *kernel, types string, want bool) {
	t.Helper()
	k.memoryTypes(types)
	f := must.Get(k.openVFIO(addr0, false))(t)
	defer f.Close()
	file := k.host.device(addr0) + "/resource2_wc"
	_, missing := os.Stat(file)
	defer func() {
		maps := string(must.Get(os.ReadFile("/proc/self/maps"))(t))
		check.Equal(t, strings.Contains(maps, file), want && missing == nil, types+": resource2_wc is mapped: %v")
	}()
	if w, err := f.BARWC(2); err != nil || w.WriteCombining() != want || want == (len(Notes(f)) > 0) {
		t.Errorf("%q: %+v, %v, notes %q; want write-combining %v", types, w, err, Notes(f), want)
	}
}

// Amazon's patch of vfio-pci maps prefetchable BARs write-combining through VFIO itself, as the kernel's table of
// memory types shows.
func TestPatchedVFIO(t *testing.T) {
	for types, want := range map[string]bool{bar2 + "write-combining": runtime.GOARCH == "amd64",
		bar2 + "uncached-minus": false} {
		k := vfioKernel(t)
		os.Remove(k.host.device(addr0) + "/resource2_wc")
		combines(t, k, types, want)
	}
}
