package mlx5

import (
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"rebound/nic"
	"rebound/nic/bus/mmio"
	"rebound/nic/kit"
)

const (
	watchEvery  = 100 * time.Millisecond
	sendLimit   = 2 * time.Second  // for a completion that was asked for, with the link up
	healthLimit = 10 * time.Second // for the health counter to move
	sickLimit   = time.Second      // the same, where the device shows a syndrome
	flushLimit  = time.Second      // for a send queue in error to give its WQEs back
)

// wish is what the device needs, with nobody on its queues.
type wish struct {
	kind  int
	queue int
	why   string
}

const (
	wishSend    = iota + 1 // one send queue is to be reset
	wishRestart            // the function is
)

func (d *Device) wish(kind int, why string) {
	d.wanted.CompareAndSwap(nil, &wish{kind: kind, why: why})
}

// watch serves the device's events and looks after it, until Close. What it reads of the device itself it reads only while
// loops run, or somebody sends and receives. What has to be done to the queues is done with them parked.
func (d *Device) watch() {
	defer close(d.ended)
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	sends := make([]progress, len(d.queues))
	var health progress
	var synd uint32
	for {
		select {
		case <-d.endWatch:
			return
		case <-tick.C:
		}
		if d.gate.Err() != nil {
			return
		}
		d.life.RLock()
		d.serveEvents()
		d.life.RUnlock()
		now := time.Now()
		for i, q := range d.queues {
			d.watchQueue(i, q, &sends[i], now)
		}
		if !d.gate.Active() {
			health = progress{}
			continue
		}
		if err := d.alive(); err != nil {
			if d.isGone(err) {
				d.gate.Alone(d.endWatch, func() error { return err })
				return
			}
			d.wish(wishRestart, err.Error())
		} else {
			d.watchHealth(&health, &synd, now)
		}
		if d.wanted.Load() != nil {
			if d.gate.Alone(d.endWatch, d.repair) != nil {
				return
			}
			clear(sends)
			health, synd = progress{}, 0
		}
	}
}

// watchQueue looks for a queue that stopped, or whose sends do.
func (d *Device) watchQueue(i int, q *Queue, p *progress, now time.Time) {
	if f := q.fault.Load(); f != faultNone {
		kind := wishRestart
		if f == faultSend {
			kind = wishSend
		}
		d.wanted.CompareAndSwap(nil, &wish{kind, i, fmt.Sprintf("queue %d: %s", i, q.faultText())})
		return
	}
	taken := atomic.LoadUint32(&q.txNext)
	if taken == atomic.LoadUint32(&q.askTail) {
		*p = progress{}
		return
	}
	if p.still(taken, now) < sendLimit || !d.gate.Active() {
		return
	}
	if l, err := d.Link(); err == nil && !l.Up {
		return
	}
	d.wanted.CompareAndSwap(nil, &wish{wishSend, i, fmt.Sprintf("queue %d: %v: no send was completed for %v (completion %d)", i, nic.ErrTimeout,
		sendLimit, taken)})
}

// watchHealth reads the health buffer. A syndrome with the request for a reset, or a counter that stands still, is answered
// by a restart; a syndrome alone is reported once.
func (d *Device) watchHealth(p *progress, seen *uint32, now time.Time) {
	synd := d.commands.read(regHealthSynd) >> 16 & 0xFF
	limit := healthLimit
	if synd != 0 {
		limit = sickLimit
	}
	switch {
	case d.commands.read(regCmdqAddrLow)>>8&3 == nicDisabled:
		d.wish(wishRestart, "the function's interface is disabled: "+d.healthText())
	case synd != 0 && d.commands.read(regHealthRFR)&healthRFR != 0:
		d.wish(wishRestart, "the device is sick: "+d.healthText())
	case p.still(d.commands.read(regHealthCounter), now) > limit:
		d.wish(wishRestart, fmt.Sprintf("the health counter has not moved for %v: %s", limit, d.healthText()))
	}
	if synd != *seen && synd != 0 {
		d.log.Warn("the device reports a fault", "device", d.fn.Name(), "health", d.healthText())
	}
	*seen = synd
}

