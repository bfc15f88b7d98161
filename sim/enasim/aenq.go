package enasim

import (
	"fmt"
	"time"
)

// Event groups, ena_admin_aenq_group.
const (
	GroupLink         = 0
	GroupFatal        = 1
	GroupWarning      = 2
	GroupNotification = 3
	GroupKeepAlive    = 4
)

// Syndromes of notifications. Suspend and resume are from drivers before 2017, and are still reserved for that.
const (
	NotifySuspend     = 0
	NotifyResume      = 1
	NotifyUpdateHints = 2
)

// Event is ena_admin_aenq_entry without what the device adds.
type Event struct {
	Group, Syndrome uint16
	Data            [48]byte
}

// eventQueue is AENQ.
type eventQueue struct {
	enabled bool // the first doorbell was rung
	gone    bool // it was, before the driver had the device reset
	head    uint16
	tail    uint16
	waiting []Event
	alive   time.Duration // when the last keep-alive was due
}

// aenqDoorbell is the head: first the depth, which gives all entries to the device, then what the driver has consumed more.
func (m *Model) aenqDoorbell(v uint32) error {
	depth := m.val[regAENQCAPS/4] & 0xffff
	q := &m.aenq
	switch {
	case m.val[regAENQCAPS/4]>>16 != admin || depth == 0 || depth&(depth-1) != 0 || m.pair(regAENQBASELO) == 0:
		return fmt.Errorf("AENQ_HEAD_DB = %d with AENQ_CAPS %#x, AENQ_BASE %#x", v, m.val[regAENQCAPS/4], m.pair(regAENQBASELO))
	case !q.enabled && v != depth:
		return fmt.Errorf("AENQ_HEAD_DB = %d at first: the depth, %d, is expected", v, depth)
	case q.enabled && uint16(v)-q.head > q.tail-(q.head-uint16(depth)):
		return fmt.Errorf("AENQ_HEAD_DB = %d: it was %d, and only %d events were sent", v, q.head, q.tail)
	}
	first := !q.enabled
	q.enabled, q.head = true, uint16(v)
	if first {
		q.alive = m.host.Now()
		m.postLink()
	}
	return m.width("AENQ_BASE", m.pair(regAENQBASELO))
}

// postLink reports the link's state.
func (m *Model) postLink() {
	e := Event{Group: GroupLink}
	if m.wire {
		e.Data[0] = 1
	}
	m.post(e)
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
			e := Event{Group: GroupKeepAlive}
			le.PutUint64(e.Data[0:], m.count.RxDrops)
			le.PutUint64(e.Data[8:], m.count.TxDrops)
			le.PutUint64(e.Data[16:], m.count.RxOverruns)
			m.post(e)
		}
	}
	depth := uint16(m.val[regAENQCAPS/4])
	for len(q.waiting) > 0 && q.tail-(q.head-depth) < depth {
		e := q.waiting[0]
		q.waiting = q.waiting[1:]
		if e.Group <= GroupKeepAlive && m.feat.groups>>e.Group&1 == 0 {
			continue
		}
		busy = true
		var b [admin]byte
		le.PutUint16(b[0:], e.Group)
		le.PutUint16(b[2:], e.Syndrome)
		b[4] = byte(phase(q.tail, depth))
		le.PutUint64(b[8:], uint64(m.host.Now()/time.Microsecond))
		copy(b[16:], e.Data[:])
		m.writeEntry(m.pair(regAENQBASELO)+admin*uint64(q.tail%depth), b[:])
		q.tail++
		m.count.Events++
		m.manage()
	}
	return busy
}
