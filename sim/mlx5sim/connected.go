package mlx5sim

import (
	"fmt"
	"time"

	"github.com/rebound-nic/rebound/sim/rdma"
)

// postRequest posts a WQE of a connection: control segment, the remote address for reads and writes, data.
func (m *Model) postRequest(q *qp, idx uint32, w []byte) *wqeError {
	r := &rdma.Request{Index: idx, Op: w[3], Signaled: w[11]&ceBits == ceAlways, Solicited: w[11]&2 != 0}
	segs := w[ctrlSize:]
	switch r.Op {
	case opNop:
		q.conn.Post(connection{m, q}, r)
		return nil
	case opSend, opSendImm:
		r.Kind = rdma.Send
	case opWrite, opWriteImm, opRead:
		if len(segs) < wqeSeg {
			return badWQE(syndLocalOp, "opcode %02xh without a remote address", r.Op)
		}
		r.Kind = rdma.Write
		if r.Op == opRead {
			r.Kind = rdma.Read
		}
		r.At, r.RKey = be.Uint64(segs), be.Uint32(segs[8:])
		segs = segs[wqeSeg:]
	default:
		return badWQE(syndLocalOp, "opcode is %02xh: the model has SEND, RDMA WRITE, with immediate, and RDMA READ",
			r.Op)
	}
	if r.Op == opSendImm || r.Op == opWriteImm {
		r.Immediate = append(r.Immediate, w[12:16]...)
	}
	var err *wqeError
	if r.List, r.Length, err = segments(append([]byte(nil), segs...)); err != nil {
		return err
	}
	q.conn.Post(connection{m, q}, r)
	return nil
}

// stepQP executes WQEs, sends packets, and checks the timers.
func (m *Model) stepQP(q *qp) (busy bool) {
	if q.state == qpError {
		return m.flushQP(q)
	}
	if q.send == nil || q.send.state == stateReset {
		return false
	}
	for i := 0; i < sqBurst && q.send.head != q.send.posted && q.conn.Pending() < rdma.MaxPending &&
		q.send.state != stateReset; i++ {
		m.executeWQE(q.send)
		busy = true
	}
	if q.st == serviceRC && q.state == qpRTS {
		busy = q.conn.Step(connection{m, q}) || busy
	}
	return busy
}

