package mlx5sim

import "github.com/rebound-nic/rebound/sim/parts"

// Work queue context, PRM "Work Queue Context", inside SQ and RQ contexts.
var wqContext = lay(192, `00.31:28 wq_type 00.27 wq_signature 00.26:25 end_padding_mode 00.24 cd_slave 04.20:16 page_offset 04.15:0 lwm 08.23:0 pd 0c.23:0 uar_page
	10*2 dbr_addr 18.31:0 hw_counter 1c.31:0 sw_counter 20.19:16 log_wq_stride 20.12:8 log_wq_pg_sz 20.4:0 log_wq_sz
	24.31 dbr_umem_valid 24.30 wq_umem_valid 28.31:0 dbr_umem_id 2c.31:0 wq_umem_id 30*2 wq_umem_offset`)

var (
	sqContext = lay(240, `00.31 rlky 00.30 cd_master 00.29 fre 00.28 flush_in_error_en 00.27 allow_multi_pkt_send_wqe 00.26:24 min_wqe_inline_mode 00.23:20 state
	00.19 reg_umr 00.18 allow_swp 00.5:4 ts_format 04.23:0 user_index 08.23:0 cqn 1c.15:0 packet_pacing_rate_limit_index 20.31:16 tis_lst_sz 2c.23:0 tis_num_0`).With(0x30, wqContext)
	rqContext = lay(240, `00.31 rlky 00.29 scatter_fcs 00.28 vsd 00.27:24 mem_rq_type 00.23:20 state 00.18 flush_in_error_en 00.5:4 ts_format 04.23:0 user_index 08.23:0 cqn
	0c.31:24 counter_set_id 10.23:0 rmpn`).With(0x30, wqContext)
	tisContext = lay(160, "00.19:16 prio 24.23:0 transport_domain 2c.23:0 td_pd")
	tirContext = lay(240, `04.31:28 disp_type 1c.23:0 inline_rqn 20.31 rx_hash_symmetric 20.23:0 indirect_table 24.31:28 rx_hash_fn
	24.25:24 self_lb_en 24.23:0 transport_domain 28*10 toeplitz_key 50.31 l3_prot_type 50.30 l4_prot_type 50.29:0 selected_fields`)
	rqtContext = lay(240, "14.26:24 list_q_type 14.15:0 rqt_max_size 18.15:0 rqt_actual_size")
)

// Queue states.
const (
	stateReset = 0
	stateReady = 1
	stateError = 3
)

// Queue commands: send and receive queues, transport interfaces, indirection tables.
func queueCommands() map[uint16]*command {
	ready := func(c command) *command { c.from = hcaReady; return &c }
	create := func(size int, ctx *parts.Layout) *parts.Layout { return lay(size, head).With(0x20, ctx) }
	modify := func(size int, more string, ctx *parts.Layout) *parts.Layout {
		return lay(size, head+"10*2 modify_bitmask "+more).With(0x20, ctx)
	}
	return map[uint16]*command{
		0x904: ready(command{name: "CREATE_SQ", in: create(0x110, sqContext), tail: true, out: newID("sqn"),
			run: (*Model).createSQ}),
		0x905: ready(command{name: "MODIFY_SQ", in: modify(0x110, "08.31:28 sq_state 08.23:0 sqn", sqContext),
			tail: true, out: plainOut, run: (*Model).modifySQ}),
		0x906: ready(command{name: "DESTROY_SQ", in: byID("sqn"), out: plainOut, run: (*Model).destroySQ}),
		0x907: ready(command{name: "QUERY_SQ", in: byID("sqn"), out: lay(0x110, "").With(0x20, sqContext),
			run: (*Model).querySQ}),
		0x908: ready(command{name: "CREATE_RQ", in: create(0x110, rqContext), tail: true, out: newID("rqn"),
			run: (*Model).createRQ}),
		0x909: ready(command{name: "MODIFY_RQ", in: modify(0x110, "08.31:28 rq_state 08.23:0 rqn", rqContext),
			tail: true, out: plainOut, run: (*Model).modifyRQ}),
		0x90a: ready(command{name: "DESTROY_RQ", in: byID("rqn"), out: plainOut, run: (*Model).destroyRQ}),
		0x912: ready(command{name: "CREATE_TIS", in: create(0xc0, tisContext), out: newID("tisn"),
			run: (*Model).createTIS}),
		0x914: ready(command{name: "DESTROY_TIS", in: byID("tisn"), out: plainOut, run: (*Model).destroyTIS}),
		0x900: ready(command{name: "CREATE_TIR", in: create(0x110, tirContext), out: newID("tirn"),
			run: (*Model).createTIR}),
		0x901: ready(command{name: "MODIFY_TIR", in: modify(0x110, "08.23:0 tirn", tirContext), out: plainOut,
			run: (*Model).modifyTIR}),
		0x902: ready(command{name: "DESTROY_TIR", in: byID("tirn"), out: plainOut, run: (*Model).destroyTIR}),
		0x916: ready(command{name: "CREATE_RQT", in: create(0x110, rqtContext), tail: true, out: newID("rqtn"),
			run: (*Model).createRQT}),
		0x917: ready(command{name: "MODIFY_RQT", in: modify(0x110, "08.23:0 rqtn", rqtContext), tail: true,
			out: plainOut, run: (*Model).modifyRQT}),
		0x918: ready(command{name: "DESTROY_RQT", in: byID("rqtn"), out: plainOut, run: (*Model).destroyRQT}),
	}
}

