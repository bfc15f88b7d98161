package main

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"

	"rebound/cmd/internal/confine"
	"rebound/cmd/internal/device"
	"rebound/cmd/internal/isolate"
	"rebound/nic/kit/xdpkit"
)

// needs is what a responder with these settings has to be left with, once it answers.
func (s *settings) needs() (n confine.Needs) {
	n.AnyCall = s.trust.confine == "light"
	// What of the host costs latency is read for reports, and the state of interfaces and functions for counters.
	n.Read = []string{"/proc", "/sys", "/etc/localtime"}
	if s.stats.report != "" {
		if parent, err := filepath.Abs(filepath.Dir(filepath.Clean(s.stats.report))); err == nil {
			n.Write = append(n.Write, parent)
		}
	}
	if s.cpu.isolate { // what was changed is put back at the end
		n.Write = append(n.Write, "/sys", "/proc", isolate.Journals, "/dev/cpu_dma_latency")
		n.Capabilities = append(n.Capabilities, confine.DACOverride, confine.SysNice)
	}
	if s.lift() { // the guard's file is open; the journal is removed at the end
		n.Write = append(n.Write, isolate.Journals)
	}
	if s.cpu.priority > 0 {
		n.Priority = true
		n.Capabilities = append(n.Capabilities, confine.SysNice)
	}
	switch {
	case s.nic.InKernel():
		n.BPF = true
		n.Capabilities = append(n.Capabilities, confine.BPF) // up to Linux 5.18 for each look at a map
		n.Write = append(n.Write, xdpkit.PinRoot)
		clocks, _ := filepath.Glob("/dev/ptp*")
		n.Write = append(n.Write, clocks...)
	case !device.Named(s.nic.Device):
		n.BPF = true
	case s.nic.UnsafeNoIOMMU: // the function's files in sysfs; at the end, and at a restart, it is disabled and enabled there
		n.Capabilities = append(n.Capabilities, confine.SysAdmin)
		n.Write = append(n.Write, "/sys/bus/pci", "/sys/devices")
	}
	return n
}

// confine gives up all but what the settings need, and says what holds. It fails where trust.confine wants more than the kernel has.
func (s *settings) confine(log *slog.Logger) error {
	if s.trust.confine == "off" {
		return nil
	}
	var attrs []any
	var missing error
	for _, h := range confine.Apply(s.needs()) {
		attrs = append(attrs, h.Name, h)
		if h.Err != nil {
			missing = errors.Join(missing, fmt.Errorf("%s: %w", h.Name, h.Err))
		}
	}
	switch {
	case missing == nil:
		log.Info("confined", attrs...)
	case s.trust.confine == "require":
		return fmt.Errorf("trust.confine = \"require\": %w", missing)
	default:
		log.Warn("confined in part", attrs...)
	}
	return nil
}
