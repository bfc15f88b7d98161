package ixgbesim

import (
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/rebound-nic/rebound/sim"
)

type rxQueue struct {
	ring
	buf    int // bytes of one buffer
	legacy bool
	drop   bool
}

// Bits of a receive descriptor's status and errors, in the advanced format (§7.1.6.2); the legacy format has the same
// bits at other positions (§7.1.5).
const (
	rxDD, rxEOP = 1 << 0, 1 << 1
	rxVP        = 1 << 3
	rxUDPCS     = 1 << 4 // legacy name; in the advanced format it belongs to FCoE
	rxL4I, rxIP = 1 << 5, 1 << 6
	rxPIF       = 1 << 7
	rxL4E, rxIE = 1 << 30, 1 << 31
)

func (m *Model) rxDescReg(q int, r reg) uint32 { return m.val[rxReg(r, q)/4] }

// writeRXDCTL enables or disables a queue, §4.6.7.1.
func (m *Model) writeRXDCTL(i int, r reg, v uint32) error {
	q := &m.rx[i]
	m.val[r/4] = v &^ (1 << 26)
	if v&rxdctlENABLE == 0 || q.wanted {
		q.set(v&rxdctlENABLE != 0)
		return nil
	}
	n := m.rxDescReg(i, regRDLEN) / 16
	srrctl := m.rxDescReg(i, regSRRCTL)
	if m.dma > 0 {
		m.host.Warnf("%v enabled before RDRXCTL.DMAIDONE was seen set (82599 §4.6.3)", r)
	}
	if n > 8192 {
		m.host.Warnf("%v enabled with %d descriptors: up to 8192 are validated (82599 §8.2.3.8.3)", r, n)
	}
	switch desc := srrctl >> 25 & 7; {
	case n == 0: // Linux's self-test does it; the queue receives nothing
		return sim.AsWarning(fmt.Errorf("%v enabled with RDLEN 0 (82599 §4.6.7.1)", r))
	case desc > 1:
		return fmt.Errorf("%v enabled with SRRCTL.DESCTYPE %d: this model has no header split (82599 §7.1.10)", r, desc)
	case srrctl&0x1f == 0 || srrctl&0x1f > 16:
		return fmt.Errorf("%v enabled with SRRCTL.BSIZEPACKET %d: 1 to 16 KB are possible (82599 §8.2.3.8.7)", r,
			srrctl&0x1f)
	}
	if m.rxDescReg(i, regRSCCTL)&rscctlRSCEN != 0 && srrctl>>25&7 == 0 {
		return fmt.Errorf("%v enabled with RSCCTL.RSCEN and legacy descriptors (82599 §7.11)", r)
	}
	if m.opt.NoRelaxed && m.rxDescReg(i, regDCARX)&(1<<13|1<<15) != 0 {
		m.host.Warnf("%v enabled with relaxed ordering of data or headers: this root port may write the descriptor first (82599 §8.2.3.11.1)", r)
	}
	head := q.head
	*q = rxQueue{buf: int(srrctl&0x1f) << 10, legacy: srrctl>>25&7 == 0, drop: srrctl&srrctlDROP != 0}
	q.base = uint64(m.rxDescReg(i, regRDBAH))<<32 | uint64(m.rxDescReg(i, regRDBAL))
	q.n = n
	if head >= n {
		m.host.Errorf("%v enabled with RDH %d of %d descriptors (82599 §8.2.3.8.4)", r, head, n)
		head = 0
	}
	q.head, q.tail = head, head
	if t := sim.Load32(m.host.Shadow(0)[rxReg(regRDT, i):]); t != head {
		m.host.Errorf("%v enabled with RDT %d and RDH %d: the tail moves after ENABLE reads 1 (82599 §4.6.7.1)", r, t,
			head)
		le.PutUint32(m.host.Shadow(0)[rxReg(regRDT, i):], head)
	}
	q.set(true)
	return nil
}

