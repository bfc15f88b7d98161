package ena

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"time"

	"rebound/nic"
	"rebound/nic/bus/pci"
	"rebound/nic/kit/amazonadmin"
)

// Why a device is reset (ena_regs_reset_reason_types): the device keeps it for those who look after it.
const (
	resetNormal         = 0
	resetKeepAlive      = 1
	resetAdminTimeout   = 2
	resetMissedTx       = 3
	resetInvalidRxID    = 4
	resetInvalidTxID    = 5
	resetFatal          = 13 // "generic": the published drivers report fatal errors so
	resetForeign        = 8  // "driver invalid state": somebody else reset the function
	resetShutdown       = 11
	resetReasons        = 16
	watchEvery          = 100 * time.Millisecond
	syndromeSuspend     = 0 // of notifications
	syndromeResume      = 1
	syndromeUpdateHints = 2
)

var reasonNames = [resetReasons]string{
	resetKeepAlive: "keep_alive", resetAdminTimeout: "admin_timeout", resetMissedTx: "missed_tx_completion",
	resetInvalidRxID: "invalid_rx_req_id", resetInvalidTxID: "invalid_tx_req_id", resetFatal: "fatal_error", resetForeign: "foreign_reset",
}

// times are how long the device may be silent; the device may change them.
type times struct {
	keepAlive, missingTx time.Duration // negative: not watched
}

// apply takes the device's hints over the published drivers' defaults.
func (t *times) apply(h hints) {
	pick := func(ms uint16, otherwise time.Duration) time.Duration {
		switch ms {
		case 0:
			return otherwise
		case 0xFFFF:
			return -1
		}
		return time.Duration(ms) * time.Millisecond
	}
	t.keepAlive, t.missingTx = pick(h.watchdog, 6*time.Second), pick(h.missingTx, 5*time.Second)
}

// watchdog knows when the device was last heard. It keeps the whole time.Time: of the wall clock alone, set forward, every
// device would have been silent for hours.
type watchdog struct {
	enabled bool
	last    atomic.Pointer[time.Time]
}

func (w *watchdog) alive(at time.Time) { w.last.Store(&at) }

func (w *watchdog) silent(now time.Time) time.Duration { return now.Sub(*w.last.Load()) }

// watch serves the device's events and looks after it until Close: it resets a device that is broken, silent or told us so,
// with the queues' owners parked.
func (d *Device) watch() {
	defer close(d.ended)
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	progress := make([]progress, len(d.queues))
	for {
		select {
		case <-d.endWatch:
			return
		case <-tick.C:
		}
		now := time.Now() // before the look: what came while the watch was held up is no silence
		d.serveEvents()
		d.eventMu.Lock()
		reason, why := uint32(resetFatal), d.fatal
		d.fatal = ""
		d.eventMu.Unlock()
		for i, q := range d.queues {
			if f := q.fault.Load(); f != 0 {
				reason, why = f-1, fmt.Sprintf("queue %d: %s", i, reasonNames[f-1])
			} else if stuck := progress[i].stuck(q, now); d.times.missingTx > 0 && stuck > d.times.missingTx {
				reason, why = resetMissedTx, fmt.Sprintf("queue %d: no transmit was completed for %v", i, stuck.Round(time.Millisecond))
			}
		}
		if err := d.aq.Err(); err != nil && why == "" {
			reason, why = resetAdminTimeout, err.Error()
		}
		if on, err := pci.BusMastering(d.fn); why == "" && err == nil && !on && !pci.Gone(d.fn) {
			reason, why = resetForeign, "bus mastering is off: the function was reset by somebody else"
		}
		if s := d.watchdog.silent(now); why == "" && d.watchdog.enabled && d.times.keepAlive > 0 && s > d.times.keepAlive {
			reason, why = resetKeepAlive, fmt.Sprintf("no keep-alive for %v", s.Round(time.Millisecond))
		}
		if why == "" {
			continue
		}
		d.log.Warn("device has to be reset", "device", d.fn.Name(), "reason", reasonNames[reason], "why", why)
		if err := d.gate.Alone(d.endWatch, func() error { return d.restart(reason) }); err != nil {
			return
		}
		clear(progress)
	}
}

// restart resets the device and starts it anew with nobody on the queues. What was under way is lost.
func (d *Device) restart(reason uint32) error {
	d.life.Lock()
	defer d.life.Unlock()
	if d.regs.Gone() {
		if pci.Gone(d.fn) {
			return fmt.Errorf("ena %s: %w: VERSION reads all ones", d.fn.Name(), nic.ErrGone)
		}
		if err := d.fn.Reset(); err != nil { // somebody else's reset left the registers switched off
			return err
		}
	}
	d.keepTotals()
	d.statsMu.Lock()
	d.resets[reason]++
	d.statsMu.Unlock()
	d.suspended.Store(false)
	if err := d.start(reason); err != nil {
		return fmt.Errorf("ena %s: %w: restart after %s: %w", d.fn.Name(), nic.ErrHardware, reasonNames[reason], err)
	}
	d.log.Info("device was reset and runs again", "device", d.fn.Name())
	return nil
}

// progress tells how long a queue's oldest transmit has been waiting.
type progress struct {
	done  uint32
	since time.Time
}

func (p *progress) stuck(q *Queue, now time.Time) time.Duration {
	done := atomic.LoadUint32(&q.txHead)
	if done != p.done || done == atomic.LoadUint32(&q.txTail) || p.since.IsZero() {
		p.done, p.since = done, now
	}
	return now.Sub(p.since)
}

// serveEvents takes all events that are there. Events come to whoever looks first, the watch or Link; why the device has to
// be reset, if an event says so, is kept for the watch.
func (d *Device) serveEvents() {
	d.eventMu.Lock()
	defer d.eventMu.Unlock()
	for {
		e, ok := d.events.Next()
		if !ok {
			break
		}
		switch e.Group {
		case groupLink:
			up := e.Data[0]&1 != 0
			d.link.Store(up)
			d.log.Info("link", "device", d.fn.Name(), "up", up)
		case groupKeepAlive:
			d.watchdog.alive(time.Now())
			d.noteDrops(binary.LittleEndian.Uint64(e.Data[0:]), binary.LittleEndian.Uint64(e.Data[8:]))
		case groupFatal:
			d.fatal = fmt.Sprintf("the device reports a fatal error, syndrome %d", e.Syndrome)
		case groupWarning:
			d.log.Warn("the device warns", "device", d.fn.Name(), "syndrome", e.Syndrome)
		case groupNotification:
			d.notified(e)
		default:
			d.log.Warn("unknown event", "device", d.fn.Name(), "group", e.Group, "syndrome", e.Syndrome)
			d.countUnknownEvent()
		}
	}
	d.events.Done()
}

func (d *Device) notified(e amazonadmin.Event) {
	switch e.Syndrome {
	case syndromeSuspend, syndromeResume:
		d.suspended.Store(e.Syndrome == syndromeSuspend)
		d.log.Warn("the device asks to suspend or resume traffic", "device", d.fn.Name(), "suspend", e.Syndrome == syndromeSuspend)
	case syndromeUpdateHints:
		var h hints
		for i, p := range []*uint16{&h.mmioRead, &h.watchdog, &h.missingTx, &h.missedTx, &h.adminCompletion, &h.netdevWatchdog, &h.txSGL, &h.rxSGL} {
			*p = binary.LittleEndian.Uint16(e.Data[2*i:])
		}
		d.times.apply(h)
	default:
		d.log.Warn("unknown notification", "device", d.fn.Name(), "syndrome", e.Syndrome)
		d.countUnknownEvent()
	}
}
