package fastpath

import (
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"hash"
	"slices"
)

// Reflector configures a STAMP reflector. Its zero value is a stateless and unauthenticated one.
type Reflector struct {
	// Sessions makes it stateful (RFC 8762 §4.2): replies are numbered by session, so that the sender can tell in which
	// direction a packet was lost. It is the maximum number of unauthenticated sessions, and also of authenticated
	// ones; a new session beyond it displaces one that has been silent for longer than four times its duration, or is
	// refused. 0 is stateless. A session belongs to one Responder, so all of its packets have to arrive at the same
	// queue. Cards and the kernel ensure this by spreading packets by addresses and ports.
	Sessions int
	// Idle is the time without a packet after which a session ends, in ticks of polling.TSC. The next packet starts a
	// new session.
	Idle uint64

	// AuthPorts are UDP ports that only use STAMP's authenticated mode (RFC 8762 §4.2.2, §4.4).
	AuthPorts []uint16
	// Key is the HMAC key, for packets to AuthPorts and for the HMAC TLV: KeyLength bytes, or none.
	Key []byte

	// TLVs enables extensions (RFC 8972). If it is unset, everything after a packet's base is returned unchanged,
	// including TLVs with the flag by which their sender marks them as unrecognized.
	TLVs bool
	// HideLocation fills the Location TLV with zeros instead of the requested ports, addresses and MAC of the received
	// packet (RFC 8972 §4.2.2).
	HideLocation bool
	// Timing answers the Host Timing TLV (see timing.go), by which a sender learns how long its packet may have waited
	// for the loop. With a Key, it is answered only in packets whose HMAC TLV is right, which needs TLVs. Otherwise it
	// does not depend on TLVs.
	Timing bool
	// DSCPs has a bit for each DSCP that a Class of Service TLV may select for its reply (RFC 8972 §4.4).
	DSCPs uint64
}

// KeyLength is the length of a key, in bytes: that of the hash's output, because a longer key is not stronger (RFC 2104
// §3).
const KeyLength = sha256.Size

// Beyond returns the features of c that a stateless and unauthenticated STAMP reflector does not have, as the text of
// an error, or "".
func (c *Config) Beyond() string {
	switch r := &c.Reflector; {
	case r.Sessions > 0:
		return "a stateful STAMP reflector"
	case len(r.AuthPorts) > 0:
		return "STAMP's authenticated mode"
	case r.TLVs:
		return "STAMP's TLVs"
	}
	return ""
}

// setReflector checks the settings of the STAMP reflector and allocates its sessions and keys. An error wraps
// ErrConfig.
func (r *Responder) setReflector(c *Config) error {
	f := &c.Reflector
	switch {
	case f.Sessions < 0 || f.Sessions > maxSessions:
		return fmt.Errorf("%w: %d STAMP sessions, expected 0 (stateless) to %d", ErrConfig, f.Sessions, maxSessions)
	case f.Sessions > 0 && f.Idle == 0:
		return fmt.Errorf("%w: STAMP sessions that are over after 0 ticks, expected more", ErrConfig)
	case len(f.Key) != 0 && len(f.Key) != KeyLength:
		return fmt.Errorf("%w: a STAMP key of %d bytes, expected %d", ErrConfig, len(f.Key), KeyLength)
	case len(f.AuthPorts) > 0 && len(f.Key) == 0:
		return fmt.Errorf("%w: authenticated STAMP on UDP port %d needs a key", ErrConfig, f.AuthPorts[0])
	}
	if f.Sessions > 0 {
		r.sessions = newSessions(f.Sessions, f.Idle)
	}
	if len(f.AuthPorts) > 0 {
		r.sealed = &guarded{limit: r.limit}
		if f.Sessions > 0 {
			r.sealed.sessions = newSessions(f.Sessions, f.Idle)
		}
	}
	if len(f.Key) > 0 {
		r.seal = newSeal(f.Key)
	}
	r.auth = slices.Clone(f.AuthPorts)
	r.tlvs, r.hideLocation, r.dscps = f.TLVs, f.HideLocation, f.DSCPs
	r.timing.any = f.Timing
	r.timing.plain = f.Timing && len(f.Key) == 0
	return nil
}

// seal computes STAMP's HMACs: HMAC-SHA-256, of which the first 16 bytes are sent (RFC 8762 §4.4). It allocates nothing
// after its creation.
type seal struct {
	mac hash.Hash
	sum [sha256.Size]byte
}

const sealLength = 16

func newSeal(key []byte) *seal {
	s := &seal{mac: hmac.New(sha256.New, key)}
	s.hmac(nil, nil) // the first call would allocate
	return s
}

// hmac returns the HMAC of a followed by b, which is valid until the next call.
func (s *seal) hmac(a, b []byte) []byte {
	s.mac.Reset()
	s.mac.Write(a)
	s.mac.Write(b)
	return s.mac.Sum(s.sum[:0])[:sealLength]
}

// fits reports, in constant time, whether sum is the HMAC of a followed by b.
func (s *seal) fits(sum, a, b []byte) bool { return hmac.Equal(sum, s.hmac(a, b)) }

// Offsets of the fields in an authenticated test packet (RFC 8762 §4.2.2 and §4.3.2, RFC 8972 §3). The sender's fields
// come first.
const (
	authTime     = 16
	authEstimate = 24
	authSSID     = 26
	authReceived = 32 // Receive Timestamp
	authNumber   = 48 // Session-Sender Sequence Number
	authSent     = 64 // Session-Sender Timestamp
	authError    = 72 // Session-Sender Error Estimate
	authHops     = 80 // Session-Sender TTL
	authSeal     = 96 // HMAC over everything before it
	authBase     = 112

	baseSSID = 14 // in an unauthenticated packet
)

// authentic reports whether the HMAC of the authenticated test packet p is right.
func (r *Responder) authentic(p []byte) bool {
	return r.seal.fits(p[authSeal:authBase], p[:authSeal], nil)
}

// mirrorSealed is mirror for the base of an authenticated packet, except for the number, the times and the HMAC.
func mirrorSealed(p []byte, hop uint8) {
	copy(p[authNumber:authNumber+4], p[:4])
	copy(p[authSent:authSent+8], p[authTime:])
	copy(p[authError:authError+2], p[authEstimate:])
	for _, zero := range [...][2]int{{4, authTime}, {authSSID + 2, authReceived}, {authReceived + 8, authNumber},
		{authNumber + 4, authSent}, {authError + 2, authHops}, {authHops + 1, authSeal}} {
		clear(p[zero[0]:zero[1]])
	}
	p[authHops] = hop
}
