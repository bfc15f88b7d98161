package efasim

import (
	"fmt"
	"time"
)

// adminQueue is AQ and ACQ, one behind the other.
type adminQueue struct {
	tail, head uint16 // AQ: doorbell, fetched
	done       uint16 // ACQ: completions written
	late       []adminReply
}

type adminReply struct {
	due   time.Duration
	entry [admin]byte
}

// queueCaps takes ACQ_CAPS or AENQ_CAPS apart.
func queueCaps(v uint32) (depth uint16, size, vector int) {
	return uint16(v), int(v >> 16 & 0xff), int(v >> 24)
}

// depths checks both queues against their registers.
func (m *Model) depths() (depth uint16, err error) {
	aq := m.val[regAQCAPS/4]
	acqDepth, acqSize, vector := queueCaps(m.val[regACQCAPS/4])
	switch n := aq & 0xffff; {
	case aq>>16 != admin || acqSize != admin:
		return 0, fmt.Errorf("AQ_CAPS %#x, ACQ_CAPS %#x: entries have %d bytes", aq, m.val[regACQCAPS/4], admin)
	case n == 0 || n&(n-1) != 0 || uint32(acqDepth) < n:
		return 0, fmt.Errorf("AQ_CAPS %#x, ACQ_CAPS %#x: depths must be a power of two, ACQ as deep as AQ", aq, m.val[regACQCAPS/4])
	case vector >= m.vectors():
		return 0, fmt.Errorf("ACQ_CAPS %#x: MSI-X vector %d, there are %d", m.val[regACQCAPS/4], vector, m.vectors())
	case m.pair(regAQBASELO) == 0 || m.pair(regACQBASELO) == 0:
		return 0, fmt.Errorf("admin command before AQ_BASE %#x and ACQ_BASE %#x are set", m.pair(regAQBASELO), m.pair(regACQBASELO))
	}
	if err := m.width("AQ_BASE", m.pair(regAQBASELO)); err != nil {
		return 0, err
	}
	return uint16(aq), m.width("ACQ_BASE", m.pair(regACQBASELO))
}

func (m *Model) adminDoorbell(v uint32) error {
	depth, err := m.depths()
	if err != nil {
		return err
	}
	if n := uint16(v) - m.aq.head; v > 0xffff || n > depth || n == 0 {
		return fmt.Errorf("AQ_PROD_DB = %#x: the tail was %d, the queue has %d entries", v, m.aq.tail, depth)
	}
	m.aq.tail = uint16(v)
	return nil
}

// phase is the phase bit of a running index: one in the first round, then alternating.
func phase(i, depth uint32) byte { return byte(^(i / depth) & 1) }

func (m *Model) stepAdmin() (busy bool) {
	q := &m.aq
	if m.knob.stall {
		return false
	}
	for q.tail != q.head {
		busy = true
		depth := uint16(m.val[regAQCAPS/4])
		var c command
		if m.host.DMARead(m.pair(regAQBASELO)+admin*uint64(q.head%depth), c[:]) != nil {
			q.head = q.tail
			break
		}
		if p := c[3] & 1; p != phase(uint32(q.head), uint32(depth)) {
			m.host.Errorf("admin command %d (opcode %d): phase %d, expected %d", q.head, c.opcode(), p, phase(uint32(q.head), uint32(depth)))
		}
		q.head++
		m.count.AdminCommands++
		if f := m.knob.ignore; f != nil && f(c.opcode()) {
			continue
		}
		r := adminReply{due: m.host.Now() + m.opt.AdminDelay, entry: m.execute(&c)}
		le.PutUint16(r.entry[6:], q.head)
		q.late = append(q.late, r)
	}
	if m.opt.AdminOutOfOrder && busy && len(q.late) > 1 {
		m.rng.Shuffle(len(q.late), func(i, j int) { q.late[i].entry, q.late[j].entry = q.late[j].entry, q.late[i].entry })
	}
	for len(q.late) > 0 && q.late[0].due <= m.host.Now() {
		busy = true
		r := q.late[0]
		q.late = q.late[1:]
		depth, _, vector := queueCaps(m.val[regACQCAPS/4])
		r.entry[3] = phase(uint32(q.done), uint32(depth))
		if f := m.knob.tamperAdmin; f != nil {
			m.knob.tamperAdmin = nil
			f(r.entry[:])
		}
		m.writeEntry(m.pair(regACQBASELO)+admin*uint64(q.done%depth), r.entry[:])
		q.done++
		m.manage(vector)
	}
	return busy
}

// writeEntry writes an entry that is marked valid by its first 16 bytes: those last, as the device's one write shows
// itself.
func (m *Model) writeEntry(at uint64, b []byte) {
	if m.host.DMAWrite(at+16, b[16:]) == nil {
		m.host.DMAWrite(at, b[:16])
	}
}

// manage raises a management interrupt.
func (m *Model) manage(vector int) {
	if m.val[regINTRMASK/4]&1 == 0 {
		m.host.Interrupt(vector)
	}
}
