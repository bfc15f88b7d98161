package efasim

import (
	"fmt"
	"slices"

	"github.com/rebound-nic/rebound/sim/parts"
)

// qp is a queue pair. Its number and its handle contain its index in the low bits and a generation above, so that
// references to a destroyed QP match none.
type qp struct {
	live        bool
	num         uint16
	handle      uint32
	typ         uint8
	pd, uar     uint16
	state       uint8
	qkey, psn   uint32
	rnrRetry    uint8 // of an SRD queue pair; see rnrInfinite
	unsolicited bool
	sq          sendQueue
	rq          recvQueue
	count       traffic
}

// sendQueue is an LLQ.
type sendQueue struct {
	cq      uint32
	sub     uint16
	depth   uint32
	size    int    // bytes of a WQE
	at      uint64 // in BAR 2
	bell    uint32 // the doorbell's last value
	tail    uint16 // WQEs rung for
	head    uint16 // WQEs fetched
	done    uint16 // completions written
	trapped []bool // by slot: written by stores that the host saw one by one
	out     map[uint16]bool
}

// recvQueue is a ring of descriptors in host memory.
type recvQueue struct {
	cq      uint32
	sub     uint16
	ring    ring
	entries uint32 // descriptors
	bell    uint32
	tail    uint16 // descriptors rung for
	fetched uint16
	used    uint16
	cache   []rxDesc
	broken  bool
}

// traffic is the set of counters per QP and in total.
type traffic struct {
	TxBytes, TxPackets, RxBytes, RxPackets, RxDrops, QKeyViolations uint64
	SendBytes, SendWRs, RecvBytes, RecvWRs                          uint64
	ReadWRs, ReadBytes, ReadErrors, ReadResponseBytes               uint64
	WriteWRs, WriteBytes, WriteErrors, WriteRecvBytes               uint64
}

// rnrInfinite is an SRD queue pair's rnr_retry until MODIFY_QP changes it: a message waits while its receiver has no
// buffer (EFA_RNR_INFINITE_RETRY in libfabric's prov/efa/src/efa_base_ep.h).
const rnrInfinite = 7

