package mlx5

import (
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/nic/kit"
)

const (
	sendLimit   = 2 * time.Second  // for a requested completion while the link is up
	healthLimit = 10 * time.Second // for the health counter to move
	sickLimit   = time.Second      // the same if the device reports a syndrome
	flushLimit  = time.Second      // for a send queue in error to flush its WQEs
)

// want records a device problem that an event reported, for the watchdog.
func (d *Device) want(reason, why string) {
	d.wanted.CompareAndSwap(nil, &kit.Symptom{Reason: reason, Why: why})
}

// check detects stopped queues, stalled sends, and other problems of the device.
func (d *Device) check(polled bool) (*kit.Symptom, error) {
	if s := d.fw.look(polled); s != nil || !polled {
		return s, nil
	}
	for i, q := range d.queues {
		if s := d.checkQueue(i, q); s != nil {
			return s, nil
		}
	}
	return d.fw.health(), nil
}

// checkQueue detects a queue that stopped or whose sends stall.
func (d *Device) checkQueue(i int, q *Queue) *kit.Symptom {
	recoverQueue := func() error { return d.recoverSends(q, &d.sends[i]) }
	switch f := q.fault.Load(); f {
	case faultSend:
		return &kit.Symptom{Reason: "send_error", Why: fmt.Sprintf("queue %d: %s", i, q.faultText()),
			Recover: recoverQueue}
	case faultReceive:
		return &kit.Symptom{Reason: "receive_error", Why: fmt.Sprintf("queue %d: %s", i, q.faultText())}
	}
	if d.sends[i].Waiting(&q.txNext, &q.askTail) < sendLimit {
		return nil
	}
	if l, err := d.fw.link(); err == nil && !l.Up {
		return nil
	}
	return &kit.Symptom{Reason: "tx_hang", Recover: recoverQueue,
		Why: fmt.Sprintf("queue %d: %v: no send was completed for %v (completion %d)", i,
			nic.ErrTimeout, sendLimit, atomic.LoadUint32(&q.txNext))}
}

// received returns how many receive slots the loop has taken, which wraps.
func (q *Queue) received() uint32 { return atomic.LoadUint32(&q.rxNext) }

// sick reports whether the health buffer has a syndrome and requests a reset.
func (d *Device) sick() bool {
	return d.commands.read(regHealthSynd)>>16&0xFF != 0 && d.commands.read(regHealthRFR)&healthRFR != 0
}

// checkHealth reads the health buffer. A syndrome with a reset request, or a counter that stalls, causes a restart. A
// syndrome alone is reported once.
func (d *Device) checkHealth() *kit.Symptom {
	synd, seen := d.commands.read(regHealthSynd)>>16&0xFF, d.syndrome
	d.syndrome = synd
	limit := healthLimit
	if synd != 0 {
		limit = sickLimit
	}
	switch {
	case d.commands.read(regCmdqAddrLow)>>8&3 == nicDisabled:
		return &kit.Symptom{Reason: "disabled", Why: "the function's interface is disabled: " + d.healthText()}
	case synd != 0 && d.sick():
		return &kit.Symptom{Reason: "firmware_error", Why: "the device is sick: " + d.healthText()}
	case d.beat.StalledFor(d.commands.read(regHealthCounter)) > limit:
		return &kit.Symptom{Reason: "firmware_hang", Why: fmt.Sprintf("the health counter has not moved for %v: %s",
			limit, d.healthText())}
	}
	if synd != seen && synd != 0 {
		d.card.Log.Warn("the device reports a fault", "health", d.healthText())
	}
	return nil
}

// restart starts the device again while no loop uses its queues. Frames in flight are lost.
func (d *Device) restart(*kit.Symptom) error {
	d.outOfBuffer = kit.Wide{}
	for _, q := range d.queues {
		q.countUnsent()
	}
	d.wanted.Store(nil)
	clear(d.sends)
	d.beat, d.syndrome = kit.Progress{}, 0
	if _, ok := d.fw.(*shared); ok {
		return d.card.AwaitKernel(d.start)
	}
	if err := d.start(); err != nil {
		return err
	}
	d.stamps.renumber(d.queues[0])
	return nil
}

func (d *Device) recoverSends(q *Queue, p *kit.Progress) error {
	q.countUnsent()
	if err := d.resetSend(q); err != nil {
		return err
	}
	*p = kit.Progress{}
	d.sendRecoveries.Add(1)
	return nil
}

// stopSends moves a send queue to reset, through error (PRM, SQ State Machine). In error the device completes every
// WQE.
func (d byCommand) stopSends(q *Queue) error {
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
	if state != stateERR {
		return nil
	}
	if err := q.flush(); err != nil {
		return err
	}
	return d.modify(opModifySQ, q.sqn, stateERR, stateRST)
}

func (d byCommand) startSends(q *Queue) error { return d.modify(opModifySQ, q.sqn, stateRST, stateRDY) }

// resetSend resets a send queue and makes it ready. The completion queue continues after the last completion.
func (d *Device) resetSend(q *Queue) error {
	if err := d.make.stopSends(q); err != nil {
		return err
	}
	for { // a queue in reset adds no completions: these are the last
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
	if q == d.queues[0] {
		d.stamps.renumber(q)
	}
	mmio.Store32(q.txCQRec, swap(taken&0xFFFFFF))
	return d.make.startSends(q)
}

// flush processes completions, of any status, up to that of the last WQE.
func (q *Queue) flush() error {
	last, tail := q.txDone, q.txDone
	for tail != q.txTail {
		last = tail
		ds := swap(*(*uint32)(unsafe.Add(q.wq.Base, tail&q.txMask*wqebb+4))) & 0x3F
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
				return fmt.Errorf("%w: the send queue in error did not give WQE %d back within %v", nic.ErrTimeout,
					last&0xFFFF, flushLimit)
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
