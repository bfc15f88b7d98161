package pci

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic/bus"
)

const vfioDriver = "vfio-pci"

// noIOMMUParameter is vfio's switch below /sys. It also works where vfio is built into the kernel or loaded already:
// modprobe then ignores the parameter, and reports success.
const noIOMMUParameter = "module/vfio/parameters/enable_unsafe_noiommu_mode"

// Target says what Bind does with a function.
type Target struct {
	NoDriver bool              // leave it without a driver, for openSysfs, instead of giving it to vfio-pci
	Needed   map[string]string // interfaces in use, with the reason: "carries the default route"
	Force    bool              // even if its interface is in use
	Group    int               // of users, which may write its configuration space until Unbind; 0 for none
}

// Bind unbinds the function at addr from its kernel driver and binds it to vfio-pci. It returns errInUse for a function
// whose interface is in to.Needed, or which has virtual functions. It saves the driver's name for Unbind in /run, so
// that a reboot forgets it. On error the function is bound to its previous driver again; if that failed too, the error
// says so.
func Bind(addr string, to Target) error { return machine.bind(addr, to) }

// Unbind binds the function at addr to the driver it had before Bind, or to the one that the kernel chooses.
func Unbind(addr string) error { return machine.unbind(addr) }

func (h *host) bind(addr string, to Target) error {
	f, err := h.find(addr)
	if err != nil {
		return err
	}
	if err := h.rebind(f, to); err != nil || to.Group == 0 {
		return err
	}
	return h.share(f, to.Group, 0o664)
}

// share gives a function's configuration space to a group of users, with a mode.
func (h *host) share(f Found, group int, mode os.FileMode) error {
	config := filepath.Join(h.device(f.Address), "config")
	if err := errors.Join(os.Chown(config, -1, group), os.Chmod(config, mode)); err != nil {
		return fmt.Errorf("pci: %s: %w", f.Address, rights(err))
	}
	return nil
}

// rebind moves a function to vfio-pci, or to no driver. Unless to.Force is set it refuses a function that the host
// needs or that has virtual functions.
func (h *host) rebind(f Found, to Target) error {
	want := vfioDriver
	if to.NoDriver {
		want = ""
	}
	if f.Driver == want {
		return nil
	}
	dir := h.device(f.Address)
	if !to.Force {
		if err := h.checkNotNeeded(f, to.Needed); err != nil {
			return err
		}
		if n := h.text(dir, "sriov_numvfs"); n != "" && n != "0" {
			return fmt.Errorf("pci: %s has %s virtual functions, which would disappear: %w (-force overrides this)",
				f.Address, n, errInUse)
		}
	}
	if f.Driver == vfioDriver {
		if err := h.checkGroupFree(f); err != nil {
			return err
		}
	}
	if mode := LockdownMode(h.text(h.sys, "kernel/security/lockdown")); to.NoDriver && mode != "" && !to.Force {
		return fmt.Errorf("pci: %s: %w: kernel lockdown is on (%s, by Secure Boot or lockdown=), which forbids registers and configuration space to programs: bind it to vfio-pci, without -no-driver",
			f.Address, bus.ErrRights, mode)
	}
	if !to.NoDriver {
		if f.Group == "" && h.text(h.sys, noIOMMUParameter) != "Y" {
			return fmt.Errorf("pci: %s: %w: enable it in the firmware (VT-d, AMD-Vi, SMMU) and boot with intel_iommu=on or amd_iommu=on; without one, bind -no-driver and set nic.unsafe_no_iommu, "+
				"or allow vfio-pci without one (echo 1 > %s)", f.Address, errNoIOMMU,
				filepath.Join(h.sys, noIOMMUParameter))
		}
		if _, err := os.Stat(h.driver(vfioDriver)); err != nil {
			if err := h.modules(vfioDriver); err != nil {
				return fmt.Errorf("pci: %s: kernel driver %s is not loaded: %w", f.Address, vfioDriver, err)
			}
		}
	}
	if f.Driver != "" && f.Driver != vfioDriver {
		if err := h.remember(f); err != nil {
			return err
		}
	}
	if err := h.move(f, want); err != nil {
		return errors.Join(err, h.restore(f))
	}
	return nil
}

