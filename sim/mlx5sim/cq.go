package mlx5sim

import (
	"fmt"
	"time"
)

var cqContext = lay(64, `00.31:28 status 00.25 dbr_umem_valid 00.23:21 cqe_sz 00.20 cc 00.18 scqe_break_moderation_en 00.17 oi 00.16:15 cq_period_mode 00.14 cqe_comp_en
	00.13:12 mini_cqe_res_format 00.11:8 st 04.31:0 dbr_umem_id 08.11:6 page_offset 0c.28:24 log_cq_size 0c.23:0 uar_page 10.27:16 cq_period 10.15:0 cq_max_count
	14.31:0 c_eqn 18.28:24 log_page_size 20.23:0 last_notified_index 24.23:0 last_solicit_index 28.23:0 consumer_counter
	2c.23:0 producer_counter 38*2 dbr_addr`)

const (
	cqeSize = 64

	cqeSE = 1 << 1 // the solicited-event bit, in the last byte

	cqeRequest          = 0x0 // opcodes, in the last byte's high half
	cqeResponseWriteImm = 0x1
	cqeResponseSend     = 0x2
	cqeResponseSendImm  = 0x3
	cqeRequestErr       = 0xd
	cqeResponseErr      = 0xe

	// Syndromes of error CQEs, PRM "Completion Queue Entry With Error".
	syndLocalLength = 0x01
	syndLocalOp     = 0x02
	syndLocalProt   = 0x04
	syndFlushed     = 0x05
	syndBind        = 0x06
	syndBadResponse = 0x10

	syndRemoteInvalid = 0x12
	syndRemoteAccess  = 0x13
	syndRemoteOp      = 0x14
	syndRetries       = 0x15
	syndRNRRetries    = 0x16
)

type cq struct {
	object
	buffer
	uar, eqn uint32
	dbr      uint64
	oi       bool
	period   uint32 // µs
	maxCount uint32
	pi, ci   uint32 // 24 bits
	read     bool   // ci is from the doorbell record, and earlier arms may still arrive
	broken   bool   // overrun

	compress bool   // cqe_comp_en
	mini     uint64 // mini_cqe_res_format
	session  session

	armed     bool
	solicited bool // armed for solicited completions only
	armSN     uint32
	waiting   bool // moderation holds an event back
	pending   uint32
	since     time.Duration
}

func (m *Model) createCQ(c *call) *refusal {
	in := c.in
	q := &cq{uar: in.U32("uar_page"), eqn: in.U32("c_eqn"), oi: in.Is("oi"),
		period: in.U32("cq_period"), maxCount: in.U32("cq_max_count"), compress: in.Is("cqe_comp_en"),
		mini: in.U("mini_cqe_res_format")}
	u, r := m.doorbellPage(q.uar)
	if r != nil {
		return r
	}
	e, r := m.obj.eqs.get(q.eqn)
	if r != nil {
		return r
	}
	switch {
	case in.U("cqe_sz") != 0:
		return refuse(stBadParam, "cqe_sz is %d, the model has 0 (64 bytes)", in.U("cqe_sz"))
	case q.compress && q.mini > miniChecksum:
		return refuse(stBadParam,
			"mini_cqe_res_format is %d, expected 0 (hash) or 1 (checksum): capability mini_cqe_resp_stride_index is 0",
			q.mini)
	case in.U("status")|in.U("st")|in.U("consumer_counter")|in.U("producer_counter") != 0:
		return refuse(stBadParam, "status, st and the counters have to be zero")
	case in.I("log_cq_size") > 22:
		return refuse(stBadParam, "log_cq_size is %d, capability log_max_cq_sz is 22", in.I("log_cq_size"))
	case q.period != 0 && in.U("cq_period_mode") > 1:
		return refuse(stBadParam, "cq_period_mode is %d, expected 0 (from EQE) or 1 (from CQE)", in.U("cq_period_mode"))
	}
	if q.dbr, r = m.record(in); r != nil {
		return r
	}
	ring, r := m.ring(in, "cq", in.I("log_page_size"), in.I("page_offset"), cqeSize<<in.I("log_cq_size"))
	if r != nil {
		return r
	}
	q.buffer = ring.of(6, in.I("log_cq_size"))
	if r := m.obj.cqs.add(m, q); r != nil {
		return r
	}
	u.held++
	e.held++
	q.hold(1)
	c.out.Set("cqn", uint64(q.id))
	return nil
}

