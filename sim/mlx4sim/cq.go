package mlx4sim

import (
	"fmt"
	"time"
)

// PRM "Completion Queue Context", with the bit that requests timestamps.
var cqLayout = lay(64, `00.31:28 status 00.19 timestamps 00.18 cc 00.17 oi 00.11:8 st 08.11:5 page_offset 0c.28:24 log_cq_size 0c.23:0 usr_page
	10.31:16 cq_period 10.15:0 cq_max_count 14.8:0 c_eqn 18.29:24 log2_page_size 18.7:0 mtt_base_addr_h 1c.31:3 mtt_base_addr_l
	20.23:0 last_notified_indx 24.23:0 solicit_producer_indx 28.23:0 consumer_counter 2c.23:0 producer_counter 38*2 db_record_addr`)

const (
	cqeSend  = 1 << 6 // of the last byte
	cqeError = 0x1e   // opcode

	// Syndromes of error CQEs.
	syndLocalLength   = 0x01
	syndLocalOp       = 0x02
	syndLocalProt     = 0x04
	syndFlushed       = 0x05
	syndBadResponse   = 0x10
	syndLocalAccess   = 0x11
	syndRemoteInvalid = 0x12
	syndRemoteAccess  = 0x13
	syndRemoteOp      = 0x14
	syndRetries       = 0x15
	syndRNRRetries    = 0x16

	// Commands of the CQ doorbell.
	armSolicited = 1
	armNext      = 2
	armMany      = 3
)

type cq struct {
	buffer
	raw      []byte
	id       uint32
	log      int
	uar, eqn uint32
	dbr      uint64
	oi, cc   bool
	stamps   bool
	period   uint32 // µs
	maxCount uint32
	held     int    // QPs that complete to it
	pi, ci   uint32 // 24 bits
	read     bool   // ci is from the doorbell record, and earlier arms may still be in flight
	broken   bool

	armed     bool
	solicited bool
	sn        uint32 // expected in the next arming; valid after the first one
	snKnown   bool
	record    uint32 // the arm record that was served last, if doorbells are polled
	waiting   bool
	pending   uint32
	since     time.Duration
}

func (q *cq) String() string { return fmt.Sprintf("CQ %#x", q.id) }

func cqCommands() map[uint16]*command {
	return map[uint16]*command{
		0x016: {name: "SW2HW_CQ", from: stageReady, in: cqLayout, mods: 0xffffff, run: (*Model).newCQ},
		0x017: {name: "HW2SW_CQ", from: stageReady, out: cqLayout, mods: 0xffffff, opMods: 1<<1 | quietOut, run: (*Model).dropCQ},
		0x018: {name: "QUERY_CQ", from: stageReady, out: cqLayout, mods: 0xffffff, run: (*Model).queryCQ},
		0x02c: {name: "MODIFY_CQ", from: stageReady, in: cqLayout, mods: 0xffffff, opMods: 1 << 1, run: (*Model).modifyCQ},
	}
}

func (m *Model) newCQ(c *call) *refusal {
	in, id := c.in, c.mod
	if r := m.claim(id, m.hca.cqc, m.hca.cmpt[2]); r != nil {
		return r
	}
	switch {
	case id < 1<<logReservedCQs:
		return refuse(stBadIndex, "CQ %#x: the first %#x are the firmware's", id, 1<<logReservedCQs)
	case m.obj.cqs[id] != nil:
		return refuse(stBadResState, "CQ %#x is the device's already", id)
	case m.obj.eqs[in.U32("c_eqn")] == nil:
		return refuse(stBadRes, "c_eqn is %#x: not the device's", in.U("c_eqn"))
	case in.U("consumer_counter")|in.U("producer_counter") != 0 || in.Is("status"):
		return refuse(stBadParam, "status and counters have to be 0")
	case in.I("log_cq_size") > logCQE:
		return refuse(stLimit, "log_cq_size is %d, the capability is %d", in.U("log_cq_size"), logCQE)
	case in.U("db_record_addr")&7 != 0:
		return refuse(stBadParam, "db_record_addr is %#x: aligned to 8 bytes", in.U("db_record_addr"))
	case in.U32("usr_page") >= 1<<m.hca.logUARs || in.U32("usr_page") < reservedUARs:
		return refuse(stBadIndex, "usr_page is %#x: of %#x pages the first %d are the firmware's", in.U("usr_page"),
			1<<m.hca.logUARs, reservedUARs)
	}
	if st := in.U("st"); st != 0 && st != 0xa {
		m.host.Warnf("SW2HW_CQ: st is %xh, expected 0", st)
	}
	q := &cq{id: id, raw: append([]byte(nil), in.B...), log: in.I("log_cq_size"), uar: in.U32("usr_page"),
		eqn: in.U32("c_eqn"), dbr: in.U("db_record_addr"),
		oi: in.Is("oi"), cc: in.Is("cc"), stamps: in.Is("timestamps"), period: in.U32("cq_period"),
		maxCount: in.U32("cq_max_count")}
	var r *refusal
	size := uint64(m.hca.cqeSize) << q.log
	if q.buffer, r = m.newBuffer(in.U("mtt_base_addr_h")<<32|in.U("mtt_base_addr_l")<<3, uint(in.U("log2_page_size")),
		in.U("page_offset")<<5, size); r != nil {
		return r
	}
	if r = m.fill(&q.buffer, size, 0xcc); r != nil {
		return r
	}
	if r = m.store(m.hca.cqc, id, q.raw); r != nil {
		return r
	}
	m.obj.cqs[id] = q
	m.uar.hold(m, q.uar, 1)
	return nil
}

