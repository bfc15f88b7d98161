package responder

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/rebound-nic/rebound/internal/cards"
	"github.com/rebound-nic/rebound/internal/host/confine"
	"github.com/rebound-nic/rebound/internal/host/isolate"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/nic/kit/xdpkit"
)

// needs returns what a responder with these settings must keep once it answers.
func (s *settings) needs() (n confine.Needs) {
	n.AnyCall = s.trust.confine == "light"
	// Reports need host settings, and counters the state of interfaces and functions.
	n.Read = []string{"/proc", "/sys", "/etc/localtime"}
	if s.stats.report != "" {
		if parent, err := filepath.Abs(filepath.Dir(filepath.Clean(s.stats.report))); err == nil {
			n.Write = append(n.Write, parent)
		}
	}
	if s.cpu.isolate { // changes are undone on exit
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
		n.Capabilities = append(n.Capabilities, confine.BPF) // up to Linux 5.18 needed to read a map
		n.Write = append(n.Write, xdpkit.PinRoot)
		clocks, _ := filepath.Glob("/dev/ptp*")
		n.Write = append(n.Write, clocks...)
	case s.nic.Beside(): // a restart opens the device again
		n.Devices = append(n.Devices, s.deviceFolder())
		if !cards.CarriesMessages(s.nic.Driver) { // and its rules take this
			n.Capabilities = append(n.Capabilities, confine.NetRaw)
		}
	case !cards.IsPCIDevice(s.nic.Device):
		n.BPF = true
	case s.nic.UnsafeNoIOMMU: // the function's files in sysfs; at the end, and at a restart, it is disabled and enabled there
		n.Capabilities = append(n.Capabilities, confine.SysAdmin)
		n.Write = append(n.Write, "/sys/bus/pci", "/sys/devices")
	}
	return n
}

// deviceFolder returns the folder of device files that a responder beside the kernel's driver keeps. The kernel removes
// /dev/infiniband with the last RDMA device, and makes another folder when the device returns, which a rule for the
// first one does not allow. Its parent stays. Uid 0 does not keep that, because there the modes of the files do not
// protect other devices from it.
func (s *settings) deviceFolder() string {
	if u, _ := s.user(); u == nil && os.Geteuid() == 0 {
		return "/dev/infiniband"
	}
	return "/dev"
}

// user returns the user to change to, or nil if the process keeps its user, with the reason.
func (s *settings) user() (*confine.User, confine.Hold) {
	stays := func(format string, a ...any) (*confine.User, confine.Hold) {
		return nil, confine.Hold{Name: "user", What: fmt.Sprintf(format, a...)}
	}
	if uid := os.Geteuid(); uid != 0 {
		return stays("uid %d, as it was started", uid)
	}
	if s.trust.user == "root" {
		return stays("uid 0 stays: trust.user = \"root\"")
	}
	if why := s.needsRoot(); why != "" {
		return stays("uid 0 stays: %s", why)
	}
	name := s.trust.user
	if name == "auto" {
		name = ""
	}
	u, err := confine.FindUser(name)
	if err == nil {
		err = u.Cannot()
	}
	switch {
	case err == nil:
		return &u, confine.Hold{Name: "user", What: u.String() + ", no other groups"}
	case name == "":
		return stays("uid 0 stays: %v (start it as another user)", err)
	}
	return nil, confine.Hold{Name: "user", Err: fmt.Errorf("trust.user = %q: %w", name, err)}
}

// needsRoot returns the setting that needs files of root until exit, and for what; empty if there is none.
func (s *settings) needsRoot() string {
	switch {
	case s.cpu.isolate:
		return "cpu.isolate restores root-owned files in /sys and /proc at exit"
	case s.lift():
		return "cpu.realtime_guard = \"lift\" restores a root-owned file at exit"
	case s.nic.Pin != "":
		return "nic.pin uses the BPF file system, which belongs to root"
	case s.nic.UnsafeNoIOMMU && cards.IsPCIDevice(s.nic.Device):
		return "nic.unsafe_no_iommu disables the function at exit through a root-owned file in /sys"
	}
	return ""
}

// become changes to the user that the settings request. The folder of the report is opened for that user.
func (s *settings) become() (confine.Hold, error) {
	u, hold := s.user()
	if u == nil {
		return hold, nil
	}
	if err := confine.Become(*u); err != nil {
		return confine.Hold{Name: hold.Name, Err: err}, nil
	}
	if s.stats.report == "" {
		return hold, nil
	}
	var err error
	if s.stats.folder, err = report.OpenFolder(s.stats.report, u.UID, u.GID); err != nil {
		return hold, fmt.Errorf("stats.report: %w (trust.user = \"root\" keeps uid 0)", err)
	}
	return hold, nil
}

// confine drops everything that the settings do not need, and logs the result. It fails if trust.confine requires more
// than the kernel supports.
func (s *settings) confine(log *slog.Logger) error {
	if s.trust.confine == "off" {
		return nil
	}
	var attrs []any
	var missing error
	user, err := s.become()
	if err != nil {
		return err
	}
	for _, h := range append([]confine.Hold{user}, confine.Apply(s.needs())...) {
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
		log.Warn("confined only in part", attrs...)
	}
	return nil
}
