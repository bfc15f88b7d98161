package efa

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic/kit"
	"github.com/rebound-nic/rebound/nic/kit/amazonadmin"
)

// Reasons for a device reset (efa_regs_reset_reason_types), which the device records for its operators.
const (
	resetNormal       = 0
	resetAdminTimeout = 2
	resetInit         = 3 // "init error"
	resetForeign      = 4 // "driver invalid state": another process reset the function
	resetShutdown     = 6
	resetGeneric      = 8
)

const (
	statusEvery  = 10               // number of checks between reads of the device's status
	peerPatience = 5 * time.Second  // time after which a message that its peer does not accept is taken back
	sendPatience = 20 * time.Second // time after which the device is reset if all sends of a queue pair stall
)

// refused reports whether err is a refusal by the device or the kernel, rather than a timeout.
func refused(err error) bool {
	var e *amazonadmin.CommandError
	var errno unix.Errno
	return errors.As(err, &e) || errors.As(err, &errno) && errno != unix.EIO && errno != unix.ENODEV
}

// check detects a device that is broken or silent, or that reports an error.
func (d *Device) check(polled bool) (*kit.Symptom, error) {
	d.measured.Check(&d.card, 2)
	for i, q := range d.queues {
		switch q.fault.Load() {
		case faultRxID:
			return symptom("invalid_rx_req_id", resetGeneric,
				"queue %d: a completion of a receive that the device does not have", i), nil
		case faultTxID:
			return symptom("invalid_tx_req_id", resetGeneric,
				"queue %d: a completion of a send that the device does not have", i), nil
		case faultFlushed:
			return symptom("queue_pair_error", resetGeneric,
				"queue %d: the device gave receives back unused: a queue pair is in error", i), nil
		}
		for j := range q.npairs {
			if stuck := d.missed[i][j].Waiting(&q.pairs[j].done, &q.pairs[j].posted); stuck > sendPatience {
				return symptom("missed_tx_completion", resetGeneric,
					"queue %d, queue pair %d: no send was completed for %v", i, q.pairs[j].number, stuck), nil
			}
		}
		d.abandon(i, q)
	}
	return d.control.check(polled)
}

// abandon takes back messages that their peers have not accepted for a long time, by destroying the peers' address
// handles: the device then flushes them. This bounds how long a dead peer holds buffers, and affects no other peer.
func (d *Device) abandon(i int, q *Queue) {
	limit := uint16(peerPatience / kit.Every)
	for slot := range d.sends[i] {
		word := atomic.LoadUint32(q.slotWord(uint32(slot)))
		if word&slotState != slotSending || word != d.sends[i][slot] {
			d.sends[i][slot], d.looks[i][slot] = word, 0
			continue
		}
		if d.looks[i][slot]++; d.looks[i][slot] != limit {
			continue
		}
		d.peers.mu.Lock()
		for _, h := range d.peers.age {
			if h.number.Load() == word>>16 {
				d.card.Log.Warn("a peer has not taken a message: giving it up", "gid", h.gid, "for", peerPatience)
				if err := d.reclaim(h); err != nil {
					d.card.Log.Warn("a peer cannot be given up", "gid", h.gid, "err", err)
				}
				break
			}
		}
		d.peers.mu.Unlock()
		d.abandoned.Add(1)
	}
}

func symptom(name string, reason uint32, why string, args ...any) *kit.Symptom {
	return &kit.Symptom{Reason: name, Code: reason, Why: fmt.Sprintf(why, args...)}
}

// restart resets the device and starts it while no loop uses the queues. Messages in flight are lost.
func (d *Device) restart(s *kit.Symptom) error {
	if err := d.control.revive(); err != nil {
		return err
	}
	clear(d.missed)
	reason := s.Code
	if reason == resetNormal { // a reason detected by the kit
		reason = resetForeign
	}
	return d.start(reason)
}
