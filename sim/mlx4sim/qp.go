package mlx4sim

import (
	"fmt"
	"time"

	"github.com/rebound-nic/rebound/sim/rdma"
)

// PRM "Address Path", as far as the model uses it, with the fields that later firmware added in unused bits.
const pathFields = `00.31:24 fl 00.23:16 vlan_control 00.6:0 pkey_index 04.31:24 counter_index 04.23 grh 04.22:16 my_lid 04.15:0 rlid
	08.31:27 ack_timeout 08.26:24 ack_low 08.22:16 mgid_index 08.11:8 max_stat_rate 08.7:0 hop_limit 0c.27:20 tclass 0c.19:0 flow_label 10*4 rgid
	20.31:24 sched_queue 20.23:16 vlan_index 20.15:8 feup 20.7:0 fvl_rx 24.31:24 rss_log 24.15:0 dmac_h 28.31:0 dmac_l`

// PRM "QP Context".
var qpLayout = lay(0xf8, `00.31:28 state 00.19:16 st 00.13 rss 00.12:11 pm_state 04.23:0 pd 08.31:29 mtu 08.28:24 msg_max 08.23 rq_left 08.22:19 log_rq_size 08.18:16 log_rq_stride
	08.14:11 log_sq_size 08.10:8 log_sq_stride 08.4 rlky 08.1:0 roce_mode 0c.23:0 usr_page 10.23:0 local_qpn 14.23:0 remote_qpn
	70.31:28 ack_req_freq 70.23:21 sra_max 70.18:16 retry_count 70.15:13 rnr_retry 70.11 fre 70.27:24 rss_udp_3 70.20:19 rss_udp_2 70.12 rss_udp_1 70.10:0 rss_udp_0 78.23:0 next_send_psn 7c.23:0 cqn_snd
	80.31:16 roce_entropy 88.23:0 last_acked_psn 8c.23:0 ssn 90.31:24 physical_function 90.23:21 rra_max 90.15 rre 90.14 rwe 90.13 rae 90.11:6 page_offset 90.4 ric
	94.28:24 min_rnr_nak 94.23:0 next_rcv_psn 98.15:0 xrcd 9c.23:0 cqn_rcv a0*2 db_record_addr a8.31:0 q_key ac.30:28 tunnel ac.24 srq ac.23:0 srqn
	b0.23:0 rmsn b4.31:16 rq_wqe_counter b4.15:0 sq_wqe_counter bc.31:16 rate_limit bc.7:0 qos_vport c0.31 mkey_rmp c0.30 vsd c0.29 fcs_keep c0.25 inline_scatter c0.24 hs
	c4.31:24 num_rmc_peers c4.23:0 base_mkey c8.29:24 log2_page_size c8.7:0 mtt_base_addr_h cc.31:3 mtt_base_addr_l`).
	With(0x18, lay(0x2c, pathFields)).With(0x44, lay(0x2c, "00*11 alternative_path"))

var transition = lay(0x100, "00.31:0 opt_param_mask").With(8, qpLayout).
	Without("rate_limit", "qos_vport", "mkey_rmp", "inline_scatter", "hs", "tunnel", "xrcd", "roce_mode",
		"vlan_control", "vlan_index", "fvl_rx", "fl")

// forceUP of feup makes the priority in the tags that of the scheduling queue.
const forceUP = 1 << 6

// noCounter is the counter_index of a QP whose frames no counter counts.
const noCounter = 0xff

// QP states.
const (
	qpReset = iota
	qpInit
	qpRTR
	qpRTS
	qpSQError
	qpSQDrained
	qpError
)

var qpStates = [...]string{"RST", "INIT", "RTR", "RTS", "SQEr", "SQD", "ERR"}

// Service types.
const (
	serviceRC  = 0
	serviceUC  = 1
	serviceUD  = 3
	serviceMLX = 7 // raw: MADs on an InfiniBand port, frames on an Ethernet port
)

// Optional parameters of a transition.
const (
	optAltPath     = 1 << 0
	optRRE         = 1 << 1
	optRAE         = 1 << 2
	optRWE         = 1 << 3
	optPKey        = 1 << 4
	optQKey        = 1 << 5
	optRNRTimeout  = 1 << 6
	optPath        = 1 << 7
	optSRAMax      = 1 << 8
	optRRAMax      = 1 << 9
	optPMState     = 1 << 10
	optRetry       = 1 << 12
	optRNRRetry    = 1 << 13
	optAckTimeout  = 1 << 14
	optSchedQueue  = 1 << 16
	optCounter     = 1 << 20
	optVLANStrip   = 1 << 21
	maxOutstanding = 1 << 13

	optKnown = optRRE | optRAE | optRWE | optPKey | optQKey | optRNRTimeout | optPath | optSRAMax | optRRAMax |
		optPMState | optRetry | optRNRRetry | optAckTimeout | optSchedQueue | optVLANStrip
)