func (m *Model) createQP(in parts.Msg, r []byte) *refusal {
	d, no := m.domain(in)
	if no != nil {
		return no
	}
	u, no := m.userPage(in)
	if no != nil {
		return no
	}
	p := &m.opt.Profile
	q := qp{live: true, typ: uint8(in.U("qp_type")), pd: uint16(in.U("pd")), uar: uint16(in.U("uar")),
		unsolicited: in.Is("unsolicited_write_recv"), rnrRetry: rnrInfinite}
	depth, bytes := in.U32("send_queue_depth"), in.U32("send_queue_ring_size")
	rqBytes, rqDepth := in.U32("recv_queue_ring_size"), in.U32("recv_queue_depth")
	q.sq = sendQueue{cq: in.U32("send_cq_idx"), depth: depth, out: map[uint16]bool{}}
	q.rq = recvQueue{cq: in.U32("recv_cq_idx"), entries: rqBytes / 16,
		ring: ring{base: in.U("rq_base_addr"), key: in.U32("rq_l_key"), virt: in.Is("rq_virt")}}
	switch {
	case q.typ != typeUD && q.typ != typeSRD:
		return illegal("qp_type %d: 1 (UD) or 2 (SRD) is expected", q.typ)
	case in.Is("sq_virt"):
		return illegal("sq_virt: the send queue is an LLQ")
	case q.unsolicited && (p.Caps&CapUnsolicited == 0 || q.typ != typeSRD):
		return illegal("unsolicited_write_recv: device_caps %#x, qp_type %d", p.Caps, q.typ)
	case !m.hasCQ(q.sq.cq) || !m.hasCQ(q.rq.cq):
		return illegal("there is no CQ %d or %d", q.sq.cq, q.rq.cq)
	case depth > maxSQDepth || depth&(depth-1) != 0 || depth < uint32(p.MinSQ):
		return illegal("send_queue_depth %d: a power of two of %d to %d is expected", depth, p.MinSQ, maxSQDepth)
	case depth > 0 && bytes != 64*depth && (bytes != 128*depth || p.Inline <= inlineMax):
		return illegal("send_queue_ring_size %d for %d WQEs, which have 64 bytes, or 128 where QUEUE_ATTR_2 offers more inline data", bytes, depth)
	case bytes > maxLLQ:
		return illegal("send_queue_ring_size %d: max_llq_size is %d", bytes, maxLLQ)
	case rqDepth > maxRQDepth || rqBytes%16 != 0 || q.rq.entries < rqDepth || q.rq.entries > maxRQDepth ||
		q.rq.entries&(q.rq.entries-1) != 0:
		return illegal("recv_queue_ring_size %d for %d WQEs: a power of two of descriptors of 16 bytes, up to %d, is expected", rqBytes, rqDepth, maxRQDepth)
	}
	if in.U("sq_base_addr") != 0 || in.U("sq_l_key") != 0 {
		m.Host.Warnf("CREATE_QP: sq_base_addr %#x, sq_l_key %#x: not used with an LLQ", in.U("sq_base_addr"),
			in.U("sq_l_key"))
	}
	if in.U("sl") != 0 {
		m.Host.Warnf("CREATE_QP: service level %d: 0 is all that there is", in.U("sl"))
	}
	if rqBytes > 0 {
		if q.rq.ring.virt {
			if _, err := m.at(&q.rq.ring, 0, int(rqBytes), 0); err != nil {
				return illegal("receive ring: %v", err)
			}
		} else if q.rq.ring.base == 0 || q.rq.ring.base%64 != 0 || m.CheckWidth("rq_base_addr", q.rq.ring.base) != nil {
			return illegal("rq_base_addr %#x is not aligned to 64 bytes", q.rq.ring.base)
		}
	}
	i := 0
	for ; i < len(m.qps) && m.qps[i].live; i++ {
	}
	if i == len(m.qps) {
		return full
	}
	if depth > 0 {
		at, ok := m.takeLLQ(int(bytes))
		if !ok {
			return full
		}
		q.sq.at, q.sq.size, q.sq.trapped = at, int(bytes/depth), make([]bool, depth)
		for slot := range int(depth) {
			m.forget(&q.sq, slot)
		}
	}
	m.generation++
	q.num = uint16(i) | m.generation<<8
	q.handle = uint32(i) | uint32(m.generation)<<16
	q.sq.sub, q.rq.sub = m.cqs[q.sq.cq].subCQ(), m.cqs[q.rq.cq].subCQ()
	m.cqs[q.sq.cq].users++
	m.cqs[q.rq.cq].users++
	d.users++
	u.users++
	m.qps[i] = q
	m.liveQPs = append(m.liveQPs, i)
	m.clearBells(i)
	le.PutUint32(r[0:], q.handle)
	le.PutUint16(r[4:], q.num)
	le.PutUint16(r[8:], q.sq.sub)
	le.PutUint16(r[10:], q.rq.sub)
	le.PutUint32(r[12:], uint32(m.sqBell(i)))
	le.PutUint32(r[16:], uint32(m.rqBell(i)))
	le.PutUint32(r[20:], uint32(q.sq.at))
	return nil
}

func (m *Model) hasCQ(i uint32) bool { return i < uint32(len(m.cqs)) && m.cqs[i].live }

// Doorbells of a QP, in the page of its UAR.
func (m *Model) sqBell(i int) uint64 { return m.page(int(m.qps[i].uar)) + 8*uint64(i) }
func (m *Model) rqBell(i int) uint64 { return m.sqBell(i) + 4 }

func (m *Model) clearBells(i int) {
	m.setBell(m.sqBell(i), 0)
	m.setBell(m.rqBell(i), 0)
	m.qps[i].sq.bell, m.qps[i].rq.bell = 0, 0
}

