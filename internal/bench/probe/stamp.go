package probe

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"hash"
	"slices"
	"strconv"
	"strings"

	"github.com/rebound-nic/rebound/fastpath"
)

// AskTiming is the request for the Host Timing TLV, which comes first.
func AskTiming() Ask {
	v := make([]byte, fastpath.TimingLength)
	be.PutUint32(v, fastpath.TimingMark)
	return Ask{HostTiming, v}
}

// TestPacket describes the parts of STAMP probes beyond the unauthenticated base of RFC 8762 §4.2.1.
type TestPacket struct {
	SSID          uint16 // session identifier (RFC 8972 §3), 0 for none
	Key           []byte // for the HMACs; nil for none
	Authenticated bool   // RFC 8762 §4.2.2; requires Key
	Ask           []Ask  // the TLVs, in order, except for padding, which fills the requested size
}

// Ask is a TLV in a probe, with which the sender requests information from the reflector.
type Ask struct {
	Type  TLV
	Value []byte
}

// TLV is a type of TLV (RFC 8972 §5.1).
type TLV uint8

// The types that a probe can have.
const (
	ExtraPadding TLV = iota + 1
	Location
	TimestampInformation
	ClassOfService
	DirectMeasurement
	AccessReport
	FollowUp
	HMAC

	HostTiming TLV = fastpath.TLVTiming // private use: when a Rebound responder's loop last ran
)

func (t TLV) String() string {
	if t == HostTiming {
		return "timing"
	}
	if t > HMAC {
		return fmt.Sprintf("TLV %d", uint8(t))
	}
	return [...]string{"none", "padding", "location", "time", "cos", "direct", "access", "followup", "hmac"}[t]
}

// Flags of a TLV in a reply (RFC 8972 §4).
const (
	Unrecognized = 0x80
	Malformed    = 0x40
	Integrity    = 0x20
)

// ParseAsk parses one TLV in the format of -stamp-tlv: time, location, cos:DSCP, direct, access:ID:CODE, followup,
// hmac.
func ParseAsk(text string) (Ask, error) {
	name, args, _ := strings.Cut(text, ":")
	fail := func(want string) (Ask, error) { return Ask{}, fmt.Errorf("TLV %q: want %s", text, want) }
	number := func(s string, high int) (byte, bool) {
		n, err := strconv.Atoi(s)
		return byte(n), err == nil && n >= 0 && n <= high
	}
	if args != "" && name != "cos" && name != "access" {
		return fail(name + " alone")
	}
	switch name {
	case "time":
		return Ask{TimestampInformation, make([]byte, 4)}, nil
	case "location":
		v := make([]byte, 4)
		// source MAC, destination and source address
		for _, sub := range [...]struct{ kind, n byte }{{1, 8}, {4, 16}, {7, 16}} {
			v = append(append(v, Unrecognized, sub.kind, 0, sub.n), make([]byte, sub.n)...)
		}
		return Ask{Location, v}, nil
	case "cos":
		dscp, ok := number(args, 63)
		if !ok {
			return fail("cos:DSCP with the DSCP of the reply, 0 to 63")
		}
		return Ask{ClassOfService, []byte{dscp << 2, 0, 0, 0}}, nil
	case "direct":
		return Ask{DirectMeasurement, make([]byte, 12)}, nil
	case "access":
		id, code, _ := strings.Cut(args, ":")
		i, ok := number(id, 2)
		c, fine := number(code, 255)
		if !ok || i == 0 || !fine {
			return fail("access:ID:CODE, ID 1 for a 3GPP network or 2 for another, CODE 1 for available or 2 for not (RFC 8972 §4.6, up to 255)")
		}
		return Ask{AccessReport, []byte{i << 4, c, 0, 0}}, nil
	case "followup":
		return Ask{FollowUp, make([]byte, 16)}, nil
	case "hmac":
		return Ask{Type: HMAC}, nil
	}
	return fail("time, location, cos:DSCP, direct, access:ID:CODE, followup or hmac")
}

const (
	authenticatedBase = 112 // RFC 8762 §4.2.2
	sealed            = 96  // the number of bytes that the HMAC covers
	sealLength        = 16
)

