package mlx4sim

import (
	"github.com/rebound-nic/rebound/sim/parts"
)

// sendFrame puts the frame, or the segments it is cut into, on the wire.
func (m *Model) sendFrame(q *qp, idx uint32, op uint8, w []byte) *wqeError {
	if op != opSend && op != opLSO {
		return badWQE(syndLocalOp, "opcode is %02xh, an Ethernet queue has 00h (NOP), 0ah (SEND) and 0eh (LSO)", op)
	}
	flags := be.Uint32(w[8:])
	if flags&ctrlNoICRC == 0 {
		m.host.Warnf("%v, WQE %#x: bit 1 of the flags (no ICRC) is clear, expected set for frames", q, idx&0xffff)
	}
	if be.Uint32(w)&(3<<27) != 0 {
		return badWQE(syndLocalOp, "checksums of inner headers are asked for, tunnels are not offered")
	}
	if be.Uint32(w)&ctrlReserved0 != 0 || be.Uint32(w[4:])&ctrlReserved1 != 0 || flags&ctrlReserved2 != 0 {
		m.host.Warnf("%v: reserved bits are set in a control segment", q)
	}
	segs := w[ctrlSize:]
	header, mss := 0, 0
	var f []byte
	if op == opLSO {
		header, mss = int(be.Uint32(segs)&0x3ff), int(be.Uint32(segs)>>16)
		n := (4 + header + segSize - 1) &^ (segSize - 1)
		if header < 14 || mss < leastMSS || n > len(segs) {
			return badWQE(syndLocalOp, "LSO of %d bytes of header and mss %d in a WQE of %d bytes", header, mss, len(w))
		}
		f = append(f, segs[4:4+header]...)
		segs = segs[n:]
	}
	f, err := m.gather(q, f, segs, len(w)-len(segs))
	if err != nil {
		return err
	}
	if len(f) < leastFrame {
		return badWQE(syndLocalLength, "frame of %d bytes, %d are the least", len(f), leastFrame)
	}
	loop := uint64(flags>>16)<<32 | uint64(be.Uint32(w[12:]))
	if v := w[6]; v&(insertCVLAN|insertSVLAN) != 0 {
		if v&(insertCVLAN|insertSVLAN) == insertCVLAN|insertSVLAN {
			return badWQE(syndLocalOp, "both a C-VLAN and an S-VLAN tag are to be inserted")
		}
		tag := []byte{0x81, 0x00, w[4], w[5]}
		if v&insertSVLAN != 0 {
			tag[0], tag[1] = 0x88, 0xa8
		}
		f = append(append(append([]byte(nil), f[:12]...), tag...), f[12:]...)
		if header > 0 {
			header += 4
		}
	}
	p := parts.ParseFrame(f)
	prio := uint16(q.ctx.U("sched_queue") >> 3 & (priorities - 1))
	if p.Tags > 0 && p.VLAN>>13 != prio && q.ctx.U("feup")&forceUP != 0 {
		m.host.Warnf("%v: feup forces a priority, and the tag's is sent in this model", q)
	}
	if op == opLSO {
		return m.segment(q, &p, header, mss, flags, loop)
	}
	checksum(&p, flags)
	if len(f) > m.port.frameLimit() {
		m.count.txGiant++
		return badWQE(syndLocalLength, "frame of %d bytes, the port's MTU allows %d", len(f), m.port.frameLimit())
	}
	m.transmit(q, f, loop, flags&ctrlLoop != 0)
	return nil
}

