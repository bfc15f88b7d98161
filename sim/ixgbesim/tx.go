package ixgbesim

import (
	"fmt"
	"time"

	"github.com/rebound-nic/rebound/sim"
)

type txQueue struct {
	ring
	done          uint32 // the descriptors before this one were reported to software
	pth, hth, wth uint32
	headAt        uint64 // head write-back, 0 if off
	ctx           [2]txContext
	frame         []byte        // collected so far
	first         txData        // its first data descriptor
	bad           bool          // a descriptor of the frame was refused
	silent        int           // descriptors since the last with RS
	since         time.Duration // when the oldest descriptor that is not written back was done
}

// txContext is a context descriptor, §7.2.3.2.3.
type txContext struct {
	valid         bool
	ipLen, macLen int
	vlan          uint16
	l4Len, mss    int
	ipv4          bool
	l4            uint32 // L4T: 0 UDP, 1 TCP, 2 SCTP, 3 none: used by DPDK without L4 offload
}

// txData is the part of a frame's first data descriptor that applies to the whole frame.
type txData struct {
	legacy   bool
	tse, vle bool
	ic       bool // legacy checksum insertion
	cso, css int
	vlan     uint16
	ixsm     bool
	txsm     bool
	ctx      int
	payLen   int
	stamp    bool
}

// Bits of transmit descriptors: byte 11 in both formats (§7.2.3.2.2, §7.2.3.2.4).
const (
	dcmdEOP, dcmdIFCS, dcmdIC, dcmdRS = 1 << 0, 1 << 1, 1 << 2, 1 << 3
	dcmdDEXT, dcmdVLE, dcmdTSE        = 1 << 5, 1 << 6, 1 << 7

	dtypContext, dtypData = 2, 3
)

// frameMax is the largest frame that the device sends, §7.2.1.1; segmentation accepts up to 256 KB.
const frameMax, segmentMax = 15872, 256 << 10

// writeTXDCTL enables, flushes or disables a queue, §4.6.8.1.
func (m *Model) writeTXDCTL(i int, r reg, v uint32) error {
	q := &m.tx[i]
	m.val[r/4] = v &^ txdctlSWFLSH
	if v&txdctlSWFLSH != 0 && q.enabled {
		m.flush(q, i)
	}
	if v&txdctlENABLE == 0 || q.wanted {
		if v&txdctlENABLE != 0 && (q.pth != v&0x7f || q.hth != v>>8&0x7f || q.wth != v>>16&0x7f) {
			return fmt.Errorf("%v = %08x changes thresholds while the queue is enabled (82599 §8.2.3.9.10)", r, v)
		}
		q.set(v&txdctlENABLE != 0)
		return nil
	}
	n := m.val[txReg(regTDLEN, i)/4] / 16
	pth, hth, wth := v&0x7f, v>>8&0x7f, v>>16&0x7f
	head := m.val[txReg(regTDWBAL, i)/4]
	if n == 0 {
		return fmt.Errorf("%v enabled with TDLEN 0 (82599 §4.6.8.1)", r)
	}
	switch {
	case m.val[regDMATXCTL/4]&dmatxctlTE == 0:
		m.host.Warnf("%v enabled before DMATXCTL.TE (82599 §4.6.8)", r)
	case n > 8192:
		m.host.Warnf("%v enabled with %d descriptors: up to 8192 are validated (82599 §8.2.3.9.7)", r, n)
	case pth+wth > cacheMax:
		m.host.Warnf("%v: PTHRESH %d and WTHRESH %d exceed the %d descriptors on chip (82599 §7.2.3.4.1)", r, pth, wth,
			cacheMax)
	case pth > 0 && hth == 0:
		m.host.Warnf("%v: PTHRESH %d with HTHRESH 0 (82599 §8.2.3.9.10)", r, pth)
	case head&1 != 0 && wth != 0:
		m.host.Warnf("%v: WTHRESH %d with head write-back (82599 §7.2.3.5.2)", r, wth)
	}
	at := q.head
	*q = txQueue{pth: pth, hth: hth, wth: wth}
	q.base = uint64(m.val[txReg(regTDBAH, i)/4])<<32 | uint64(m.val[txReg(regTDBAL, i)/4])
	q.n = n
	if head&1 != 0 {
		q.headAt = uint64(m.val[txReg(regTDWBAH, i)/4])<<32 | uint64(head&^3)
	}
	if at >= n {
		m.host.Errorf("%v enabled with TDH %d of %d descriptors (82599 §8.2.3.9.8)", r, at, n)
		at = 0
	}
	q.head, q.tail, q.done = at, at, at
	if t := sim.Load32(m.host.Shadow(0)[txReg(regTDT, i):]); t != at {
		m.host.Errorf("%v enabled with TDT %d and TDH %d: the tail moves after ENABLE reads 1 (82599 §4.6.8.1)", r, t,
			at)
		le.PutUint32(m.host.Shadow(0)[txReg(regTDT, i):], at)
	}
	q.set(true)
	return nil
}

