package oracle

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"slices"
)

// Reflector implements the STAMP reflector's modes beyond stateless and unauthenticated. It keeps sessions, so that the
// reply to a frame depends on earlier frames.
type Reflector struct {
	Stateful     bool
	AuthPorts    []uint16
	Key          []byte
	TLVs         bool
	HideLocation bool
	DSCPs        uint64
	Timing       bool // of a loop that has not looked at its queue

	sessions map[string]*counts
}

// counts are the packet counts of a session.
type counts struct{ came, went uint32 }

// asked is how the request for the Host Timing TLV begins: flag U, type 253 (private use), 16 bytes, the mark.
var asked = []byte("\x80\xfd\x00\x10RBND")

// digest is STAMP's HMAC of the parts (RFC 8762 §4.4).
func (r *Reflector) digest(parts ...[]byte) []byte {
	m := hmac.New(sha256.New, r.Key)
	m.Write(slices.Concat(parts...))
	return m.Sum(nil)[:16]
}

// testPacket answers the test packet b of datagram s. The returned TOS is that of the reply.
func (q *request) testPacket(s, hosts []byte, hops, tos byte, sealed bool) (reply []byte, newTOS byte, ok bool) {
	r, b := q.rules, s[8:]
	least, base, sealAt := 41, 44, 0
	if r.STAMPBase {
		least = 14
	}
	if sealed {
		least, base, sealAt = 112, 112, 96
	}
	if len(b) < least || sealed && !hmac.Equal(r.Reflector.digest(b[:sealAt]), b[sealAt:base]) {
		return nil, 0, false
	}
	var number, estimate, sent, id []byte
	if sealed { // figures 3 and 6 of RFC 8762
		number, sent, estimate, id = b[:4], b[16:24], b[24:26], b[26:28]
	} else {
		number, sent, estimate, id = b[:4], b[4:12], b[12:14], []byte{0, 0}
		if len(b) >= 41 {
			id = b[14:16]
		}
	}
	var c *counts
	if r.Reflector.Stateful {
		c = r.Reflector.session(string(hosts) + string(s[:4]) + string(id))
		c.came++
	}
	own := number
	if c != nil {
		own = be.AppendUint32(nil, c.went)
	}
	rest := []byte{0, 0, 0}
	if len(b) >= 41 {
		rest = b[41:]
	}
	if sealed {
		rest = b[base:]
	}
	newTOS = tos
	if r.Reflector.TLVs && len(b) > base {
		answer, t := q.tlvs(b[base:], number, own, s, hosts, tos, c, sealed)
		if newTOS = t; !sealed {
			answer = append(slices.Clone(b[41:44]), answer...)
		}
		rest = answer
	} else if r.Reflector.Timing && len(r.Reflector.Key) == 0 && !sealed && len(b) >= base+20 &&
		bytes.Equal(b[base:base+8], asked) {
		rest = slices.Clone(rest) // it comes first: nothing after it is looked at
		rest[base-41] = 0
		clear(rest[base-41+8:][:12])
	}
	now := be.AppendUint64(nil, r.Time)
	ours := be.AppendUint16(nil, r.ErrorEstimate)
	zeros := func(n int) []byte { return make([]byte, n) }
	if sealed {
		reply = slices.Concat(own, zeros(12), now, ours, id, zeros(4), now, zeros(8), number, zeros(12), sent, estimate,
			zeros(6), []byte{hops}, zeros(15))
		reply = append(append(reply, r.Reflector.digest(reply)...), rest...)
	} else {
		reply = slices.Concat(own, now, ours, id, now, number, sent, estimate, zeros(2), []byte{hops}, rest)
	}
	if c != nil {
		c.went++
	}
	return reply, newTOS, true
}

func (r *Reflector) session(name string) *counts {
	if r.sessions == nil {
		r.sessions = map[string]*counts{}
	}
	if r.sessions[name] == nil {
		r.sessions[name] = &counts{}
	}
	return r.sessions[name]
}

// element is a TLV; cut means that the packet ends before the TLV does, and value then has all remaining bytes, header
// included.
type element struct {
	flags, kind byte
	value       []byte
	cut         bool
}

func split(b []byte) (all []element) {
	for len(b) > 0 {
		if len(b) < 4 || 4+int(be.Uint16(b[2:])) > len(b) {
			return append(all, element{value: b, cut: true})
		}
		n := 4 + int(be.Uint16(b[2:]))
		all = append(all, element{flags: b[0], kind: b[1], value: b[4:n]})
		b = b[n:]
	}
	return all
}

func join(all []element) (b []byte) {
	for _, e := range all {
		if e.cut {
			b = append(b, e.value...)
			continue
		}
		b = append(b, e.flags, e.kind)
		b = be.AppendUint16(b, uint16(len(e.value)))
		b = append(b, e.value...)
	}
	return b
}

