package mlx4sim

import (
	"errors"
	"fmt"
	"time"

	"github.com/rebound-nic/rebound/sim/rdma"
)

// Opcodes of connections, except SEND.
const (
	opWrite    = 0x08
	opWriteImm = 0x09
	opRead     = 0x10
)

// Opcodes of receive completions.
const (
	receivedWriteImm = 0
	receivedSend     = 1
	receivedSendImm  = 2
)

// stepConnection sends a connection's pending packets, or flushes it after a failure.
func (m *Model) stepConnection(q *qp) bool {
	switch q.state {
	case qpRTS, qpSQDrained: // what was fetched is completed
		return q.conn.Step(connection{m, q})
	case qpError:
		return q.conn.Flush(connection{m, q})
	}
	return false
}

// postRequest posts a WQE of a connection: control segment, for reads and writes the remote address, data. An error in
// it is reported when the WQEs before it are done.
func (m *Model) postRequest(q *qp, idx uint32, w []byte, err *wqeError) {
	r := &rdma.Request{Index: idx}
	if err == nil {
		err = m.readRequest(q, r, w)
	}
	r.Broken = asError(err)
	q.conn.Post(connection{m, q}, r)
}

func (m *Model) readRequest(q *qp, r *rdma.Request, w []byte) (err *wqeError) {
	flags := be.Uint32(w[8:])
	r.Op, r.Signaled, r.Solicited = w[3]&0x1f, m.signaled(q, r.Index, flags), flags>>1&1 != 0
	segs := w[ctrlSize:]
	switch r.Op {
	case opNop:
		return nil
	case opSend, opSendImm:
		r.Kind = rdma.Send
	case opWrite, opWriteImm, opRead:
		if len(segs) < segSize {
			return badWQE(syndLocalOp, "opcode %02xh without a remote address", r.Op)
		}
		if r.Kind = rdma.Write; r.Op == opRead {
			r.Kind = rdma.Read
		}
		r.At, r.RKey = be.Uint64(segs), be.Uint32(segs[8:])
		segs = segs[segSize:]
	default:
		return badWQE(syndLocalOp,
			"opcode is %02xh, a connection has 00h (NOP), 0ah and 0bh (SEND), 08h and 09h (RDMA WRITE), 10h (RDMA READ)", r.Op)
	}
	if r.Op == opSendImm || r.Op == opWriteImm {
		r.Immediate = append(r.Immediate, w[12:16]...)
	}
	r.List, r.Length, err = segments(append([]byte(nil), segs...), len(w)-len(segs))
	return err
}

// segments parses a WQE's data segments, which start at byte at. Inline data ends at the latest with its 64-byte line.
func segments(b []byte, at int) (list []rdma.Segment, total int, err *wqeError) {
	for len(b) >= segSize {
		n, size := be.Uint32(b), segSize
		s := rdma.Segment{Key: be.Uint32(b[4:]), At: be.Uint64(b[8:]), N: int(n)}
		if n&inlineBit != 0 {
			l := int(n & 0x3ff)
			size = (4 + l + segSize - 1) &^ (segSize - 1)
			switch {
			case n&^(inlineBit|0x3ff) != 0 || size > len(b):
				return nil, 0, badWQE(syndLocalOp, "inline segment %08x, %d bytes are left", n, len(b))
			case at&63+4+l > 64:
				return nil, 0, badWQE(syndLocalOp,
					"inline segment of %d bytes at byte %d of the WQE crosses a line of 64 bytes", l, at)
			}
			s = rdma.Segment{Inline: b[4 : 4+l], N: l}
		}
		if total += s.N; s.N > maxMessage || total > maxMessage || n == 0 {
			return nil, 0, badWQE(syndLocalLength,
				"data segment of %d bytes (0 stands for 2^31), the message has %d up to here", n, total)
		}
		list = append(list, s)
		b, at = b[size:], at+size
	}
	return list, total, nil
}

// maxMessage is the longest message, bytes (log_max_msg).
const maxMessage = 1 << 30

// connected handles a packet of a connection.
func (m *Model) connected(q *qp, p *packet) bool {
	if q.state != qpRTR && q.state != qpRTS && q.state != qpSQDrained {
		m.count.rxNoQueue++
		return false
	}
	if p.PKey&0x7fff != m.port.ib.pkeys[q.ctx.U("pkey_index")&127]&0x7fff {
		m.port.ib.badPKeys++
		return false
	}
	if q.state == qpRTR && !q.met {
		q.met = true
		m.queueEvent(eventComm, q)
	}
	q.conn.Receive(connection{m, q}, &p.Packet)
	return true
}

// connection is the transport's view of a QP.
type connection struct {
	m *Model
	q *qp
}

func (c connection) Now() time.Duration { return c.m.host.Now() }
func (c connection) OnWire() bool       { return c.m.host.OnWire() }

func (c connection) Transmit(p *rdma.Packet) {
	p.QPN = c.q.ctx.U32("remote_qpn")
	c.m.sendPacket(c.q, c.m.pathOf(c.q), p)
}

// pathOf returns the destination of a connection's packets.
func (m *Model) pathOf(q *qp) *path {
	x := q.ctx
	to := &path{sl: uint8(x.U("sched_queue") >> 2 & 0xf), tclass: uint8(x.U("tclass")), hops: uint8(x.U("hop_limit")),
		dlid:    uint16(x.U("rlid")),
		srcBits: uint16(x.U("my_lid")), flow: x.U32("flow_label"), global: x.Is("grh"), source: x.I("mgid_index"),
		dgid: [16]byte(x.Bytes("rgid")), smac: m.opt.MAC}
	if m.port.link == Ethernet {
		be.PutUint16(to.dmac[:], uint16(x.U("dmac_h")))
		be.PutUint32(to.dmac[2:], x.U32("dmac_l"))
		if v := m.port.macs[x.U("my_lid")]; v>>63 != 0 { // on Ethernet it is an index of the MAC table
			be.PutUint16(to.smac[:], uint16(v>>32))
			be.PutUint32(to.smac[2:], uint32(v))
		}
	}
	return to
}