// progress tells how long a number has not changed.
type progress struct {
	value uint32
	since time.Time
}

func (p *progress) still(v uint32, now time.Time) time.Duration {
	if v != p.value || p.since.IsZero() {
		p.value, p.since = v, now
	}
	return now.Sub(p.since)
}

// repair fulfils the wish that is there. What was under way is lost.
func (d *Device) repair() error {
	w := d.wanted.Swap(nil)
	if w == nil {
		return nil
	}
	d.life.Lock()
	defer d.life.Unlock()
	d.log.Warn("repair", "device", d.fn.Name(), "why", w.why)
	if w.kind == wishSend {
		err := d.resetSend(d.queues[w.queue])
		if err == nil {
			d.statsMu.Lock()
			d.mended++
			d.statsMu.Unlock()
			return nil
		}
		d.log.Warn("the send queue cannot be reset", "device", d.fn.Name(), "queue", w.queue, "err", err)
	}
	d.keepTotals()
	d.statsMu.Lock()
	d.resets++
	d.statsMu.Unlock()
	if err := d.start(); err != nil {
		return fmt.Errorf("mlx5 %s: %w: restart after %q: %w", d.fn.Name(), nic.ErrHardware, w.why, err)
	}
	d.log.Info("the device was restarted", "device", d.fn.Name())
	return nil
}

// resetSend takes a send queue through error and reset back to ready (PRM, SQ State Machine). In error the device gives all
// WQEs back with a completion each; the completion queue goes on behind the last of them.
func (d *Device) resetSend(q *Queue) error {
	out, err := d.exec(command(opQuerySQ, 0, 0x10).set("sqn", 0x08, 23, 0, q.sqn), 0x110)
	if err != nil {
		return err
	}
	state := out.get(0x20, 23, 20)
	if state == stateRDY {
		if err := d.modify(opModifySQ, q.sqn, stateRDY, stateERR); err != nil {
			return err
		}
		state = stateERR
	}
	if state == stateERR {
		if err := q.flush(); err != nil {
			return err
		}
		if err := d.modify(opModifySQ, q.sqn, stateERR, stateRST); err != nil {
			return err
		}
	}
	for { // in reset the queue makes no more completions: what is there now is all
		own := atomic.LoadUint32(&q.completion(q.txCQ, q.txNext&q.txMask).counterOwn)
		if (own>>cqeOwner^q.txNext>>(q.txShift&31))&1 != 0 {
			break
		}
		q.txNext++
	}
	taken := q.txNext
	for slot := range q.mask + 1 {
		*(*uint32)(unsafe.Add(q.pend, slot*4)) = 0
	}
	q.resetSend()
	q.txNext, q.askTail = taken, taken
	mmio.Store32(q.txCQRec, swap(taken&0xFFFFFF))
	return d.modify(opModifySQ, q.sqn, stateRST, stateRDY)
}

// flush takes completions, whatever they say, up to that of the last WQE.
func (q *Queue) flush() error {
	last, tail := q.txDone, q.txDone
	for tail != q.txTail {
		last = tail
		ds := swap(*(*uint32)(unsafe.Add(q.sq, tail&q.txMask*wqebb+4))) & 0x3F
		tail += max((ds+3)>>2, 1)
	}
	if last == q.txTail {
		return nil
	}
	for end := kit.NewDeadline(flushLimit, leastLooks); ; {
		late := end.Over()
		own := atomic.LoadUint32(&q.completion(q.txCQ, q.txNext&q.txMask).counterOwn)
		if (own>>cqeOwner^q.txNext>>(q.txShift&31))&1 != 0 {
			if late {
				return fmt.Errorf("%w: the send queue in error did not give WQE %d back within %v", nic.ErrTimeout, last&0xFFFF, flushLimit)
			}
			time.Sleep(10 * time.Microsecond)
			continue
		}
		q.txNext++
		if swap(own<<16)&0xFFFF == last&0xFFFF {
			return nil
		}
	}
}
