package fastpath

// The TLVs that may follow a test packet's base, and how a reflector answers them in place (RFC 8972 §4). They keep
// their length, so a reply has the length of its request.

// TLV types (RFC 8972 §5.1).
const (
	tlvPadding   = 1
	tlvLocation  = 2
	tlvTimestamp = 3
	tlvClass     = 4
	tlvDirect    = 5
	tlvAccess    = 6
	tlvFollowUp  = 7
	tlvHMAC      = 8

	tlvHeader = 4 // flags, type, length of the value in two bytes
)

// Flags of a TLV in a reply.
const (
	flagUnrecognized = 0x80 // not understood by the reflector
	flagMalformed    = 0x40 // impossible length: neither this TLV nor the rest was processed
	flagIntegrity    = 0x20 // wrong HMAC: no TLV was processed
)

// Sub-TLVs of the Location TLV (RFC 8972 §4.2.1): the requested item, followed by the types used in the reply.
const (
	subSourceMAC   = 1
	subSourceEUI48 = 2
	subDestination = 4 // 5 over IPv4, 6 over IPv6
	subSource      = 7 // 8, 9
)

// Sources of synchronisation and methods of timestamping (RFC 8972 §5.4, §5.5).
const (
	syncNTP     = 1
	syncFreeRun = 5
	methodLocal = 2 // in software, by the reflector itself
)

// arrival is what a reflector knows about a received test packet apart from its bytes.
type arrival struct {
	seen     uint64 // tick
	hop, tos uint8
	hosts    []byte // source and destination address: 8 or 32 bytes, none for a message
	ports    []byte // source and destination
	mac      [6]byte
	grown    int // by how many bytes the reply is longer
}

// extensions are the TLVs of one test packet.
type extensions struct {
	tlvs []byte
	seal int // position of the HMAC TLV, -1 if there is none
	ok   bool
}

// tlv returns the value of the first TLV of x, and whether x is long enough for it.
func tlv(x []byte) (value []byte, ok bool) {
	if len(x) < tlvHeader {
		return nil, false
	}
	n := int(be.Uint16(x[2:]))
	if len(x)-tlvHeader < n {
		return nil, false
	}
	return x[tlvHeader:][:n], true
}

// inspect checks whether the TLVs x of a received packet with the given sequence number may be used: an HMAC TLV must
// be right and must come after all others except padding, and authenticated packets must have one, unless they only
// have padding (RFC 8972 §4.8). Without a key, no HMAC is right.
func (r *Responder) inspect(x, number []byte, auth bool) extensions {
	e := extensions{tlvs: x, seal: -1, ok: true}
	count, paddings := 0, 0
	for at := 0; at < len(x); count++ {
		v, whole := tlv(x[at:])
		if !whole {
			count++
			break
		}
		switch t := x[at+1]; {
		case t == tlvPadding:
			paddings++
		case e.seal >= 0:
			e.ok = false
		case t == tlvHMAC:
			e.seal = at
			e.ok = len(v) == sealLength && r.seal != nil && r.seal.fits(v, number, x[:at])
		}
		at += tlvHeader + len(v)
	}
	if auth && e.seal < 0 && (count > 1 || count != paddings) {
		e.ok = false
	}
	return e
}

// reflect writes the TLVs of the reply, which has the given sequence number, and returns the TOS of the reply.
func (e *extensions) reflect(r *Responder, number []byte, in *arrival, s *session, c *Clock) (tos uint8) {
	tos = in.tos
	for at := 0; at < len(e.tlvs); {
		x := e.tlvs[at:]
		v, whole := tlv(x)
		switch {
		case !whole:
			x[0] = flagMalformed
		case e.ok && x[1] == TLVTiming:
			x[0] = r.extendTiming(v, e.seal >= 0, in.seen, c)
		case e.ok:
			x[0] = r.extension(x[1], v, in, s, c, &tos)
		default:
			x[0] = 0
		}
		if !e.ok {
			x[0] |= flagIntegrity
		}
		if x[0]&flagMalformed != 0 {
			break
		}
		at += tlvHeader + len(v)
	}
	if e.ok && e.seal >= 0 {
		x := e.tlvs[e.seal:]
		x[0] = 0
		copy(x[tlvHeader:], r.seal.hmac(number, e.tlvs[:e.seal]))
	}
	return tos
}