func (m *Model) writeRDH(i int, v uint32) error {
	q := &m.rx[i]
	if q.enabled || q.wanted {
		return sameHead("RDH", i, v, q.head, "82599 §8.2.3.8.4")
	}
	q.head = v
	return nil
}

// rxTail handles a write to RDT.
func (m *Model) rxTail(i int, v uint32) error {
	q := &m.rx[i]
	if !q.enabled {
		if v == q.head {
			return nil
		}
		// kept: Linux's self-test reads it back
		if m.rxDescReg(i, regRXDCTL)&rxdctlENABLE != 0 && m.rxDescReg(i, regRDLEN) == 0 {
			return sim.AsWarning(errors.New("the ring has no descriptors (82599 §4.6.7.1)"))
		}
		// A card ignores the write, and the queue receives nothing until it is reset. Linux without
		// ixgbe_irq_disable_single (before 6.8 and the stable releases that have it) may do this, with AF_XDP and zero
		// copy: NAPI polls while ixgbe_txrx_ring_enable configures the queue.
		if !q.wanted { // otherwise the tail is read when the queue is enabled
			le.PutUint32(m.host.Shadow(0)[rxReg(regRDT, i):], q.tail)
		}
		return sim.AsWarning(fmt.Errorf("RDT[%d] = %d before RXDCTL.ENABLE reads 1 (82599 §4.6.7.1)", i, v))
	}
	if v == q.tail {
		return nil
	}
	if err := q.give(v, q.head); err != nil {
		le.PutUint32(m.host.Shadow(0)[rxReg(regRDT, i):], q.tail)
		return fmt.Errorf("RDT[%d]: %v (82599 §7.1.9)", i, err)
	}
	return nil
}

// writeRXCTRL starts or stops receiving, §4.6.7: with the data path halted, and after CRC stripping was set to the same
// value in both registers.
func (m *Model) writeRXCTRL(old, v uint32) error {
	m.val[regRXCTRL/4] = v
	if v&^old&rxctrlRXEN == 0 {
		return nil
	}
	// Linux does not do this on the X540.
	if !m.x540() && (m.val[regSECRXCTRL/4]&secrxDIS == 0 || !m.secReady) {
		m.host.Warnf("RXCTRL.RXEN set without SECRXCTRL.RX_DIS, or before SECRXSTAT.SECRX_RDY was seen (82599 §4.6.7)")
	}
	if m.dma > 0 {
		m.host.Warnf("RXCTRL.RXEN set before RDRXCTL.DMAIDONE was seen set (82599 §4.6.3)")
	}
	if a, b := m.val[regHLREG0/4]&hlregRXCRCSTRP != 0, m.val[regRDRXCTL/4]&rdrxctlCRCSTRIP != 0; a != b {
		m.host.Warnf("RXCTRL.RXEN set with HLREG0.RXCRCSTRP %v and RDRXCTL.CRCStrip %v: they must be alike (82599 §8.2.3.8.8)", a, b)
	}
	if m.val[regCTRLEXT/4]&(1<<16) == 0 {
		m.host.Warnf("RXCTRL.RXEN set without CTRL_EXT.NS_DIS (82599 §4.6.7)")
	}
	return nil
}

// maxFrame is the largest frame that is received, FCS included and without a VLAN tag.
func (m *Model) maxFrame() int {
	if m.val[regHLREG0/4]&hlregJUMBO != 0 {
		return int(m.val[regMAXFRS/4] >> 16)
	}
	return 1518
}

