package enasim

import (
	"fmt"

	"github.com/rebound-nic/rebound/sim/amazon"
)

// txQueue is a transmit submission queue. Entries are descriptors in host memory, or LLQ entries.
type txQueue struct {
	live       bool
	cq         int
	depth      uint16
	base       uint64
	llq        bool
	size       int    // bytes of an LLQ entry
	trapped    []bool // LLQ entries written by trapped stores
	bell       uint16 // doorbell as last seen
	tail, head uint16 // entries given, taken
	owned      uint16 // entries taken whose completion is not written
	meta       txMetaData
	pkt        packet
	held       []txDone
}

// txMetaData is the content of a meta descriptor, for its frame and, if stored, for later ones.
type txMetaData struct {
	valid        bool
	l3Off, l3Len int
}

// packet is a frame whose descriptors are being collected.
type packet struct {
	descs   int // so far
	meta    bool
	own     txMetaData // of its meta descriptor, or as stored
	first   bool       // the first data descriptor was seen
	bad     bool
	entries uint16
	header  []byte // pushed
	hdrLen  int
	frame   []byte
	req     uint16
	comp    bool
	ctrl    uint32 // meta_ctrl of the first data descriptor
}

// txDone is a frame whose completion is due.
type txDone struct {
	req     uint16
	head    uint16
	entries uint16
	silent  bool // no completion was requested
}

func (m *Model) newTX(cq int, depth uint16, base uint64, llq bool, r []byte) int {
	for i := range m.tx {
		q := &m.tx[i]
		if q.live {
			continue
		}
		*q = txQueue{live: true, cq: cq, depth: depth, base: base, llq: llq, size: m.feat.llqSize}
		le.PutUint32(m.Host.Shadow(0)[regTxDB+4*amazon.Reg(i):], 0)
		le.PutUint32(r[4:], uint32(regTxDB)+4*uint32(i))
		if llq {
			q.trapped = make([]bool, depth)
			for k := range int(depth) {
				m.forget(i, q, k)
			}
			le.PutUint32(r[8:], uint32(llqAt(i)))
		}
		return i
	}
	return -1
}

// txDoorbell handles a new tail: a free-running index of 16 bits.
func (m *Model) txDoorbell(i int, v uint32, trapped bool) error {
	if i >= len(m.tx) {
		return fmt.Errorf("doorbell %d of transmit queue %d, which does not exist", v, i)
	}
	q := &m.tx[i]
	if !q.live {
		le.PutUint32(m.Host.Shadow(0)[regTxDB+4*amazon.Reg(i):], 0)
		return fmt.Errorf("doorbell %d of transmit queue %d, which does not exist", v, i)
	}
	q.bell = uint16(v)
	n := uint16(v) - q.head
	switch {
	case v > 0xffff:
		le.PutUint32(m.Host.Shadow(0)[regTxDB+4*amazon.Reg(i):], uint32(q.bell))
		return fmt.Errorf("doorbell %#x of transmit queue %d: bits 31:16 are reserved", v, i)
	case int(n)+int(q.owned) > int(q.depth):
		return fmt.Errorf("doorbell %d of transmit queue %d: head %d, %d not completed, the queue has %d entries", v, i,
			q.head, q.owned, q.depth)
	}
	// Of several doorbells by pointer only the last is seen: the burst before each is not known then.
	if given := uint16(v) - q.tail; trapped && q.llq && m.opt.Burst > 0 && int(given)*q.size > int(m.opt.Burst) {
		m.Host.Warnf("transmit queue %d: %d entries of %d bytes before one doorbell exceed max_tx_burst_size %d", i,
			given, q.size, m.opt.Burst)
	}
	q.tail = uint16(v)
	return nil
}

// stepTX sends frames up to the doorbells, a bounded number from each queue.
func (m *Model) stepTX() (busy bool) {
	for i := range m.tx {
		q := &m.tx[i]
		if !q.live {
			continue
		}
		if !m.Knobs.Paused {
			for n := 0; n < 64 && q.head != q.tail; n++ {
				busy = true
				if q.llq {
					m.takeEntry(i, q)
				} else if !m.takeDescriptors(i, q) {
					break
				}
			}
			if q.head == q.tail && q.pkt.descs > 0 && busy {
				m.Host.Errorf("transmit queue %d: doorbell %d lies inside a frame: its last descriptor is missing", i,
					q.tail)
				q.pkt.bad = true
				m.finish(i, q)
			}
		}
		m.completeTX(i, q)
	}
	return busy
}