func (t *TestPacket) base() int {
	if t.Authenticated {
		return authenticatedBase
	}
	return stampBase
}

// asks are the TLVs except for the HMAC.
func (t *TestPacket) asks() []Ask {
	return slices.DeleteFunc(slices.Clone(t.Ask), func(a Ask) bool { return a.Type == HMAC })
}

// signs reports whether there is an HMAC TLV: if it is requested, and in authenticated packets with any TLV other than
// padding (RFC 8972 §4.8).
func (t *TestPacket) signs() bool {
	n := len(t.asks())
	return n < len(t.Ask) || t.Authenticated && n > 0
}

// Extra returns by how many bytes the shortest probe is longer than the base of RFC 8762 §4.2.1.
func (t *TestPacket) Extra() int {
	n := t.base() - stampBase
	for _, a := range t.asks() {
		n += tlvHeader + len(a.Value)
	}
	if t.signs() {
		n += tlvHeader + sealLength
	}
	return n
}

// test builds and checks the test packets of a flow.
type test struct {
	TestPacket
	ask    []Ask // without the HMAC
	length int   // of those TLVs
	signed bool
	built  uint32 // number of packets built
	mac    hash.Hash
	sum    [sha256.Size]byte
}

func newTest(t TestPacket) *test {
	x := &test{TestPacket: t, ask: t.asks(), signed: t.signs()}
	for _, a := range x.ask {
		x.length += tlvHeader + len(a.Value)
	}
	if len(t.Key) > 0 {
		x.mac = hmac.New(sha256.New, t.Key)
		x.seal(nil, nil) // the first calls allocate
		x.seal(nil, nil)
	}
	return x
}

// seal returns the HMAC of a and b, valid until the next call.
func (x *test) seal(a, b []byte) []byte {
	x.mac.Reset()
	x.mac.Write(a)
	x.mac.Write(b)
	return x.mac.Sum(x.sum[:0])[:sealLength]
}

// stamp writes a Session-Sender test packet (RFC 8762 §4.2). If it is longer than its base and the requested TLVs, the
// rest is an Extra Padding TLV (RFC 8972 §4.1), provided that one fits, so that a reflector with TLV support
// understands the length. The HMAC TLV is the last.
func (c *Codec) stamp(b []byte, seq uint32, t1 uint64) {
	x := c.test
	x.built++
	base := x.base()
	clear(b[:base])
	be.PutUint32(b, seq)
	times := b[4:]
	if x.Authenticated {
		times = b[16:]
	}
	be.PutUint64(times, t1)
	be.PutUint16(times[8:], c.errorEstimate)
	be.PutUint16(times[10:], x.SSID)
	at := base
	for _, a := range x.ask {
		b[at], b[at+1] = Unrecognized, uint8(a.Type)
		be.PutUint16(b[at+2:], uint16(len(a.Value)))
		if copy(b[at+tlvHeader:], a.Value); a.Type == DirectMeasurement {
			be.PutUint32(b[at+tlvHeader:], x.built)
		}
		at += tlvHeader + len(a.Value)
	}
	end := len(b)
	if x.signed {
		end -= tlvHeader + sealLength
	}
	c.padding(b[at:end], seq)
	if x.signed {
		s := b[end:]
		s[0], s[1] = Unrecognized, uint8(HMAC)
		be.PutUint16(s[2:], sealLength)
		copy(s[tlvHeader:], x.seal(b[:4], b[base:end]))
	}
	if x.Authenticated {
		copy(b[sealed:base], x.seal(b[:sealed], nil))
	}
}

func (c *Codec) padding(b []byte, seq uint32) {
	if len(b) < tlvHeader {
		clear(b)
		return
	}
	b[0], b[1] = Unrecognized, uint8(ExtraPadding)
	be.PutUint16(b[2:], uint16(len(b)-tlvHeader))
	fill(b[tlvHeader:], c.flow.Run, seq)
}

