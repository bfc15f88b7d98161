package main

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/cards"
	"github.com/rebound-nic/rebound/internal/host/isolate"
	"github.com/rebound-nic/rebound/nic/bus/pci"
)

// run is the folder for everything that the appliance writes while it runs. It is in memory.
const run = "/run/rebound"

// prepare mounts the kernel's file systems, creates the programs, and makes the settings of the kernel that the command
// line cannot.
func prepare() error {
	var errs []error
	for _, m := range []struct{ kind, at, options string }{
		{"devtmpfs", "/dev", "mode=0755"}, {"proc", "/proc", ""}, {"sysfs", "/sys", ""}, {"tmpfs", "/run", "mode=0755"}, {"tmpfs", "/tmp", "mode=1777"},
		{"cgroup2", "/sys/fs/cgroup", ""}, {"bpf", "/sys/fs/bpf", "mode=0700"}, {"debugfs", "/sys/kernel/debug", ""},
		{"tracefs", "/sys/kernel/tracing", ""}, {"hugetlbfs", "/dev/hugepages", ""},
	} {
		if err := mount(m.kind, m.at, m.kind, unix.MS_NOSUID, m.options); err != nil {
			errs = append(errs, err)
		}
	}
	for _, dir := range []string{"/bin", "/etc", run, run + "/reports", run + "/stick"} {
		errs = append(errs, os.MkdirAll(dir, 0o755))
	}
	for name := range programs {
		errs = append(errs, os.Link("/init", "/bin/"+name))
	}
	// The responder changes to this user when it confines itself.
	errs = append(errs, os.WriteFile("/etc/passwd", []byte("root:x:0:0::/:\nrebound:x:990:990::/:\n"), 0o644),
		os.WriteFile("/etc/group", []byte("root:x:0:\nrebound:x:990:\n"), 0o644))
	for file, value := range map[string]string{
		// The port under test stays silent.
		"net/ipv6/conf/all/disable_ipv6": "1", "net/ipv6/conf/default/disable_ipv6": "1",
		// The management interface's address is for that interface alone: by default the kernel answers for it on any
		// other one, too, as on the one below a VLAN, or on the port under test.
		"net/ipv4/conf/all/arp_ignore": "1", "net/ipv4/conf/all/rp_filter": "1",
		"vm/stat_interval": "120", "kernel/ctrl-alt-del": "0",
	} {
		errs = append(errs, os.WriteFile("/proc/sys/"+file, []byte(value), 0o644))
	}
	all := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	return errors.Join(append(errs, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &all))...)
}

func mount(source, at, kind string, flags uintptr, options string) error {
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(source, at, kind, flags, options); err != nil {
		return fmt.Errorf("mount %s on %s: %w", source, at, err)
	}
	return nil
}

// performance sets the frequency governor of all CPUs, once its modules are loaded.
func performance() {
	files, _ := filepath.Glob("/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor")
	for _, f := range files {
		os.WriteFile(f, []byte("performance"), 0) // drivers that have no such governor keep theirs
	}
}

// modules are the kernel's modules in the image. The builder writes their list.
type modules struct {
	needs   map[string][]string // by name
	aliases []alias
	loaded  map[string]bool
}

type alias struct{ pattern, module string }

const modulesDir = "/lib/modules/"

func readModules() (*modules, error) {
	m := &modules{needs: map[string][]string{}, loaded: map[string]bool{}}
	needs, err := os.ReadFile(modulesDir + "needs")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(needs)) {
		f := strings.Fields(line)
		m.needs[f[0]] = f[1:]
	}
	aliases, err := os.ReadFile(modulesDir + "aliases")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(aliases)) {
		if f := strings.Fields(line); len(f) == 2 {
			m.aliases = append(m.aliases, alias{f[0], f[1]})
		}
	}
	return m, nil
}