func (m *Model) dropCQ(c *call) *refusal {
	q := m.obj.cqs[c.mod]
	switch {
	case q == nil:
		return refuse(stBadIndex, "CQ %#x is not the device's", c.mod)
	case q.held > 0:
		return refuse(stResBusy, "CQ %#x: %d work queues complete to it", c.mod, q.held)
	}
	m.queryCQ(c)
	m.intact(m.hca.cqc, q.id, q.raw)
	m.stale(&q.buffer, q.String())
	delete(m.obj.cqs, q.id)
	m.obj.destroyedCQs[q.id] = true
	m.uar.hold(m, q.uar, -1)
	return nil
}

func (m *Model) queryCQ(c *call) *refusal {
	q := m.obj.cqs[c.mod]
	if q == nil {
		return refuse(stBadIndex, "CQ %#x is not the device's", c.mod)
	}
	if c.out.B == nil {
		return nil
	}
	copy(c.out.B, q.raw)
	switch {
	case q.broken:
		c.out.Set("status", 9)
	case q.armed && q.solicited:
		c.out.Set("st", 6)
	case q.armed:
		c.out.Set("st", 9)
	default:
		c.out.Set("st", 0xa)
	}
	c.out.Set("cq_period", uint64(q.period))
	c.out.Set("cq_max_count", uint64(q.maxCount))
	c.out.Set("consumer_counter", uint64(q.ci))
	c.out.Set("producer_counter", uint64(q.pi))
	return nil
}

// modifyCQ changes the moderation (op modifier 1). Resizing (0) is not offered.
func (m *Model) modifyCQ(c *call) *refusal {
	q := m.obj.cqs[c.mod]
	if q == nil {
		return refuse(stBadIndex, "CQ %#x is not the device's", c.mod)
	}
	if c.opMod == 0 {
		return refuse(stBadParam, "MODIFY_CQ of %v: the model does not resize", q)
	}
	q.period, q.maxCount = c.in.U32("cq_period"), c.in.U32("cq_max_count")
	return nil
}

// cqDoorbell arms: sequence number, command and number, then the consumer counter.
func (m *Model) cqDoorbell(u uint32, v uint64) {
	id := uint32(v>>32) & 0xffffff
	q := m.obj.cqs[id&m.cqMask()]
	switch {
	case q == nil && m.obj.destroyedCQs[id]: // mlx4_en arms after napi_complete_done, for which alone napi_disable waits
		m.host.Warnf("CQ doorbell %016x in UAR %#x: CQ %#x was destroyed", v, u, id)
		return
	case q == nil || q.id != id:
		m.host.Errorf("CQ doorbell %016x in UAR %#x: CQ %#x is not the device's", v, u, id)
		return
	}
	if q.uar != u {
		m.host.Errorf("CQ doorbell %016x in UAR %#x: %v has %#x", v, u, q, q.uar)
	}
	if v>>62 != 0 || v>>59&1 != 0 || v>>24&0xff != 0 {
		m.host.Warnf("%v: doorbell %016x has reserved bits set", q, v)
	}
	if h, ok := m.host.(interface {
		Peek(iova uint64, p []byte) error
	}); ok {
		var rec [4]byte
		want := uint32(v>>32)&0x3f000000 | uint32(v)&0xffffff
		if h.Peek(q.dbr+4, rec[:]) == nil {
			// While the doorbell was in flight, the driver may have polled and armed again; then the record is that of
			// the next arming.
			r := be.Uint32(rec[:])
			again := (r^want)>>28 == 0 && r>>24&7 != 0 && (r-want)&0xffffff <= 1<<q.log
			if r != want && !again {
				m.host.Warnf("%v: doorbell %016x, the arm record is %08x: write it first, with the same value", q, v, r)
			}
		}
		q.record = want
	}
	m.armCQ(q, uint32(v>>60)&3, uint32(v>>56)&7, uint32(v)&0xffffff)
}

// armCQ requests an event. The sequence number counts the events that the driver saw. If it is not the next one, the
// request was made before the driver saw the last event.
func (m *Model) armCQ(q *cq, sn, cmd, ci uint32) {
	if cmd != armSolicited && cmd != armNext {
		m.host.Errorf("%v: doorbell command %d, expected 1 (solicited) or 2 (next)", q, cmd)
		return
	}
	behind := (q.ci - ci) & 0xffffff
	late := q.read && behind > 0 && behind <= 1<<q.log
	if !late && (ci-q.ci)&0xffffff > (q.pi-q.ci)&0xffffff {
		m.host.Errorf("%v: armed at consumer counter %#x, last was %#x, producer counter is %#x", q, ci, q.ci, q.pi)
		return
	}
	if q.snKnown && sn != q.sn {
		if sn != (q.sn-1)&3 {
			m.host.Warnf("%v: armed with sequence number %d, expected %d, the number of events", q, sn, q.sn)
		}
		return
	}
	q.sn, q.snKnown = sn, true
	if !late {
		q.ci, q.read = ci, false
	}
	q.armed, q.solicited = true, cmd == armSolicited
	if q.pi != ci {
		m.moderate(q, 1)
	}
}