func (m *Model) destroyCQ(c *call) *refusal {
	q, r := m.obj.cqs.remove(m, c.in.U32("cqn"))
	if r == nil {
		m.obj.uars.m[q.uar].held--
		m.obj.eqs.m[q.eqn].held--
		q.hold(-1)
	}
	return r
}

func (m *Model) queryCQ(c *call) *refusal {
	q, r := m.obj.cqs.get(c.in.U32("cqn"))
	if r != nil {
		return r
	}
	o := c.out
	if q.broken {
		o.Set("status", 9) // overflow
	}
	if q.compress {
		o.Set("cqe_comp_en", 1)
		o.Set("mini_cqe_res_format", q.mini)
	}
	o.Set("log_cq_size", uint64(q.logSize))
	o.Set("uar_page", uint64(q.uar))
	o.Set("c_eqn", uint64(q.eqn))
	o.Set("cq_period", uint64(q.period))
	o.Set("cq_max_count", uint64(q.maxCount))
	o.Set("consumer_counter", uint64(q.ci))
	o.Set("producer_counter", uint64(q.pi))
	o.Set("dbr_addr", q.dbr)
	return nil
}

// modifyCQ changes the moderation: field_select bit 0 the period, bit 1 the count, bit 4 the period mode.
func (m *Model) modifyCQ(c *call) *refusal {
	q, r := m.obj.cqs.get(c.in.U32("cqn"))
	if r != nil {
		return r
	}
	sel := c.in.U("field_select")
	if sel&^0x13 != 0 || c.in.U("op_mod") != 0 {
		return refuse(stBadParam,
			"op_mod %d, field_select %#x: the model changes period (bit 0), count (bit 1) and period mode (bit 4)",
			c.in.U("op_mod"), sel)
	}
	if sel&1 != 0 {
		q.period = c.in.U32("cq_period")
	}
	if sel&2 != 0 {
		q.maxCount = c.in.U32("cq_max_count")
	}
	return nil
}

// cqDoorbell arms a CQ: command and consumer counter, then the CQ's number.
func (m *Model) cqDoorbell(u uint32, v uint64) {
	q, ok := m.obj.cqs.m[uint32(v)&0xffffff]
	switch {
	case !ok && m.obj.cqs.used(uint32(v)): // mlx5_core arms after napi_complete_done, for which alone napi_disable waits
		m.host.Warnf("CQ doorbell %016x in UAR %#x: CQ %#x was destroyed", v, u, uint32(v))
		return
	case !ok || uint32(v)>>24 != 0:
		m.host.Errorf("CQ doorbell %016x in UAR %#x: CQ %#x does not exist", v, u, uint32(v))
		return
	}
	if q.uar != u {
		m.host.Errorf("CQ doorbell %016x in UAR %#x: CQ %#x belongs to UAR %#x", v, u, q.id, q.uar)
	}
	word := uint32(v >> 32)
	ci := word & 0xffffff
	behind := (q.ci - ci) & 0xffffff
	late := q.read && behind > 0 && behind <= q.entries()
	if !late && (ci-q.ci)&0xffffff > (q.pi-q.ci)&0xffffff {
		m.host.Errorf("CQ %#x: armed at consumer counter %#x, last was %#x, producer counter is %#x", q.id, ci, q.ci,
			q.pi)
		return
	}
	if word>>30 != 0 || word>>25&7 != 0 {
		m.host.Warnf("CQ %#x: doorbell %08x has reserved bits set", q.id, word)
	}
	if !late {
		q.ci, q.read = ci, false
	}
	q.armed, q.solicited = true, word>>24&1 != 0
	if q.pi != ci {
		m.moderate(q, 1)
	}
}

// complete writes a CQE and raises an event if the CQ is armed.
func (m *Model) complete(q *cq, b *[cqeSize]byte, solicited bool) {
	m.flush(q)
	if m.room(q, 1) {
		m.put(q, b, 1, solicited)
	}
}

