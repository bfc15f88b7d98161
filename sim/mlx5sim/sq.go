package mlx5sim

import "fmt"

// Send WQE, PRM "Send WQE Format".
const (
	wqebb     = 64
	wqeSeg    = 16
	ctrlSize  = 16
	opNop     = 0x00
	opSend    = 0x0a
	opLSO     = 0x0e
	maxWQE    = 0x400 // cap max_wqe_sz_sq
	sqBurst   = 64    // WQEs that one Step executes on one queue
	inlineBit = 1 << 31

	ceBits   = 0x0c // of the control segment's byte 11: when to write a completion
	ceAlways = 0x08

	csL3 = 1 << 6
	csL4 = 1 << 7
)

type sq struct {
	workQueue
	uar     uint32
	tis     uint32
	made    uint64 // its number, in the order of creation
	inline  uint64 // min_wqe_inline_mode
	posted  uint32 // 16 bits: the index after the last WQE announced by a doorbell
	rung    bool   // a doorbell was rung since the queue was last in reset
	wqe     []byte // the WQE that ends at posted, pushed by BlueFlame
	wqeAt   uint32
	packets uint64
	pushed  uint64 // WQEs that needed no fetch
	qp      *qp    // the QP that it belongs to; nil for an Ethernet queue
}

func (m *Model) createSQ(c *call) *refusal {
	in := c.in
	q := &sq{uar: in.U32("uar_page"), tis: in.U32("tis_num_0"), inline: in.U("min_wqe_inline_mode")}
	if r := m.rawTX(); r != nil {
		return r
	}
	if r := m.newWorkQueue(in, &q.workQueue); r != nil {
		return r
	}
	u, r := m.doorbellPage(q.uar)
	if r != nil {
		return r
	}
	var t *tis
	if in.U("tis_lst_sz") == 1 {
		if t, r = m.obj.tiss.get(q.tis); r != nil {
			return r
		}
	}
	switch {
	case in.U("tis_lst_sz") > 1, t == nil && q.tis != 0:
		return refuse(stBadParam,
			"tis_lst_sz is %d with tis_num_0 %#x, expected a list of 1, or none for a queue that sends nothing",
			in.U("tis_lst_sz"), q.tis)
	case q.logEntry != 6:
		return refuse(stBadParam, "log_wq_stride is %d, a send queue has 6", q.logEntry)
	case in.Is("allow_multi_pkt_send_wqe"), in.Is("reg_umr"), in.Is("allow_swp"):
		return refuse(stBadParam, "allow_multi_pkt_send_wqe %d, reg_umr %d, allow_swp %d without the capability",
			in.U("allow_multi_pkt_send_wqe"), in.U("reg_umr"), in.U("allow_swp"))
	case q.inline > 3:
		return refuse(stBadParam, "min_wqe_inline_mode is %d, expected 0 to 3", q.inline)
	}
	if r := m.obj.sqs.add(m, q); r != nil {
		return r
	}
	m.sqsMade++
	q.made = m.sqsMade
	m.holdQueue(&q.workQueue, 1)
	u.held++
	if t != nil {
		t.held++
	}
	c.out.Set("sqn", uint64(q.id))
	return nil
}

func (m *Model) modifySQ(c *call) *refusal {
	q, r := m.obj.sqs.get(c.in.U32("sqn"))
	if r != nil {
		return r
	}
	if b := c.in.U("modify_bitmask"); b != 0 {
		return refuse(stBadParam, "modify_bitmask is %#x: the model changes the state only", b)
	}
	want := c.in.U32("state")
	if r := change(&q.workQueue, c.in.U32("sq_state"), want); r != nil {
		return r
	}
	q.setState(want)
	return nil
}

func (q *sq) setState(s uint32) {
	if q.state = s; s == stateReset {
		q.head, q.posted, q.wqe, q.broken, q.rung = 0, 0, nil, false, false
	}
}

