package ixgbesim

// send finishes the queue's collected frame: checks it, segments it, inserts what was requested, and puts it on the
// wire.
func (m *Model) send(q *txQueue, i int) {
	f, d := q.frame, &q.first
	if len(f) < 17 {
		m.host.Errorf("transmit queue %d: a frame of %d bytes: 17 are the least (82599 §7.2.1.1)", i, len(f))
		return
	}
	tag, ok := d.vlan, true
	switch {
	case d.legacy:
		if d.ic {
			ok = m.insertAt(i, f, d.css, d.cso)
		}
		m.emit(i, f, d.vle, tag, ok)
		return
	case !d.tse && d.payLen != len(f):
		m.host.Errorf("transmit queue %d: PAYLEN %d for a frame of %d bytes (82599 §7.2.3.2.4)", i, d.payLen, len(f))
		return
	}
	if d.stamp {
		m.stampTX()
	}
	c := &q.ctx[d.ctx]
	if d.tse {
		m.segment(i, f, d, c)
		return
	}
	if d.ixsm || d.txsm {
		ok = m.checkContext(i, f, d, c) && m.insert(i, f, d, c)
	}
	m.emit(i, f, d.vle, c.vlan, ok)
}

// emit sends one frame with its VLAN tag.
func (m *Model) emit(i int, f []byte, vle bool, tag uint16, ok bool) {
	if !ok {
		return
	}
	if vle {
		t := append(make([]byte, 0, len(f)+4), f[:12]...)
		kind := m.val[regDMATXCTL/4] >> 16 // VT, the EtherType of tags that the device inserts (§8.2.3.9.2)
		t = append(t, byte(kind>>8), byte(kind), byte(tag>>8), byte(tag))
		f = append(t, f[12:]...)
	}
	m.wireOut(i, f)
}

// insertAt computes the legacy checksum from css to the end, and stores it at cso (§7.2.3.2.2).
func (m *Model) insertAt(i int, f []byte, css, cso int) bool {
	if css >= len(f) || cso+2 > len(f) || cso < css {
		m.host.Errorf("transmit queue %d: checksum from %d at %d in a frame of %d bytes (82599 §7.2.3.2.2)", i, css,
			cso, len(f))
		return false
	}
	be.PutUint16(f[cso:], ^fold(sum(f[css:], 0)))
	return true
}

// l4Field is the offset of the checksum in a transport header.
var l4Field = [2]int{6, 16} // UDP, TCP

// checkContext checks the context against the frame that it is used for.
func (m *Model) checkContext(i int, f []byte, d *txData, c *txContext) bool {
	l4 := c.macLen + c.ipLen
	switch {
	case c.macLen < 14:
		m.host.Errorf("transmit queue %d: MACLEN %d: 14 to 127 are possible (82599 §7.2.3.2.3)", i, c.macLen)
	case d.ixsm && (!c.ipv4 || c.ipLen < 20):
		m.host.Errorf("transmit queue %d: IXSM with IPV4 %v and IPLEN %d (82599 §7.2.3.2.4)", i, c.ipv4, c.ipLen)
	case l4 > len(f):
		m.host.Errorf("transmit queue %d: headers of %d bytes in a frame of %d (82599 §7.2.3.2.3)", i, l4, len(f))
	case d.txsm && c.l4 == 3:
		m.host.Errorf("transmit queue %d: TXSM with L4T 3 (82599 §7.2.3.2.3)", i)
	case d.txsm && c.l4 == 2:
		m.host.Errorf("transmit queue %d: this model inserts no SCTP checksum (82599 §7.2.5.2)", i)
	case d.txsm && l4+l4Field[c.l4&1]+2 > len(f):
		m.host.Errorf("transmit queue %d: L4 header at %d in a frame of %d bytes (82599 §7.2.5)", i, l4, len(f))
	default:
		return true
	}
	return false
}