func (m *Model) writeTDH(i int, v uint32) error {
	q := &m.tx[i]
	if q.enabled || q.wanted {
		return sameHead("TDH", i, v, q.head, "82599 §8.2.3.9.8")
	}
	q.head = v
	return nil
}

// txTail handles a write to TDT.
func (m *Model) txTail(i int, v uint32) error {
	q := &m.tx[i]
	if !q.enabled {
		if v != q.head && q.wanted {
			return sim.AsWarning(fmt.Errorf("TDT[%d] = %d before TXDCTL.ENABLE reads 1 (82599 §4.6.8.1)", i, v))
		}
		if v != q.head {
			le.PutUint32(m.host.Shadow(0)[txReg(regTDT, i):], q.tail)
			return fmt.Errorf("TDT[%d] = %d before TXDCTL.ENABLE reads 1 (82599 §4.6.8.1)", i, v)
		}
		return nil
	}
	if v == q.tail {
		return nil
	}
	if err := q.give(v, q.done); err != nil {
		le.PutUint32(m.host.Shadow(0)[txReg(regTDT, i):], q.tail)
		return fmt.Errorf("TDT[%d]: %v (82599 §7.2.3.3)", i, err)
	}
	return nil
}

// stepTX reads the tails of all queues and sends up to burst frames, round-robin.
func (m *Model) stepTX() bool {
	now := m.host.Now()
	for i := range m.tx {
		q := &m.tx[i]
		if q.wanted != q.enabled {
			q.settle()
		}
		if !q.enabled {
			continue
		}
		if t := sim.Load32(m.host.Shadow(0)[txReg(regTDT, i):]); t != q.tail {
			m.host.CountMMIOWrite(1)
			m.report(m.txTail(i, t))
		}
		if v, ok := m.vector(i, 1); ok && q.wth > 0 && q.done != q.head && m.itr(v) > 0 && now-q.since >= m.itr(v) {
			m.flush(q, i)
		}
	}
	if m.halted || !m.up || now < m.paused || m.val[regDMATXCTL/4]&dmatxctlTE == 0 {
		return false
	}
	n := 0
	for idle := 0; n < burst && idle < queues; m.next = (m.next + 1) % queues {
		if q := &m.tx[m.next]; q.enabled && m.sendOne(q, m.next) {
			idle = 0
			n++
		} else {
			idle++
		}
	}
	return n > 0
}

// sendOne processes descriptors up to the end of a frame, if they are available, and sends it.
func (m *Model) sendOne(q *txQueue, i int) bool {
	for {
		if !q.fetch(m.host, q.pth, q.hth) || q.cn == 0 {
			return false
		}
		at, d := q.pop()
		cmd := d[11]
		if err := m.descriptor(q, &d); err != nil {
			m.host.Errorf("transmit queue %d, descriptor %d (%x): %v", i, at, d, err)
			q.bad = true
		} else if odd := reserved(&d); odd != "" {
			m.host.Warnf("transmit queue %d, descriptor %d (%x): %s", i, at, d, odd)
		}
		if q.silent++; cmd&dcmdRS != 0 {
			q.silent = 0
		} else if q.wth == 0 && q.silent == cacheMax {
			m.host.Warnf("transmit queue %d, descriptor %d: %d descriptors without RS (82599 §8.2.3.9.10)", i, at,
				cacheMax)
		}
		context := cmd&dcmdDEXT != 0 && d[10]>>4 == dtypContext
		if end := cmd&dcmdEOP != 0 && !context; end {
			if !q.bad {
				m.send(q, i)
			}
			q.frame, q.bad = nil, false
			m.writeBack(q, i, at, cmd)
			return true
		}
		m.writeBack(q, i, at, cmd)
	}
}

// writeBack reports to software that a descriptor is done, §7.2.3.5.
func (m *Model) writeBack(q *txQueue, i int, at uint32, cmd byte) {
	if q.wth > 0 {
		pending := (q.head - q.done + q.n) % q.n
		if pending == 1 {
			q.since = m.host.Now()
		}
		if pending >= q.wth {
			m.flush(q, i)
		}
		return
	}
	if cmd&dcmdRS == 0 {
		return
	}
	if q.headAt != 0 {
		m.host.DMAWrite(q.headAt, le.AppendUint32(nil, q.head))
	} else {
		m.host.DMAWrite(q.base+16*uint64(at), doneDescriptors[:16])
	}
	q.done = q.head
	m.causeQueue(i, 1)
}

