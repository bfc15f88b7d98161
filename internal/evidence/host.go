package evidence

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/bus/vfiouser"
)

// words are the beginnings of those on the kernel's command line that concern a driver. All others stay out of the
// file.
var words = []string{"iommu", "intel_iommu", "amd_iommu", "pci", "vfio", "iomem", "isolcpus", "nohz_full", "rcu_nocbs",
	"hugepages",
	"default_hugepagesz", "hugepagesz", "idle", "intel_idle", "processor.max_cstate", "nopat", "mitigations",
	"lockdown"}

// collect describes the machine whose files are below root.
func collect(root, device string) (h Host) {
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		h.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	h.Arch, h.CPUs, h.IOMMU, h.Function = runtime.GOARCH, runtime.NumCPU(), "unknown", map[string]string{}
	text := func(path string) string {
		b, _ := os.ReadFile(filepath.Join(root, path))
		return strings.TrimSpace(string(b))
	}
	for line := range strings.Lines(text("proc/cpuinfo")) {
		if name, value, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == "model name" {
			h.CPU = strings.TrimSpace(value)
			break
		}
	}
	for _, w := range strings.Fields(text("proc/cmdline")) {
		for _, begin := range words {
			if strings.HasPrefix(w, begin) {
				h.CommandLine = append(h.CommandLine, w)
				break
			}
		}
	}
	addr, err := pci.ParseAddress(device)
	if err != nil {
		return h
	}
	dir := filepath.Join("sys/bus/pci/devices", addr)
	for _, name := range []string{"resource", "reset_method", "numa_node", "iommu_group/type", "current_link_speed",
		"current_link_width",
		"power_state", "d3cold_allowed", "enable"} {
		if v := text(filepath.Join(dir, name)); v != "" {
			h.Function[name] = v
		}
	}
	if t := h.Function["iommu_group/type"]; t != "" {
		h.IOMMU = t
	} else if _, err := os.Stat(filepath.Join(root, dir, "iommu_group")); errors.Is(err, fs.ErrNotExist) {
		h.IOMMU = "none"
	}
	return h
}

// iommu describes how the function's addresses are translated.
func iommu(fn pci.Function, known string) string {
	switch {
	case fn.Simulated():
		return "none: a device model"
	case pci.Translated(fn):
		return "translated (" + known + ")"
	}
	return known
}

// memoryTypes is x86's table of memory types for the function's BARs, which only root reads.
func (h *Host) memoryTypes(root string) (lines []string) {
	table, err := os.ReadFile(filepath.Join(root, "sys/kernel/debug/x86/pat_memtype_list"))
	if err != nil {
		return nil
	}
	for bar := range strings.Lines(h.Function["resource"]) {
		var from, to, flags uint64
		if n, _ := fmt.Sscanf(bar, "0x%x 0x%x 0x%x", &from, &to, &flags); n != 3 || flags == 0 {
			continue
		}
		for line := range strings.Lines(string(table)) {
			var lo, hi uint64
			if n, _ := fmt.Sscanf(line, "PAT: [mem 0x%x-0x%x]", &lo, &hi); n == 2 && lo <= to && hi > from {
				lines = append(lines, strings.TrimSpace(line))
			}
		}
	}
	return lines
}

// simulated is the prefix of a device name that a simnic serves.
const simulated = "vfio-user:"

// reread reads the configuration space of a function that the probe does not have open.
func reread(device string) (ConfigHex, error) {
	if path, ok := strings.CutPrefix(device, simulated); ok {
		var fn *vfiouser.Function
		var err error
		// the server may not have noticed yet that its last client left
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			if fn, err = vfiouser.Dial(path); err == nil || time.Now().After(end) {
				break
			}
		}
		if err != nil {
			return nil, err
		}
		all := space(fn)
		return all, fn.Close()
	}
	addr, err := pci.ParseAddress(device)
	if err != nil {
		return nil, err
	}
	b, err := os.ReadFile(filepath.Join("/sys/bus/pci/devices", addr, "config"))
	return ConfigHex(b), err
}
