package mlx5sim

// responder is a QP's receiving half.
type responder struct {
	expected uint32 // packet sequence number
	messages uint32 // 24 bits: completed, as acknowledgements say
	nakked   bool   // a gap was told of

	in *incoming // a message that has begun
}

// incoming is a message of which not all packets have come.
type incoming struct {
	write bool
	w     []byte // receive WQE of a send
	idx   uint32
	n     int // bytes so far
	at    uint64
	rkey  uint32
	total int // of a write
}

// receiveConnected takes a packet of RC.
func (m *Model) receiveConnected(q *qp, p *packet) {
	switch {
	case p.op == rcAck:
		m.receiveAck(q, p)
		return
	case p.op >= rcReadFirst && p.op <= rcReadOnly:
		m.receiveReadData(q, p)
		return
	case p.op > rcReadRequest:
		m.refusePacket(q, p, nakInvalid, nil)
		return
	}
	switch d := after(p.psn, q.expected); {
	case d < 0:
		m.countQ(q.recv.counter, "duplicate_request")
		if p.op == rcReadRequest {
			m.answerRead(q, p, false)
		} else {
			m.acknowledge(q, (q.expected-1)&0xffffff, ackOK)
		}
	case d > 0:
		m.countQ(q.recv.counter, "out_of_sequence")
		if !q.nakked {
			q.nakked = true
			m.acknowledge(q, q.expected, nakSequence)
		}
	case p.op == rcReadRequest:
		q.nakked = false
		m.answerRead(q, p, true)
	default:
		q.nakked = false
		m.receiveMessage(q, p)
	}
}

func (m *Model) acknowledge(q *qp, psn uint32, syndrome uint8) {
	m.to(q, &packet{op: rcAck, psn: psn, body: be.AppendUint32(nil, uint32(syndrome)<<24|q.messages)})
}

// refusePacket answers what cannot be done, and ends the QP. Where a receive WQE was taken it is completed in error.
func (m *Model) refusePacket(q *qp, p *packet, nak uint8, err *wqeError) {
	m.acknowledge(q, p.psn, nak)
	if err != nil && q.in != nil && !q.in.write {
		m.host.Refuse("QP %#x, receive WQE %#x: %v (syndrome %02xh)", q.id, q.in.idx, err, err.synd)
		m.failReceive(q, q.in.idx, err.synd)
		return
	}
	m.setQPState(q, qpError)
}

// receiveMessage takes the next packet of a send or a write.
func (m *Model) receiveMessage(q *qp, p *packet) {
	write := p.op >= rcWriteFirst
	op := p.op
	if write {
		op -= rcWriteFirst - rcSendFirst
	}
	first := op == rcSendFirst || op == rcSendOnly || op == rcSendOnlyImm
	last := op != rcSendFirst && op != rcSendMiddle
	imm := op == rcSendLastImm || op == rcSendOnlyImm
	if first == (q.in != nil) || !first && q.in.write != write {
		m.refusePacket(q, p, nakInvalid, nil)
		return
	}
	head := 0
	if write && first {
		head += rethSize
	}
	var value []byte
	if imm {
		head += 4
	}
	if len(p.body) < head {
		m.refusePacket(q, p, nakInvalid, nil)
		return
	}
	if imm {
		value = p.body[head-4 : head]
	}
	data := p.body[head:]
	in := q.in
	if first {
		in = &incoming{write: write}
		if write {
			in.at, in.rkey, in.total = be.Uint64(p.body), be.Uint32(p.body[8:]), int(be.Uint32(p.body[12:]))
		}
	}
	if first && !write || write && last && imm { // it takes a receive WQE
		w, idx, ok := m.takeReceive(q)
		if !ok {
			m.countQ(q.recv.counter, "out_of_buffer")
			m.acknowledge(q, p.psn, ackRNR|uint8(q.ctx.U("min_rnr_nak")))
			return
		}
		in.w, in.idx = w, idx
	}
	q.in = in
	if write {
		if nak := m.writeRemote(q, in, data); nak != 0 {
			m.refusePacket(q, p, nak, nil)
			return
		}
	} else if err := m.spreadReceive(q, in, data); err != nil {
		nak := uint8(nakOperation)
		if err.synd == syndLocalLength {
			nak = nakInvalid
		}
		m.refusePacket(q, p, nak, err)
		return
	}
	in.n += len(data)
	q.expected = (q.expected + 1) & 0xffffff
	if last {
		q.messages = (q.messages + 1) & 0xffffff
		q.in = nil
	}
	if p.ack {
		m.acknowledge(q, p.psn, ackOK)
	}
	if last && (!write || imm) {
		e := m.received(q, in.idx, in.n)
		copy(e[0x24:], value)
		switch {
		case write:
			e[63] = cqeResponseWriteImm << 4
		case imm:
			e[63] = cqeResponseSendImm << 4
		default:
			e[63] = cqeResponseSend << 4
		}
		m.complete(m.obj.cqs.m[q.recv.cqn], e, p.se)
	}
}

