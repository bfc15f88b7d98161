package efasim

import (
	"fmt"

	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/amazon"
)

// sqBurst is the largest number of WQEs of a queue that one Step handles.
const sqBurst = 16

// forget fills a slot with the pattern that marks bytes that were not pushed.
func (m *Model) forget(s *sendQueue, slot int) {
	b := m.Host.Shadow(2)[s.at+uint64(slot*s.size):][:s.size]
	for k := 0; k < len(b); k += 8 {
		le.PutUint64(b[k:], poison)
	}
}

// pushed notes a trapped store to LLQ memory.
func (m *Model) pushed(off uint64, p []byte) error {
	for i := range m.qps {
		s := &m.qps[i].sq
		if m.qps[i].live && s.depth > 0 && off >= s.at && off < s.at+uint64(s.size)*uint64(s.depth) {
			if len(p) != 8 {
				return fmt.Errorf("store of %d bytes to an LLQ: WQEs are pushed by 8", len(p))
			}
			s.trapped[(off-s.at)/uint64(s.size)] = true
			return nil
		}
	}
	return fmt.Errorf("no LLQ is there")
}

// sqDoorbell handles the number of WQEs pushed so far, modulo 2^16.
func (m *Model) sqDoorbell(q *qp, v uint32, trapped bool) error {
	s, p := &q.sq, &m.opt.Profile
	s.bell = v
	n := uint32(uint16(v) - s.tail)
	switch {
	case n == 0 && v <= 0xffff:
		return nil
	case q.state < stateRTS:
		return fmt.Errorf("SQ of QP %#x rung in state %d: 3 (RTS) or later is expected", q.num, q.state)
	case uint32(uint16(v)-s.done) > s.depth:
		return fmt.Errorf("SQ of QP %#x = %d: it was %d, %d are completed, and it has %d WQEs", q.num, v, s.tail,
			s.done, s.depth)
	}
	if v > 0xffff {
		m.Host.Warnf("SQ of QP %#x = %#x: bits 31:16 are set, the count has 16", q.num, v)
	}
	if trapped && p.Batch > 0 && n*uint32(s.size) > 64*uint32(p.Batch) {
		m.Host.Errorf("SQ of QP %#x: %d WQEs of %d bytes in one doorbell: max_tx_batch is %d times 64 bytes", q.num, n,
			s.size, p.Batch)
	}
	if trapped && p.MinSQ > 0 && n == s.depth {
		m.Host.Errorf("SQ of QP %#x: %d WQEs, all that there are, in one doorbell: one less is expected where min_sq_depth is not 0", q.num, n)
	}
	s.tail = uint16(v)
	return nil
}

// wqe reads the next WQE from BAR 2.
func (m *Model) wqe(q *qp) ([]byte, error) {
	s := &q.sq
	slot := int(uint32(s.head) % s.depth)
	src := m.Host.Shadow(2)[s.at+uint64(slot*s.size):][:s.size]
	b := make([]byte, s.size)
	missing := 0
	for k := 0; k < len(b); k += 8 {
		v := sim.Load64(src[k:])
		if v == poison {
			missing += 8
		}
		le.PutUint64(b[k:], v)
	}
	m.forget(s, slot)
	if !s.trapped[slot] {
		m.Host.CountMMIOWrite(s.size / 64)
	}
	s.trapped[slot] = false
	want := amazon.Phase(uint32(s.head), s.depth) ^ 1 // 0 in the first round, unlike completions
	s.head++
	switch {
	case missing > 0:
		return b, fmt.Errorf("WQE %d: %d of its %d bytes were not pushed before the doorbell", s.head-1, missing,
			s.size)
	case b[3]&ctrl2Phase != want:
		return b, fmt.Errorf("WQE %d: phase %d, expected %d", s.head-1, b[3]&ctrl2Phase, want)
	case b[2]&ctrl1Meta == 0 || b[3]&(ctrl2First|ctrl2Last) != ctrl2First|ctrl2Last:
		return b, fmt.Errorf("WQE %d: ctrl1 %#02x, ctrl2 %#02x: meta_desc, first and last must be set", s.head-1, b[2],
			b[3])
	}
	return b, nil
}

