package mlx5sim

import (
	"time"

	"github.com/rebound-nic/rebound/sim/rdma"
)

// QP states, PRM "QPC", and Linux, mlx5 qp.h.
const (
	qpReset   = 0
	qpInit    = 1
	qpRTR     = 2 // ready to receive
	qpRTS     = 3 // ready to send
	qpSQError = 4 // sends have failed, receives continue
	qpSQDrain = 5
	qpError   = 6
)

// Service types of QPs, st.
const (
	serviceRC  = 0x0
	serviceUD  = 0x2
	serviceXRC = 0x3 // can be created and changes states, but carries no data
	serviceGSI = 0x8 // QP1
	serviceUMR = 0xc // changes memory keys, and sends nothing
)

// Receive types of QPs, rq_type.
const (
	receiveOwn    = 0
	receiveShared = 1
	receiveNone   = 3
)

// QP context with its primary path (PRM "QPC", "Address Path").
var qpContext = lay(0xe8, `00.31:28 state 00.27:24 lag_tx_port_affinity 00.23:16 st 00.13 isolate_vl_tc 00.12:11 pm_state 00.9:8 req_e2e_credit_mode
	00.7:4 offload_type 00.3:2 end_padding_mode 04.31 wq_signature 04.30 block_lb_mc 04.29 atomic_like_write_en 04.28 latency_sensitive
	04.26 drain_sigerr 04.23:0 pd 08.31:29 mtu 08.28:24 log_msg_max 08.22:19 log_rq_size 08.18:16 log_rq_stride 08.15 no_sq 08.14:11 log_sq_size
	08.9:8 retry_mode 08.7:6 ts_format 08.4 rlky 08.3:0 ulp_stateless_offload_mode 0c.31:24 counter_set_id 0c.23:0 uar_page 10.23:0 user_index
	14.28:24 log_page_size 14.23:0 remote_qpn
	18.31 fl 18.30 free_ar 18.15:0 pkey_index 1c.23 grh 1c.22:16 mlid 1c.15:0 rlid 20.31:27 ack_timeout 20.23:16 src_addr_index 20.11:8 stat_rate
	20.7:0 hop_limit 24.27:20 tclass 24.19:0 flow_label 28*4 rgid_rip 38.27 f_dscp 38.26 f_ecn 38.24 f_eth_prio 38.23:22 ecn 38.21:16 dscp
	38.15:0 udp_sport 3c.31 dei_cfi 3c.30:28 eth_prio 3c.27:24 sl 3c.23:16 vhca_port_num 3c.15:0 rmac_47_32 40.31:0 rmac_31_0
	44*11 secondary_address_path 70.31:28 log_ack_req_freq 70.23:21 log_sra_max 70.18:16 retry_count 70.15:13 rnr_retry 70.11 fre
	70.10:8 cur_rnr_retry 70.7:5 cur_retry_count 78.23:0 next_send_psn 7c.23:0 cqn_snd 80.23:0 deth_sqpn 88.23:0 last_acked_psn 8c.23:0 ssn
	90.23:21 log_rra_max 90.19:16 atomic_mode 90.15 rre 90.14 rwe 90.13 rae 90.11:6 page_offset 90.4 ric 90.2 cd_slave_receive 90.1 cd_slave_send
	90.0 cd_master 94.28:24 min_rnr_nak 94.23:0 next_rcv_psn 98.23:0 xrcd 9c.23:0 cqn_rcv a0*2 dbr_addr a8.31:0 q_key ac.26:24 rq_type
	ac.23:0 srqn_rmpn_xrqn b0.23:0 rmsn b4.31:16 hw_sq_wqebb_counter b4.15:0 sw_sq_wqebb_counter b8.31:0 hw_rq_counter bc.31:0 sw_rq_counter
	c4.15:8 cs_req c4.7:0 cs_res d0.28 dbr_umem_valid e4.31:0 dbr_umem_id`)

// transition is a command that moves a QP from one state to another.
type transition struct {
	name string
	from []uint32
	to   uint32
	// take are the context's fields that it sets; those in optional only if their bit is set in opt_param_mask.
	take     []string
	optional map[uint]string
}