// room reports whether n more entries are free, and marks the CQ as overrun if they are not.
func (m *Model) room(q *cq, n uint32) bool {
	if q.broken {
		return false
	}
	if q.oi || (q.pi-q.ci)&0xffffff+n <= q.entries() {
		return true
	}
	var rec [4]byte
	if m.host.DMARead(q.dbr, rec[:]) != nil {
		return false
	}
	ci := be.Uint32(rec[:])
	if ci>>24 != 0 || (q.pi-ci)&0xffffff > q.entries() {
		m.host.Errorf("CQ %#x: consumer counter in the doorbell record is %#x, producer counter is %#x, %d entries",
			q.id, ci, q.pi, q.entries())
		ci = q.ci
	}
	if ci != q.ci {
		q.ci, q.read = ci, true
	}
	if (q.pi-q.ci)&0xffffff+n > q.entries() {
		m.overrun(q)
		return false
	}
	return true
}

// put writes a CQE that occupies n entries.
func (m *Model) put(q *cq, b *[cqeSize]byte, n uint32, solicited bool) {
	b[63] |= uint8(q.pi>>q.logSize) & 1
	if m.host.DMAWrite(q.at(q.pi), b[:]) != nil {
		return
	}
	q.pi = (q.pi + n) & 0xffffff
	if q.armed && (!q.solicited || solicited) {
		m.moderate(q, n)
	}
}

// moderate counts completions towards an event.
func (m *Model) moderate(q *cq, n uint32) {
	if !q.waiting {
		q.waiting, q.since, q.pending = true, m.host.Now(), 0
	}
	if q.pending += n; q.period == 0 || q.maxCount == 0 || q.pending >= q.maxCount {
		m.notify(q)
	}
}

func (m *Model) notify(q *cq) {
	q.waiting = false
	if !q.armed {
		return
	}
	q.armed = false
	var d [eventData]byte
	be.PutUint32(d[24:], q.id)
	if e := m.obj.eqs.m[q.eqn]; e != nil {
		m.post(e, eventCompletion, 0, d[:])
	}
}

func (m *Model) overrun(q *cq) {
	q.broken = true
	m.host.Errorf("CQ %#x overrun: %d entries, consumer counter %#x, producer counter %#x", q.id, q.entries(), q.ci,
		q.pi)
	var d [eventData]byte
	be.PutUint32(d[:], q.id)
	d[11] = 1 // CQ overrun
	m.event(eventCQError, 0, d[:])
}

// causes are observed values in error CQEs of real cards next to the syndrome (hw_error_syndrome, hw_syndrome_type,
// vendor_error_syndrome).
var causes = map[uint8][3]uint8{
	syndLocalLength: {0x60, 0x10, 0x68}, // ConnectX-4 Lx, a WQE with too few inline bytes
	syndLocalProt:   {0xa9, 0x00, 0x56}, // ConnectX-6, a receive queue
	syndFlushed:     {0x00, 0x00, 0xf9},
	syndBind:        {0x08, 0x00, 0x78}, // UMR
	syndRetries:     {0x00, 0x00, 0x81},
}

// errorCQE completes a WQE in error. As on real cards, the byte before the queue's number has the opcode of the failed
// send, the signature is not zero, and the solicited-event bit is set next to the owner bit.
func (m *Model) errorCQE(q *workQueue, kind uint8, idx uint32, opcode, synd uint8) {
	var b [cqeSize]byte
	cause, known := causes[synd]
	if !known {
		cause[2] = 0x50 | synd&0xf
	}
	copy(b[0x34:], cause[:])
	b[0x37] = synd
	be.PutUint32(b[0x38:], uint32(opcode)<<24|q.id)
	be.PutUint16(b[0x3c:], uint16(idx))
	b[63] = kind<<4 | cqeSE
	b[0x3e] = ^xor(b[:])
	m.complete(m.obj.cqs.m[q.cqn], &b, true)
}

func (q *cq) String() string { return fmt.Sprintf("CQ %#x", q.id) }