// The flags of RFC 8972 §4.
const (
	unrecognized = 1 << 7
	malformed    = 1 << 6
	integrity    = 1 << 5
)

// tlvs answers the TLVs b of a packet numbered came with a reply numbered goes.
func (q *request) tlvs(b, came, goes, s, hosts []byte, tos byte, c *counts, sealed bool) ([]byte, byte) {
	r, all := &q.rules.Reflector, split(b)
	at := slices.IndexFunc(all, func(e element) bool { return !e.cut && e.kind == 8 })
	sound := true
	if at >= 0 {
		sound = len(all[at].value) == 16 && len(r.Key) > 0 && hmac.Equal(all[at].value, r.digest(came, join(all[:at])))
		for _, e := range all[at+1:] {
			sound = sound && (e.cut || e.kind == 1)
		}
	} else if sealed {
		sound = len(all) == 1 && !all[0].cut && all[0].kind == 1
	}
	if !sound {
		for i := range all {
			all[i].flags = integrity
			if all[i].cut {
				all[i].value = slices.Clone(all[i].value)
				all[i].value[0] = integrity | malformed
			}
		}
		return join(all), tos
	}
	for i := range all {
		e := &all[i]
		e.value = slices.Clone(e.value)
		if e.cut {
			e.value[0] = malformed
			break
		}
		if e.flags, tos = q.element(e.kind, e.value, s, hosts, tos, c, at >= 0); e.flags&malformed != 0 {
			break
		}
	}
	if at >= 0 {
		all[at].flags, all[at].value = 0, r.digest(goes, join(all[:at]))
	}
	return join(all), tos
}

// lengths are the fixed value lengths by type.
var lengths = map[byte]int{3: 4, 4: 4, 5: 12, 6: 4, 7: 16}

func (q *request) element(kind byte, v, s, hosts []byte, tos byte, c *counts, proven bool) (flags, newTOS byte) {
	r := q.rules
	if n, fixed := lengths[kind]; fixed && n != len(v) {
		if kind == 7 {
			clear(v[:min(len(v), 16)])
		}
		return malformed, tos
	}
	switch kind {
	case 1, 8:
	case 2:
		return q.location(v, s, hosts), tos
	case 3:
		source := byte(5)
		if r.ErrorEstimate >= 1<<15 {
			source = 1
		}
		copy(v, []byte{source, 2, source, 2})
	case 4:
		w := uint32(v[0]>>2)<<26 | uint32(q.tos>>2)<<20 | uint32(q.tos&3)<<18
		if r.Reflector.DSCPs>>(v[0]>>2)&1 != 0 {
			tos = v[0]&^3 | q.tos&3
		} else {
			w |= 1 << 16
			tos = q.tos
		}
		be.PutUint32(v, w)
	case 5:
		if c == nil {
			return unrecognized, tos
		}
		be.PutUint32(v[4:], c.came)
		be.PutUint32(v[8:], c.went+1)
	case 6:
		if v[0]>>4 < 1 || v[0]>>4 > 2 {
			return unrecognized, tos
		}
	case 7:
		clear(v)
		if c != nil && c.went > 0 {
			be.PutUint32(v, c.went-1)
			be.PutUint64(v[4:], r.Time)
			v[12] = 2
		}
	case 253:
		switch {
		case !r.Reflector.Timing || len(r.Reflector.Key) > 0 && !proven || len(v) < 4 || !bytes.Equal(v[:4], asked[4:]):
			return unrecognized, tos
		case len(v) != 16:
			return malformed, tos
		}
		clear(v[4:])
	default:
		return unrecognized, tos
	}
	return 0, tos
}

func (q *request) location(v, s, hosts []byte) byte {
	if len(v) < 4 {
		return malformed
	}
	half := len(hosts) / 2
	from, to, mac, ports := hosts[:half], hosts[half:], q.src[:], []byte{s[2], s[3], s[0], s[1]}
	if q.rules.Reflector.HideLocation {
		from, to, mac, ports = nil, nil, nil, []byte{0, 0, 0, 0}
	}
	copy(v, ports)
	subs := split(v[4:])
	bad := byte(0)
	for i := range subs {
		e := &subs[i]
		if e.cut {
			e.value = slices.Clone(e.value)
			e.value[0] = malformed
			bad = malformed
			break
		}
		answer := map[byte][]byte{1: mac, 4: to, 7: from}
		what, known := answer[e.kind]
		want := 16
		if e.kind == 1 {
			want = 8
		}
		if !known {
			e.flags = unrecognized
			continue
		}
		if len(e.value) != want {
			e.flags, bad = malformed, malformed
			break
		}
		e.flags, e.value = 0, append(slices.Clone(what), make([]byte, want-len(what))...)
		if e.kind++; e.kind > 2 && half == 16 {
			e.kind++
		}
	}
	copy(v[4:], join(subs))
	return bad
}
