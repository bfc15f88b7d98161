package cards

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// kernel is a way to a card, and the kernels that have it.
type kernel struct {
	drivers string // "ena, efa"
	way     string // "on vfio-pci behind an IOMMU"
	needs   string // the oldest kernel, "" if none is known to be too old
	why     string // what an older one lacks
	tried   string // kernels that the lab boots: proof/lab, TestLabKernels and the newest's scenarios
	how     string // how they were tried, if not by pings and by the bench
}

// kernels are all ways. Kernels before 5.10 were not tried.
var kernels = []kernel{
	{"xdp", "on an interface", "5.10", "types (CONFIG_DEBUG_INFO_BTF)", "5.10, 5.15, 6.1, 6.12, 7.3", "on veth and ixgbe"},
	{"xdp", "STAMP", "6.1", "the time of day for programs", "6.1, 6.12, 7.3; 5.10 and 5.15 refuse it by name", "on veth"},
	{"afxdp, afpacket", "on an interface", "", "", "5.10, 5.15, 6.1, 6.12, 7.3", "on veth and ixgbe, responder and bench"},
	{"ixgbe, mlx5, mlx4, ena", "on vfio-pci behind an IOMMU", "", "", "5.10, 6.1, 6.12, 7.3", ""},
	{"efa", "on vfio-pci behind an IOMMU", "", "", "5.10, 6.1, 6.12, 7.3", "`probe -stage loop`: Debian has no efa module"},
	{"virtio", "on vfio-pci behind an IOMMU, or over sysfs without one", "", "", "7.3", ""},
	{"ixgbe", "without an IOMMU, over sysfs (bind -no-driver)", "", "", "5.10, 5.15, 7.3", ""},
	{"ixgbe", "without an IOMMU, on vfio-pci (CONFIG_VFIO_NOIOMMU)", "", "", "5.15", "Debian's kernels do not have it"},
	{"mlx5", "beside mlx5_core, by DEVX and by raw packets", "5.9", "calls by ioctl", "5.10, 6.12, 7.3", ""},
	{"mlx4", "beside mlx4_core, interface versions 3 and 4", "5.9", "calls by ioctl", "5.10, 6.12, 7.3", ""},
	{"efa", "beside efa", "6.1", "the GIDs of unknown senders", "7.3", "module built from Debian's source"},
}

// KernelTable returns the table of kernels in docs/cards/drivers.md.
func KernelTable() string {
	var b strings.Builder
	b.WriteString("| Driver | Way | Needs Linux | Tried on |\n|---|---|---|---|\n")
	for _, k := range kernels {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", strings.ReplaceAll(k.drivers, ", ", "`, `"), k.way, k.need(),
			k.tries())
	}
	return b.String()
}

func (k *kernel) need() string {
	if k.needs == "" {
		return "–"
	}
	return fmt.Sprintf("%s, for %s", k.needs, k.why)
}

func (k *kernel) tries() string {
	if k.how == "" {
		return k.tried
	}
	return k.tried + " (" + k.how + ")"
}

// ListKernels writes the same table for a terminal. release is that of the running kernel: a way that it is too old for
// is marked.
func ListKernels(out io.Writer, release string) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "DRIVER\tWAY\tNEEDS LINUX (THIS IS %s)\tTRIED ON\n", release)
	for _, k := range kernels {
		needs := k.need()
		if k.needs != "" && Older(release, k.needs) {
			needs += ": this one is too old"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", k.drivers, k.way, needs, strings.ReplaceAll(k.tries(), "`", ""))
	}
	return w.Flush()
}

// Older reports whether a kernel's release, such as "5.4.0-42-generic", is older than a version, such as "5.10".
func Older(release, version string) bool {
	var a, b [2]int
	if n, _ := fmt.Sscanf(release, "%d.%d", &a[0], &a[1]); n != 2 {
		return false // not a release of Linux
	}
	fmt.Sscanf(version, "%d.%d", &b[0], &b[1])
	return a[0] < b[0] || a[0] == b[0] && a[1] < b[1]
}