// takeRung fetches the pending WQEs of a PD before a command removes an object that they use: Linux destroys the
// address handles of a killed process before its QPs.
func (m *Model) takeRung(domain uint16) {
	m.stepDoorbells()
	for _, i := range m.liveQPs {
		for q := &m.qps[i]; q.pd == domain && m.stepSQ(q); {
		}
	}
}

// stepSQ sends posted WQEs of a QP.
func (m *Model) stepSQ(q *qp) (busy bool) {
	s := &q.sq
	for n := 0; s.head != s.tail; n++ {
		switch {
		case q.state == stateErr:
		case q.state != stateRTS || m.Knobs.Paused || n == sqBurst:
			return busy || n == sqBurst
		}
		busy = true
		b, err := m.wqe(q)
		o := &op{qp: q.handle, req: le.Uint16(b[0:]), code: b[2] & ctrl1Op, silent: b[3]&ctrl2Comp == 0}
		if s.out[o.req] {
			m.Host.Warnf("QP %#x: request ID %d is outstanding already", q.num, o.req)
		}
		s.out[o.req] = true
		switch {
		case q.state == stateErr:
			m.finish(o, compFlushed)
		case err != nil:
			m.Host.Errorf("QP %#x: %v", q.num, err)
			m.finish(o, compQPInternal)
		default:
			m.reserved(q, b)
			if status, err := m.start(q, o, b); status != compOK {
				m.Host.Errorf("QP %#x, request %d: %v", q.num, o.req, err)
				m.finish(o, status)
			}
		}
	}
	return busy
}

// reserved reports reserved bits that are not zero.
func (m *Model) reserved(q *qp, b []byte) {
	for _, c := range []struct {
		what string
		bits uint64
	}{
		{"ctrl1", uint64(b[2] & ctrl1Ext)},
		{"ctrl2", uint64(b[3] & ctrl2MBZ)},
		{"processing hints", uint64(b[14] &^ 1)},
		{"byte 15", uint64(b[15])},
		{"bytes 20 to 27", le.Uint64(b[20:])},
		{"bytes 28 to 31", uint64(le.Uint32(b[28:]))},
	} {
		if c.bits != 0 {
			m.Host.Warnf("QP %#x, request %d: reserved bits %#x set in %s of the WQE", q.num, le.Uint16(b), c.bits,
				c.what)
		}
	}
	if b[3]&ctrl2Comp == 0 {
		m.Host.Warnf("QP %#x, request %d: comp_req is clear: all public drivers ask for a completion of each", q.num,
			le.Uint16(b))
	}
}

// start starts an operation. If it cannot, it returns the completion status.
func (m *Model) start(q *qp, o *op, b []byte) (uint8, error) {
	o.dest, o.hasImm, o.ah = le.Uint16(b[4:]), b[2]&ctrl1Imm != 0, le.Uint16(b[12:])
	o.imm, o.qkey, o.srd = le.Uint32(b[8:]), le.Uint32(b[16:]), q.typ == typeSRD
	o.src, o.domain = q.num, q.pd
	inline, caps := b[2]&ctrl1Inline != 0, m.opt.Profile.Caps
	switch {
	case o.code > opWrite, o.code != opSend && !o.srd, o.code == opRead && caps&CapRDMARead == 0, o.code == opWrite &&
		caps&CapRDMAWrite == 0:
		return compUnsupportedOp, fmt.Errorf("operation %d on a QP of type %d, device_caps %#x", o.code, q.typ, caps)
	case int(o.ah) >= len(m.ahs) || !m.ahs[o.ah].live || m.ahs[o.ah].pd != q.pd:
		return compInvalidAH, fmt.Errorf("PD %d has no AH %d", q.pd, o.ah)
	}
	o.gid = m.ahs[o.ah].gid
	n, data := int(le.Uint16(b[6:])), b[32:]
	most := maxSendSGE
	if o.code != opSend {
		o.raddr, o.rkey, o.length = le.Uint64(b[40:]), le.Uint32(b[36:]), int(le.Uint32(b[32:]))
		data, most = b[48:], maxRDMASGE
	}
	if inline {
		room := min(len(data), max(inlineMax, int(m.opt.Profile.Inline)))
		if n > room || o.code == opRead || o.code == opWrite && len(b) != 128 {
			return compBadLength, fmt.Errorf("%d bytes inline of operation %d in a WQE of %d bytes", n, o.code, len(b))
		}
		o.inline = append([]byte{}, data[:n]...)
	} else {
		if n > most {
			return compBadLength, fmt.Errorf("%d buffers, up to %d are supported", n, most)
		}
		for ; n > 0; n-- {
			if le.Uint32(data[4:])&^rxKey != 0 {
				m.Host.Warnf("QP %#x, request %d: bits 31:24 of l_key %#x are set", q.num, o.req, le.Uint32(data[4:]))
			}
			o.bufs = append(o.bufs, buffer{le.Uint64(data[8:]), int(le.Uint32(data[0:])), le.Uint32(data[4:]) & rxKey})
			data = data[16:]
		}
	}
	if o.code == opSend {
		return m.startSend(q, o)
	}
	return m.startRDMA(q, o)
}

