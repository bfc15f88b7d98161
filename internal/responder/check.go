package responder

import (
	"fmt"
	"io"
	"os"

	"github.com/rebound-nic/rebound/internal/cards"
	"github.com/rebound-nic/rebound/internal/host/confine"
	"github.com/rebound-nic/rebound/internal/host/isolate"
	"github.com/rebound-nic/rebound/latency/host"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/bus/verbs"
)

// hostFindings returns what on this host adds latency on the polling cores and, for a kernel interface, on the
// interface, without duplicates.
func hostFindings(cores []int, name string) []host.Finding {
	var out []host.Finding
	seen := map[string]bool{}
	for _, core := range cores {
		for _, f := range host.Collect(os.DirFS("/"), core).Findings {
			if !seen[f.ID+f.What] {
				seen[f.ID+f.What] = true
				out = append(out, f)
			}
		}
	}
	if name != "" && !cards.IsPCIDevice(name) {
		out = append(out, interfaceFindings(os.DirFS("/"), name, cores, readCoalescing)...)
	}
	return out
}

// errNotReady ends `rebound-responder check` with exit code 1.
type errNotReady int

func (n errNotReady) Error() string {
	return fmt.Sprintf("%d host settings add latency", int(n))
}

// checkCommand prints whether the card can be used, if the device is one, and host settings that increase latency.
// Without -config, only the cores matter, and required settings may be missing.
func checkCommand(args []string, stdout, _ io.Writer) error {
	var c configured
	if err := parseConfigured(c.flags(), args); err != nil {
		return err
	}
	online, err := onlineCPUs()
	if err != nil {
		return err
	}
	s, err := readConfig(c.file, c.sets, online)
	if err != nil {
		return err
	}
	if c.file != "" {
		err = s.check(online)
	} else {
		err = s.checkCores(online)
	}
	if err != nil {
		return err
	}
	missing := 0
	if addr := cardAddress(s.nic.Device); addr != "" {
		h := thisCardHost(s)
		if !cards.SharesDevices(driverOf(addr)) {
			h.beside = nil
		}
		missing = checkCard(stdout, h, addr)
	}
	var findings []host.Finding
	name, _ := s.nic.Choose(coreGiven(s))
	if name == "" {
		name = s.nic.Driver
	}
	if s.nic.Device != "" && name != "auto" {
		for _, e := range s.table.Unused(name) {
			fmt.Fprintf(stdout, "%-8s %v\n", host.Note, e)
		}
	}
	if s.nic.Device != "" && (name == "xdp" || s.nic.InKernel()) {
		cores, served := interruptCPUs(os.DirFS("/"), s.nic.Device, online)
		fmt.Fprintf(stdout, "no core polls: the kernel answers on CPU %s, %s\n", isolate.FormatCPUs(cores), served)
		findings = inKernelFindings(cores, s.nic.Device)
	} else {
		cores := s.cpu.cores
		if len(cores) == 0 {
			cores = []int{chooseCore(online)}
		}
		fmt.Fprintf(stdout, "polling core %s of %s\n", isolate.FormatCPUs(cores), isolate.FormatCPUs(online))
		if s.cpu.priority > 0 {
			if err := probeGuards(stdout, cores, s.cpu.priority); err != nil {
				return err
			}
		}
		findings = hostFindings(cores, s.nic.Device)
	}
	if s.trust.confine != "off" {
		_, user := s.user()
		for _, h := range append([]confine.Hold{user}, confine.Available(s.needs())...) {
			fmt.Fprintf(stdout, "trust    %v\n", h)
		}
	}
	bad := 0
	for _, f := range findings {
		if f.Severity != host.Note {
			bad++
		}
		fmt.Fprintf(stdout, "%-8s %s\n", f.Severity, f.What)
		if f.Fix != "" {
			fmt.Fprintf(stdout, "         fix: %s\n", f.Fix)
		}
	}
	switch {
	case missing > 0:
		return fmt.Errorf("%s is not ready (see the first lines)", s.nic.Device)
	case bad > 0:
		return errNotReady(bad)
	}
	fmt.Fprintln(stdout, "ready for low latency")
	return nil
}

// cardAddress returns the PCI address of a device that a driver on the device uses, "" for an interface or a model.
func cardAddress(device string) string {
	if addr, err := pci.ParseAddress(device); err == nil {
		return addr
	}
	if rdma, err := verbs.Find(device); err == nil && cards.IsPCIDevice(device) {
		return rdma.Function.Address
	}
	return ""
}

// driverOf returns the driver for the function at a PCI address, "" if there is none.
func driverOf(addr string) string {
	f, err := pci.Find(addr)
	if err != nil {
		return ""
	}
	return cards.DriverFor(f.ID)
}
