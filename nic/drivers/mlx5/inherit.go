package mlx5

import (
	"encoding/json"
	"fmt"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/kit"
)

// Heritable lets another process take over the device.
func (d *Device) Heritable() nic.Heritable { return &d.card }

// heir lets another process continue with the queues. Rings, buffers, tables and firmware's pages are in memory that both have.
func (d *Device) heir() *kit.Heir {
	return &kit.Heir{
		Layout: 1,
		Own:    d.own,
		Keep: func() []any {
			return []any{kit.Raw(&d.caps), &d.firmwareVersion, &d.slots, &d.lacks, &d.maxInline, &d.minInline, &d.lkey, &d.counterSet, &d.events.eqn, (*made)(d)}
		},
		Place: func() (all []any) {
			for _, q := range d.queues {
				all = append(all, &q.rxNext, &q.freed, &q.posted, &q.txTail, &q.txDone, &q.txRung, &q.txAsked, &q.askTail, &q.txNext, &q.doorWord, &q.bfOff,
					kit.Cell(&q.fault), kit.Raw(&q.bad))
				all = append(all, q.out.Place()...)
			}
			return append(all, d.pages, kit.AtomicReason(&d.commands.dead), &d.events.next, kit.Cell(&d.wanted), &d.syndrome, &d.outOfBuffer)
		},
		Adopt: d.adopt,
	}
}

// made are the objects of a device's queues, as another process gets them.
type made Device

type madeQueue struct {
	UAR, SQN, RQN, RxCQN, TxCQN, TIR, Key uint32
	BlueFlame                             bool
	Proof                                 proof
}

func (m *made) MarshalJSON() ([]byte, error) {
	var all []madeQueue
	for _, q := range m.queues {
		all = append(all, madeQueue{q.uar.number, q.sqn, q.rqn, q.rxCQN, q.txCQN, q.tir, q.lkey, q.bf != nil, q.proof})
	}
	return json.Marshal(all)
}

func (m *made) UnmarshalJSON(b []byte) error { return json.Unmarshal(b, &m.inherited) }

// adopt makes the queues of a running device.
func (d *Device) adopt() (err error) {
	if err := d.find(); err != nil {
		return err
	}
	d.newCommands()
	if err := d.commands.allocate(d.card.Arena); err != nil {
		return err
	}
	d.commands.use(d.slots)
	events, err := d.card.Block(eqEntries*eqeSize, 4096)
	if err != nil {
		return err
	}
	d.events.mem, d.commands.waiting = events.Bytes, d.serveEvents
	if _, err := d.allocate(); err != nil {
		return err
	}
	if len(d.inherited) != len(d.queues) {
		return fmt.Errorf("it has %d queues, want %d", len(d.inherited), len(d.queues))
	}
	for i, q := range d.queues {
		k := d.inherited[i]
		if q.uar, err = d.uarAt(k.UAR); err != nil {
			return err
		}
		q.sqn, q.rqn, q.rxCQN, q.txCQN, q.tir, q.lkey, q.proof = k.SQN, k.RQN, k.RxCQN, k.TxCQN, k.TIR, k.Key, k.Proof
		if err := d.plainDoorbell(q); err != nil {
			return err
		}
		if k.BlueFlame {
			if q.bf, err = q.blueFlame(); err != nil {
				return err
			}
		}
	}
	d.uar = d.queues[0].uar
	d.steps.Inherit()
	return nil
}
