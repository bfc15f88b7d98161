package responder

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/cards"
	"github.com/rebound-nic/rebound/internal/host/limits"
	"github.com/rebound-nic/rebound/latency/host"
	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/bus/verbs"
	"github.com/rebound-nic/rebound/nic/kit/netif"
)

// cardHost is what decides whether a driver on the device can use a card.
type cardHost struct {
	root    string // "/"
	release string // of the kernel
	locked  uint64 // RLIMIT_MEMLOCK in bytes
	mayLock bool   // CAP_IPC_LOCK
	noIOMMU bool   // nic.unsafe_no_iommu
	page    int    // bytes of the kernel's pages
	needed  map[string]string
	// use beside the kernel's driver; nil if the driver does not do that
	beside func(addr string) (how string, why error)
}

// cardFact is one condition, with its fix unless it is in order.
type cardFact struct {
	what      string
	severity  host.Severity // Serious: the card cannot be used
	text, fix string
}

// inOrder is the severity of a condition that is met.
const inOrder host.Severity = "ok"

func (f *cardFact) print(w io.Writer) {
	fmt.Fprintf(w, "%-8s %s: %s\n", f.severity, f.what, f.text)
	if f.fix != "" {
		fmt.Fprintf(w, "         fix: %s\n", f.fix)
	}
}

// thisCardHost is this machine's.
func thisCardHost(s *settings) cardHost {
	h := cardHost{root: "/", page: os.Getpagesize(), noIOMMU: s.nic.UnsafeNoIOMMU,
		mayLock: netif.Missing(unix.CAP_IPC_LOCK) == ""}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		h.release = unix.ByteSliceToString(u.Release[:])
	}
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l) == nil {
		h.locked = l.Cur
	}
	h.needed, _ = netif.Needed()
	h.beside = func(addr string) (string, error) {
		rdma, err := verbs.Find(addr)
		if err != nil {
			return "", fmt.Errorf("no RDMA device (%s)", cards.Modprobe(driverOf(addr)))
		}
		_, how, err := cards.BesideKernel(addr)
		return strings.TrimSpace("as " + rdma.Name + " " + how), err
	}
	return h
}

// checkCard prints whether a driver on the device can use the PCI function, and what is missing. It returns the number
// of conditions that prevent it.
func checkCard(w io.Writer, h cardHost, addr string) (missing int) {
	facts := h.facts(addr)
	for _, f := range facts {
		if f.severity == host.Serious {
			missing++
		}
	}
	switch missing {
	case 0:
		fmt.Fprintf(w, "%s is ready\n", addr)
	case 1:
		fmt.Fprintf(w, "%s is not ready: 1 condition is not met\n", addr)
	default:
		fmt.Fprintf(w, "%s is not ready: %d conditions are not met\n", addr, missing)
	}
	for _, f := range facts {
		f.print(w)
	}
	return missing
}

func (h *cardHost) text(name ...string) string {
	b, _ := os.ReadFile(filepath.Join(append([]string{h.root}, name...)...))
	return strings.TrimSpace(string(b))
}

// facts returns the conditions, in the order in which to meet them.
func (h *cardHost) facts(addr string) (all []cardFact) {
	add := func(what string, s host.Severity, fix, text string, a ...any) {
		all = append(all, cardFact{what, s, fmt.Sprintf(text, a...), fix})
	}
	f, err := pci.FindIn(filepath.Join(h.root, "sys"), addr)
	if err != nil {
		add("present", host.Serious, "rebound-responder nics, which lists the functions that are there", "%v", err)
		return all
	}
	add("present", inOrder, "", "%v", f.ID)
	driver, model := cards.DriverFor(f.ID), cards.Model(f.ID)
	if driver == "" {
		why := fmt.Errorf("no driver for %v", f.ID)
		if err := cards.NotSupported(f.ID); err != nil {
			why = err
		}
		fix := "use its interface with driver xdp, afxdp or afpacket (rebound-responder nics)"
		if len(f.Interfaces) > 0 {
			fix = fmt.Sprintf("use its interface: -set nic.device=%s (drivers xdp, afxdp, afpacket)", f.Interfaces[0])
		}
		add("supported", host.Serious, fix, "%v", why)
		return all
	}
	add("supported", inOrder, "", "%s, by driver %s", model, driver)

	shared := h.binding(add, f, driver)
	if !shared {
		h.translation(add, f)
		h.module(add, f)
	}
	h.memory(add, f, shared)
	h.link(add, f)
	h.kernel(add, f, driver, shared)
	return all
}

type adder func(what string, s host.Severity, fix, text string, a ...any)

