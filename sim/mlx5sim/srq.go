package mlx5sim

var (
	rmpContext    = lay(240, "00.23:20 state 04.31 basic_cyclic_rcv_wqe").With(0x30, wqContext)
	xrcSRQContext = lay(64, `00.31:28 state 00.27:24 log_xrc_srq_size 04.31 wq_signature 04.30 cont_srq 04.28 rlky 04.27 basic_cyclic_rcv_wqe
	04.26:24 log_rq_stride 04.23:0 xrcd 08.31:26 page_offset 08.23:0 cqn 10.31 user_index_equal_xrc_srqn 10.29:24 log_page_size
	10.23:0 user_index 18.23:0 pd 1c.31:16 lwm 1c.15:0 wqe_cnt 28*2 db_record_addr`)
)

// Commands for XRC domains and shared receive queues: those of XRC, and memory pools (RMP), which QPs of a domain
// share.
func srqCommands() map[uint16]*command {
	ready := func(c command) *command { c.from = hcaReady; return &c }
	return map[uint16]*command{
		0x80e: ready(command{name: "ALLOC_XRCD", in: plainIn, out: newID("xrcd"), run: (*Model).allocXRCD}),
		0x80f: ready(command{name: "DEALLOC_XRCD", in: byID("xrcd"), out: plainOut, run: (*Model).deallocXRCD}),
		0x705: ready(command{name: "CREATE_XRC_SRQ", in: lay(272, head).With(0x10, xrcSRQContext), tail: true,
			out: newID("xrc_srqn"), run: (*Model).createXRCSRQ}),
		0x706: ready(command{name: "DESTROY_XRC_SRQ", in: byID("xrc_srqn"), out: plainOut,
			run: (*Model).destroyXRCSRQ}),
		0x90c: ready(command{name: "CREATE_RMP", in: lay(272, head).With(0x20, rmpContext), tail: true,
			out: newID("rmpn"), run: (*Model).createRMP}),
		0x90e: ready(command{name: "DESTROY_RMP", in: byID("rmpn"), out: plainOut, run: (*Model).destroyRMP}),
	}
}

func (m *Model) allocXRCD(c *call) *refusal {
	o := new(plain)
	if r := m.obj.xrcds.add(m, o); r != nil {
		return r
	}
	c.out.Set("xrcd", uint64(o.id))
	return nil
}

func (m *Model) deallocXRCD(c *call) *refusal {
	_, r := m.obj.xrcds.remove(m, c.in.U32("xrcd"))
	return r
}

// srq is a receive queue that several QPs take WQEs from: a ring, or a linked list of WQEs.
type srq struct {
	object
	buffer
	cyclic   bool
	pd       uint32
	dbr      uint64
	cqn      uint32 // XRC only, like the domain
	xrcd     uint32
	user     uint32
	next     uint32 // index of the next WQE
	consumed uint32 // 16 bits: number of consumed WQEs
}

func (m *Model) createRMP(c *call) *refusal {
	in := c.in
	q := &srq{cyclic: in.U("wq_type") == 1, pd: in.U32("pd"), dbr: in.U("dbr_addr")}
	if _, r := m.obj.pds.get(q.pd); r != nil {
		return r
	}
	switch {
	case in.U("wq_type") > 1:
		return refuse(stBadParam, "wq_type is %d, the model has 0 (linked list) and 1 (cyclic)", in.U("wq_type"))
	case in.Is("wq_signature"):
		return refuse(stBadParam, "wq_signature is set without the capability")
	case in.U("state") != stateReady:
		return refuse(stBadParam, "state is %d, a memory pool is created in 1 (RDY)", in.U("state"))
	}
	return m.addSRQ(c, q, "rmpn", in.B[min(len(in.B), 0x110):], in.I("log_wq_pg_sz"), in.I("page_offset"),
		in.I("log_wq_stride"), in.I("log_wq_sz"))
}

