package efasim

import (
	"errors"
	"fmt"
)

// startRDMA starts a read or a write.
func (m *Model) startRDMA(q *qp, o *op) (uint8, error) {
	n := o.size()
	rights := uint8(0)
	if o.code == opRead {
		rights = mayLocalWrite
		m.tally(q, func(t *traffic) { t.ReadWRs++ })
	} else {
		m.tally(q, func(t *traffic) { t.WriteWRs++ })
	}
	switch {
	case n != o.length:
		return compBadLength, fmt.Errorf("%d bytes of local memory for %d of remote", n, o.length)
	case uint32(n) > m.opt.Profile.MaxRDMA:
		return compBadLength, fmt.Errorf("RDMA of %d bytes: max_rdma_size is %d", n, m.opt.Profile.MaxRDMA)
	case o.code == opRead && o.hasImm:
		return compUnsupportedOp, errors.New("RDMA read with an immediate")
	}
	for _, b := range o.bufs {
		if _, err := m.local(o.domain, b.key, b.addr, b.n, rights); err != nil {
			return compInvalidLKey, err
		}
	}
	m.ops = append(m.ops, o)
	return compOK, nil
}

// rdma checks an RDMA frame and returns the memory that it accesses.
func (m *Model) rdma(q *qp, f *frame, rights uint8) ([]span, uint8) {
	if _, known := m.pds[q.pd].ahs[f.src]; !known {
		return nil, compUnknownPeer
	}
	if f.length == 0 {
		return nil, compOK
	}
	spans, err := m.remote(q.pd, f.rkey, f.raddr, int(f.length), rights)
	if err != nil {
		return nil, compRemoteAddress
	}
	return spans, compOK
}

func (m *Model) writePart(q *qp, f *frame) uint8 {
	if m.opt.Profile.Caps&CapRDMAWrite == 0 {
		return compFeatureMismatch
	}
	if int(f.length) != len(f.payload) {
		return compRemoteLength
	}
	spans, status := m.rdma(q, f, mayRemoteWrite)
	if status != compOK {
		return status
	}
	if m.store(spans, f.payload) != nil {
		return compRemoteAddress
	}
	m.tally(q, func(t *traffic) { t.WriteRecvBytes += uint64(len(f.payload)) })
	return compOK
}

// writeImm completes a receive, without its buffer, after the data was written.
func (m *Model) writeImm(q *qp, f *frame) uint8 {
	if m.opt.Profile.Caps&CapRDMAWrite == 0 {
		return compFeatureMismatch
	}
	if _, known := m.pds[q.pd].ahs[f.src]; !known {
		return compUnknownPeer
	}
	r := recvResult{op: opWrite, length: int(f.length), src: f.srcQP, gid: f.src, imm: f.imm, hasImm: true,
		noBuffer: q.unsolicited}
	req := uint16(0)
	if !q.unsolicited {
		switch wqe, err := m.nextReceive(q); {
		case err != nil:
			return compRemoteAbort
		case wqe == nil:
			return compRemoteRNR
		default:
			req = wqe[0].req
		}
	}
	m.completeRecv(q, req, r)
	return compOK
}

// readPart returns a part of an RDMA read's data.
func (m *Model) readPart(f *frame) ([]byte, uint8) {
	if m.opt.Profile.Caps&CapRDMARead == 0 {
		return nil, compFeatureMismatch
	}
	q, status := m.target(f, typeSRD)
	if q == nil {
		return nil, status
	}
	if f.length > partSize {
		return nil, compRemoteLength
	}
	spans, status := m.rdma(q, f, mayRemoteRead)
	if status != compOK {
		return nil, status
	}
	data := make([]byte, f.length)
	if m.load(spans, data) != nil {
		return nil, compRemoteAddress
	}
	m.tally(q, func(t *traffic) { t.ReadResponseBytes += uint64(f.length) })
	return data, compOK
}

// readData writes the data of a read to local memory.
func (m *Model) readData(o *op, k *packet, data []byte) error {
	if len(data) != int(k.f.length) {
		return fmt.Errorf("%d bytes came of %d that were asked for", len(data), k.f.length)
	}
	off := k.part * partSize
	for _, b := range o.bufs {
		if len(data) == 0 {
			break
		}
		if off >= b.n {
			off -= b.n
			continue
		}
		n := min(b.n-off, len(data))
		spans, err := m.local(o.domain, b.key, b.addr+uint64(off), n, mayLocalWrite)
		if err == nil {
			err = m.store(spans, data[:n])
		}
		if err != nil {
			return err
		}
		data, off = data[n:], 0
	}
	return nil
}
