package mlx5sim

import (
	"errors"

	"github.com/rebound-nic/rebound/sim/rdma"
)

// Work request opcodes, PRM "Send WQE Format".
const (
	opSendInval = 0x01
	opWrite     = 0x08
	opWriteImm  = 0x09
	opSendImm   = 0x0b
	opRead      = 0x10
	opUMR       = 0x25

	avSize     = 48
	avExtended = 1 << 31 // dqp_dct: the address vector is complete
)

func segments(b []byte) (list []rdma.Segment, total int, err *wqeError) {
	for len(b) >= wqeSeg {
		n := be.Uint32(b)
		if n&inlineBit != 0 {
			l := int(n & 0x3ff)
			end := (4 + l + wqeSeg - 1) / wqeSeg * wqeSeg
			if n&^(inlineBit|0x3ff) != 0 || end > len(b) {
				return nil, 0, badWQE(syndLocalOp, "inline data segment %08x, %d bytes are left", n, len(b))
			}
			list = append(list, rdma.Segment{Inline: b[4 : 4+l], N: l})
			total += l
			b = b[end:]
			continue
		}
		if n == 0 || n > 1<<30 {
			return nil, 0, badWQE(syndLocalLength, "data segment of %d bytes", n)
		}
		list = append(list, rdma.Segment{Key: be.Uint32(b[4:]), At: be.Uint64(b[8:]), N: int(n)})
		total += int(n)
		b = b[wqeSeg:]
	}
	if total > 1<<30 {
		return nil, 0, badWQE(syndLocalLength, "message of %d bytes", total)
	}
	return list, total, nil
}

// memory is the memory that a queue may access for a use.
func (m *Model) memory(q *workQueue, u use) rdma.Memory {
	return rdma.Memory{Bus: bus{m}, Translate: func(key uint32, at uint64, n int) ([]rdma.Piece, error) {
		return m.translate(key, at, n, q.pd, q.rlky, u)
	}}
}

// badMemory is the error of a WQE whose data cannot be accessed.
func badMemory(err error) *wqeError {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, rdma.ErrRoom):
		return badWQE(syndLocalLength, "%v", err)
	}
	return badWQE(syndLocalProt, "%v", err)
}

// sendWQE executes a WQE of a QP. done is false if it completes only when acknowledged.
func (m *Model) sendWQE(q *qp, idx uint32, w []byte) (done bool, err *wqeError) {
	op := w[3]
	switch {
	case op == opUMR && q.st == serviceUMR:
		return true, m.umr(q.send, w)
	case op == opNop && q.st != serviceRC:
		return true, nil
	case q.st == serviceUD, q.st == serviceGSI:
		return true, m.sendDatagram(q, w)
	case q.st == serviceRC:
		return false, m.postRequest(q, idx, w)
	}
	return false, badWQE(syndLocalOp, "opcode %02xh on a QP of service type %#x", op, q.st)
}

// sendDatagram sends a UD datagram: control segment, address vector, data.
func (m *Model) sendDatagram(q *qp, w []byte) *wqeError {
	op := w[3]
	if op != opSend && op != opSendImm {
		return badWQE(syndLocalOp, "opcode is %02xh, a datagram QP has 0ah (SEND) and 0bh (SEND with immediate)", op)
	}
	if len(w) < ctrlSize+avSize || be.Uint32(w[ctrlSize+8:])&avExtended == 0 {
		return badWQE(syndLocalOp, "the address vector has to be there in full, %d bytes, with dqp_dct bit 31 set",
			avSize)
	}
	av := w[ctrlSize:]
	list, total, err := segments(w[ctrlSize+avSize:])
	if err != nil {
		return err
	}
	if most := m.datagramLimit(); total > most {
		return badWQE(syndLocalLength, "datagram of %d bytes, the port takes %d", total, most)
	}
	data, gathered := m.memory(&q.send.workQueue, localRead).Gather(list, 0, total)
	if gathered != nil {
		return badMemory(gathered)
	}
	key := be.Uint32(av)
	if key>>31 != 0 { // a privileged key is replaced by the QP's own (volume 1, 10.2.5)
		key = q.ctx.U32("q_key")
	}
	to := path{mac: [6]byte(av[20:]), ip: [16]byte(av[32:]), tclass: av[26], hops: av[27], sport: be.Uint16(av[14:]),
		source: be.Uint32(av[28:]) >> 20 & 0xff, flow: be.Uint32(av[28:]) & 0xfffff}
	p := &rdma.Packet{Op: rdma.UDSend, Solicited: w[11]&2 != 0, PKey: 0xffff, QPN: be.Uint32(av[8:]) & 0xffffff,
		PSN: q.conn.NextPSN}
	source := q.id
	if q.st == serviceGSI || q.ctx.U("deth_sqpn") == 1 {
		source = 1
	}
	p.Body = be.AppendUint32(be.AppendUint32(nil, key), source)
	if op == opSendImm {
		p.Op = rdma.UDSendImm
		p.Body = append(p.Body, w[12:16]...)
	}
	p.Body = append(p.Body, data...)
	q.conn.NextPSN = (q.conn.NextPSN + 1) & 0xffffff
	if !m.sendPacket(&to, p) {
		return badWQE(syndLocalOp, "source address %d is not set", to.source)
	}
	return nil
}

