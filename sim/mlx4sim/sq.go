package mlx4sim

import (
	"fmt"

	"github.com/rebound-nic/rebound/sim/rdma"
)

// Send WQE, PRM "Send WQE Format": a control segment, then the opcode's segments, in units of 16 bytes.
const (
	segSize  = 16
	ctrlSize = 16
	prefetch = 2048 // bytes of a send queue that the device reads at once
	sqBurst  = 64   // WQEs that one Step executes on one queue

	opNop     = 0x00
	opSend    = 0x0a
	opSendImm = 0x0b
	opLSO     = 0x0e

	ownerBit  = 1 << 31
	inlineBit = 1 << 31

	// Of the control segment's third dword.
	ctrlLoop     = 1 << 0 // force loopback
	ctrlNoICRC   = 1 << 1 // for Ethernet; otherwise: solicited
	ctrlComplete = 3 << 2
	ctrlIPSum    = 1 << 4
	ctrlL4Sum    = 1 << 5

	// Bits without a meaning in the control segment's first three dwords. Linux sets bit 6 of the first with LSO.
	ctrlReserved0 = 0x670000a0
	ctrlReserved1 = 0x00000080 // a pushed WQE has the QP's number above
	ctrlReserved2 = 0x0000ffc0

	insertCVLAN = 1 << 6 // of the byte before the size
	insertSVLAN = 1 << 7

	leastFrame = 17 // shorter ones are not padded as they should (Linux pads to this)
	leastMSS   = 32
	mostLSO    = 1<<logGSO + 256
)

// wqeError is an error that stops a send queue.
type wqeError struct {
	synd uint8
	text string
}

func (e *wqeError) Error() string { return e.text }

func badWQE(synd uint8, format string, args ...any) *wqeError {
	return &wqeError{synd, fmt.Sprintf(format, args...)}
}

// sendDoorbell makes a queue check for WQEs.
func (m *Model) sendDoorbell(u, v uint32) {
	qpn := v >> 8
	q := m.findQP(qpn)
	switch {
	case q == nil:
		m.host.Errorf("send doorbell %08x in UAR %#x: QP %#x is not the device's", v, u, qpn)
		return
	case v&0xff != 0:
		m.host.Warnf("send doorbell %08x in UAR %#x: reserved bits are set", v, u)
	}
	if q.uar != u {
		m.host.Errorf("send doorbell %08x in UAR %#x: %v has %#x", v, u, q, q.uar)
	}
	if q.rss.on {
		m.host.Errorf("send doorbell: %v spreads what arrives, and has no queues", q)
		return
	}
	if q.state < qpRTS {
		m.host.Warnf("send doorbell: %v is in %s, expected RTS", q, qpStates[q.state])
	}
	q.kick()
}

// kick makes a queue read WQEs from memory again: those that were prefetched and not yet executed may be older than the
// doorbell.
func (q *qp) kick() { q.kicked, q.fetch = true, nil }

// lookAtQueues kicks queues of the page whose next WQE is valid, and whose doorbell another store may have overwritten.
func (m *Model) lookAtQueues(u uint32) {
	h, ok := m.host.(interface {
		Peek(iova uint64, p []byte) error
	})
	if !ok {
		return
	}
	for _, q := range m.obj.qps {
		var w [4]byte
		if q.uar != u || q.kicked || q.rss.on || q.state != qpRTS || h.Peek(q.buf.at(q.send.at(q.head)), w[:]) != nil ||
			!q.valid(w[:], q.head) {
			continue
		}
		m.host.CountMMIOWrite(1)
		q.kick()
	}
}

// pushed handles a WQE from a BlueFlame register. It is used if it is complete and the next one; otherwise the push
// counts as a doorbell. A polled one may be a mix of two, if the driver was faster than the polling: then the ring
// decides.
func (m *Model) pushed(u uint32, b []byte, whole, polled bool) {
	qpn, idx := be.Uint32(b[4:])>>8, be.Uint32(b)>>8&0xffff
	q := m.findQP(qpn)
	if q == nil {
		m.host.Errorf("BlueFlame page %#x: %x is for QP %#x, which is not the device's", u, b[:8], qpn)
		return
	}
	if q.uar != u {
		m.host.Errorf("BlueFlame page %#x: WQE for %v, which has %#x", u, q, q.uar)
	}
	if q.rss.on {
		m.host.Errorf("BlueFlame page %#x: %v has no queues", u, q)
		return
	}
	if q.st == serviceMLX && qpn&0xc0 != 0 {
		m.host.Warnf("%v: a WQE is pushed, but bits 6 and 7 of the number ask for VLAN insertion where they are in it",
			q)
	}
	if polled && q.state == qpRTS && int16(uint16(idx)-uint16(q.head)) < 0 { // fetched with one before it
		return
	}
	q.kick()
	n := int(b[7]&0x3f) * segSize
	if !whole || n > len(b) || idx != q.head&0xffff || q.push != nil || q.state != qpRTS {
		return
	}
	if ring := m.peekWQE(q, n); ring != nil && string(ring) != string(b[:n]) {
		if polled {
			return
		}
		m.host.Warnf("%v, WQE %#x: pushed %x, the ring has %x: write the ring first, because a device may drop the push", q, idx, b[:n], ring)
	}
	q.push, q.pushAt = append([]byte(nil), b[:n]...), q.head
}

