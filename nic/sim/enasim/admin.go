package enasim

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

// command is ena_admin_aq_entry.
type command [admin]byte

func (c *command) id() uint16    { return le.Uint16(c[0:]) }
func (c *command) opcode() uint8 { return c[2] }

// address reads ena_common_mem_addr.
func (m *Model) address(c *command, what string, at int) (uint64, error) {
	if x := le.Uint16(c[at+6:]); x != 0 {
		return 0, fmt.Errorf("%s: bits 63:48 of the address are %#x, must be zero", what, x)
	}
	a := uint64(le.Uint16(c[at+4:]))<<32 | uint64(le.Uint32(c[at:]))
	return a, m.width(what, a)
}

// zero tells of reserved bytes that are not zero. What lies behind a short command is not its: drivers leave an older one there.
func (m *Model) zero(c *command, what string, from, to int) {
	for i, b := range c[from:to] {
		if b != 0 {
			m.host.Tell("%s: reserved byte %d is %#02x, must be zero", what, from+i, b)
			return
		}
	}
}

// depths checks both queues against their registers.
func (m *Model) depths() (depth uint16, err error) {
	aq, acq := m.val[regAQCAPS/4], m.val[regACQCAPS/4]
	switch n := aq & 0xffff; {
	case aq>>16 != admin || acq>>16 != admin:
		return 0, fmt.Errorf("AQ_CAPS %#x, ACQ_CAPS %#x: entries have %d bytes", aq, acq, admin)
	case n == 0 || n&(n-1) != 0 || acq&0xffff < n:
		return 0, fmt.Errorf("AQ_CAPS %#x, ACQ_CAPS %#x: depths must be a power of two, ACQ as deep as AQ", aq, acq)
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
		return fmt.Errorf("AQ_DB = %#x: the tail was %d, the queue has %d entries", v, m.aq.tail, depth)
	}
	m.aq.tail = uint16(v)
	return nil
}

// phase is the phase bit of a running index: one in the first round, then alternating.
func phase(i, depth uint16) uint32 { return uint32(^(i / depth) & 1) }

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
		if p := uint32(c[3] & 1); p != phase(q.head, depth) {
			m.host.Refuse("admin command %d (opcode %d): phase %d, expected %d", q.head, c.opcode(), p, phase(q.head, depth))
		}
		q.head++
		m.count.AdminCommands++
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
		depth := uint16(m.val[regACQCAPS/4])
		r.entry[3] = byte(phase(q.done, depth))
		if f := m.knob.tamperAdmin; f != nil {
			m.knob.tamperAdmin = nil
			f(r.entry[:])
		}
		m.writeEntry(m.pair(regACQBASELO)+admin*uint64(q.done%depth), r.entry[:])
		q.done++
		m.manage()
	}
	return busy
}

// writeEntry writes an entry that is told by its first word: that word last, as the device's one write shows itself.
func (m *Model) writeEntry(at uint64, b []byte) {
	if m.host.DMAWrite(at+16, b[16:]) == nil {
		m.host.DMAWrite(at, b[:16])
	}
}

// name is the command's, with the feature that it is about.
func (c *command) name() string {
	name, known := opNames[c.opcode()]
	if !known {
		return fmt.Sprintf("opcode %d", c.opcode())
	}
	if op := c.opcode(); op == opGetFeature || op == opSetFeature {
		if f, known := featNames[c[17]]; known {
			return name + " " + f
		}
		return fmt.Sprintf("%s %d", name, c[17])
	}
	return name
}

// given calls yield for each dword of the command that is not its own head, by its offset: what they mean is the
// opcode's, and ends before the last.
func (c *command) given(yield func(string, uint64) bool) {
	for at := 4; at < admin && yield(fmt.Sprintf("%02xh", at), uint64(le.Uint32(c[at:]))); at += 4 {
	}
}

// execute runs a command and returns its completion.
func (m *Model) execute(c *command) (r [admin]byte) {
	le.PutUint16(r[0:], c.id())
	var err error
	status := byte(statusOK)
	if c.id()&0xf000 != 0 || c[3]&^7 != 0 {
		m.host.Tell("admin command %#04x, flags %#02x: reserved bits set", c.id(), c[3])
	}
	switch c.opcode() {
	case opCreateCQ:
		status, err = m.createCQ(c, r[8:])
	case opDestroyCQ:
		status, err = m.destroyCQ(c)
	case opCreateSQ:
		status, err = m.createSQ(c, r[8:])
	case opDestroySQ:
		status, err = m.destroySQ(c)
	case opGetFeature:
		status, err = m.getFeature(c, r[8:])
	case opSetFeature:
		status, err = m.setFeature(c, r[8:])
	case opGetStats:
		status, err = m.getStats(c, r[8:])
	default:
		status, err = statusBadOpcode, fmt.Errorf("no such opcode")
	}
	if err != nil {
		m.host.Refuse("admin command %d, %s (opcode %d): %v", c.id(), c.name(), c.opcode(), err)
		if status == statusOK {
			status = statusIllegal
		}
	}
	r[2] = status
	m.host.Command(c.name(), status, c.given)
	return r
}
