package efasim

import "fmt"

// rxCache is the largest number of descriptors that a QP caches. It fetches more when the cache is half empty.
const rxCache = 64

// rxDesc is efa_io_rx_desc.
type rxDesc struct {
	addr uint64
	req  uint16
	n    int
	key  uint32
	last bool
}

// rqDoorbell handles the number of descriptors posted so far, modulo 2^16.
func (m *Model) rqDoorbell(q *qp, v uint32) error {
	r := &q.rq
	r.bell = v
	n := uint16(v) - r.tail
	switch {
	case n == 0 && v <= 0xffff:
		return nil
	case q.state == stateReset:
		return fmt.Errorf("RQ of QP %#x rung in state 0 (reset): 1 (init) or later is expected", q.num)
	case uint32(uint16(v)-r.used) > r.entries:
		return fmt.Errorf("RQ of QP %#x = %d: it was %d, %d are consumed, and it has %d descriptors", q.num, v, r.tail,
			r.used, r.entries)
	}
	if v > 0xffff {
		m.Host.Warnf("RQ of QP %#x = %#x: bits 31:16 are set, the count has 16", q.num, v)
	}
	r.tail = uint16(v)
	m.fetch(q)
	if q.state == stateErr {
		m.flush(q)
	}
	return nil
}

// fetch prefetches descriptors: all that are adjacent and fit, in one DMA read.
func (m *Model) fetch(q *qp) {
	r := &q.rq
	for r.fetched != r.tail && len(r.cache) <= rxCache/2 && !r.broken {
		first := uint32(r.fetched) % r.entries
		n := min(uint32(r.tail-r.fetched), uint32(rxCache-len(r.cache)), r.entries-first)
		b := make([]byte, 16*n)
		spans, err := m.at(&r.ring, 16*uint64(first), len(b), 0)
		if err == nil {
			err = m.load(spans, b)
		}
		if err != nil {
			m.breakRQ(q, fmt.Errorf("descriptors: %w", err))
			return
		}
		m.count.RxDescReads++
		r.fetched += uint16(n)
		for ; len(b) > 0; b = b[16:] {
			ctl := le.Uint32(b[12:])
			d := rxDesc{addr: le.Uint64(b), req: le.Uint16(b[8:]), n: int(le.Uint16(b[10:])), key: ctl & rxKey,
				last: ctl&rxLast != 0}
			begins := len(r.cache) == 0 || r.cache[len(r.cache)-1].last
			if begins != (ctl&rxFirst != 0) {
				m.breakRQ(q, fmt.Errorf("descriptor of request %d: first is %v, expected %v", d.req, !begins, begins))
				return
			}
			if ctl&rxMBZ != 0 {
				m.Host.Warnf("RQ of QP %#x: reserved bits %#x set in the descriptor of request %d", q.num, ctl&rxMBZ,
					d.req)
			}
			r.cache = append(r.cache, d)
		}
	}
}

// breakRQ moves the QP to the error state after an invalid ring entry.
func (m *Model) breakRQ(q *qp, err error) {
	m.Host.Errorf("RQ of QP %#x: %v", q.num, err)
	q.rq.broken = true
	q.state = stateErr
	m.abandon(func(o *op) bool { return o.qp == q.handle }, compFlushed)
}

// nextReceive returns the descriptors of the next receive, or nil if there is none. They stay until take.
func (m *Model) nextReceive(q *qp) ([]rxDesc, error) {
	m.fetch(q)
	for i, d := range q.rq.cache {
		if i == maxRecvSGE {
			err := fmt.Errorf("receive of more than %d buffers", maxRecvSGE)
			m.breakRQ(q, err)
			q.rq.cache = nil
			return nil, err
		}
		if d.last {
			return q.rq.cache[:i+1], nil
		}
	}
	return nil, nil
}

// recvResult is the content of a receive completion.
type recvResult struct {
	status   uint8
	op       uint8
	length   int
	src      uint16
	gid      [16]byte
	imm      uint32
	hasImm   bool
	noBuffer bool // unsolicited
}

// completeRecv completes the first receive of a QP.
func (m *Model) completeRecv(q *qp, req uint16, r recvResult) {
	if !r.noBuffer {
		for i, d := range q.rq.cache {
			if d.last {
				q.rq.cache = append(q.rq.cache[:0], q.rq.cache[i+1:]...)
				q.rq.used += uint16(i + 1)
				break
			}
		}
	}
	var b [32]byte
	le.PutUint16(b[0:], req)
	b[2] = r.status
	b[3] = cqeRecv | r.op<<cqeOpShift
	if r.hasImm {
		b[3] |= cqeImm
	}
	if r.noBuffer {
		b[3] |= cqeUnsolicited
	}
	le.PutUint16(b[4:], q.num)
	le.PutUint16(b[6:], uint16(r.length))
	n, known := m.pds[q.pd].ahs[r.gid]
	if !known || m.forgetful {
		n = noAH
	}
	le.PutUint16(b[8:], n)
	le.PutUint16(b[10:], r.src)
	le.PutUint32(b[12:], r.imm)
	switch {
	case r.op == opWrite:
		le.PutUint16(b[16:], uint16(r.length>>16))
	case n == noAH && m.cqs[q.rq.cq].source && r.status == compOK:
		copy(b[16:], r.gid[:])
	}
	m.complete(q.rq.cq, q.rq.sub, false, b[:])
}

// deliver writes a message to the next receive of a QP. It returns the status for the sender.
func (m *Model) deliver(q *qp, f *frame) uint8 {
	wqe, err := m.nextReceive(q)
	switch {
	case err != nil:
		return compRemoteAbort
	case wqe == nil:
		return compRemoteRNR
	}
	p := f.payload
	if q.typ == typeUD {
		p = append(make([]byte, grhSize, grhSize+len(p)), p...)
		for i := range grhSize { // real devices write unspecified bytes here
			p[i] = 0xe5
		}
	}
	room := 0
	for _, d := range wqe {
		room += d.n
	}
	if room < len(p) {
		return compRemoteLength
	}
	req, r := wqe[0].req, recvResult{length: len(p), src: f.srcQP, gid: f.src, imm: f.imm, hasImm: f.flags&flagImm != 0}
	for _, d := range wqe {
		k := min(d.n, len(p))
		if k == 0 {
			break
		}
		spans, err := m.local(q.pd, d.key, d.addr, k, mayLocalWrite)
		if err == nil {
			err = m.store(spans, p[:k])
		}
		if err != nil {
			m.Host.Errorf("receive %d of QP %#x: %v", req, q.num, err)
			r.status, r.length = compInvalidLKey, 0
			m.completeRecv(q, req, r)
			return compRemoteAbort
		}
		p = p[k:]
	}
	m.tally(q, func(t *traffic) { t.RecvWRs++; t.RecvBytes += uint64(len(f.payload)) })
	m.completeRecv(q, req, r)
	return compOK
}
