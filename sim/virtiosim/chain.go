package virtiosim

// piece is one descriptor of a chain.
type piece struct {
	addr  uint64
	len   uint32
	flags uint16
	id    uint16
}

// take returns the next chain that the driver made available.
func (m *Model) take(q *vq) (chain []piece, ok bool) {
	if !q.enabled || m.status&4 == 0 {
		return nil, false
	}
	n := uint32(q.size)
	if m.has(34) {
		for at := q.avail; ; at++ {
			d, wrap, from := make([]byte, 16), uint16(1-at/n%2), q.area[0]+uint64(at%n*16)
			if m.host.DMARead(from, d) != nil {
				return nil, false
			}
			if flags := le.Uint16(d[14:]); flags>>7&1 != wrap || flags>>15&1 == wrap {
				if len(chain) > 0 {
					m.host.Errorf("entry %d: a chain that is available in part", at)
				}
				return nil, false
			}
			// The driver writes the flags last, so the bytes before them may have been read too early: read them again.
			// A device reads the whole descriptor at once.
			if h, ok := m.host.(interface {
				Peek(iova uint64, p []byte) error
			}); ok && h.Peek(from, d) != nil {
				return nil, false
			}
			p := piece{le.Uint64(d), le.Uint32(d[8:]), le.Uint16(d[14:]), le.Uint16(d[12:])}
			if chain = append(chain, p); p.flags&1 == 0 {
				q.avail = at + 1
				return chain, true
			}
		}
	}
	idx := make([]byte, 4)
	if m.host.DMARead(q.area[1], idx) != nil || le.Uint16(idx[2:]) == uint16(q.avail) {
		return nil, false
	}
	if le.Uint16(idx) != 1 {
		m.host.Errorf("available ring: flags %#x ask for interrupts", le.Uint16(idx))
	}
	entry := make([]byte, 2)
	if m.host.DMARead(q.area[1]+4+uint64(q.avail%n*2), entry) != nil {
		return nil, false
	}
	head := le.Uint16(entry)
	for at := head; ; {
		d := make([]byte, 16)
		if uint32(at) >= n || m.host.DMARead(q.area[0]+uint64(at)*16, d) != nil {
			m.host.Errorf("descriptor %d of %d", at, n)
			return nil, false
		}
		p := piece{le.Uint64(d), le.Uint32(d[8:]), le.Uint16(d[12:]), head}
		if chain = append(chain, p); p.flags&1 == 0 {
			q.avail++
			return chain, true
		}
		at = le.Uint16(d[14:])
	}
}

// use returns a chain to the driver.
func (m *Model) use(q *vq, chain []piece, written uint32) {
	n := uint32(q.size)
	if m.lie.CompareAndSwap(true, false) {
		chain[0].id = q.size
	}
	if m.has(34) {
		d, wrap := make([]byte, 8), uint16(1-q.used/n%2)
		le.PutUint32(d, written)
		le.PutUint16(d[4:], chain[len(chain)-1].id)
		le.PutUint16(d[6:], wrap<<7|wrap<<15)
		m.host.DMAWrite(q.area[0]+uint64(q.used%n*16)+8, d)
		q.used += uint32(len(chain))
		return
	}
	e, idx := make([]byte, 8), make([]byte, 2)
	le.PutUint32(e, uint32(chain[0].id))
	le.PutUint32(e[4:], written)
	m.host.DMAWrite(q.area[2]+4+uint64(q.used%n*8), e)
	q.used++
	le.PutUint16(idx, uint16(q.used))
	m.host.DMAWrite(q.area[2]+2, idx)
}
