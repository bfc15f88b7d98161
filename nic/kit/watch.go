package kit

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/pci"
)

// Every is the time from one look of the watch to the next.
const Every = 100 * time.Millisecond

// countEvery is how many checks of the watchdog there are from one reading of the counters to the next. A counter of 32
// or 36 bits must not wrap in between: 82599's octets do after 55 s at 10 Gbit/s, ConnectX's dropped frames after 28 s
// at 150 million per second. The last reading is all that is left of the counters of a device that dies.
const countEvery = 100

// Symptom is the watchdog's finding about a device that needs help.
type Symptom struct {
	Reason string // under which it counts: "tx_hang"
	Code   uint32 // the reason in the device's own terms, if it has any
	Why    string // for the log

	// Recover repairs the device without a restart, while no loop uses the queues. If it is nil, or fails, the device
	// is restarted.
	Recover func() error `json:"-"`

	// Suspect is the progress that stalled, if the stall may be the loops' own: loops that were descheduled, by a
	// hypervisor or on a busy machine, look like a device that hangs. The watchdog waits for the loops, and then allows
	// the same time again before it blames the device.
	Suspect *Progress `json:"-"`
}

// Foreign is the symptom of a device that another process reset.
func Foreign(why string) *Symptom {
	return &Symptom{Reason: "foreign_reset", Why: why + ": another process or the kernel reset the function"}
}

// watch checks the device until Close. If the device is gone, it ends the loops with an error; if the device is
// unhealthy, it repairs it while the loops are parked.
func (c *Card) watch() {
	defer close(c.ended)
	tick := time.NewTicker(Every)
	defer tick.Stop()
	for look := 1; ; look++ {
		select {
		case <-c.endWatch:
			return
		case <-tick.C:
		}
		s, err := c.check()
		switch {
		case nic.Lost(err):
			c.showTrace("the device is gone: the last accesses to it")
			c.Gate.alone(c.endWatch, func() error { return err })
			return
		case s == nil:
			if err == nil && look%countEvery == 0 {
				c.BetweenRestarts(func() { _, _ = c.Stats() }) // Check finds what ails the device
			}
			continue
		}
		if s.Suspect != nil && s.Suspect.first() {
			c.Log.Info("the device or the polling loops stall: waiting for the loops", "reason", s.Reason, "why", s.Why)
			if c.Gate.alone(c.endWatch, func() error { return nil }) != nil {
				return
			}
			continue
		}
		c.Log.Warn("the device is unhealthy", "reason", s.Reason, "why", s.Why)
		if c.Gate.alone(c.endWatch, func() error { return c.recover(s) }) != nil {
			return
		}
	}
}

// check runs the checks for every function, and then the driver's.
func (c *Card) check() (*Symptom, error) {
	Hold(c.lifeMutex.TryRLock)
	defer c.lifeMutex.RUnlock()
	polled := c.Gate.Active()
	if polled {
		if pci.Gone(c.Fn) {
			return nil, c.Gone("configuration space")
		}
		if on, err := pci.BusMastering(c.Fn); err == nil && !on {
			return Foreign("bus mastering is off"), nil
		}
	}
	return c.hooks.Check(polled)
}

// recover repairs a device with a symptom: by the symptom's own means if it has some, otherwise by a restart, while
// no loop uses the queues. It returns an error if the device is gone or does not start.
func (c *Card) recover(s *Symptom) error {
	Hold(c.lifeMutex.TryLock)
	defer c.lifeMutex.Unlock()
	if s.Recover != nil {
		err := s.Recover()
		if err == nil {
			c.Log.Log(context.Background(), nic.Notice, "the device recovered without a restart", "reason", s.Reason)
			return nil
		}
		c.Log.Warn("the device did not recover: restarting it", "reason", s.Reason, "err", err)
	}
	if pci.Gone(c.Fn) {
		return c.Gone("configuration space")
	}
	c.Totals.countReset(s.Reason)
	if c.Alive() == nil { // a function that was reset executes no commands: each would wait for its time-out
		_ = c.readStats(new(nic.Stats)) // the last that it counted, if it still answers
	}
	if err := c.hooks.Restart(s); err != nil {
		c.showTrace("the restart failed: the last accesses to the device")
		return c.Errorf("%w: restart after %s: %w", nic.ErrHardware, s.Reason, err)
	}
	if c.hooks.Count != nil {
		if now, err := c.hooks.Count(); err == nil {
			c.Totals.restarted(now)
		}
	}
	c.Totals.countRestart()
	c.Log.Log(context.Background(), nic.Notice, "the device was restarted", "reason", s.Reason)
	return nil
}

// Progress measures how long a number has stalled. It counts checks, not time, because a watchdog that was descheduled,
// in a stalled guest or on a busy machine, has not waited.
type Progress struct {
	value     uint32
	checks    int
	suspected bool // it has stalled for too long once
}

// StalledFor is called once per check.
func (p *Progress) StalledFor(value uint32) time.Duration {
	if value != p.value {
		p.value, p.checks, p.suspected = value, -1, false
	}
	p.checks++
	return time.Duration(p.checks) * Every
}

// first reports whether it stalled for too long for the first time, and counts again then.
func (p *Progress) first() bool {
	if p.suspected {
		return false
	}
	p.checks, p.suspected = 0, true
	return true
}

// Waiting is StalledFor for a ring: done moves towards tail, and stops permanently where they meet. The polling loop
// owns both.
func (p *Progress) Waiting(done, tail *uint32) time.Duration {
	d := atomic.LoadUint32(done)
	if d == atomic.LoadUint32(tail) {
		*p = Progress{value: d, checks: -1}
	}
	return p.StalledFor(d)
}
