package mlx4sim

import "fmt"

// objects are the objects that the driver created, by their index in their table.
type objects struct {
	mpts         map[uint32]*mpt
	eqs          map[uint32]*eq
	cqs          map[uint32]*cq
	qps          map[uint32]*qp
	srqs         map[uint32]*srq
	destroyedCQs map[uint32]bool // by number; some may exist again
	sqp          uint32          // CONF_SPECIAL_QP: the first of eight; 0 for none
}

func newObjects() objects {
	return objects{mpts: map[uint32]*mpt{}, eqs: map[uint32]*eq{}, cqs: map[uint32]*cq{}, qps: map[uint32]*qp{},
		srqs:         map[uint32]*srq{},
		destroyedCQs: map[uint32]bool{}}
}

// left names the objects that were not destroyed.
func (o *objects) left() (names []string) {
	for i := range o.mpts {
		names = append(names, fmt.Sprintf("MPT %#x", i))
	}
	for _, e := range o.eqs {
		names = append(names, e.String())
	}
	for _, q := range o.cqs {
		names = append(names, q.String())
	}
	for _, q := range o.qps {
		names = append(names, q.String())
	}
	for _, q := range o.srqs {
		names = append(names, q.String())
	}
	return names
}

// context is an object's location in ICM.
type context struct {
	name string
	at   uint64
}

func (o *objects) contexts(m *Model) (list []context) {
	h := &m.hca
	add := func(name string, t table, i uint32) { list = append(list, context{name, t.base + uint64(i)*t.size}) }
	for i := range o.mpts {
		add(fmt.Sprintf("MPT %#x", i), h.dmpt, i)
	}
	for i, e := range o.eqs {
		add(e.String(), h.eqc, i)
	}
	for i, q := range o.cqs {
		add(q.String(), h.cqc, i)
		list = append(list, context{"the MTT of " + q.String(), h.mtt.base + q.mtt})
	}
	for i, q := range o.qps {
		add(q.String(), h.qpc, i)
		if !q.rss.on {
			list = append(list, context{"the MTT of " + q.String(), h.mtt.base + q.buf.mtt})
		}
	}
	for i, q := range o.srqs {
		add(q.String(), h.srqc, i)
	}
	return list
}

// buffer is the memory of a ring, described by MTT entries in ICM. Entries are read when the object is created, as a
// card caches them.
type buffer struct {
	mtt     uint64 // of the first entry, from the table's base
	pages   []uint64
	logPage uint
	offset  uint64 // of the ring in the first page
}

// newBuffer reads the MTT entries of a buffer of bytes bytes.
func (m *Model) newBuffer(mtt uint64, logPage uint, offset uint64, bytes uint64) (b buffer, r *refusal) {
	b = buffer{mtt: mtt, logPage: 12 + logPage, offset: offset}
	switch {
	case b.logPage > 31:
		return b, refuse(stBadParam, "log2_page_size is %d", logPage)
	case mtt&7 != 0:
		return b, refuse(stBadParam, "mtt_base_addr is %#x", mtt)
	case offset >= 1<<b.logPage:
		return b, refuse(stBadParam, "page_offset is %#x, a page has %#x bytes", offset, uint64(1)<<b.logPage)
	}
	n := (offset + bytes + 1<<b.logPage - 1) >> b.logPage
	for i := range n {
		at, r := m.readMTT(mtt+8*i, b.logPage)
		if r != nil {
			return b, r
		}
		b.pages = append(b.pages, at)
	}
	return b, nil
}

// readMTT reads one entry at an offset from the table's base.
func (m *Model) readMTT(off uint64, logPage uint) (uint64, *refusal) {
	at, r := m.icm.entry(table{"mtt_base", m.hca.mtt.base, -1, 8}, uint32(off/8))
	if r != nil {
		return 0, r
	}
	var e [8]byte
	if m.host.DMARead(at, e[:]) != nil {
		return 0, refuse(stICM, "the MTT at %#x cannot be read", at)
	}
	v := be.Uint64(e[:])
	switch {
	case v&1 == 0:
		return 0, refuse(stNotPresent, "MTT entry %#x is %#x: not present", off/8, v)
	case v&^7&(1<<logPage-1) != 0:
		return 0, refuse(stBadParam, "MTT entry %#x is %#x, a page has %#x bytes", off/8, v, uint64(1)<<logPage)
	}
	return v &^ 7, nil
}

// at returns the address of a byte of the ring.
func (b *buffer) at(off uint64) uint64 {
	off += b.offset
	return b.pages[off>>b.logPage] + off&(1<<b.logPage-1)
}

// piece returns how many of n bytes from off are contiguous.
func (b *buffer) piece(off, n uint64) uint64 {
	start := off + b.offset
	have := 1<<b.logPage - start&(1<<b.logPage-1)
	for have < n && (start+have)>>b.logPage < uint64(len(b.pages)) &&
		b.pages[(start+have)>>b.logPage] == b.pages[(start+have)>>b.logPage-1]+1<<b.logPage {
		have += 1 << b.logPage
	}
	return min(have, n)
}

// read reads n bytes at off, in one transaction for each contiguous piece.
func (m *Model) read(b *buffer, off uint64, p []byte) error {
	for len(p) > 0 {
		n := b.piece(off, uint64(len(p)))
		if err := m.host.DMARead(b.at(off), p[:n]); err != nil {
			return err
		}
		off, p = off+n, p[n:]
	}
	return nil
}

// fill fills a new ring with one byte, as the firmware does with rings of events and completions.
func (m *Model) fill(b *buffer, n uint64, with byte) *refusal {
	page := make([]byte, 1<<12)
	for i := range page {
		page[i] = with
	}
	for off := uint64(0); off < n; {
		k := min(b.piece(off, n-off), uint64(len(page)))
		if m.host.DMAWrite(b.at(off), page[:k]) != nil {
			return refuse(stBadParam, "the ring at %#x cannot be written", b.at(off))
		}
		off += k
	}
	return nil
}

// stale reports MTT entries that were changed while an object used them.
func (m *Model) stale(b *buffer, name string) {
	h, ok := m.host.(interface {
		Peek(iova uint64, p []byte) error
	})
	if !ok {
		return
	}
	for i, was := range b.pages {
		at, r := m.icm.entry(table{"mtt_base", m.hca.mtt.base, -1, 8}, uint32(b.mtt/8)+uint32(i))
		var e [8]byte
		if r == nil && h.Peek(at, e[:]) == nil && be.Uint64(e[:])&^7 != was {
			m.host.Warnf("%s: MTT entry %#x was changed to %#x while the object used it", name, b.mtt/8+uint64(i),
				be.Uint64(e[:]))
			return
		}
	}
}

// reports returns whether any CQ reports to an EQ.
func (o *objects) reports(eqn uint32) bool {
	for _, q := range o.cqs {
		if q.eqn == eqn {
			return true
		}
	}
	return false
}
