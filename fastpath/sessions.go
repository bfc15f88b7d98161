package fastpath

import (
	"hash/maphash"
	"math/bits"

	"github.com/rebound-nic/rebound/polling"
)

// sessionKey identifies a test session: the addresses and ports of its packets, and the identifier that its sender
// chose (RFC 8972 §3). IPv4 addresses are followed by zeros, where an IPv6 packet has a destination, which is never
// zero. For a message, which has no addresses and ports, it is the sender reported by the driver.
type sessionKey [40]byte

// Layout of a sessionKey.
const (
	keyPorts = 32
	keySSID  = 36
)

// frameKey is the key of a test packet in a datagram d between the addresses hosts, of 8 or 32 bytes.
func frameKey(hosts, d []byte, ssid uint16) (k sessionKey) {
	copy(k[:], hosts)
	copy(k[keyPorts:], d[:4])
	be.PutUint16(k[keySSID:], ssid)
	return k
}

// messageKey is the key of a test packet in a message.
func messageKey(sender uint64, ssid uint16) (k sessionKey) {
	be.PutUint64(k[:], sender)
	be.PutUint16(k[keySSID:], ssid)
	return k
}

// session is a stateful reflector's state of a session (RFC 8762 §4.2, RFC 8972 §4.5, §4.7).
type session struct {
	key      sessionKey
	begun    uint64 // tick of its first packet
	seen     uint64 // tick of its latest packet; 0 if the place is free
	received uint32 // test packets received, including those over the limit
	sent     uint32 // replies, which is also the number of the next one
	sentAt   uint64 // transmit timestamp of the latest reply
}

const (
	ways        = 8       // places that one hash leads to; a key has two hashes
	maxSessions = 1 << 20 // 144 MB
	patience    = 4       // a session is kept while it is silent for less than this multiple of its duration
)

// sessions is a table of fixed size. It has twice the requested number of places, and each key can use 16 of them, in
// two sets. It uses the set with more room, so that the requested number of sessions always find a place: if one set
// were filled first, 3 of 100 tables of 64 would refuse one.
//
// A session ends after being silent for idle; its place is then free. If none is free, a new session displaces the one
// that was silent longest, among those that were silent for more than patience times their duration. So a flood of
// sessions of one packet each only displaces others of the flood, and never an active session, whose numbers would
// restart, which its sender would interpret as loss. A sender that keeps up many sessions for a long time can still
// fill the table, so authenticated sessions have a separate one.
type sessions struct {
	places []session
	mask   uint64
	seed   maphash.Seed // unknown to senders, who could otherwise fill the places of one hash
	idle   uint64       // ticks

	begun, ended, displaced polling.Counter
}

func newSessions(n int, idle uint64) *sessions {
	sets := uint64(1) << bits.Len64(uint64(2*n-1)/ways)
	return &sessions{places: make([]session, sets*ways), mask: sets - 1, seed: maphash.MakeSeed(), idle: idle}
}

// find returns the session of k as of tick now, or the place for it, which begin assigns to it; nil if there is no
// room.
func (t *sessions) find(k *sessionKey, now uint64) (s *session, going bool) {
	h := maphash.Bytes(t.seed, k[:])
	first, second := h&t.mask, h>>32&t.mask
	if second == first {
		second ^= t.mask & 1
	}
	most := 0 // free places of a set
	var spare *session
	longest := int64(0) // how long spare has been silent
	for _, set := range [2]uint64{first, second} {
		places := t.places[set*ways:][:ways]
		free, room := 0, (*session)(nil)
		for i := range places {
			p := &places[i]
			silence := int64(now - p.seen)
			over := p.seen == 0 || silence > int64(t.idle)
			switch {
			case p.seen != 0 && p.key == *k: // its own, current or ended
				return p, !over
			case over:
				free, room = free+1, p
			case silence > longest && uint64(silence)/patience > p.seen-p.begun:
				spare, longest = p, silence
			}
		}
		if free > most {
			most, s = free, room
		}
	}
	if s == nil {
		s = spare
	}
	return s, false
}

// begin assigns the place s, which find returned as of tick now, to the session k.
func (t *sessions) begin(s *session, k *sessionKey, now uint64) {
	switch {
	case s.seen == 0:
	case int64(now-s.seen) > int64(t.idle):
		t.ended.Add(1)
	default:
		t.displaced.Add(1)
	}
	t.begun.Add(1)
	*s = session{key: *k, begun: now, seen: now, received: 1}
}

// Sessions counts test sessions of a stateful reflector.
type Sessions struct {
	Begun     uint64 // total number of sessions started
	Ended     uint64 // replaced after being silent for Reflector.Idle
	Displaced uint64 // replaced earlier, by a new session that found no free place
}

// Sessions returns the counters of unauthenticated and of authenticated sessions, all zero for a stateless reflector.
// Any goroutine may call it at any time.
func (r *Responder) Sessions() (open, sealed Sessions) {
	if r.sealed != nil {
		sealed = r.sealed.sessions.count()
	}
	return r.sessions.count(), sealed
}

func (t *sessions) count() Sessions {
	if t == nil {
		return Sessions{}
	}
	return Sessions{t.begun.Load(), t.ended.Load(), t.displaced.Load()}
}
