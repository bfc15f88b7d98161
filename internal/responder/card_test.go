package responder

import (
	"encoding/binary"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/latency/host"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// cardTree writes files below a temporary folder, as /sys and /lib/modules show a machine with an 82599 at
// 0000:03:00.0. A value that begins with "->" is a symbolic link to a path of the tree, and "-" removes a file.
func cardTree(t *testing.T, change map[string]string) string {
	config := make([]byte, 256)
	binary.LittleEndian.PutUint32(config, 0x10fb8086)
	binary.LittleEndian.PutUint32(config[8:], 0x02000001)
	const dir = "sys/bus/pci/devices/0000:03:00.0/"
	files := map[string]string{
		dir + "config":                                            string(config),
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
	maps.Copy(files, change)
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
			must.OK(t, os.WriteFile(path, []byte(text), 0o644))
		}
	}
	return root
}

func TestCardFacts(t *testing.T) {
	const dir = "sys/bus/pci/devices/0000:03:00.0/"
	for _, c := range []struct {
		name   string
		change map[string]string
		on     func(*cardHost)
		wrong  string // facts that are not in order, with their severities
		says   string
	}{
		{name: "ready", says: "ok       kernel driver: vfio-pci has it"},
		{name: "absent", change: map[string]string{dir + "config": "-"}, wrong: "present serious", says: "fix: rebound-responder nics"},
		{name: "not supported", change: map[string]string{dir + "config": "\x86\x80\x63\x15" + strings.Repeat("\x00", 60)}, wrong: "supported serious", says: "use its interface"},
		{name: "the kernel's", change: map[string]string{dir + "driver": "->sys/bus/pci/drivers/ixgbe", dir + "net/eth1/mtu": "1500", "sys/class/net/eth1/carrier": "1", "sys/class/net/eth1/speed": "10000"},
			wrong: "kernel driver serious", says: "fix: rebound-responder bind 0000:03:00.0"},
		{name: "in use", change: map[string]string{dir + "driver": "->sys/bus/pci/drivers/ixgbe", dir + "net/eth1/mtu": "1500", "sys/class/net/eth1/carrier": "0"},
			on:    func(h *cardHost) { h.needed = map[string]string{"eth1": "carries the default route"} },
			wrong: "kernel driver serious, link warning", says: "eth1 carries the default route"},
		{name: "shared", change: map[string]string{dir + "driver": "->sys/bus/pci/drivers/ixgbe", dir + "net/eth1/mtu": "1500", "sys/class/net/eth1/carrier": "1"},
			on:   func(h *cardHost) { h.beside = func(string) (string, error) { return "as mlx5_0", nil } },
			says: "ok       kernel driver: ixgbe keeps it, and ixgbe can use it as mlx5_0"},
		{name: "cannot be shared", change: map[string]string{dir + "driver": "->sys/bus/pci/drivers/ixgbe", dir + "net/eth1/mtu": "1500", "sys/class/net/eth1/carrier": "1"},
			on: func(h *cardHost) {
				h.beside = func(string) (string, error) {
					return "",
						errors.New("no RDMA device")
				}
			},
			wrong: "kernel driver serious", says: "not beside it: no RDMA device"},
		{name: "no IOMMU", change: map[string]string{dir + "iommu_group": "-"}, wrong: "IOMMU serious", says: "intel_iommu=on"},
		{name: "no IOMMU, accepted", change: map[string]string{dir + "iommu_group": "-", dir + "driver": "-"}, on: func(h *cardHost) { h.noIOMMU = true }, wrong: "IOMMU warning", says: "write to any memory"},
		{name: "no IOMMU, no huge pages", change: map[string]string{dir + "iommu_group": "-", dir + "driver": "-", "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages": "0"},
			on: func(h *cardHost) { h.noIOMMU = true }, wrong: "IOMMU warning, huge pages serious",
			says: "nr_hugepages"},
		{name: "group", change: map[string]string{"sys/kernel/iommu_groups/7/devices/0000:03:00.1": "", "sys/bus/pci/devices/0000:03:00.1/driver": "->sys/bus/pci/drivers/ixgbe"},
			wrong: "IOMMU serious", says: "fix: rebound-responder bind 0000:03:00.1"},
		{name: "a bridge in the group", change: map[string]string{"sys/kernel/iommu_groups/7/devices/0000:00:01.0": "", "sys/bus/pci/devices/0000:00:01.0/driver": "->sys/bus/pci/drivers/pcieport"}},
		{name: "no module", change: map[string]string{dir + "driver": "->sys/bus/pci/drivers/ixgbe", "sys/bus/pci/drivers/vfio-pci/bind": "-"},
			wrong: "kernel driver serious, vfio-pci warning, link note", says: "fix: modprobe vfio-pci"},
		{name: "huge pages", change: map[string]string{"sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages": "0"}, wrong: "huge pages warning", says: "echo 64 > /proc/sys/vm/nr_hugepages"},
		{name: "no huge pages of a kernel with pages of 64 KiB", change: map[string]string{"sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages": "0"},
			on: func(h *cardHost) { h.page = 65536 }, wrong: "huge pages warning",
			says: "echo 64 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"},
		{name: "few huge pages for a pod", change: map[string]string{"proc/self/cgroup": "0::/pods/one\n",
			"sys/fs/cgroup/pods/one/hugetlb.2MB.max": "max",
			"sys/fs/cgroup/pods/hugetlb.2MB.max":     "4194304", "sys/fs/cgroup/pods/one/memory.max": "1048576"},
			wrong: "cgroup warning", says: "hugetlb.2MB.max of /pods is 4 MiB, the card's memory may take 64"},
		{name: "little memory for a unit", change: map[string]string{
			"proc/self/cgroup": "1:name=systemd:/\n0::/system.slice/r.service\n",
			"sys/fs/cgroup/system.slice/r.service/memory.max": "33554432", "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages": "0"},
			wrong: "huge pages warning, cgroup warning", says: "fix: MemoryMax=infinity"},
		{name: "few huge pages for a container of version 1",
			change: map[string]string{"proc/self/cgroup": "5:memory:/other\n3:hugetlb:/docker/one\n0::/\n",
				"sys/fs/cgroup/hugetlb/docker/one/hugetlb.2MB.limit_in_bytes": "9223372036852678656",
				"sys/fs/cgroup/hugetlb/docker/hugetlb.2MB.limit_in_bytes":     "4194304",
				"sys/fs/cgroup/memory/other/memory.limit_in_bytes":            "1048576"},
			wrong: "cgroup warning",
			says:  "hugetlb.2MB.limit_in_bytes of /docker is 4 MiB, the card's memory may take 64"},
		{name: "little memory for a container of version 1",
			change: map[string]string{"proc/self/cgroup": "5:memory:/docker/one\n3:hugetlb:/other\n",
				"sys/fs/cgroup/memory/docker/one/memory.limit_in_bytes":   "33554432",
				"sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages": "0",
				"sys/fs/cgroup/hugetlb/other/hugetlb.2MB.limit_in_bytes":  "0"},
			wrong: "huge pages warning, cgroup warning", says: "memory.limit_in_bytes of /docker/one is 32 MiB"},
		{name: "no limits of version 1", change: map[string]string{
			"proc/self/cgroup": "5:memory:/one\n3:hugetlb:/one\n",
			"sys/fs/cgroup/memory/one/memory.limit_in_bytes": "9223372036854771712", "sys/fs/cgroup/hugetlb/one/hugetlb.2MB.limit_in_bytes": "9223372036852678656"}},
		{name: "no limits", change: map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max"}},
		{name: "locked memory", on: func(h *cardHost) { h.locked = 8 << 20 }, wrong: "locked memory warning", says: "ulimit -l unlimited"},
		{name: "CAP_IPC_LOCK", on: func(h *cardHost) { h.locked, h.mayLock = 8<<20, true }},
		{name: "narrow", change: map[string]string{dir + "current_link_width": "4"}, wrong: "PCIe warning", says: "5.0 GT/s PCIe x4 of 5.0 GT/s PCIe x8"},
		{name: "old", on: func(h *cardHost) { h.release = "5.4.0-200-generic" }, wrong: "kernel warning", says: "5.10"},
		{name: "lockdown", change: map[string]string{"sys/kernel/security/lockdown": "none [integrity] confidentiality"}, wrong: "lockdown note"},
		{name: "lockdown without an IOMMU", change: map[string]string{"sys/kernel/security/lockdown": "none [integrity] confidentiality", dir + "iommu_group": "-", dir + "driver": "-"},
			on: func(h *cardHost) { h.noIOMMU = true }, wrong: "IOMMU warning, lockdown serious", says: "Secure Boot"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := cardHost{root: cardTree(t, c.change), release: "6.12.0", locked: unix.RLIM_INFINITY, page: 4096}
			if c.on != nil {
				c.on(&h)
			}
			var wrong []string
			var all strings.Builder
			for _, f := range h.facts("0000:03:00.0") {
				f.print(&all)
				if f.severity != inOrder && !(f.what == "link" && f.severity == host.Note &&
					!strings.Contains(c.wrong, "link")) {
					wrong = append(wrong, f.what+" "+string(f.severity))
				}
				if f.severity != inOrder && f.fix == "" {
					t.Errorf("no fix: %+v", f)
				}
			}
			check.Equal(t, strings.Join(wrong, ", "), c.wrong, "not in order: %q")
			if !strings.Contains(all.String(), c.says) {
				t.Errorf("no %q in\n%s", c.says, &all)
			}
		})
	}
}
