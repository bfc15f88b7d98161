package mlx5sim

import "time"

// Opcodes of RC (InfiniBand volume 1, table 38).
const (
	rcSendFirst   = 0x00
	rcSendMiddle  = 0x01
	rcSendLast    = 0x02
	rcSendLastImm = 0x03
	rcSendOnly    = 0x04
	rcSendOnlyImm = 0x05
	rcWriteFirst  = 0x06
	rcWriteMiddle = 0x07
	rcWriteLast   = 0x08
	rcWriteLastIm = 0x09
	rcWriteOnly   = 0x0a
	rcWriteOnlyIm = 0x0b
	rcReadRequest = 0x0c
	rcReadFirst   = 0x0d
	rcReadMiddle  = 0x0e
	rcReadLast    = 0x0f
	rcReadOnly    = 0x10
	rcAck         = 0x11

	rethSize = 16
	aethSize = 4
)

// Syndromes of an acknowledgement (volume 1, 9.7.5.2.1): the high three bits are the kind.
const (
	ackOK        = 0x1f // no limit on what may be sent
	ackRNR       = 0x20 // receiver not ready, and its timer
	nakSequence  = 0x60
	nakInvalid   = 0x61
	nakAccess    = 0x62
	nakOperation = 0x63
)

// requester is a QP's sending half.
type requester struct {
	nextPSN  uint32
	requests []*request // posted and not completed, oldest first
	progress time.Duration
	resume   time.Duration // a receiver that was not ready is left alone until then
	retries  uint64
	rnrs     uint64
}

// request is a WQE that an acknowledgement completes.
type request struct {
	idx     uint32
	op      uint8
	ctrl    uint8 // completion wanted, solicited event
	imm     [4]byte
	at      uint64 // remote address and key
	rkey    uint32
	list    []segment
	length  int
	first   uint32 // packet sequence number
	packets int
	sent    int // packets that were sent; for a read 1 once it was asked for
	got     int // packets of a read's answer
}

const (
	windowPackets = 64  // sent and not acknowledged
	maxRequests   = 128 // taken from the ring
	askEach       = 16  // packets within a message ask for an acknowledgement
)

func (r *request) last() uint32 { return (r.first + uint32(r.packets) - 1) & 0xffffff }

// after is the signed distance of two packet sequence numbers.
func after(a, b uint32) int { return int(int32((a-b)<<8) >> 8) }

// postRequest takes a WQE: control segment, for reads and writes the remote address, data.
func (m *Model) postRequest(q *qp, idx uint32, w []byte) *wqeError {
	r := &request{idx: idx, op: w[3], ctrl: w[11], imm: [4]byte(w[12:]), first: q.nextPSN}
	segs := w[ctrlSize:]
	switch r.op {
	case opNop:
		q.requests = append(q.requests, r)
		return nil
	case opSend, opSendImm:
	case opWrite, opWriteImm, opRead:
		if len(segs) < wqeSeg {
			return badWQE(syndLocalOp, "opcode %02xh without a remote address", r.op)
		}
		r.at, r.rkey = be.Uint64(segs), be.Uint32(segs[8:])
		segs = segs[wqeSeg:]
	default:
		return badWQE(syndLocalOp, "opcode is %02xh: the model has SEND, RDMA WRITE, with immediate, and RDMA READ", r.op)
	}
	var err *wqeError
	if r.list, r.length, err = segments(append([]byte(nil), segs...)); err != nil {
		return err
	}
	r.packets = max(1, (r.length+q.mtuBytes()-1)/q.mtuBytes())
	q.nextPSN = (q.nextPSN + uint32(r.packets)) & 0xffffff
	if len(q.requests) == 0 {
		q.progress = m.host.Now()
	}
	q.requests = append(q.requests, r)
	return nil
}

// stepQP executes WQEs, sends packets, and looks at the timers.
func (m *Model) stepQP(q *qp) (busy bool) {
	if q.state == qpError {
		return m.flushQP(q)
	}
	if q.send == nil || q.send.state == stateReset {
		return false
	}
	for i := 0; i < sqBurst && q.send.head != q.send.posted && len(q.requests) < maxRequests && q.send.state != stateReset; i++ {
		m.executeWQE(q.send)
		busy = true
	}
	if q.st == serviceRC && q.state == qpRTS {
		m.finishNops(q)
		busy = m.sendRequests(q) || busy
		m.stepTimers(q)
	}
	return busy
}

