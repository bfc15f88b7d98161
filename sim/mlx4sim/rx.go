package mlx4sim

import "github.com/rebound-nic/rebound/sim/parts"

// Receive handles a frame from the wire.
func (m *Model) Receive(b []byte) bool {
	if m.fault.dead {
		return false
	}
	if m.port.link != Ethernet {
		return m.port.ib.state > stateDown && m.receivePacket(b)
	}
	if !m.port.up {
		return false
	}
	if len(b) < 14 {
		m.count.rxShort++
		return false
	}
	if len(b) > m.port.frameLimit() {
		m.host.Dropped("longer than the port's MTU")
		m.count.rxGiant++
		return false
	}
	m.count.rx.wire(b)
	m.count.rxLength(b)
	if m.control(b) {
		return true
	}
	if m.stalled.Load() || len(m.port.flow.held) > 0 {
		return m.hold(b)
	}
	return m.accept(b)
}

// accept handles a frame that the port received.
func (m *Model) accept(b []byte) bool {
	took := m.mirror(modeMirrorReceived, b)
	if isRoCE(b) {
		return m.takeRoCE(b) || took
	}
	return m.take(b) || took
}

// take steers a frame that the port accepted, from the wire or looped back.
func (m *Model) take(b []byte) bool {
	f := parts.ParseFrame(b)
	p := &m.port
	if f.Tags > 0 && p.vlans != nil && p.vlans[f.VLAN>>5&0x7f]&(1<<(f.VLAN&31)) == 0 {
		m.count.rxFiltered++
		return false
	}
	mac := macOf(b)
	if b[0]&1 != 0 && p.mcastOn && !p.mcast[mac] {
		m.count.rxFiltered++
		return false
	}
	to := m.steer(b)
	if len(to) == 0 {
		m.count.rxFiltered++
		return false
	}
	took := false
	for _, q := range to {
		hash := uint32(0)
		if q.rss.on {
			if q.state != qpRTR && q.state != qpRTS {
				m.count.rxNoQueue++
				continue
			}
			q, hash = m.spread(q, &f)
		}
		if q == nil {
			m.count.rxNoQueue++
			continue
		}
		took = m.deliver(q, &f, hash, m.macIndex(mac)) || took
	}
	return took
}

func macOf(b []byte) uint64 { return uint64(be.Uint16(b))<<32 | uint64(be.Uint32(b[2:])) }

// macIndex returns the index in the MAC table, 127 for none.
func (m *Model) macIndex(mac uint64) int {
	for i, v := range m.port.macs {
		if v>>63 != 0 && v&(1<<48-1) == mac {
			return i
		}
	}
	return 127
}

// steer returns the QPs that a frame is for.
func (m *Model) steer(b []byte) []*qp {
	if m.hca.deviceManaged {
		return m.rules.match(m, b)
	}
	return m.byTable(macOf(b))
}

// Multicast modes of SET_PORT: by the multicast group table; by the table, and otherwise to the default QP; all to the
// default QP.
const (
	multicastDirectOnly = 0
	multicastDirect     = 1
	multicastDefault    = 2
)

// byTable steers by the MAC table: a unicast address's index is added to the base QP; an address that is not in the
// table goes to the promiscuous QP, if there is one.
func (m *Model) byTable(mac uint64) (to []*qp) {
	k := &m.port.calc
	if !k.set {
		return nil
	}
	qpn := uint32(0)
	switch i := m.macIndex(mac); {
	case mac>>40&1 != 0 && k.mode == multicastDefault:
		qpn = k.mcast
	case mac>>40&1 != 0:
		return nil
	case i < 127:
		qpn = k.base + uint32(i)
	case k.promiscOn:
		qpn = k.promisc
	default:
		return nil
	}
	if q := m.findQP(qpn); q != nil {
		to = append(to, q)
	}
	return to
}