// Receive puts a frame from the wire into the packet buffer, §7.1. A frame below 60 bytes counts as padded by its
// sender, because shorter ones cannot be on a wire.
func (m *Model) Receive(frame []byte) bool {
	if !m.up || m.val[regRXCTRL/4]&rxctrlRXEN == 0 {
		return false
	}
	for len(frame) < 60 {
		frame = append(frame, 0)
	}
	n := len(frame) + 4
	m.add(regTPR, 1)
	m.add64(regTORL, n)
	if m.pauseFrame(frame) {
		return true
	}
	limit := m.maxFrame()
	if frame[12] == 0x81 && frame[13] == 0 {
		limit += 4
	}
	if n > limit {
		m.add(regROC, 1)
		m.host.Dropped(fmt.Sprintf("longer than the limit of %d bytes", limit))
		m.count.rxOversize.Add(1)
		return true
	}
	m.add(regRXNFGPC, 1)
	m.add64(regRXNFGPC+4, n)
	if !m.accepts(frame) {
		m.count.rxFiltered.Add(1)
		return true
	}
	m.add(regGPRC, 1)
	m.add64(regGORCL, n)
	m.add(regPRC+4*reg(sizeClass(n)), 1)
	switch {
	case frame[0]&1 == 0:
	case isBroadcast(frame):
		m.add(regBPRC, 1)
		m.count.rxBroadcast.Add(1)
	default:
		m.add(regMPRC, 1)
		m.count.rxMulticast.Add(1)
	}
	if m.held+n > int(m.val[regRXPBSIZE/4]) {
		m.add(regMPC, 1)
		m.count.rxMissed.Add(1)
		m.causeOther(eicrMISS)
		return false
	}
	m.stampRX(frame)
	m.fifo = append(m.fifo, frame)
	m.held += n
	m.flow()
	return true
}

// stepRX moves frames from the packet buffer to the rings. It reads the tails of all queues.
func (m *Model) stepRX() bool {
	for i := range m.rx {
		q := &m.rx[i]
		if q.wanted != q.enabled {
			q.settle()
		}
		if !q.enabled {
			continue
		}
		if t := sim.Load32(m.host.Shadow(0)[rxReg(regRDT, i):]); t != q.tail {
			m.host.CountMMIOWrite(1)
			m.report(m.rxTail(i, t))
		}
		q.fetch(m.host, cacheMax/2, 8)
	}
	if m.val[regRXCTRL/4]&rxctrlRXEN == 0 {
		m.fifo, m.held = nil, 0
		return false
	}
	n := 0
	for ; n < burst && len(m.fifo) > 0 && m.place(m.fifo[0]); n++ {
		m.held -= len(m.fifo[0]) + 4
		m.fifo[0] = nil
		m.fifo = m.fifo[1:]
	}
	if n > 0 {
		m.flow()
	}
	return n > 0
}

// place writes a frame to its queue. It returns false if the frame must wait for descriptors.
func (m *Model) place(frame []byte) bool {
	p, stamped := parse(frame), m.stamped == &frame[0]
	hash, kind := m.hash(frame, &p)
	i := m.queueFor(frame, &p, hash, kind)
	q := &m.rx[i]
	if !q.enabled {
		m.dropped(i)
		return true
	}
	tag, stripped := uint16(0), false
	if p.vlan && m.rxDescReg(i, regRXDCTL)&rxdctlVME != 0 {
		tag, stripped = p.tag, true
		frame = append(frame[:12:12], frame[16:]...)
	}
	size := len(frame) // without FCS
	if v := m.rxDescReg(i, regRXDCTL); v&rxdctlRLPMLEN != 0 && uint32(size) > v&rxdctlRLPML {
		m.add(regROC, 1)
		m.count.rxOversize.Add(1)
		return true
	}
	if m.val[regHLREG0/4]&hlregRXCRCSTRP == 0 {
		frame = le.AppendUint32(frame[:size:size], crc32.ChecksumIEEE(frame))
	}
	need := uint32((len(frame) + q.buf - 1) / q.buf)
	if need > cacheMax || (q.tail-q.head+q.n)%q.n < need {
		if q.drop || need > cacheMax {
			m.dropped(i)
			return true
		}
		return false
	}
	status, errs := uint32(rxDD), uint32(0)
	if m.inexact(frame) {
		status |= rxPIF
	}
	if stripped {
		status |= rxVP
	}
	if stamped && !q.legacy {
		status |= rxTS
		m.stamped = nil
	}
	s, e := p.verify(frame0(frame, stripped, &p))
	status, errs = status|s, errs|e
	if e != 0 {
		m.add(regXEC, 1)
	}
	if m.val[regRXCSUM/4]&rxcsumPCSD == 0 {
		hash = 0 // fragment checksum and IP identification: not computed
	}
	total := len(frame)
	if !m.fill(q, frame, need, rxResult{status, errs, kind | p.kind<<4, hash, tag}) {
		return true
	}
	m.add(regQPRC+0x40*reg(m.statRX(i)), 1)
	m.add64(regQBRC+0x40*reg(m.statRX(i)), total)
	m.add(regRXDGPC, 1)
	m.add64(regRXDGPC+4, size+4)
	m.count.rxFrames.Add(1)
	m.count.rxBytes.Add(uint64(size))
	m.count.rxQueue[i].Add(1)
	m.causeQueue(i, 0)
	return true
}