// takeDescriptors reads descriptors from host memory.
func (m *Model) takeDescriptors(i int, q *txQueue) bool {
	at := q.head % q.depth
	n := min(q.tail-q.head, q.depth-at, 16)
	b := make([]byte, 16*int(n))
	m.count.TxDescReads++
	if m.Host.DMARead(q.base+16*uint64(at), b) != nil {
		q.tail, q.bell = q.head, q.head
		return false
	}
	for k := range int(n) {
		ph := amazon.Phase(q.head, q.depth)
		q.head++
		q.pkt.entries++
		m.descriptor(i, q, [16]byte(b[16*k:]), ph)
	}
	return true
}

// takeEntry reads an LLQ entry: the first of a frame contains descriptors and header, later ones only descriptors.
func (m *Model) takeEntry(i int, q *txQueue) {
	p := &q.pkt
	ph := amazon.Phase(q.head, q.depth)
	first := p.descs == 0
	b, err := m.entry(i, q)
	q.head++
	p.entries++
	if err != nil {
		m.Host.Errorf("transmit queue %d: %v", i, err)
		p.bad = true
	}
	n := m.feat.llqPerEntry
	if first {
		n = m.feat.llqBefore
		p.header = b[16*n:]
	}
	for k := range n {
		if m.descriptor(i, q, [16]byte(b[16*k:]), ph) {
			return
		}
	}
}

// descriptor handles one descriptor and reports whether it was a frame's last.
func (m *Model) descriptor(i int, q *txQueue, d [16]byte, ph byte) (last bool) {
	p := &q.pkt
	w0 := le.Uint32(d[0:])
	err := m.parse(q, &d)
	if got := byte(w0 >> 24 & 1); err == nil && got != ph {
		err = fmt.Errorf("phase %d, expected %d", got, ph)
	}
	if p.descs++; err == nil && p.descs > maxTxDescs {
		err = fmt.Errorf("%d descriptors for one frame, up to %d are supported", p.descs, maxTxDescs)
	}
	if err != nil {
		m.Host.Errorf("transmit queue %d, head %d, descriptor %x: %v", i, q.head, d, err)
		p.bad = true
	}
	if w0&txLast != 0 {
		m.finish(i, q)
		return true
	}
	return false
}