func (m *Model) destroySQ(c *call) *refusal {
	q, r := m.obj.sqs.remove(m, c.in.U32("sqn"))
	if r == nil {
		m.holdQueue(&q.workQueue, -1)
		m.obj.uars.m[q.uar].held--
		if t := m.obj.tiss.m[q.tis]; t != nil {
			t.held--
		}
	}
	return r
}

func (m *Model) querySQ(c *call) *refusal {
	q, r := m.obj.sqs.get(c.in.U32("sqn"))
	if r != nil {
		return r
	}
	q.query(c.out)
	c.out.Set("uar_page", uint64(q.uar))
	c.out.Set("tis_num_0", uint64(q.tis))
	c.out.Set("tis_lst_sz", uint64(min(q.tis, 1)))
	c.out.Set("min_wqe_inline_mode", q.inline)
	return nil
}

// ahead is the signed distance from the end of the posted WQEs to a WQE.
func (q *sq) ahead(idx uint32) int { return int(int16(idx - q.posted)) }

// sendQueue returns an Ethernet send queue, or that of a QP.
func (m *Model) sendQueue(id uint32) *sq {
	if q := m.obj.sqs.m[id]; q != nil {
		return q
	}
	if q := m.obj.qps.m[id]; q != nil {
		return q.send
	}
	return nil
}

// ringSQ handles a doorbell: the first eight bytes of the last WQE posted and, if it was pushed, the WQE itself. A
// polled doorbell may be found after a newer one, which already announced its WQE. If an earlier one was never found,
// the push may be a mix of both, as may a suspect one: ringSQ reports whether the push can be trusted.
func (m *Model) ringSQ(u uint32, ctrl uint64, wqe []byte, polled, suspect bool) bool {
	q := m.sendQueue(uint32(ctrl>>8) & 0xffffff)
	if q == nil {
		m.host.Errorf("SQ doorbell %016x in UAR %#x: SQ %#x does not exist", ctrl, u, uint32(ctrl>>8)&0xffffff)
		return true
	}
	idx := uint32(ctrl>>40) & 0xffff
	ds := uint32(ctrl & 0x3f)
	switch {
	case q.uar != u:
		m.host.Errorf("SQ %#x: doorbell in UAR %#x, the queue has %#x", q.id, u, q.uar)
	case q.state == stateReset:
		m.host.Errorf("SQ %#x: doorbell for WQE %#x while the queue is in reset", q.id, idx)
		return true
	}
	if polled && q.ahead(idx) < 0 && q.ahead(idx) >= -int(q.entries()) {
		return !suspect
	}
	n := max(1, (ds*wqeSeg+wqebb-1)/wqebb)
	ahead := (idx + n - q.head) & 0xffff
	if q.state == stateReady && q.rung && (idx+n)&0xffff == q.posted {
		m.host.Warnf("SQ %#x: the doorbell for WQE %#x is rung again", q.id, idx)
		return true
	}
	if q.state == stateReady && (ahead > q.entries() || (idx-q.posted)&0xffff > q.entries()) {
		m.host.Errorf("SQ %#x: doorbell for WQE %#x of %d basic blocks, next is %#x and the ring has %d", q.id, idx, n,
			q.posted, q.entries())
		return true
	}
	ok := m.checkPosted(q, idx, n, wqe, polled && (suspect || idx != q.posted))
	q.posted, q.rung = (idx+n)&0xffff, true
	if wqe != nil && ok {
		q.wqe, q.wqeAt = append([]byte(nil), wqe...), idx
	}
	return ok
}

// checkPosted checks everything that has to be written before a doorbell is rung: the doorbell record, and the WQE in
// the ring, because a device may drop a push and fetch the WQE instead. A NOP may request a completion in only one of
// the two: this is how drivers (Linux, wc.c) detect which one the device used. If the push may be a mix, a difference
// is not a violation, and checkPosted returns false.
func (m *Model) checkPosted(q *sq, idx, n uint32, wqe []byte, mixed bool) bool {
	h, ok := m.host.(peeker)
	if !ok || q.state != stateReady {
		return true
	}
	var rec [4]byte
	if h.Peek(q.dbr+4, rec[:]) == nil && (be.Uint32(rec[:])-idx-n)&0x8000 != 0 {
		m.host.Warnf("SQ %#x: doorbell for WQE %#x, the doorbell record says %#x: it is written first", q.id, idx,
			be.Uint32(rec[:]))
	}
	pushed, ring := m.differs(h, q, idx, wqe)
	if pushed == nil {
		return true
	}
	if !mixed {
		m.host.Warnf("SQ %#x, WQE %#x: pushed %x, the ring has %x: it is written there first", q.id, idx, pushed, ring)
	}
	return !mixed
}

