package fastpath

import (
	"hash/maphash"
	"math/bits"

	"rebound/polling"
)

// sessionKey names a test session: the addresses and ports of its packets, and the identifier that its sender chose (RFC 8972
// §3). Of a message, which has none of the former, it is the sender that the driver tells.
type sessionKey [40]byte

// What a sessionKey holds and where.
const (
	keyPorts = 32
	keySSID  = 36
	keyKind  = 38 // keyIPv4, keyIPv6 or keyMessage

	keyIPv4, keyIPv6, keyMessage = 1, 2, 3
)

// frameKey is the key of a test packet in a datagram d between the addresses hosts, of 8 or 32 bytes.
func frameKey(hosts, d []byte, ssid uint16) (k sessionKey) {
	copy(k[:], hosts)
	copy(k[keyPorts:], d[:4])
	be.PutUint16(k[keySSID:], ssid)
	if k[keyKind] = keyIPv4; len(hosts) > 8 {
		k[keyKind] = keyIPv6
	}
	return k
}

// messageKey is the key of a test packet that is a message.
func messageKey(sender uint64, ssid uint16) (k sessionKey) {
	be.PutUint64(k[:], sender)
	be.PutUint16(k[keySSID:], ssid)
	k[keyKind] = keyMessage
	return k
}

// session is what a stateful reflector keeps of one (RFC 8762 §4.2, RFC 8972 §4.5, §4.7).
type session struct {
	key      sessionKey
	seen     uint64 // the tick of its latest packet; 0 where the place is free
	received uint32 // test packets that came, also those that were over the limit
	sent     uint32 // replies, which is also the next one's number
	sentAt   uint64 // the time that the latest reply was stamped with on its way out
}

const (
	ways        = 8       // places that one hash leads to; a key has two hashes
	maxSessions = 1 << 20 // 80 MB
)

// sessions is a table of fixed size. It has twice as many places as were asked for, and each key has 16 of them to choose from, in two
// sets. It takes the set with more room, so that all that were asked for find a place: filled one set after the other, 3 of 100 tables
// of 64 refuse one. A session is over when none of its packets came for a while: its place is then free for another. One that still goes
// on never makes room: its numbers would begin again, which its sender would take for loss.
type sessions struct {
	places []session
	mask   uint64
	seed   maphash.Seed // unknown to senders, who could fill the places of one hash otherwise
	idle   uint64       // ticks

	begun, ended polling.Counter
}

func newSessions(n int, idle uint64) *sessions {
	sets := uint64(1) << bits.Len64(uint64(2*n-1)/ways)
	return &sessions{places: make([]session, sets*ways), mask: sets - 1, seed: maphash.MakeSeed(), idle: idle}
}

// find returns the session of k as of tick now, or the place for it, which begin makes its own; nil where there is no room.
func (t *sessions) find(k *sessionKey, now uint64) (s *session, going bool) {
	h := maphash.Bytes(t.seed, k[:])
	first, second := h&t.mask, h>>32&t.mask
	if second == first {
		second ^= t.mask & 1
	}
	most := 0 // free places of a set
	for _, set := range [2]uint64{first, second} {
		places := t.places[set*ways:][:ways]
		free, room := 0, (*session)(nil)
		for i := range places {
			p := &places[i]
			over := p.seen == 0 || int64(now-p.seen) > int64(t.idle)
			switch {
			case p.key == *k && p.seen != 0: // its own, now or before
				return p, !over
			case over:
				free, room = free+1, p
			}
		}
		if free > most {
			most, s = free, room
		}
	}
	return s, false
}

// begin makes the place s that find returned a session of its own.
func (t *sessions) begin(s *session, k *sessionKey) {
	if s.seen != 0 {
		t.ended.Add(1)
	}
	t.begun.Add(1)
	*s = session{key: *k}
}

// Sessions counts the test sessions of a stateful reflector.
type Sessions struct {
	Begun uint64 // as many as there ever were
	Ended uint64 // whose place another one took: nothing had come for Reflector.Idle
}

// Sessions returns the counters, all zero of a stateless reflector. Any goroutine may call it at any time.
func (r *Responder) Sessions() Sessions {
	if r.sessions == nil {
		return Sessions{}
	}
	return Sessions{r.sessions.begun.Load(), r.sessions.ended.Load()}
}
