package ixgbe

import (
	"fmt"
	"sync/atomic"
	"time"

	"rebound/nic"
	"rebound/nic/bus/pci"
)

const (
	watchEvery = 100 * time.Millisecond
	hangTicks  = 10 // watch periods without progress on a ring that has work, with the link up
)

// watch looks after the device while a loop runs, until Close: one that is gone ends the loops with an error; one that lost
// its state (a reset by somebody else) or whose transmits stand still with the link up is restarted.
func (d *Device) watch() {
	defer close(d.ended)
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	stuck := make([]int, len(d.queues))
	seen := make([]uint32, len(d.queues))
	up := true
	for {
		select {
		case <-d.endWatch:
			return
		case <-tick.C:
		}
		if !d.gate.Active() {
			continue
		}
		why := ""
		link, err := d.Link()
		switch {
		case err != nil && pci.Gone(d.fn):
			d.gate.Alone(d.endWatch, func() error { return err })
			return
		case err != nil:
			why = "registers read all ones and the function is there: it was reset by somebody else"
		case link.Up != up:
			up = link.Up
			d.log.Info("link", "device", d.fn.Name(), "up", up, "mbit", link.Speed)
		}
		if d.read(regRXCTRL)&rxctrlRXEN == 0 {
			why = "RXCTRL.RXEN is off: the device was reset"
		}
		for i, q := range d.queues {
			done := atomic.LoadUint32(&q.txDone)
			if !up || done == atomic.LoadUint32(&q.txTail) || done != seen[i] {
				stuck[i] = 0
			} else if stuck[i]++; stuck[i] == hangTicks {
				why = fmt.Sprintf("transmit ring %d stands still: TDH %d, TDT %d", i, d.read(regTDH(i)), d.read(regTDT(i)))
			}
			seen[i] = done
		}
		if why == "" {
			continue
		}
		d.log.Warn("restart", "device", d.fn.Name(), "why", why)
		if err := d.gate.Alone(d.endWatch, d.restart); err != nil {
			return
		}
		clear(stuck)
	}
}

// restart programs the device anew with the loops parked. What was on the rings is lost.
func (d *Device) restart() error {
	if !d.gone() {
		d.readStats()
	} else if err := d.fn.Reset(); err != nil { // brings the registers back
		return err
	}
	d.statsMu.Lock()
	d.stats.resets++
	d.statsMu.Unlock()
	if err := d.fn.SetBusMaster(true); err != nil { // a function-level reset turned it off
		return err
	}
	if err := d.start(); err != nil {
		return fmt.Errorf("ixgbe %s: %w: restart: %w", d.fn.Name(), nic.ErrHardware, err)
	}
	return nil
}
