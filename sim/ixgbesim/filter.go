package ixgbesim

// accepts is the L2 filter of §7.1.1: address, then VLAN.
func (m *Model) accepts(frame []byte) bool {
	fctrl := m.val[regFCTRL/4]
	ok := false
	switch {
	case isBroadcast(frame):
		ok = fctrl&fctrlBAM != 0 || m.exact(frame)
	case frame[0]&1 != 0:
		ok = fctrl&fctrlMPE != 0 || m.exact(frame) || m.multicast(frame)
	default:
		ok = fctrl&fctrlUPE != 0 || m.exact(frame)
	}
	vln := m.val[regVLNCTRL/4]
	if ok && vln&vlnVFE != 0 && uint32(frame[12])<<8|uint32(frame[13]) == vln&0xffff {
		id := (uint32(frame[14])<<8 | uint32(frame[15])) & 0xfff
		ok = m.val[regVFTA/4+reg(id>>5)]>>(id&31)&1 != 0
	}
	return ok
}

func isBroadcast(frame []byte) bool {
	return le.Uint32(frame) == all && le.Uint16(frame[4:]) == 0xffff
}

// exact reports whether the destination is one of the receive addresses.
func (m *Model) exact(frame []byte) bool {
	lo, hi := le.Uint32(frame), uint32(le.Uint16(frame[4:]))
	for i := range 128 {
		if h := m.val[regRAH/4+reg(2*i)]; h&rahAV != 0 && h&0xffff == hi && m.val[regRAL/4+reg(2*i)] == lo {
			return true
		}
	}
	return false
}

// multicast looks the destination up in the hash table, by the twelve bits that MCSTCTRL.MO selects (§8.2.3.7.3).
func (m *Model) multicast(frame []byte) bool {
	ctl := m.val[regMCSTCTRL/4]
	if ctl&mcstMFE == 0 {
		return false
	}
	shift := [4]int{4, 3, 2, 0}[ctl&3]
	v := uint32(le.Uint16(frame[4:])) >> shift & 0xfff
	return m.val[regMTA/4+reg(v>>5)]>>(v&31)&1 != 0
}

// inexact reports whether a multicast frame passed only the hash table, so that software must check it again.
func (m *Model) inexact(frame []byte) bool {
	return frame[0]&1 != 0 && !isBroadcast(frame) && !m.exact(frame)
}

// etherType finds the queue filter by EtherType, §7.1.2.3, and its queue, or -1.
func (m *Model) etherType(frame []byte, p *packet) (filter, queue int, ok bool) {
	typ := uint32(be.Uint16(frame[12:]))
	if p.vlan {
		typ = uint32(be.Uint16(frame[16:]))
	}
	for i := range 8 {
		if f := m.val[regETQF/4+reg(i)]; f>>31 != 0 && f&0xffff == typ {
			if s := m.val[regETQS/4+reg(i)]; s>>31 != 0 {
				return i, int(s >> 16 & 0x7f), true
			}
			return i, -1, true
		}
	}
	return 0, 0, false
}

// Fields that FTQF's mask, bits 29:25, excludes from the comparison, §7.1.2.5.
const (
	anySrc = 1 << iota
	anyDst
	anySrcPort
	anyDstPort
	anyProto
)

// fiveTuple finds the queue filter by addresses, ports and protocol of an IPv4 packet, §7.1.2.5: the first match of the
// highest priority.
func (m *Model) fiveTuple(frame []byte, p *packet) (queue int, ok bool) {
	if p.ip == 0 || p.v6 {
		return 0, false
	}
	best := -1
	src, dst, ports := le.Uint32(frame[p.ip+12:]), le.Uint32(frame[p.ip+16:]), uint32(0)
	l4 := !p.fragment && p.proto != 0
	if l4 {
		ports = le.Uint32(frame[p.l4:])
	}
	proto := uint32(3)
	if l4 {
		proto = map[byte]uint32{protoTCP: 0, protoUDP: 1, protoSCTP: 2}[p.proto]
	}
	for i := range reg(128) {
		f := m.val[regFTQF/4+i]
		if f&ftqfEnable == 0 {
			continue
		}
		any, want := f>>25&0x1f, m.val[regSDPQF/4+i]
		switch {
		case any&anySrc == 0 && m.val[regSAQF/4+i] != src, any&anyDst == 0 && m.val[regDAQF/4+i] != dst,
			any&anySrcPort == 0 && (!l4 || (want^ports)&0xffff != 0), any&anyDstPort == 0 &&
				(!l4 || (want^ports)>>16 != 0),
			any&anyProto == 0 && f&3 != proto:
			continue
		}
		if priority := int(f >> 2 & 7); priority > best {
			best, queue = priority, int(m.val[regL34TIMIR/4+i]>>21&0x7f)
		}
	}
	return queue, best >= 0
}

// pauseFrame acts on a MAC control frame (IEEE 802.3 annex 31B) and reports whether it stops here.
func (m *Model) pauseFrame(frame []byte) bool {
	if le.Uint32(frame) != 0x00c28001 || le.Uint16(frame[4:]) != 0x0100 || frame[12] != 0x88 || frame[13] != 0x08 ||
		frame[14] != 0 || frame[15] != 1 {
		return false
	}
	mflcn := m.val[regMFLCN/4]
	if mflcn&mflcnRFCE == 0 {
		return false
	}
	quanta := uint32(frame[16])<<8 | uint32(frame[17])
	if quanta == 0 {
		m.add(regLXONRX, 1)
	} else {
		m.add(regLXOFFRX, 1)
	}
	m.hold(quanta)
	m.count.rxPause.Add(1)
	return mflcn&mflcnDPF != 0
}
