package virtio

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/kit"
)

// hangLimit is the longest time for which a transmit ring with work may stall while the link is up.
const hangLimit = time.Second

// check detects a device that lost its state, in a reset by another process, one that requests a reset or writes
// invalid ring entries, and transmits that stall while the link is up.
func (d *Device) check(polled bool) (*kit.Symptom, error) {
	if !polled {
		return nil, nil
	}
	switch status := d.read8(regDeviceStatus); {
	case status == statusGone:
		return kit.Foreign("registers read all ones and the function is there"), nil
	case status&statusNeedsReset != 0:
		return &kit.Symptom{Reason: "needs_reset", Why: fmt.Sprintf("DEVICE_NEEDS_RESET: device_status is %#02x",
			status)}, nil
	case status&statusDriverOK == 0:
		return kit.Foreign(fmt.Sprintf("device_status is %#02x", status)), nil
	}
	if link := d.link(); link.Up != d.linkUp {
		d.linkUp = link.Up
		d.card.Log.Info("link", "up", link.Up, "mbit", link.Speed)
	}
	for i, q := range d.queues {
		if w := atomic.LoadUint32(&q.distrusted); w != 0 {
			return &kit.Symptom{Reason: "bad_ring", Why: fmt.Sprintf("queue %d, "+wrongs[w], i, q.culprit)}, nil
		}
		switch p := &d.hung[i]; {
		case !d.linkUp:
			*p = kit.Progress{}
		case p.Waiting(&q.tx.seen, &q.tx.next) >= hangLimit:
			return &kit.Symptom{Reason: "tx_hang", Suspect: p,
				Why: fmt.Sprintf("transmit ring %d stalls: %d of %d entries used",
					i, atomic.LoadUint32(&q.tx.seen), atomic.LoadUint32(&q.tx.next))}, nil
		}
	}
	return nil, nil
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
	return d.start()
}

// Link reads the device's status field. A device without one counts as up (§5.1.4.2).
func (d *Device) Link() (l nic.Link, err error) {
	err = d.card.Ask(func() error {
		if d.gone() {
			return d.card.Gone("device_status")
		}
		l = d.link()
		return nil
	})
	return l, err
}

func (d *Device) link() nic.Link {
	l := nic.Link{Up: true}
	if d.has(featStatus) {
		l.Up = d.conf16(confStatus)&confLinkUp != 0
	}
	if d.has(featSpeedDuplex) {
		if s := d.conf32(confSpeed); s <= speedMax {
			l.Speed = int(s)
		}
	}
	return l
}

// ReadStats implements nic.Device.
func (d *Device) ReadStats(out *nic.Stats) error { return d.card.ReadStats(out) }

// stats reads the queues' counters. The device has no counters, so frames that it dropped for lack of a buffer
// are not counted.
func (d *Device) stats(out *nic.Stats) error {
	if d.gone() {
		return d.card.Gone("device_status")
	}
	*out = d.card.Totals.Read(nic.Stats{}) // restarts, across which the queues' counters continue
	for _, q := range d.queues {
		out.RxFrames += q.rxFrames.Load()
		out.RxBytes += q.rxBytes.Load()
		out.TxFrames += q.txFrames.Load()
		out.TxBytes += q.txBytes.Load()
		out.TxDropped += q.txFull.Load()
		out.RxErrors += q.badLength.Load()
	}
	return nil
}
