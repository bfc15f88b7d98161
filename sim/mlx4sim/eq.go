package mlx4sim

import (
	"fmt"
)

// Event types.
const (
	eventCompletion = 0x00
	eventComm       = 0x02 // communication established
	eventSQDrained  = 0x03
	eventCQError    = 0x04
	eventWQCatas    = 0x05
	eventPortChange = 0x09
	eventCommand    = 0x0a
	eventWQRequest  = 0x10 // invalid request
	eventWQAccess   = 0x11
	eventLastWQE    = 0x13
	eventPortMgmt   = 0x1d

	portDown   = 1
	portActive = 4

	eventData = 24

	eqArmed  = 0x9
	eqFired  = 0xa
	eqAlways = 0xb
)

// PRM "EQ Context".
var eqLayout = lay(64, `00.31:28 status 00.18 ec 00.17 oi 00.11:8 st 08.11:5 page_offset 0c.28:24 log_eq_size 10.31:16 eq_period 10.15:0 eq_max_count
	14.9:0 intr 18.29:24 log2_page_size 18.7:0 mtt_base_addr_h 1c.31:3 mtt_base_addr_l 28.23:0 consumer_counter 2c.23:0 producer_counter`).
	Without("eq_period", "eq_max_count")

type eq struct {
	buffer
	raw    []byte
	id     uint32
	log    int
	vector int
	oi     bool
	always bool
	armed  bool
	types  uint64
	pi, ci uint32 // 24 bits
}

func (e *eq) String() string { return fmt.Sprintf("EQ %#x", e.id) }

func eqCommands() map[uint16]*command {
	return map[uint16]*command{
		0x012: {name: "MAP_EQ", from: stageReady, imm: true, mods: 1<<31 | 0x3ff, run: (*Model).mapEQ},
		0x013: {name: "SW2HW_EQ", from: stageReady, in: eqLayout, mods: 0x3ff, run: (*Model).newEQ},
		0x014: {name: "HW2SW_EQ", from: stageReady, out: eqLayout, mods: 0x3ff, opMods: 1<<1 | quietOut, run: (*Model).dropEQ},
		0x015: {name: "QUERY_EQ", from: stageReady, out: eqLayout, mods: 0x3ff, run: (*Model).queryEQ},
	}
}

func (m *Model) newEQ(c *call) *refusal {
	in, id := c.in, c.mod
	if r := m.claim(id, m.hca.eqc, m.hca.cmpt[3]); r != nil {
		return r
	}
	switch {
	case id < reservedEQs || id < 4*reservedUARs:
		return refuse(stBadIndex,
			"EQ %#x: %d are the firmware's, and the doorbells of the first %d are in UAR pages that are", id,
			reservedEQs, 4*reservedUARs)
	case id >= 4<<m.hca.logUARs:
		return refuse(stBadIndex, "EQ %#x: its doorbell is in UAR %d, there are %d", id, id/4, 1<<m.hca.logUARs)
	case m.obj.eqs[id] != nil:
		return refuse(stBadResState, "EQ %#x is the device's already", id)
	case in.I("intr") >= vectors:
		return refuse(stBadParam, "intr is %d, there are %d vectors", in.U("intr"), vectors)
	case in.U("consumer_counter")|in.U("producer_counter") != 0 || in.Is("status"):
		return refuse(stBadParam, "status and counters have to be 0")
	case in.Is("ec"):
		return refuse(stBadParam, "ec: coalescing into the first entry is not offered")
	case in.I("log_eq_size") > logEQE:
		return refuse(stLimit, "log_eq_size is %d, the capability is %d", in.U("log_eq_size"), logEQE)
	}
	e := &eq{id: id, raw: append([]byte(nil), in.B...), log: in.I("log_eq_size"), vector: in.I("intr"), oi: in.Is("oi")}
	switch in.U("st") {
	case eqArmed:
		e.armed = true
	case eqAlways:
		e.armed, e.always = true, true
	case eqFired:
	default:
		return refuse(stBadParam, "st is %xh, expected 9h (armed), ah (fired) or bh (always armed)", in.U("st"))
	}
	var r *refusal
	size := uint64(m.hca.eqeSize) << e.log
	if e.buffer, r = m.newBuffer(in.U("mtt_base_addr_h")<<32|in.U("mtt_base_addr_l")<<3, uint(in.U("log2_page_size")),
		in.U("page_offset")<<5, size); r != nil {
		return r
	}
	if r = m.fill(&e.buffer, size, 0xee); r != nil {
		return r
	}
	if r = m.store(m.hca.eqc, id, e.raw); r != nil {
		return r
	}
	m.obj.eqs[id] = e
	m.uar.hold(m, id/4, 1)
	return nil
}