// flushQP ends everything that is posted, in order.
func (m *Model) flushQP(q *qp) (busy bool) {
	for _, r := range q.requests {
		m.errorCQE(&q.send.workQueue, cqeRequestErr, r.idx, r.op, syndFlushed)
		busy = true
	}
	q.requests = nil
	for i := 0; i < sqBurst && q.send != nil && q.send.head != q.send.posted; i++ {
		m.flushSQ(q.send)
		busy = true
	}
	for i := 0; i < sqBurst && q.shared == nil; i++ {
		_, idx, ok := m.takeReceive(q)
		if !ok {
			break
		}
		m.errorCQE(&q.recv.workQueue, cqeResponseErr, idx, 0, syndFlushed)
		busy = true
	}
	return busy
}

// sendRequests sends what the window lets.
func (m *Model) sendRequests(q *qp) (busy bool) {
	if m.host.Now() < q.resume {
		return false
	}
	flying := 0
	for i, r := range q.requests {
		if r.op == opNop {
			continue
		}
		if r.op == opRead {
			if i > 0 { // one at a time, alone
				break
			}
			if r.sent == 0 {
				busy = m.sendRead(q, r)
			}
			break
		}
		if i > 0 && q.requests[0].op == opRead {
			break
		}
		for ; r.sent < r.packets && flying+r.sent < windowPackets; r.sent++ {
			if err := m.sendRequestPacket(q, r); err != nil {
				m.host.Refuse("QP %#x, WQE %#x: %v (syndrome %02xh)", q.id, r.idx, err, err.synd)
				m.failRequest(q, r, err.synd)
				return true
			}
			busy = true
		}
		if r.sent < r.packets {
			break
		}
		flying += r.packets
	}
	return busy
}

// path is where a connection's packets go.
func (q *qp) path() *path {
	p := &path{ip: [16]byte(q.ctx.Bytes("rgid_rip")), source: q.ctx.U32("src_addr_index"), hops: uint8(q.ctx.U("hop_limit")),
		tclass: uint8(q.ctx.U("dscp")<<2 | q.ctx.U("ecn")), sport: uint16(q.ctx.U("udp_sport")), flow: q.ctx.U32("flow_label")}
	be.PutUint16(p.mac[:], uint16(q.ctx.U("rmac_47_32")))
	be.PutUint32(p.mac[2:], q.ctx.U32("rmac_31_0"))
	return p
}

// to sends a packet of a connection. The address was there when the connection was made: if it went, packets are lost.
func (m *Model) to(q *qp, p *packet) {
	p.pkey, p.qpn = 0xffff, q.ctx.U32("remote_qpn")
	m.sendPacket(q.path(), p)
}

func (m *Model) sendRequestPacket(q *qp, r *request) *wqeError {
	i, mtu := r.sent, q.mtuBytes()
	off := i * mtu
	data, err := m.collect(&q.send.workQueue, r.list, off, min(mtu, r.length-off))
	if err != nil {
		return err
	}
	first, last := i == 0, i == r.packets-1
	write, imm := r.op == opWrite || r.op == opWriteImm, r.op == opSendImm || r.op == opWriteImm
	p := &packet{psn: (r.first + uint32(i)) & 0xffffff, ack: last || i%askEach == askEach-1 || i == windowPackets-1}
	switch {
	case first && last:
		p.op = rcSendOnly
	case first:
		p.op = rcSendFirst
	case last:
		p.op = rcSendLast
	default:
		p.op = rcSendMiddle
	}
	if write {
		p.op += rcWriteFirst - rcSendFirst
	}
	if write && first {
		p.body = appendRETH(p.body, r.at, r.rkey, r.length)
	}
	if last && imm {
		p.op++
		p.body = append(p.body, r.imm[:]...)
	}
	p.se = last && r.ctrl&2 != 0
	p.body = append(p.body, data...)
	m.to(q, p)
	return nil
}

func appendRETH(b []byte, at uint64, key uint32, n int) []byte {
	return be.AppendUint32(be.AppendUint32(be.AppendUint64(b, at), key), uint32(n))
}

// sendRead asks for what of a read has not come yet.
func (m *Model) sendRead(q *qp, r *request) bool {
	off := r.got * q.mtuBytes()
	m.to(q, &packet{op: rcReadRequest, psn: (r.first + uint32(r.got)) & 0xffffff, ack: true,
		body: appendRETH(nil, r.at+uint64(off), r.rkey, r.length-off)})
	r.sent = 1
	return true
}

// stepTimers sends again what was not acknowledged in time, and gives up after retry_count times.
func (m *Model) stepTimers(q *qp) {
	limit, now := q.ackTimeout(), m.host.Now()
	if limit == 0 || len(q.requests) == 0 || q.requests[0].sent == 0 || now < q.resume || now-q.progress < limit {
		return
	}
	m.countQ(q.recv.counter, "local_ack_timeout_err")
	q.retries++
	if q.retries > q.ctx.U("retry_count") {
		m.failRequest(q, q.requests[0], syndRetries)
		return
	}
	q.progress = now
	m.goBack(q, q.requests[0].first)
}

