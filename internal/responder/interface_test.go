package responder

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"golang.org/x/sys/unix"
)

func TestInterfaceFindings(t *testing.T) {
	quiet := map[string]string{
		"sys/class/net/eth1/threaded":             "0",
		"sys/class/net/eth1/napi_defer_hard_irqs": "0",
		"sys/class/net/eth1/gro_flush_timeout":    "20000",
		"sys/class/net/eth1/device/msi_irqs/30":   "msix",
		"sys/class/net/eth1/device/msi_irqs/9":    "msix",
		"proc/irq/30/smp_affinity_list":           "0-3",
		"proc/irq/30/effective_affinity_list":     "1",
	}
	for _, c := range []struct {
		name       string
		file, text string
		coalesce   coalescing
		err        error
		ids, says  string
	}{
		{name: "nothing", ids: "interface_irqs", says: "interrupts of eth1: 30 on CPU 1"},
		{name: "no coalescing", err: unix.EOPNOTSUPP, ids: "interface_irqs"},
		{name: "unknown", err: errors.New("broken"), ids: "coalescing interface_irqs", says: "unknown: broken"},
		{name: "adaptive", coalesce: coalescing{adaptiveRx: 1, rxUsecs: 8}, ids: "coalescing interface_irqs", says: "adaptive-rx"},
		{name: "usecs", coalesce: coalescing{rxUsecs: 8}, ids: "coalescing interface_irqs", says: "up to 8 µs"},
		{name: "frames", coalesce: coalescing{rxFrames: 32}, ids: "coalescing interface_irqs", says: "32 frames"},
		{name: "threaded", file: "sys/class/net/eth1/threaded", text: "1", ids: "napi_threaded interface_irqs", says: "napi/eth1-*"},
		{name: "deferred", file: "sys/class/net/eth1/napi_defer_hard_irqs", text: "2", ids: "napi_deferral interface_irqs", says: "2 rounds, and polls every 20 µs"},
		{name: "two interrupts", file: "proc/irq/9/smp_affinity_list", text: "2", ids: "interface_irqs", says: "of eth1: 9 on CPU 2, 30 on CPU 1"},
		{name: "on the loop's core", file: "proc/irq/30/effective_affinity_list", text: "3", ids: "napi_core interface_irqs", says: "polling core 3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := fstest.MapFS{}
			for name, text := range quiet {
				root[name] = &fstest.MapFile{Data: []byte(text + "\n")}
			}
			if c.file != "" {
				root[c.file] = &fstest.MapFile{Data: []byte(c.text + "\n")}
			}
			var ids, says []string
			for _, f := range interfaceFindings(root, "eth1", []int{3},
				func(string) (coalescing, error) { return c.coalesce, c.err }) {
				ids, says = append(ids, f.ID), append(says, f.What+" "+f.Fix)
			}
			if got := strings.Join(ids, " "); got != c.ids || !strings.Contains(strings.Join(says, "\n"), c.says) {
				t.Errorf("findings %s, want %s with %q:\n%s", got, c.ids, c.says, strings.Join(says, "\n"))
			}
		})
	}
}

func TestReadCoalescing(t *testing.T) {
	if _, err := readCoalescing("nosuch0"); !errors.Is(err, unix.ENODEV) {
		t.Errorf("an interface that is not there: %v", err)
	}
	if _, err := readCoalescing("lo"); err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("loopback: %v", err)
	}
}

// The kernel answers on the CPUs that serve the interface's interrupts, or on any CPU if it has none.
func TestInterruptCPUs(t *testing.T) {
	root := fstest.MapFS{}
	for file, text := range map[string]string{
		"sys/class/net/eth1/device/msi_irqs/30": "msix", "proc/irq/30/effective_affinity_list": "3",
		"sys/class/net/eth1/device/msi_irqs/31": "msix", "proc/irq/31/effective_affinity_list": "1-2",
		"sys/class/net/eth1/device/msi_irqs/32": "msix", "proc/irq/32/smp_affinity_list": "2",
	} {
		root[file] = &fstest.MapFile{Data: []byte(text + "\n")}
	}
	if cpus, what := interruptCPUs(root, "eth1", []int{0, 1, 2, 3}); !slices.Equal(cpus, []int{1, 2, 3}) ||
		!strings.Contains(what, "are served") {
		t.Errorf("CPUs %v, %s", cpus, what)
	}
	if cpus, what := interruptCPUs(root, "veth0", []int{0, 1}); !slices.Equal(cpus, []int{0, 1}) ||
		!strings.Contains(what, "no interrupts") {
		t.Errorf("CPUs %v, %s", cpus, what)
	}
}
