package mlx4sim

import (
	"encoding/binary"
	"hash/crc32"
	"slices"

	"github.com/rebound-nic/rebound/sim/parts"
)

// rqFetch is how many bytes of receive WQEs are fetched at once.
const rqFetch = 512

// nextRecv returns the next receive WQE, fetching some ahead, or nil if the driver posted none.
func (m *Model) nextRecv(q *qp) []byte {
	if len(q.ahead) == 0 {
		if q.known == q.rhead {
			var rec [4]byte
			if m.host.DMARead(q.dbr, rec[:]) != nil {
				return nil
			}
			v := be.Uint32(rec[:])
			if v>>16 != 0 {
				m.host.Warnf("%v: the doorbell record is %08x: only 16 bits are defined", q, v)
			}
			if v &= 0xffff; (v-q.rhead)&0xffff > q.recv.entries() {
				m.host.Errorf("%v: the doorbell record says %#x, the receive queue is at %#x and has %d entries", q, v,
					q.rhead, q.recv.entries())
				return nil
			}
			q.known = v
		}
		stride := uint64(1) << q.recv.logStride
		off := q.recv.at(q.rhead)
		n := min(uint64((q.known-q.rhead)&0xffff)*stride, max(rqFetch, stride), q.recv.off+q.recv.bytes()-off)
		if n == 0 {
			return nil
		}
		b := make([]byte, max(q.buf.piece(off, n)&^(stride-1), stride))
		if m.read(&q.buf, off, b) != nil {
			return nil
		}
		for ; len(b) > 0; b = b[stride:] {
			q.ahead = append(q.ahead, b[:stride])
		}
	}
	w := q.ahead[0]
	q.ahead = q.ahead[1:]
	return w
}

// takeRecv takes the next WQE of a receive queue. It returns nil if there is none, or if fails and the next WQE is to
// fail.
func (m *Model) takeRecv(q *qp, fails bool) (w []byte, idx uint32) {
	if w = m.nextRecv(q); w == nil {
		m.count.rxOverflow++
		return nil, 0
	}
	idx = q.rhead
	q.rhead = (q.rhead + 1) & 0xffff
	if s := m.fault.receive; s != 0 && fails {
		m.fault.receive = 0
		m.failRecv(q, idx, s)
		return nil, 0
	}
	return w, idx
}

// deliver writes a frame to a queue.
func (m *Model) deliver(q *qp, f *parts.Frame, hash uint32, mac int) bool {
	if q.state != qpRTR && q.state != qpRTS && q.state != qpSQError {
		m.count.rxNoQueue++
		return false
	}
	w, idx := m.takeRecv(q, true)
	if w == nil {
		return false
	}
	b, at := f.B, f.At
	strip := f.Tags > 0 && !q.ctx.Is("vsd")
	if strip {
		b = append(append([]byte(nil), b[:12]...), b[16:]...)
		at -= 4
	}
	if q.ctx.Is("fcs_keep") { // the wire's FCS, which includes a stripped tag
		b = binary.LittleEndian.AppendUint32(slices.Clip(b), crc32.ChecksumIEEE(f.B))
	}
	if err := m.scatter(q, w, b); err != nil {
		m.host.Errorf("%v, receive WQE %#x: %v (syndrome %02xh)", q, idx, err, err.synd)
		m.failRecv(q, idx, err.synd)
		return false
	}
	q.received++
	var e [32]byte
	be.PutUint32(e[:], q.id)
	be.PutUint32(e[4:], hash)
	be.PutUint32(e[8:], uint32(mac&0x7f)<<24)
	if f.Tags > 0 {
		e[0] |= 1 << 5
		if f.SVLAN {
			e[0] ^= 3 << 5
		}
		be.PutUint16(e[0x0c:], f.VLAN)
	}
	copy(e[0x0e:], f.B[6:8])
	be.PutUint16(e[0x10:], frameStatus(f))
	if f.L4OK {
		e[0x13] |= 1 << 2
	}
	be.PutUint32(e[0x14:], uint32(len(b)))
	be.PutUint16(e[0x18:], uint16(idx))
	be.PutUint16(e[0x1a:], frameSum(f))
	e[31] = 1 // SEND
	m.complete(m.obj.cqs[q.rcq], &e, false)
	return true
}

// Bits of a CQE's status.
const (
	statusIPv4     = 1 << 6
	statusFragment = 1 << 7
	statusIPv6     = 1 << 8
	statusOptions  = 1 << 9
	statusTCP      = 1 << 10
	statusUDP      = 1 << 11
	statusIPOK     = 1 << 12
)

func frameStatus(f *parts.Frame) (s uint16) {
	switch f.L3 {
	case parts.L3IPv4:
		s = statusIPv4
		if f.Frag {
			s |= statusFragment
		}
		if f.L4At-f.At > 20 {
			s |= statusOptions
		}
	case parts.L3IPv6:
		s = statusIPv6
	}
	if f.L3OK {
		s |= statusIPOK
	}
	switch f.L4 {
	case parts.L4TCP:
		s |= statusTCP
	case parts.L4UDP:
		s |= statusUDP
	}
	return s
}

// frameSum returns the checksum of TCP and UDP with their pseudo header, ffffh if it is valid.
func frameSum(f *parts.Frame) uint16 {
	switch {
	case f.L4 == parts.L4None:
		return 0
	case f.L4OK:
		return 0xffff
	}
	return f.L4Sum()
}

// scatter writes a frame along a WQE's list.
func (m *Model) scatter(q *qp, w, b []byte) *wqeError {
	for seg := w; len(seg) >= segSize && len(b) > 0; seg = seg[segSize:] {
		n, key := be.Uint32(seg), be.Uint32(seg[4:])
		if key == invalidLKey || n == 0 {
			break
		}
		if n > 1<<30 {
			return badWQE(syndLocalLength, "data segment %x: byte_count", seg[:segSize])
		}
		k := min(int(n), len(b))
		pieces, err := m.translate(key, be.Uint64(seg[8:]), k, q.pd, q.rlky, localWrite)
		if err != nil {
			return badWQE(syndLocalProt, "data segment %x: %v", seg[:segSize], err)
		}
		for _, p := range pieces {
			if m.host.DMAWrite(p.At, b[:p.N]) != nil {
				return badWQE(syndLocalProt, "data segment %x cannot be written", seg[:segSize])
			}
			b = b[p.N:]
		}
	}
	if len(b) > 0 {
		return badWQE(syndLocalLength, "%d bytes found no room", len(b))
	}
	return nil
}

// failRecv completes a receive WQE in error, and fails the QP.
func (m *Model) failRecv(q *qp, idx uint32, synd uint8) {
	m.errorCQE(m.obj.cqs[q.rcq], q.id, idx, false, synd)
	m.failQP(q)
	m.storeQP(q)
}

// flushRecv flushes the posted receive WQEs.
func (m *Model) flushRecv(q *qp) {
	if q.rss.on || q.onSRQ {
		return
	}
	q.ahead = nil
	q.known = q.rhead
	for m.nextRecv(q) != nil {
		idx := q.rhead
		q.rhead = (q.rhead + 1) & 0xffff
		m.errorCQE(m.obj.cqs[q.rcq], q.id, idx, false, syndFlushed)
	}
}