type qp struct {
	id    uint32 // the low bits are the index, those above the driver's choice
	ctx   msg    // as of the last transition
	state int
	st    uint32
	pd    uint32
	uar   uint32
	dbr   uint64
	rlky  bool
	buf   buffer
	scq   uint32
	rcq   uint32
	srqn  uint32
	onSRQ bool
	send  ring
	recv  ring
	rss   rss

	head   uint32 // WQEs (strides) consumed of the send queue; bits above its size count laps
	kicked bool   // the doorbell was rung
	pushAt uint32
	push   []byte // pushed by BlueFlame
	fetch  []byte // fetched ahead from head
	inner  []inner
	rhead  uint32 // of the receive queue, 16 bits
	known  uint32
	ahead  [][]byte // receive WQEs fetched ahead

	sent, received uint64
	pushes         uint64
	tellDrained    bool // an event is asked for when the send queue is drained
	strayed        bool // a WQE that was not stamped has been reported

	conn rdma.Connection // of RC
	met  bool            // the first packet was reported to the driver
}

// inner is the start of a stride that was read as the inside of a WQE.
type inner struct {
	seen  bool
	first [16]byte
}

// ring is a work queue's location in the buffer.
type ring struct {
	off       uint64
	log       uint // WQEs
	logStride uint
}

func (r ring) entries() uint32 { return 1 << r.log }
func (r ring) bytes() uint64   { return 1 << (r.log + r.logStride) }

// at returns the offset of WQE i, which wraps.
func (r ring) at(i uint32) uint64 { return r.off + uint64(i&(r.entries()-1))<<r.logStride }

func (q *qp) String() string { return fmt.Sprintf("QP %#x", q.id) }

func (m *Model) qpMask() uint32 { return 1<<max(m.hca.qpc.log, 0) - 1 }

// findQP returns the QP with a number.
func (m *Model) findQP(qpn uint32) *qp {
	q := m.obj.qps[qpn&m.qpMask()]
	if q == nil || q.id != qpn {
		return nil
	}
	return q
}

func qpCommands() map[uint16]*command {
	walk := func(name string, from, to int, need uint32) *command {
		return &command{name: name, from: stageReady, in: transition, mods: 1<<31 | 0xffffff,
			run: func(m *Model, c *call) *refusal { return m.walk(c, from, to, need) }}
	}
	return map[uint16]*command{
		0x019: walk("RST2INIT_QP", qpReset, qpInit, 0),
		0x02d: walk("INIT2INIT_QP", qpInit, qpInit, 0),
		0x01a: walk("INIT2RTR_QP", qpInit, qpRTR, 0),
		0x01b: walk("RTR2RTS_QP", qpRTR, qpRTS, 0),
		0x01c: walk("RTS2RTS_QP", qpRTS, qpRTS, 0),
		0x01d: walk("SQERR2RTS_QP", qpSQError, qpRTS, 0),
		0x01f: walk("RTS2SQD_QP", qpRTS, qpSQDrained, 0),
		0x038: walk("SQD2SQD_QP", qpSQDrained, qpSQDrained, 0),
		0x020: walk("SQD2RTS_QP", qpSQDrained, qpRTS, 0),
		0x01e: {name: "2ERR_QP", from: stageReady, in: transition, mods: 0xffffff, run: (*Model).qpToError},
		0x021: {name: "2RST_QP", from: stageReady, mods: 0xffffff, opMods: 1<<2 | 1<<3, run: (*Model).qpToReset},
		0x022: {name: "QUERY_QP", from: stageReady, out: transition, mods: 0xffffff, run: (*Model).queryQP},
		0x061: {name: "UPDATE_QP", from: stageReady, in: sized(0x200), mods: 0xffffff, run: unsupported},
		0x023: {name: "CONF_SPECIAL_QP", from: stageReady, mods: 0xffffff, opMods: 1<<1 | 1<<2 | 1<<3, run: (*Model).specialQPs},
	}
}

