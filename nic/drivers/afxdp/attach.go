package afxdp

import (
	"github.com/cilium/ebpf"

	"github.com/rebound-nic/rebound/nic/kit/xdpkit"
)

// attach loads the program and attaches it, to the driver's hook if there is one and the generic one is not requested.
// The map has sockets for queues below queues.
func (d *Device) attach(f *filter, queues int, generic bool) error {
	xdpkit.LiftMemlock()
	var err error
	d.sockets, err = ebpf.NewMap(&ebpf.MapSpec{
		Name: "rebound", Type: ebpf.XSKMap, KeySize: 4, ValueSize: 4, MaxEntries: uint32(queues),
	})
	if err != nil {
		return d.iface.ExplainBPF("map of sockets", err)
	}
	types := new(xdpkit.Types)
	features := xdpkit.AskFeatures(d.iface.Index)
	var attempts []xdpkit.Attempt
	add := func(hook string, ifindex int) {
		attempts = append(attempts, xdpkit.Attempt{Hook: hook,
			Load: func() (*xdpkit.Program, error) { return f.load(types, d.sockets, ifindex) }})
	}
	asks := features.Tells(xdpkit.VLANTag) && types.Known("bpf_xdp_metadata_rx_vlan_tag") && !generic
	if asks {
		add(xdpkit.Driver, d.iface.Index)
	}
	if !generic {
		add(xdpkit.Driver, 0)
	}
	add(xdpkit.Generic, 0)
	a, err := xdpkit.Attach(d.iface, attempts)
	if err != nil {
		return err
	}
	d.program, d.link, d.info.Push = a.Program, a.Link, attempts[a.Attempt].Hook
	if d.info.Push == xdpkit.Generic && !generic {
		d.note("%s", a.FellBack(d.iface, features))
	}
	if s := xdpkit.HiddenTags(d.iface, d.info.Push, asks && a.Attempt == 0, generic); s != "" {
		d.note("%s", s)
	}
	return nil
}
