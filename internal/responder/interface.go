package responder

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/host/isolate"
	"github.com/rebound-nic/rebound/latency/host"
)

// coalescing is a card's interrupt coalescing (struct ethtool_coalesce, linux/ethtool.h).
type coalescing struct {
	cmd, rxUsecs, rxFrames uint32
	_                      [2]uint32
	txUsecs, txFrames      uint32
	_                      [3]uint32
	adaptiveRx, adaptiveTx uint32
	_                      [11]uint32
}

// The kernel's struct has 23 words.
var _ [23 * 4]byte = [unsafe.Sizeof(coalescing{})]byte{}

// readCoalescing reads it from an interface's driver. Many virtual ones have none, which is EOPNOTSUPP.
func readCoalescing(name string) (c coalescing, err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return c, err
	}
	defer unix.Close(fd)
	if len(name) >= unix.IFNAMSIZ {
		return c, unix.ENODEV
	}
	c.cmd = 0x0e // ETHTOOL_GCOALESCE
	var raw struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	copy(raw.name[:], name)
	raw.data = unsafe.Pointer(&c)
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&raw))); e != 0 {
		return c, e
	}
	return c, nil
}

// interfaceFindings returns what adds latency on a kernel interface: coalesced interrupts, receive processing that
// waits for a thread or a timer, and interrupts on other CPUs. cores are the polling cores.
func interfaceFindings(root fs.FS, name string, cores []int,
	ask func(string) (coalescing, error)) (out []host.Finding) {
	read := func(file string) string {
		b, err := fs.ReadFile(root, file)
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(b))
	}
	find := func(id string, s host.Severity, fix, what string, a ...any) {
		out = append(out, host.Finding{ID: id, Severity: s, What: fmt.Sprintf(what, a...), Fix: fix})
	}
	switch c, err := ask(name); {
	case errors.Is(err, unix.EOPNOTSUPP): // no coalescing
	case err != nil:
		find("coalescing", host.Note, "", "interrupt coalescing of %s is unknown: %v", name, err)
	case c.adaptiveRx != 0:
		find("coalescing", host.Warning, fmt.Sprintf("ethtool -C %s adaptive-rx off rx-usecs 0", name),
			"%s delays receive interrupts by a time that adapts to the load (adaptive-rx)", name)
	case c.rxUsecs > 0:
		find("coalescing", host.Warning, fmt.Sprintf("ethtool -C %s rx-usecs 0", name),
			"%s delays receive interrupts by up to %d µs", name, c.rxUsecs)
	case c.rxFrames > 1:
		find("coalescing", host.Warning, fmt.Sprintf("ethtool -C %s rx-frames 1", name),
			"%s delays receive interrupts until %d frames have arrived", name, c.rxFrames)
	}
	class := "sys/class/net/" + name + "/"
	if read(class+"threaded") == "1" {
		find("napi_threaded", host.Warning, "echo 0 > /"+class+"threaded, or give the threads napi/"+name+
			"-* a dedicated core and a priority",
			"received frames of %s wait until a kernel thread is scheduled (threaded NAPI)", name)
	}
	if defer_, _ := strconv.Atoi(read(class + "napi_defer_hard_irqs")); defer_ > 0 {
		ns, _ := strconv.Atoi(read(class + "gro_flush_timeout"))
		find("napi_deferral", host.Note, "echo 0 > /"+class+
			"napi_defer_hard_irqs; only busy polling (afxdp with zero copy) benefits from it",
			"%s keeps interrupts off for %d rounds, and polls every %d µs (napi_defer_hard_irqs, gro_flush_timeout)",
			name, defer_, ns/1000)
	}
	if irqs := interruptsOf(root, name, read); len(irqs) > 0 {
		var on []string
		for _, i := range irqs {
			on = append(on, fmt.Sprintf("%d on CPU %s", i.number, i.cpus))
			list, _ := isolate.ParseCPUs(i.cpus)
			if len(list) == 1 && slices.Contains(cores, list[0]) {
				find("napi_core", host.Warning, fmt.Sprintf(
					"echo LIST > /proc/irq/%d/smp_affinity_list, with another CPU beside the polling core", i.number),
					"interrupt %d of %s is served on polling core %d: the kernel's receive work interrupts the polling loop", i.number, name, list[0])
			}
		}
		find("interface_irqs", host.Note, "", "interrupts of %s: %s", name, strings.Join(on, ", "))
	}
	return out
}

type interrupt struct {
	number int
	cpus   string
}

// interruptsOf returns an interface's interrupts: those of its device, by number (sysfs-bus-pci, msi_irqs).
func interruptsOf(root fs.FS, name string, read func(string) string) (out []interrupt) {
	entries, _ := fs.ReadDir(root, path.Join("sys/class/net", name, "device/msi_irqs"))
	for _, e := range entries {
		n, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		cpus := read(fmt.Sprintf("proc/irq/%d/effective_affinity_list", n))
		if cpus == "" {
			cpus = read(fmt.Sprintf("proc/irq/%d/smp_affinity_list", n))
		}
		if cpus != "" {
			out = append(out, interrupt{n, cpus})
		}
	}
	slices.SortFunc(out, func(a, b interrupt) int { return a.number - b.number })
	return out
}
