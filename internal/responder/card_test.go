package responder

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/golden"
	"github.com/rebound-nic/rebound/proof/must"
)

// cardTree writes files below a temporary folder, as /sys and /lib/modules show a machine with an 82599 at
// 0000:03:00.0, with changes: PATH=CONTENT|... A content that begins with "->" is a symbolic link to a path of the
// tree, and "-" removes a file.
func cardTree(t *testing.T, change string) string {
	const dir = "sys/bus/pci/devices/0000:03:00.0/"
	files := map[string]string{
		dir + "config":                                            "\x86\x80\xfb\x10\x00\x00\x00\x00\x01\x00\x00\x02",
		dir + "numa_node":                                         "0",
		dir + "driver":                                            "->sys/bus/pci/drivers/vfio-pci",
		dir + "iommu_group":                                       "->sys/kernel/iommu_groups/7",
		dir + "current_link_width":                                "8",
		dir + "max_link_width":                                    "8",
		dir + "current_link_speed":                                "5.0 GT/s PCIe",
		dir + "max_link_speed":                                    "5.0 GT/s PCIe",
		"sys/kernel/iommu_groups/7/type":                          "DMA",
		"sys/kernel/iommu_groups/7/devices/0000:03:00.0":          "",
		"sys/bus/pci/drivers/vfio-pci/bind":                       "",
		"sys/bus/pci/drivers/ixgbe/bind":                          "",
		"sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages": "64",
		"sys/kernel/security/lockdown":                            "[none] integrity confidentiality",
	}
	for _, c := range strings.Split(change, "|") {
		if name, text, ok := strings.Cut(c, "="); ok {
			files[name] = text
		}
	}
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		must.OK(t, os.MkdirAll(filepath.Dir(path), 0o755))
		to, link := strings.CutPrefix(text, "->")
		switch {
		case text == "-":
		case link:
			must.OK(t, os.Symlink(filepath.Join(root, to), path))
		default:
			if name == dir+"config" {
				text += strings.Repeat("\x00", 256-len(text))
			}
			must.OK(t, os.WriteFile(path, []byte(text), 0o644))
		}
	}
	return root
}

