package ixgbesim

// The link, §3.7.4: it has the speed of its mode, and is up while the wire's other end is connected, unless it is
// turned off.

// link recomputes the link state, and reports a change by LSC.
func (m *Model) link() {
	up := m.wire && m.rst == 0 && m.val[regAUTOC2/4]&autoc2Disable == 0 && !m.laserOff() && m.fits() && !m.fresh &&
		(!m.opt.Pipeline || m.pipe == pipeReset)
	if m.x540() && up && !m.up {
		m.phy.speed = m.phy.negotiate()
	}
	up = up && (!m.x540() || m.phy.speed != 0)
	if up != m.up {
		m.up = up
		if m.host != nil {
			m.causeOther(eicrLSC)
		}
	}
}

// pipeline is the progress of a pipeline reset: a restart with bit 2 of the link mode inverted, the arbitration seen to
// leave its first state, and a restart with the link mode of before (DPDK and Linux, ixgbe_reset_pipeline_82599).
type pipeline uint8

const (
	pipeIdle pipeline = iota
	pipeInverted
	pipeLeft
	pipeReset
)

func (p *pipeline) restarted(old, v uint32) {
	switch inverted := (old^v)>>autocLMSShift&7 == 4; {
	case inverted && *p == pipeLeft:
		*p = pipeReset
	case inverted:
		*p = pipeInverted
	default:
		*p = pipeIdle
	}
}

func (p *pipeline) seen(anlp1 uint32) {
	if *p == pipeInverted && anlp1&(0xf<<16) != 0 {
		*p = pipeLeft
	}
}

// forbid reports a change of the link while firmware forbids it: the management controller's session would end.
func (m *Model) forbid(what string, v uint32) {
	if m.opt.Veto {
		m.host.Errorf("%s = %08x changes the link while MMNGC.MNG_VETO is set: a management controller uses it (82599 §8.2.3.22.30)", what, v)
	}
}

// drop takes the link down and up again, like a restart of autonegotiation or of the MAC.
func (m *Model) drop() {
	if m.up {
		m.up = false
		m.causeOther(eicrLSC)
	}
	m.link()
}

// laserOff reports whether SDP3, an output, turns the transmitter of the module off.
func (m *Model) laserOff() bool {
	const off = esdpSDP3 | esdpSDP3IO
	return m.opt.Kind == SFP && m.val[regESDP/4]&off == off
}

// negotiates reports whether AUTOC selects a mode with clause 73 autonegotiation.
func (m *Model) negotiates() bool { return m.val[regAUTOC/4]>>autocLMSShift&4 != 0 }

// readLINKS is the link's state, §8.2.3.22.20.
func (m *Model) readLINKS() uint32 {
	if !m.up {
		return 0
	}
	v := uint32(linksUp)
	if m.x540() {
		return v | m.phy.speed
	}
	switch m.val[regAUTOC/4] >> autocLMSShift & 7 {
	case 0, 2: // 1 Gb/s without and with clause 37 autonegotiation
		v |= links1G
	case 1, 3: // 10 Gb/s parallel and serial, without
		v |= links10G
	default:
		v |= links10G | linksANComp
	}
	return v
}
