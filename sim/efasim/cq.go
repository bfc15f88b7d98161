package efasim

import (
	"fmt"
	"slices"

	"github.com/rebound-nic/rebound/sim/amazon"
	"github.com/rebound-nic/rebound/sim/parts"
)

// cq is a completion queue: one or more rings (sub-CQs). Each queue of a QP uses one.
type cq struct {
	live    bool
	ring    ring
	uar     uint16
	depth   uint32 // of a sub-CQ
	size    int    // bytes of an entry
	source  bool   // completions of unknown senders have the sender's GID
	tails   []uint32
	next    uint16 // sub-CQ of the next queue
	users   int    // queues that use it
	written uint32 // completions of all sub-CQs

	irq      bool
	eqn      uint16
	hasBell  bool
	rung     bool   // the driver has rung it, and so must keep up
	bell     uint32 // the doorbell's last value
	consumed uint32
	armed    bool
	events   uint32 // sequence number of its events
}

func (m *Model) createCQ(in parts.Msg, r []byte) *refusal {
	p := &m.opt.Profile
	words, depth, irq := in.I("cq_entry_size_words"), in.U32("sub_cq_depth"), in.Is("interrupt_mode_enabled")
	q := cq{live: true, depth: depth, size: 4 * words, source: in.Is("set_src_addr"), irq: irq,
		eqn: uint16(in.U("eqn")),
		uar: uint16(in.U("uar")), hasBell: irq || p.Polled, tails: make([]uint32, p.SubCQs),
		ring: ring{base: in.U("cq_ba"), key: in.U32("l_key"), virt: in.Is("virt")}}
	u, no := m.userPage(in)
	switch {
	case no != nil:
		return no
	case words != 4 && words != 8:
		return illegal("cq_entry_size_words %d: 4 or 8 are expected", words)
	case q.source && words != 8:
		return illegal("set_src_addr with entries of %d words: it takes 8", words)
	case depth == 0 || depth&(depth-1) != 0 || depth > maxCQDepth:
		return illegal("sub_cq_depth %d: a power of two up to %d is expected", depth, maxCQDepth)
	case in.U("num_sub_cqs") != uint64(p.SubCQs):
		return illegal("num_sub_cqs %d: sub_cqs_per_cq is %d", in.U("num_sub_cqs"), p.SubCQs)
	case irq && (int(q.eqn) >= len(m.eqs) || !m.eqs[q.eqn].live):
		return illegal("there is no EQ %d", q.eqn)
	case q.ring.base == 0 || q.ring.base%64 != 0:
		return illegal("cq_ba %#x is not aligned to 64 bytes", q.ring.base)
	}
	if !q.ring.virt {
		if err := m.CheckWidth("cq_ba", q.ring.base); err != nil {
			return illegal("%v", err)
		}
	} else if _, err := m.at(&q.ring, 0, q.size*int(depth)*int(p.SubCQs), mayLocalWrite); err != nil {
		return illegal("ring: %v", err)
	}
	for i := range m.cqs {
		if m.cqs[i].live {
			continue
		}
		m.cqs[i] = q
		m.liveCQs = append(m.liveCQs, i)
		u.users++
		if irq {
			m.eqs[q.eqn].users++
		}
		le.PutUint16(r[0:], uint16(i))
		le.PutUint16(r[2:], uint16(depth))
		if q.hasBell {
			m.setBell(m.cqBell(i), 0)
			le.PutUint32(r[4:], uint32(m.cqBell(i)))
			le.PutUint32(r[8:], 1)
		}
		return nil
	}
	return full
}

// cqBell returns the offset of a CQ's doorbell in its BAR.
func (m *Model) cqBell(i int) uint64 { return m.page(int(m.cqs[i].uar)) + cqDoorbells + 4*uint64(i) }

func (m *Model) destroyCQ(in parts.Msg, _ []byte) *refusal {
	i := in.I("cq_idx")
	switch {
	case i >= len(m.cqs) || !m.cqs[i].live:
		return illegal("there is no CQ %d", i)
	case m.cqs[i].users > 0:
		return busy("CQ %d before the %d queues on it", i, m.cqs[i].users)
	}
	q := &m.cqs[i]
	m.uars[q.uar].users--
	if q.irq {
		m.eqs[q.eqn].users--
	}
	m.setBell(m.cqBell(i), 0)
	m.liveCQs = slices.DeleteFunc(m.liveCQs, func(k int) bool { return k == i })
	*q = cq{}
	return nil
}

// subCQ assigns sub-CQs to queues in turn.
func (q *cq) subCQ() uint16 {
	i := q.next
	q.next = (q.next + 1) % uint16(len(q.tails))
	return i
}

