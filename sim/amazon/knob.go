package amazon

import (
	"slices"
	"time"
)

// Knobs are the injected faults. They survive resets, except for the fatal error.
type Knobs struct {
	noKeepAlive, stall, mute, fatal bool

	tamperAdmin func([]byte)
	ignore      func(command string) bool
	fail        func(command string) uint8

	Paused    bool
	tamper    [2]func([]byte) // changes the next receive or transmit completion
	duplicate [2]int
}

func index(tx bool) int {
	if tx {
		return 1
	}
	return 0
}

// TakeTamper returns the function that TamperCompletion set, once.
func (k *Knobs) TakeTamper(tx bool) func([]byte) {
	f := k.tamper[index(tx)]
	k.tamper[index(tx)] = nil
	return f
}

// TakeDuplicate returns the number that DuplicateCompletion set, once.
func (k *Knobs) TakeDuplicate(tx bool) int {
	n := k.duplicate[index(tx)]
	k.duplicate[index(tx)] = 0
	return n
}

// Turn runs f with the lock held.
func (c *Controller) Turn(f func(k *Knobs)) {
	c.Lock()
	defer c.Unlock()
	f(&c.Knobs)
}

// WithholdKeepAlive stops keep-alive events, or starts them again.
func (c *Controller) WithholdKeepAlive(on bool) { c.Turn(func(k *Knobs) { k.noKeepAlive = on }) }

// HastenKeepAlive makes the next keep-alive event due by d earlier.
func (c *Controller) HastenKeepAlive(d time.Duration) { c.Turn(func(*Knobs) { c.aenq.alive -= d }) }

// StallAdmin leaves admin commands in their queue without executing them.
func (c *Controller) StallAdmin(on bool) { c.Turn(func(k *Knobs) { k.stall = on }) }

// IgnoreAdmin drops the commands for whose name f returns true, without effect or completion. A nil f drops none.
func (c *Controller) IgnoreAdmin(f func(command string) bool) {
	c.Turn(func(k *Knobs) { k.ignore = f })
}

// FailAdmin calls f with the name of each admin command ("CREATE_SQ", "SET_FEATURE LLQ"). If f returns a status other
// than 0, the command is not executed and completes with that status. A nil f fails none.
func (c *Controller) FailAdmin(f func(command string) uint8) { c.Turn(func(k *Knobs) { k.fail = f }) }

// TamperAdmin passes the next admin completion, 64 bytes, to f before it is written.
func (c *Controller) TamperAdmin(f func([]byte)) { c.Turn(func(k *Knobs) { k.tamperAdmin = f }) }

// Mute suppresses the responses to register reads by DMA.
func (c *Controller) Mute(on bool) { c.Turn(func(k *Knobs) { k.mute = on }) }

// Fail raises a fatal error in DEV_STS and as an event, until a reset.
func (c *Controller) Fail() {
	c.Turn(func(k *Knobs) {
		k.fatal = true
		c.PostLocked(Event{Group: GroupFatal})
	})
}

// Post sends an event. It is dropped if the driver has not set up AENQ or has not enabled the group. An event of an
// unknown group is always sent.
func (c *Controller) Post(e Event) { c.Turn(func(*Knobs) { c.PostLocked(e) }) }

// Pause stops the transmitter: entries stay in their queues.
func (c *Controller) Pause(on bool) { c.Turn(func(k *Knobs) { k.Paused = on }) }

// TamperCompletion passes the next transmit or receive completion to f before it is written.
func (c *Controller) TamperCompletion(tx bool, f func([]byte)) {
	c.Turn(func(k *Knobs) { k.tamper[index(tx)] = f })
}

// DuplicateCompletion writes the next transmit or receive completion n more times than it should be.
func (c *Controller) DuplicateCompletion(tx bool, n int) {
	c.Turn(func(k *Knobs) { k.duplicate[index(tx)] = n })
}

// Resets returns the reason of each reset by DEV_CTL, oldest first.
func (c *Controller) Resets() []int {
	c.Lock()
	defer c.Unlock()
	return slices.Clone(c.reasons)
}
