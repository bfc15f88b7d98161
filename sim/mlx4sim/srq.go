package mlx4sim

import "fmt"

// PRM "SRQ Context".
var srqLayout = lay(64, `00.31:28 state 00.27:24 log_srq_size 00.23:0 srqn 04.26:24 log_srq_stride 04.15:0 xrcd 08.29:24 page_offset 08.23:0 cqn
	10.29:24 log2_page_size 10.7:0 mtt_base_addr_h 14.31:3 mtt_base_addr_l 18.23:0 pd 1c.31:16 lwm 1c.15:0 wqe_cnt 20.15:0 srq_wqe_counter 28*2 db_record_addr`).
	Without("lwm", "xrcd")

// srq is a shared receive queue, which provides receive WQEs for connections: a list, in which each WQE contains the
// index of the next.
type srq struct {
	buffer
	id       uint32
	raw      []byte
	ring     ring
	pd       uint32
	dbr      uint64
	held     int    // QPs
	next     uint32 // WQE
	consumed uint32 // 16 bits
}

func (s *srq) String() string { return fmt.Sprintf("SRQ %#x", s.id) }

func srqCommands() map[uint16]*command {
	return map[uint16]*command{
		0x035: {name: "SW2HW_SRQ", from: stageReady, in: srqLayout, mods: 0xffffff, run: (*Model).newSRQ},
		0x036: {name: "HW2SW_SRQ", from: stageReady, out: srqLayout, mods: 0xffffff, opMods: 1<<1 | quietOut, run: (*Model).dropSRQ},
	}
}

func (m *Model) newSRQ(c *call) *refusal {
	in, id := c.in, c.mod
	if r := m.claim(id, m.hca.srqc, m.hca.cmpt[1]); r != nil {
		return r
	}
	switch {
	case id < 1<<logReservedSRQs:
		return refuse(stBadIndex, "SRQ %#x: the first %#x are the firmware's", id, 1<<logReservedSRQs)
	case m.obj.srqs[id] != nil:
		return refuse(stBadResState, "SRQ %#x is the device's already", id)
	case in.I("log_srq_size") > logWQE:
		return refuse(stLimit, "log_srq_size is %d, the capability is %d", in.U("log_srq_size"), logWQE)
	case in.U("db_record_addr")&3 != 0:
		return refuse(stBadParam, "db_record_addr is %#x: aligned to 4 bytes", in.U("db_record_addr"))
	}
	bytes := uint64(1) << (in.I("log_srq_size") + 4 + in.I("log_srq_stride"))
	b, r := m.newBuffer(in.U("mtt_base_addr_h")<<32|in.U("mtt_base_addr_l")<<3, uint(in.U("log2_page_size")),
		in.U("page_offset")<<6, bytes)
	if r != nil {
		return r
	}
	s := &srq{buffer: b, id: id, raw: append([]byte(nil), in.B...), pd: in.U32("pd"), dbr: in.U("db_record_addr"),
		ring: ring{log: uint(in.U("log_srq_size")), logStride: 4 + uint(in.U("log_srq_stride"))}}
	if r := m.store(m.hca.srqc, id, s.raw); r != nil {
		return r
	}
	m.obj.srqs[id] = s
	return nil
}

func (m *Model) findSRQ(id uint32) (*srq, *refusal) {
	if s := m.obj.srqs[id]; s != nil {
		return s, nil
	}
	return nil, refuse(stBadIndex, "SRQ %#x is not the device's", id)
}

func (m *Model) dropSRQ(c *call) *refusal {
	s, r := m.findSRQ(c.mod)
	if r != nil {
		return r
	}
	if s.held > 0 {
		return refuse(stResBusy, "%v: %d QPs take their receive WQEs from it", s, s.held)
	}
	m.intact(m.hca.srqc, s.id, s.raw)
	m.stale(&s.buffer, s.String())
	delete(m.obj.srqs, s.id)
	return nil
}

// takeShared returns the next WQE, without the segment that links to its successor, and its index; nil if none is
// posted.
func (m *Model) takeShared(s *srq) (w []byte, idx uint32) {
	var rec [4]byte
	if m.host.DMARead(s.dbr, rec[:]) != nil {
		return nil, 0
	}
	posted := (be.Uint32(rec[:]) - s.consumed) & 0xffff
	if posted > s.ring.entries() {
		m.host.Errorf("%v: the doorbell record says %#x, %#x are consumed, it has %d entries", s,
			be.Uint32(rec[:])&0xffff, s.consumed, s.ring.entries())
		return nil, 0
	}
	if posted == 0 {
		return nil, 0
	}
	idx = s.next
	b := make([]byte, 1<<s.ring.logStride)
	if m.read(&s.buffer, s.ring.at(idx), b) != nil {
		return nil, 0
	}
	if s.next = uint32(be.Uint16(b[2:])); s.next >= s.ring.entries() {
		m.host.Errorf("%v, WQE %#x: the next one is %#x, there are %#x", s, idx, s.next, s.ring.entries())
		s.next &= s.ring.entries() - 1
	}
	s.consumed = (s.consumed + 1) & 0xffff
	return b[segSize:], idx
}
