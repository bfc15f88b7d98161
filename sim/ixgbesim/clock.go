package ixgbesim

// The clock and the time stamps of PTP, §7.9. A port has one register for received and one for sent frames: it keeps
// the first stamp until software reads the upper half. Received frames are stamped if they are PTP messages of the
// selected kind.
const (
	tsyncValid   = 1 << 0
	tsyncEnabled = 1 << 4

	tsyncL2V2    = 0 // TSYNCRXCTL bits 3:1: messages of RXMTRL's type in Ethernet,
	tsyncL4V1    = 1 // version 1 over UDP,
	tsyncL2L4V2  = 2 // version 2 over both,
	tsyncEventV2 = 5 // and all event messages of version 2

	etqfStamp = 1 << 30
	rxTS      = 1 << 16 // status of a receive descriptor: the frame's stamp is in RXSTMP
	txTS      = 1 << 19 // MAC.1588 of a data descriptor

	ptpVersion, ptpControl = 1, 32 // offsets in a message; its type is in the first byte
	ptpHeader              = 34    // shorter messages are not stamped (MoonGen, timestamping.lua: 76 bytes over IPv4)
)

// systim returns SYSTIM: TIMINCA's increment value is added in each of its periods of the MAC's clock. The X540's
// TIMINCA has no period (Linux, ixgbe_ptp_start_cyclecounter).
func (m *Model) systim() uint64 {
	v, period := uint64(m.val[regTIMINCA/4]), uint64(1)
	if m.x540() {
		v &= 0x7fffffff
	} else {
		v, period = v&0xffffff, v>>24
	}
	if v == 0 || period == 0 {
		return m.now
	}
	return m.now + v*(uint64(m.host.Now()-m.sysAt)*10/(m.clockTenths()*period))
}

// clockTenths returns the period of the MAC's clock in tenths of a nanosecond: 6.4 ns at 10 Gb/s, ten times that at 1
// Gb/s.
func (m *Model) clockTenths() uint64 {
	switch m.readLINKS() & links10G {
	case links1G:
		return 640
	case links100M:
		return 6400
	}
	return 64
}

// setClock makes SYSTIM continue from a value.
func (m *Model) setClock(v uint64) { m.now, m.sysAt = v, m.host.Now() }

// stampRX stamps a received frame, if it is one to stamp.
func (m *Model) stampRX(frame []byte) {
	ctl := &m.val[regTSYNCRX/4]
	if *ctl&tsyncEnabled == 0 || *ctl&tsyncValid != 0 || !m.stamps(frame, *ctl>>1&7) {
		return
	}
	*ctl |= tsyncValid
	m.putStamp(regRXSTMP, regRXSTMPH)
	m.stamped = &frame[0]
}

func (m *Model) stamps(frame []byte, kind uint32) bool {
	p, filter := parse(frame), m.val[regRXMTRL/4]
	at, l2 := 0, false
	if k, _, ok := m.etherType(frame, &p); ok && m.val[regETQF/4+reg(k)]&etqfStamp != 0 {
		at, l2 = 14, true
		if p.vlan {
			at = 18
		}
	} else if p.proto == protoUDP && !p.fragment && p.l4 != 0 && uint32(be.Uint16(frame[p.l4+2:])) == filter>>16 {
		at = p.l4 + 8
	}
	if at == 0 || len(frame) < at+ptpHeader {
		return false
	}
	f := frame[at:]
	two, typ := f[ptpVersion]&0xf == 2, uint32(f[0]&0xf)
	switch kind {
	case tsyncL2V2:
		return l2 && two && typ == filter>>8&0xf
	case tsyncL4V1:
		return !l2 && f[ptpVersion]&0xf == 1 && uint32(f[ptpControl]) == filter&0xff
	case tsyncL2L4V2:
		return two && typ == filter>>8&0xf
	case tsyncEventV2:
		return two && typ < 8
	}
	return false
}

// stampTX stamps a sent frame.
func (m *Model) stampTX() {
	if ctl := &m.val[regTSYNCTX/4]; *ctl&tsyncEnabled == 0 {
		m.host.Warnf("a descriptor requests a time stamp without TSYNCTXCTL.EN (82599 §7.9)")
	} else if *ctl&tsyncValid == 0 {
		*ctl |= tsyncValid
		m.putStamp(regTXSTMP, regTXSTMP+4)
	}
}

func (m *Model) putStamp(low, high reg) {
	v := m.systim()
	m.val[low/4], m.val[high/4] = uint32(v), uint32(v>>32)
}
