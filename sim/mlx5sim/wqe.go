package mlx5sim

import "github.com/rebound-nic/rebound/sim/parts"

// leastMSS is the smallest payload of a segment. TCP's own minimum is larger (Linux sends no less than 48).
const leastMSS = 32

// send executes one WQE: it collects the frame, and sends it, or the segments it is cut into, on the wire.
func (m *Model) send(q *sq, w []byte) *wqeError {
	op := w[3]
	switch op {
	case opNop:
		return nil
	case opSend, opLSO:
	default:
		return badWQE(syndLocalOp, "opcode is %02xh, the model has 00h (NOP), 0ah (SEND) and 0eh (LSO)", op)
	}
	if q.tis == 0 {
		return badWQE(syndLocalOp, "the queue has no TIS, and sends nothing")
	}
	if len(w) < ctrlSize+wqeSeg {
		return badWQE(syndLocalOp, "ds is %d: no room for an Ethernet segment", len(w)/wqeSeg)
	}
	eth := w[ctrlSize:]
	cs, mss, inl := eth[4], int(be.Uint16(eth[6:])), int(be.Uint16(eth[12:]))
	switch {
	case eth[0]|eth[1]|eth[2]|eth[3]|eth[5] != 0 || be.Uint32(eth[8:]) != 0:
		return badWQE(syndLocalOp, "Ethernet segment %x: swp and metadata have to be zero", eth[:16])
	case cs&^(csL3|csL4) != 0:
		return badWQE(syndLocalOp, "cs_flags is %02x, the model has l3_cs (40h) and l4_cs (80h)", cs)
	case inl > maxWQE:
		return badWQE(syndLocalOp, "inline_hdr_sz is %d", inl)
	case op == opSend && mss != 0, op == opLSO && (mss < leastMSS || inl == 0):
		return badWQE(syndLocalOp, "opcode %02xh with mss %d and %d bytes of header", op, mss, inl)
	}
	segEnd := max(wqeSeg, (14+inl+wqeSeg-1)/wqeSeg*wqeSeg)
	if segEnd > len(eth) {
		return badWQE(syndLocalOp, "inline_hdr_sz is %d, the WQE has %d bytes", inl, len(w))
	}
	f := append([]byte(nil), eth[14:14+inl]...)
	f, err := m.gather(q, f, eth[segEnd:])
	if err != nil {
		return err
	}
	if len(f) < 14 {
		return badWQE(syndLocalOp, "frame of %d bytes", len(f))
	}
	p := parse(f)
	mode := max(q.inline, m.leastInline())
	if least := leastHeader(mode, &p); inl < least {
		if mode > 1 || inl < 14 { // real ones accept the Ethernet header without the tag
			return badWQE(syndLocalLength, "inline_hdr_sz is %d, min_wqe_inline_mode %d wants %d of this frame", inl,
				mode, least)
		}
		m.host.Warnf("SQ %#x: inline_hdr_sz is %d, min_wqe_inline_mode %d wants %d of this frame", q.id, inl, mode,
			least)
	}
	if op == opLSO {
		return m.segment(q, &p, inl, mss, cs)
	}
	if len(f) > m.port.frameLimit() {
		m.count.txOversize++
		return badWQE(syndLocalLength, "frame of %d bytes, the port's MTU allows %d", len(f), m.port.frameLimit())
	}
	if err := checksum(&p, cs); err != nil {
		return err
	}
	m.transmit(q, f)
	return nil
}

// leastHeader is how much of a frame must be inline in its WQE, according to min_wqe_inline_mode.
func leastHeader(mode uint64, p *frame) int {
	switch {
	case mode == 0:
		return 0
	case mode == 1 || p.L3 == parts.L3None:
		return min(p.At, len(p.B))
	case mode == 2 || p.L4 == parts.L4None:
		return p.L4At
	case p.L4 == parts.L4UDP:
		return p.L4At + 8
	}
	return p.L4At + int(p.B[p.L4At+12]>>4)*4
}