// binding is about the kernel's driver. It reports whether the card is used beside it.
func (h *cardHost) binding(add adder, f pci.Found, driver string) (shared bool) {
	const what = "kernel driver"
	bind := "rebound-responder bind " + f.Address
	switch {
	case f.Driver == "vfio-pci":
		add(what, inOrder, "", "vfio-pci has it")
		return false
	case f.Driver == "" && h.noIOMMU && f.Group == "":
		add(what, inOrder, "", "none has it, as nic.unsafe_no_iommu needs")
		return false
	case f.Driver == "":
		add(what, host.Serious, bind, "none has it, and it must be vfio-pci")
		return false
	}
	not := ""
	if h.beside != nil {
		how, err := h.beside(f.Address)
		if err == nil {
			add(what, inOrder, "", "%s keeps it, and %s can use it %s", f.Driver, driver, how)
			return true
		}
		not = fmt.Sprintf("; not beside it: %v", err)
	}
	for _, i := range f.Interfaces {
		if why := h.needed[i]; why != "" {
			add(what, host.Serious, "move that to another interface first; "+bind+" -force takes it anyway",
				"%s has it, and its interface %s %s%s", f.Driver, i, why, not)
			return false
		}
	}
	add(what, host.Serious, bind, "%s has it, and it must be vfio-pci%s", f.Driver, not)
	return false
}

// translation is about the IOMMU and the function's group.
func (h *cardHost) translation(add adder, f pci.Found) {
	const what = "IOMMU"
	enable := "enable it in the firmware (VT-d, AMD-Vi, SMMU) and boot with intel_iommu=on or amd_iommu=on"
	without := h.text("sys/kernel/iommu_groups", f.Group, "name") == "vfio-noiommu"
	switch {
	case (f.Group == "" || without) && h.noIOMMU:
		add(what, host.Warning, enable,
			"there is none: the card can write to any memory, which nic.unsafe_no_iommu accepts")
		return
	case f.Group == "" || without:
		add(what, host.Serious, enable+"; without one, rebound-responder bind -no-driver "+f.Address+
			" and -set nic.unsafe_no_iommu=true", "there is none, or it is off")
		return
	}
	sys := filepath.Join(h.root, "sys")
	entries, _ := os.ReadDir(filepath.Join(sys, "kernel/iommu_groups", f.Group, "devices"))
	var others, fixes []string
	for _, e := range entries {
		to, err := os.Readlink(filepath.Join(sys, "bus/pci/devices", e.Name(), "driver"))
		d := filepath.Base(to)
		if err != nil || e.Name() == f.Address || slices.Contains([]string{"vfio-pci", "pcieport", "pci-stub"}, d) {
			continue
		}
		others, fixes = append(others, e.Name()+" ("+d+")"), append(fixes, "rebound-responder bind "+e.Name())
	}
	if len(others) > 0 {
		add(what, host.Serious, strings.Join(fixes, "; "), "group %s also has %s, which must be on vfio-pci too",
			f.Group, strings.Join(others, ", "))
		return
	}
	add(what, inOrder, "", "group %s", f.Group)
}

func (h *cardHost) module(add adder, f pci.Found) {
	const what, module = "vfio-pci", "vfio-pci.ko"
	if h.noIOMMU && f.Group == "" {
		return
	}
	if _, err := os.Stat(filepath.Join(h.root, "sys/bus/pci/drivers/vfio-pci/bind")); err == nil {
		add(what, inOrder, "", "loaded")
		return
	}
	if dep := h.text("lib/modules", h.release, "modules.dep"); dep != "" && !strings.Contains(dep, module) {
		add(what, host.Serious, "install the kernel's further modules (Ubuntu: linux-modules-extra-"+h.release+
			"), or boot a kernel that has it", "Linux %s has no such module", h.release)
		return
	}
	add(what, host.Warning, "modprobe vfio-pci (bind loads it, too)", "not loaded")
}

// memory is about huge pages and locked memory.
func (h *cardHost) memory(add adder, f pci.Found, shared bool) {
	const what = "huge pages"
	fix := dma.ReserveHuge(h.page)
	free := 0
	for _, size := range []string{"hugepages-2048kB", "hugepages-1048576kB"} {
		n, _ := strconv.Atoi(h.text("sys/kernel/mm/hugepages", size, "free_hugepages"))
		free += n
	}
	switch {
	case free > 0:
		add(what, inOrder, "", "%d free", free)
	case h.noIOMMU && f.Group == "" && !shared:
		add(what, host.Serious, fix, "none are free, and without an IOMMU the card's memory must be in them")
	default:
		add(what, host.Warning, fix,
			"none are free: the card's memory is in ordinary pages, which costs it address translations")
	}
	const enough = 64 << 20
	h.groupLimits(add, free > 0, enough)
	if h.locked < enough && !h.mayLock {
		add("locked memory", host.Warning, "ulimit -l unlimited, LimitMEMLOCK=infinity in a unit, or CAP_IPC_LOCK",
			"limited to %d KiB: the card's memory and this program must be locked", h.locked>>10)
		return
	}
	add("locked memory", inOrder, "", "enough")
}