// LockdownMode returns the mode that /sys/kernel/security/lockdown says (kernel_lockdown(7)), "" if lockdown is off.
func LockdownMode(text string) string {
	_, rest, _ := strings.Cut(text, "[")
	mode, _, _ := strings.Cut(rest, "]")
	if mode == "none" {
		return ""
	}
	return mode
}

// uppers returns an interface and all interfaces built on it: bonds, bridges, VLANs.
func (h *host) uppers(name string) []string {
	all := []string{name}
	for i := 0; i < len(all); i++ {
		links, _ := filepath.Glob(filepath.Join(h.sys, "class/net", all[i], "upper_*"))
		for _, l := range links {
			up := strings.TrimPrefix(filepath.Base(l), "upper_")
			if !slices.Contains(all, up) {
				all = append(all, up)
			}
		}
	}
	return all
}

// messagesOnly reports whether none of a function's RDMA ports has a link layer with network interfaces, as with EFA:
// then no route or session depends on it, in any namespace.
func (h *host) messagesOnly(f Found) bool {
	ports, _ := filepath.Glob(filepath.Join(h.device(f.Address), "infiniband", "*", "ports", "*", "link_layer"))
	for _, p := range ports {
		if b, err := os.ReadFile(p); err != nil || strings.TrimSpace(string(b)) != "Unknown" {
			return false
		}
	}
	return len(ports) > 0
}

// checkNotNeeded refuses a function if one of its interfaces, or one built on them, is needed. It also refuses one
// whose driver shows no interface here: the interface may be in another network namespace, and carry its default route.
func (h *host) checkNotNeeded(f Found, needed map[string]string) error {
	switch {
	case f.Driver == "" || f.Driver == vfioDriver:
		return nil
	case len(f.Interfaces) == 0 && h.messagesOnly(f):
		return nil
	case len(f.Interfaces) == 0:
		return fmt.Errorf("pci: %s: kernel driver %s has no interface for it in this network namespace, so what uses it is unknown: %w (-force overrides this)",
			f.Address, f.Driver, errInUse)
	}
	for _, own := range f.Interfaces {
		for _, up := range h.uppers(own) {
			if why := needed[up]; why != "" {
				if up != own {
					own += ", under " + up + ","
				}
				return fmt.Errorf("pci: %s: interface %s %s: %w (-force overrides this)", f.Address, own, why, errInUse)
			}
		}
	}
	return nil
}

// move unbinds a function from its driver and binds it to another one, or to none if want is "".
func (h *host) move(f Found, want string) error {
	dir := h.device(f.Address)
	override := want
	if want == "" {
		override = "none-rebound" // a name that no driver has, so that the kernel chooses none
	}
	if err := h.write(filepath.Join(dir, "driver_override"), override); err != nil {
		return fmt.Errorf("pci: %s: driver_override: %w", f.Address, err)
	}
	if f.Driver != "" {
		if err := h.write(filepath.Join(dir, "driver/unbind"), f.Address); err != nil {
			return fmt.Errorf("pci: %s: unbind it from %s: %w", f.Address, f.Driver, err)
		}
	}
	if want != "" {
		if err := h.write(filepath.Join(h.sys, "bus/pci/drivers_probe"), f.Address); err != nil {
			return fmt.Errorf("pci: %s: bind it to %s: %w", f.Address, want, err)
		}
	}
	if got := linkName(filepath.Join(dir, "driver")); got != want {
		return fmt.Errorf("pci: %s: bound to driver %q, want %q (dmesg may show why)", f.Address, got, want)
	}
	return nil
}

// restore binds a function to the driver in f again, after a failed move.
func (h *host) restore(f Found) error {
	dir := h.device(f.Address)
	if now := linkName(filepath.Join(dir, "driver")); now == f.Driver {
		return h.write(filepath.Join(dir, "driver_override"), "\n")
	}
	return h.rebindTo(f.Address, f.Driver)
}