func (m *Model) gather(q *sq, f, segs []byte) ([]byte, *wqeError) {
	pd := q.pd
	if q.qp != nil && q.qp.st == serviceUMR {
		pd = anyPD
	}
	for len(segs) >= wqeSeg {
		n := be.Uint32(segs)
		if n&inlineBit != 0 {
			l := int(n & 0x3ff)
			end := (4 + l + wqeSeg - 1) / wqeSeg * wqeSeg
			if n&^(inlineBit|0x3ff) != 0 || end > len(segs) {
				return nil, badWQE(syndLocalOp, "inline data segment %08x, %d bytes are left", n, len(segs))
			}
			f = append(f, segs[4:4+l]...)
			segs = segs[end:]
			continue
		}
		pieces, err := m.translate(be.Uint32(segs[4:]), be.Uint64(segs[8:]), int(n), pd, q.rlky, localRead)
		if err != nil {
			return nil, badWQE(syndLocalProt, "data segment %x: %v", segs[:16], err)
		}
		if n == 0 || n > 1<<18 || len(f)+int(n) > 1<<18 {
			return nil, badWQE(syndLocalLength, "data segment of %d bytes", n)
		}
		for _, p := range pieces {
			at := len(f)
			f = append(f, make([]byte, p.N)...)
			if (bus{m}).DMARead(p.At, f[at:]) != nil {
				return nil, badWQE(syndLocalProt, "data segment %x cannot be read", segs[:16])
			}
		}
		segs = segs[wqeSeg:]
	}
	return f, nil
}

// checksum fills in the checksums requested by cs_flags.
func checksum(p *frame, cs uint8) *wqeError {
	if cs&csL3 != 0 && p.L3 == parts.L3IPv4 {
		ip := p.B[p.At:p.L4At]
		ip[10], ip[11] = 0, 0
		be.PutUint16(ip[10:], ^parts.Sum16(ip, 0))
	}
	if cs&csL4 == 0 {
		return nil
	}
	off := 0
	switch p.L4 {
	case parts.L4TCP:
		off = p.L4At + 16
	case parts.L4UDP:
		off = p.L4At + 6
	default:
		return nil // the device leaves unknown protocols unchanged
	}
	p.B[off], p.B[off+1] = 0, 0
	s := ^p.L4Sum()
	if s == 0 && p.L4 == parts.L4UDP {
		s = 0xffff
	}
	be.PutUint16(p.B[off:], s)
	return nil
}

// segment cuts a large TCP or UDP packet into frames of mss bytes of payload.
func (m *Model) segment(q *sq, p *frame, header, mss int, cs uint8) *wqeError {
	if p.L4 == parts.L4None || leastHeader(3, p) != header {
		return badWQE(syndLocalOp, "LSO of a frame with %d bytes of header, protocol %d", header, p.Proto)
	}
	payload := p.B[header:]
	for off, i := 0, 0; off < len(payload); off, i = off+mss, i+1 {
		part := payload[off:min(off+mss, len(payload))]
		b := append(append([]byte(nil), p.B[:header]...), part...)
		last := off+mss >= len(payload)
		ip, l4 := b[p.At:], b[p.L4At:]
		if p.L3 == parts.L3IPv4 {
			be.PutUint16(ip[2:], uint16(len(ip)))
			be.PutUint16(ip[4:], be.Uint16(ip[4:])+uint16(i))
			ip[10], ip[11] = 0, 0
			be.PutUint16(ip[10:], ^parts.Sum16(ip[:p.L4At-p.At], 0))
		} else {
			be.PutUint16(ip[4:], uint16(len(ip)-40))
		}
		if p.L4 == parts.L4TCP {
			be.PutUint32(l4[4:], be.Uint32(l4[4:])+uint32(off))
			if !last {
				l4[13] &^= 0x09 // FIN, PSH
			}
		} else {
			be.PutUint16(l4[4:], uint16(len(l4)))
		}
		f := parse(b)
		if err := checksum(&f, cs|csL4); err != nil {
			return err
		}
		if len(b) > m.port.frameLimit() {
			return badWQE(syndLocalLength, "segment of %d bytes, the port's MTU allows %d", len(b), m.port.frameLimit())
		}
		m.transmit(q, b)
	}
	return nil
}

// transmit pads the frame (capability pad_tx_eth_packet) and sends it. Local loopback applies to frames for the vport's
// own addresses, and copies frames for its groups, unless disable_uc_local_lb and disable_mc_local_lb are set; the TIRs
// that accept them are determined separately (intoTIR).
func (m *Model) transmit(q *sq, f []byte) {
	for len(f) < 60 {
		f = append(f, 0)
	}
	q.packets++
	kind := cast(f)
	m.count.tx[kind].add(len(f))
	switch {
	case kind == unicast && m.vport.lb&disableUC == 0 && m.vport.owns([6]byte(f)):
		m.take(append([]byte(nil), f...), q)
		return
	case kind != unicast && m.vport.lb&disableMC == 0 && m.vport.lets(f):
		m.take(append([]byte(nil), f...), q)
	}
	m.count.wireTx[kind].add(len(f))
	if m.port.up {
		m.host.Transmit(f)
	} else {
		m.count.txDiscard++
	}
}

// opcodeOf is a WQE's opcode, 0 if it could not be read.
func opcodeOf(w []byte) uint8 {
	if len(w) < ctrlSize {
		return 0
	}
	return w[3]
}
