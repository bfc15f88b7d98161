package fastpath

import (
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"hash"
	"slices"
)

// Reflector is what a STAMP reflector does beyond a stateless and unauthenticated one, which is what its zero value makes.
type Reflector struct {
	// Sessions makes it stateful (RFC 8762 §4.2): replies are numbered by session, so that their sender can tell which way a
	// packet was lost. So many sessions find a place, and as many authenticated ones; a new one beyond them displaces one that has been
	// silent for longer than four times what it lasted, or is refused. 0 is stateless. A session is of one Responder, so all of its
	// packets have to come to the same queue, as cards and the kernel spread them: by addresses and ports.
	Sessions int
	// Idle is after how many ticks of polling.TSC without a packet a session is over. The next packet begins another.
	Idle uint64

	// AuthPorts are UDP ports that answer in STAMP's authenticated mode and in no other (RFC 8762 §4.2.2, §4.4).
	AuthPorts []uint16
	// Key is that of the HMACs, of packets to AuthPorts and of the TLV of that name: KeyLength bytes, or none.
	Key []byte

	// TLVs has extensions understood (RFC 8972). Without, whatever follows a packet's base goes back as it came: TLVs with the flag
	// with which their sender marks what was not understood.
	TLVs bool
	// HideLocation fills the Location TLV with zeros, where its sender requests the ports, addresses and MAC that its
	// packet had when it came (RFC 8972 §4.2.2).
	HideLocation bool
	// DSCPs has a bit for each DSCP that a Class of Service TLV may choose for its reply (RFC 8972 §4.4).
	DSCPs uint64
}

// KeyLength is the length of a key, in bytes: that of the hash's output, beyond which a key is no stronger (RFC 2104 §3).
const KeyLength = sha256.Size

// Beyond returns what c asks of a STAMP reflector that is more than a stateless and unauthenticated one does, in the words of an
// error, or nothing.
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
	return nil
}

// seal computes STAMP's HMACs: HMAC-SHA-256, of which the first 16 bytes are sent (RFC 8762 §4.4). It allocates nothing once it is
// made.
type seal struct {
	mac hash.Hash
	sum [sha256.Size]byte
}

const sealLength = 16

func newSeal(key []byte) *seal {
	s := &seal{mac: hmac.New(sha256.New, key)}
	s.of(nil, nil) // what the first one would allocate
	s.of(nil, nil)
	return s
}

// of returns the HMAC of a and b, one after the other, which is valid until the next call.
func (s *seal) of(a, b []byte) []byte {
	s.mac.Reset()
	s.mac.Write(a)
	s.mac.Write(b)
	return s.mac.Sum(s.sum[:0])[:sealLength]
}

// fits reports, in a time that does not tell where they differ, whether sum is the HMAC of a and b.
func (s *seal) fits(sum, a, b []byte) bool { return hmac.Equal(sum, s.of(a, b)) }

// Where the fields of an authenticated test packet lie (RFC 8762 §4.2.2 and §4.3.2, RFC 8972 §3). Those of the sender come first.
const (
	authTime     = 16
	authEstimate = 24
	authSSID     = 26
	authReceived = 32 // Receive Timestamp
	authNumber   = 48 // Session-Sender Sequence Number
	authSent     = 64 // Session-Sender Timestamp
	authError    = 72 // Session-Sender Error Estimate
	authHops     = 80 // Session-Sender TTL
	authSeal     = 96 // HMAC, over all that is before it
	authBase     = 112

	baseSSID = 14 // of an unauthenticated one
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