// peeker is a host that lets the model read memory without counting it as DMA.
type peeker interface {
	Peek(iova uint64, p []byte) error
}

// differs returns the first basic block of a pushed WQE that differs from the ring, and the ring's content. Both are
// nil if there is no difference. A NOP may request a completion in only one of the two.
func (m *Model) differs(h peeker, q *sq, idx uint32, wqe []byte) (pushed, ring []byte) {
	for i := uint32(0); int(i)*wqebb < len(wqe); i++ {
		part := wqe[i*wqebb : min(int(i+1)*wqebb, len(wqe))]
		ring := make([]byte, len(part))
		if h.Peek(q.at(idx+i), ring) != nil {
			return nil, nil
		}
		if i == 0 && part[3] == opNop {
			ring[11] = ring[11]&^ceBits | part[11]&ceBits
		}
		if string(ring) != string(part) {
			return part, ring
		}
	}
	return nil, nil
}

// inRing reports whether a pushed WQE is identical in the ring and is the one that its queue expects.
func (m *Model) inRing(wqe []byte) bool {
	ctrl := be.Uint64(wqe)
	q, idx := m.sendQueue(uint32(ctrl>>8)&0xffffff), uint32(ctrl>>40)&0xffff
	h, ok := m.host.(peeker)
	if !ok || q == nil || q.state != stateReady || q.ahead(idx) < 0 {
		return true
	}
	pushed, _ := m.differs(h, q, idx, wqe)
	return pushed == nil
}

// stepSQs executes WQEs, one queue after the other.
func (m *Model) stepSQs() (busy bool) {
	if m.port.paused {
		return false
	}
	for _, q := range m.obj.sqs.m {
		for i := 0; i < sqBurst && q.head != q.posted && q.state != stateReset; i++ {
			m.executeWQE(q)
			busy = true
		}
	}
	for _, q := range m.obj.qps.m {
		busy = m.stepQP(q) || busy
	}
	return busy
}

// wqeError is an error that stops a send queue.
type wqeError struct {
	synd uint8
	text string
}

func (e *wqeError) Error() string { return e.text }

func badWQE(synd uint8, format string, args ...any) *wqeError {
	return &wqeError{synd, fmt.Sprintf(format, args...)}
}

func (m *Model) executeWQE(q *sq) {
	idx := q.head
	if q.state == stateError {
		m.flushSQ(q)
		return
	}
	w, err := m.fetchWQE(q, idx)
	if s := m.fault.send; s != 0 {
		m.fault.send = 0
		q.head = (idx + max(1, uint32(len(w)+wqebb-1)/wqebb)) & 0xffff
		m.failSQ(q, idx, opcodeOf(w), s)
		return
	}
	done := true
	switch {
	case err != nil:
	case q.qp != nil:
		done, err = m.sendWQE(q.qp, idx, w)
	default:
		err = m.send(q, w)
	}
	if err != nil {
		m.host.Errorf("SQ %#x, WQE %#x: %v (syndrome %02xh)", q.id, idx, err, err.synd)
		if w == nil {
			q.head = (q.head + 1) & 0xffff
		} else {
			q.head = (idx + uint32(len(w)+wqebb-1)/wqebb) & 0xffff
		}
		m.failSQ(q, idx, opcodeOf(w), err.synd)
		return
	}
	q.head = (idx + uint32(len(w)+wqebb-1)/wqebb) & 0xffff
	if done && w[11]&ceBits == ceAlways {
		m.sendCompletion(q, idx, w[3], w[11]&2 != 0)
	}
}