var (
	pathFields = []string{"pkey_index", "grh", "mlid", "rlid", "src_addr_index", "stat_rate", "hop_limit", "tclass",
		"flow_label", "rgid_rip",
		"f_dscp", "f_ecn", "f_eth_prio", "ecn", "dscp", "udp_sport", "eth_prio", "sl", "vhca_port_num", "rmac_47_32",
		"rmac_31_0"}
	// Bits of opt_param_mask (Linux, MLX5_QP_OPTPAR_*).
	optional = map[uint]string{1: "rre", 2: "rae", 3: "rwe", 4: "pkey_index", 5: "q_key", 6: "min_rnr_nak",
		8: "log_sra_max", 9: "log_rra_max",
		10: "pm_state", 12: "retry_count", 13: "rnr_retry", 14: "ack_timeout", 16: "vhca_port_num",
		25: "counter_set_id"}

	transitions = map[uint16]transition{
		0x502: {"RST2INIT_QP", []uint32{qpReset}, qpInit, []string{"pm_state", "pkey_index", "vhca_port_num", "rre",
			"rwe", "rae", "atomic_mode", "q_key",
			"counter_set_id"}, nil},
		0x50e: {"INIT2INIT_QP", []uint32{qpInit}, qpInit, nil, optional},
		0x503: {"INIT2RTR_QP", []uint32{qpInit}, qpRTR, append([]string{"mtu", "log_msg_max", "remote_qpn", "next_rcv_psn", "log_rra_max", "min_rnr_nak"},
			pathFields...), optional},
		0x504: {"RTR2RTS_QP", []uint32{qpRTR}, qpRTS, []string{"next_send_psn", "log_sra_max", "retry_count", "rnr_retry", "ack_timeout", "log_ack_req_freq"}, optional},
		0x505: {"RTS2RTS_QP", []uint32{qpRTS}, qpRTS, nil, optional},
		0x506: {"SQERR2RTS_QP", []uint32{qpSQError}, qpRTS, nil, optional},
		0x50c: {"SQD_RTS_QP", []uint32{qpSQDrain}, qpRTS, nil, optional},
		0x507: {"2ERR_QP", []uint32{qpInit, qpRTR, qpRTS, qpSQError, qpSQDrain, qpError}, qpError, nil, nil},
		0x50a: {"2RST_QP", []uint32{qpReset, qpInit, qpRTR, qpRTS, qpSQError, qpSQDrain, qpError}, qpReset, nil, nil},
	}
)

// Commands for queue pairs.
func qpCommands() map[uint16]*command {
	ready := func(c command) *command { c.from = hcaReady; return &c }
	t := map[uint16]*command{
		0x500: ready(command{name: "CREATE_QP", in: lay(272,
			head+"08.23:0 input_qpn 10.31:0 opt_param_mask 14.31:0 ece 100*2 wq_umem_offset 108.31:0 wq_umem_id 10c.31 wq_umem_valid").With(0x18, qpContext),
			tail: true, out: newID("qpn"), run: (*Model).createQP}),
		0x501: ready(command{name: "DESTROY_QP", in: byID("qpn"), out: plainOut, run: (*Model).destroyQP}),
		0x50b: ready(command{name: "QUERY_QP", in: byID("qpn"),
			out: lay(0x1d0, "10.31:0 opt_param_mask").With(0x18, qpContext), run: (*Model).queryQP}),
	}
	for op, tr := range transitions {
		in := lay(272, head+"08.23:0 qpn 10.31:0 opt_param_mask 14.31:0 ece").With(0x18, qpContext)
		if tr.take == nil && tr.optional == nil {
			in = byID("qpn")
		}
		t[op] = ready(command{name: tr.name, in: in, tail: true, out: plainOut, run: (*Model).moveQP})
	}
	return t
}

// qp is a queue pair: a send queue, and a dedicated or shared receive queue.
type qp struct {
	object
	st     uint32
	state  uint32
	ctx    msg // as the driver set it
	send   *sq // nil if there is none
	recv   *rq // without a ring if it does not have a dedicated one
	shared *srq

	conn rdma.Connection // for RC; for datagrams only the sequence number is used
}