// spreadReceive writes a packet of a send behind what came before it.
func (m *Model) spreadReceive(q *qp, in *incoming, data []byte) *wqeError {
	if len(data) == 0 {
		return nil
	}
	return m.spread(&q.recv.workQueue, scatterList(in.w), in.n, data)
}

// scatterList reads a receive WQE.
func scatterList(w []byte) (list []segment) {
	for ; len(w) >= wqeSeg; w = w[wqeSeg:] {
		n, key := int(be.Uint32(w)&^(1<<31)), be.Uint32(w[4:])
		if key == endOfList || n == 0 {
			break
		}
		list = append(list, segment{key: key, at: be.Uint64(w[8:]), n: n})
	}
	return list
}

// writeRemote does a packet of an RDMA write. It returns how that is refused, or 0.
func (m *Model) writeRemote(q *qp, in *incoming, data []byte) uint8 {
	if in.n+len(data) > in.total {
		return nakInvalid
	}
	if len(data) == 0 {
		return 0
	}
	pieces, err := m.translate(in.rkey, in.at+uint64(in.n), len(data), q.recv.pd, false, remoteWrite)
	if err != nil || !q.ctx.Is("rwe") {
		return nakAccess
	}
	m.countQ(q.recv.counter, "rx_write_requests")
	for _, p := range pieces {
		if m.host.DMAWrite(p.at, data[:p.n]) != nil {
			return nakOperation
		}
		data = data[p.n:]
	}
	return 0
}

// answerRead sends what a read asks for.
func (m *Model) answerRead(q *qp, p *packet, next bool) {
	if len(p.body) < rethSize || next && q.in != nil {
		m.refusePacket(q, p, nakInvalid, nil)
		return
	}
	at, key, n := be.Uint64(p.body), be.Uint32(p.body[8:]), int(be.Uint32(p.body[12:]))
	mtu := q.mtuBytes()
	var data []byte
	if n > 0 {
		pieces, err := m.translate(key, at, n, q.recv.pd, false, remoteRead)
		if err != nil || !q.ctx.Is("rre") || n > 1<<24 {
			m.refusePacket(q, p, nakAccess, nil)
			return
		}
		for _, s := range pieces {
			from := len(data)
			data = append(data, make([]byte, s.n)...)
			if m.host.DMARead(s.at, data[from:]) != nil {
				m.refusePacket(q, p, nakOperation, nil)
				return
			}
		}
	}
	m.countQ(q.recv.counter, "rx_read_requests")
	packets := max(1, (n+mtu-1)/mtu)
	if next {
		q.expected = (q.expected + uint32(packets)) & 0xffffff
		q.messages = (q.messages + 1) & 0xffffff
	}
	for i := range packets {
		a := &packet{op: rcReadMiddle, psn: (p.psn + uint32(i)) & 0xffffff}
		switch {
		case packets == 1:
			a.op = rcReadOnly
		case i == 0:
			a.op = rcReadFirst
		case i == packets-1:
			a.op = rcReadLast
		}
		if a.op != rcReadMiddle {
			a.body = be.AppendUint32(nil, ackOK<<24|q.messages)
		}
		a.body = append(a.body, data[i*mtu:min(n, (i+1)*mtu)]...)
		m.to(q, a)
	}
}