// goBack has everything from a sequence number on sent again.
func (m *Model) goBack(q *qp, psn uint32) {
	for _, r := range q.requests {
		switch {
		case r.op == opRead:
			r.sent = 0
		case r.sent > 0:
			r.sent = max(0, min(r.sent, after(psn, r.first)))
		}
	}
}

// failRequest ends a request in error, and the QP with it.
func (m *Model) failRequest(q *qp, r *request, synd uint8) {
	for len(q.requests) > 0 && q.requests[0] != r { // none before it can be completed any more
		m.errorCQE(&q.send.workQueue, cqeRequestErr, q.requests[0].idx, q.requests[0].op, syndFlushed)
		q.requests = q.requests[1:]
	}
	m.errorCQE(&q.send.workQueue, cqeRequestErr, r.idx, r.op, synd)
	q.requests = q.requests[1:]
	m.setQPState(q, qpError)
}

// acknowledged completes the requests up to a sequence number.
func (m *Model) acknowledged(q *qp, psn uint32) {
	for len(q.requests) > 0 {
		r := q.requests[0]
		if r.op != opNop && (after(psn, r.last()) < 0 || r.op == opRead && r.got < r.packets) {
			break
		}
		m.finish(q, r)
		q.progress, q.retries, q.rnrs = m.host.Now(), 0, 0
	}
	if len(q.requests) > 0 && after(psn, q.requests[0].first) >= 0 {
		q.progress, q.retries = m.host.Now(), 0 // a part of it
	}
}

func (m *Model) finish(q *qp, r *request) {
	q.requests = q.requests[1:]
	if r.ctrl&ceBits == ceAlways {
		m.sendCompletion(q.send, r.idx, r.op, r.ctrl&2 != 0)
	}
}

func (m *Model) finishNops(q *qp) {
	for len(q.requests) > 0 && q.requests[0].op == opNop {
		m.finish(q, q.requests[0])
	}
}

// rnrTimer is how long a receiver that is not ready wants to be left alone (volume 1, table 45), in units of 10 µs.
var rnrTimer = [32]time.Duration{65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
	4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152}

// receiveAck takes an acknowledgement.
func (m *Model) receiveAck(q *qp, p *packet) {
	if len(p.body) < aethSize || len(q.requests) == 0 || after(p.psn, q.nextPSN) >= 0 {
		return
	}
	synd := p.body[0]
	if synd>>5 == 0 {
		m.acknowledged(q, p.psn)
		return
	}
	m.acknowledged(q, (p.psn-1)&0xffffff)
	if len(q.requests) == 0 {
		return
	}
	switch {
	case synd>>5 == ackRNR>>5:
		m.countQ(q.recv.counter, "rnr_nak_retry_err")
		if q.rnrs++; q.ctx.U("rnr_retry") != 7 && q.rnrs > q.ctx.U("rnr_retry") {
			m.failRequest(q, q.requests[0], syndRNRRetries)
			return
		}
		q.resume = m.host.Now() + rnrTimer[synd&31]*10*time.Microsecond
		q.progress = q.resume
		m.goBack(q, p.psn)
	case synd == nakSequence:
		m.countQ(q.recv.counter, "packet_seq_err")
		m.goBack(q, p.psn)
	case synd == nakInvalid:
		m.failRequest(q, q.requests[0], syndRemoteInvalid)
	case synd == nakAccess:
		m.failRequest(q, q.requests[0], syndRemoteAccess)
	default:
		m.failRequest(q, q.requests[0], syndRemoteOp)
	}
}

// receiveReadData takes a packet of a read's answer.
func (m *Model) receiveReadData(q *qp, p *packet) {
	if p.op != rcReadMiddle {
		if len(p.body) < aethSize {
			return
		}
		p.body = p.body[aethSize:]
	}
	m.acknowledged(q, (p.psn-1)&0xffffff) // it tells of all before
	if len(q.requests) == 0 || q.requests[0].op != opRead {
		return
	}
	r := q.requests[0]
	off := r.got * q.mtuBytes()
	switch d := after(p.psn, (r.first+uint32(r.got))&0xffffff); {
	case d < 0:
		return
	case d > 0 || len(p.body) != min(q.mtuBytes(), r.length-off):
		r.sent = 0 // lost: ask for the rest again
		return
	}
	if err := m.spread(&q.send.workQueue, r.list, off, p.body); err != nil {
		m.host.Refuse("QP %#x, WQE %#x: %v (syndrome %02xh)", q.id, r.idx, err, err.synd)
		m.failRequest(q, r, err.synd)
		return
	}
	r.got++
	q.progress, q.retries = m.host.Now(), 0
	m.acknowledged(q, p.psn)
}
