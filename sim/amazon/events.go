package amazon

import (
	"fmt"
	"time"
)

// Event groups, {ena,efa}_admin_aenq_group.
const (
	GroupLink         = 0 // ENA only
	GroupFatal        = 1
	GroupWarning      = 2
	GroupNotification = 3
	GroupKeepAlive    = 4
)

// Event is {ena,efa}_admin_aenq_entry without the fields that the device fills in.
type Event struct {
	Group, Syndrome uint16
	Data            [48]byte
}

// eventQueue is the state of AENQ.
type eventQueue struct {
	enabled  bool // the first doorbell was rung
	gone     bool // it had been enabled before the driver reset the device
	consumed uint16
	tail     uint16
	waiting  []Event
	alive    time.Duration // when the last keep-alive was due
}

// eventDoorbell handles the number of events that the driver has consumed. ENA starts at the queue depth, EFA at 0. At
// the start all entries belong to the device.
func (c *Controller) eventDoorbell(v uint32) error {
	depth, size, vector := c.caps(RegAENQCAPS)
	q, name, first := &c.aenq, c.card.Registers.Name(RegAENQDB), uint16(0)
	if c.card.EventsFromDepth {
		first = depth
	}
	consumed := uint16(v) - first
	switch {
	case size != Entry || depth == 0 || depth&(depth-1) != 0 || vector > 0 && vector >= c.card.Vectors ||
		c.pair(RegAENQBASELO) == 0:
		return fmt.Errorf("%s = %d with AENQ_CAPS %#x, AENQ_BASE %#x", name, v, c.val[RegAENQCAPS/4],
			c.pair(RegAENQBASELO))
	case !q.enabled && v != uint32(first):
		return fmt.Errorf("%s = %d at first: %d is expected", name, v, first)
	case v > 0xffff || consumed-q.consumed > q.tail-q.consumed:
		return fmt.Errorf("%s = %d: %d events were consumed before, and only %d events were sent", name, v, q.consumed,
			q.tail)
	}
	enabled := q.enabled
	q.enabled, q.consumed = true, consumed
	if !enabled {
		q.alive = c.Host.Now()
		if c.card.Enabled != nil {
			c.card.Enabled()
		}
	}
	return c.CheckWidth("AENQ_BASE", c.pair(RegAENQBASELO))
}

// PostLocked is Post for a caller that holds the lock.
func (c *Controller) PostLocked(e Event) {
	if c.aenq.enabled && len(c.aenq.waiting) < 64 {
		c.aenq.waiting = append(c.aenq.waiting, e)
	}
}

// stepEvents sends the events that are due. An event of a group that the driver did not enable is dropped. An event of
// an unknown group is an injected fault and is always sent.
func (c *Controller) stepEvents() (busy bool) {
	q := &c.aenq
	if !q.enabled {
		return false
	}
	for c.Host.Now()-q.alive >= time.Second {
		q.alive += time.Second
		if !c.Knobs.noKeepAlive {
			c.PostLocked(c.card.KeepAlive())
		}
	}
	depth, _, vector := c.caps(RegAENQCAPS)
	for len(q.waiting) > 0 && q.tail-q.consumed < depth {
		e := q.waiting[0]
		q.waiting = q.waiting[1:]
		if e.Group <= GroupKeepAlive && c.Groups>>e.Group&1 == 0 {
			continue
		}
		busy = true
		var b [Entry]byte
		le.PutUint16(b[0:], e.Group)
		le.PutUint16(b[2:], e.Syndrome)
		b[4] = Phase(q.tail, depth)
		le.PutUint64(b[8:], uint64(c.Host.Now()/time.Microsecond))
		copy(b[16:], e.Data[:])
		c.WriteEntry(c.pair(RegAENQBASELO)+Entry*uint64(q.tail%depth), b[:])
		q.tail++
		c.Events++
		c.interrupt(vector)
	}
	return busy
}