// memory is the memory that the QP may access, with a key that permits need.
func (c connection) memory(need uint32) rdma.Memory {
	return rdma.Memory{Bus: c.m.host, Translate: func(key uint32, at uint64, n int) ([]rdma.Piece, error) {
		return c.m.translate(key, at, n, c.q.pd, c.q.rlky && need <= localWrite, need)
	}}
}

func (c connection) Gather(list []rdma.Segment, off, n int) ([]byte, error) {
	b, err := c.memory(localRead).Gather(list, off, n)
	return b, asError(badMemory(err))
}

func (c connection) Scatter(list []rdma.Segment, off int, b []byte) error {
	return asError(badMemory(c.memory(localWrite).Scatter(list, off, b)))
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

// asError converts a nil pointer to a nil error.
func asError(err *wqeError) error {
	if err == nil {
		return nil
	}
	return err
}

// Is lets the transport recognize a receive WQE that is too short.
func (e *wqeError) Is(target error) bool { return target == rdma.ErrRoom && e.synd == syndLocalLength }

func (c connection) ReadMemory(key uint32, at uint64, n int) ([]byte, error) {
	if !c.q.ctx.Is("rre") {
		return nil, rdma.ErrAccess
	}
	return c.memory(remoteRead).Read(key, at, n)
}

func (c connection) WriteMemory(key uint32, at uint64, b []byte) error {
	if !c.q.ctx.Is("rwe") {
		return rdma.ErrAccess
	}
	return c.memory(remoteWrite).Write(key, at, b)
}

func (c connection) TakeReceive() (list []rdma.Segment, idx uint32, ok bool) {
	var w []byte
	if c.q.onSRQ {
		w, idx = c.m.takeShared(c.m.obj.srqs[c.q.srqn])
	} else if w = c.m.nextRecv(c.q); w != nil {
		idx = c.q.rhead
		c.q.rhead = (idx + 1) & 0xffff
	}
	return scatterList(w), idx, w != nil
}

// scatterList parses a receive WQE.
func scatterList(w []byte) (list []rdma.Segment) {
	for ; len(w) >= segSize; w = w[segSize:] {
		n, key := be.Uint32(w), be.Uint32(w[4:])
		if key == invalidLKey || n == 0 || n > maxMessage {
			break
		}
		list = append(list, rdma.Segment{Key: key, At: be.Uint64(w[8:]), N: int(n)})
	}
	return list
}

func (c connection) Done(r *rdma.Request) {
	if r.Signaled {
		c.m.sendCQE(c.q, r.Index, r.Op, r.Length)
	}
}

// syndromes maps faults to the syndromes in completions.
var syndromes = map[rdma.Fault]uint8{rdma.Flushed: syndFlushed, rdma.RemoteInvalid: syndRemoteInvalid,
	rdma.RemoteAccess:    syndRemoteAccess,
	rdma.RemoteOperation: syndRemoteOp, rdma.Retries: syndRetries, rdma.RNRRetries: syndRNRRetries}

func (c connection) Failed(r *rdma.Request, f rdma.Fault, err error) {
	synd := syndromes[f]
	if f == rdma.Local {
		synd = c.refused(fmt.Sprintf("WQE %#x", r.Index&0xffff), err)
	}
	c.m.errorCQE(c.m.obj.cqs[c.q.scq], c.q.id, r.Index, true, synd)
}

func (c connection) refused(what string, err error) uint8 {
	synd := err.(*wqeError).synd
	c.m.host.Errorf("%v, %s: %v (syndrome %02xh)", c.q, what, err, synd)
	return synd
}

func (c connection) Received(r rdma.Received) {
	q := c.q
	q.received++
	var e [32]byte
	be.PutUint32(e[:], q.id)
	copy(e[4:], r.Immediate)
	to := c.m.pathOf(q)
	be.PutUint32(e[8:], q.ctx.U32("remote_qpn"))
	if to.global {
		e[8] |= 0x80
	}
	be.PutUint32(e[0x0c:], uint32(to.sl)<<28|uint32(to.dlid))
	be.PutUint32(e[0x14:], uint32(r.N))
	be.PutUint16(e[0x18:], uint16(r.Index))
	switch {
	case r.Write:
		e[31] = receivedWriteImm
	case r.Immediate != nil:
		e[31] = receivedSendImm
	default:
		e[31] = receivedSend
	}
	c.m.complete(c.m.obj.cqs[q.rcq], &e, r.Solicited)
}

func (c connection) ReceiveFailed(idx uint32, err error) {
	c.m.errorCQE(c.m.obj.cqs[c.q.rcq], c.q.id, idx, false, c.refused(fmt.Sprintf("receive WQE %#x", idx), err))
}

// Refused sends an event to the driver, because no completion reports the fault.
func (c connection) Refused(f rdma.Fault) {
	kind, synd := uint8(eventWQRequest), syndromes[f]
	if f == rdma.RemoteAccess {
		kind = eventWQAccess
	}
	c.m.diag.refused[synd&0x1f]++
	c.m.queueEvent(kind, c.q)
}

func (c connection) Fail() { c.m.failQP(c.q) }

func (c connection) Count(e rdma.Event) { c.m.diag.transport[e]++ }

// queueEvent sends an event about a QP.
func (m *Model) queueEvent(kind uint8, q *qp) {
	var d [eventData]byte
	be.PutUint32(d[:], q.id)
	m.event(kind, 0, d[:])
}
