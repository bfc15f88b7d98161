package ixgbe

import (
	"errors"
	"fmt"
	"time"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/kit"
)

// hangLimit is the longest time for which a transmit ring with work may stall while the link is up.
const hangLimit = time.Second

// check finds a device that lost its state, in a reset by another process, and transmits that stall with the link up.
func (d *Device) check(polled bool) (*kit.Symptom, error) {
	if !polled {
		return nil, nil
	}
	link, err := d.link()
	switch {
	case err != nil:
		return kit.Foreign("registers read all ones and the function is there"), nil
	case link.Up != d.linkUp:
		d.linkUp = link.Up
		d.card.Log.Info("link", "up", link.Up, "mbit", link.Speed)
		if link.Up && d.cage == sfp {
			d.reported(d.followModule())
		}
	}
	if link.Up && d.stamps.on() && int(d.stamps.speed.Load()) != link.Speed {
		d.followSpeed(link.Speed)
	}
	if d.linkDown++; link.Up || d.cage != sfp {
		d.linkDown = 0
	} else if d.linkDown%retryAfter == 0 {
		d.reported(d.retryLink())
	}
	if d.read(regRXCTRL)&rxctrlRXEN == 0 {
		return kit.Foreign("RXCTRL.RXEN is off"), nil
	}
	for i, q := range d.queues {
		switch p := &d.hung[i]; {
		case !link.Up:
			*p = kit.Progress{}
		case p.Waiting(&q.txDone, &q.txTail) >= hangLimit:
			return &kit.Symptom{Reason: "tx_hang", Suspect: p,
					Why: fmt.Sprintf("transmit ring %d stalls: TDH %d, TDT %d", i, d.read(regTDH(i)),
						d.read(regTDT(i)))},
				nil
		}
	}
	return nil, nil
}

// reported logs an error of a new start of the link.
func (d *Device) reported(err error) {
	if err != nil && !errors.Is(err, nic.ErrGone) {
		d.card.Log.Warn("the link could not be started again", "err", err)
	}
}

// restart programs the device while the loops are parked. Frames on the rings are lost.
func (d *Device) restart(*kit.Symptom) error {
	if d.gone() {
		if err := d.card.Fn.Reset(); err != nil { // brings the registers back
			return err
		}
	}
	if err := d.card.Fn.SetBusMaster(true); err != nil { // a function-level reset turned it off
		return err
	}
	clear(d.hung)
	if err := d.card.Do("reset the device", d.reset); err != nil {
		return err
	}
	if err := d.start(); err != nil || !d.stamps.on() {
		return err
	}
	return d.startTimestamps()
}