func (m *Model) dropEQ(c *call) *refusal {
	e := m.obj.eqs[c.mod]
	switch {
	case e == nil:
		return refuse(stBadIndex, "EQ %#x is not the device's", c.mod)
	case m.obj.reports(e.id):
		return refuse(stResBusy, "EQ %#x: CQs report to it", c.mod)
	}
	m.queryEQ(c)
	m.intact(m.hca.eqc, e.id, e.raw)
	m.stale(&e.buffer, e.String())
	delete(m.obj.eqs, e.id)
	m.uar.hold(m, e.id/4, -1)
	return nil
}

func (m *Model) queryEQ(c *call) *refusal {
	e := m.obj.eqs[c.mod]
	if e == nil {
		return refuse(stBadIndex, "EQ %#x is not the device's", c.mod)
	}
	if c.out.B == nil {
		return nil
	}
	copy(c.out.B, e.raw)
	c.out.Set("st", eqFired)
	if e.armed {
		c.out.Set("st", eqArmed)
	}
	c.out.Set("consumer_counter", uint64(e.ci))
	c.out.Set("producer_counter", uint64(e.pi))
	return nil
}

// mapEQ maps event types, one bit each in in_param, to an EQ, or with bit 31 of in_modifier to none.
func (m *Model) mapEQ(c *call) *refusal {
	id := c.mod & 0x3ff
	e := m.obj.eqs[id]
	if e == nil {
		return refuse(stBadIndex, "EQ %#x is not the device's", id)
	}
	for _, o := range m.obj.eqs {
		o.types &^= c.inParam
	}
	if c.mod>>31 == 0 {
		e.types |= c.inParam
		if c.inParam>>eventPortMgmt&1 != 0 && m.opt.NoPortEvents {
			m.host.Warnf("MAP_EQ: event %02xh is mapped, and no capability announces it", eventPortMgmt)
		}
	}
	return nil
}

// mapped reports whether there is an EQ for a type of event.
func (m *Model) mapped(kind uint8) bool {
	for _, e := range m.obj.eqs {
		if e.types&(1<<kind) != 0 {
			return true
		}
	}
	return false
}

// event posts an event to the EQ of its type, if there is one.
func (m *Model) event(kind, sub uint8, data []byte) {
	for _, e := range m.obj.eqs {
		if e.types&(1<<kind) != 0 {
			m.post(e, kind, sub, data)
		}
	}
}

// post writes an EQE and raises the interrupt if the EQ is armed. The ownership bit flips with each lap. The upper half
// of a 64-byte EQE has the layout of a 32-byte one.
func (m *Model) post(e *eq, kind, sub uint8, data []byte) {
	n := uint32(1) << e.log
	if (e.pi-e.ci)&0xffffff >= n && !e.oi {
		m.host.Errorf("%v overrun: %d entries, consumer counter %#x, producer counter %#x", e, n, e.ci, e.pi)
		return
	}
	b := make([]byte, m.hca.eqeSize)
	w := b[len(b)-32:]
	w[1], w[3] = kind, sub
	copy(w[4:4+eventData], data)
	w[31] = uint8(e.pi>>e.log&1) << 7
	if m.host.DMAWrite(e.at(uint64(e.pi&(n-1))*uint64(len(b))), b) != nil {
		return
	}
	e.pi = (e.pi + 1) & 0xffffff
	m.fire(e)
}

func (m *Model) fire(e *eq) {
	if !e.armed || e.pi == e.ci {
		return
	}
	e.armed = e.always
	if m.opt.LoseInterrupt != nil && m.opt.LoseInterrupt(e.vector) {
		return
	}
	m.host.Interrupt(e.vector)
}

// eqDoorbell sets the consumer counter, and arms.
func (m *Model) eqDoorbell(id, v uint32) {
	e := m.obj.eqs[id]
	if e == nil {
		m.host.Errorf("EQ doorbell %08x in UAR %#x: EQ %#x is not the device's", v, id/4, id)
		return
	}
	if v&^(1<<31|0xffffff) != 0 {
		m.host.Warnf("%v: doorbell %08x has reserved bits set", e, v)
	}
	ci := v & 0xffffff
	if (ci-e.ci)&0xffffff > (e.pi-e.ci)&0xffffff {
		m.host.Errorf("%v: consumer counter %#x, last was %#x, producer counter is %#x", e, ci, e.ci, e.pi)
		return
	}
	e.ci = ci
	if v>>31 != 0 {
		e.armed = true
		m.fire(e)
	}
}
