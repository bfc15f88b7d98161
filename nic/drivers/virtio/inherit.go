package virtio

import (
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/kit"
	"github.com/rebound-nic/rebound/nic/kit/netif"
)

// heir lets another process continue with the rings, whose entries are in memory that both have.
func (d *Device) heir() *kit.Heir {
	return &kit.Heir{
		Layout: 1,
		Keep: func() []any {
			keep := []any{&d.features, &d.sizes.entries, &d.sizes.controlIndex, &d.sizes.controlEntries, &d.bells, &d.regs.multiplier, &d.foreignMAC, &d.linkUp}
			for _, s := range d.structures() {
				keep = append(keep, &s.n, &s.at, &s.size)
			}
			return keep
		},
		Place: func() (all []any) {
			rings := make([]*ring, 0, 2*len(d.queues)+1)
			for _, q := range d.queues {
				rings = append(rings, &q.rx, &q.tx)
				all = append(all, &q.posted, &q.sendNext, &q.distrusted, &q.culprit)
			}
			if d.control != nil {
				rings = append(rings, &d.control.ring)
			}
			for _, r := range rings {
				all = append(all, &r.next, &r.seen)
			}
			return all
		},
		Adopt: d.adopt,
	}
}

func (d *Device) structures() []*structure {
	return []*structure{&d.regs.common, &d.regs.notify, &d.regs.config}
}

// adopt makes the queues of a running device.
func (d *Device) adopt() (err error) {
	if _, ok := Supports(d.card.Fn.ID()); !ok {
		return nic.ErrNoDevice
	}
	for _, s := range d.structures() {
		if s.bar, err = d.card.Fn.BAR(s.n); err != nil {
			return err
		}
	}
	d.groups, d.allMulticast = netif.Groups(d.card.Options)
	if err := d.allocate(); err != nil {
		return err
	}
	for _, q := range d.queues {
		q.derive()
		for _, r := range []*ring{&q.rx, &q.tx} {
			if err := d.bell(r); err != nil {
				return err
			}
		}
	}
	if d.control == nil {
		return nil
	}
	return d.bell(&d.control.ring)
}