// groupLimits is about limits of the process's cgroup and of those above it, in both versions: of huge pages if some
// are free, else of memory. At the limit the kernel refuses the card's memory, or kills the process.
func (h *cardHost) groupLimits(add adder, huge bool, enough uint64) {
	of, name, fix := "memory", "memory", "MemoryMax=infinity in a unit, a higher memory limit of a container"
	if huge {
		of, name, fix = "hugetlb", "hugetlb.2MB", "raise it, or hugepages-2Mi of a pod"
	}
	const all = "sys/fs/cgroup"
	for _, v := range []struct{ controllers, top, file string }{{"", all, name + ".max"},
		{of, filepath.Join(all, of), name + ".limit_in_bytes"} /* version 1 */} {
		for dir := range limits.Groups(h.text("proc/self/cgroup"), v.controllers, v.top) {
			if most, err := strconv.ParseUint(h.text(dir, v.file), 10, 64); err == nil && most < enough {
				add("cgroup", host.Warning, fix, "%s of %s is %d MiB, the card's memory may take %d", v.file,
					filepath.Join("/", strings.TrimPrefix(dir, v.top)), most>>20, enough>>20)
				return
			}
		}
	}
}

// link is about the cable and the slot.
func (h *cardHost) link(add adder, f pci.Found) {
	const what = "link"
	if len(f.Interfaces) == 0 {
		add(what, host.Note, "rebound-responder probe -stage up "+f.Address+", which reads it",
			"not known, because the kernel has no interface for it")
	}
	for _, i := range f.Interfaces {
		switch h.text("sys/class/net", i, "carrier") {
		case "1":
			speed := ""
			if n, err := strconv.Atoi(h.text("sys/class/net", i, "speed")); err == nil && n > 0 {
				speed = fmt.Sprintf(", %d Mbit/s", n)
			}
			add(what, inOrder, "", "%s is up%s", i, speed)
		case "0":
			add(what, host.Warning, "check cable, module and the other port (ethtool "+i+")", "%s has no carrier", i)
		default:
			add(what, host.Note, "ip link set "+i+" up", "not known while %s is down", i)
		}
	}
	slot := func(which string) string {
		width := h.text("sys/bus/pci/devices", f.Address, which+"_link_width")
		if width == "" || width == "0" {
			return ""
		}
		return h.text("sys/bus/pci/devices", f.Address, which+"_link_speed") + " x" + width
	}
	if now, most := slot("current"), slot("max"); now != "" && most != "" && now != most {
		add("PCIe", host.Warning, "move the card to a wider slot, or reseat it", "%s of %s", now, most)
	} else if now != "" {
		add("PCIe", inOrder, "", "%s", now)
	}
}

// kernel is about its version and what lockdown(7) blocks.
func (h *cardHost) kernel(add adder, f pci.Found, driver string, shared bool) {
	switch {
	case driver == "efa" && shared && cards.Older(h.release, "6.1"):
		add("kernel", host.Warning, "use Linux 6.1 or later",
			"Linux %s: its efa driver does not report the GIDs of unknown senders", h.release)
	case cards.Older(h.release, "5.10"):
		add("kernel", host.Warning, "use Linux 5.10 or later", "Linux %s: not tested before 5.10", h.release)
	default:
		add("kernel", inOrder, "", "Linux %s", h.release)
	}
	const what, fix = "lockdown", "turn Secure Boot off in the firmware, or boot without lockdown="
	mode := pci.LockdownMode(h.text("sys/kernel/security/lockdown"))
	switch {
	case mode == "":
		add(what, inOrder, "", "off")
	case shared:
		add(what, inOrder, "", "%s, which does not concern use beside the kernel's driver", mode)
	case h.noIOMMU && f.Group == "":
		add(what, host.Serious, fix, "%s: the card's registers cannot be mapped through sysfs", mode)
	case cards.WritesConfig(driver):
		add(what, host.Serious, fix, "%s: driver %s must write the card's configuration space through sysfs", mode,
			driver)
	default:
		add(what, host.Note, fix, "%s: registers cannot be mapped with write combining through sysfs", mode)
	}
}
