package mlx4

import (
	"fmt"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/kit"
)

const sendLimit = 2 * time.Second // for a completion that was requested, with the link up

const nothingSent = "nothing that was pushed has been sent"

// want records what an event says about the device, for the watchdog.
func (d *Device) want(reason, why string) {
	d.wanted.CompareAndSwap(nil, &kit.Symptom{Reason: reason, Why: why})
}

// check handles the device's events, and detects a stopped queue, stalled sends, a command that firmware did not
// complete, and dead firmware. It reads the device itself only while loops run or while Send and Recv are used.
func (d *Device) check(polled bool) (*kit.Symptom, error) {
	if s := d.ctl.look(polled); s != nil || !polled {
		return s, nil
	}
	for i, q := range d.queues {
		if s := d.checkQueue(i, q); s != nil {
			return s, nil
		}
	}
	return nil, nil
}

// checkQueue detects a queue that stopped, or whose sends stalled.
func (d *Device) checkQueue(i int, q *Queue) *kit.Symptom {
	recoverQueue := func() error { return d.recoverSends(q, &d.sends[i]) }
	if d.subnet != nil {
		recoverQueue = nil // the same QP sends and receives
	}
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
	if l, err := d.ctl.link(); err == nil && !l.Up {
		return nil
	}
	if d.subnet != nil && q.bf != nil && atomic.LoadUint32(&q.txNext) == 0 {
		d.flameless = true
	}
	return &kit.Symptom{Reason: "tx_hang", Recover: recoverQueue,
		Why: fmt.Sprintf("queue %d: %v: no send was completed for %v (completion %d)", i,
			nic.ErrTimeout, sendLimit, atomic.LoadUint32(&q.txNext))}
}

// catas returns the window with the buffer of catastrophic errors (QUERY_FW), or nil if it cannot be read.
func (d *Device) catas() *mmio.Window {
	w := d.bar
	if d.fw.catasBAR != 0 {
		w = d.uars
	}
	if d.fw.catasBAR != 0 && d.fw.catasBAR != 2 || w == nil || d.fw.catasWords == 0 || d.fw.catasOffset%4 != 0 ||
		d.fw.catasOffset >= w.Size() || uint64(d.fw.catasWords)*4 > w.Size()-d.fw.catasOffset {
		return nil
	}
	return w
}

// checkCatas reads the first word of the buffer that firmware fills as it dies.
func (d *Device) checkCatas() *kit.Symptom {
	w := d.catas()
	if w == nil || w.Read32(d.fw.catasOffset) == 0 || pci.Gone(d.card.Fn) {
		return nil
	}
	return &kit.Symptom{Reason: "catastrophic_error", Why: "the firmware died: " + d.catasText()}
}

// catasText formats the contents of firmware's error buffer.
func (d *Device) catasText() string {
	w := d.catas()
	if w == nil {
		return "it has no buffer for catastrophic errors"
	}
	var words []string
	empty := true
	for i := range min(uint64(d.fw.catasWords), 16) {
		v := swap(w.Read32(d.fw.catasOffset + 4*i))
		empty = empty && v == 0
		words = append(words, fmt.Sprintf("%08x", v))
	}
	if empty {
		return "its buffer of catastrophic errors is empty"
	}
	return "buffer of catastrophic errors " + strings.Join(words, " ")
}

// restart restarts the device while no loop uses its queues. Pending frames are lost.
func (d *Device) restart(*kit.Symptom) error {
	d.subnet.stop(false)
	d.wide = nil
	d.events.mu.Lock()
	d.events.mem = nil
	d.events.mu.Unlock()
	d.wanted.Store(nil)
	clear(d.sends)
	for _, q := range d.queues {
		q.countUnsent()
	}
	return d.ctl.start()
}

// recoverSends resets one send queue. If no WQE that was pushed through BlueFlame was ever sent, it continues with
// doorbells.
func (d *Device) recoverSends(q *Queue, p *kit.Progress) error {
	if q.bf != nil && q.txNext == 0 && q.fault.Load() == faultNone {
		q.setFlame(nil)
		d.noBlueFlame(nothingSent)
	}
	q.countUnsent()
	if err := d.resetSend(q); err != nil {
		return err
	}
	*p = kit.Progress{}
	d.sendRecoveries.Add(1)
	return nil
}

// resetSend moves a send queue through reset to ready-to-send. Its completion queue continues after the existing
// entries.
func (d *Device) resetSend(q *Queue) error {
	if err := d.ctl.resetQP(q.txQPN); err != nil {
		return err
	}
	for range q.txMask + 1 { // in reset the queue makes no more completions, so those that exist are all
		last := atomic.LoadUint64(&q.completion(q.txCQ, q.txNext&q.txMask).last)
		if (last>>cqeOwner^uint64(q.txNext>>(q.txShift&31)))&1 != 0 {
			break
		}
		q.txNext++
	}
	for slot := range q.mask + 1 {
		*(*uint32)(unsafe.Add(q.pend, slot*4)) = 0
	}
	q.resetSend()
	q.askTail = q.txNext
	mmio.Store32(q.txCQRec, swap(q.txNext&0xFFFFFF))
	return d.ctl.startQP(q.txQPN, q.sendContext)
}

// received returns how many receive slots the loop has taken, which wraps.
func (q *Queue) received() uint32 { return atomic.LoadUint32(&q.rxNext) }