// find returns the QP with the handle that a command names.
func (m *Model) find(in parts.Msg) (*qp, *refusal) {
	h := in.U32("qp_handle")
	if i := int(h & 0xffff); i < len(m.qps) && m.qps[i].live && m.qps[i].handle == h {
		return &m.qps[i], nil
	}
	return nil, illegal("there is no QP with the handle %#x", h)
}

// numbered returns the QP with a number.
func (m *Model) numbered(num uint16) *qp {
	if q := &m.qps[num&(maxQP-1)]; q.live && q.num == num {
		return q
	}
	return nil
}

// Fields that MODIFY_QP changes, modify_mask.
const (
	modState    = 1 << 0
	modCurState = 1 << 1
	modQKey     = 1 << 2
	modPSN      = 1 << 3
	modDrained  = 1 << 4
	modRNR      = 1 << 5
)

// next reports whether a QP may change from one state to another: InfiniBand specification 1.7 §10.3.1, for datagrams.
func next(from, to uint8) bool {
	switch to {
	case stateReset, stateErr:
		return true
	case stateInit:
		return from == stateReset || from == stateInit
	case stateRTR:
		return from == stateInit
	case stateRTS:
		return from == stateRTR || from == stateRTS || from == stateSQD || from == stateSQE
	case stateSQD:
		return from == stateRTS || from == stateSQD
	}
	return false
}

func (m *Model) modifyQP(in parts.Msg, _ []byte) *refusal {
	q, no := m.find(in)
	if no != nil {
		return no
	}
	mask, to, was := in.U("modify_mask"), uint8(in.U("qp_state")), q.state
	if cur := in.U("cur_qp_state"); mask&modCurState != 0 && cur != uint64(was) {
		m.Host.Warnf("MODIFY_QP: cur_qp_state %d overrides state %d of QP %#x", cur, was, q.num)
		was = uint8(min(cur, stateErr))
	}
	if mask&modState == 0 {
		to = was
	}
	switch {
	case mask == 0:
		return illegal("modify_mask is 0")
	case mask&modState != 0 && (in.U("qp_state") > stateErr || !next(was, to)):
		return illegal("QP %#x cannot go from state %d to %d", q.num, was, in.U("qp_state"))
	case to == stateInit && was == stateReset && mask&modQKey == 0:
		return illegal("QP %#x to state 1 (INIT) without a Q_Key", q.num)
	case to == stateRTS && was == stateRTR && mask&modPSN == 0:
		return illegal("QP %#x to state 3 (RTS) without an SQ PSN", q.num)
	case mask&modRNR != 0 && (q.typ != typeSRD || m.opt.Profile.Caps&CapRNRRetry == 0):
		return illegal("rnr_retry for a QP of type %d, device_caps %#x", q.typ, m.opt.Profile.Caps)
	case mask&modRNR != 0 && in.U("rnr_retry") > rnrInfinite:
		return illegal("rnr_retry %d: 0 to 7 are expected", in.U("rnr_retry"))
	case mask&modPSN != 0 && in.U("sq_psn")>>24 != 0:
		return illegal("sq_psn %#x has more than 24 bits", in.U("sq_psn"))
	}
	if mask&modDrained != 0 && in.Is("sq_drained_async_notify") {
		m.Host.Warnf("MODIFY_QP: sq_drained_async_notify is accepted and has no effect in this model")
	}
	if mask&modQKey != 0 {
		q.qkey = in.U32("qkey")
	}
	if mask&modPSN != 0 {
		q.psn = in.U32("sq_psn")
	}
	if mask&modRNR != 0 {
		q.rnrRetry = uint8(in.U("rnr_retry"))
	}
	if mask&modState == 0 {
		return nil
	}
	q.state = to
	switch to {
	case stateErr:
		m.flush(q)
	case stateReset:
		m.abort(q)
		i := int(q.num & (maxQP - 1))
		q.sq.tail, q.sq.head, q.sq.done, q.sq.out = 0, 0, 0, map[uint16]bool{}
		q.rq.tail, q.rq.fetched, q.rq.used, q.rq.cache, q.rq.broken = 0, 0, 0, nil, false
		q.rnrRetry = rnrInfinite
		for slot := range q.sq.trapped {
			m.forget(&q.sq, slot)
			q.sq.trapped[slot] = false
		}
		m.clearBells(i)
	}
	return nil
}