// flushQP completes all posted WQEs in error, in order.
func (m *Model) flushQP(q *qp) (busy bool) {
	busy = q.conn.Flush(connection{m, q})
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

// path is the path of a connection's packets.
func (q *qp) path() *path {
	p := &path{ip: [16]byte(q.ctx.Bytes("rgid_rip")), source: q.ctx.U32("src_addr_index"),
		hops:   uint8(q.ctx.U("hop_limit")),
		tclass: uint8(q.ctx.U("dscp")<<2 | q.ctx.U("ecn")), sport: uint16(q.ctx.U("udp_sport")),
		flow: q.ctx.U32("flow_label")}
	be.PutUint16(p.mac[:], uint16(q.ctx.U("rmac_47_32")))
	be.PutUint32(p.mac[2:], q.ctx.U32("rmac_31_0"))
	return p
}

// connection implements the transport's view of a QP.
type connection struct {
	m *Model
	q *qp
}

func (c connection) Now() time.Duration { return c.m.host.Now() }
func (c connection) OnWire() bool       { return c.m.host.OnWire() }

// Transmit sends a packet. The address existed when the connection was made; if it was removed, packets are lost.
func (c connection) Transmit(p *rdma.Packet) {
	p.PKey, p.QPN = 0xffff, c.q.ctx.U32("remote_qpn")
	c.m.sendPacket(c.q.path(), p)
}

func (c connection) Gather(list []rdma.Segment, off, n int) ([]byte, error) {
	b, err := c.m.memory(&c.q.send.workQueue, localRead).Gather(list, off, n)
	return b, asError(badMemory(err))
}

func (c connection) Scatter(list []rdma.Segment, off int, b []byte) error {
	return asError(badMemory(c.m.memory(&c.q.recv.workQueue, localWrite).Scatter(list, off, b)))
}

// asError converts err without turning a nil pointer into a non-nil error.
func asError(err *wqeError) error {
	if err == nil {
		return nil
	}
	return err
}

// Is lets the transport recognise a receive WQE that is too short.
func (e *wqeError) Is(target error) bool { return target == rdma.ErrRoom && e.synd == syndLocalLength }

func (c connection) ReadMemory(key uint32, at uint64, n int) ([]byte, error) {
	if !c.q.ctx.Is("rre") {
		return nil, rdma.ErrAccess
	}
	return c.m.memory(&c.q.recv.workQueue, remoteRead).Read(key, at, n)
}

func (c connection) WriteMemory(key uint32, at uint64, b []byte) error {
	if !c.q.ctx.Is("rwe") {
		return rdma.ErrAccess
	}
	return c.m.memory(&c.q.recv.workQueue, remoteWrite).Write(key, at, b)
}

func (c connection) TakeReceive() (list []rdma.Segment, idx uint32, ok bool) {
	w, idx, ok := c.m.takeReceive(c.q)
	return scatterList(w), idx, ok
}

// scatterList parses a receive WQE.
func scatterList(w []byte) (list []rdma.Segment) {
	for ; len(w) >= wqeSeg; w = w[wqeSeg:] {
		n, key := int(be.Uint32(w)&^(1<<31)), be.Uint32(w[4:])
		if key == endOfList || n == 0 {
			break
		}
		list = append(list, rdma.Segment{Key: key, At: be.Uint64(w[8:]), N: n})
	}
	return list
}

func (c connection) Done(r *rdma.Request) {
	if r.Signaled {
		c.m.sendCompletion(c.q.send, r.Index, r.Op, r.Solicited)
	}
}

func (c connection) Failed(r *rdma.Request, f rdma.Fault, err error) {
	synd := map[rdma.Fault]uint8{rdma.Flushed: syndFlushed, rdma.RemoteInvalid: syndRemoteInvalid,
		rdma.RemoteAccess:    syndRemoteAccess,
		rdma.RemoteOperation: syndRemoteOp, rdma.Retries: syndRetries, rdma.RNRRetries: syndRNRRetries}[f]
	if f == rdma.Local {
		synd = c.refused(fmt.Sprintf("WQE %#x", r.Index), err)
	}
	c.m.errorCQE(&c.q.send.workQueue, cqeRequestErr, r.Index, r.Op, synd)
}

func (c connection) refused(what string, err error) uint8 {
	synd := err.(*wqeError).synd
	c.m.host.Errorf("QP %#x, %s: %v (syndrome %02xh)", c.q.id, what, err, synd)
	return synd
}

func (c connection) Received(r rdma.Received) {
	e := c.m.received(c.q, r.Index, r.N)
	copy(e[0x24:], r.Immediate)
	switch {
	case r.Write:
		e[63] = cqeResponseWriteImm << 4
	case r.Immediate != nil:
		e[63] = cqeResponseSendImm << 4
	default:
		e[63] = cqeResponseSend << 4
	}
	c.m.complete(c.m.obj.cqs.m[c.q.recv.cqn], e, r.Solicited)
}

func (c connection) ReceiveFailed(idx uint32, err error) {
	c.m.errorCQE(&c.q.recv.workQueue, cqeResponseErr, idx, 0, c.refused(fmt.Sprintf("receive WQE %#x", idx), err))
}

// Refused does nothing: the model has no QP events.
func (c connection) Refused(rdma.Fault) {}

func (c connection) Fail() { c.m.setQPState(c.q, qpError) }

func (c connection) Count(e rdma.Event) {
	if e == rdma.AckTimeout {
		c.m.count.ackTimeouts++
	}
	c.m.countQ(c.q.recv.counter, [...]string{rdma.AckTimeout: "local_ack_timeout_err",
		rdma.RNRNaks: "rnr_nak_retry_err", rdma.SequenceNaks: "packet_seq_err",
		rdma.Duplicates: "duplicate_request", rdma.OutOfSequence: "out_of_sequence", rdma.OutOfBuffer: "out_of_buffer",
		rdma.WriteRequests: "rx_write_requests", rdma.ReadRequests: "rx_read_requests"}[e])
}