// size returns the number of bytes of the local side.
func (o *op) size() int {
	n := len(o.inline)
	for _, b := range o.bufs {
		n += b.n
	}
	return n
}

// gather reads n bytes at an offset of the local side: from the WQE, or with one DMA read per contiguous piece of
// memory.
func (m *Model) gather(o *op, off, n int) ([]byte, error) {
	if o.inline != nil {
		return o.inline[off:][:n], nil
	}
	p := make([]byte, n)
	for rest, i := p, 0; len(rest) > 0; i++ {
		b := o.bufs[i]
		if off >= b.n {
			off -= b.n
			continue
		}
		k := min(b.n-off, len(rest))
		spans, err := m.local(o.domain, b.key, b.addr+uint64(off), k, 0)
		if err != nil {
			return nil, err
		}
		if err := m.load(spans, rest[:k]); err != nil {
			return nil, err
		}
		rest, off = rest[k:], 0
	}
	return p, nil
}

func (m *Model) startSend(q *qp, o *op) (uint8, error) {
	o.length = o.size()
	if o.length > mtu {
		return compBadLength, fmt.Errorf("message of %d bytes: the MTU is %d", o.length, mtu)
	}
	p, err := m.gather(o, 0, o.length)
	if err != nil {
		return compInvalidLKey, err
	}
	m.tally(q, func(t *traffic) { t.SendWRs++; t.SendBytes += uint64(o.length) })
	if !o.srd {
		m.tally(q, func(t *traffic) { t.TxPackets++; t.TxBytes += uint64(o.length) })
		m.transmit(o.frame(m, typeUDSend, p), o.gid)
		m.finish(o, compOK)
		return compOK, nil
	}
	o.data = p
	m.ops = append(m.ops, o)
	return compOK, nil
}

// tally updates the counters of a QP and the totals.
func (m *Model) tally(q *qp, f func(*traffic)) {
	f(&m.count.traffic)
	if q != nil {
		f(&q.count)
	}
}

// owner returns the QP of an operation, or nil if it no longer exists.
func (m *Model) owner(o *op) *qp {
	if q := &m.qps[o.qp&(maxQP-1)]; q.live && q.handle == o.qp {
		return q
	}
	return nil
}

// finish completes an operation, once.
func (m *Model) finish(o *op, status uint8) {
	if o.dead {
		return
	}
	o.dead = true
	q := m.owner(o)
	if q == nil {
		return
	}
	if status != compOK {
		switch o.code {
		case opRead:
			m.tally(q, func(t *traffic) { t.ReadErrors++ })
		case opWrite:
			m.tally(q, func(t *traffic) { t.WriteErrors++ })
		}
	}
	q.sq.done++
	delete(q.sq.out, o.req)
	if o.silent && status == compOK {
		return
	}
	var b [32]byte
	le.PutUint16(b[0:], o.req)
	b[2] = status
	b[3] = cqeSend | o.code<<cqeOpShift
	le.PutUint16(b[4:], q.num)
	m.complete(q.sq.cq, q.sq.sub, true, b[:])
}
