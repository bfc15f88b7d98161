package mlx5sim

import "time"

// Event types, PRM "Event Queue Entry".
const (
	eventCompletion  = 0x00
	eventCQError     = 0x04
	eventPortChange  = 0x09
	eventCommand     = 0x0a
	eventPageRequest = 0x0b

	portDown   = 1
	portActive = 4

	eqeSize   = 64
	eventData = 28
)

var eqContext = lay(64, `00.31:28 eq_status 00.18 eq_ec 00.17 eq_oi 00.11:8 eq_st 08.11:6 eq_page_offset 0c.28:24 log_eq_size 0c.23:0 eq_uar_page 14.11:0 intr
	18.28:24 eq_log_page_size 28.23:0 eq_consumer_counter 2c.23:0 eq_producer_counter`)

type eq struct {
	object
	buffer
	uar    uint32
	vector int
	mask   uint64 // event types below 64
	pi, ci uint32 // 24 bits
	armed  bool
	late   bool
}

func (m *Model) createEQ(c *call) *refusal {
	in := c.in
	e := &eq{uar: in.U32("eq_uar_page"), vector: in.I("intr")}
	mask := in.Bytes("event_bitmask")
	// The first quadword holds types 63 to 0.
	e.mask = be.Uint64(mask)
	for _, b := range mask[8:] {
		if b != 0 {
			return refuse(stBadParam, "event_bitmask has types above 63: %x", mask)
		}
	}
	u, r := m.doorbellPage(e.uar)
	if r != nil {
		return r
	}
	switch {
	case e.vector >= m.prof.vectors:
		return refuse(stBadParam, "intr is %d, there are %d vectors", e.vector, m.prof.vectors)
	case in.U("eq_status") != 0 || in.U("eq_st") != 0 || in.Is("eq_ec") ||
		in.U("eq_consumer_counter")|in.U("eq_producer_counter") != 0:
		return refuse(stBadParam, "status, st, ec and the counters have to be zero")
	}
	if e.buffer, r = m.newBuffer(in.B[min(len(in.B), 0x110):], in.I("eq_log_page_size"), in.I("eq_page_offset"), 6,
		in.I("log_eq_size")); r != nil {
		return r
	}
	for _, o := range m.obj.eqs.m {
		if both := o.mask & e.mask; both != 0 {
			return refuse(stBadResState, "EQ %#x has events %x already", o.id, both)
		}
	}
	if r := m.obj.eqs.add(m, e); r != nil {
		return r
	}
	u.held++
	c.out.Set("eq_number", uint64(e.id))
	return nil
}

func (m *Model) destroyEQ(c *call) *refusal {
	e, r := m.obj.eqs.remove(m, c.in.U32("eq_number"))
	if r == nil {
		m.obj.uars.m[e.uar].held--
	}
	return r
}

// mapped reports whether an EQ is mapped to a type of event.
func (m *Model) mapped(kind uint8) bool {
	for _, e := range m.obj.eqs.m {
		if e.mask&(1<<kind) != 0 {
			return true
		}
	}
	return false
}

// event posts an event to the EQ mapped to its type. It reports whether there is one.
func (m *Model) event(kind, sub uint8, data []byte) bool {
	for _, e := range m.obj.eqs.m {
		if e.mask&(1<<kind) != 0 {
			m.post(e, kind, sub, data)
			return true
		}
	}
	return false
}

// post writes an EQE and raises the interrupt if the EQ is armed.
func (m *Model) post(e *eq, kind, sub uint8, data []byte) {
	if (e.pi-e.ci)&0xffffff >= e.entries() {
		m.host.Errorf("EQ %#x overrun: %d entries, none consumed (consumer counter %#x, producer %#x)", e.id,
			e.entries(), e.ci, e.pi)
		return
	}
	var b [eqeSize]byte
	b[1], b[3] = kind, sub
	copy(b[32:], data)
	b[63] = uint8(e.pi>>e.logSize) & 1
	if m.host.DMAWrite(e.at(e.pi), b[:]) != nil {
		return
	}
	e.pi = (e.pi + 1) & 0xffffff
	m.fire(e)
}

func (m *Model) fire(e *eq) {
	if e.armed && e.pi != e.ci {
		e.armed = false
		if m.opt.LoseInterrupt != nil && m.opt.LoseInterrupt(e.vector) {
			return
		}
		m.host.Interrupt(e.vector)
	}
}

// eqDoorbell sets the consumer counter, and arms if arm is set.
func (m *Model) eqDoorbell(u uint32, v uint32, arm bool) {
	e, ok := m.obj.eqs.m[v>>24]
	if !ok {
		m.host.Errorf("EQ doorbell %08x in UAR %#x: EQ %#x does not exist", v, u, v>>24)
		return
	}
	ci := v & 0xffffff
	if e.uar != u {
		m.host.Errorf("EQ doorbell %08x in UAR %#x: EQ %#x belongs to UAR %#x", v, u, e.id, e.uar)
	}
	if (ci-e.ci)&0xffffff > (e.pi-e.ci)&0xffffff {
		m.host.Errorf("EQ %#x: consumer counter %#x, last was %#x, producer counter is %#x", e.id, ci, e.ci, e.pi)
		return
	}
	e.ci = ci
	if arm {
		e.armed = true
		m.fire(e)
	}
}

// commandEvent reports the completed command entries.
func (m *Model) commandEvent(done uint32) {
	var d [eventData]byte
	be.PutUint32(d[:], done)
	m.event(eventCommand, 0, d[:])
}

// stepEvents sends events that moderation held back.
func (m *Model) stepEvents() (busy bool) {
	now := m.host.Now()
	for _, c := range m.obj.cqs.m {
		if c.waiting && now-c.since >= time.Duration(c.period)*time.Microsecond {
			m.notify(c)
			busy = true
		} else if c.waiting {
			busy = true // time has to advance
		}
	}
	return busy
}
