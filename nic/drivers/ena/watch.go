package ena

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/rebound-nic/rebound/nic/kit"
	"github.com/rebound-nic/rebound/nic/kit/amazonadmin"
)

// Reset reasons (ena_regs_reset_reason_types). The device keeps them for its operators.
const (
	resetNormal         = 0
	resetKeepAlive      = 1
	resetAdminTimeout   = 2
	resetMissedTx       = 3
	resetInvalidRxID    = 4
	resetInvalidTxID    = 5
	resetInit           = 7  // "init error"
	resetFatal          = 13 // "generic", which the published drivers use for fatal errors
	resetForeign        = 8  // "driver invalid state": another process reset the function
	resetShutdown       = 11
	resetReasons        = 16
	syndromeSuspend     = 0 // of notifications
	syndromeResume      = 1
	syndromeUpdateHints = 2
)

var reasonNames = [resetReasons]string{
	resetKeepAlive: "keep_alive", resetAdminTimeout: "admin_timeout", resetMissedTx: "missed_tx_completion",
	resetInvalidRxID: "invalid_rx_req_id", resetInvalidTxID: "invalid_tx_req_id", resetFatal: "fatal_error",
}

// suspendLimit is the longest time for which the device may suspend traffic. It reports the end only once, and that
// event is lost if the queue is full.
const suspendLimit = 10 * time.Second

// times are the longest times for which the device may be silent. The device may change them.
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

// watchdog records when the device was last heard. It keeps the whole time.Time: with the wall clock alone, a clock
// step forward would look like hours of silence.
type watchdog struct {
	enabled bool
	last    atomic.Pointer[time.Time]
}

func (w *watchdog) alive(at time.Time) { w.last.Store(&at) }

func (w *watchdog) silent(now time.Time) time.Duration { return now.Sub(*w.last.Load()) }

// check handles the device's events, and detects a device that is broken, silent or reports a fault.
func (d *Device) check(bool) (*kit.Symptom, error) {
	d.measured.Check(&d.card, 2)
	now := time.Now() // before the check: events that arrived while the watchdog was descheduled are no silence
	d.eventMu.Lock()
	d.serveEvents()
	fatal, limit := d.fatal, d.times
	d.fatal = ""
	var suspended time.Duration
	if d.suspended.Load() {
		suspended = now.Sub(d.suspendedAt)
	}
	d.eventMu.Unlock()
	if fatal != "" {
		return symptom(resetFatal, "%s", fatal), nil
	}
	if suspended > suspendLimit {
		return &kit.Symptom{Reason: "suspended", Code: resetFatal,
			Why: fmt.Sprintf("the device asked to suspend traffic %v ago, and never to resume it",
				suspended.Round(time.Millisecond))}, nil
	}
	for i, q := range d.queues {
		if f := q.fault.Load(); f != 0 {
			return symptom(f-1, "queue %d", i), nil
		}
		if stuck := d.missed[i].Waiting(&q.txHead, &q.txTail); limit.missingTx > 0 && stuck > limit.missingTx {
			how := "low-latency queue"
			if d.llq == nil {
				how = "descriptors in host memory, which newer devices do not take: " + d.noLLQ
			}
			return symptom(resetMissedTx, "queue %d: no transmit was completed for %v (%s)", i, stuck, how), nil
		}
	}
	if err := d.aq.Err(); err != nil {
		return symptom(resetAdminTimeout, "%v", err), nil
	}
	if s := d.watchdog.silent(now); d.watchdog.enabled && limit.keepAlive > 0 && s > limit.keepAlive {
		return symptom(resetKeepAlive, "no keep-alive for %v", s.Round(time.Millisecond)), nil
	}
	return nil, nil
}

func symptom(reason uint32, why string, args ...any) *kit.Symptom {
	return &kit.Symptom{Reason: reasonNames[reason], Code: reason, Why: fmt.Sprintf(why, args...)}
}

// restart resets and starts the device while no loop uses the queues. Pending frames are lost.
func (d *Device) restart(s *kit.Symptom) error {
	if d.regs.Gone() {
		if err := d.card.Fn.Reset(); err != nil { // another process's reset left the registers switched off
			return err
		}
	}
	d.suspended.Store(false)
	clear(d.missed)
	reason := s.Code
	if reason == resetNormal { // the kit's finding
		reason = resetForeign
	}
	return d.start(reason)
}

// serveEvents handles all waiting events, with eventMu held. The watchdog and Link call it. A reset reason is kept for
// the watchdog.
func (d *Device) serveEvents() {
	for {
		e, ok := d.events.Next()
		if !ok {
			break
		}
		switch e.Group {
		case groupLink:
			up := e.Data[0]&1 != 0
			d.up.Store(up)
			d.card.Log.Info("link", "up", up)
		case groupKeepAlive:
			d.watchdog.alive(time.Now())
		case groupFatal:
			d.fatal = fmt.Sprintf("the device reports a fatal error, syndrome %d", e.Syndrome)
		case groupWarning:
			d.card.Log.Warn("the device warns", "syndrome", e.Syndrome)
		case groupNotification:
			d.notified(e)
		default:
			d.card.Log.Warn("unknown event", "group", e.Group, "syndrome", e.Syndrome)
			d.unknown.Add(1)
		}
	}
	d.events.Done()
}

// notified handles a notification of the device: a request to suspend or resume traffic, or new time limits.
func (d *Device) notified(e amazonadmin.Event) {
	switch e.Syndrome {
	case syndromeSuspend, syndromeResume:
		suspend := e.Syndrome == syndromeSuspend
		if suspend && !d.suspended.Load() {
			d.suspendedAt = time.Now()
		}
		d.suspended.Store(suspend)
		d.card.Log.Warn("the device asks to suspend or resume traffic", "suspend", suspend)
	case syndromeUpdateHints:
		var h hints
		for i, p := range []*uint16{&h.mmioRead, &h.watchdog, &h.missingTx, &h.missedTx, &h.adminCompletion,
			&h.netdevWatchdog, &h.txSGL, &h.rxSGL} {
			*p = binary.LittleEndian.Uint16(e.Data[2*i:])
		}
		d.times.apply(h)
	default:
		d.card.Log.Warn("unknown notification", "syndrome", e.Syndrome)
		d.unknown.Add(1)
	}
}
