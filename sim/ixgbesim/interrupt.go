package ixgbesim

import (
	"math/bits"
	"time"
)

// interrupts is the interrupt block, §7.3. With GPIE.Multiple_MSIX, IVAR maps each queue's causes to one of 64 vectors,
// and all others go to the vector of IVAR_MISC; the first 16 vectors also appear in EICR. Otherwise IVAR maps queues to
// the 16 low bits of EICR, and vector 0 is the function's single interrupt.
type interrupts struct {
	cause     uint32 // EICR
	want      uint64 // vectors with a cause whose message is not sent yet
	wantOther bool
	mask      uint64 // EIMS_EX: vectors that are enabled
	otherMask uint32 // EIMS, bits 31 to 16
	sent      [129]time.Duration
	used      [129]bool // whether sent is set
}

func (m *Model) msix() bool { return m.val[regGPIE/4]&gpieMSIX != 0 }

// causeQueue sets the cause of a receive (dir 0) or transmit (dir 1) queue.
func (m *Model) causeQueue(q, dir int) {
	e := m.val[regIVAR/4+reg(q/2)] >> (16*(q&1) + 8*dir) & 0xff
	if e&ivarValid == 0 {
		return
	}
	if v := e & 0x3f; m.msix() {
		m.irq.want |= 1 << v
		m.irq.cause |= uint32(uint64(1)<<v) & eicrQueue
	} else {
		m.irq.cause |= 1 << (v & 0xf)
		m.irq.wantOther = true
	}
}

// vector returns a queue's interrupt vector, and whether there is one.
func (m *Model) vector(q, dir int) (int, bool) {
	e := m.val[regIVAR/4+reg(q/2)] >> (16*(q&1) + 8*dir) & 0xff
	return int(e & 0x3f), e&ivarValid != 0
}

// causeOther sets a cause that does not belong to a queue.
func (m *Model) causeOther(bit uint32) {
	m.irq.cause |= bit
	m.irq.wantOther = true
}

func (m *Model) readEICR() uint32 {
	v := m.irq.cause
	if m.val[regGPIE/4]&gpieOCD != 0 {
		m.irq.cause &= eicrQueue
	} else {
		m.irq.cause = 0
	}
	if !m.msix() { // reading acknowledges, and masks the bits in EIAM
		m.irq.otherMask &^= m.val[regEIAM/4] & v
		m.irq.mask &^= uint64(m.val[regEIAM/4] & v & eicrQueue)
	}
	return v
}

func (m *Model) writeInterrupt(r reg, i int, v uint32) {
	wide := uint64(v) << (32 * i)
	switch r {
	case regEICR:
		m.irq.cause &^= v
		return
	case regEICS:
		m.irq.cause |= v
		m.irq.want |= uint64(v & eicrQueue)
		m.irq.wantOther = true
	case regEICSEX:
		m.irq.want |= wide
		m.irq.cause |= uint32(wide) & eicrQueue
	case regEIMS:
		m.irq.otherMask |= v &^ eicrQueue
		m.irq.mask |= uint64(v & eicrQueue)
		m.irq.wantOther = true
	case regEIMSEX:
		m.irq.mask |= wide
	case regEIMC:
		m.irq.otherMask &^= v
		m.irq.mask &^= uint64(v & eicrQueue)
		return
	case regEIMCEX:
		m.irq.mask &^= wide
		return
	}
	m.deliver()
}

// deliver sends the interrupts that are pending, enabled and not throttled.
func (m *Model) deliver() {
	if !m.msix() {
		enabled := m.irq.otherMask | uint32(m.irq.mask)&eicrQueue
		if m.irq.wantOther && m.irq.cause&enabled != 0 && m.interrupt(0, 0) {
			m.irq.wantOther = false
		}
		return
	}
	for ready := m.irq.want & m.irq.mask; ready != 0; ready &= ready - 1 {
		v := bits.TrailingZeros64(ready)
		if !m.interrupt(v, v) {
			continue
		}
		bit := uint64(1) << v
		m.irq.want &^= bit
		m.irq.cause &^= uint32(bit) & m.val[regEIAC/4] & eicrQueue
		if m.val[regGPIE/4]&gpieEIAME != 0 {
			m.irq.mask &^= bit & (uint64(m.val[regEIAMEX/4]) | uint64(m.val[regEIAMEX/4+1])<<32)
		}
	}
	if e := m.val[regIVARMISC/4] >> 8; m.irq.wantOther && m.irq.cause&m.irq.otherMask&eicrOther != 0 &&
		e&ivarValid != 0 {
		if v := int(e & 0x3f); m.interrupt(v, v) {
			m.irq.wantOther = false
			m.irq.cause &^= m.val[regEIAC/4] & eicrOther
		}
	}
}

// interrupt sends vector v unless EITR i throttles it (§7.3.2.1): bits 11 to 3 count 2 us each.
func (m *Model) interrupt(v, i int) bool {
	now := m.host.Now()
	if gap := m.itr(i); gap > 0 && m.irq.used[i] && now-m.irq.sent[i] < gap {
		return false
	}
	m.irq.sent[i], m.irq.used[i] = now, true
	m.host.Interrupt(v)
	return true
}

func (m *Model) itr(i int) time.Duration {
	r := regEITR + 4*reg(i)
	if i >= 24 {
		r = regEITRHigh + 4*reg(i-24)
	}
	return time.Duration(m.val[r/4]&0xff8>>3) * 2 * time.Microsecond
}