// walk executes a transition with parameters. The parameters of each transition follow IBTA 1.3 table 92, as the PRM's
// do.
func (m *Model) walk(c *call, from, to int, _ uint32) *refusal {
	id := c.mod & 0xffffff
	in := as(c.in.B[8:], qpLayout)
	opt := c.in.U32("opt_param_mask")
	if other := opt &^ optKnown; other != 0 {
		m.host.Warnf("%s: optional parameters %#x are accepted and have no effect in this model", m.opName(c.opcode), other)
	}
	if n := in.U("counter_index"); n != 0 && n != noCounter {
		m.host.Warnf("%s: counter_index is accepted, and frames are not counted by QP in this model", m.opName(c.opcode))
	}
	if from == qpReset {
		return m.newQP(id, in)
	}
	q := m.findQP(id)
	if q == nil {
		return refuse(stBadQPState, "QP %#x is in RST, it has to be in %s", id, qpStates[from])
	}
	if q.state != from && !(from == qpSQDrained && q.state == qpSQDrained) {
		return refuse(stBadQPState, "%v is in %s, it has to be in %s", q, qpStates[q.state], qpStates[from])
	}
	if r := m.checkLinkType(q, in); r != nil {
		return r
	}
	if n := in.U32("local_qpn"); n != 0 && n != id {
		m.host.Warnf("%s: local_qpn is %#x, in_modifier says %#x", m.opName(c.opcode), n, id)
	}
	take := func(names ...string) {
		for _, n := range names {
			q.ctx.Set(n, in.U(n))
		}
	}
	path := func() { copy(q.ctx.B[0x18:0x44], in.B[0x18:0x44]) }
	switch {
	case from == qpInit && to == qpRTR:
		take("mtu", "msg_max", "remote_qpn", "rra_max", "min_rnr_nak", "next_rcv_psn", "roce_mode")
		if m.port.link == Ethernet || q.st == serviceRC {
			path()
		} else {
			take("sched_queue") // datagrams have their path in the WQE
		}
		if r := m.checkRTR(q, in); r != nil {
			return r
		}
	case from == qpRTR && to == qpRTS:
		take("ack_req_freq", "sra_max", "retry_count", "rnr_retry", "next_send_psn", "ack_timeout", "roce_entropy")
	}
	for bit, names := range map[uint32][]string{optRRE: {"rre"}, optRAE: {"rae"}, optRWE: {"rwe"}, optPKey: {"pkey_index"}, optQKey: {"q_key"},
		optRNRTimeout: {"min_rnr_nak"}, optSRAMax: {"sra_max"}, optRRAMax: {"rra_max"}, optPMState: {"pm_state"}, optRetry: {"retry_count"},
		optRNRRetry: {"rnr_retry"}, optAckTimeout: {"ack_timeout"}, optSchedQueue: {"sched_queue"},
		optVLANStrip: {"vsd"}} {
		if opt&bit != 0 {
			take(names...)
		}
	}
	if opt&optPath != 0 {
		path()
	}
	switch asked := c.mod>>31 != 0; {
	case to == qpSQDrained:
		q.tellDrained = asked
	case asked:
		m.host.Warnf("%s: an event of a drained queue is asked for, and the queue is not to be drained", m.opName(c.opcode))
	}
	q.setState(to)
	q.connect(from, to)
	return m.storeQP(q)
}

// connect passes a transition's parameters to the transport.
func (q *qp) connect(from, to int) {
	c, x := &q.conn, q.ctx
	if from == qpInit && to == qpRTR {
		*c, q.met = rdma.Connection{Expected: x.U32("next_rcv_psn")}, false
	}
	if from == qpRTR && to == qpRTS {
		c.NextPSN = x.U32("next_send_psn")
	}
	c.MTU, c.Retry, c.RNRRetry, c.RNRTimer, c.Timeout = 128<<x.U("mtu"), x.I("retry_count"), x.I("rnr_retry"),
		uint8(x.U("min_rnr_nak")), 0
	if t := x.U("ack_timeout"); t != 0 {
		c.Timeout = 4096 * time.Nanosecond << t
	}
}

func (q *qp) setState(to int) {
	q.state = to
	q.ctx.Set("state", uint64(to))
}

// storeQP writes the context to context memory.
func (m *Model) storeQP(q *qp) *refusal { return m.store(m.hca.qpc, q.id&m.qpMask(), q.ctx.B) }