// complete writes the completion b of a queue, with its phase bit.
func (m *Model) complete(at uint32, sub uint16, send bool, b []byte) {
	q := &m.cqs[at]
	tail := &q.tails[sub]
	if q.rung && q.written-q.consumed >= q.depth*uint32(len(q.tails)) {
		m.Host.Errorf("CQ %d is full: %d completions, of which the driver has consumed %d", at, q.written, q.consumed)
		return
	}
	for range 1 + m.Knobs.TakeDuplicate(send) {
		c := append([]byte(nil), b[:q.size]...)
		c[3] = c[3]&^1 | amazon.Phase(*tail, q.depth)
		if f := m.Knobs.TakeTamper(send); f != nil {
			f(c)
		}
		off := uint64(sub)*uint64(q.depth)*uint64(q.size) + uint64(*tail%q.depth)*uint64(q.size)
		spans, err := m.at(&q.ring, off, q.size, mayLocalWrite)
		if err != nil {
			m.Host.Errorf("CQ %d: %v", at, err)
			return
		}
		// the phase last, because a device writes the entry at once
		for _, part := range [][2]int{{16, q.size}, {0, 16}} {
			if part[0] < part[1] {
				m.Host.DMAWrite(spans[0].at+uint64(part[0]), c[part[0]:part[1]])
			}
		}
		*tail++
		q.written++
	}
	if q.armed {
		m.event(at)
	}
}

// cqDoorbell handles a CQ doorbell: the number of completions that the driver has consumed, and whether it requests an
// event for later ones. An arm with the sequence number of an event that was already sent is late and ignored. If
// uncounted completions exist when an arm arrives, the event is sent at once: the doorbell is a posted write, and they
// may have been written while it was on its way, after the driver's last look.
func (m *Model) cqDoorbell(i int, v uint32) error {
	q := &m.cqs[i]
	q.bell = v
	n := (v - q.consumed) & cqdbConsumer
	if n > q.written-q.consumed {
		return fmt.Errorf("CQ %d: consumer count %d: it was %d, and %d completions were written", i, v&cqdbConsumer,
			q.consumed&cqdbConsumer, q.written)
	}
	q.consumed += n
	q.rung = true
	if v&^uint32(cqdbConsumer|cqdbSN|cqdbArm) != 0 {
		m.Host.Warnf("CQ %d: doorbell %#x has reserved bits set", i, v)
	}
	if v&cqdbArm == 0 {
		return nil
	}
	if !q.irq {
		return fmt.Errorf("CQ %d is armed, but was made without interrupts", i)
	}
	if v&cqdbSN>>cqdbSNShift != q.events&3 {
		return nil
	}
	if q.armed = true; q.written != q.consumed {
		m.event(uint32(i))
	}
	return nil
}

// event sends an event for a CQ to its EQ.
func (m *Model) event(at uint32) {
	q := &m.cqs[at]
	q.armed = false
	q.events++
	m.eqs[q.eqn].post(m, uint16(at))
}

// eq is an event queue.
type eq struct {
	live   bool
	base   uint64
	depth  uint32
	vector int
	tail   uint32
	fresh  uint32 // events since the last interrupt
	since  uint32 // events since the driver last armed
	armed  bool
	users  int // CQs that use it
}

func (m *Model) createEQ(in parts.Msg, r []byte) *refusal {
	depth, v, base := in.U32("depth"), in.I("msix_vec"), in.U("ba")
	switch {
	case depth == 0 || depth&(depth-1) != 0 || depth > maxEQDepth:
		return illegal("depth %d: a power of two up to %d is expected", depth, maxEQDepth)
	case v >= m.vectors():
		return illegal("MSI-X vector %d: there are %d", v, m.vectors())
	case in.U("entry_size_words") != 4:
		return illegal("entry_size_words %d: 4 are expected", in.U("entry_size_words"))
	case !in.Is("completion_events"):
		return illegal("event_bitmask 0: an EQ without events")
	case base == 0 || base%64 != 0 || m.CheckWidth("ba", base) != nil:
		return illegal("ba %#x is not aligned to 64 bytes", base)
	}
	for i := range m.eqs {
		if !m.eqs[i].live {
			m.eqs[i] = eq{live: true, base: base, depth: depth, vector: v}
			le.PutUint16(r, uint16(i))
			return nil
		}
	}
	return full
}

func (m *Model) destroyEQ(in parts.Msg, _ []byte) *refusal {
	i := in.I("eqn")
	switch {
	case i >= len(m.eqs) || !m.eqs[i].live:
		return illegal("there is no EQ %d", i)
	case m.eqs[i].users > 0:
		return busy("EQ %d before the %d CQs on it", i, m.eqs[i].users)
	}
	m.eqs[i] = eq{}
	return nil
}

// post writes an event, efa_admin_eqe with efa_admin_comp_event.
func (e *eq) post(m *Model, cqn uint16) {
	if e.since == e.depth {
		m.Host.Errorf("EQ of vector %d: %d events since it was armed, which are all it holds", e.vector, e.since)
		return
	}
	var b [16]byte
	b[0] = amazon.Phase(e.tail, e.depth)
	le.PutUint16(b[8:], cqn)
	m.Host.DMAWrite(e.base+16*uint64(e.tail%e.depth), b[:])
	e.tail++
	e.fresh++
	e.since++
	e.interrupt(m)
}

// interrupt raises one interrupt per arm.
func (e *eq) interrupt(m *Model) {
	if e.armed && e.fresh > 0 {
		e.armed, e.fresh = false, 0
		m.Host.Interrupt(e.vector)
	}
}

// eqDoorbell handles EQ_DB.
func (m *Model) eqDoorbell(v uint32) error {
	i := int(v & 0xffff)
	if i >= len(m.eqs) || !m.eqs[i].live {
		return fmt.Errorf("EQ_DB = %#x: there is no EQ %d", v, i)
	}
	if v&eqdbArm != 0 {
		e := &m.eqs[i]
		e.armed, e.since = true, e.fresh
		e.interrupt(m)
	}
	return nil
}
