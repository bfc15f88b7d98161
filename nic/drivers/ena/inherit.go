package ena

import (
	"fmt"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/kit"
	"github.com/rebound-nic/rebound/nic/kit/amazonadmin"
)

// Heritable lets another process take over the device.
func (d *Device) Heritable() nic.Heritable { return &d.card }

// heir lets another process continue with the rings, the admin queue and the events. Rings, buffers and tables are in memory that both have.
func (d *Device) heir() *kit.Heir {
	return &kit.Heir{
		Layout: 1,
		Own:    d.own,
		Keep: func() []any {
			return []any{&d.version, &d.attr.capabilities, &d.headerMax, &d.llq, &d.noLLQ, &d.refusedWide, &d.refusedLLQ, &d.maxInline, &d.ring, &d.txRing,
				&d.ringAsked, &d.features, &d.linkSpeed, &d.registers, &d.commandTime, &d.watchdog.enabled}
		},
		Place: func() (all []any) {
			for _, q := range d.queues {
				all = append(all, &q.rxHead, &q.rxTail, &q.txHead, &q.txTail, &q.txRung, &q.frees, &q.fault)
			}
			all = append(all, d.aq.Place()...)
			all = append(all, d.events.Place()...)
			return append(all, kit.Cell(&d.up), kit.Cell(&d.suspended), kit.Since(&d.suspendedAt), &d.watchdog, &d.times.keepAlive, &d.times.missingTx, &d.fatal)
		},
		Adopt: d.adopt,
	}
}

// adopt makes the queues of a running device.
func (d *Device) adopt() (err error) {
	if err := d.find(); err != nil {
		return err
	}
	if d.regs, err = amazonadmin.Inherit(&d.card, amazonadmin.ENA, d.bar); err != nil {
		return err
	}
	if err := d.allocateAdmin(); err != nil {
		return err
	}
	if d.llq != nil {
		if d.mem, err = d.card.Fn.BARWC(2); err != nil {
			return err
		}
	}
	if err := d.allocate(); err != nil {
		return err
	}
	if len(d.registers) != len(d.queues) {
		return fmt.Errorf("it has %d queues, want %d", len(d.registers), len(d.queues))
	}
	for i, q := range d.queues {
		if err := d.locate(q, d.registers[i]); err != nil {
			return err
		}
	}
	return nil
}