// newQP is RST2INIT: queues, keys and CQs are set once.
func (m *Model) newQP(id uint32, in msg) *refusal {
	index := id & m.qpMask()
	tables := []table{m.hca.qpc, m.hca.altc, m.hca.auxc, m.hca.cmpt[0]}
	if in.U("st") == serviceRC {
		tables = append(tables, m.hca.rdmarc) // for outstanding reads by a peer
	}
	if r := m.claim(index, tables...); r != nil {
		return r
	}
	q := &qp{id: id, ctx: as(append([]byte(nil), in.B[:qpLayout.Size]...), qpLayout), st: in.U32("st"),
		pd: in.U32("pd"), uar: in.U32("usr_page"),
		dbr: in.U("db_record_addr"), rlky: in.Is("rlky"), scq: in.U32("cqn_snd"), rcq: in.U32("cqn_rcv"),
		onSRQ: in.Is("srq"), srqn: in.U32("srqn")}
	isRSS := in.Is("rss")
	switch {
	case index < 1<<logReservedQPs:
		return refuse(stBadIndex, "%v: the first %#x are the firmware's", q, 1<<logReservedQPs)
	case m.obj.qps[index] != nil:
		return refuse(stBadQPState, "%v is in %s, it has to be in RST", m.obj.qps[index],
			qpStates[m.obj.qps[index].state])
	case q.st != serviceMLX && q.st != serviceUD && q.st != serviceRC:
		return refuse(stBadParam, "st is %d, the model has 0 (RC), 3 (UD) and 7 (MLX)", q.st)
	case in.U("pm_state") != 3 && !(q.st == serviceMLX && in.U("pm_state") == 0):
		return refuse(stBadParam, "pm_state is %d, expected 3 (migrated)", in.U("pm_state"))
	case m.obj.cqs[q.rcq] == nil:
		return refuse(stBadRes, "cqn_rcv is %#x: not the device's", q.rcq)
	case m.obj.cqs[q.scq] == nil && !isRSS:
		return refuse(stBadRes, "cqn_snd is %#x: not the device's", q.scq)
	case q.uar >= 1<<m.hca.logUARs || q.uar < reservedUARs:
		return refuse(stBadIndex, "usr_page is %#x: of %#x pages the first %d are the firmware's", q.uar,
			1<<m.hca.logUARs, reservedUARs)
	case q.dbr&3 != 0:
		return refuse(stBadParam, "db_record_addr is %#x: aligned to 4 bytes", q.dbr)
	}
	if r := m.checkLinkType(q, in); r != nil {
		return r
	}
	if isRSS {
		if r := m.newRSS(q, in); r != nil {
			return r
		}
	} else if r := m.newRings(q, in); r != nil {
		return r
	}
	q.setState(qpInit)
	if r := m.storeQP(q); r != nil {
		return r
	}
	m.obj.qps[index] = q
	m.holdQP(q, 1)
	return nil
}

func (m *Model) holdQP(q *qp, n int) {
	m.obj.cqs[q.rcq].held += n
	if s := m.obj.cqs[q.scq]; s != nil {
		s.held += n
	}
	if s := m.obj.srqs[q.srqn]; q.onSRQ && s != nil {
		s.held += n
	}
	m.uar.hold(m, q.uar, n)
}

// newRings sets the queues' offsets: the one with the larger stride comes first.
func (m *Model) newRings(q *qp, in msg) *refusal {
	q.send = ring{log: uint(in.U("log_sq_size")), logStride: 4 + uint(in.U("log_sq_stride"))}
	if !q.onSRQ { // otherwise Linux leaves the value that its arithmetic gives for no queue
		q.recv = ring{log: uint(in.U("log_rq_size")), logStride: 4 + uint(in.U("log_rq_stride"))}
		if in.Is("rq_left") {
			m.host.Warnf("RST2INIT_QP: %v: reserved bit 23 is set in the dword with log_rq_size", q)
		}
	}
	if q.send.logStride < 6 {
		return refuse(stBadParam, "log_sq_stride is %d: a send WQE has at least 64 bytes (2)", in.U("log_sq_stride"))
	}
	if q.send.log > logWQE || q.recv.log > logWQE {
		return refuse(stLimit, "log_sq_size %d, log_rq_size %d, the capability is %d", q.send.log, q.recv.log, logWQE)
	}
	if q.onSRQ && q.st != serviceRC {
		return refuse(stBadParam, "srqn is %#x: datagrams and frames from SRQs are not offered", q.srqn)
	}
	if s := m.obj.srqs[q.srqn]; q.onSRQ && s == nil {
		return refuse(stBadRes, "srqn is %#x: not the device's", q.srqn)
	} else if q.onSRQ && s.pd != q.pd {
		return refuse(stBadParam, "the SRQ's protection domain is %#x, the queue's %#x", s.pd, q.pd)
	}
	total := q.send.bytes()
	if !q.onSRQ && (q.recv.log > 0 || in.Is("log_rq_stride")) {
		total += q.recv.bytes()
	}
	if q.recv.logStride > q.send.logStride {
		q.send.off = q.recv.bytes()
	} else {
		q.recv.off = q.send.bytes()
	}
	var r *refusal
	q.buf, r = m.newBuffer(in.U("mtt_base_addr_h")<<32|in.U("mtt_base_addr_l")<<3, uint(in.U("log2_page_size")),
		in.U("page_offset")<<6, total)
	q.inner = make([]inner, q.send.entries())
	return r
}