// peekWQE returns n bytes of the ring at the head, if the host allows the model to peek.
func (m *Model) peekWQE(q *qp, n int) (b []byte) {
	h, ok := m.host.(interface {
		Peek(iova uint64, p []byte) error
	})
	if !ok {
		return nil
	}
	stride := 1 << q.send.logStride
	for i := uint32(0); len(b) < n; i++ {
		part := make([]byte, min(stride, n-len(b)))
		if h.Peek(q.buf.at(q.send.at(q.head+i)), part) != nil {
			return nil
		}
		b = append(b, part...)
	}
	return b
}

// valid reports whether a WQE's ownership bit is correct for its lap.
func (q *qp) valid(w []byte, i uint32) bool { return be.Uint32(w)>>31 == i>>q.send.log&1 }

// stepQueues executes WQEs, one queue after the other.
func (m *Model) stepQueues() (busy bool) {
	if m.paused.Load() {
		return false
	}
	for _, q := range m.obj.qps {
		if m.pausedBy(q) {
			continue
		}
		if q.st == serviceRC {
			busy = m.stepConnection(q) || busy
		}
		if q.tellDrained && q.state == qpSQDrained && q.conn.Pending() == 0 {
			q.tellDrained = false
			m.queueEvent(eventSQDrained, q)
		}
		for i := 0; i < sqBurst && q.kicked && !q.rss.on && q.conn.Pending() < rdma.MaxPending && m.stepQP(q); i++ {
			busy = true
		}
	}
	return busy
}

// stepQP executes the next WQE. It reports whether there was one.
func (m *Model) stepQP(q *qp) bool {
	if q.state != qpRTS && q.state != qpSQError && q.state != qpError {
		return false
	}
	w, err := m.nextWQE(q)
	if w == nil && err == nil {
		q.kicked = false
		return false
	}
	idx := q.head
	n := uint32(1)
	if w != nil {
		n = max(1, uint32((len(w)+1<<q.send.logStride-1)>>q.send.logStride))
	}
	q.head += n
	if q.state != qpRTS {
		m.errorCQE(m.obj.cqs[q.scq], q.id, idx, true, syndFlushed)
		return true
	}
	if s := m.fault.send; s != 0 && err == nil {
		m.fault.send = 0
		m.failSend(q, idx, s)
		return true
	}
	if q.st == serviceRC {
		m.postRequest(q, idx, w, err)
		return true
	}
	if err == nil {
		err = m.send(q, idx, w)
	}
	if err != nil {
		m.host.Errorf("%v, WQE %#x: %v (syndrome %02xh)", q, idx&0xffff, err, err.synd)
		m.failSend(q, idx, err.synd)
		return true
	}
	if m.signaled(q, idx, be.Uint32(w[8:])) {
		m.sendCQE(q, idx, w[3]&0x1f, 0)
	}
	return true
}

// signaled reports whether a WQE requests a completion.
func (m *Model) signaled(q *qp, idx, flags uint32) bool {
	if c := flags & ctrlComplete; c != 0 && c != ctrlComplete {
		m.host.Warnf("%v, WQE %#x: the completion bits are %d, expected 0 or 3", q, idx&0xffff, c>>2)
		return false
	}
	return flags&ctrlComplete != 0
}

