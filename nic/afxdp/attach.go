package afxdp

import (
	"errors"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Values of nic.Info.Push, the first completed by "zero-copy" or "copy".
const (
	pushDriver  = "xdp-drv"
	pushGeneric = "xdp-generic"
)

// devBound makes a program bound to one interface, whose metadata it may then ask for (BPF_F_XDP_DEV_BOUND_ONLY).
const devBound = 1 << 6

// attach loads the program and attaches it, in the driver's hook where there is one and the generic one is not asked for.
// The map holds sockets for queues below queues.
func (d *Device) attach(f *filter, queues int, generic bool) error {
	var err error
	d.sockets, err = ebpf.NewMap(&ebpf.MapSpec{
		Name: "rebound", Type: ebpf.XSKMap, KeySize: 4, ValueSize: 4, MaxEntries: uint32(queues),
	})
	if err != nil {
		return d.iface.ExplainBPF("map of sockets", err)
	}
	type hook struct {
		push    string
		flags   link.XDPAttachFlags
		vlanTag int64
	}
	hooks := []hook{{pushGeneric, link.XDPGenericMode, 0}}
	if !generic {
		hooks = append([]hook{{pushDriver, link.XDPDriverMode, 0}}, hooks...)
		if id := vlanTagFunction(); id != 0 {
			hooks = append([]hook{{pushDriver, link.XDPDriverMode, id}}, hooks...)
		}
	}
	var driver error // why the driver's own hook is not used
	for _, h := range hooks {
		err = d.attachTo(f, h.flags, h.vlanTag)
		switch {
		case err == nil:
			d.info.Push = h.push
			if driver != nil && h.push == pushGeneric {
				d.note("generic XDP, since the driver's own hook refused: %s", oneLine(driver))
			}
			switch hidden := h.vlanTag == 0 && d.iface.StripsVLAN(); {
			case generic && (hidden || d.iface.Local()): // veth leaves tags outside whatever its own setting is
				d.note("as with rx-vlan-offload, a VLAN tag outside of the frame does not reach generic XDP, and the answer goes " +
					"untagged (nic.generic_xdp = false)")
			case hidden:
				d.note("rx-vlan-offload is on: tagged frames lose their tag before XDP sees them and are answered untagged "+
					"(ethtool -K %s rxvlan off)", d.iface.Name)
			}
			return nil
		case errors.Is(err, unix.EPERM), errors.Is(err, unix.EBUSY), errors.Is(err, unix.EEXIST):
			return d.iface.ExplainBPF("XDP program", err)
		case h.push == pushDriver:
			driver = err
		}
	}
	return d.iface.ExplainBPF("XDP program", err)
}

func (d *Device) attachTo(f *filter, flags link.XDPAttachFlags, vlanTag int64) (err error) {
	spec := &ebpf.ProgramSpec{
		Name: "rebound", Type: ebpf.XDP, Instructions: f.program(d.sockets.FD(), vlanTag), License: "Apache-2.0",
	}
	if vlanTag != 0 {
		// Kernel functions, unlike helpers, are open only to programs whose licence is compatible with the GPL.
		spec.License = "Dual MIT/GPL"
		spec.Flags, spec.Ifindex = devBound, uint32(d.iface.Index)
	}
	p, err := ebpf.NewProgram(spec)
	if err != nil {
		return err
	}
	l, err := link.AttachXDP(link.XDPOptions{Program: p, Interface: d.iface.Index, Flags: flags})
	if err != nil {
		p.Close()
		return err
	}
	d.program, d.link = p, l
	return nil
}

// oneLine joins the lines of a verifier's report.
func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// vlanTagFunction returns the BTF identifier of the kernel function that tells a frame's VLAN tag, 0 if it has none.
func vlanTagFunction() int64 {
	spec, err := btf.LoadKernelSpec()
	if err != nil {
		return 0
	}
	var fn *btf.Func
	if err := spec.TypeByName("bpf_xdp_metadata_rx_vlan_tag", &fn); err != nil {
		return 0
	}
	id, err := spec.TypeID(fn)
	if err != nil {
		return 0
	}
	return int64(id)
}