// checkLinkType refuses a path on an InfiniBand port whose low bits next to the ACK timeout select an Ethernet link:
// they are reserved in the PRM's "Address Path", and Linux's mlx4_ib sets them only for a port whose link layer is
// Ethernet.
func (m *Model) checkLinkType(q *qp, in msg) *refusal {
	if v := in.U("ack_low"); v != 0 && m.port.link == InfiniBand {
		return refuse(stBadParam, "%v: the path's link type is %d, on an InfiniBand port it is 0", q, v)
	}
	return nil
}

// checkRTR checks the fields that a QP needs before it receives.
func (m *Model) checkRTR(q *qp, in msg) *refusal {
	if port := in.U("sched_queue") >> 6 & 1; port != 0 {
		return refuse(stBadParam, "sched_queue is %02xh: port %d, the device has one", in.U("sched_queue"), port+1)
	}
	if q.st == serviceMLX && m.port.link == Ethernet && !m.special(q) {
		if in.U("mtu") != 7 || in.U("msg_max") != 31 {
			m.host.Warnf("INIT2RTR_QP: %v: mtu %d, msg_max %d: on an Ethernet port 7 and 31", q, in.U("mtu"),
				in.U("msg_max"))
		}
		return nil
	}
	if mtu := in.U("mtu"); mtu < 1 || mtu > 5 {
		return refuse(stBadParam, "mtu is %d, expected 1 (256 bytes) to 5 (4096)", mtu)
	}
	return m.checkPath(q, in)
}

func (m *Model) qpToError(c *call) *refusal {
	q := m.findQP(c.mod)
	if q == nil {
		return refuse(stBadQPState, "QP %#x is in RST", c.mod)
	}
	m.failQP(q)
	return m.storeQP(q)
}

// qpToReset releases a QP. With op modifiers 2 and 3 there is no output mailbox.
func (m *Model) qpToReset(c *call) *refusal {
	q := m.findQP(c.mod)
	if q == nil {
		if m.obj.qps[c.mod&m.qpMask()] != nil {
			return refuse(stBadIndex, "QP %#x: the entry is %v's", c.mod, m.obj.qps[c.mod&m.qpMask()])
		}
		return nil // from RST to RST
	}
	m.intact(m.hca.qpc, c.mod&m.qpMask(), q.ctx.B)
	if !q.rss.on {
		m.stale(&q.buf, q.String())
	}
	m.rules.checkGone(m, q)
	delete(m.obj.qps, c.mod&m.qpMask())
	m.holdQP(q, -1)
	return nil
}

func (m *Model) queryQP(c *call) *refusal {
	q := m.findQP(c.mod)
	if q == nil {
		return refuse(stBadIndex, "QP %#x is in RST", c.mod)
	}
	o := as(c.out.B[8:], qpLayout)
	copy(o.B, q.ctx.B)
	o.Set("state", uint64(q.state))
	o.Set("local_qpn", uint64(q.id))
	if q.st == serviceRC {
		o.Set("next_send_psn", uint64(q.conn.NextPSN))
		o.Set("next_rcv_psn", uint64(q.conn.Expected))
	}
	o.Set("sq_wqe_counter", uint64(q.head&0xffff))
	o.Set("rq_wqe_counter", uint64(q.rhead))
	return nil
}

// specialQPs sets the numbers of QP0 and QP1 of both ports: eight numbers, aligned.
func (m *Model) specialQPs(c *call) *refusal {
	if c.mod&7 != 0 {
		return refuse(stBadParam, "%#x is not aligned to 8", c.mod)
	}
	if c.opMod != 0 {
		m.host.Warnf("CONF_SPECIAL_QP: op_modifier %d, by which the firmware keeps QPs, has no effect in this model", c.opMod)
	}
	m.obj.sqp = c.mod
	return nil
}

// special reports whether a QP is QP0 or QP1.
func (m *Model) special(q *qp) bool {
	return m.obj.sqp != 0 && q.st == serviceMLX && q.id >= m.obj.sqp && q.id < m.obj.sqp+8
}

// failQP moves a QP to ERR and flushes it: posted receive WQEs now, pending sends in the next Step.
func (m *Model) failQP(q *qp) {
	q.setState(qpError)
	q.kick()
	m.flushRecv(q)
	m.storeQP(q)
	if q.onSRQ {
		m.queueEvent(eventLastWQE, q)
	}
}
