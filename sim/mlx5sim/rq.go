package mlx5sim

import "github.com/rebound-nic/rebound/sim/parts"

// rq is a receive queue: a cyclic ring of WQEs, each a scatter list for one frame.
type rq struct {
	workQueue
	counter uint32 // queue counter set, 0 for none
	vsd     bool   // VLAN stripping disabled
	known   uint32 // 16 bits: the producer counter last read from the doorbell record
	cache   []byte // prefetched WQEs
	packets uint64
}

// A receive WQE's list may end early with this lkey.
const endOfList = 0x100

// rqFetch is how many bytes of receive WQEs one DMA read fetches.
const rqFetch = 512

func (m *Model) createRQ(c *call) *refusal {
	in := c.in
	q := &rq{counter: in.U32("counter_set_id"), vsd: in.Is("vsd")}
	if r := m.newWorkQueue(in, &q.workQueue); r != nil {
		return r
	}
	switch {
	case in.U("mem_rq_type") != 0:
		return refuse(stBadParam, "mem_rq_type is %d, the model has 0 (inline)", in.U("mem_rq_type"))
	case in.Is("scatter_fcs"):
		return refuse(stBadParam, "scatter_fcs is set without the capability")
	case q.logEntry < 4 || q.logEntry > 9:
		return refuse(stBadParam, "log_wq_stride is %d, capabilities log_min_stride_sz_rq 4, log_max_stride_sz_rq 9",
			q.logEntry)
	case in.U("uar_page") != 0:
		return refuse(stBadParam, "uar_page is %#x: a receive queue has no doorbell", in.U("uar_page"))
	}
	if q.counter != 0 {
		if _, r := m.obj.counters.get(q.counter); r != nil {
			return r
		}
	}
	if r := m.obj.rqs.add(m, q); r != nil {
		return r
	}
	m.holdQueue(&q.workQueue, 1)
	if q.counter != 0 {
		m.obj.counters.m[q.counter].held++
	}
	c.out.Set("rqn", uint64(q.id))
	return nil
}

// modifyRQ changes the state, and VLAN stripping (bitmask bit 1).
func (m *Model) modifyRQ(c *call) *refusal {
	q, r := m.obj.rqs.get(c.in.U32("rqn"))
	if r != nil {
		return r
	}
	mask := c.in.U("modify_bitmask")
	if mask&^2 != 0 {
		return refuse(stBadParam, "modify_bitmask is %#x: the model changes the state and vsd (bit 1)", mask)
	}
	want := c.in.U32("state")
	if r := change(&q.workQueue, c.in.U32("rq_state"), want); r != nil {
		return r
	}
	if mask&2 != 0 {
		q.vsd = c.in.Is("vsd")
	}
	if q.state != want {
		m.flush(m.obj.cqs.m[q.cqn])
		q.cache = nil
		if q.state = want; want == stateReset {
			q.head, q.known, q.broken = 0, 0, false
		}
	}
	return nil
}

func (m *Model) destroyRQ(c *call) *refusal {
	q, r := m.obj.rqs.remove(m, c.in.U32("rqn"))
	if r == nil {
		m.flush(m.obj.cqs.m[q.cqn])
		m.holdQueue(&q.workQueue, -1)
		if q.counter != 0 {
			m.obj.counters.m[q.counter].held--
		}
	}
	return r
}

// nextRecv returns the next receive WQE, prefetching some, or nil if the driver posted none.
func (m *Model) nextRecv(q *rq) []byte {
	size := 1 << q.logEntry
	if len(q.cache) == 0 {
		if q.known == q.head {
			var rec [4]byte
			if m.host.DMARead(q.dbr, rec[:]) != nil {
				return nil
			}
			v := be.Uint32(rec[:]) & 0xffff
			if (v-q.head)&0xffff > q.entries() {
				m.host.Errorf("RQ %#x: the doorbell record says %#x, the queue is at %#x and has %d entries", q.id, v,
					q.head, q.entries())
				return nil
			}
			q.known = v
		}
		n := min((q.known-q.head)&0xffff, uint32(max(1, rqFetch>>q.logEntry)))
		if n == 0 {
			return nil
		}
		n = q.contiguous(q.head, n)
		q.cache = make([]byte, int(n)*size)
		if m.host.DMARead(q.at(q.head), q.cache) != nil {
			q.cache = nil
			return nil
		}
	}
	w := q.cache[:size]
	q.cache = q.cache[size:]
	return w
}

