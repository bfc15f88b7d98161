package main

import (
	"strings"
)

// commandLine is the kernel's command line. docs/use/appliance.md says why for each word.
func commandLine() []string {
	return []string{
		"console=tty0", "console=ttyS0,115200", "loglevel=4", "panic=10",
		"isolcpus=managed_irq,domain,1-N", "nohz_full=1-N", "rcu_nocbs=1-N", "irqaffinity=0",
		"intel_iommu=on",
		"cpuidle.off=1", "skew_tick=1", "transparent_hugepage=never", "numa_balancing=disable",
	}
}

// script is an iPXE script beside rebound.efi. iPXE passes the words behind the file's name as the whole command line,
// in place of the one in the file.
func script(line string) string {
	return strings.Join([]string{
		"#!ipxe",
		"# Add rebound.config=URL, or settings such as rebound.respond.addresses=10.0.0.2/24, at the end of the next line.",
		"kernel rebound.efi " + line + " ${rebound}",
		"boot",
		"",
	}, "\n")
}