// queueFor returns the receive queue that filters and RSS choose.
func (m *Model) queueFor(frame []byte, p *packet, hash, kind uint32) int {
	if k, steer, ok := m.etherType(frame, p); ok {
		p.kind = pktEType | uint32(k)
		return max(steer, 0)
	}
	if steer, ok := m.fiveTuple(frame, p); ok {
		return steer
	}
	if kind != 0 {
		return m.redirect(hash)
	}
	return 0
}

// rxResult is the result of receiving a frame, as reported in descriptors.
type rxResult struct {
	status, errs, kind, hash uint32
	tag                      uint16
}

// fill writes a frame to the buffers of need descriptors, and writes the descriptors back. It returns false if there
// are not enough.
func (m *Model) fill(q *rxQueue, frame []byte, need uint32, r rxResult) bool {
	for k := uint32(0); k < need; k++ {
		if !q.fetch(m.host, max(cacheMax/2, need-k), 1) || q.cn == 0 {
			return false
		}
		at, d := q.pop()
		buf := le.Uint64(d[:]) &^ 1 // bit 0 is No Snoop Enable
		// The header address is ignored with one buffer: Linux leaves DD set in it (§7.1.6.1).
		chunk := frame[:min(len(frame), q.buf)]
		frame = frame[len(chunk):]
		if m.host.DMAWrite(buf, chunk) != nil {
			continue // the descriptor is unchanged: the frame is lost
		}
		last := k == need-1
		var w [16]byte
		st := r.status
		if last {
			st |= rxEOP
		} else {
			st &^= rxTS // NEXTP has this bit
		}
		if q.legacy {
			le.PutUint16(w[8:], uint16(len(chunk)))
			w[12] = byte(st)
			if r.errs&rxL4E != 0 {
				w[13] |= 1 << 6
			}
			if r.errs&rxIE != 0 {
				w[13] |= 1 << 7
			}
			le.PutUint16(w[14:], r.tag)
		} else {
			le.PutUint32(w[0:], r.kind)
			le.PutUint32(w[4:], r.hash)
			if !last {
				st |= q.head << 4 & 0xffff0 // NEXTP
			}
			le.PutUint32(w[8:], st&0xfffff|r.errs)
			le.PutUint16(w[12:], uint16(len(chunk)))
			le.PutUint16(w[14:], r.tag)
		}
		m.host.DMAWrite(q.base+16*uint64(at), w[:])
	}
	return true
}

func (m *Model) dropped(q int) {
	m.add(regQPRDC+0x40*reg(m.statRX(q)), 1)
	m.count.rxNoDesc.Add(1)
}

// statRX returns the index of receive queue q's counter, §8.2.3.23.71.
func (m *Model) statRX(q int) uint32 { return m.val[regRQSMR/4+reg(q/4)] >> (8 * (q % 4)) & 0xf }

func sizeClass(n int) int {
	for i, top := range []int{64, 127, 255, 511, 1023} {
		if n <= top {
			return i
		}
	}
	return 5
}