func (m *Model) receive(q *rq, f *frame, hash uint32, hashKind uint8, tag uint32) bool {
	if q.state != stateReady {
		return false
	}
	w := m.nextRecv(q)
	if w == nil {
		m.countQ(q.counter, "out_of_buffer")
		m.count.outOfBuffer++
		return false
	}
	idx := q.head
	q.head = (q.head + 1) & 0xffff
	if s := m.fault.receive; s != 0 {
		m.fault.receive = 0
		m.failRQ(q, idx, s)
		return false
	}
	b, at, tags := f.B, f.At, f.Tags
	if !q.vsd && tags > 0 && !f.SVLAN {
		b = append(append([]byte(nil), b[:12]...), b[16:]...)
		at -= 4
	}
	if err := m.scatter(q, w, b); err != nil {
		m.host.Errorf("RQ %#x, WQE %#x: %v (syndrome %02xh)", q.id, idx, err, err.synd)
		m.failRQ(q, idx, err.synd)
		return false
	}
	q.packets++
	var e [cqeSize]byte
	be.PutUint32(e[0x0c:], hash)
	e[0x10] = hashKind
	end := f.End - (len(f.B) - len(b))
	if f.L3 == parts.L3None {
		end = len(b)
	}
	be.PutUint16(e[0x14:], parts.Sum16(b[min(at, len(b)):end], 0))
	e[0x1c] = 1 // layer 2 is correct
	if f.L3OK {
		e[0x1c] |= 2
	}
	if f.L4OK {
		e[0x1c] |= 4
	}
	e[0x1d] = f.L3<<2 | l4Kind(f)<<4
	if len(b) != len(f.B) {
		e[0x1d] |= 1
		be.PutUint16(e[0x1e:], f.VLAN)
	}
	be.PutUint32(e[0x20:], q.user)
	be.PutUint32(e[0x2c:], uint32(len(b)))
	be.PutUint64(e[0x30:], m.stamp(q.ts))
	be.PutUint32(e[0x38:], tag)
	be.PutUint16(e[0x3c:], uint16(idx))
	e[63] = cqeResponseSend << 4
	if m.fault.compressed {
		m.fault.compressed = false
		e[63] |= formatCompressed
	}
	m.completeReceive(m.obj.cqs.m[q.cqn], q, &e)
	return true
}

// l4Kind is the layer 4 part of a CQE's l4_l3_hdr_type.
func l4Kind(f *frame) uint8 {
	switch {
	case f.L4 == parts.L4UDP:
		return 2
	case f.L4 == parts.L4TCP && f.TCPFlags&0x10 == 0:
		return 1
	case f.L4 == parts.L4TCP && f.End-f.L4At == int(f.B[f.L4At+12]>>4)*4:
		return 3
	case f.L4 == parts.L4TCP:
		return 4
	}
	return 0
}

// scatter writes a frame along a WQE's list.
func (m *Model) scatter(q *rq, w, b []byte) *wqeError {
	for seg := w; len(seg) >= wqeSeg && len(b) > 0; seg = seg[wqeSeg:] {
		// Bit 31 requests padding at the start, which changes no byte of the frame.
		n, key := int(be.Uint32(seg)&^(1<<31)), be.Uint32(seg[4:])
		if key == endOfList || n == 0 {
			break
		}
		if n > 1<<30 {
			return badWQE(syndLocalLength, "data segment %x: byte_count", seg[:wqeSeg])
		}
		n = min(n, len(b))
		pieces, err := m.translate(key, be.Uint64(seg[8:]), n, q.pd, q.rlky, localWrite)
		if err != nil {
			return badWQE(syndLocalProt, "data segment %x: %v", seg[:wqeSeg], err)
		}
		for _, p := range pieces {
			if (bus{m}).DMAWrite(p.At, b[:p.N]) != nil {
				return badWQE(syndLocalProt, "data segment %x cannot be written", seg[:wqeSeg])
			}
			b = b[p.N:]
		}
	}
	if len(b) > 0 {
		return badWQE(syndLocalLength, "%d bytes of the frame found no room", len(b))
	}
	return nil
}

func (m *Model) failRQ(q *rq, idx uint32, synd uint8) {
	m.errorCQE(&q.workQueue, cqeResponseErr, idx, 0, synd)
	q.state, q.broken, q.cache = stateError, true, nil
}