// datagramLimit is the largest payload: the largest InfiniBand MTU that fits into the port's MTU with the headers.
func (m *Model) datagramLimit() int {
	for n := 4096; n > 256; n /= 2 {
		if n+14+4+grhSize+8+rdma.BTHSize+rdma.DETHSize+4 <= m.port.frameLimit()+4 {
			return n
		}
	}
	return 256
}

// receiveDatagram receives a UD datagram: the global routing header comes first in the buffer.
func (m *Model) receiveDatagram(q *qp, p *packet) {
	head := rdma.DETHSize
	if p.Op == rdma.UDSendImm {
		head += 4
	}
	switch {
	case p.Op != rdma.UDSend && p.Op != rdma.UDSendImm, len(p.Body) < head:
		m.count.roceDropped++
		return
	case be.Uint32(p.Body) != q.ctx.U32("q_key"):
		m.count.roceDropped++ // a wrong key, which is not reported in any completion
		return
	}
	w, idx, ok := m.takeReceive(q)
	if !ok {
		m.countQ(q.recv.counter, "out_of_buffer")
		m.count.outOfBuffer++
		return
	}
	b := append(append([]byte(nil), p.grh[:]...), p.Body[head:]...)
	if err := m.scatter(q.recv, w, b); err != nil {
		m.host.Errorf("QP %#x, receive WQE %#x: %v (syndrome %02xh)", q.id, idx, err, err.synd)
		m.failReceive(q, idx, err.synd)
		return
	}
	e := m.received(q, idx, len(b))
	be.PutUint32(e[0x18:], 1<<28|uint32(p.kind)<<24|be.Uint32(p.Body[4:])&0xffffff) // the packet has a routing header
	e[63] = cqeResponseSend << 4
	if p.Op == rdma.UDSendImm {
		copy(e[0x24:], p.Body[rdma.DETHSize:head])
		e[63] = cqeResponseSendImm << 4
	}
	m.complete(m.obj.cqs.m[q.recv.cqn], e, p.Solicited)
}

// takeReceive returns the next receive WQE of a QP, and its index.
func (m *Model) takeReceive(q *qp) (w []byte, idx uint32, ok bool) {
	if q.shared != nil {
		w, idx = m.takeShared(q.shared)
		return w, idx, w != nil
	}
	if q.ctx.U("rq_type") != receiveOwn {
		return nil, 0, false
	}
	if w = m.nextRecv(q.recv); w == nil {
		return nil, 0, false
	}
	idx = q.recv.head
	q.recv.head = (q.recv.head + 1) & 0xffff
	return w, idx, true
}

// received starts the completion of a receive.
func (m *Model) received(q *qp, idx uint32, n int) *[cqeSize]byte {
	e := new([cqeSize]byte)
	user := q.recv.user
	if q.shared != nil && q.shared.xrcd != 0 {
		user = q.shared.user
	}
	be.PutUint32(e[0x20:], user)
	be.PutUint32(e[0x2c:], uint32(n))
	be.PutUint64(e[0x30:], m.stamp(q.recv.ts))
	be.PutUint32(e[0x38:], q.id)
	be.PutUint16(e[0x3c:], uint16(idx))
	return e
}

// failReceive completes a receive in error, and moves the QP to the error state.
func (m *Model) failReceive(q *qp, idx uint32, synd uint8) {
	m.errorCQE(&q.recv.workQueue, cqeResponseErr, idx, 0, synd)
	m.setQPState(q, qpError)
}
