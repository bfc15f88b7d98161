package enasim

import (
	"fmt"

	"github.com/rebound-nic/rebound/sim/amazon"
)

// rxQueue is a receive submission queue with descriptors in host memory.
type rxQueue struct {
	live       bool
	cq         int
	depth      uint16
	base       uint64
	bell       uint16
	tail, head uint16
	owned      uint16 // descriptors taken whose completion is not written
	cache      []rxBuffer
	fifo       [][]byte // frames that wait for buffers
}

type rxBuffer struct {
	addr uint64
	n    int
	req  uint16
}

func (m *Model) newRX(cq int, depth uint16, base uint64, r []byte) int {
	for i := range m.rx {
		if q := &m.rx[i]; !q.live {
			*q = rxQueue{live: true, cq: cq, depth: depth, base: base}
			le.PutUint32(m.Host.Shadow(0)[regRxDB+4*amazon.Reg(i):], 0)
			le.PutUint32(r[4:], uint32(regRxDB)+4*uint32(i))
			return i
		}
	}
	return -1
}

func (m *Model) rxDoorbell(i int, v uint32) error {
	if i >= len(m.rx) {
		return fmt.Errorf("doorbell %d of receive queue %d, which does not exist", v, i)
	}
	q := &m.rx[i]
	if !q.live {
		le.PutUint32(m.Host.Shadow(0)[regRxDB+4*amazon.Reg(i):], 0)
		return fmt.Errorf("doorbell %d of receive queue %d, which does not exist", v, i)
	}
	q.bell = uint16(v)
	switch n := uint16(v) - q.head; {
	case v > 0xffff:
		le.PutUint32(m.Host.Shadow(0)[regRxDB+4*amazon.Reg(i):], uint32(q.bell))
		return fmt.Errorf("doorbell %#x of receive queue %d: bits 31:16 are reserved", v, i)
	case int(n)+int(q.owned) > int(q.depth):
		return fmt.Errorf("doorbell %d of receive queue %d: head %d, %d not completed, the queue has %d entries", v, i,
			q.head, q.owned, q.depth)
	}
	q.tail = uint16(v)
	return nil
}

// fetch reads descriptors, ena_eth_io_rx_desc, into the cache.
func (m *Model) fetch(i int, q *rxQueue) bool {
	at := q.head % q.depth
	n := min(int(q.tail-q.head), int(q.depth-at), cacheMax-len(q.cache))
	if n == 0 || len(q.cache) > cacheMax/2 {
		return false
	}
	b := make([]byte, 16*n)
	m.count.RxDescReads++
	if m.Host.DMARead(q.base+16*uint64(at), b) != nil {
		q.tail, q.bell = q.head, q.head
		return false
	}
	for k := range n {
		d := b[16*k:][:16]
		x := rxBuffer{addr: uint64(le.Uint16(d[12:]))<<32 | uint64(le.Uint32(d[8:])), n: int(le.Uint16(d[0:])),
			req: le.Uint16(d[4:])}
		if x.n == 0 {
			x.n = 64 << 10
		}
		ctrl := d[3]
		var err error
		switch want := amazon.Phase(q.head, q.depth); {
		case ctrl&1 != want:
			err = fmt.Errorf("phase %d, expected %d", ctrl&1, want)
		case ctrl&0x0c != 0x0c:
			err = fmt.Errorf("ctrl %#02x: first and last must be set", ctrl)
		case x.addr>>m.opt.Width != 0:
			err = fmt.Errorf("address %#x has more than %d bits", x.addr, m.opt.Width)
		}
		q.head++
		if x.req >= q.depth {
			m.Host.Warnf("receive queue %d, head %d, descriptor %x: request ID %d of a queue of %d", i, q.head-1, d,
				x.req, q.depth)
		}
		if ctrl&0x10 == 0 {
			m.Host.Warnf("receive queue %d: comp_req is clear: all public drivers ask for a completion of each", i)
		}
		if d[2] != 0 || ctrl&0xe2 != 0 || le.Uint16(d[6:]) != 0 || le.Uint16(d[14:]) != 0 {
			m.Host.Warnf("receive queue %d, head %d, descriptor %x: reserved bits set", i, q.head-1, d)
		}
		if err != nil {
			m.Host.Errorf("receive queue %d, head %d, descriptor %x: %v", i, q.head-1, d, err)
			continue
		}
		q.owned++
		q.cache = append(q.cache, x)
	}
	return true
}