// workQueue is the common part of send and receive queues.
type workQueue struct {
	object
	buffer
	state  uint32
	cqn    uint32
	pd     uint32
	dbr    uint64
	rlky   bool
	user   uint32
	flush  bool   // flush_in_error_en
	ts     uint32 // ts_format
	broken bool   // put into stateError by an error, not by the driver
	head   uint32 // 16 bits: WQEs consumed
}

// newWorkQueue parses the part of a create command that SQ and RQ share.
func (m *Model) newWorkQueue(in msg, q *workQueue) *refusal {
	q.cqn, q.pd, q.rlky, q.user = in.U32("cqn"), in.U32("pd"), in.Is("rlky"), in.U32("user_index")
	q.flush, q.ts = in.Is("flush_in_error_en"), in.U32("ts_format")
	if r := m.checkStamps(q.ts); r != nil {
		return r
	}
	if _, r := m.obj.cqs.get(q.cqn); r != nil {
		return r
	}
	if q.pd != 0 { // Linux's drop queue, which never gets a WQE, has no PD
		if _, r := m.obj.pds.get(q.pd); r != nil {
			return r
		}
	}
	switch {
	case in.U("state") != stateReset:
		return refuse(stBadParam, "state is %d, a queue is created in 0 (RST)", in.U("state"))
	case in.U("wq_type") != 1:
		return refuse(stBadParam, "wq_type is %d, the model has 1 (cyclic)", in.U("wq_type"))
	case in.Is("wq_signature"):
		return refuse(stBadParam, "wq_signature is set without the capability")
	case in.U("hw_counter")|in.U("sw_counter") != 0:
		return refuse(stBadParam, "hw_counter and sw_counter have to be zero")
	case in.I("log_wq_sz") > 15:
		return refuse(stBadParam, "log_wq_sz is %d, capability log_max_wq_sz is 15", in.I("log_wq_sz"))
	}
	var r *refusal
	if q.dbr, r = m.record(in); r != nil {
		return r
	}
	ring, r := m.ring(in, "wq", in.I("log_wq_pg_sz"), in.I("page_offset"), 1<<(in.I("log_wq_stride")+in.I("log_wq_sz")))
	q.buffer = ring.of(in.I("log_wq_stride"), in.I("log_wq_sz"))
	return r
}

func (m *Model) holdQueue(q *workQueue, by int) {
	m.obj.cqs.m[q.cqn].held += by
	q.hold(by)
	if p := m.obj.pds.m[q.pd]; p != nil {
		p.held += by
	}
}

// change checks the state transition of a MODIFY command.
func change(q *workQueue, said, want uint32) *refusal {
	if said != q.state {
		return refuse(stBadResState, "the queue's state is %d, the command says %d", q.state, said)
	}
	switch {
	case q.state == want, q.state == stateReset && want == stateReady, q.state == stateReady && want == stateError,
		q.state == stateError && want == stateReset, q.state == stateReady && want == stateReset:
		return nil
	}
	return refuse(stBadResState, "state %d cannot become %d", q.state, want)
}

func (q *workQueue) query(o msg) {
	o.Set("state", uint64(q.state))
	o.Set("cqn", uint64(q.cqn))
	o.Set("user_index", uint64(q.user))
	o.Set("ts_format", uint64(q.ts))
	o.Set("wq_type", 1)
	o.Set("pd", uint64(q.pd))
	o.Set("dbr_addr", q.dbr)
	o.Set("log_wq_stride", uint64(q.logEntry))
	o.Set("log_wq_sz", uint64(q.logSize))
	o.Set("hw_counter", uint64(q.head))
}

// tis is a transport interface send.
type tis struct {
	object
	td uint32
}

func (m *Model) createTIS(c *call) *refusal {
	t := &tis{td: c.in.U32("transport_domain")}
	td, r := m.obj.tds.get(t.td)
	if r != nil {
		return r
	}
	if r := m.obj.tiss.add(m, t); r != nil {
		return r
	}
	td.held++
	c.out.Set("tisn", uint64(t.id))
	return nil
}

func (m *Model) destroyTIS(c *call) *refusal {
	t, r := m.obj.tiss.remove(m, c.in.U32("tisn"))
	if r == nil {
		m.obj.tds.m[t.td].held--
	}
	return r
}

// rqt is a table of receive queues.
type rqt struct {
	object
	most int
	rqns []uint32
}