// What is said about a card, by what its host lacks. Only lines that differ from those of the first host are recorded.
func TestCardFacts(t *testing.T) {
	var text strings.Builder
	var usual []string
	const (
		ours, eth1      = "sys/bus/pci/devices/0000:03:00.0/", "sys/class/net/eth1/"
		group, noGroup  = "sys/kernel/iommu_groups/7/", ours + "iommu_group=-"
		noPages         = "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages=0"
		hugePages       = "sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages=2"
		kernels         = ours + "driver=->sys/bus/pci/drivers/ixgbe|" + ours + "net/eth1/mtu=1500|"
		none            = ours + "driver=-"
		locked, limited = "sys/kernel/security/lockdown=none [integrity] confidentiality", "sys/fs/cgroup/"
		efa             = ours + "config=\x0f\x1d\xa1\xef|"
		connectX3       = ours + "config=\xb3\x15\x03\x10|"
	)
	accepted := func(h *cardHost) { h.noIOMMU = true }
	beside := func(how string, err error) func(*cardHost) {
		return func(h *cardHost) { h.beside = func(string) (string, error) { return how, err } }
	}
	for _, c := range []struct {
		name, change string // PATH=CONTENT|...
		on           func(*cardHost)
	}{
		{"ready", "", nil},
		{"absent", ours + "config=-", nil},
		{"not supported", ours + "config=\x86\x80\x63\x15", nil},
		{"not supported, with an interface", kernels + ours + "config=\x86\x80\x63\x15", nil},
		{"unknown", ours + "config=\x86\x80\x01\x00", nil},
		{"the kernel's", kernels + eth1 + "carrier=1|" + eth1 + "speed=10000", nil},
		{"the kernel's, of unknown speed", kernels + eth1 + "carrier=1|" + eth1 + "speed=-1", nil},
		{"the kernel's, down", kernels, nil},
		{"in use", kernels + eth1 + "carrier=0", func(h *cardHost) { h.needed = map[string]string{"eth1": "carries the default route"} }},
		{"shared", kernels + noGroup, beside("as mlx5_0", nil)},
		{"shared, locked down", kernels + locked, beside("as mlx5_0", nil)},
		{"shared, without huge pages", kernels + noGroup + "|" + noPages, func(h *cardHost) { beside("as mlx5_0", nil)(h); accepted(h) }},
		{"cannot be shared", kernels, beside("", errors.New("no RDMA device"))},
		{"without a driver", none, nil},
		{"without a driver, without an IOMMU", none + "|" + noGroup, nil},
		{"without a driver, with an IOMMU that need not be", none, accepted},
		{"no IOMMU", noGroup, nil},
		{"no IOMMU by its name", group + "name=vfio-noiommu", nil},
		{"no IOMMU by its name, accepted", group + "name=vfio-noiommu|" + noPages, accepted},
		{"no IOMMU, accepted", none + "|" + noGroup, accepted},
		{"no IOMMU, no huge pages", none + "|" + noGroup + "|" + noPages, accepted},
		{"no IOMMU, locked down", none + "|" + noGroup + "|" + locked, accepted},
		{"group", group + "devices/0000:03:00.1=|sys/bus/pci/devices/0000:03:00.1/driver=->sys/bus/pci/drivers/ixgbe|" +
			group + "devices/0000:03:00.2=|sys/bus/pci/devices/0000:03:00.2/driver=->sys/bus/pci/drivers/ixgbe", nil},
		{"a bridge in the group", group + "devices/0000:00:01.0=|sys/bus/pci/devices/0000:00:01.0/driver=->sys/bus/pci/drivers/pcieport", nil},
		{"an idle one in the group", group + "devices/0000:00:01.0=", nil},
		{"no module", kernels + "sys/bus/pci/drivers/vfio-pci/bind=-", nil},
		{"a kernel without the module", "sys/bus/pci/drivers/vfio-pci/bind=-|lib/modules/6.12.0/modules.dep=kernel/x.ko:", nil},
		{"a kernel with the module", "sys/bus/pci/drivers/vfio-pci/bind=-|lib/modules/6.12.0/modules.dep=kernel/vfio-pci.ko:", nil},
		{"no huge pages", noPages, nil},
		{"huge pages of 1 GiB", noPages + "|" + hugePages, nil},
		{"no huge pages of a kernel with pages of 64 KiB", noPages, func(h *cardHost) { h.page = 65536 }},
		{"few huge pages for a pod", "proc/self/cgroup=0::/pods/one|" + limited + "pods/one/hugetlb.2MB.max=max|" +
			limited + "pods/hugetlb.2MB.max=4194304|" + limited + "pods/one/memory.max=1048576", nil},
		{"enough huge pages for a pod", "proc/self/cgroup=0::/pods/one|" + limited + "pods/hugetlb.2MB.max=67108864", nil},
		{"little memory for a unit", "proc/self/cgroup=1:name=systemd:/\n0::/system.slice/r.service|" +
			limited + "system.slice/r.service/memory.max=33554432|" + noPages, nil},
		{"few huge pages for a container of version 1", "proc/self/cgroup=5:memory:/other\n3:hugetlb:/docker/one\n0::/|" +
			limited + "hugetlb/docker/one/hugetlb.2MB.limit_in_bytes=9223372036852678656|" +
			limited + "hugetlb/docker/hugetlb.2MB.limit_in_bytes=4194304|" + limited + "memory/other/memory.limit_in_bytes=1048576", nil},
		{"little memory for a container of version 1", "proc/self/cgroup=5:memory:/docker/one\n3:hugetlb:/other|" + noPages + "|" +
			limited + "memory/docker/one/memory.limit_in_bytes=33554432|" +
			limited + "hugetlb/other/hugetlb.2MB.limit_in_bytes=0", nil},
		{"no limits of version 1", "proc/self/cgroup=5:memory:/one\n3:hugetlb:/one|" +
			limited + "memory/one/memory.limit_in_bytes=9223372036854771712|" +
			limited + "hugetlb/one/hugetlb.2MB.limit_in_bytes=9223372036852678656", nil},
		{"no limits", "proc/self/cgroup=0::/|" + limited + "memory.max=max", nil},
		{"little locked memory", "", func(h *cardHost) { h.locked = 64<<20 - 1 }},
		{"enough locked memory", "", func(h *cardHost) { h.locked = 64 << 20 }},
		{"CAP_IPC_LOCK", "", func(h *cardHost) { h.locked, h.mayLock = 8<<20, true }},
		{"narrow", ours + "current_link_width=4", nil},
		{"without a slot", ours + "current_link_width=0", nil},
		{"of an unknown slot", ours + "max_link_width=-", nil},
		{"old", "", func(h *cardHost) { h.release = "5.4.0-200-generic" }},
		{"old for efa", kernels + efa, func(h *cardHost) { beside("as rdmap0", nil)(h); h.release = "6.0.0" }},
		{"new enough for efa on the device", efa, func(h *cardHost) { h.release = "6.0.0" }},
		{"locked down", locked, nil},
		{"locked down, with a driver that writes configuration space", connectX3 + locked, nil},
	} {
		h := cardHost{root: cardTree(t, c.change), release: "6.12.0", locked: unix.RLIM_INFINITY, page: 4096}
		if c.on != nil {
			c.on(&h)
		}
		var b strings.Builder
		fmt.Fprintf(&text, "== %s: %d\n", c.name, checkCard(&b, h, "0000:03:00.0"))
		lines := slices.Collect(strings.Lines(strings.ReplaceAll(b.String(), h.root, "ROOT")))
		for _, line := range lines {
			if !slices.Contains(usual, line) {
				text.WriteString(line)
			}
		}
		var without []int
		for i, line := range usual {
			if !slices.Contains(lines, line) {
				without = append(without, i)
			}
		}
		fmt.Fprintln(&text, "without lines", without)
		if usual == nil {
			usual = lines
		}
	}
	golden.Equal(t, "testdata/card.txt", text.String())
}