func (m *Model) createXRCSRQ(c *call) *refusal {
	in := c.in
	q := &srq{cyclic: in.Is("basic_cyclic_rcv_wqe"), pd: in.U32("pd"), dbr: in.U("db_record_addr"),
		cqn: in.U32("cqn"), xrcd: in.U32("xrcd"), user: in.U32("user_index")}
	if _, r := m.obj.pds.get(q.pd); r != nil {
		return r
	}
	d, r := m.obj.xrcds.get(q.xrcd)
	if r != nil {
		return r
	}
	n, r := m.obj.cqs.get(q.cqn)
	if r != nil {
		return r
	}
	if in.Is("wq_signature") {
		return refuse(stBadParam, "wq_signature is set without the capability")
	}
	r = m.addSRQ(c, q, "xrc_srqn", in.B[min(len(in.B), 0x110):], in.I("log_page_size"), in.I("page_offset"),
		in.I("log_rq_stride")+4, in.I("log_xrc_srq_size"))
	if r == nil {
		d.held++
		n.held++
	}
	return r
}

func (m *Model) addSRQ(c *call, q *srq, name string, pas []byte, logPage, pageOffset, logEntry, logSize int) *refusal {
	switch {
	case q.dbr == 0 || q.dbr%4 != 0:
		return refuse(stBadParam, "doorbell record at %#x: it is aligned to 4 bytes", q.dbr)
	case logSize > 15 || logEntry < 4 || logEntry > 11:
		return refuse(stBadParam, "2^%d WQEs of 2^%d bytes, the model has up to 2^15, of 16 to 2048", logSize, logEntry)
	}
	var r *refusal
	if q.buffer, r = m.newBuffer(pas, logPage, pageOffset, logEntry, logSize); r != nil {
		return r
	}
	if r := m.obj.srqs.add(m, q); r != nil {
		return r
	}
	m.obj.pds.m[q.pd].held++
	c.out.Set(name, uint64(q.id))
	return nil
}

// srq finds an XRC shared receive queue, or a memory pool.
func (m *Model) srq(id uint32, xrc bool) (*srq, *refusal) {
	q, r := m.obj.srqs.get(id)
	if r == nil && (q.xrcd != 0) != xrc {
		r = refuse(stBadRes, "shared receive queue %#x: XRC is %v, the command is for the other kind", id, !xrc)
	}
	return q, r
}

func (m *Model) destroySRQ(id uint32, xrc bool) *refusal {
	q, r := m.srq(id, xrc)
	if r == nil {
		_, r = m.obj.srqs.remove(m, id)
	}
	if r != nil {
		return r
	}
	m.obj.pds.m[q.pd].held--
	if xrc {
		m.obj.xrcds.m[q.xrcd].held--
		m.obj.cqs.m[q.cqn].held--
	}
	return nil
}

func (m *Model) destroyRMP(c *call) *refusal    { return m.destroySRQ(c.in.U32("rmpn"), false) }
func (m *Model) destroyXRCSRQ(c *call) *refusal { return m.destroySRQ(c.in.U32("xrc_srqn"), true) }

// takeShared returns the next WQE, without the segment that links a list, and its index; nil if none is posted.
func (m *Model) takeShared(q *srq) (w []byte, idx uint32) {
	var rec [4]byte
	if m.host.DMARead(q.dbr, rec[:]) != nil {
		return nil, 0
	}
	posted := (be.Uint32(rec[:]) - q.consumed) & 0xffff
	if posted > q.entries() {
		m.host.Errorf("shared receive queue %#x: the doorbell record says %#x, %#x are consumed of %d", q.id,
			be.Uint32(rec[:])&0xffff, q.consumed, q.entries())
		return nil, 0
	}
	if posted == 0 {
		return nil, 0
	}
	w = make([]byte, 1<<q.logEntry)
	idx = q.next & (q.entries() - 1)
	if m.host.DMARead(q.at(idx), w) != nil {
		return nil, 0
	}
	q.consumed = (q.consumed + 1) & 0xffff
	if q.cyclic {
		q.next++
		return w, idx
	}
	q.next = uint32(be.Uint16(w[2:]))
	return w[wqeSeg:], idx
}