func (m *Model) cqMask() uint32 { return 1<<max(m.hca.cqc.log, 0) - 1 }

// complete writes a CQE of 32 bytes, in the upper half of one of 64, and raises an event if the CQ is armed.
func (m *Model) complete(q *cq, b *[32]byte, solicited bool) {
	if q == nil || q.broken {
		return
	}
	n := uint32(1) << q.log
	if (q.pi-q.ci)&0xffffff >= n && !q.oi && !q.cc {
		var rec [4]byte
		if m.host.DMARead(q.dbr, rec[:]) != nil {
			return
		}
		ci := be.Uint32(rec[:])
		if ci>>24 != 0 || (q.pi-ci)&0xffffff > n {
			m.host.Errorf("%v: the doorbell record says consumer counter %#x, producer counter is %#x, %d entries", q,
				ci, q.pi, n)
			ci = q.ci
		}
		if ci != q.ci {
			q.ci, q.read = ci, true
		}
		if (q.pi-q.ci)&0xffffff >= n {
			m.overrun(q)
			return
		}
	}
	if q.stamps {
		t := m.clock()
		hi := uint32(t >> 16)
		if uint16(t) == 0 { // the low part wraps before the high part is incremented: drivers compensate
			hi--
		}
		be.PutUint32(b[0x0c:], hi)
		be.PutUint16(b[0x1d:], uint16(t))
	}
	b[31] |= uint8(q.pi>>q.log&1) << 7
	e := make([]byte, m.hca.cqeSize)
	copy(e[len(e)-32:], b[:])
	at := uint64(q.pi & (n - 1))
	if q.cc {
		at = 0
	}
	if m.host.DMAWrite(q.at(at*uint64(len(e))), e) != nil {
		return
	}
	q.pi = (q.pi + 1) & 0xffffff
	if q.armed && (!q.solicited || solicited) {
		m.moderate(q, 1)
	}
}

// moderate counts completions towards an event.
func (m *Model) moderate(q *cq, n uint32) {
	if !q.waiting {
		q.waiting, q.since, q.pending = true, m.host.Now(), 0
	}
	if q.pending += n; q.period == 0 || q.maxCount <= 1 || q.pending >= q.maxCount {
		m.notify(q)
	}
}

func (m *Model) notify(q *cq) {
	q.waiting = false
	if !q.armed {
		return
	}
	q.armed = false
	q.sn = (q.sn + 1) & 3
	var d [eventData]byte
	be.PutUint32(d[:], q.id)
	if e := m.obj.eqs[q.eqn]; e != nil {
		m.post(e, eventCompletion, 0, d[:])
	}
}

// stepModeration sends the events that moderation delayed and that are due.
func (m *Model) stepModeration() (busy bool) {
	now := m.host.Now()
	for _, q := range m.obj.cqs {
		if q.waiting {
			busy = true
			if now-q.since >= time.Duration(q.period)*microsecond {
				m.notify(q)
			}
		}
	}
	return busy
}

func (m *Model) overrun(q *cq) {
	q.broken = true
	m.diag.overruns++
	m.host.Errorf("%v overrun: %d entries, consumer counter %#x, producer counter %#x", q, 1<<q.log, q.ci, q.pi)
	var d [eventData]byte
	be.PutUint32(d[:], q.id)
	d[11] = 1
	m.event(eventCQError, 0, d[:])
	for _, of := range m.obj.qps { // their completions can no longer be reported
		if !of.rss.on && of.state >= qpRTR && of.state != qpError && (of.rcq == q.id || of.scq == q.id) {
			m.queueEvent(eventWQCatas, of)
			m.failQP(of)
		}
	}
}

// errorCQE completes a WQE in error.
func (m *Model) errorCQE(q *cq, qpn uint32, idx uint32, send bool, synd uint8) {
	m.diag.failed[bit(send)][synd&0x1f]++
	var b [32]byte
	be.PutUint32(b[:], qpn)
	be.PutUint16(b[0x18:], uint16(idx))
	b[0x1a], b[0x1b] = vendorSyndrome(synd), synd
	b[31] = cqeError
	if send {
		b[31] |= cqeSend
	}
	m.complete(q, &b, true)
}

// vendorSyndrome returns the model's vendor syndrome for a syndrome. Real devices report the place in the device; only
// the value for a flushed WQE is known.
func vendorSyndrome(synd uint8) uint8 {
	if synd == syndFlushed {
		return 0xf9
	}
	return 0x50 | synd&0xf
}