// Receive handles a frame from the wire.
func (m *Model) Receive(frame []byte) bool {
	m.Lock()
	defer m.Unlock()
	if len(frame) < 14 || m.Resetting() {
		return false
	}
	if [6]byte(frame) != m.opt.MAC && frame[0]&1 == 0 {
		return true // another's
	}
	if len(frame) > int(m.feat.mtu)+18 {
		m.Host.Dropped(fmt.Sprintf("longer than the MTU of %d", m.feat.mtu))
		m.count.RxTooLong++
		m.count.RxDrops++
		return false
	}
	p := parseFrame(frame)
	i := m.steer(&p)
	if i < 0 {
		return false // no queues yet
	}
	q := &m.rx[i]
	if len(q.fifo) >= fifoMax {
		if m.opt.Overruns {
			m.count.RxOverruns++
		} else {
			m.count.RxDrops++
		}
		return false
	}
	q.fifo = append(q.fifo, frame)
	return true
}

func (m *Model) stepRX() (busy bool) {
	for i := range m.rx {
		q := &m.rx[i]
		if !q.live {
			continue
		}
		busy = m.fetch(i, q) || busy
		for n := 0; n < 64 && len(q.fifo) > 0 && m.deliver(i, q); n++ {
			busy = true
			q.fifo = q.fifo[1:]
		}
	}
	return busy
}

// empty reports whether no buffer is posted in the part of the ring that a frame's hash chooses. How cards divide the
// ring is not published: here the parts are of equal size, and the hash is of the headers.
func (m *Model) empty(q *rxQueue, f []byte) bool {
	if m.opt.Parts == 0 {
		return false
	}
	size := q.depth / uint16(m.opt.Parts)
	part := uint16(crc32(0, f[:min(len(f), 42)])%uint32(m.opt.Parts)) * size
	next := q.head - uint16(len(q.cache))
	for slot := range size {
		if (part+slot-next)%q.depth < q.tail-next {
			return false
		}
	}
	return true
}

// deliver writes the oldest frame and its completions, ena_eth_io_rx_cdesc_base. It reports whether the frame was
// consumed.
func (m *Model) deliver(i int, q *rxQueue) bool {
	f := q.fifo[0]
	if m.empty(q, f) {
		return true
	}
	off := 0
	if m.feat.rxOffset {
		off = int(m.opt.RxOffset)
	}
	use, room := 0, -off
	for ; room < len(f); use++ {
		if use == maxRxDescs {
			m.count.RxDrops++
			return true
		}
		if use == len(q.cache) && !m.fetch(i, q) {
			return false
		}
		room += q.cache[use].n
	}
	if use < len(q.cache) && use == 1 && m.opt.RxOutOfOrder && q.cache[0].n == q.cache[1].n {
		k := m.Rand.IntN(len(q.cache))
		if q.cache[k].n == q.cache[0].n {
			q.cache[0], q.cache[k] = q.cache[k], q.cache[0]
		}
	}
	p := parseFrame(f)
	hash := uint32(0)
	if m.feat.rxEnabled&(1<<rxHash) != 0 {
		hash = m.hash(&p)
	}
	status := p.status(m.feat.rxEnabled)
	rest := f
	for k, b := range q.cache[:use] {
		at, n := b.addr, b.n
		if k == 0 {
			at, n = at+uint64(off), n-off
		}
		n = min(n, len(rest))
		if m.Host.DMAWrite(at, rest[:n]) != nil {
			m.count.RxDrops++
			break
		}
		rest = rest[n:]
	}
	for k, b := range q.cache[:use] {
		q.owned--
		n := b.n
		s := uint32(rxBufferBit)
		if k == 0 {
			s |= rxFirst
			n -= off
		}
		n = min(n, len(f))
		f = f[n:]
		if k == use-1 {
			s |= rxLast | status
		}
		for range 1 + m.Knobs.TakeDuplicate(false) {
			m.complete(q.cq, func(c []byte, ph byte) {
				le.PutUint32(c[0:], s|uint32(ph)<<24)
				le.PutUint16(c[4:], uint16(n))
				le.PutUint16(c[6:], b.req)
				le.PutUint32(c[8:], hash)
				le.PutUint16(c[12:], uint16(i))
				if k == 0 {
					c[14] = byte(off)
				}
				if len(c) == 32 {
					le.PutUint32(c[16:], uint32(b.addr))
					le.PutUint16(c[20:], uint16(b.addr>>32))
				}
			}, m.Knobs.TakeTamper(false))
		}
	}
	m.count.RxFrames++
	m.count.RxBytes += uint64(len(p.f))
	m.count.RxQueue[i]++
	q.cache = append(q.cache[:0], q.cache[use:]...)
	return true
}