// fillRQT reads the list of a create or modify command.
func (m *Model) fillRQT(t *rqt, in msg) *refusal {
	n := in.I("rqt_actual_size")
	list := in.B[min(len(in.B), 0x110):]
	switch {
	case n == 0 || n > t.most || n&(n-1) != 0:
		return refuse(stBadParam, "rqt_actual_size is %d, expected a power of two up to rqt_max_size %d", n, t.most)
	case len(list) < 4*n:
		return refuse(stInLen, "%d receive queues in %d bytes", n, len(list))
	}
	rqns := make([]uint32, n)
	for i := range rqns {
		rqns[i] = be.Uint32(list[4*i:])
		if _, r := m.obj.rqs.get(rqns[i]); r != nil {
			return r
		}
	}
	m.holdRQs(rqns, 1)
	m.holdRQs(t.rqns, -1)
	t.rqns = rqns
	return nil
}

func (m *Model) holdRQs(rqns []uint32, by int) {
	for _, n := range rqns {
		m.obj.rqs.m[n].held += by
	}
}

func (m *Model) createRQT(c *call) *refusal {
	t := &rqt{most: c.in.I("rqt_max_size")}
	if t.most == 0 || t.most > 512 || c.in.U("list_q_type") != 0 {
		return refuse(stBadParam, "rqt_max_size is %d (capability log_max_rqt_size is 9), list_q_type %d", t.most,
			c.in.U("list_q_type"))
	}
	if r := m.fillRQT(t, c.in); r != nil {
		return r
	}
	if r := m.obj.rqts.add(m, t); r != nil {
		m.holdRQs(t.rqns, -1)
		return r
	}
	c.out.Set("rqtn", uint64(t.id))
	return nil
}

func (m *Model) modifyRQT(c *call) *refusal {
	t, r := m.obj.rqts.get(c.in.U32("rqtn"))
	if r != nil {
		return r
	}
	if c.in.U("modify_bitmask") != 1 {
		return refuse(stBadParam, "bitmask is %#x, expected 1: the list", c.in.U("modify_bitmask"))
	}
	return m.fillRQT(t, c.in)
}

func (m *Model) destroyRQT(c *call) *refusal {
	t, r := m.obj.rqts.remove(m, c.in.U32("rqtn"))
	if r == nil {
		m.holdRQs(t.rqns, -1)
	}
	return r
}

// tir is a transport interface receive: the target of steered frames.
type tir struct {
	object
	td        uint32
	indirect  bool
	rqn, rqtn uint32
	hash      rssHash
	selfLB    uint32 // self_lb_en: bit 0 permits unicast, bit 1 multicast from the same transport domain
	knows     uint64 // the latest of the send queues that selfLB is for
}

// domain returns a transport domain. Domain 0 is the card's own, and always there: DPDK's driver creates its first TIR
// in it, before its queues tell it another.
func (m *Model) domain(id uint32) (*plain, *refusal) {
	if id == 0 {
		return &m.obj.ownTD, nil
	}
	return m.obj.tds.get(id)
}

func (m *Model) createTIR(c *call) *refusal {
	in := c.in
	t := &tir{td: in.U32("transport_domain"), selfLB: in.U32("self_lb_en"), knows: m.sqsMade}
	td, r := m.domain(t.td)
	if r != nil {
		return r
	}
	var q *object
	switch in.U("disp_type") {
	case 0: // direct
		t.rqn = in.U32("inline_rqn")
		o, r := m.obj.rqs.get(t.rqn)
		if r != nil {
			return r
		}
		q = &o.object
	case 1: // indirect
		t.indirect, t.rqtn = true, in.U32("indirect_table")
		o, r := m.obj.rqts.get(t.rqtn)
		if r != nil {
			return r
		}
		q = &o.object
		if r := t.hash.read(in); r != nil {
			return r
		}
	default:
		return refuse(stBadParam, "disp_type is %d, expected 0 (direct) or 1 (indirect)", in.U("disp_type"))
	}
	if r := m.obj.tirs.add(m, t); r != nil {
		return r
	}
	td.held++
	q.held++
	c.out.Set("tirn", uint64(t.id))
	return nil
}

// modifyTIR changes the hash (bitmask bit 2) and loopback (bit 4).
func (m *Model) modifyTIR(c *call) *refusal {
	t, r := m.obj.tirs.get(c.in.U32("tirn"))
	if r != nil {
		return r
	}
	mask := c.in.U("modify_bitmask")
	if mask&^0x14 != 0 {
		return refuse(stBadParam, "bitmask is %#x, the model changes the hash (bit 2) and loopback (bit 4)", mask)
	}
	if mask&4 != 0 {
		if !t.indirect {
			return refuse(stBadResState, "the TIR is direct, it has no hash")
		}
		if r := t.hash.read(c.in); r != nil {
			return r
		}
	}
	if mask&0x10 != 0 && m.prof.lbSwitch { // Linux also sends it to firmware without self_lb_en_modifiable
		t.selfLB, t.knows = c.in.U32("self_lb_en"), m.sqsMade
	}
	return nil
}

func (m *Model) destroyTIR(c *call) *refusal {
	t, r := m.obj.tirs.remove(m, c.in.U32("tirn"))
	if r != nil {
		return r
	}
	if td, r := m.domain(t.td); r == nil {
		td.held--
	}
	if t.indirect {
		m.obj.rqts.m[t.rqtn].held--
	} else {
		m.obj.rqs.m[t.rqn].held--
	}
	return nil
}
