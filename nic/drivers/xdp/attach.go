package xdp

import (
	"fmt"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic/kit/xdpkit"
)

// oneBuffer is the largest MTU that every driver supports with single-buffer frames.
const oneBuffer = 1500

// attempts are the ways to attach, in order of preference.
func (d *Device) attempts(c fastpath.Config, hook string) (a []xdpkit.Attempt, v []variant) {
	add := func(hook string, w variant) {
		v = append(v, w)
		a = append(a, xdpkit.Attempt{Hook: hook, Load: func() (*xdpkit.Program,
			error) {
			return d.object.load(c, w, d.maps)
		}})
	}
	frags := func(hook string, w variant) {
		add(hook, w)
		if d.iface.MTU > oneBuffer {
			w.frags = true
			add(hook, w)
		}
	}
	if hook != xdpkit.Generic {
		w := variant{ifindex: d.iface.Index, stamps: d.clock != nil && d.clock.phc != nil,
			tag: d.features.Tells(xdpkit.VLANTag) && d.object.types.Known("bpf_xdp_metadata_rx_vlan_tag")}
		if w.bound() {
			frags(xdpkit.Driver, w)
		}
		frags(xdpkit.Driver, variant{})
	}
	if hook != xdpkit.Driver {
		add(xdpkit.Generic, variant{})
	}
	return a, v
}

// attach attaches the program, in native mode if the driver supports transmission there and generic mode is not
// requested, or replaces the pin's program.
func (d *Device) attach(c fastpath.Config, own Options, joined *pin) error {
	i, hook := d.iface, ""
	if own.Generic {
		hook = xdpkit.Generic
	} else if i.Driver == "veth" {
		switch ok, err := i.PeerReceivesXDP(); {
		case err != nil:
			hook = xdpkit.Generic
			d.note("generic XDP: at the driver's hook a veth pair drops the replies unless its other end has an XDP program too, and %v", err)
		case !ok:
			hook = xdpkit.Generic
			d.note("generic XDP: at the driver's hook a veth pair drops the replies, since its other end has no XDP program")
		}
	}
	var v variant
	if joined != nil && !joined.gone {
		var err error
		if v, err = d.replace(c, own.Pin, joined); err != nil {
			return err
		}
	} else {
		attempts, variants := d.attempts(c, hook)
		at, err := xdpkit.Attach(i, attempts)
		if err != nil {
			if missing := d.features.Missing(i); missing != "" {
				err = fmt.Errorf("%w; %s", err, missing)
			}
			return err
		}
		d.program, d.link, d.info.Push, v = at.Program, at.Link, attempts[at.Attempt].Hook, variants[at.Attempt]
		if d.info.Push == xdpkit.Generic && hook == "" {
			d.note("%s", at.FellBack(i, d.features))
		}
	}
	switch {
	case d.info.Push == xdpkit.Generic && (i.StripsVLAN() || i.Local()): // the kernel sends the reply with the tag that it stripped
		d.note("as with rx-vlan-offload, a VLAN tag outside of the frame is not seen at the generic hook: it counts as none for " +
			"respond.vlans, and the reply has it")
	case !v.tag && i.StripsVLAN() && i.Driver != "veth": // it does not strip tags that are in the frame
		d.note("%s", xdpkit.HiddenTags(i, d.info.Push, false, false))
	}
	d.stamped = v.stamps
	switch {
	case v.stamps:
		d.note("receive timestamps come from the card")
	case len(c.STAMPPorts) > 0:
		d.note("receive timestamps are taken when the program starts: the card's are not available here")
	}
	return nil
}

// replace replaces the program of a pin, at the same hook.
func (d *Device) replace(c fastpath.Config, name string, joined *pin) (v variant, err error) {
	attempts, variants := d.attempts(c, joined.about.Hook)
	for n, t := range attempts {
		if d.program, err = t.Load(); err != nil {
			continue
		}
		if err = joined.link.Update(d.program.Program); err == nil {
			d.info.Push, d.pin = joined.about.Hook, name
			d.link, joined.link = joined.link, nil
			return variants[n], nil
		}
		d.program.Close()
		d.program = nil
	}
	return v, d.iface.ExplainBPF("replace the pinned XDP program", err)
}