// extension answers one TLV in its value v, and returns its flags.
func (r *Responder) extension(kind uint8, v []byte, in *arrival, s *session, c *Clock, tos *uint8) uint8 {
	switch kind {
	case tlvPadding, tlvHMAC:
		return 0
	case tlvLocation:
		if in.hosts == nil {
			return flagUnrecognized // a message has no ports and addresses
		}
		return r.location(v, in)
	case tlvTimestamp:
		if len(v) != 4 {
			return flagMalformed
		}
		source := uint8(syncFreeRun)
		if c.ErrorEstimate>>15 != 0 {
			source = syncNTP
		}
		v[0], v[1], v[2], v[3] = source, methodLocal, source, methodLocal
		return 0
	case tlvClass:
		if len(v) != 4 {
			return flagMalformed
		}
		if in.hosts == nil {
			return flagUnrecognized
		}
		r.class(v, in, tos)
		return 0
	case tlvDirect:
		if len(v) != 12 {
			return flagMalformed
		}
		if s == nil {
			return flagUnrecognized // a stateless reflector does not count packets by session
		}
		be.PutUint32(v[4:], s.received)
		be.PutUint32(v[8:], s.sent+1) // including this one, as in the sender's count
		return 0
	case tlvAccess:
		if len(v) != 4 {
			return flagMalformed
		}
		if id := v[0] >> 4; id != 1 && id != 2 {
			return flagUnrecognized // §4.6 requires that it be discarded
		}
		return 0
	case tlvFollowUp:
		if clear(v[:min(len(v), 16)]); len(v) != 16 {
			return flagMalformed
		}
		if s != nil && s.sent > 0 {
			be.PutUint32(v, s.sent-1)
			be.PutUint64(v[4:], s.sentAt)
			v[12] = methodLocal
		}
		return 0
	}
	return flagUnrecognized
}

// class answers a Class of Service TLV: DSCP1, the requested DSCP of the reply; DSCP2 and ECN, those of the received
// packet; and RP, which means that the reply could not have DSCP1 and has DSCP2 instead (RFC 8972 §4.4, and erratum
// 8199).
func (r *Responder) class(v []byte, in *arrival, tos *uint8) {
	asked, got, ecn := v[0]>>2, in.tos>>2, in.tos&3
	reverse := uint8(1)
	if *tos = in.tos; r.dscps>>asked&1 != 0 {
		reverse, *tos = 0, asked<<2|ecn
	}
	v[0], v[1], v[2], v[3] = asked<<2|got>>4, got<<4|ecn<<2|reverse, 0, 0
}

// location answers a Location TLV: destination and source port of the packet, and the items that its sub-TLVs request.
func (r *Responder) location(v []byte, in *arrival) uint8 {
	if len(v) < 4 {
		return flagMalformed
	}
	answer := func(to, what []byte) {
		if clear(to); !r.hideLocation {
			copy(to, what)
		}
	}
	answer(v[:2], in.ports[2:])
	answer(v[2:4], in.ports[:2])
	n := len(in.hosts) / 2
	family := uint8(1)
	if n == 16 {
		family = 2
	}
	for x := v[4:]; len(x) > 0; {
		value, whole := tlv(x)
		form, what := uint8(0), []byte(nil)
		switch {
		case !whole:
			x[0] = flagMalformed
			return flagMalformed
		case x[1] == subSourceMAC:
			form, what = subSourceEUI48, in.mac[:]
		case x[1] == subDestination:
			form, what = subDestination+family, in.hosts[n:]
		case x[1] == subSource:
			form, what = subSource+family, in.hosts[:n]
		}
		switch {
		case form == 0:
			x[0] = flagUnrecognized
		case len(value) != 16 && form != subSourceEUI48, len(value) != 8 && form == subSourceEUI48:
			x[0] = flagMalformed
			return flagMalformed
		default:
			x[0], x[1] = 0, form
			answer(value, what)
		}
		x = x[tlvHeader+len(value):]
	}
	return 0
}