// nextWQE returns the WQE at head, if it is valid: pushed, prefetched, or read now.
func (m *Model) nextWQE(q *qp) ([]byte, *wqeError) {
	if q.push != nil && q.pushAt == q.head {
		w := q.push
		q.push = nil
		q.pushes++
		q.skip(len(w))
		if !q.valid(w, q.head) {
			m.host.Warnf("%v, WQE %#x: pushed with the wrong ownership bit", q, q.head&0xffff)
		}
		return w, nil
	}
	q.push = nil
	stride := 1 << q.send.logStride
	if len(q.fetch) == 0 {
		off := q.send.at(q.head)
		n := q.buf.piece(off, min(prefetch, q.send.off+q.send.bytes()-off))
		q.fetch = make([]byte, n)
		if m.host.DMARead(q.buf.at(off), q.fetch) != nil {
			q.fetch = nil
			return nil, badWQE(syndLocalProt, "the ring cannot be read")
		}
	}
	w := q.fetch
	if !q.valid(w, q.head) {
		q.fetch = nil
		return nil, nil
	}
	n := int(w[7]&0x3f) * segSize
	if n < ctrlSize || n > int(q.send.bytes()) || n > maxSQE {
		q.fetch = nil
		return nil, badWQE(syndLocalOp, "ds is %d: of a WQE of 16 to %d bytes", w[7]&0x3f, maxSQE)
	}
	for len(w) < n { // it continues after the fetched part, perhaps at the ring's start
		off := q.send.at(q.head + uint32(len(w)/stride))
		more := make([]byte, min(q.buf.piece(off, uint64(stride)), uint64(stride)))
		if m.host.DMARead(q.buf.at(off), more) != nil {
			q.fetch = nil
			return nil, badWQE(syndLocalProt, "the ring cannot be read")
		}
		w = append(w[:len(w):len(w)], more...)
	}
	w = w[:n]
	// The driver wrote the ownership bit last. A card reads each cache line atomically; this process copies words in
	// its own order, so some may be from before the bit was set. A second read, now that the bit is seen, is
	// consistent.
	if ring := m.peekWQE(q, n); ring != nil {
		w = ring
	}
	m.checkStale(q, w)
	q.remember(w)
	q.skip(n)
	return w, nil
}

// skip forgets the fetched bytes of a WQE of n.
func (q *qp) skip(n int) {
	stride := 1 << q.send.logStride
	n = (n + stride - 1) &^ (stride - 1)
	q.fetch = q.fetch[min(n, len(q.fetch)):]
}

// remember records the starts of the strides inside a WQE.
func (q *qp) remember(w []byte) {
	stride := 1 << q.send.logStride
	mask := q.send.entries() - 1
	q.inner[q.head&mask] = inner{}
	for i := 1; i*stride < len(w); i++ {
		in := &q.inner[(q.head+uint32(i))&mask]
		in.seen = true
		copy(in.first[:], w[i*stride:])
	}
}

// checkStale reports a WQE that starts with the inside of an earlier one: the driver posted nothing there, but the word
// looks valid to the device. Drivers stamp freed strides.
func (m *Model) checkStale(q *qp, w []byte) {
	in := &q.inner[q.head&(q.send.entries()-1)]
	if in.seen && string(in.first[:]) == string(w[:16]) && !q.strayed {
		q.strayed = true
		m.host.Errorf("%v, WQE %#x: %x was the inside of an earlier WQE, and is taken for a new one: freed strides have to be stamped", q, q.head&0xffff, w[:16])
	}
}

// send executes one WQE.
func (m *Model) send(q *qp, idx uint32, w []byte) *wqeError {
	op := w[3] & 0x1f
	if op == opNop {
		return nil
	}
	if len(w) < ctrlSize+segSize {
		return badWQE(syndLocalOp, "ds is %d: no room for data", len(w)/segSize)
	}
	if q.st == serviceMLX && m.port.link == Ethernet && !m.special(q) {
		return m.sendFrame(q, idx, op, w)
	}
	return m.sendInfiniBand(q, idx, op, w)
}

// sendCQE writes the CQE of a WQE that requested one. n is the number of bytes read, for a READ.
func (m *Model) sendCQE(q *qp, idx uint32, opcode uint8, n int) {
	var b [32]byte
	be.PutUint32(b[:], q.id)
	be.PutUint32(b[0x14:], uint32(n))
	be.PutUint16(b[0x18:], uint16(idx))
	b[31] = cqeSend | opcode
	m.complete(m.obj.cqs[q.scq], &b, true)
}

// failSend writes an error CQE and stops the queue: SQEr for datagrams and frames, ERR for connections.
func (m *Model) failSend(q *qp, idx uint32, synd uint8) {
	q.fetch = nil
	m.errorCQE(m.obj.cqs[q.scq], q.id, idx, true, synd)
	if q.st == serviceRC || q.st == serviceUC {
		m.failQP(q)
	} else {
		q.setState(qpSQError)
	}
	m.storeQP(q)
}
