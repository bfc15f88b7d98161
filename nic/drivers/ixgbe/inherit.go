package ixgbe

import (
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/kit"
	"github.com/rebound-nic/rebound/nic/kit/netif"
)

// Heritable lets another process take over the device.
func (d *Device) Heritable() nic.Heritable { return &d.card }

// heir lets another process continue with the rings: the registers keep their addresses, and the rest is a few numbers.
func (d *Device) heir() *kit.Heir {
	return &kit.Heir{
		Layout: 1,
		Own:    d.own,
		Keep:   func() []any { return []any{&d.phy, &d.medium, &d.module, &d.full, &d.linkUp} },
		Place: func() (all []any) {
			for _, q := range d.queues {
				all = append(all, &q.rxNext, &q.refilled, &q.posted, &q.txTail, &q.txDone, &q.txRoom)
			}
			return all
		},
		Adopt: func() error {
			if err := d.identify(); err != nil {
				return err
			}
			d.groups, d.allMulticast = netif.Groups(d.card.Options)
			return d.allocate()
		},
	}
}