// gather collects the data segments, which start at byte at of the WQE. Inline data ends at the latest with its 64-byte
// line.
func (m *Model) gather(q *qp, f, segs []byte, at int) ([]byte, *wqeError) {
	for len(segs) >= segSize {
		n := be.Uint32(segs)
		if n&inlineBit != 0 {
			l := int(n & 0x3ff)
			end := (4 + l + segSize - 1) &^ (segSize - 1)
			switch {
			case n&^(inlineBit|0x3ff) != 0 || end > len(segs):
				return nil, badWQE(syndLocalOp, "inline segment %08x, %d bytes are left", n, len(segs))
			case at&63+4+l > 64:
				return nil, badWQE(syndLocalOp,
					"inline segment of %d bytes at byte %d of the WQE crosses a line of 64 bytes", l, at)
			}
			f = append(f, segs[4:4+l]...)
			segs, at = segs[end:], at+end
			continue
		}
		if n == 0 || n > mostLSO || len(f)+int(n) > mostLSO {
			return nil, badWQE(syndLocalLength, "data segment of %d bytes (0 stands for 2^31)", n)
		}
		pieces, err := m.translate(be.Uint32(segs[4:]), be.Uint64(segs[8:]), int(n), q.pd, q.rlky, localRead)
		if err != nil {
			return nil, badWQE(syndLocalProt, "data segment %x: %v", segs[:segSize], err)
		}
		for _, p := range pieces {
			k := len(f)
			f = append(f, make([]byte, p.N)...)
			if m.host.DMARead(p.At, f[k:]) != nil {
				return nil, badWQE(syndLocalProt, "data segment %x cannot be read", segs[:segSize])
			}
		}
		segs, at = segs[segSize:], at+segSize
	}
	return f, nil
}

// checksum inserts the checksums that the flags request. Unknown protocols are left alone.
func checksum(p *parts.Frame, flags uint32) {
	if flags&ctrlIPSum != 0 && p.L3 == parts.L3IPv4 {
		ip := p.B[p.At:p.L4At]
		ip[10], ip[11] = 0, 0
		be.PutUint16(ip[10:], ^parts.Sum16(ip, 0))
	}
	if flags&ctrlL4Sum == 0 || p.L4 == parts.L4None {
		return
	}
	off := p.L4At + 6
	if p.L4 == parts.L4TCP {
		off = p.L4At + 16
	}
	p.B[off], p.B[off+1] = 0, 0
	s := ^p.L4Sum()
	if s == 0 && p.L4 == parts.L4UDP {
		s = 0xffff
	}
	be.PutUint16(p.B[off:], s)
}

// segment cuts a large TCP packet into frames of mss bytes of payload.
func (m *Model) segment(q *qp, p *parts.Frame, header, mss int, flags uint32, loop uint64) *wqeError {
	if p.L4 != parts.L4TCP || p.L4At+int(p.B[p.L4At+12]>>4)*4 != header {
		return badWQE(syndLocalOp, "LSO of a frame with %d bytes of header, protocol %d: it is for TCP, header and all",
			header, p.Proto)
	}
	payload := p.B[header:p.End]
	for off, i := 0, 0; off < len(payload); off, i = off+mss, i+1 {
		part := payload[off:min(off+mss, len(payload))]
		b := append(append([]byte(nil), p.B[:header]...), part...)
		ip, l4 := b[p.At:], b[p.L4At:]
		if p.L3 == parts.L3IPv4 {
			be.PutUint16(ip[2:], uint16(len(ip)))
			be.PutUint16(ip[4:], be.Uint16(ip[4:])+uint16(i))
		} else {
			be.PutUint16(ip[4:], uint16(len(ip)-40))
		}
		be.PutUint32(l4[4:], be.Uint32(l4[4:])+uint32(off))
		if off+mss < len(payload) {
			l4[13] &^= 0x09 // FIN, PSH
		}
		f := parts.ParseFrame(b)
		checksum(&f, flags|ctrlIPSum|ctrlL4Sum)
		if len(b) > m.port.frameLimit() {
			m.count.txGiant++
			return badWQE(syndLocalLength, "segment of %d bytes, the port's MTU allows %d", len(b), m.port.frameLimit())
		}
		m.transmit(q, b, loop, flags&ctrlLoop != 0)
	}
	return nil
}

// transmit pads the frame and sends it. A WQE that contains the destination address allows the device to loop the frame
// back, if it is for an address of this port.
func (m *Model) transmit(q *qp, f []byte, loop uint64, force bool) {
	for len(f) < 60 {
		f = append(f, 0)
	}
	q.sent++
	own := loop != 0 && loop == uint64(be.Uint16(f))<<32|uint64(be.Uint32(f[2:])) && len(m.steer(f)) > 0
	if force || own {
		m.count.tx.looped(f)
		m.port.turned = append(m.port.turned, append([]byte(nil), f...))
		if force || f[0]&1 == 0 {
			return
		}
	}
	if !m.port.up {
		m.count.txDropped++
		return
	}
	m.count.tx.wire(f)
	m.mirror(modeMirrorSent, f)
	m.host.Transmit(f)
}
