package main

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"
	"github.com/u-root/u-root/pkg/cpio"
	"github.com/ulikunitz/xz"
)

// wanted are the kernel's modules in the image, without those that they depend on. Drivers that do nothing without a
// firmware file (bnx2, bnx2x, qede) are left out, because no firmware is included.
const wanted = `
	vfio-pci vfio_iommu_type1 mlx5_ib mlx4_ib ib_uverbs
	e1000 e1000e igb igc ixgbe ixgbevf i40e iavf ice r8169 tg3 bnxt_en mlx5_core mlx4_core mlx4_en ena gve virtio_net
	vmxnet3 hv_netvsc atlantic sfc cxgb4 be2net enic amd-xgbe stmmac r8152 ax88179_178a cdc_ether cdc_ncm asix 8021q
	usb-storage uas sd_mod virtio_blk virtio_scsi nvme ahci vmw_pvscsi hv_storvsc sdhci-pci mmc_block
	xhci-pci ehci-pci ohci-pci uhci-hcd usbhid hid-generic hyperv-keyboard
	vfat nls_cp437 nls_ascii nls_iso8859-1 nls_utf8 efivarfs
	button evdev iTCO_wdt lpc_ich i2c-i801 i6300esb sp5100_tco wdat_wdt hpwdt ptp_kvm coretemp k10temp acpi-cpufreq`

// module is a kernel module as the package has it, compressed.
type module struct {
	name           string
	body           []byte
	needs, aliases []string
}

// initramfs returns the package's kernel, and the archive with program as /init and the modules, which stay compressed:
// the kernel decompresses what it loads.
func (o *options) initramfs(kernel pkg, release, program string) (vmlinuz, archive []byte, err error) {
	files := map[string][]byte{}
	builtin := map[string]bool{}
	err = kernel.walk(func(name string, body io.Reader) error {
		switch {
		case strings.HasSuffix(name, ".ko.xz"):
			b, err := io.ReadAll(body)
			files[moduleName(name)] = b
			return err
		case path.Base(name) == "modules.builtin":
			b, err := io.ReadAll(body)
			for line := range strings.Lines(string(b)) {
				builtin[moduleName(strings.TrimSpace(line))] = true
			}
			return err
		case name == "/boot/vmlinuz-"+release:
			vmlinuz, err = io.ReadAll(body)
			return err
		}
		return nil
	})
	if err == nil && vmlinuz == nil {
		err = fmt.Errorf("%s has no /boot/vmlinuz-%s", kernel, release)
	}
	if err != nil {
		return nil, nil, err
	}
	modules, err := choose(files, builtin)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", kernel, err)
	}
	self, err := os.ReadFile(program)
	if err != nil {
		return nil, nil, err
	}
	records := []cpio.Record{cpio.Directory("dev", 0o755), cpio.CharDev("dev/console", 0o600, 5, 1),
		cpio.StaticFile("init", string(self), 0o755),
		cpio.Directory("lib", 0o755), cpio.Directory("lib/modules", 0o755)}
	var needs, aliases strings.Builder
	for _, m := range modules {
		records = append(records, cpio.StaticFile("lib/modules/"+m.name+".ko.xz", string(m.body), 0o644))
		fmt.Fprintln(&needs, strings.Join(append([]string{m.name}, m.needs...), " "))
		for _, a := range m.aliases {
			fmt.Fprintln(&aliases, a, m.name)
		}
	}
	records = append(records, cpio.StaticFile("lib/modules/needs", needs.String(), 0o644),
		cpio.StaticFile("lib/modules/aliases", aliases.String(), 0o644))
	cpio.MakeAllReproducible(records)
	var plain bytes.Buffer
	w := cpio.Newc.Writer(&plain)
	if err := cpio.WriteRecords(w, records); err != nil {
		return nil, nil, err
	}
	if err := cpio.WriteTrailer(w); err != nil {
		return nil, nil, err
	}
	// One thread: the result must not depend on the number of CPUs.
	z, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithEncoderConcurrency(1),
		zstd.WithWindowSize(32<<20))
	if err != nil {
		return nil, nil, err
	}
	return vmlinuz, z.EncodeAll(plain.Bytes(), nil), nil
}

// moduleName returns the kernel's name of a module's file.
func moduleName(file string) string {
	name, _, _ := strings.Cut(path.Base(file), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}

// choose returns the wanted modules and those that they need, sorted by name.
func choose(files map[string][]byte, builtin map[string]bool) ([]module, error) {
	chosen := map[string]module{}
	var add func(name string) error
	add = func(name string) error {
		if _, ok := chosen[name]; ok || builtin[name] {
			return nil
		}
		body, ok := files[name]
		if !ok {
			return fmt.Errorf("no module %s", name)
		}
		m := module{name: name, body: body}
		if err := m.describe(); err != nil {
			return fmt.Errorf("module %s: %w", name, err)
		}
		m.needs = slices.DeleteFunc(m.needs, func(n string) bool { return builtin[n] })
		chosen[name] = m
		for _, n := range m.needs {
			if err := add(n); err != nil {
				return err
			}
		}
		return nil
	}
	for _, name := range strings.Fields(wanted) {
		if err := add(moduleName(name)); err != nil {
			return nil, err
		}
	}
	var out []module
	for _, name := range slices.Sorted(maps.Keys(chosen)) {
		out = append(out, chosen[name])
	}
	return out, nil
}

// describe reads what the module says about itself: depmod does the same on an installed system.
func (m *module) describe() error {
	r, err := xz.NewReader(bytes.NewReader(m.body))
	if err != nil {
		return err
	}
	b, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		return err
	}
	s := f.Section(".modinfo")
	if s == nil {
		return fmt.Errorf("no section .modinfo")
	}
	info, err := s.Data()
	if err != nil {
		return err
	}
	for entry := range strings.SplitSeq(string(info), "\x00") {
		key, value, _ := strings.Cut(entry, "=")
		switch key {
		case "depends":
			for n := range strings.SplitSeq(value, ",") {
				if n != "" {
					m.needs = append(m.needs, moduleName(n))
				}
			}
		case "alias":
			m.aliases = append(m.aliases, value)
		}
	}
	return nil
}