// load loads modules and those that they need. A module that fails does not affect others.
func (m *modules) load(names ...string) error {
	var errs []error
	for _, name := range names {
		if m.loaded[name] {
			continue
		}
		m.loaded[name] = true
		needs, ok := m.needs[name]
		if !ok {
			continue // built in
		}
		errs = append(errs, m.load(needs...))
		if err := insert(modulesDir + name + ".ko.xz"); err != nil && !errors.Is(err, unix.EEXIST) &&
			!errors.Is(err, unix.ENODEV) {
			errs = append(errs, fmt.Errorf("module %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

func insert(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	const compressed = 4 // MODULE_INIT_COMPRESSED_FILE (linux/module.h)
	return unix.FinitModule(int(f.Fd()), "", compressed)
}

// loadForDevices loads the modules of all devices, until no new device appears: a bus may be behind another one.
func (m *modules) loadForDevices() error {
	var errs []error
	for {
		before := len(m.loaded)
		for _, a := range deviceAliases() {
			for _, of := range m.aliases {
				if ok, _ := path.Match(of.pattern, a); ok {
					errs = append(errs, m.load(of.module))
				}
			}
		}
		if len(m.loaded) == before {
			return errors.Join(errs...)
		}
	}
}

// deviceAliases returns the aliases of all devices, PCI functions first and by address, so that interfaces are numbered
// by it.
func deviceAliases() (all []string) {
	for _, bus := range []string{"pci", "*"} {
		files, _ := filepath.Glob("/sys/bus/" + bus + "/devices/*/modalias")
		slices.Sort(files)
		for _, f := range files {
			if b, err := os.ReadFile(f); err == nil {
				all = append(all, strings.TrimSpace(string(b)))
			}
		}
	}
	return all
}

// supported returns the PCI functions that a driver of ours supports.
func supported() (all []pci.Found, err error) {
	found, err := pci.List()
	for _, f := range found {
		if cards.DriverFor(f.ID) != "" {
			all = append(all, f)
		}
	}
	return all, err
}

func describe(f pci.Found) string {
	text := fmt.Sprintf("%s  %s  driver %s", f.Address, f.ID, cards.DriverFor(f.ID))
	if len(f.Interfaces) > 0 {
		text += ", " + strings.Join(f.Interfaces, " ")
	}
	if f.Group == "" {
		text += ", no IOMMU"
	}
	return text
}

// readCPUs reads a CPU list.
func readCPUs(file string) []int {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	cpus, _ := isolate.ParseCPUs(strings.TrimSpace(string(b)))
	return cpus
}

// chooseCore returns the core to poll on: the last isolated one at the card's NUMA node, otherwise the last isolated
// one. It is -1 if the machine has no isolated core.
func chooseCore(node int) int {
	isolated := readCPUs("/sys/devices/system/cpu/isolated")
	if len(isolated) == 0 {
		return -1
	}
	near := readCPUs(fmt.Sprintf("/sys/devices/system/node/node%d/cpulist", node))
	for _, c := range slices.Backward(isolated) {
		if slices.Contains(near, c) {
			return c
		}
	}
	return isolated[len(isolated)-1]
}

// quieten takes the hardware threads beside a core offline: what runs there would take half the core.
func quieten(core int) (offline []int) {
	for _, c := range readCPUs(fmt.Sprintf("/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", core)) {
		if c != core && c != 0 && os.WriteFile(fmt.Sprintf("/sys/devices/system/cpu/cpu%d/online", c), []byte("0"),
			0) == nil {
			offline = append(offline, c)
		}
	}
	return offline
}

// reserve reserves huge pages at a NUMA node, or anywhere if it is unknown, and returns how many there are.
func reserve(pages, node int) (int, error) {
	const size = "hugepages/hugepages-2048kB/nr_hugepages"
	file := "/sys/kernel/mm/" + size
	if at := fmt.Sprintf("/sys/devices/system/node/node%d/%s", node, size); node >= 0 && exists(at) {
		file = at
	}
	if err := os.WriteFile(file, []byte(strconv.Itoa(pages)), 0); err != nil {
		return 0, err
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}

func exists(file string) bool { _, err := os.Stat(file); return err == nil }