// parse reads ena_eth_io_tx_desc or ena_eth_io_tx_meta_desc into the frame.
func (m *Model) parse(q *txQueue, d *[16]byte) error {
	p := &q.pkt
	w0, w1, w2, w3 := le.Uint32(d[0:]), le.Uint32(d[4:]), le.Uint32(d[8:]), le.Uint32(d[12:])
	if got := w0&txFirst != 0; got != (p.descs == 0) {
		return fmt.Errorf("first is %v in descriptor %d of a frame", got, p.descs)
	}
	if w0&txMeta != 0 {
		switch {
		case p.descs != 0:
			return fmt.Errorf("meta descriptor inside a frame")
		case w0&metaMBZ != 0 || w1 != 0 || w3 != 0:
			return fmt.Errorf("meta descriptor: reserved bits set")
		case w0&metaType == 0 || w0&metaExt == 0:
			return fmt.Errorf("meta descriptor: eth_meta_type and ext_valid must be set, len_ctrl is %#x", w0)
		case w0&txLast != 0:
			return fmt.Errorf("meta descriptor without a frame")
		}
		p.meta = true
		p.own = txMetaData{valid: true, l3Off: int(w2 >> 8 & 0xff), l3Len: int(w2 & 0xff)}
		if w0&metaStore != 0 {
			q.meta = p.own
		}
		return nil
	}
	if !p.meta {
		p.own = q.meta
	}
	if w0&txMBZ != 0 || w1&tx1MBZ != 0 || w3&tx3MBZ != 0 {
		m.Host.Warnf("transmit descriptor %x: reserved bits set: %#x %#x %#x", *d, w0&txMBZ, w1&tx1MBZ, w3&tx3MBZ)
	}
	n := int(w0 & txLen)
	addr := uint64(w3&0xffff)<<32 | uint64(w2)
	switch {
	case n > 0 && addr>>m.opt.Width != 0:
		return fmt.Errorf("address %#x has more than %d bits", addr, m.opt.Width)
	case !p.first && w1&tx1TSO != 0:
		return fmt.Errorf("tso_en: the device has no segmentation")
	case !p.first && w1&tx1L3 != 0:
		return fmt.Errorf("l3_csum_en: the device does not offer it")
	case !p.first && w1&tx1NoFCS != 0:
		return fmt.Errorf("ethernet_fcs_dis is not supported")
	}
	if !p.first {
		p.first = true
		p.req = uint16(w0>>16&0x3f)<<10 | uint16(w1>>22)
		p.comp = w0&txComp != 0
		p.ctrl = w1
		p.hdrLen = int(w3 >> 24)
		limit := maxHeader
		if q.llq {
			limit = len(p.header)
		}
		if p.hdrLen > limit {
			return fmt.Errorf("header_length %d exceeds the %d bytes that there are", p.hdrLen, limit)
		}
		if p.req >= q.depth { // iPXE uses IDs up to four times as large; a device only returns them
			m.Host.Warnf("transmit descriptor %x: request ID %d of a queue of %d", *d, p.req, q.depth)
		}
		if q.llq {
			if m.opt.NoMeta && !p.meta {
				return fmt.Errorf("no meta descriptor, but meta caching is disabled")
			}
			if m.opt.NeedMeta && !p.meta {
				return fmt.Errorf("no meta descriptor, which this device needs before every frame in an LLQ")
			}
			p.frame = append(p.frame, p.header[:p.hdrLen]...)
			if n == 0 && p.hdrLen > 0 && w0&txLast != 0 {
				return nil // pushed whole
			}
		}
	}
	if n == 0 {
		return fmt.Errorf("a buffer of no bytes")
	}
	if len(p.frame)+n > int(m.feat.mtu)+18 {
		return fmt.Errorf("a frame of %d bytes or more with an MTU of %d", len(p.frame)+n, m.feat.mtu)
	}
	if p.bad {
		return nil
	}
	old := len(p.frame)
	p.frame = append(p.frame, make([]byte, n)...)
	m.count.TxPayloadReads++
	if m.Host.DMARead(addr, p.frame[old:]) != nil {
		p.bad = true
	}
	return nil
}

// finish sends a collected frame and schedules its completion.
func (m *Model) finish(i int, q *txQueue) {
	p := &q.pkt
	f := p.frame
	if !p.bad && len(f) < 14 {
		m.Host.Errorf("transmit queue %d, head %d: a frame of %d bytes", i, q.head, len(f))
		p.bad = true
	}
	if !p.bad && p.hdrLen > len(f) {
		m.Host.Errorf("transmit queue %d, head %d: header_length %d of a frame of %d bytes", i, q.head, p.hdrLen,
			len(f))
		p.bad = true
	}
	if !p.bad && p.ctrl&tx1L4 != 0 {
		if err := insertChecksum(m.Host, f, p.ctrl, p.own); err != nil {
			m.Host.Errorf("transmit queue %d, head %d: %v", i, q.head, err)
			p.bad = true
		}
	}
	if p.bad {
		m.count.TxDrops++
	} else {
		m.count.TxFrames++
		m.count.TxBytes += uint64(len(f))
		m.count.TxQueue[i]++
		for len(f) < 60 {
			f = append(f, 0)
			m.count.TxPadding++
		}
		if m.wire {
			m.Host.Transmit(f)
		}
	}
	q.owned += p.entries
	q.held = append(q.held, txDone{req: p.req, head: q.head, entries: p.entries, silent: !p.comp})
	q.pkt = packet{}
}

// completeTX writes the completions that are due, ena_eth_io_tx_cdesc.
func (m *Model) completeTX(i int, q *txQueue) {
	if m.hold || len(q.held) == 0 {
		return
	}
	if m.opt.TxOutOfOrder {
		m.Rand.Shuffle(len(q.held), func(i, j int) { q.held[i], q.held[j] = q.held[j], q.held[i] })
	}
	for _, d := range q.held {
		q.owned -= d.entries
		if d.silent {
			continue
		}
		for range 1 + m.Knobs.TakeDuplicate(true) {
			m.complete(q.cq, func(b []byte, ph byte) {
				le.PutUint16(b[0:], d.req)
				b[3] = ph
				le.PutUint16(b[4:], uint16(i))
				le.PutUint16(b[6:], d.head)
			}, m.Knobs.TakeTamper(true))
		}
	}
	q.held = q.held[:0]
}