// Stamped is the information that a STAMP reflector adds (RFC 8762 §4.3). Timestamps are in NTP format, or in PTP
// format if the error estimate says so.
type Stamped struct {
	Seq           uint32 // the reflector's own count; a stateless reflector repeats the sender's number
	T1            uint64 // the sender's time, as the reflector copied it
	T2, T3        uint64 // receive and transmit timestamps of the reflector
	ErrorEstimate uint16
	SSID          uint16 // as returned: a reflector without RFC 8972 may have zeroed it
	TTL           uint8  // of the probe when it reached the reflector

	// Answers are the answers to TestPacket.Ask except for the HMAC, in the same order. They refer to the checked
	// frame.
	Answers []Answer
	// Untrusted means that the HMAC TLV was returned unverified: Answers must not be used (RFC 8972 §4.8).
	Untrusted bool
}

// Answer is a TLV of a reply.
type Answer struct {
	Type  TLV
	Flags uint8 // Unrecognized, Malformed, Integrity
	Value []byte
}

// Usable reports whether the value is the reflector's answer.
func (a *Answer) Usable() bool { return a.Flags&(Unrecognized|Malformed|Integrity) == 0 }

// reflected parses a Session-Reflector test packet (RFC 8762 §4.3). Fields that must be zero are ignored, as the RFC
// requires. Padding is returned unchanged (its TLV's flags may change), or as zeros.
func (c *Codec) reflected(b []byte, r *Reply) Field {
	x, s := c.test, &r.Stamped
	base := x.base()
	s.Seq = be.Uint32(b[0:])
	copied := 36
	if x.Authenticated {
		if !hmac.Equal(b[sealed:base], x.seal(b[:sealed], nil)) {
			return Authentication
		}
		s.T3, s.ErrorEstimate, s.SSID, s.T2 = be.Uint64(b[16:]), be.Uint16(b[24:]), be.Uint16(b[26:]), be.Uint64(b[32:])
		s.T1, s.TTL, copied = be.Uint64(b[64:]), b[80], 72
	} else {
		s.T3, s.ErrorEstimate, s.SSID, s.T2 = be.Uint64(b[4:]), be.Uint16(b[12:]), be.Uint16(b[14:]), be.Uint64(b[16:])
		s.T1, s.TTL = be.Uint64(b[28:]), b[40]
	}
	if be.Uint16(b[copied:]) != c.errorEstimate {
		return SenderCopy
	}
	at := base + x.length
	pad, want := b[at:], c.want[at:]
	if x.signed {
		pad = pad[:len(pad)-tlvHeader-sealLength]
	}
	if f := c.answers(b, base, len(b)-len(b[at:])+len(pad), s); f != None {
		return f
	}
	if len(pad) == 0 {
		return None
	}
	want = want[:len(pad)]
	c.padding(want, r.Seq)
	if bytes.Equal(pad[1:], want[1:]) {
		return None
	}
	for _, x := range pad {
		if x != 0 {
			return Payload
		}
	}
	return None
}

// answers parses the TLVs of a reply. Its HMAC TLV, if there is one, is at sealAt. A reflector without TLV support
// returns them as they were sent, with U set, or as zeros.
func (c *Codec) answers(b []byte, base, sealAt int, s *Stamped) Field {
	x := c.test
	if s.Answers = c.answered[:0]; len(x.ask) == 0 && !x.signed {
		return None
	}
	flags := uint8(0)
	at, blank := base, true
	for _, v := range b[base:sealAt] {
		blank = blank && v == 0
	}
	stopped := false
	for _, a := range x.ask {
		end := at + tlvHeader + len(a.Value)
		got := Answer{a.Type, b[at], b[at+tlvHeader : end]}
		switch {
		case blank || stopped:
			got.Flags = Unrecognized
		case TLV(b[at+1]) != a.Type || int(be.Uint16(b[at+2:])) != len(a.Value):
			return Payload
		}
		stopped = stopped || got.Flags&Malformed != 0
		flags |= got.Flags
		s.Answers = append(s.Answers, got)
		at = end
	}
	if x.signed {
		t := b[sealAt:]
		switch {
		case blank || t[0]&(Unrecognized|Malformed) != 0 || (t[0]|flags)&Integrity != 0:
			s.Untrusted = true
		case TLV(t[1]) != HMAC || be.Uint16(t[2:]) != sealLength ||
			!hmac.Equal(t[tlvHeader:], x.seal(b[:4], b[base:sealAt])):
			return Authentication
		}
	}
	s.Untrusted = s.Untrusted || flags&Integrity != 0
	return None
}
