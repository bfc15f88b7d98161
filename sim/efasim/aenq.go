package efasim

import (
	"fmt"
	"time"
)

// Event groups, efa_admin_aenq_group.
const (
	GroupFatal        = 1
	GroupWarning      = 2
	GroupNotification = 3
	GroupKeepAlive    = 4

	eventGroups = 1<<GroupFatal | 1<<GroupWarning | 1<<GroupNotification | 1<<GroupKeepAlive
)

// Event is efa_admin_aenq_entry without what the device adds.
type Event struct {
	Group, Syndrome uint16
	Data            [48]byte
}

// eventQueue is AENQ.
type eventQueue struct {
	enabled  bool // the first doorbell was rung
	consumed uint16
	tail     uint16
	waiting  []Event
	alive    time.Duration // when the last keep-alive was due
}

// aenqDoorbell is how many events the driver has consumed. Unlike ENA's it begins with 0: all entries are the device's.
func (m *Model) aenqDoorbell(v uint32) error {
	depth, size, vector := queueCaps(m.val[regAENQCAPS/4])
	q := &m.aenq
	switch {
	case size != admin || depth == 0 || depth&(depth-1) != 0 || vector >= m.vectors() || m.pair(regAENQBASELO) == 0:
		return fmt.Errorf("AENQ_CONS_DB = %d with AENQ_CAPS %#x, AENQ_BASE %#x", v, m.val[regAENQCAPS/4], m.pair(regAENQBASELO))
	case !q.enabled && v != 0:
		return fmt.Errorf("AENQ_CONS_DB = %d at first: 0 is expected", v)
	case v > 0xffff || uint16(v)-q.consumed > q.tail-q.consumed:
		return fmt.Errorf("AENQ_CONS_DB = %d: it was %d, and %d events were sent", v, q.consumed, q.tail)
	}
	if !q.enabled {
		q.alive = m.host.Now()
	}
	q.enabled, q.consumed = true, uint16(v)
	return m.width("AENQ_BASE", m.pair(regAENQBASELO))
}

func (m *Model) post(e Event) {
	if m.aenq.enabled && len(m.aenq.waiting) < 64 {
		m.aenq.waiting = append(m.aenq.waiting, e)
	}
}

// stepEvents sends what is due. Groups that the driver did not enable are not sent, unless they are unknown: those are a fault
// on demand.
func (m *Model) stepEvents() (busy bool) {
	q := &m.aenq
	if !q.enabled {
		return false
	}
	for m.host.Now()-q.alive >= time.Second {
		q.alive += time.Second
		if !m.knob.noKeepAlive {
			m.post(Event{Group: GroupKeepAlive})
		}
	}
	depth, _, vector := queueCaps(m.val[regAENQCAPS/4])
	for len(q.waiting) > 0 && q.tail-q.consumed < depth {
		e := q.waiting[0]
		q.waiting = q.waiting[1:]
		if e.Group <= GroupKeepAlive && m.groups>>e.Group&1 == 0 {
			continue
		}
		busy = true
		var b [admin]byte
		le.PutUint16(b[0:], e.Group)
		le.PutUint16(b[2:], e.Syndrome)
		b[4] = phase(uint32(q.tail), uint32(depth))
		le.PutUint64(b[8:], uint64(m.host.Now()/time.Microsecond))
		copy(b[16:], e.Data[:])
		m.writeEntry(m.pair(regAENQBASELO)+admin*uint64(q.tail%depth), b[:])
		q.tail++
		m.count.Events++
		m.manage(vector)
	}
	return busy
}
