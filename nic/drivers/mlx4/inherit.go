package mlx4

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/kit"
)

// Heritable lets another process take over the device.
func (d *Device) Heritable() nic.Heritable { return &d.card }

// heir lets another process continue with the queues of an Ethernet port. Rings, buffers, tables and firmware's memory are in memory that
// both have. The agent of an InfiniBand port has more to remember: the device is started again.
func (d *Device) heir() *kit.Heir {
	return &kit.Heir{
		Layout: 1,
		Own:    d.own,
		Keep: func() []any {
			return []any{kit.Raw(&d.caps), kit.Raw(&d.fw), &d.board, &d.lacks, &d.inlineMax, &d.pushBlocks, &d.pd, &d.lkey, &d.steering.managed,
				&d.events.number, (*handed)(d)}
		},
		Place: func() (all []any) {
			for _, q := range d.queues {
				all = append(all, &q.rxNext, &q.freed, &q.posted, &q.txTail, &q.txDone, &q.txRung, &q.txAsked, &q.askTail, &q.txNext, &q.bfOff,
					kit.Cell(&q.fault), kit.Raw(&q.bad))
				all = append(all, q.out.Place()...)
			}
			return append(all, &d.commands.toggle, kit.AtomicReason(&d.commands.dead), &d.events.next, kit.Cell(&d.wanted), &d.wide)
		},
		Adopt: d.adopt,
	}
}

// made are the objects of a device's queues.
type made struct {
	InfiniBand bool
	Queues     []madeQueue
}

type madeQueue struct {
	RxQP, TxQP, RxCQ, TxCQ uint32
	SendContext            mailbox
	BlueFlame              bool
}

// handed is a Device's made, as another process gets it.
type handed Device

func (h *handed) MarshalJSON() ([]byte, error) {
	m := made{InfiniBand: h.subnet != nil}
	for _, q := range h.queues {
		m.Queues = append(m.Queues, madeQueue{q.rxQPN, q.txQPN, q.rxCQN, q.txCQN, q.sendContext, q.bf != nil})
	}
	return json.Marshal(m)
}

func (h *handed) UnmarshalJSON(b []byte) error { return json.Unmarshal(b, &h.inherited) }

// adopt makes the queues of a running device.
func (d *Device) adopt() error {
	m := &d.inherited
	switch {
	case m.InfiniBand:
		return errors.New("the driver starts an InfiniBand port again")
	case len(m.Queues) != d.card.Options.Queues:
		return fmt.Errorf("it has %d queues, want %d", len(m.Queues), d.card.Options.Queues)
	}
	if err := d.find(); err != nil {
		return err
	}
	d.newCommands()
	if err := d.commands.allocate(d.card.Arena); err != nil {
		return err
	}
	if err := d.mapDoorbells(); err != nil {
		return err
	}
	events, err := d.card.Block(eqEntries*eqeSize, 4096)
	if err != nil {
		return err
	}
	d.events.mem = events.Bytes
	if _, err := d.allocate(); err != nil {
		return err
	}
	for i, q := range d.queues {
		k := m.Queues[i]
		q.rxQPN, q.txQPN, q.rxCQN, q.txCQN, q.number, q.sendContext = k.RxQP, k.TxQP, k.RxCQ, k.TxCQ, k.TxQP<<8, k.SendContext
		if err := d.plainDoorbell(q); err != nil {
			return err
		}
		if k.BlueFlame {
			if err := d.blueFlame(q); err != nil {
				return err
			}
		}
	}
	d.owned = true
	d.steps.Inherit()
	return nil
}