func (m *Model) queryQP(in parts.Msg, r []byte) *refusal {
	q, no := m.find(in)
	if no != nil {
		return no
	}
	le.PutUint32(r[0:], uint32(q.state))
	le.PutUint32(r[4:], q.qkey)
	le.PutUint32(r[8:], q.psn)
	if q.state == stateSQD && len(q.sq.out) > 0 {
		r[12] = 1
	}
	if q.typ == typeSRD {
		r[13] = q.rnrRetry
	}
	return nil
}

func (m *Model) destroyQP(in parts.Msg, _ []byte) *refusal {
	q, no := m.find(in)
	if no != nil {
		return no
	}
	m.abort(q)
	m.cqs[q.sq.cq].users--
	m.cqs[q.rq.cq].users--
	m.pds[q.pd].users--
	m.uars[q.uar].users--
	m.giveLLQ(q.sq.at, q.sq.size*int(q.sq.depth))
	i := int(q.num & (maxQP - 1))
	m.clearBells(i)
	m.liveQPs = slices.DeleteFunc(m.liveQPs, func(k int) bool { return k == i })
	*q = qp{}
	return nil
}

// abort drops the pending operations of a QP without completions.
func (m *Model) abort(q *qp) {
	m.drop(func(o *op) bool { return o.qp == q.handle })
}

// flush completes all work requests of a QP in error.
func (m *Model) flush(q *qp) {
	m.abandon(func(o *op) bool { return o.qp == q.handle }, compFlushed)
	m.stepSQ(q)
	for {
		wqe, err := m.nextReceive(q)
		if err != nil || wqe == nil {
			break
		}
		m.completeRecv(q, wqe[0].req, recvResult{status: compFlushed})
	}
}

// takeLLQ allocates pages for an LLQ.
func (m *Model) takeLLQ(n int) (uint64, bool) {
	pages := (n + pageSize - 1) / pageSize
	for i, run := 0, 0; i < len(m.llq); i++ {
		if run++; m.llq[i] {
			run = 0
		}
		if run == pages {
			for k := range pages {
				m.llq[i-k] = true
			}
			return uint64(i-pages+1) * pageSize, true
		}
	}
	return 0, false
}

func (m *Model) giveLLQ(at uint64, n int) {
	for k := range (n + pageSize - 1) / pageSize {
		m.llq[int(at/pageSize)+k] = false
	}
}

// ring rings the doorbell at an offset of its BAR.
func (m *Model) ring(off uint64, v uint32) error {
	u, at := int((off-m.uarBase())/uarSize), off%uarSize
	if u >= len(m.uars) || !m.uars[u].live {
		return fmt.Errorf("UAR %d is not allocated", u)
	}
	if at >= cqDoorbells {
		i := int(at-cqDoorbells) / 4
		if q := &m.cqs[i]; !q.live || int(q.uar) != u || !q.hasBell {
			return fmt.Errorf("UAR %d has no doorbell of a CQ there", u)
		}
		return m.cqDoorbell(i, v)
	}
	q := &m.qps[at/8]
	switch {
	case !q.live || int(q.uar) != u:
		return fmt.Errorf("UAR %d has no doorbell of a QP there", u)
	case at%8 == 0:
		return m.sqDoorbell(q, v, true)
	}
	return m.rqDoorbell(q, v)
}
