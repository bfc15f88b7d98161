package responder

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/rebound-nic/rebound/internal/host/isolate"
	"github.com/rebound-nic/rebound/latency/host"
	"github.com/rebound-nic/rebound/nic/kit/netif"
	"github.com/rebound-nic/rebound/nic/kit/xdpkit"
)

// pollingOnly are the findings that matter to a loop on a dedicated core, and not to a program that runs where
// interrupts are served.
var pollingOnly = []string{"isolation", "nohz_full", "irqs", "irqbalance", "rt_throttling", "napi_core"}

// inKernelFindings is hostFindings for a program in the kernel: cores are those that serve the interface. It includes
// features that the interface's driver lacks.
func inKernelFindings(cores []int, name string) []host.Finding {
	out := slices.DeleteFunc(hostFindings(cores, name), func(f host.Finding) bool {
		return slices.Contains(pollingOnly, f.ID)
	})
	i, err := netif.Lookup(name)
	if err != nil {
		return append(out, host.Finding{ID: "xdp", Severity: host.Serious, What: err.Error()})
	}
	defer i.Close()
	f := xdpkit.AskFeatures(i.Index)
	out = append(out, host.Finding{ID: "xdp_features", Severity: host.Note,
		What: fmt.Sprintf("XDP features of %s, driver %s: %v", name, i.Driver, f)})
	if missing := f.Missing(i); missing != "" {
		out = append(out, host.Finding{ID: "xdp_missing", Severity: host.Warning,
			What: missing + ": the driver's hook may refuse the program, which then falls back to the generic hook, behind the driver"})
	}
	if i.Driver == "veth" {
		if ok, err := i.PeerReceivesXDP(); err != nil || !ok {
			out = append(out, host.Finding{ID: "xdp_peer", Severity: host.Note,
				What: fmt.Sprintf("the peer of %s has no XDP program at its driver's hook: the generic hook is used here, because the kernel would drop replies from the driver's", name)})
		}
	}
	if err := xdpkit.Free(i); err != nil {
		out = append(out, host.Finding{ID: "xdp_busy", Severity: host.Warning, What: err.Error()})
	}
	return out
}

// interruptCPUs returns the CPUs that serve an interface's interrupts, or all online CPUs if it has no interrupts, and
// which of both applies.
func interruptCPUs(root fs.FS, name string, online []int) (cpus []int, what string) {
	for _, i := range interruptsOf(root, name, func(file string) string {
		b, err := fs.ReadFile(root, file)
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(b))
	}) {
		list, err := isolate.ParseCPUs(i.cpus)
		if err != nil {
			continue
		}
		cpus = append(cpus, list...)
	}
	if len(cpus) == 0 {
		return online, "whichever sends to it: " + name + " has no interrupts"
	}
	slices.Sort(cpus)
	return slices.Compact(cpus), "where the interrupts of " + name + " are served"
}