// unbind gives a function back to the kernel's own driver, and takes back the rights that bind gave to a group. It
// fails while a process has it open.
func (h *host) unbind(addr string) error {
	f, err := h.find(addr)
	if err != nil {
		return err
	}
	if f.Driver != "" && f.Driver != vfioDriver {
		return nil // the kernel's own driver has it
	}
	if i, err := os.Stat(filepath.Join(h.device(f.Address), "config")); err == nil && i.Mode()&0o020 != 0 {
		if err := h.share(f, 0, 0o644); err != nil {
			return err
		}
	}
	if f.Driver == vfioDriver {
		// Otherwise the kernel would wait indefinitely for the process that has it open.
		if err := h.checkGroupFree(f); err != nil {
			return err
		}
		if err := h.write(filepath.Join(h.device(f.Address), "driver/unbind"), f.Address); err != nil {
			return fmt.Errorf("pci: %s: unbind it from %s: %w", f.Address, f.Driver, err)
		}
	}
	if err := h.rebindTo(f.Address, h.remembered(f.Address)); err != nil {
		return err
	}
	return h.forget(f.Address)
}

// rebindTo lets the kernel choose a driver again. If the result is not driver, it binds that.
func (h *host) rebindTo(addr, driver string) error {
	dir := h.device(addr)
	if err := h.write(filepath.Join(dir, "driver_override"), "\n"); err != nil {
		return fmt.Errorf("pci: %s: driver_override: %w", addr, err)
	}
	var err error
	if driver != "" {
		if _, serr := os.Stat(h.driver(driver)); serr != nil {
			err = h.modules(driver)
		}
		if err == nil && linkName(filepath.Join(dir, "driver")) == "" { // loading the module may have bound it
			err = h.write(filepath.Join(h.driver(driver), "bind"), addr)
		}
	} else {
		err = h.write(filepath.Join(h.sys, "bus/pci/drivers_probe"), addr)
	}
	got := linkName(filepath.Join(dir, "driver"))
	switch {
	case got == "" && driver == "" && err == nil:
		return nil // it had no driver, and the kernel has none for it
	case got == "" || driver != "" && got != driver:
		return errors.Join(fmt.Errorf("pci: %s: bound to driver %q, and could not be returned to %q", addr, got,
			driver), err)
	}
	return nil
}

// checkGroupFree returns bus.ErrBusy if a process has the VFIO group of f open.
func (h *host) checkGroupFree(f Found) error {
	file, err := os.OpenFile(h.groupFile(f.Group), os.O_RDWR|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.EBUSY):
		return h.groupError(f, err)
	case err != nil:
		return nil // without a group file, no process has it open
	}
	return file.Close()
}

func (h *host) record(addr string) string { return filepath.Join(h.run, "driver-of-"+addr) }

// remember saves which driver a function had before the first Bind.
func (h *host) remember(f Found) error {
	if err := os.MkdirAll(h.run, 0o755); err != nil {
		return fmt.Errorf("pci: %w", rights(err))
	}
	if err := os.WriteFile(h.record(f.Address), []byte(f.Driver+"\n"), 0o644); err != nil {
		return fmt.Errorf("pci: %w", rights(err))
	}
	return nil
}

func (h *host) remembered(addr string) string {
	b, _ := os.ReadFile(h.record(addr))
	name := strings.TrimSpace(string(b))
	if strings.ContainsAny(name, "/ ") {
		return ""
	}
	return name
}

func (h *host) forget(addr string) error {
	if err := os.Remove(h.record(addr)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("pci: %w", err)
	}
	return nil
}

func modprobe(name string) error {
	out, err := exec.Command("modprobe", name).CombinedOutput()
	if err != nil {
		return fmt.Errorf("modprobe %s: %w: %s", name, err, strings.TrimSpace(string(out)))
	}
	return nil
}