// doneDescriptors are written-back transmit descriptors: DD in the status, all else zero.
var doneDescriptors = func() (b [16 * 64]byte) {
	for i := 12; i < len(b); i += 16 {
		b[i] = 1
	}
	return b
}()

// flush writes back all descriptors that are done, in as few bursts as the ring's end allows.
func (m *Model) flush(q *txQueue, i int) {
	if q.done == q.head || q.headAt != 0 {
		return
	}
	for q.done != q.head {
		end := q.head
		if end < q.done {
			end = q.n
		}
		k := min(end-q.done, 64)
		m.host.DMAWrite(q.base+16*uint64(q.done), doneDescriptors[:16*k])
		q.done = (q.done + k) % q.n
	}
	m.causeQueue(i, 1)
}

// descriptor applies one descriptor to the queue's state.
func (m *Model) descriptor(q *txQueue, d *[16]byte) error {
	cmd := d[11]
	if cmd&dcmdDEXT == 0 {
		return m.legacy(q, d)
	}
	switch typ := d[10] >> 4; typ {
	case dtypContext:
		return q.context(d)
	case dtypData:
		return m.data(q, d)
	default:
		return fmt.Errorf("DTYP %d (82599 §7.2.3.2)", typ)
	}
}

// reserved names the set bits of a descriptor that the datasheet reserves and hardware ignores; "" for none.
func reserved(d *[16]byte) string {
	w2, w3, cmd := le.Uint32(d[8:]), le.Uint32(d[12:]), d[11]
	typ := d[10] >> 4
	switch {
	case cmd&dcmdDEXT == 0:
		switch {
		case cmd&(1<<4|1<<7) != 0:
			return fmt.Sprintf("reserved command bits set: %02x (82599 §7.2.3.2.2)", cmd)
		case d[12] != 0:
			return fmt.Sprintf("STA and reserved bits %02x are not zero (82599 §7.2.3.2.2)", d[12])
		}
	case typ == dtypContext:
		switch {
		case w2&0xdf000000 != 0:
			return fmt.Sprintf("context DCMD %02x: only DEXT may be set (82599 §7.2.3.2.3)", cmd)
		case w3&0xf != 0:
			return "context with BCNTLEN bits (82599 §7.2.3.2.3)"
		}
		return ""
	case w2&(1<<16|1<<17) != 0:
		return "reserved bits 17:16 set (82599 §7.2.3.2.4)"
	case cmd&(1<<2|1<<4) != 0:
		return fmt.Sprintf("reserved DCMD bits set: %02x (82599 §7.2.3.2.4)", cmd)
	case w3&0xf != 0:
		return fmt.Sprintf("STA %x is not zero (82599 §7.2.3.2.4)", w3&0xf)
	}
	if cmd&dcmdRS != 0 && cmd&dcmdEOP == 0 {
		return "RS without EOP (82599 §7.2.3.2.4)"
	}
	return ""
}

func (q *txQueue) context(d *[16]byte) error {
	w0, w1, w2, w3 := le.Uint32(d[0:]), le.Uint32(d[4:]), le.Uint32(d[8:]), le.Uint32(d[12:])
	idx := w3 >> 4 & 7
	switch {
	case q.frame != nil:
		return fmt.Errorf("context descriptor inside a frame (82599 §7.2.3.2.3)")
	case idx > 1:
		return fmt.Errorf("context IDX %d: there are two (82599 §7.2.3.2.3)", idx)
	case w1 != 0 || w2&0xfe1ff != 0:
		if w2&0xfe1ff&^(1<<13|1<<14) != 0 || w1 != 0 {
			return fmt.Errorf("context with an IPsec or FCoE field: this model has neither offload (82599 §7.2.3.2.3)")
		}
		return fmt.Errorf("context with IPsec type or encryption (82599 §7.12)")
	}
	c := txContext{
		valid: true, ipLen: int(w0 & 0x1ff), macLen: int(w0 >> 9 & 0x7f), vlan: uint16(w0 >> 16),
		l4Len: int(w3 >> 8 & 0xff), mss: int(w3 >> 16), ipv4: w2>>10&1 != 0, l4: w2 >> 11 & 3,
	}
	q.ctx[idx] = c
	return nil
}