func (m *Model) createQP(c *call) *refusal {
	in := c.in
	q := &qp{st: in.U32("st"), ctx: as(append([]byte(nil), in.B[0x18:0x18+qpContext.Size]...), qpContext)}
	switch {
	case q.st != serviceRC && q.st != serviceUD && q.st != serviceXRC && q.st != serviceGSI && q.st != serviceUMR:
		return refuse(stBadParam, "st is %#x: the model has RC (0), UD (2), XRC (3), QP1 (8) and UMR (ch)", q.st)
	case in.U("state") != qpReset:
		return refuse(stBadParam, "state is %d, a QP is created in 0 (RST)", in.U("state"))
	case in.Is("wq_signature"), in.Is("cs_req"), in.Is("cs_res"):
		return refuse(stBadParam, "wq_signature %d, cs_req %d, cs_res %d without the capabilities",
			in.U("wq_signature"), in.U("cs_req"), in.U("cs_res"))
	}
	record, r := m.record(in)
	if r != nil {
		return r
	}
	base := workQueue{pd: in.U32("pd"), dbr: record, rlky: in.Is("rlky"), user: in.U32("user_index"),
		ts: in.U32("ts_format"), flush: true}
	if base.pd != 0 || q.st != serviceUMR { // Linux sets the PD of its UMR QP later, with RST2INIT_QP
		if _, r := m.obj.pds.get(base.pd); r != nil {
			return r
		}
	}
	if r := m.checkStamps(base.ts); r != nil {
		return r
	}
	rq, sq, r := m.qpBuffers(in)
	if r != nil {
		return r
	}
	if r := m.makeReceive(q, in, base, rq); r != nil {
		return r
	}
	if !in.Is("no_sq") {
		if r := m.makeSend(q, in, base, sq); r != nil {
			return r
		}
	} else if q.st == serviceUMR {
		return refuse(stBadParam, "no_sq is set for a UMR QP, which has nothing else")
	}
	if most := 1 << m.caps.general().U("log_max_qp"); len(m.obj.qps.m) >= most {
		return refuse(stBadRes, "all %d QPs are in use", most).with(0x65b500)
	}
	if r := m.obj.qps.add(m, q); r != nil {
		return r
	}
	q.recv.id = q.id
	if q.send != nil {
		q.send.id = q.id
	}
	if q.st == serviceGSI {
		m.roce.gsi = q.id
	}
	m.holdQP(q, 1)
	c.out.Set("qpn", uint64(q.id))
	return nil
}

// qpBuffers are the rings: receives first, then sends.
func (m *Model) qpBuffers(in msg) (rq, sq buffer, r *refusal) {
	rqBytes, sqBytes := 0, 0
	rq.logEntry, rq.logSize = in.I("log_rq_stride")+4, in.I("log_rq_size")
	sq.logEntry, sq.logSize = 6, in.I("log_sq_size")
	if in.U("rq_type") == receiveOwn {
		rqBytes = 1 << (rq.logEntry + rq.logSize)
	}
	if !in.Is("no_sq") {
		sqBytes = 1 << (sq.logEntry + sq.logSize)
	}
	all, r := m.ring(in, "wq", in.I("log_page_size"), in.I("page_offset"), rqBytes+sqBytes)
	rq, sq = all.of(rq.logEntry, rq.logSize), all.of(sq.logEntry, sq.logSize)
	sq.offset += uint64(rqBytes)
	return rq, sq, r
}

func (m *Model) makeReceive(q *qp, in msg, base workQueue, ring buffer) *refusal {
	q.recv = &rq{workQueue: base, counter: in.U32("counter_set_id")}
	q.recv.buffer, q.recv.cqn = ring, in.U32("cqn_rcv")
	kind := in.U("rq_type")
	switch kind {
	case receiveOwn, receiveNone:
	case receiveShared:
		s, r := m.obj.srqs.get(in.U32("srqn_rmpn_xrqn"))
		if r != nil {
			return r
		}
		q.shared = s
	default:
		return refuse(stBadParam, "rq_type is %d, the model has 0 (its own), 1 (shared) and 3 (none)", kind)
	}
	if kind == receiveNone && q.recv.cqn == 0 {
		return nil
	}
	_, r := m.obj.cqs.get(q.recv.cqn)
	return r
}

func (m *Model) makeSend(q *qp, in msg, base workQueue, ring buffer) *refusal {
	q.send = &sq{workQueue: base, uar: in.U32("uar_page"), qp: q}
	q.send.buffer, q.send.cqn = ring, in.U32("cqn_snd")
	if _, r := m.obj.cqs.get(q.send.cqn); r != nil {
		return r
	}
	_, r := m.doorbellPage(q.send.uar)
	return r
}

func (m *Model) holdQP(q *qp, by int) {
	q.recv.hold(by)
	if d := m.obj.pds.m[q.recv.pd]; d != nil {
		d.held += by
	}
	if n := m.obj.cqs.m[q.recv.cqn]; n != nil {
		n.held += by
	}
	if q.send != nil {
		m.obj.cqs.m[q.send.cqn].held += by
		m.obj.uars.m[q.send.uar].held += by
	}
	if q.shared != nil {
		q.shared.held += by
	}
}

func (m *Model) destroyQP(c *call) *refusal {
	q, r := m.obj.qps.remove(m, c.in.U32("qpn"))
	if r != nil {
		return r
	}
	m.holdQP(q, -1)
	if m.roce.gsi == q.id {
		m.roce.gsi = 0
	}
	return nil
}