// insert computes the checksums of one frame, §7.2.5. Software left the pseudo header's sum in the L4 field.
func (m *Model) insert(i int, f []byte, d *txData, c *txContext) bool {
	l4 := c.macLen + c.ipLen
	if d.ixsm {
		ip := f[c.macLen:l4]
		be.PutUint16(ip[10:], ^fold(sum(ip, 0)))
	}
	if d.txsm {
		v := ^fold(sum(f[l4:], 0))
		if v == 0 && c.l4 == 0 {
			v = 0xffff // zero means none (RFC 768)
		}
		be.PutUint16(f[l4+l4Field[c.l4&1]:], v)
	}
	return true
}

// segment cuts a large TCP or UDP packet into frames of MSS bytes, §7.2.4.
func (m *Model) segment(i int, f []byte, d *txData, c *txContext) {
	l4 := c.macLen + c.ipLen
	hdr := l4 + c.l4Len
	switch {
	case !m.checkContext(i, f, d, c):
		return
	case c.l4 > 1 || c.l4 == 1 && c.l4Len < 20 || c.l4 == 0 && c.l4Len != 8:
		m.host.Errorf("transmit queue %d: segmentation with L4T %d and L4LEN %d (82599 §7.2.4.2)", i, c.l4, c.l4Len)
		return
	case c.mss == 0 || hdr >= len(f) || hdr+c.mss+4 > frameMax:
		m.host.Errorf("transmit queue %d: segmentation with MSS %d and headers of %d bytes in %d (82599 §7.2.4.2)", i,
			c.mss, hdr, len(f))
		return
	case d.payLen != len(f)-hdr:
		m.host.Errorf("transmit queue %d: PAYLEN %d, but %d bytes follow the headers (82599 §7.2.3.2.4)", i, d.payLen,
			len(f)-hdr)
		return
	case !d.txsm || c.ipv4 && !d.ixsm:
		m.host.Errorf("transmit queue %d: segmentation without TXSM, or without IXSM on IPv4 (82599 §7.2.4.5)", i)
		return
	case c.ipLen < 20 || !c.ipv4 && c.ipLen < 40:
		m.host.Errorf("transmit queue %d: segmentation with IPLEN %d (82599 §7.2.4.2)", i, c.ipLen)
		return
	}
	head, body := f[:hdr], f[hdr:]
	for k := 0; len(body) > 0; k++ {
		n := min(c.mss, len(body))
		s := append(append(make([]byte, 0, hdr+n+4), head...), body[:n]...)
		body = body[n:]
		ip, t := s[c.macLen:], s[l4:]
		if c.ipv4 {
			be.PutUint16(ip[2:], uint16(c.ipLen+len(t)))
			be.PutUint16(ip[4:], be.Uint16(ip[4:])+uint16(k))
		} else {
			be.PutUint16(ip[4:], uint16(c.ipLen-40+len(t)))
		}
		// The pseudo header's sum that software left is without the length (§7.2.4.5): it is added here.
		field := l4Field[c.l4]
		be.PutUint16(t[field:], fold(uint32(be.Uint16(t[field:]))+uint32(len(t))))
		if c.l4 == 1 {
			be.PutUint32(t[4:], be.Uint32(t[4:])+uint32(k*c.mss))
			be.PutUint16(t[12:], be.Uint16(t[12:])&(0xf000|m.flags(k == 0, len(body) == 0)))
		} else {
			be.PutUint16(t[4:], uint16(len(t)))
		}
		m.emit(i, s, d.vle, c.vlan, m.insert(i, s, d, c))
	}
}

// flags returns the mask of TCP flags for the first, a middle or the last segment, §8.2.3.9.3.
func (m *Model) flags(first, last bool) uint16 {
	switch {
	case first && last:
		return 0xfff
	case first:
		return uint16(m.val[regDTXFLGL/4] & 0xfff)
	case last:
		return uint16(m.val[regDTXFLGH/4] & 0xfff)
	}
	return uint16(m.val[regDTXFLGL/4] >> 16 & 0xfff)
}
