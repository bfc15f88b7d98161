package ixgbesim

import "time"

// Flow control by pause frames, §3.7.7.3.

// hold stops transmission for quanta of 512 bit times at 10 Gb/s.
func (m *Model) hold(quanta uint32) {
	m.paused = m.host.Now() + time.Duration(quanta)*512/10*time.Nanosecond
}

// flow sends XOFF when the packet buffer passes its high mark, and XON when it falls below the low one.
func (m *Model) flow() {
	if m.val[regFCCFG/4]&fccfgTFCE == 0 || m.val[regFCRTH/4]&fcEnable == 0 {
		return
	}
	high, low := m.val[regFCRTH/4]&0x7ffe0, m.val[regFCRTL/4]
	switch {
	case !m.xoff && m.held > int(high):
		m.xoff = true
		m.sendPause(uint16(m.val[regFCTTV/4]))
		m.add(regLXOFFTX, 1)
	case m.xoff && m.held <= int(low&0x7ffe0):
		m.xoff = false
		if low&fcEnable != 0 {
			m.sendPause(0)
			m.add(regLXONTX, 1)
		}
	}
}

// sendPause sends a pause frame. The transmit counters count it like any other frame.
func (m *Model) sendPause(quanta uint16) {
	f := make([]byte, 60)
	copy(f, []byte{0x01, 0x80, 0xc2, 0, 0, 1})
	copy(f[6:], m.opt.MAC[:])
	copy(f[12:], []byte{0x88, 0x08, 0, 1, byte(quanta >> 8), byte(quanta)})
	m.countTX(f)
	m.count.txPause.Add(1)
	m.host.Transmit(f)
}