func (m *Model) queryQP(c *call) *refusal {
	q, r := m.obj.qps.get(c.in.U32("qpn"))
	if r != nil {
		return r
	}
	o := c.out
	copy(o.B[0x18:], q.ctx.B)
	o.Set("state", uint64(q.state))
	o.Set("next_send_psn", uint64(q.conn.NextPSN))
	o.Set("next_rcv_psn", uint64(q.conn.Expected))
	if q.send != nil {
		o.Set("hw_sq_wqebb_counter", uint64(q.send.head))
		o.Set("sw_sq_wqebb_counter", uint64(q.send.posted))
	}
	o.Set("hw_rq_counter", uint64(q.recv.head))
	return nil
}

// moveQP implements every command that changes a QP's state.
func (m *Model) moveQP(c *call) *refusal {
	q, r := m.obj.qps.get(c.in.U32("qpn"))
	t := transitions[c.opcode]
	if r != nil {
		if c.opcode == 0x50a { // as real firmware answers
			return refuse(stBadResState, "%s", r.text).with(0x7ea02d)
		}
		return r
	}
	allowed := false
	for _, s := range t.from {
		allowed = allowed || s == q.state
	}
	if !allowed {
		return refuse(stBadResState, "QP %#x is in state %d, the command is for %d", q.id, q.state, t.from)
	}
	if q.recv.pd == 0 && c.opcode == 0x502 {
		d, r := m.obj.pds.get(c.in.U32("pd"))
		if r != nil {
			return r
		}
		d.held++
		q.recv.pd, q.send.pd = d.id, d.id
	}
	q.take(c.in, t)
	if r := m.checkPath(q, t.to); r != nil && c.opcode == 0x503 {
		return r
	}
	m.setQPState(q, t.to)
	q.conn.MTU, q.conn.Timeout = q.mtuBytes(), q.ackTimeout()
	q.conn.Retry, q.conn.RNRRetry, q.conn.RNRTimer = q.ctx.I("retry_count"), q.ctx.I("rnr_retry"),
		uint8(q.ctx.U("min_rnr_nak"))
	return nil
}

// take sets the context's fields that belong to a transition.
func (q *qp) take(in msg, t transition) {
	set := func(name string) {
		if name == "rgid_rip" { // 128 bits
			copy(q.ctx.Bytes(name), in.Bytes(name))
		} else {
			q.ctx.Set(name, in.U(name))
		}
	}
	for _, name := range t.take {
		set(name)
	}
	for bit, name := range t.optional {
		if in.U("opt_param_mask")>>bit&1 != 0 {
			set(name)
		}
	}
}

// checkPath rejects a connection whose path cannot be used.
func (m *Model) checkPath(q *qp, to uint32) *refusal {
	if q.st != serviceRC {
		return nil
	}
	if mtu := q.ctx.U("mtu"); mtu < 1 || mtu > 5 {
		return refuse(stBadParam, "mtu is %d, expected 1 (256 bytes) to 5 (4096)", mtu)
	}
	if i := q.ctx.U32("src_addr_index"); m.roce.addresses[i] == nil {
		return refuse(stBadParam, "src_addr_index is %d, an address that is not set", i)
	}
	return nil
}

func (m *Model) setQPState(q *qp, s uint32) {
	q.state = s
	sends, receives := uint32(stateReset), uint32(stateReset)
	switch s {
	case qpReset:
		q.conn = rdma.Connection{}
		q.recv.head, q.recv.known, q.recv.cache = 0, 0, nil
	case qpRTR:
		receives = stateReady
		q.conn.Expected = q.ctx.U32("next_rcv_psn")
	case qpRTS:
		receives, sends = stateReady, stateReady
		if q.send != nil && q.send.state == stateReset {
			q.conn.NextPSN = q.ctx.U32("next_send_psn")
		}
	case qpSQError:
		receives, sends = stateReady, stateError
	case qpError:
		receives, sends = stateError, stateError
	}
	q.recv.state = receives
	if q.send != nil {
		q.send.setState(sends)
	}
}

// mtuBytes is the path's largest payload.
func (q *qp) mtuBytes() int { return 128 << q.ctx.U("mtu") }

// ackTimeout is how long a request waits for its acknowledgement: 4.096 µs times a power of two; 0 means no limit.
func (q *qp) ackTimeout() time.Duration {
	t := q.ctx.U("ack_timeout")
	if t == 0 {
		return 0
	}
	return 4096 * time.Nanosecond << t
}
