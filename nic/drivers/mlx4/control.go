package mlx4

import (
	"fmt"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/kit"
)

// control is the driver's access to the card: either the driver owns the function, or it shares the function with the
// kernel's driver, which creates its queues. The queues and the hot loop are the same.
type control interface {
	prepare() error // once, before start
	start() error   // from any state to polling
	// describe returns the versions, and how frames are steered.
	describe() (version, steering string)
	// look finds problems of the device other than those of queues.
	look(polled bool) *kit.Symptom
	link() (nic.Link, error)
	counts() (nic.Stats, error)
	extra(*nic.Stats)
	// resetQP and startQP move the QP of a send queue to reset and back.
	resetQP(qpn uint32) error
	startQP(qpn uint32, ctx mailbox) error
	release() error
}

// owned is the control of a function that belongs to this process. Its other methods are the Device's.
type owned struct{ *Device }

func (d owned) prepare() (err error) {
	if n := d.card.Options.Queues; n&(n-1) != 0 {
		return d.card.Errorf("%d queue pairs requested: the card spreads frames over 1, 2, 4, 8, 16, 32 or 64", n)
	}
	d.port = uint32(max(d.own.Port, 1))
	d.listen(d.card.Options)
	d.bar, err = pci.Registers(d.card.Fn, 0, registers)
	return err
}

func (d owned) describe() (version, steering string) {
	steering = d.steering.note()
	if d.subnet != nil {
		steering = d.subnet.note()
	}
	return fmt.Sprintf("board %s, port %d, firmware %v", d.board, d.port, d.fw), steering
}

// look handles the device's events. It reads the device itself only while loops run or while Send and Recv are used.
func (d owned) look(polled bool) *kit.Symptom {
	d.serveEvents()
	if !polled {
		return nil
	}
	if s := d.checkCatas(); s != nil {
		return s
	}
	if s := d.wanted.Swap(nil); s != nil {
		return s
	}
	if err := d.commands.dead.Load(); err != nil {
		return &kit.Symptom{Reason: "command_stuck", Why: (*err).Error()}
	}
	return nil
}

func (d owned) extra(out *nic.Stats) {
	e := &d.events
	for name, n := range map[string]uint64{
		"port_changes": e.portChanges.Load(), "cq_errors": e.cqErrors.Load(), "queue_errors": e.queueErrors.Load(),
		"unknown_events": e.unknown.Load(),
	} {
		out.Extra[name] = n
	}
	d.subnet.readStats(out)
}

var _, _ control = owned{}, (*shared)(nil)