// data handles an advanced data descriptor, §7.2.3.2.4.
func (m *Model) data(q *txQueue, d *[16]byte) error {
	w2, w3, cmd := le.Uint32(d[8:]), le.Uint32(d[12:]), d[11]
	switch {
	case w2&(1<<18) != 0:
		return fmt.Errorf("LinkSec requested: this model has none (82599 §7.2.3.2.4)")
	case w3>>10&0xf != 0:
		return fmt.Errorf("POPTS with IPsec or reserved bits (82599 §7.2.3.2.4)")
	}
	f := txData{
		tse: cmd&dcmdTSE != 0, vle: cmd&dcmdVLE != 0, ixsm: w3>>8&1 != 0, txsm: w3>>9&1 != 0,
		ctx: int(w3 >> 4 & 7), payLen: int(w3 >> 14), stamp: w2&txTS != 0,
	}
	if q.frame == nil {
		if f.ctx > 1 {
			return fmt.Errorf("IDX %d: there are two contexts (82599 §7.2.3.2.4)", f.ctx)
		}
		if (f.tse || f.vle || f.ixsm || f.txsm) && !q.ctx[f.ctx].valid {
			return fmt.Errorf("offload by context %d, which was never set (82599 §7.2.3.2.4)", f.ctx)
		}
		q.first = f
	} else if q.first.legacy {
		return fmt.Errorf("advanced descriptor in a frame that began with a legacy one (82599 §7.2.3.2)")
	} else if f.tse != q.first.tse || f.vle != q.first.vle {
		return fmt.Errorf("DCMD %02x differs from the frame's first descriptor in TSE or VLE (82599 §7.2.3.2.4)", cmd)
	}
	if cmd&dcmdEOP != 0 && cmd&dcmdIFCS == 0 {
		return fmt.Errorf("no IFCS: this model always adds the FCS (82599 §7.2.3.2.4)")
	}
	return m.collect(q, le.Uint64(d[:]), int(w2&0xffff))
}

// legacy handles a legacy data descriptor, §7.2.3.2.2.
func (m *Model) legacy(q *txQueue, d *[16]byte) error {
	cmd := d[11]
	if cmd&dcmdEOP != 0 && cmd&dcmdIFCS == 0 {
		return fmt.Errorf("no IFCS: this model always adds the FCS (82599 §7.2.3.2.2)")
	}
	if q.frame == nil {
		q.first = txData{legacy: true, ic: cmd&dcmdIC != 0, cso: int(d[10]), css: int(d[13]),
			vle: cmd&dcmdVLE != 0, vlan: le.Uint16(d[14:])}
	} else if !q.first.legacy {
		return fmt.Errorf("legacy descriptor in a frame that began with an advanced one (82599 §7.2.3.2)")
	}
	return m.collect(q, le.Uint64(d[:]), int(le.Uint16(d[8:])))
}

// collect appends a buffer to the frame.
func (m *Model) collect(q *txQueue, addr uint64, n int) error {
	limit := frameMax
	if q.first.tse {
		limit = segmentMax + 512
	}
	switch {
	case n == 0:
		return fmt.Errorf("a buffer of no bytes (82599 §7.2.3.2.4)")
	case len(q.frame)+n > limit:
		return fmt.Errorf("a frame of %d bytes or more: %d are possible (82599 §7.2.1.1)", len(q.frame)+n, limit)
	}
	if q.bad {
		return nil
	}
	old := len(q.frame)
	q.frame = append(q.frame, make([]byte, n)...)
	if m.host.DMARead(addr, q.frame[old:]) != nil {
		q.bad = true // the host has reported it
	}
	return nil
}

// wireOut puts a finished frame on the wire and counts it.
func (m *Model) wireOut(q int, f []byte) {
	if m.val[regHLREG0/4]&hlregTXPADEN != 0 {
		for len(f) < 60 {
			f = append(f, 0)
			m.count.txPadding.Add(1)
		}
	}
	m.countTX(f)
	m.add(regTXDGPC, 1)
	m.add64(regTXDGPC+4, len(f)+4)
	m.add(regQPTC+0x40*reg(m.val[regTQSM/4+reg(q/4)]>>(8*(q%4))&0xf), 1)
	m.add64(regQBTC+8*reg(m.val[regTQSM/4+reg(q/4)]>>(8*(q%4))&0xf), len(f)+4)
	m.count.txFrames.Add(1)
	m.count.txBytes.Add(uint64(len(f)))
	m.count.txQueue[q].Add(1)
	if m.val[regHLREG0/4]&hlregLPBK != 0 {
		m.Receive(f)
		return
	}
	m.host.Transmit(f)
}

// countTX counts a frame in the MAC's statistics.
func (m *Model) countTX(f []byte) {
	n := len(f) + 4
	m.add(regGPTC, 1)
	m.add(regTPT, 1)
	m.add64(regGOTCL, n)
	m.add(regPTC+4*reg(sizeClass(n)), 1)
	switch {
	case isBroadcast(f):
		m.add(regBPTC, 1)
	case f[0]&1 != 0:
		m.add(regMPTC, 1)
	}
}