// fetchWQE returns the WQE at idx: the pushed one, or the one in host memory.
func (m *Model) fetchWQE(q *sq, idx uint32) ([]byte, *wqeError) {
	if q.wqe != nil && q.wqeAt == idx {
		w := q.wqe
		q.wqe = nil
		q.pushed++
		return w, m.checkCtrl(q, w, idx)
	}
	avail := (q.posted - idx) & 0xffff
	first := q.contiguous(idx, min(avail, 4)) // fetched in blocks of 256 bytes
	w := make([]byte, first*wqebb)
	if m.host.DMARead(q.at(idx), w) != nil {
		return nil, badWQE(syndLocalProt, "the ring cannot be read")
	}
	ds := int(w[7] & 0x3f)
	n := ds * wqeSeg
	if n < ctrlSize || uint32((n+wqebb-1)/wqebb) > avail {
		return nil, badWQE(syndLocalOp, "ds is %d, %d basic blocks were posted", ds, avail)
	}
	for len(w) < n {
		at := idx + uint32(len(w)/wqebb)
		k := q.contiguous(at, uint32((n-len(w)+wqebb-1)/wqebb))
		more := make([]byte, k*wqebb)
		if m.host.DMARead(q.at(at), more) != nil {
			return nil, badWQE(syndLocalProt, "the ring cannot be read")
		}
		w = append(w, more...)
	}
	return w[:n], m.checkCtrl(q, w, idx)
}

func (m *Model) checkCtrl(q *sq, w []byte, idx uint32) *wqeError {
	switch {
	case uint32(be.Uint16(w[1:])) != idx:
		return badWQE(syndLocalOp, "wqe_index is %#x", be.Uint16(w[1:]))
	case be.Uint32(w[4:])>>8 != q.id:
		return badWQE(syndLocalOp, "qpn is %#x", be.Uint32(w[4:])>>8)
	case w[0] != 0:
		return badWQE(syndLocalOp, "opmod is %d", w[0])
	case w[8]|w[9]|w[10] != 0 || w[7]&0xc0 != 0 || w[11]&0x11 != 0:
		m.host.Warnf("SQ %#x, WQE %#x: control segment %x: signature and reserved bits have to be zero", q.id, idx,
			w[:16])
	}
	return nil
}

// sendCompletion writes the CQE of a WQE that requested one.
func (m *Model) sendCompletion(q *sq, idx uint32, opcode uint8, solicited bool) {
	var b [cqeSize]byte
	be.PutUint32(b[0x38:], uint32(opcode)<<24|q.id)
	be.PutUint32(b[0x20:], q.user)
	be.PutUint16(b[0x3c:], uint16(idx))
	be.PutUint64(b[0x30:], m.stamp(q.ts))
	b[63] = cqeRequest << 4
	m.complete(m.obj.cqs.m[q.cqn], &b, solicited)
}

// failSQ writes an error CQE and moves the queue to the error state.
func (m *Model) failSQ(q *sq, idx uint32, opcode, synd uint8) {
	m.errorCQE(&q.workQueue, cqeRequestErr, idx, opcode, synd)
	q.state, q.broken = stateError, true
	if q.qp == nil {
		return
	}
	if to := q.qp.state; q.qp.st == serviceUD || q.qp.st == serviceGSI {
		m.setQPState(q.qp, max(to, qpSQError))
	} else {
		m.setQPState(q.qp, qpError)
	}
}

// flushSQ completes the WQEs after a failed one, each with a separate error CQE.
func (m *Model) flushSQ(q *sq) {
	idx := q.head
	q.head = (q.head + 1) & 0xffff
	var w [8]byte
	if m.host.DMARead(q.at(idx), w[:]) == nil {
		n := (uint32(w[7]&0x3f)*wqeSeg + wqebb - 1) / wqebb
		if n > 0 && n <= (q.posted-idx)&0xffff {
			q.head = (idx + n) & 0xffff
		}
	}
	m.errorCQE(&q.workQueue, cqeRequestErr, idx, w[3], syndFlushed)
}
